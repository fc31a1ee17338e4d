"""Two versions side by side: two runs, two providers of one run or of two, or two revisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from results.compare_drift import Drift, drift_of
from results.compare_flags import BIMODAL, flags_of, with_flags
from results.compare_load import Loaded, Measured
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
from results.compare_turns import Pairs, compare_turns, cycles_ratio, side_by_side
from results.comparison import DEFAULT_MARGIN, FASTER, SLOWER, UNKNOWN, Comparison, verdict_of, with_holm
from results.record import Environment
from results.stats import LogMedians, geometric_mean_of
from results.unpaired import Sides, judge_sides, sides_of


class Row(NamedTuple):
    """One case of the baseline and of the candidate. Made a hundred thousand times, so a tuple: a third of the time."""

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
    flags_baseline: tuple[str, ...] = ()
    flags_candidate: tuple[str, ...] = ()
    is_paired: bool = True
    """Both took turns, and the ratio is taken round by round; else they were measured apart."""

    @property
    def reason(self) -> str:
        """Why the verdict is what it is, with what else is odd."""
        return f"{self.compared.reason}; {self.remark}" if self.remark else self.compared.reason

    @property
    def remark(self) -> str | None:
        """Why the two medians say something else than the ratio; None where they do not."""
        medians, told = self.candidate_s / self.baseline_s, self.ratio
        if abs(math.log(medians / told)) <= math.log1p(max(self.compared.margin, DEFAULT_MARGIN)):
            return None
        low, high = self.ci95 or (told, told)
        if low <= medians <= high and (medians > 1) == (told > 1):
            return None
        if BIMODAL in (*self.flags_baseline, *self.flags_candidate):
            cause = "there were two speeds, and a median is that of the more frequent one"
        elif self.is_paired:
            cause = "the speed changed between the rounds, and the ratio is taken within each"
        else:
            cause = "the medians that were kept are not those of the samples"
        return f"the two medians stand at {medians:.4f}: {cause}"

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
        return _verdict_in_cycles(self.compared, self.cycles_ratio)


def _verdict_in_cycles(compared: Comparison, in_cycles: float | None) -> str | None:
    """Return the verdict on an interval that is moved to a ratio in clock cycles; None where one is not known."""
    if in_cycles is None or compared.ci95 == UNKNOWN:
        return None
    scale = in_cycles / compared.ratio
    low, high = compared.ci95
    return verdict_of(low * scale, high * scale, compared.margin, compared.pairs)


@dataclass(frozen=True, eq=False)
class Compared:
    """Two versions, compared."""

    baseline: str
    candidate: str
    environments: tuple[Environment, Environment]
    request: Request
    rows: tuple[Row, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[str, ...]
    drift: Drift | None = None
    """What was allowed for between two windows; None where both sides of every row took turns."""


def compare(first: Loaded, second: Loaded | None, request: Request, drift: float | None = None) -> Compared:
    """Compare two runs, or two selections of one.

    Args:
        first: the baseline's run.
        second: the candidate's; None where both are in one run.
        request: how.
        drift: what to allow for between two windows, as a fraction; None: what the runs tell, else what is usual.

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
    usable, factors, incomparable = _usable(matching.pairs, first, other, request)
    unmatched = (*matching.unmatched, *incomparable, *_no_versions(other, request))
    if not usable:
        raise CompareError(_nothing_common(unmatched))
    # Only records of one run can have taken turns.
    turns = [side_by_side(pair.baseline, pair.candidate) if is_one_run else [] for pair in usable]
    results, allowed = _compared(usable, turns, (first, other), factors, request, drift)
    rows = _built(usable, turns, (first, other), results, factors, labels)
    notes += [*matching.notes, *_repeats(usable), *_allowance(rows, allowed)]
    environments = (first.environment, other.environment)
    return Compared(*labels, environments, request, rows, unmatched, tuple(notes), allowed)


