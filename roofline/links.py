"""Time of a collective by size: T = a + S x factor / B, with a latency a and a bus bandwidth B.

S is the size in bytes as nccl-tests counts it: of the whole array for all-gather and
reduce-scatter, of the array of one rank for the others. The bus bandwidth is S / T x factor, and
can be compared with the one-way bandwidth of a link.

Source  NVIDIA, nccl-tests, doc/PERFORMANCE.md (factors); Hockney, The communication challenge for
        MPP: Intel Paragon and Meiko CS-2, Parallel Computing 20 (1994) 389 (latency and bandwidth).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from results.record import Record
from results.store.runfile import load_run
from results.store.runs import list_runs

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv")

MIN_SIZES = 3
"""Two fit any line."""
REWEIGHTINGS = 8


def bus_factor(op: str, ranks: int) -> float:
    """Return the bus bandwidth divided by S / T.

    Raises:
        ValueError: unknown op, or fewer than 2 ranks.
    """
    if op not in OPS or ranks < 2:
        raise ValueError(
            f"expected one of {', '.join(OPS)} and at least 2 ranks, got {op!r} and {ranks}"
        )
    if op in ("broadcast", "send-recv"):
        return 1.0
    return (2 if op == "all-reduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True)
class Fit:
    """Latency and bus bandwidth of a collective."""

    op: str
    ranks: int
    latency_s: float
    bytes_per_s: float
    """Bus bandwidth."""

    def seconds(self, size_bytes: float, ranks: int | None = None) -> float:
        """Return the time of a size; for another number of ranks with the same latency and bus
        bandwidth.
        """
        return (
            self.latency_s
            + size_bytes * bus_factor(self.op, ranks or self.ranks) / self.bytes_per_s
        )


def fit(op: str, ranks: int, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> Fit:
    """Fit the times of sizes by least squares of relative errors, so that small sizes count like
    large ones.

    Raises:
        ValueError: fewer than `MIN_SIZES` sizes, a time of 0, or times that do not grow with the
            size.

    Source: weights from the fitted times, Carroll and Ruppert, Transformation and Weighting in
    Regression (1988), chapter 2: measured ones favor times that are too short.
    """
    if len(set(sizes_bytes)) < MIN_SIZES or min(times_s) <= 0:
        raise ValueError(f"expected positive times of at least {MIN_SIZES} sizes")
    import numpy as np

    moved = np.asarray(sizes_bytes, dtype=float) * bus_factor(op, ranks)
    times = np.asarray(times_s, dtype=float)
    fitted = times
    for _ in range(REWEIGHTINGS):
        slope, latency_s = np.polyfit(moved, times, 1, w=1 / fitted)
        if latency_s < 0:
            latency_s = 0.0
            slope = np.average(times / moved, weights=(moved / fitted) ** 2)
        if slope <= 0:
            raise ValueError(f"times of {op} do not grow with the size")
        fitted = latency_s + slope * moved
    return Fit(op, ranks, float(latency_s), float(1 / slope))


def round_s(record: Record) -> Sequence[float]:
    """Return the seconds of each round of all ranks, as rank 0 saves them, else those of the
    record's own rank.
    """
    return record.telemetry.get("round_s") or record.samples_s


def read_fits(directory: Path | str) -> dict[str, Fit]:
    """Return the fit of each op from the readable files of rank 0 in a directory; the newest run of
    an op counts.
    """
    fits: dict[str, Fit] = {}
    for summary in list_runs(Path(directory), counts_records=False)[::-1]:
        if summary.error is None:
            run = load_run(summary.path)
            rank = run.environment.fleet
            if rank and rank.rank == 0:
                fits |= fits_of(run.records)
    return fits


def fits_of(records: Sequence[Record]) -> dict[str, Fit]:
    """Return the fit of each op from the records of rank 0, without ops whose times cannot be
    fitted.
    """
    series: dict[tuple[str, int], dict[int, float]] = {}
    for record in records:
        ranks = record.options.get("ranks")
        is_timed = record.op in OPS and record.status == "ok" and round_s(record)
        if is_timed and isinstance(ranks, int):
            size_bytes = record.shape.get("bytes", 0)
            series.setdefault((record.op, ranks), {})[size_bytes] = median(round_s(record))
    fits = {}
    for (op, ranks), times in series.items():
        with suppress(ValueError):
            fits[op] = fit(op, ranks, list(times), list(times.values()))
    return fits
