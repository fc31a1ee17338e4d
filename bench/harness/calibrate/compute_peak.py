"""The highest arithmetic rates: fused multiply-adds outside the tensor cores, and matmuls in bursts and long runs.

The FMA rate of a GPU comes from a Triton kernel whose instructions are counted in its machine code (`kernels/fma`).
That of a CPU is only what torch reaches with an elementwise operation, and only where it does fuse: from there the
processor's own peak is out of reach, and the fastest matmul comes closer to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.harness.calibrate.search import (
    Candidate,
    Chosen,
    Launch,
    Measure,
    Note,
    NotMeasuredError,
    Rate,
    Summary,
    best_of,
    rate_of,
    silent,
)
from bench.harness.data.inputs import torch_dtype
from bench.harness.device.device import Device
from bench.harness.providers.registry import has_triton
from bench.harness.timing.protocol import Limits, Samples
from results.stats.samples import half_width, median, median_ci95
from roofline.hardware.gpu import Gpu, clock_limited_peak_flops_per_s, clock_limited_vector_flops_per_s

if TYPE_CHECKING:
    from torch import Tensor

    Function = Callable[[Tensor, Tensor, Tensor], object]
    """Works on x, y and out."""

FMA_DTYPES = ("fp64", "fp32", "fp16", "bf16")
CPU_FMA_DTYPES = ("fp64", "fp32")
"""Narrower floats torch computes in fp32 on a CPU."""

ISSUE_SLOTS = 2**22
"""Warp instructions that one launch of the FMA kernel gives to each scheduler: 2 ms at 2 GHz and one a clock."""

LANES_A_CLOCK = 128
"""Threads that the four schedulers of a multiprocessor serve in one clock.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities: four warp schedulers an SM from 7.0 to 10.0."""

CPU_BLOCKS = (2**14, 2**15, 2**16, 2**17, 2**18)
"""Elements of each operand on a CPU: three of them lie in the L1 of one core, or in the L2 of a few."""

BURST_S = 0.1
"""A burst lasts this long: a GPU that was idle draws more power than its limit allows it for longer."""

SUSTAINED_SHARE = 0.5
"""The last part of a run, by time, that counts as sustained."""


# ---- fused multiply-adds ------------------------------------------------------------------------------------------


def measure_fma(
    dtype: str,
    device: Device,
    measure: Measure,
    screening: Limits,
    confirming: Limits,
    note: Note = silent,
    summary: Summary = median,
) -> Chosen:
    """Return the rate of fused multiply-adds of a dtype, FLOP/s; each counts as 2.

    Args:
        dtype: one of `FMA_DTYPES`.
        device: the device under test.
        measure: the timing protocol.
        screening: limits for every configuration.
        confirming: limits for the one that is chosen.
        note: told each configuration.
        summary: what the screening compares.

    Raises:
        NotMeasuredError: there is no such rate here that could be measured; the message says why.
    """
    candidates = gpu_fma_candidates(dtype, device) if device.is_gpu else cpu_fma_candidates(dtype)
    return best_of(candidates, measure, screening, confirming, lambda line: note(f"{dtype} FMA: {line}"), summary)


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


def _fma_launch(dtype: Any, device: Device, config: Any) -> Launch:
    """Return a launch of `ISSUE_SLOTS`, on random starts."""
    import torch

    from kernels.fma import v1_chains

    elements = config.elements(device.sm_count or 1)
    iterations = ISSUE_SLOTS * LANES_A_CLOCK // (config.threads_per_sm * config.chains * v1_chains.UNROLL)
    ab = v1_chains.coefficients(dtype, device.torch_name)
    generator = torch.Generator(device=device.torch_name).manual_seed(0)
    start = torch.rand(elements, device=device.torch_name, generator=generator).to(dtype)
    out = torch.empty_like(start)
    flops = v1_chains.flops(elements, iterations)
    return Launch(lambda: v1_chains.launch(ab, start, iterations, out=out, config=config), flops)


def cpu_fma_candidates(dtype: str) -> list[Candidate]:
    """Return what torch computes with one fused multiply-add an element, on blocks that stay in the cache.

    Raises:
        NotMeasuredError: the dtype has no arithmetic of its own on a CPU, or torch rounds between product and sum.
    """
    if dtype not in CPU_FMA_DTYPES:
        known = ", ".join(CPU_FMA_DTYPES)
        raise NotMeasuredError(f"torch has no fused multiply-add in {dtype} on a CPU; it has: {known}")
    import torch

    functions: dict[str, Function] = {
        "torch add with alpha": lambda x, y, out: torch.add(x, y, alpha=1 + small_of(dtype), out=out),
        "torch addcmul": lambda x, y, out: torch.addcmul(x, y, y, out=out),
    }
    fused = {name: function for name, function in functions.items() if is_fused(function, dtype)}
    if not fused:
        raise NotMeasuredError(f"torch rounds {dtype} products before it adds them here: no fused multiply-add")

    def candidate(name: str, function: Function, elements: int) -> Candidate:
        def prepare() -> Launch:
            x, y, out = (torch.rand(elements, dtype=torch_dtype(dtype)) for _ in range(3))
            return Launch(lambda: function(x, y, out), 2 * elements)

        return Candidate(f"{name}, {elements} elements", prepare)

    return [candidate(name, function, elements) for name, function in fused.items() for elements in CPU_BLOCKS]


def small_of(dtype: str) -> float:
    """Return the largest power of two e for which (1 + e)^2 = 1 + 2e + e^2 rounds to 1 + 2e in a dtype."""
    import torch

    half_ulp = torch.finfo(torch_dtype(dtype)).eps / 2
    return 2.0 ** -math.ceil(-math.log2(half_ulp) / 2)


def is_fused(function: Function, dtype: str) -> bool:
    """Return whether `function` adds x to the product of y and 1 + e, or of y and y, without rounding the product.

    With x = -(1 + 2e) and y = 1 + e the sum is e^2 if the product is kept whole, and 0 if it is rounded first.
    """
    import torch

    small = small_of(dtype)
    x, y, out = (torch.full((1024,), value, dtype=torch_dtype(dtype)) for value in (-(1 + 2 * small), 1 + small, 9.0))
    function(x, y, out)
    return bool((out == small**2).all())


# ---- what time, data and clock make of a rate ---------------------------------------------------------------------


@dataclass(frozen=True)
class Endurance:
    """One long run, split."""

    burst: Rate
    """Of the first `BURST_S` seconds."""
    sustained: Rate
    """Of the last half."""

    @property
    def share(self) -> float:
        """Sustained over burst."""
        return self.sustained.value / self.burst.value


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
    return Endurance(burst, sustained)


def _part(samples: Samples, part: Sequence[float]) -> Samples:
    """Return some of the samples as samples of their own."""
    return replace(samples, samples_s=tuple(part), median_s=median(part), ci95_s=median_ci95(part))


@dataclass(frozen=True)
class Sensitivity:
    """What random data cost against zeros, which switch no transistor."""

    value: float
    """Rate on zeros over rate on random data; above 1 where power holds the clock down."""
    ci95: tuple[float, float]


def zeros_against_random(zeros: Samples, random: Samples) -> Sensitivity:
    """Return the ratio of the rates of the same launch on two fills.

    The interval takes the two medians as independent: their relative half-widths add in squares.
    """
    ratio = random.median_s / zeros.median_s
    spread = math.hypot(half_width(zeros.ci95_s, zeros.median_s), half_width(random.ci95_s, random.median_s))
    return Sensitivity(ratio, (ratio * (1 - spread), ratio * (1 + spread)))


@dataclass(frozen=True)
class PeakLine:
    """From the datasheet to what was measured, in two factors; None where a part is not known."""

    dtype: str
    """What was measured: a dtype, or a dtype and ` FMA`."""
    measured: float
    """FLOP/s, or integer operations per second of int8."""
    datasheet: float | None = None
    clock_limited: float | None = None
    """At the clock of this run; may lie above the datasheet."""
    clock_hz: float | None = None
    """SM clock of this run."""

    @property
    def clock_factor(self) -> float | None:
        """Clock-limited over datasheet."""
        return self.clock_limited / self.datasheet if self.clock_limited and self.datasheet else None

    @property
    def software_factor(self) -> float | None:
        """Measured over clock-limited: what is left to the library and to memory."""
        return self.measured / self.clock_limited if self.clock_limited else None

    @property
    def sentence(self) -> str:
        """All of it in one line; a product of factors wherever they are known."""
        unit = "TOP/s" if self.dtype == "int8" else "TFLOP/s"
        known = f"datasheet {self.datasheet / 1e12:.4g} {unit}" if self.datasheet else "no datasheet peak"
        steps = [f"{self.dtype}: {known}"]
        if self.clock_limited and self.clock_hz:
            factor = f"x clock {self.clock_factor:.2f} " if self.clock_factor else ""
            steps.append(f"{factor}({self.clock_hz / 1e6:.0f} MHz) = {self.clock_limited / 1e12:.4g}")
            steps.append(f"x software {self.software_factor:.2f}")
        elif self.datasheet:
            steps.append(f"x {self.measured / self.datasheet:.2f} (clock unknown)")
        return " -> ".join([*steps, f"measured {self.measured / 1e12:.4g} {unit}"])


def peak_line(
    dtype: str, measured: float, gpu: Gpu | None, clock_hz: float | None, is_vector: bool = False
) -> PeakLine:
    """Return how the measured peak of a dtype comes about.

    Args:
        dtype: what was measured.
        measured: FLOP/s of the fastest matmul, or of `measure_fma`.
        gpu: the entry of the GPU table; None on a CPU.
        clock_hz: median SM clock while it was measured; None where it could not be read.
        is_vector: whether tensor cores took no part.
    """
    if gpu is None:
        return PeakLine(dtype, measured)
    if is_vector:
        limited = clock_limited_vector_flops_per_s(gpu, dtype, clock_hz) if clock_hz else None
        return PeakLine(f"{dtype} FMA", measured, gpu.vector_peaks_flops_per_s.get(dtype), limited, clock_hz)
    clock_limited = clock_limited_peak_flops_per_s(gpu, dtype, clock_hz) if clock_hz else None
    return PeakLine(dtype, measured, gpu.peaks_flops_per_s.get(dtype), clock_limited, clock_hz)
