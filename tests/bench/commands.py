"""Commands as a user runs them: in a separate process, or in this one if that makes no
difference.
"""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from bench.harness.calibrate.calibration import MIXES, MeasuredCeilings
from bench.harness.cli.main import main
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.device.device import Device, cpu_device, default_threads
from bench.harness.settings import Settings
from bench.harness.timing.protocol import Limits
from results.record import Record
from roofline.machine import Ceiling, Machine
from tests.bench.process_checks import usual_signals

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(
    path.stem for path in (ROOT / "bench").glob("[a-z]*.py") if "\nOPS = " in path.read_text()
)

QUICK = Limits(
    min_samples=5,
    target_half_width=0.5,
    min_time_s=0.0,
    cap_s=0.05,
    warm_up_s=0.0,
    min_sample_s=1e-4,
    sampling_ratio=0.0,
)
"""Limits for rows whose times do not matter."""

BANDWIDTH_BYTES_PER_S = 2e10
PEAKS_FLOPS_PER_S = {"fp64": 5e12, "fp32": 1e13, "fp16": 1e13, "bf16": 2e13, "int8": 4e13}
"""Higher than every row: a ceiling that a row exceeds is measured again."""


CPU = Device(
    type="cpu", torch_name="cpu", slug="cpu", name="a CPU", cache_bytes=2**20, memory_bytes=2**30
)
GPU = Device(
    type="cuda",
    torch_name="cuda:0",
    slug="gpu",
    name="a GPU",
    cache_bytes=2**20,
    memory_bytes=2**30,
)
A100, H100, RTX = (
    replace(GPU, compute_capability=capability) for capability in ("8.0", "9.0", "12.0")
)
"""Devices that do not exist, for tests of what a device supports."""

HALF_SECONDS = Record(
    op="a",
    provider="torch",
    dtype="fp32",
    shape={},
    case="",
    status="ok",
    samples_s=(0.5, 0.5),
    launches_per_sample=1,
)
"""A record of two samples of half a second."""


def inputs_of(op, case, fill="uniform", seed=0):
    return make_sets(op, case, Filler(fill, case.dtype, CPU, seed), CPU, 1)[0]


def meta_inputs(op, case):
    """Return inputs and output of a case on the meta device."""
    absent = Filler("zeros", case.dtype, None)
    return op.make_inputs(case, absent), absent(
        *op.output_shape(case), dtype=op.output_dtype(case.dtype)
    )


class Clock:
    """Seconds that pass only if a test adds them to `now`."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


THREADS = default_threads()
"""Thread count of commands in this process, read before a test changes that of torch."""


def keep_ceilings(runs, device=None):
    """Save known ceilings where a calibration of this CPU would, so no test has to measure them."""
    device = device or cpu_device(THREADS)
    entries = [
        Ceiling("launch", "launch", 1e-6, "measured", "made up"),
        *(Ceiling("bandwidth", mix, BANDWIDTH_BYTES_PER_S, "measured", "made up") for mix in MIXES),
        Ceiling(
            "cache-bandwidth", "a level of no bytes", BANDWIDTH_BYTES_PER_S, "measured", "made up"
        ),
        *(
            Ceiling("flops", dtype, peak, "measured", "made up")
            for dtype, peak in PEAKS_FLOPS_PER_S.items()
        ),
    ]
    problems = []
    MeasuredCeilings(device, runs, problems.append, problems.append).save(
        Machine(device.slug, device.name, entries)
    )
    assert problems == []


class StubRun:
    """A started run that keeps records and printed lines in memory."""

    def __init__(self, device, deadline=math.inf):
        self.device, self.deadline, self.ceilings = device, deadline, None
        self.settings, self.records, self.lines = Settings(timeout_s=60.0), [], []
        say = self.lines.append
        self.progress = SimpleNamespace(
            expect=lambda *_: None, say=say, advance=lambda: None, note=say
        )

    def keep(self, record, index=None):
        if index is None:
            self.records.append(record)
        else:
            self.records[index] = record

    def share_s(self, rows=1):
        return math.inf


def arguments(words):
    """Add `--device cpu` unless a device is given: these tests must also pass on a GPU machine."""
    return [str(word) for word in words] + ([] if "--device" in words else ["--device", "cpu"])


def here(family, *words, ops=None):
    """Run a command in this process and return its exit code."""
    module = importlib.import_module(f"bench.{family}")
    options = getattr(module, "OPTIONS", ())
    try:
        if hasattr(module, "LISTED"):
            return module.main(arguments(words))
        return main(
            module.__file__,
            module.__doc__,
            module.EXAMPLES,
            ops or module.OPS,
            options,
            arguments(words),
        )
    except SystemExit as exit:
        return exit.code


def start(module, *words, **popen):
    """Start `python -m module` in a separate session, with stdout and stderr as text pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with usual_signals():
        command = [sys.executable, "-m", module, *words]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes | popen)


def finish(process, timeout_s=120):
    """Wait for a process, or kill it at the limit; return exit code, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def call(family, *words, **popen):
    """Run `python -m bench.family` in a separate process; return exit code, stdout and stderr."""
    return finish(start(f"bench.{family}", *arguments(words), **popen))


def show(*words):
    """Run `python -m results show`; return exit code, stdout and stderr."""
    return finish(start("results", "show", *map(str, words)))


def run_files(runs):
    return sorted(Path(runs).rglob("*.jsonl"))


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
