"""Limits of a machine on the time of a record, a class for each kind; `LIMITS` lists them.

Source of compute and memory: Williams, Waterman and Patterson, Roofline: an insightful visual
performance model for multicore architectures, CACM 52(4), 2009. Link and launch are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roofline.work import VECTOR_OPS

if TYPE_CHECKING:
    from results.record import Record
    from roofline.machine import Ceiling, Machine

    Limited = tuple[int | None, list[Ceiling]]

ABOVE_ROOF = 1.03
"""Fraction of a ceiling above which the ceiling itself is doubtful: its measurement has an error
too.
"""

CACHED_RESULT = 20.0
"""A time this many times below the minimum looks like no work at all, not like a wrong count."""

SLOWER_THEN = (
    "the machine was slower when the ceiling was measured (remeasure it with python -m "
    "bench calibrate)"
)


class Limit:
    """A kind of limit."""

    name: str
    """As in the column `bound`."""
    quantities: Sequence[str] = ()
    """Quantities of its ceilings."""
    unit: str
    """Of its ceilings: `FLOP/s`, `B/s` or `s`."""
    is_roof = True
    """Whether its ceilings are lines in a plot of FLOP/s over FLOP/byte."""
    is_needed = False
    """Whether a record has no bound if this time is unknown."""
    meaning: str
    """What it means to be bound by it."""
    advice: str
    tried: str
    """Common remedies for a kernel far from this limit."""
    source = "Williams, Waterman and Patterson, Roofline (2009); roofline/README.md"
    """Where to read on."""

    def of(self, record: Record, machine: Machine) -> Limited:
        """Return the FLOPs or bytes of a record that this limits, None if unknown, and their known
        ceilings: first the one that judges the record, last the measured one.
        """
        return None, []

    def time_s(self, record: Record, machine: Machine) -> float | None:
        """Return the least seconds of a record, 0 if this does not limit it; None if unknown."""
        work, ceilings = self.of(record, machine)
        if work is None or not ceilings:
            return None if self.is_needed else 0.0
        return work / ceilings[0].value

    def excess(self, record: Record, machine: Machine) -> str | None:
        """Return the likely cause if a record is above a ceiling.

        Such values are not clamped: they indicate a wrong ceiling or byte count, or cache hits.
        """
        work, ceilings = self.of(record, machine)
        for ceiling in ceilings:
            if work and record.median_s and work / ceiling.value > record.median_s:
                return f"above the {ceiling.kind} {ceiling.title}: {self.cause(record, ceiling)}"
        return None

    def cause(self, record: Record, ceiling: Ceiling) -> str:
        """Return why a record may be above a ceiling."""
        return SLOWER_THEN


class Compute(Limit):
    """FLOPs over the peak of the dtype."""

    name = "compute"
    quantities = ("flops", "fma")
    unit = "FLOP/s"
    is_needed = True
    meaning = (
        "Computing takes longer than moving the compulsory bytes; the peak of the dtype is the "
        "limit."
    )
    advice = "Use a dtype with a higher peak, tensor cores, or an algorithm with fewer FLOPs."
    tried = (
        "other tile sizes, tensor cores, more stages of loads ahead, extents that are multiples of "
        "the tiles"
    )

    def of(self, record: Record, machine: Machine) -> Limited:
        """Return the FLOPs, and the peaks of the vector units for operations without a matmul, else
        of matmuls.

        If the vector rate is unknown, the higher matmul peak is used.
        """
        is_vector = record.units == "vector" if record.units else record.op in VECTOR_OPS
        peak_of = machine.peak
        if is_vector and machine.vector_peak(record.dtype):
            peak_of = machine.vector_peak
        peaks = (peak_of(record.dtype), peak_of(record.dtype, ["measured"]))
        return record.flops, list(filter(None, peaks))

    def cause(self, record: Record, ceiling: Ceiling) -> str:
        if ceiling.kind == "measured":
            return SLOWER_THEN
        return "the clock ran above the datasheet's, or the peak is of another dtype"


class Memory(Limit):
    """Compulsory bytes over the memory bandwidth."""

    name = "memory"
    quantities = ("bandwidth",)
    unit = "B/s"
    is_needed = True
    meaning = (
        "Moving the compulsory bytes takes longer than computing; memory bandwidth is the limit."
    )
    advice = (
        "Move fewer bytes: fuse neighboring operations, use a narrower dtype, reuse data in caches "
        "or registers."
    )
    tried = (
        "wide and aligned loads, more of them in flight, fewer passes over the data, a larger case"
    )

    def of(self, record: Record, machine: Machine) -> Limited:
        """Return the bytes, 0 if a measured cache serves them, and the bandwidths."""
        from_cache, _ = Cache().of(record, machine)
        moved = (record.bytes_read or 0, record.bytes_written or 0)
        bandwidths = (machine.bandwidth_for(*moved), machine.mix(*moved))
        work = 0 if from_cache else record.moved_bytes
        return work, list(filter(None, bandwidths))

    def cause(self, record: Record, ceiling: Ceiling) -> str:
        if record.cache != "cold":
            return "inputs that are not cold are served by the cache"
        if ceiling.kind != "measured":
            return "part of the data came from the cache, or the bandwidth is another SKU's"
        return f"its mix of reads and writes is faster, or {SLOWER_THEN}"


class Cache(Limit):
    """Bytes over the measured bandwidth of the last level of cache, in place of memory.

    It limits only records that were timed warm and whose bytes, read and written, fit this level.
    """

    name = "cache"
    quantities = ("cache-bandwidth",)
    unit = "B/s"
    meaning = (
        "The inputs are warm and fit the last level of cache; reading them there takes longer than "
        "computing."
    )
    advice = "Move fewer bytes, or use tiles that fit registers or a nearer cache."
    tried = "tiles that fit a nearer cache, wide and aligned loads, more of them in flight"
    source = "bench/harness/README.md"

    def of(self, record: Record, machine: Machine) -> Limited:
        bandwidth = machine.fastest("cache-bandwidth")
        if bandwidth is None or record.cache != "warm":
            return 0, []
        moved = record.moved_bytes or 0
        # It was measured by launches on half of the level.
        is_held = moved <= 2 * (bandwidth.work_per_launch or 0)
        return moved if is_held else 0, [bandwidth]

    def cause(self, record: Record, ceiling: Ceiling) -> str:
        return f"a nearer cache serves it, or {SLOWER_THEN}"


class Link(Limit):
    """Bytes of a copy over the one-way bandwidth of the link to the GPU."""

    name = "link"
    unit = "B/s"
    is_roof = False
    meaning = "The copy takes as long as the one-way bandwidth of the link to the GPU needs."
    advice = "Copy fewer bytes, or copy while the GPU computes."
    tried = "pinned memory, larger copies, copies on a stream of their own"
    source = "bench/README.md"

    def time_s(self, record: Record, machine: Machine) -> float:
        bytes_per_s = getattr(record.details, "link_bytes_per_s", None)
        return record.shape.get("bytes", 0) / bytes_per_s if bytes_per_s else 0.0


class Launch(Limit):
    """The shortest launch, as often as the record launches."""

    name = "launch"
    quantities = ("launch",)
    unit = "s"
    is_roof = False
    meaning = (
        "The shortest launch of any kernel takes longer than moving the bytes or computing on them."
    )
    advice = "Launch fewer kernels: fuse them, capture them in a CUDA graph, or use a larger batch."
    tried = "fusing kernels, CUDA graphs, a larger batch"
    source = "bench/harness/README.md"

    def time_s(self, record: Record, machine: Machine) -> float:
        floor = machine.fastest("launch")
        launches = 1 if record.count is None else record.count
        return launches * floor.value if floor else 0.0


LIMITS: Sequence[Limit] = (Compute(), Memory(), Cache(), Link(), Launch())
ROOFS = [limit for limit in LIMITS if limit.is_roof]
