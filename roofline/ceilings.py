"""The limits of a machine by which measurements are judged, each with its kind and its source."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

from results.record import one_of
from roofline.hardware.gpu import Gpu

QUANTITIES = {
    "flops": "FLOP/s",
    "burst": "FLOP/s",
    "sustained": "FLOP/s",
    "fma": "FLOP/s",
    "bandwidth": "B/s",
    "launch": "s",
}
"""What a ceiling limits, and the unit of its value.

`flops` is the fastest matmul; `burst` and `sustained` are the same one in the first moments of a long run and in its
later half, and judge nothing; `fma` is fused multiply-adds outside the tensor cores, the peak of the vector units.
`launch` is a floor of time: no launch is shorter."""

NO_LONGER_MEASURED = ("zeros", "fit", "cache", "knee")
"""Quantities in files of earlier versions, ignored when a file is read."""

KINDS = ("datasheet", "clock-limited", "power-limited", "measured", "derived")
"""`datasheet`: published; `clock-limited`: from the rate per clock at a measured clock; `power-limited`: what a long
run sustains while the power limit holds the clock down; `measured`: reached on this machine; `derived`: computed
from what the device reports about itself."""


MIX_RATIOS = {"read": (1, 0), "triad": (2, 1), "copy": (1, 1), "write": (0, 1)}
"""Bytes read to bytes written, by the mixes whose bandwidth is measured: what makes up a share of reads of 1, 2/3, 1/2
and 0.

