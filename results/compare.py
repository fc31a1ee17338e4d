"""Two versions side by side: two runs, two providers of one run or of two, or two revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.compare_load import Loaded, Measured, windows
from results.compare_match import Key, Pair, Unmatched, match
from results.compare_sides import (
    METRICS,
    VERSION,
    CompareError,
    Request,
    baseline_side,
    candidate_side,
    check_request,
    differences,
    labels_of,
    source_words,
)
from results.comparison import FASTER, SLOWER, UNKNOWN, Comparison, verdict_of, with_holm
from results.record import Environment
from results.stats import geometric_mean_of
from results.unpaired import compare_many


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case of the baseline and of the candidate."""

    key: Key
    baseline: str
    candidate: str
    provider_baseline: str
    provider_candidate: str
    compared: Comparison
    """In the metric: above 1 the candidate is the slower one."""
    factor: float
    """The ratio compared over the ratio of the times: other than 1 where work or ceilings differ."""
    baseline_s: float
    candidate_s: float
    """Medians; of several windows their geometric mean."""
    mfu_baseline: float | None = None
    mfu_candidate: float | None = None
    bytes_per_s_baseline: float | None = None
    bytes_per_s_candidate: float | None = None
    cycles_ratio: float | None = None
    """Ratio of the times in clock cycles; None where a clock is not known."""
    windows: tuple[int, int] = (1, 1)

    @property
    def ratio(self) -> float:
        """Candidate time over baseline time."""
        return self.compared.ratio / self.factor

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % confidence interval of `ratio`."""
        low, high = self.compared.ci95
        return None if self.compared.ci95 == UNKNOWN else (low / self.factor, high / self.factor)

    @property
    def cycles_verdict(self) -> str | None:
        """Verdict on the same interval in clock cycles."""
        if self.cycles_ratio is None or self.ci95 is None:
            return None
        scale = self.cycles_ratio / self.ratio
        low, high = self.ci95
        return verdict_of(low * scale, high * scale, self.compared.margin, self.compared.pairs)


@dataclass(frozen=True)
class Compared:
    """Two versions, compared."""

    baseline: str
    candidate: str
    environments: tuple[Environment, Environment]
    request: Request
    rows: tuple[Row, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[str, ...]


def compare(first: Loaded, second: Loaded | None, request: Request) -> Compared:
    """Compare two runs, or two selections of one.

    Args:
        first: the baseline's run.
        second: the candidate's; None where both are in one run.
        request: how.

    Raises:
        CompareError: nothing is common to both, they differ in what must agree, or a name is unknown.
    """
    is_one_run, other = second is None, second or first
    check_request(first, other, request, is_one_run)
    name, baseline = baseline_side(first, request)
    candidate = candidate_side(other, request, name)
    notes = [] if is_one_run else differences(first.environment, other.environment, request.force)
    matching = match(baseline, candidate, not request.by_provider, request.force)
    labels = labels_of(first, other, request, name)
    rows, incomparable = _rows(matching.pairs, first, other, request, labels)
    unmatched = (*matching.unmatched, *incomparable, *_no_versions(other, request))
    if not rows:
        raise CompareError(_nothing_common(unmatched))
    notes += [*matching.notes, *_repeats(matching.pairs)]
    environments = (first.environment, other.environment)
    return Compared(*labels, environments, request, rows, unmatched, tuple(notes))


def _no_versions(run: Loaded, request: Request) -> list[Unmatched]:
    if request.by != "version":
        return []
    others = [one for one in run.measured if not VERSION.fullmatch(one.provider)]
    return [Unmatched("candidate", one, "its provider is no version of a kernel") for one in others]


def _rows(
    pairs: Sequence[Pair], first: Loaded, second: Loaded, request: Request, labels: tuple[str, str]
) -> tuple[tuple[Row, ...], list[Unmatched]]:
    """Return the compared rows, and the records whose metric is not known."""
    usable, incomparable, factors = [], [], []
    for pair in pairs:
        before, after = (
            _per_second(first, pair.baseline[0], request.metric),
            _per_second(second, pair.candidate[0], request.metric),
        )
        if before and after:
            usable.append(pair)
            factors.append(before / after)
        else:
            side, one = ("candidate", pair.candidate[0]) if before else ("baseline", pair.baseline[0])
            incomparable.append(Unmatched(side, one, f"its {METRICS[request.metric]} is not known, or 0"))
    sampled = [(windows(baseline), windows(candidate)) for _, baseline, candidate in usable]
    compared = with_holm(compare_many(sampled, request.margin, factors, METRICS[request.metric]))
    rows = [
        _row(pair, (first, second), result, factor, labels)
        for pair, result, factor in zip(usable, compared, factors, strict=True)
    ]
    return tuple(rows), incomparable


def _per_second(run: Loaded, one: Measured, metric: str) -> float | None:
    """Return the metric times the median: what the launch has of it, whatever its time."""
    if metric == "time":
        return 1.0
    if metric == "flops":
        return one.flops
    share = (run.mfu if metric == "mfu" else run.mbu)(one, one.median_s)
    return share * one.median_s if share and one.median_s else None


def _row(
    pair: Pair,
    runs: tuple[Loaded, Loaded],
    compared: Comparison,
    factor: float,
    labels: tuple[str, str],
) -> Row:
    key, before, after = pair
    names = (before[0].provider, after[0].provider) if key.provider is None else labels
    medians = _middle(before), _middle(after)
    clocks = _clock(before), _clock(after)
    in_cycles = compared.ratio / factor * clocks[1] / clocks[0] if clocks[0] and clocks[1] else None
    row = Row(
        key=key,
        baseline=names[0],
        candidate=names[1],
        provider_baseline=before[0].provider,
        provider_candidate=after[0].provider,
        compared=compared,
        factor=factor,
        baseline_s=medians[0],
        candidate_s=medians[1],
        mfu_baseline=runs[0].mfu(before[0], medians[0]),
        mfu_candidate=runs[1].mfu(after[0], medians[1]),
        bytes_per_s_baseline=_bytes_per_s(before[0], medians[0]),
        bytes_per_s_candidate=_bytes_per_s(after[0], medians[1]),
        cycles_ratio=in_cycles,
        windows=(len(before), len(after)),
    )
    reason = _reason(row, (before, after)) + source_words(before[0], after[0], compared.verdict)
    return row if reason == compared.reason else replace(row, compared=replace(compared, reason=reason))


def _reason(row: Row, sides: Sequence[Sequence[Measured]]) -> str:
    """Return the reason of the verdict, with what the samples and the clocks add to it."""
    if not (sides[0][0].samples and sides[1][0].samples):
        without = [name for name, side in zip(("baseline", "candidate"), sides, strict=True) if not side[0].samples]
        return f"no samples were kept of the {' and the '.join(without)}, only a median"
    verdict, in_cycles = row.compared.verdict, row.cycles_verdict
    if verdict not in (FASTER, SLOWER) or in_cycles is None:
        return row.compared.reason
    if in_cycles == verdict:
        return f"{row.compared.reason}; in clock cycles too"
    assert row.cycles_ratio is not None
    change = 100 * (row.cycles_ratio / row.ratio - 1)
    return f"{row.compared.reason}; in clock cycles {in_cycles}: the clock changed by {change:+.2g} %"


def _middle(side: Sequence[Measured]) -> float:
    if len(side) == 1 and side[0].median_s:
        return side[0].median_s
    return geometric_mean_of([one.median_s for one in side if one.median_s])


def _clock(side: Sequence[Measured]) -> float | None:
    if len(side) == 1:
        return side[0].sm_clock_hz
    clocks = [one.sm_clock_hz for one in side]
    known = [clock for clock in clocks if clock]
    return sum(known) / len(known) if len(known) == len(clocks) else None


def _bytes_per_s(one: Measured, median_s: float) -> float | None:
    if one.bytes_read is None or one.bytes_written is None:
        return None
    return (one.bytes_read + one.bytes_written) / median_s or None


def _repeats(pairs: Sequence[Pair]) -> list[str]:
    """Return a note on keys that are there more than once: as several processes, or several times in one."""
    notes = []
    for side, sides in (
        ("baseline", [pair.baseline for pair in pairs]),
        ("candidate", [pair.candidate for pair in pairs]),
    ):
        again = [records for records in sides if len(records) > len({one.process for one in records})]
        if again:
            one = again[0][0]
            notes.append(
                f"{len(again)} of the {side}'s rows are there several times, such as {one.op} {one.case} {one.dtype} "
                f"{one.provider}: taken as repeated measurements, whose spread widens the interval"
            )
    if all(len(pair.baseline) == len(pair.candidate) == 1 for pair in pairs):
        notes.append(
            "each row was measured once, so that drift between the two is not in the intervals: identical code may "
            "differ by 1 to 3 %; measuring again, or `bench compare`, tells"
        )
    return notes


def _nothing_common(unmatched: Sequence[Unmatched]) -> str:
    """Return why there is no row, with an example of each side."""
    shown = []
    for side in ("baseline", "candidate"):
        first = next((one for one in unmatched if one.side == side), None)
        if first is None:
            shown.append(f"the {side} has no record")
        else:
            one = first.measured
            shown.append(f"the {side} has {one.op} {one.case} {one.dtype} {one.provider} ({first.reason})")
    return f"there is nothing to compare: {', '.join(shown)}"
