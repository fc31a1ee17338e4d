"""Machines: peaks, bandwidths and launch floor with kind and source, and other facts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, convert

from roofline.limits import LIMITS
from roofline.work import ordered_dtypes

if TYPE_CHECKING:
    from results.record import Environment

Texts = tuple[str, ...]
Magnitude = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


def one_of(names: Iterable[str]) -> Meta:
    return Meta(pattern=f"^({'|'.join(names)})$")


QUANTITIES: dict[str, str] = {}
for kind in LIMITS:
    QUANTITIES |= dict.fromkeys(kind.quantities, kind.unit)
"""What a ceiling limits, and the unit of its value.

`flops` is the fastest matmul; `fma` is fused multiply-adds outside the tensor cores, the peak of
the vector units. `launch` is the minimum time of a launch; `cache-bandwidth` is that of the last
level of cache, by launches on half of it. Other quantities, of older runs, are not read."""

KINDS = ("datasheet", "clock-limited", "power-limited", "measured", "derived")
"""`datasheet`: published; `clock-limited`: from the rate per clock at a measured clock;
`power-limited` (older runs): sustained at the power limit; `measured`: reached on this machine;
`derived`: computed from device properties."""

PUBLISHED = ("datasheet", "derived")
PUBLISHED_FIRST = (*PUBLISHED, "measured")
"""Kinds of ceilings for records, best first: MFU is defined by the published dense peak."""

MEASURED_FIRST = ("given", "measured", "datasheet", "derived")
"""Kinds of ceilings for estimates, best first; `given` is a figure of the user."""

MIX_RATIOS = {"read": (1, 0), "triad": (2, 1), "copy": (1, 1), "write": (0, 1)}
"""Bytes read and written by each measured mix, as a ratio.

Source: McCalpin, Memory bandwidth and machine balance in current high performance computers, IEEE
TCCA Newsletter, December 1995, for copy and triad, in arrays that a kernel reads and writes."""

READ_SHARES = {name: read / (read + written) for name, (read, written) in MIX_RATIOS.items()}


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine; unknown values are None."""

    quantity: Annotated[str, one_of(QUANTITIES)]
    name: str
    """The dtype of a `flops` ceiling; the mix (`copy`, `triad`) or `memory` of a bandwidth;
    `launch`; the level of a `cache-bandwidth`.
    """
    value: Annotated[float, Meta(gt=0, le=sys.float_info.max)]
    kind: Annotated[str, one_of(KINDS)]
    source: str
    """A publication, or the case and date of the measurement."""
    ci95: tuple[Magnitude, Magnitude] | None = None
    """95 % confidence interval of the rate by the median time, in the unit of `value`; a `value` by
    the minimum time, as on a CPU, is at its upper end or above."""
    p5_p95: tuple[Magnitude, Magnitude] | None = None
    config: str | None = None
    work_per_launch: Annotated[int, Meta(ge=0)] | None = None
    sm_clock_hz: Magnitude | None = None
    memory_clock_hz: Magnitude | None = None
    power_w: Magnitude | None = None
    at_power_limit: bool | None = None
    measured_at: str | None = None
    disturbed: str | None = None
    """Interference during the measurement, which may have lowered the rate."""

    @property
    def unit(self) -> str:
        return QUANTITIES[self.quantity]

    @property
    def title(self) -> str:
        known = {"flops": "peak", "launch": "floor", "cache-bandwidth": "bandwidth"}
        return f"{self.name} {known.get(self.quantity, self.quantity)}"

    @property
    def flops_per_j(self) -> float | None:
        """FLOP/J; None if the quantity is not FLOP/s or the power is unknown."""
        return self.value / self.power_w if self.power_w and self.unit == "FLOP/s" else None

    @property
    def band(self) -> tuple[float, float] | None:
        """p5 to p95 of the samples of a measured ceiling, else the confidence interval."""
        interval = self.p5_p95 or self.ci95
        return interval if self.kind == "measured" and interval and interval[0] > 0 else None


