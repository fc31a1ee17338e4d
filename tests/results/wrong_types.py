"""Valid lines of every kind of run file, and values of wrong types in their places."""

import copy
import json
from pathlib import Path

from results.record import ProfileOp

PUBLISHED = Path(__file__).parents[2] / "results/published/cpu-amd-epyc-2t"

WRONG = (
    None,
    True,
    0,
    -1,
    0.5,
    10**30,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    "x",
    "",
    "\ud800",
    [],
    [1],
    ["x"],
    [None],
    [[[]]],
    [{"name": []}],
    {},
    {"x": 1},
    {"x": [{"x": None}]},
    {"name": {"count": "x"}, "value": []},
)

PROFILE_ROW = {
    "op": "mm",
    "provider": "torch",
    "dtype": "bf16",
    "shape": {"calls": 2},
    "case": "64x64,64x64",
    "status": "ok",
    "options": {"module": "model.layers.0", "phase": "forward"},
    "flops": 2**20,
    "bytes_read": 2**14,
    "bytes_written": 2**13,
    "samples_s": (1e-5,),
    "median_s": 1e-5,
    "ci95_s": None,
    "launches_per_sample": 1,
    "method": "host",
    "cache": "warm",
    "count": 2,
    "details": ProfileOp(
        shapes="64x64,64x64",
        dtypes=("bf16", "bf16"),
        module="model.layers.0",
        phase="forward",
        matmul_flops=2**20,
        kernels=("gemm",),
        kernels_s=(1e-5,),
        kernel_calls=(1,),
        time_s=1e-5,
        share=1.0,
    ),
}
"""Keys of a row that `bench profile` saves."""

STEP_TOTALS = {
    "time_s": 1e-5,
    "eager_bytes": 2**15,
    "no_shape": {"aten::x": 1},
    "early_s": 1e-5,
    "early_kernels": 1,
    "communication_s": 1e-5,
    "exposed_s": 1e-6,
    "fusing": [{"operations": ["mul", "add"], "saved_bytes": 100, "module": "model", "count": 2}],
}

GPU_KEYS = {
    "options": {"layout": "nn", "batch": 1},
    "host_latency_s": 1e-5,
    "outliers": 0,
    "settled": True,
    "copies": 3,
    "warm_median_s": 4e-6,
    "flags": ("launch-limited",),
    "flag_reasons": {"launch-limited": "because"},
    "telemetry": {
        "window_s": 0.5,
        "sm_clock_hz": 1.7e9,
        "memory_clock_hz": 2.6e9,
        "temperature_c": 50,
        "power_w": 512.5,
        "clock_events": ["sw_power"],
        "throttle": {"sw_thermal": 0.0},
        "host_throttle": {"steal": 0.0},
        "cgroup_throttled_periods": 0,
        "governor": "performance",
        "turbo": True,
        "errors": {},
    },
    "verified": {
        "before": {
            "reference": "fp64",
            "max_error_of_bound": 0.5,
            "checked_elements": 10,
            "elements": 10,
        },
        "after": {
            "reference": "fp64",
            "max_error_of_bound": 0.5,
            "checked_elements": 10,
            "elements": 10,
        },
    },
    "source_sha256": "3:abc",
    "op_sha256": "3:abc",
    "source_git": {"sha": "abc", "dirty": False},
    "units": "matrix",
    "passed_over": {"triton-v9": "its tile is too large"},
    "output": "hello",
    "peak_memory_bytes": 4096,
    "work": "as declared",
}
"""Keys of a row with everything that a record of any kind can have."""


ROUNDS = {
    "rounds": 20,
    "samples_per_round": 1,
    "is_fixed": False,
    "is_clear": True,
    "seconds": 1.0,
    "seed": 0,
}


def places(value, path=()):
    """Yield the path of each value inside a JSON value; of a list, those of its first element."""
    if path:
        yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:1])
        if isinstance(value, list)
        else ()
    )
    for key, each in inner:
        yield from places(each, (*path, key))


def replaced(line, path, value):
    """Return a line with another value at a path."""
    line = copy.deepcopy(line)
    inside = line
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return line


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)