def _no_versions(run: Loaded, request: Request) -> list[Unmatched]:
    if request.by != "version":
        return []
    others = [one for one in run.measured if not VERSION.fullmatch(one.provider)]
    return [Unmatched("candidate", one, "its provider is no version of a kernel") for one in others]


def _usable(
    pairs: Sequence[Pair], first: Loaded, second: Loaded, request: Request
) -> tuple[list[Pair], list[float], list[Unmatched]]:
    """Return the pairs whose metric is known, the factor of each, and the records whose metric is not."""
    usable, factors, incomparable = [], [], []
    for pair in pairs:
        before = _per_second(first, pair.baseline[0], request.metric)
        after = _per_second(second, pair.candidate[0], request.metric)
        if before and after:
            usable.append(pair)
            factors.append(before / after)
        else:
            side, one = ("candidate", pair.candidate[0]) if before else ("baseline", pair.baseline[0])
            incomparable.append(Unmatched(side, one, f"its {METRICS[request.metric]} is not known, or 0"))
    return usable, factors, incomparable


def _compared(
    pairs: Sequence[Pair],
    turns: Sequence[Pairs],
    runs: tuple[Loaded, Loaded],
    factors: Sequence[float],
    request: Request,
    given: float | None,
) -> tuple[list[Comparison], Drift | None]:
    """Return the comparison of each pair, as it stands among all, and what was allowed for drift."""
    apart = [place for place, shared in enumerate(turns) if not shared]
    results: list[Comparison | None] = [None] * len(pairs)
    quantity, drift = METRICS[request.metric], None
    if apart:
        sides = _sides([pairs[place] for place in apart], *runs)
        drift = drift_of(given, *sides.spread_between())
        found = judge_sides(sides, request.margin, [factors[place] for place in apart], quantity, drift)
        for place, one in zip(apart, found, strict=True):
            results[place] = one
    flagged = []
    for pair, shared, factor, result in zip(pairs, turns, factors, results, strict=True):
        known = result or compare_turns(shared, request.margin, factor, quantity)
        flagged.append(with_flags(known, flags_of(pair.baseline), flags_of(pair.candidate), bool(shared)))
    return with_holm(flagged), drift


def _sides(pairs: Sequence[Pair], first: Loaded, second: Loaded) -> Sides:
    """Return the medians of both sides of each pair, in logarithms."""
    import numpy as np

    offset = len(first.counts)
    places = np.array(
        [
            place
            for pair in pairs
            for place in (*[one.place for one in pair.baseline], *[offset + one.place for one in pair.candidate])
        ]
    )
    joined = [
        np.concatenate([getattr(run.medians, name) for run in (first, second)])[places]
        for name in ("center", "low", "high", "degrees")
    ]
    counts = np.array([(len(pair.baseline), len(pair.candidate)) for pair in pairs], dtype=np.int64)
    return sides_of(LogMedians(*joined), counts, np.concatenate([first.counts, second.counts])[places])


def _per_second(run: Loaded, one: Measured, metric: str) -> float | None:
    """Return the metric times the median: what the launch has of it, whatever its time."""
    if metric == "time":
        return 1.0
    if metric == "flops":
        return one.flops
    share = (run.mfu if metric == "mfu" else run.mbu)(one, one.median_s)
    return share * one.median_s if share and one.median_s else None


def _built(
    pairs: Sequence[Pair],
    turns: Sequence[Pairs],
    runs: tuple[Loaded, Loaded],
    results: Sequence[Comparison],
    factors: Sequence[float],
    labels: tuple[str, str],
) -> tuple[Row, ...]:
    """Return the rows."""
    lines = zip(pairs, turns, results, factors, strict=True)
    return tuple([_row(pair, shared, runs, result, factor, labels) for pair, shared, result, factor in lines])