@dataclass(frozen=True)
class Machine:
    """A device with its ceilings in `entries`, and for GPUs of the table the facts of the file, in
    SI units.

    Unknown facts are None or missing. All peaks are dense.
    """

    slug: str = "unknown"
    name: str = "unknown"
    entries: tuple[Ceiling, ...] = ()
    note: str | None = None
    """Remark, for example that the device is not in the table."""
    source: str = ""
    """Source of the figures, for estimates."""
    run: str | None = None
    mfu: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """By dtype: MFU of the run, and a note on its origin."""
    driver_names: Texts = ()
    vendor: str | None = None
    architecture: str | None = None
    chip: str | None = None
    compute_capability: str | None = None
    """Such as "9.0", or "gfx942" on AMD."""
    rate_class: str | None = None
    sm_count: int | None = None
    tensor_clock_hz: float | None = None
    """The clock at which the tensor peaks hold."""
    boost_clock_hz: float | None = None
    """The clock at which the vector and the fp64 peaks hold."""
    max_clock_hz: float | None = None
    memory_type: str | None = None
    memory_bytes: int | None = None
    """As marketed, in GiB: an H100 80GB reports 85.0e9 bytes, more than 80 GB."""
    memory_reported_bytes: int | None = None
    """As the driver reports it: less than marketed."""
    memory_bandwidth_bytes_per_s: float | None = None
    bandwidth_from_device_clock_bytes_per_s: float | None = None
    """Bandwidth at the memory clock of the device, if it differs from the datasheet."""
    l2_bytes: int | None = None
    llc_bytes: int | None = None
    tdp_w: float | None = None
    link_bytes_per_s: float | None = None
    """NVLink, or Infinity Fabric on AMD, both directions together; 0 if there is none."""
    link_devices: int | None = None
    """Devices that these links join, if not those of a node."""
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    stated_peaks_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """By the keys of the file, which distinguish tensor, vector and accumulation."""
    unsupported: Texts = ()
    capped: Texts = ()
    """Keys of peaks that are capped below SMs x rate x clock."""
    confidence: str | None = None
    """`high`, `medium` or `low`."""
    sources: Texts = ()
    """Each starts with its kind, see `tests/roofline/test_gpu_files.py`."""
    notes: Texts = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Origin of values that no source states, by key: "derived: from the datasheet bf16 peak"."""

    @property
    def dtypes(self) -> list[str]:
        """Dtypes with a known peak, in the order of `DTYPES`."""
        return ordered_dtypes(entry.name for entry in self.entries if entry.quantity == "flops")

    @property
    def usable_memory_bytes(self) -> int | None:
        return self.memory_reported_bytes or self.memory_bytes

    def peak(self, dtype: str, kinds: Iterable[str] = PUBLISHED_FIRST) -> Ceiling | None:
        """Return the peak of matmuls in `dtype`, of the first known kind, or None."""
        return self.fastest("flops", [dtype], kinds)

    def vector_peak(self, dtype: str, kinds: Iterable[str] = PUBLISHED_FIRST) -> Ceiling | None:
        """Return the peak of the vector units for `dtype`, or None.

        Dtypes without a rate are computed in fp32, as in torch and Triton, except fp64.
        """
        names = [dtype] if dtype == "fp64" else [dtype, "fp32"]
        peaks = (self.fastest("fma", [name], kinds) for name in names)
        return next((entry for entry in peaks if entry is not None), None)

    def bandwidth(self, kinds: Iterable[str] = PUBLISHED_FIRST) -> Ceiling | None:
        """Return the memory bandwidth of the first known kind; the fastest of measured mixes."""
        return self.fastest("bandwidth", None, kinds)

    def bandwidth_for(self, bytes_read: int, bytes_written: int) -> Ceiling | None:
        """Return the memory bandwidth for the MBU of a record: published, else of the nearest
        mix.
        """
        published = self.fastest("bandwidth", kinds=PUBLISHED)
        return published or self.mix(bytes_read, bytes_written) or self.fastest("bandwidth")

    def mix(self, bytes_read: int, bytes_written: int) -> Ceiling | None:
        """Return the measured bandwidth of the mix nearest to a record by the fraction of bytes
        read, or None.

        A tie gives the faster mix, which does not flatter the record.
        """
        if not bytes_read + bytes_written:
            return None
        share = bytes_read / (bytes_read + bytes_written)
        return min(
            self.mixes,
            key=lambda entry: round(abs(share - READ_SHARES[entry.name]), 9),
            default=None,
        )

    @cached_property
    def mixes(self) -> list[Ceiling]:
        mixes = (self.fastest("bandwidth", [name]) for name in MIX_RATIOS)
        return sorted(filter(None, mixes), key=lambda entry: -entry.value)

    def fastest(
        self, quantity: str, names: list[str] | None = None, kinds: Iterable[str] = ("measured",)
    ) -> Ceiling | None:
        """Return the largest ceiling of a quantity, of the first known kind and optionally one of
        `names`.
        """
        known = [entry for entry in self.entries if entry.quantity == quantity]
        if names is not None:
            known = [entry for entry in known if entry.name in names]
        for kind in kinds:
            of_kind = [entry for entry in known if entry.kind == kind]
            if of_kind:
                return max(of_kind, key=lambda entry: entry.value)
        return None

    def with_entries(self, entries: Iterable[Ceiling]) -> Machine:
        """Return the machine with `entries` added; they replace those of equal quantity, name and
        kind.
        """
        merged = {(e.quantity, e.name, e.kind): e for e in (*self.entries, *entries)}
        return replace(self, entries=tuple(merged.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object stored under `hardware` in a run file."""
        entries = [asdict(entry) for entry in self.entries]
        return {"slug": self.slug, "name": self.name, "entries": entries, "note": self.note}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Read the object of `to_dict`, without unknown quantities; ValidationError or UnicodeError
        if it is invalid.
        """
        values = {key: data[key] for key in ("slug", "name", "entries", "note") if key in data}
        entries = values.get("entries")
        if isinstance(entries, list | tuple):
            values["entries"] = []
            for entry in entries:
                quantity = entry.get("quantity") if isinstance(entry, Mapping) else None
                if not isinstance(quantity, str) or quantity in QUANTITIES:
                    values["entries"].append(entry)
        return convert(values, cls)


def machines_of(
    environments: Iterable[Environment], gpus: Iterable[Machine] = ()
) -> dict[str, Machine]:
    """Return the machines by slug, with the ceilings of the newest run, completed by those of older
    runs.
    """
    dated = [(environment.started_at, environment.machine) for environment in environments]
    newest_last = [*gpus, *(known for _, known in sorted(dated, key=lambda entry: entry[0]))]
    machines = {}
    for slug in dict.fromkeys(known.slug for known in (*(known for _, known in dated), *gpus)):
        own = [known for known in newest_last if known.slug == slug]
        entries = chain.from_iterable(known.entries for known in own)
        machines[slug] = replace(own[0].with_entries(entries), note=own[-1].note)
    return machines


def judging(environment: Environment, gpus: Iterable[Machine] = ()) -> Machine:
    """Return the machine of a run with its ceilings, and those of its GPU in `gpus`."""
    return next(iter(machines_of([environment], gpus).values()))
