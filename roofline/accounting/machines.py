"""What a calculation needs of a machine: from the table of GPUs by its datasheet, or from a saved run as measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from results.record import Record
from results.store.runs import Run
from roofline.accounting.config.config import ConfigError
from roofline.ceilings import Ceilings
from roofline.hardware.gpu import Gpu
from roofline.model import bound, intensity, least_time_s, mfu, rate, ridge_intensity

ASSUMED_MFU = 0.5
"""CS336 lecture 2 calls it good; published runs reach 0.38 to 0.57."""

TRAINING = "train-step"
"""The op of a record whose MFU is that of training."""


@dataclass(frozen=True, kw_only=True)
class Attainable:
    """The most that a device does of some work, and why: the roofline at one intensity."""

    gpu: str
    dtype: str
    flops: int
    bytes: int
    intensity: float | None
    """FLOP per byte; None where no byte is moved."""
    ridge: float
    """The intensity from which on the peak binds instead of the bandwidth, FLOP per byte."""
    seconds: float
    """The least time: max(FLOPs / peak, bytes / bandwidth)."""
    bound: str
    """`compute`, `memory`, or `mixed` where both take as long within 10 %."""
    compute_s: float
    memory_s: float
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    source: str
    """Where the figures of the device come from."""

    @property
    def flops_per_s(self) -> float:
        """The attainable rate, min(peak, intensity x bandwidth); 0 where there are no FLOPs."""
        return rate(self.flops, self.seconds)

    @property
    def bytes_per_s(self) -> float:
        """The bytes per second that go with it."""
        return rate(self.bytes, self.seconds)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One device and where its figures come from."""

    slug: str
    peaks_flops_per_s: dict[str, float]
    bandwidth_bytes_per_s: float | None = None
    memory_bytes: int | None = None
    """What the device reports, or where that is not known, what it is sold with: its GB are of 2^30 bytes."""
    sold_bytes: int | None = None
    """What it is sold with, its GB read as 10^9 bytes; None where other memory was given."""
    source: str
    power_w: float | None = None
    """The most that it draws, by its datasheet; None where it is not known."""
    mfu: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By dtype: what was reached in a run, and by what."""
    run: str | None = None
    """The run whose machine it is, as messages name it; None for a GPU of the table."""
    lacking: dict[str, str] = field(default_factory=dict)
    """By dtype without a peak: why."""

    def peak(self, dtype: str) -> float:
        """Return the dense peak of a dtype.

        Raises:
            ConfigError: none is known; the message names those that are.
        """
        if dtype not in self.peaks_flops_per_s:
            known = ", ".join(self.peaks_flops_per_s) or "none"
            raise ConfigError(f"{self.slug} has {self.why_not(dtype)} {dtype}; its dtypes are {known}")
        return self.peaks_flops_per_s[dtype]

    def why_not(self, dtype: str) -> str:
        """Return why there is no peak of a dtype."""
        return self.lacking.get(dtype, "no known peak of")

    def bandwidth(self) -> float:
        """Return the memory bandwidth in bytes/s.

        Raises:
            ConfigError: it is not known.
        """
        if self.bandwidth_bytes_per_s is None:
            raise ConfigError(f"the memory bandwidth of {self.slug} is not known; give --bandwidth BYTES/S")
        return self.bandwidth_bytes_per_s

    def memory(self) -> int:
        """Return the memory in bytes.

        Raises:
            ConfigError: it is not known.
        """
        if self.memory_bytes is None:
            raise ConfigError(f"the memory of {self.slug} is not known; give --memory BYTES")
        return self.memory_bytes

    def attainable(self, flops: int, moved: int, dtype: str) -> Attainable:
        """Return the most that the device does of some FLOPs and bytes in a dtype.

        Raises:
            ConfigError: its peak or its bandwidth is not known.
        """
        peak, bandwidth = self.peak(dtype), self.bandwidth()
        compute_s, memory_s = flops / peak, moved / bandwidth
        return Attainable(
            gpu=self.slug,
            dtype=dtype,
            flops=flops,
            bytes=moved,
            intensity=intensity(flops, moved),
            ridge=ridge_intensity(peak, bandwidth),
            seconds=least_time_s(flops, moved, peak, bandwidth),
            bound=bound(compute_s, memory_s, None),
            compute_s=compute_s,
            memory_s=memory_s,
            peak_flops_per_s=peak,
            bandwidth_bytes_per_s=bandwidth,
            source=self.source,
        )

    def mfu_of(self, dtype: str, given: float | None) -> tuple[float, str]:
        """Return the MFU to reckon with, and in words where it comes from: given, measured, or assumed."""
        if given is not None:
            return given, f"MFU {given:g}, as given"
        if dtype in self.mfu:
            return self.mfu[dtype]
        measured = f", for {self.run} has no {TRAINING} and no matmul in {dtype}" if self.run else ""
        return ASSUMED_MFU, f"MFU {ASSUMED_MFU:g} is assumed{measured}: published runs reach 0.38 to 0.57"


def gpu_machine(gpu: Gpu) -> Machine:
    """Return a GPU of the table with its datasheet figures."""
    from roofline.work import DTYPES

    return Machine(
        slug=gpu.slug,
        peaks_flops_per_s=dict(gpu.peaks_flops_per_s),
        bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        memory_bytes=gpu.memory_reported_bytes or gpu.memory_bytes,
        sold_bytes=gpu.memory_bytes and gpu.memory_bytes * 10**9 // 2**30,
        power_w=gpu.tdp_w,
        source=f"dense peak and bandwidth of roofline/gpus/{gpu.slug}.toml",
        lacking={dtype: "no hardware path for" for dtype in DTYPES if gpu.lacks(dtype)},
    )


def run_machine(run: Run, where: str) -> Machine:
    """Return the machine of a saved run: its measured peaks and bandwidth, and the MFU that the run reached.

    Where something was not measured, its published figure stands in. The MFU is that of a training step, or where the
    run has none, of its fastest matmul, which no training step exceeds for long.

    Raises:
        CeilingError: the ceilings of the run are not what they should be.
    """
    ceilings = Ceilings.from_dict(run.environment.hardware)
    dtypes = [entry.name for entry in ceilings.entries if entry.quantity == "flops"]
    found = {dtype: peak for dtype in dtypes if (peak := ceilings.measured_peak(dtype) or ceilings.peak(dtype))}
    peaks = {dtype: peak.value for dtype, peak in found.items()}
    mixes = ceilings.mixes()
    bandwidth = mixes[0] if mixes else ceilings.bandwidth()
    memory = run.environment.device.get("memory_bytes")
    kinds = dict.fromkeys(ceiling.kind for ceiling in (*found.values(), bandwidth) if ceiling)
    reached = {dtype: share for dtype in peaks if (share := _reached(run.records, dtype, peaks[dtype]))}
    return Machine(
        slug=run.environment.device["slug"],
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth.value if bandwidth else None,
        memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
        source=f"{' and '.join(kinds) or 'no ceilings'}, {where}",
        mfu=reached,
        run=where,
    )


def _reached(records: Iterable[Record], dtype: str, peak: float) -> tuple[float, str] | None:
    best: dict[str, tuple[float, str]] = {}
    for record in records:
        if record.status != "ok" or record.dtype != dtype or not record.flops or record.median_s is None:
            continue
        share = mfu(rate(record.flops, record.median_s), peak)
        if record.op not in best or share > best[record.op][0]:
            best[record.op] = (share, record.case)
    if TRAINING in best:
        share, case = best[TRAINING]
        return share, f"MFU {share:.3f}, measured: {TRAINING} {case}"
    if "matmul" in best:
        share, case = best["matmul"]
        return share, f"MFU {share:.3f}, measured: the fastest matmul of the run, {case}; an upper bound for training"
    return None