Source: McCalpin, Memory bandwidth and machine balance in current high performance computers, IEEE TCCA Newsletter,
December 1995, for copy and triad, in arrays that a kernel reads and writes."""


Magnitude = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class CeilingError(ValueError):
    """The ceilings of a file are not what they should be."""


@dataclass(frozen=True)
class Ceiling:
    """One limit of one machine."""

    quantity: Annotated[str, one_of(QUANTITIES)]
    """A key of `QUANTITIES`."""
    name: str
    """The dtype of a `flops` ceiling; the mix (`copy`, `triad`) or `memory` of a bandwidth; `launch`."""
    value: Annotated[float, Meta(gt=0, le=sys.float_info.max, description="a number above 0")]
    """In the unit that `QUANTITIES` gives."""
    kind: Annotated[str, one_of(KINDS)]
    """One of `KINDS`."""
    source: str
    """Where the value comes from: a publication, or the case and date of the measurement."""
    ci95: tuple[Magnitude, Magnitude] | None = None
    """95 % confidence interval of the rate by the median time, in the unit of `value`; a `value` by the shortest time,
    as on a CPU, lies at its upper end or above it."""
    p5_p95: tuple[Magnitude, Magnitude] | None = None
    """Quantiles of the samples behind the value, in its unit; None in files of before, and where no samples of one case
    are behind it. A `value` by the shortest time lies at or above the upper one."""
    config: str | None = None
    """The configuration that reached it, in words."""
    work_per_launch: Annotated[int, Meta(ge=0, description="a whole number from 0")] | None = None
    """Bytes or FLOPs counted for one launch."""
    sm_clock_hz: Magnitude | None = None
    memory_clock_hz: Magnitude | None = None
    """Clocks while the samples ran; None where they could not be read, as on a CPU."""
    power_w: Magnitude | None = None
    """Power drawn while the samples ran; None where it could not be read."""
    at_power_limit: bool | None = None
    """Whether the power limit held the clock down meanwhile; None where it is not known."""
    measured_at: str | None = None
    """When, UTC, ISO 8601."""
    disturbed: str | None = None
    """What held the device back meanwhile, so that a rate may be too low; None: nothing that was seen."""

    @property
    def unit(self) -> str:
        """Unit of its value."""
        return QUANTITIES[self.quantity]

    @property
    def title(self) -> str:
        """Its name in a sentence, as the head of a table writes it: `bf16 peak`, `copy bandwidth`."""
        known = {"flops": "peak", "launch": "floor"}
        return f"{self.name} {known.get(self.quantity, self.quantity)}"

    def judges(self, dtypes: Iterable[str]) -> bool:
        """Return whether it can judge a row of one of these dtypes."""
        is_peak = self.quantity in ("flops", "fma")
        return self.name in dtypes if is_peak else self.quantity in ("bandwidth", "launch")

    @property
    def flops_per_j(self) -> float | None:
        """FLOP/J, which is FLOP/s per W; None of a ceiling of something else, and where the power is not known."""
        return self.value / self.power_w if self.power_w and self.unit == "FLOP/s" else None

    @property
    def band(self) -> tuple[float, float] | None:
        """What is drawn along a measured ceiling: p5 to p95 of its samples, or else the interval of their median."""
        found = self.p5_p95 or self.ci95
        return found if self.kind == "measured" and found and found[0] > 0 else None

    def __post_init__(self) -> None:
        """Refuse a ceiling that limits nothing.

        Raises:
            CeilingError: its value is not finite and above 0.
        """
        if not 0 < self.value <= sys.float_info.max:
            raise CeilingError(f"{self.quantity} {self.name}: the value must be above 0, found {self.value!r}")


@dataclass(frozen=True)
class Ceilings:
    """All limits known of one machine."""

    slug: str
    name: str
    entries: Annotated[tuple[Ceiling, ...], Meta(description="a list of ceilings")] = ()
    note: str | None = None
    """What a reader must know, for example that the device is not in the table."""

    def peak(self, dtype: str) -> Ceiling | None:
        """Return the ceiling of FLOP/s that MFU of `dtype` is taken over, or None where none is known.

        A published peak comes before a measured one, because MFU is by definition over the dense peak.
        """
        return self._first("flops", [dtype], ("datasheet", "derived", "measured"))

    def vector_peak(self, dtype: str, kinds: Iterable[str] = ("datasheet", "derived", "measured")) -> Ceiling | None:
        """Return the FLOP/s of the vector units by which an operation without a product is judged, or None.

        A dtype without a rate of its own is computed in fp32, as torch and Triton do for elementwise operations and
        reductions; for fp64 that rate would be no ceiling.
        """
        names = [dtype] if dtype == "fp64" else [dtype, "fp32"]
        found = (self._first("fma", [name], kinds) for name in names)
        return next((entry for entry in found if entry is not None), None)

    def vector_peaks(self, name: str) -> list[Ceiling]:
        """Return the peaks of vector units in the arithmetic of dtype `name`, one for each kind."""
        found = (self._first("fma", [name], [kind]) for kind in KINDS)
        return [entry for entry in found if entry is not None]

    def bandwidth(self) -> Ceiling | None:
        """Return the memory bandwidth that is drawn as the ceiling, or None where none is known.

        Of measured mixes the fastest counts: the ceiling is their envelope. A record is judged by `bandwidth_for`.
        """
        return self._first("bandwidth", None, ("datasheet", "derived", "measured"))

    def bandwidth_for(self, bytes_read: int, bytes_written: int) -> Ceiling | None:
        """Return the memory bandwidth that MBU of a record is taken over, or None where none is known.

        A published bandwidth comes before a measured one, because MBU is by definition over it. Where all are
        measured, it is that of the nearest mix.
        """
        ceiling = self.bandwidth()
        if ceiling is None or ceiling.kind != "measured":
            return ceiling
        return self.mix(bytes_read, bytes_written) or ceiling

    def mix(self, bytes_read: int, bytes_written: int) -> Ceiling | None:
        """Return the measured bandwidth of the mix nearest to that of a record, or None where no mix was measured.

        Nearest is by the share of reads among all bytes. A record halfway between two mixes gets the faster one, so
        that no tie flatters it.

        Args:
            bytes_read: of the record.
            bytes_written: of the record; where nothing is moved at all, no mix is near.
        """
        moved = bytes_read + bytes_written
        measured = self.mixes()
        if not moved or not measured:
            return None
        from fractions import Fraction

        share = Fraction(bytes_read, moved)
        distances = {name: abs(share - Fraction(read, read + written)) for name, (read, written) in MIX_RATIOS.items()}
        return min(measured, key=lambda entry: (distances[entry.name], -entry.value))

    def mixes(self) -> list[Ceiling]:
        """Return the measured bandwidths of mixes, the fastest first, one for each mix."""
        best: dict[str, Ceiling] = {}
        for entry in self.entries:
            if entry.quantity == "bandwidth" and entry.kind == "measured" and entry.name in MIX_RATIOS:
                best[entry.name] = max(best.get(entry.name, entry), entry, key=lambda e: e.value)
        return sorted(best.values(), key=lambda entry: -entry.value)

    def measured_peak(self, dtype: str) -> Ceiling | None:
        """Return the FLOP/s of the fastest matmul measured of `dtype`, or None where none was measured."""
        return self._first("flops", [dtype], ("measured",))

    def launch_floor(self) -> Ceiling | None:
        """Return the shortest time of a launch, or None where it was not measured."""
        return self._first("launch", ["launch"], ("measured",))

    def _first(self, quantity: str, names: list[str] | None, kinds: Iterable[str]) -> Ceiling | None:
        known = [e for e in self.entries if e.quantity == quantity and (names is None or e.name in names)]
        for kind in kinds:
            if matching := [entry for entry in known if entry.kind == kind]:
                return max(matching, key=lambda entry: entry.value)
        return None

    def with_entries(self, entries: Iterable[Ceiling]) -> Ceilings:
        """Return the same machine with `entries` added; an entry of the same quantity, name and kind is replaced."""
        merged = {(e.quantity, e.name, e.kind): e for e in (*self.entries, *entries)}
        return Ceilings(self.slug, self.name, tuple(merged.values()), self.note)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object kept under `hardware` in a run file."""
        return asdict(self) | {"entries": [asdict(entry) for entry in self.entries]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ceilings:
        """Read what `to_dict` wrote; an empty object gives a machine with no known ceiling.

        Ceilings that earlier versions measured and this one does not are left out.

        Raises:
            CeilingError: a value is not what its key promises.
        """
        found = {"slug": "unknown", "name": "unknown"} | dict(data)
        if isinstance(entries := found.get("entries"), list | tuple):
            found["entries"] = [entry for entry in entries if not _is_no_longer_measured(entry)]
        try:
            return convert(found, cls)
        except ValidationError as error:
            raise CeilingError(f"in 'hardware': {error}") from None


def _is_no_longer_measured(entry: Any) -> bool:
    """Return whether an entry of a file is one that earlier versions measured and that judges nothing today."""
    if not isinstance(entry, Mapping):
        return False
    quantity, name, config = (entry.get(key) for key in ("quantity", "name", "config"))
    # "torch addcmul" was the FMA rate of a CPU with operands in caches: their bandwidth, and not a peak.
    is_other = (quantity == "launch" and name != "launch") or (quantity == "fma" and "torch addcmul" in str(config))
    return is_other or quantity in NO_LONGER_MEASURED


def gpu_ceilings(gpu: Gpu) -> Ceilings:
    """Return the ceilings that a GPU of the table has by its datasheet, or a derived GPU by its own properties."""
    source = f"roofline/gpus/{gpu.slug}.toml" if gpu.bandwidth_kind != "derived" else "; ".join(gpu.sources)
    entries = [
        Ceiling(quantity, dtype, peak, "datasheet", source)
        for quantity, peaks in (("flops", gpu.peaks_flops_per_s), ("fma", gpu.vector_peaks_flops_per_s))
        for dtype, peak in peaks.items()
    ]
    if gpu.memory_bandwidth_bytes_per_s is not None:
        entries.append(Ceiling("bandwidth", "memory", gpu.memory_bandwidth_bytes_per_s, gpu.bandwidth_kind, source))
    return Ceilings(gpu.slug, gpu.name, tuple(entries))
