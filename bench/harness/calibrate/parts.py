"""The launch floor, and the parts of a calibration in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from bench.harness.calibrate import bandwidth, fma, matmul_peak
from bench.harness.calibrate.setup import Launch, Measured, Part, Setup
from bench.harness.providers.registry import has_triton

DTYPES = {
    ("cpu", False): ("bf16", "fp32"),
    ("cpu", True): ("bf16", "fp32"),
    ("gpu", False): ("bf16", "fp16", "tf32", "fp32", "fp8e4m3", "int8", "fp64"),
    ("gpu", True): ("bf16", "fp32", "fp8e4m3"),
}
"""Default dtypes, by the device and by `--quick`, the most used first."""


def parts_of(
    needs_launch: bool, mixes: Sequence[str], matmuls: Iterable[str], fmas: Iterable[str] = ()
) -> list[tuple[str, Part]]:
    """Return parts with their names, what others rely on most first, because a calibration may be interrupted.

    Args:
        needs_launch: whether the launch floor is measured.
        mixes: mixes of reads and writes whose bandwidth is measured.
        matmuls: dtypes whose fastest matmul is measured.
        fmas: dtypes whose rate of fused multiply-adds is measured.
    """
    parts: list[tuple[str, Part]] = [("launch", launch)] if needs_launch else []
    if mixes:
        parts.append((f"bandwidth of {', '.join(mixes)}", partial(bandwidth.measure, mixes=mixes)))
    parts += [(f"{dtype} matmul", partial(matmul_peak.measure, dtype=dtype)) for dtype in matmuls]
    parts += [(f"{dtype} FMA", partial(fma.measure, dtype=dtype)) for dtype in fmas]
    return parts


def launch(setup: Setup) -> list[Measured]:
    """Return the time of an empty kernel on a GPU, and of a copy of one element on a CPU."""
    import torch

    x, out = (torch.ones(1, device=setup.device.torch_name) for _ in range(2))
    what, call = "copy of one element", partial(out.copy_, x)
    if setup.device.type == "cuda" and has_triton():
        from kernels.launch_floor import v1_empty

        what, call = "triton v1, empty kernel", partial(v1_empty.launch, x)
    elif setup.device.is_gpu:  # a copy would be a node of the copy engine, and not a kernel
        what, call = "addition to one element", partial(out.add_, x)
    rate = setup.timed(what, Launch(call, 0), setup.effort.confirming_s)
    rate = replace(rate, config=f"{what}, {'per graph node' if rate.samples.method == 'graph' else 'back to back'}")
    no_work = {"flops": 0, "bytes_read": 0, "bytes_written": 0}
    return [setup.measured("launch", "launch", rate, "launch", "fp32", {"n": 1}, **no_work)]
