"""The parts of a calibration: the launch floor, and the order in which all of them are measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.harness.calibrate import bandwidth, fma, matmul_peak
from bench.harness.calibrate.setup import CalibrationPart, CalibrationSetup, Launch, Note, PartOutcome
from bench.harness.providers.registry import has_triton
from results.stats.samples import quantile

DTYPES = {
    ("cpu", False): ("bf16", "fp32"),
    ("cpu", True): ("bf16", "fp32"),
    ("gpu", False): ("bf16", "fp16", "tf32", "fp32", "fp8e4m3", "int8", "fp64"),
    ("gpu", True): ("bf16", "fp32", "fp8e4m3"),
}
"""Measured where none is asked for, by the device and by `--quick`, the most used first."""


def plan_parts(setup: CalibrationSetup, dtypes: Sequence[str]) -> list[CalibrationPart]:
    """Return all parts, what others rely on most first, so that an interruption costs the least."""
    vectors = fma.dtypes_of(setup.device)
    return [
        launch(setup),
        bandwidth.part(setup),
        *(matmul_peak.part(setup, dtype) for dtype in dtypes),
        *(fma.part(setup, dtype) for dtype in dtypes if dtype in vectors),
    ]


def launch(setup: CalibrationSetup) -> CalibrationPart:
    """Return the part that measures the launch floor."""
    return CalibrationPart("launch", partial(_launch_part, setup))


def _launch_part(setup: CalibrationSetup, note: Note) -> PartOutcome:
    """Return the time of an empty kernel on a GPU, and of a copy of one element on a CPU."""
    import torch

    one, out = (torch.ones(1, device=setup.device.torch_name) for _ in range(2))
    what, call = "copy of one element", partial(out.copy_, one)
    if setup.device.type == "cuda" and has_triton():
        from kernels.launch_floor import v1_empty

        what, call = "triton v1, empty kernel", partial(v1_empty.launch, one)
    elif setup.device.is_gpu:  # a copy would be a node of the copy engine, and no kernel
        what, call = "addition to one element", partial(out.add_, one)
    rate = setup.timed(what, Launch(call, 0), setup.effort.confirming_s)
    samples = rate.samples
    ceiling = setup.ceiling(
        "launch",
        "launch",
        samples.median_s if setup.device.is_gpu else min(samples.samples_s),
        f"{what}, {'per graph node' if samples.method == 'graph' else 'back to back'}",
        rate.telemetry,
        ci95=samples.ci95_s,
        p5_p95=(quantile(samples.samples_s, 0.05), quantile(samples.samples_s, 0.95)),
    )
    record = setup.record_of("launch", "fp32", {"n": 1}, rate, flops=0, bytes_read=0, bytes_written=0)
    return PartOutcome((ceiling,), (record,))
