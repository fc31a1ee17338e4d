"""Best known figures of a machine for estimates, and the roofline at one intensity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from roofline.accounting.config import ConfigError
from roofline.gpu_table import find_gpu, lacks
from roofline.machine import MEASURED_FIRST, Machine
from roofline.model import bound, intensity, mfu, ridge_intensity
from roofline.work import Work, dtype_named

if TYPE_CHECKING:
    from results.store.runfile import Run

ASSUMED_MFU = 0.5
"""CS336 lecture 2 calls it good."""

PUBLISHED_MFU = "0.38 to 0.57"
"""Llama 3 (2024), table 4: 0.38 to 0.43; PaLM (2022), table 3: 0.46; MPT in llm-foundry's table of
A100: 0.57.
"""

TRAINING = "train-step"
ORIGINS = {
    "matmul": "the fastest matmul of the run, {}; an upper bound for training",
    TRAINING: f"{TRAINING} {{}}",
}
"""Origin of a measured MFU by op; the last one counts."""


@dataclass(frozen=True, kw_only=True)
class Attainable:
    """The roofline at one intensity."""

    gpu: str
    dtype: str
    flops: int
    bytes: int
    intensity: float | None
    ridge: float
    """Intensity above which the peak binds, FLOP/byte."""
    seconds: float
    bound: str
    """`compute`, `memory`, or `mixed` if their times differ by less than 10 %."""
    compute_s: float
    memory_s: float
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    source: str

    @property
    def flops_per_s(self) -> float:
        """min(peak, intensity x bandwidth); 0 without FLOPs."""
        return self.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds


def peak_of(machine: Machine, dtype: str) -> float:
    """Return the dense peak of a dtype in FLOP/s; ConfigError names the dtypes that have one."""
    peak = machine.peak(dtype, MEASURED_FIRST)
    if peak is None:
        known = ", ".join(machine.dtypes) or "none"
        raise ConfigError(
            f"{machine.slug} has {why_not(machine, dtype)} {dtype}; its dtypes are {known}"
        )
    return peak.value


def why_not(machine: Machine, dtype: str) -> str:
    return "no hardware path for" if lacks(machine, dtype) else "no known peak of"


def bandwidth_of(machine: Machine, work: Work | None = None) -> float:
    """Return the memory bandwidth in bytes/s, of measured mixes the one nearest to `work`.

    Raises:
        ConfigError: it is unknown.
    """
    bandwidth = machine.bandwidth(MEASURED_FIRST)
    if bandwidth is not None and bandwidth.kind == "measured" and work is not None:
        bandwidth = machine.mix(work.bytes_read, work.bytes_written) or bandwidth
    if bandwidth is None:
        raise ConfigError(
            f"the memory bandwidth of {machine.slug} is unknown; give --bandwidth BYTES/S"
        )
    return bandwidth.value


def memory_of(machine: Machine) -> int:
    """Return the memory in bytes; ConfigError if it is unknown."""
    if machine.usable_memory_bytes is None:
        raise ConfigError(f"the memory of {machine.slug} is unknown; give --memory BYTES")
    return machine.usable_memory_bytes


def mfu_of(machine: Machine, dtype: str, given: float | None) -> tuple[float, str]:
    """Return the MFU for an estimate, and a note on its origin: given, measured or assumed."""
    if given is not None:
        return given, f"MFU {given:g}, as given"
    if dtype in machine.mfu:
        return machine.mfu[dtype]
    note = f"MFU {ASSUMED_MFU:g} is assumed"
    if machine.run:
        note += f" because {machine.run} has no {TRAINING} and no matmul in {dtype}"
    return ASSUMED_MFU, f"{note}: published runs reach {PUBLISHED_MFU}"


def attainable(gpu: str | Machine, flops: int, bytes: int, dtype: str = "bf16") -> Attainable:
    """Return the minimum time of some work, its rates, and what binds.

    Args:
        gpu: slug from `python -m roofline gpus`, such as `h100-sxm`, or a machine.
        flops: floating-point operations; a fused multiply-add counts as 2.
        bytes: bytes read and written.
        dtype: dtype of the dense peak: `bf16`, `fp32`, `fp8e4m3`, ...

    Raises:
        UnknownGpuError: no GPU has this slug; the message names the closest ones.
        ConfigError: invalid count, or unknown peak or bandwidth.
    """
    for name, value in (("flops", flops), ("bytes", bytes)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= 10**30
            or value % 1
        ):
            raise ConfigError(f"{name}={value!r:.60} is not an integer from 0 to 10^30")
    if not flops and not bytes:
        raise ConfigError("flops and bytes are both 0")
    machine = find_gpu(gpu) if isinstance(gpu, str) else gpu
    dtype = dtype_named(dtype)
    flops = int(flops)
    moved = int(bytes)
    peak = peak_of(machine, dtype)
    bandwidth = bandwidth_of(machine)
    compute_s = flops / peak
    memory_s = moved / bandwidth
    return Attainable(
        gpu=machine.slug,
        dtype=dtype,
        flops=flops,
        bytes=moved,
        intensity=intensity(flops, moved),
        ridge=ridge_intensity(peak, bandwidth),
        seconds=max(compute_s, memory_s),
        bound=bound(compute=compute_s, memory=memory_s),
        compute_s=compute_s,
        memory_s=memory_s,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        source=machine.source,
    )


def run_machine(run: Run, where: str) -> Machine:
    """Return the machine of a saved run with its MFU.

    The MFU is that of a training step, else of the fastest matmul, an upper bound for training.
    """
    machine = run.environment.machine
    peaks = {
        dtype: peak for dtype in machine.dtypes if (peak := machine.peak(dtype, MEASURED_FIRST))
    }
    used = [*peaks.values(), machine.bandwidth(MEASURED_FIRST)]
    kinds = dict.fromkeys(ceiling.kind for ceiling in used if ceiling)
    reached = {}
    for (op, origin), (dtype, peak) in product(ORIGINS.items(), peaks.items()):
        shares = [
            (mfu(record.flops / record.median_s, peak.value), record.case)
            for record in run.records
            if (record.op, record.dtype, record.status) == (op, dtype, "ok")
            and record.flops
            and record.median_s
        ]
        if shares:
            share, case = max(shares)
            reached[dtype] = (share, f"MFU {share:.3f}, measured: {origin.format(case)}")
    return replace(
        machine,
        slug=run.environment.device["slug"],
        memory_reported_bytes=run.environment.device.get("memory_bytes"),
        source=f"{' and '.join(kinds) or 'no ceilings'}, {where}",
        run=where,
        mfu=reached,
    )