def _row(
    pair: Pair,
    turns: Pairs,
    runs: tuple[Loaded, Loaded],
    compared: Comparison,
    factor: float,
    labels: tuple[str, str],
) -> Row:
    key, before, after = pair
    if turns:
        before, after = [shared[0] for shared in turns], [shared[1] for shared in turns]
    names = (before[0].provider, after[0].provider) if key.provider is None else labels
    medians = _middle(before), _middle(after)
    in_cycles = cycles_ratio(turns) if turns else _cycles_ratio(before, after, compared.ratio / factor)
    reason = _reason(compared, factor, in_cycles, (before, after))
    return Row(
        key=key,
        baseline=names[0],
        candidate=names[1],
        provider_baseline=before[0].provider,
        provider_candidate=after[0].provider,
        compared=compared if reason == compared.reason else replace(compared, reason=reason),
        factor=factor,
        baseline_s=medians[0],
        candidate_s=medians[1],
        mfu_baseline=runs[0].mfu(before[0], medians[0]),
        mfu_candidate=runs[1].mfu(after[0], medians[1]),
        bytes_per_s_baseline=_bytes_per_s(before[0], medians[0]),
        bytes_per_s_candidate=_bytes_per_s(after[0], medians[1]),
        cycles_ratio=in_cycles,
        windows=(len(before), len(after)),
        flags_baseline=flags_of(before),
        flags_candidate=flags_of(after),
        is_paired=bool(turns),
    )


def _cycles_ratio(before: Sequence[Measured], after: Sequence[Measured], ratio: float) -> float | None:
    first, second = _clock(before), _clock(after)
    return ratio * second / first if first and second else None


def _reason(compared: Comparison, factor: float, in_cycles: float | None, sides: Sequence[Sequence[Measured]]) -> str:
    """Return the reason of the verdict, with what the samples, the clocks and the sources add to it."""
    before, after = sides[0][0], sides[1][0]
    sources = source_words(before, after, compared.verdict)
    if not (before.taken and after.taken):
        without = [name for name, one in (("baseline", before), ("candidate", after)) if not one.taken]
        return f"no samples were kept of the {' and the '.join(without)}, only a median{sources}"
    return compared.reason + _cycles_words(compared, factor, in_cycles) + sources


def _cycles_words(compared: Comparison, factor: float, in_cycles: float | None) -> str:
    """Return whether a gap survives in clock cycles; nothing where there is no gap or no clock."""
    if compared.verdict not in (FASTER, SLOWER) or in_cycles is None:
        return ""
    verdict = _verdict_in_cycles(compared, in_cycles)
    if verdict in (compared.verdict, None):
        return "; in clock cycles too" if verdict else ""
    change = 100 * (in_cycles * factor / compared.ratio - 1)
    return f"; in clock cycles {verdict}: the clock changed by {change:+.2g} %"


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
    return notes


def _allowance(rows: Sequence[Row], drift: Drift | None) -> list[str]:
    """Return a note on rows that were measured once on either side: what was allowed for drift between the two."""
    apart = sum(not row.is_paired and row.windows == (1, 1) for row in rows)
    if not apart or drift is None:
        return []
    which = "each row was" if apart == len(rows) else f"{apart} of {len(rows)} rows were"
    allowed = f"±{100 * drift.share:.2g} % are allowed for" if drift.share else "are not in the intervals"
    differ = f"differences between two windows {allowed} ({drift.source})"
    return [f"{which} measured once on either side; {differ}; measuring again, or in turns with `bench compare`, helps"]


def _nothing_common(unmatched: Sequence[Unmatched]) -> str:
    """Return why there is no row, with an example of each side."""
    shown = []
    for side in ("baseline", "candidate"):
        of_side = [one for one in unmatched if one.side == side]
        first = min(of_side, key=lambda one: one.measured.status != "ok", default=None)
        if first is None:
            shown.append(f"the {side} has no record")
        else:
            one = first.measured
            shown.append(f"the {side} has {one.op} {one.case} {one.dtype} {one.provider} ({first.reason})")
    return f"there is nothing to compare: {', '.join(shown)}"
