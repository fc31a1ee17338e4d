"""The highest arithmetic rates: fused multiply-adds outside the tensor cores, and matmuls in bursts and long runs.

The FMA rate of a GPU comes from a Triton kernel whose instructions are counted in its machine code (`kernels/fma`).
That of a CPU comes from chains in registers, where there is a C compiler (`cpu_fma`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.harness.calibrate import cpu_fma
from bench.harness.calibrate.search import Candidate, Launch, NotMeasuredError, Rate, rate_of
from bench.harness.data.inputs import torch_dtype
from bench.harness.device.device import Device
from bench.harness.providers.registry import has_triton
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import Call
from results.stats.samples import median, median_ci95
from roofline.hardware.gpu import Gpu, clock_limited_peak_flops_per_s, clock_limited_vector_flops_per_s

FMA_DTYPES = ("fp64", "fp32", "fp16", "bf16")

ISSUE_SLOTS = 2**22
"""Warp instructions that one launch of the FMA kernel gives to each scheduler: 2 ms at 2 GHz and one a clock."""

LANES_A_CLOCK = 128
"""Threads that the four schedulers of a multiprocessor serve in one clock.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities: four warp schedulers an SM from 7.0 to 10.0."""

BURST_S = 0.1
"""A burst lasts this long: a GPU that was idle draws more power than its limit allows it for longer."""

SUSTAINED_SHARE = 0.5
"""The last part of a run, by time, that counts as sustained."""


# ---- fused multiply-adds ------------------------------------------------------------------------------------------


def fma_candidates(dtype: str, device: Device) -> list[Candidate]:
    """Return what may reach the rate of fused multiply-adds of a dtype; each counts as 2 FLOPs.

    Raises:
        NotMeasuredError: there is no such rate here that could be measured; the message says why.
    """
    return gpu_fma_candidates(dtype, device) if device.is_gpu else cpu_fma.candidates(dtype, device)


def gpu_fma_candidates(dtype: str, device: Device) -> list[Candidate]:
    """Return the FMA kernel in every configuration worth trying.

    Raises:
        NotMeasuredError: the dtype has no such instruction, the device does not run CUDA, or Triton is not there.
    """
    if dtype not in FMA_DTYPES or device.type != "cuda":
        known = ", ".join(FMA_DTYPES)
        raise NotMeasuredError(f"no kernel of {dtype} multiply-adds for {device.type}; for cuda there are: {known}")
    if not has_triton():
        raise NotMeasuredError("its kernel needs Triton, which is not installed; there are wheels for Linux only")
    from kernels.fma import v1_chains

    def candidate(config: Any) -> Candidate:
        return Candidate(f"triton v1, {config.words}", lambda: _fma_launch(torch_dtype(dtype), device, config))

    return [candidate(config) for config in v1_chains.CONFIGS]


def launches_to_compile(dtypes: Sequence[str], device: Device) -> dict[str, Call]:
    """Return the launches of the FMA kernel in every configuration, by a name of each, on tensors without memory."""
    import torch

    from kernels.fma import v1_chains

    found: dict[str, Call] = {}
    for dtype in dtypes:
        for config in v1_chains.CONFIGS if dtype in FMA_DTYPES else ():
            ab, x = (
                torch.empty(elements, dtype=torch_dtype(dtype), device="meta")
                for elements in (2, config.elements(device.sm_count or 1))
            )
            launch = partial(v1_chains.launch, ab, x, _iterations(config), out=x, config=config)
            found[f"{dtype} FMA, {config.words}"] = launch
    return found


def _iterations(config: Any) -> int:
    from kernels.fma import v1_chains

    instructions: int = config.threads_per_sm * config.chains * v1_chains.UNROLL
    return ISSUE_SLOTS * LANES_A_CLOCK // instructions


def _fma_launch(dtype: Any, device: Device, config: Any) -> Launch:
    import torch

    from kernels.fma import v1_chains

    elements = config.elements(device.sm_count or 1)
    iterations = _iterations(config)
    ab = v1_chains.coefficients(dtype, device.torch_name)
    generator = torch.Generator(device=device.torch_name).manual_seed(0)
    start = torch.rand(elements, device=device.torch_name, generator=generator).to(dtype)
    out = torch.empty_like(start)
    flops = v1_chains.flops(elements, iterations)
    return Launch(lambda: v1_chains.launch(ab, start, iterations, out=out, config=config), flops)


# ---- what time, data and clock make of a rate ---------------------------------------------------------------------


@dataclass(frozen=True)
class Endurance:
    """One long run, split."""

    burst: Rate
    """Of the first `BURST_S` seconds."""
    sustained: Rate
    """Of the last half."""
    burst_end: int
    """Number of the first sample that is none of the burst."""
    sustained_first: int
    """Number of the first sample that counts as sustained."""


def endurance(config: str, work_per_launch: int, samples: Samples) -> Endurance:
    """Split a run that began on an idle device into its burst and what it could sustain.

    Time is that of the samples; gaps between them count for nothing.

    Args:
        config: the configuration in words.
        work_per_launch: FLOPs or bytes.
        samples: of the whole run, in the order taken.

    Raises:
        NotMeasuredError: the run is too short to have a later part, or its first sample is no burst any more.
    """
    sample_s = [seconds * samples.launches_per_sample for seconds in samples.samples_s]
    total_s = sum(sample_s)
    if total_s * (1 - SUSTAINED_SHARE) < BURST_S or sample_s[0] > BURST_S:
        raise NotMeasuredError(
            f"a run of {total_s:.3g} s with a first sample of {sample_s[0]:.2g} s cannot tell its first {BURST_S:g} s "
            f"from its last {SUSTAINED_SHARE:.0%}"
        )
    first: list[float] = []
    last: list[float] = []
    ended_s = 0.0
    for seconds, per_launch_s in zip(sample_s, samples.samples_s, strict=True):
        began_s, ended_s = ended_s, ended_s + seconds
        if ended_s <= BURST_S or not first:
            first.append(per_launch_s)
        if began_s >= total_s * (1 - SUSTAINED_SHARE):
            last.append(per_launch_s)
    burst, sustained = (
        rate_of(config, work_per_launch, _part(samples, part)) for part in (first, last or samples.samples_s[-1:])
    )
    return Endurance(burst, sustained, len(first), len(samples.samples_s) - max(1, len(last)))


def _part(samples: Samples, part: Sequence[float]) -> Samples:
    return replace(samples, samples_s=tuple(part), median_s=median(part), ci95_s=median_ci95(part))


def peak_sentence(dtype: str, measured: float, gpu: Gpu, clock_hz: float | None, is_vector: bool) -> str | None:
    """Return in one line how the datasheet's peak becomes the measured one: a factor of the clock, one of software.

    Args:
        dtype: what was measured.
        measured: FLOP/s of the fastest matmul or FMA kernel; integer operations per second of int8.
        gpu: the entry of the GPU table.
        clock_hz: median SM clock while it was measured; None where it could not be read.
        is_vector: whether tensor cores took no part.

    Returns:
        The line, or None where a part of it is not known.
    """
    published = (gpu.vector_peaks_flops_per_s if is_vector else gpu.peaks_flops_per_s).get(dtype)
    at_clock = clock_limited_vector_flops_per_s if is_vector else clock_limited_peak_flops_per_s
    limited = at_clock(gpu, dtype, clock_hz) if clock_hz else None
    if not published or not limited or not clock_hz:
        return None
    unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
    return (
        f"{dtype}{' FMA' if is_vector else ''}: datasheet {published / 1e12:.4g} {unit} -> "
        f"x clock {limited / published:.2f} ({clock_hz / 1e6:.0f} MHz) = {limited / 1e12:.4g} -> "
        f"x software {measured / limited:.2f} -> measured {measured / 1e12:.4g} {unit}"
    )
