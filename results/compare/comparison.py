"""Two versions side by side: two runs, two providers of one run or of two, or two revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.compare.flags import with_flags
from results.compare.load import LoadedRun, Measured, windows
from results.compare.match import MatchedPair, Unmatched, match
from results.compare.row import ComparedRow, Side, verdict_in_cycles
from results.compare.sides import (
    METRICS,
    VERSION,
    CompareError,
    CompareOptions,
    baseline_side,
    candidate_side,
    check_request,
    differences,
    labels_of,
    source_words,
)
from results.compare.turns import Pairs, compare_cycles, compare_turns, side_by_side
from results.record import Environment
from results.stats.comparison import FASTER, SLOWER, Comparison, with_holm
from results.stats.drift import Drift, drift_of
from results.stats.unpaired import judge_sides, sides_of


@dataclass(frozen=True, eq=False)
class Compared:
    """Two versions, compared."""

    baseline: str
    candidate: str
    environments: tuple[Environment, Environment]
    request: CompareOptions
    rows: tuple[ComparedRow, ...]
    unmatched: tuple[Unmatched, ...]
    notes: tuple[str, ...]
    drift: Drift | None = None
    """What was allowed for between two windows; None where both sides of every row took turns."""


def compare(
    first: LoadedRun, second: LoadedRun | None, request: CompareOptions, drift: float | None = None
) -> Compared:
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
    results, allowed = _compared(usable, turns, factors, request, drift)
    rows = tuple(
        _row(pair, shared, (first, other), labels, result, factor)
        for pair, shared, result, factor in zip(usable, turns, results, factors, strict=True)
    )
    notes += [*matching.notes, *_repeats(usable), *_allowance(usable, turns, allowed)]
    environments = (first.environment, other.environment)
    return Compared(*labels, environments, request, rows, unmatched, tuple(notes), allowed)


def _row(
    pair: MatchedPair,
    turns: Pairs,
    runs: tuple[LoadedRun, LoadedRun],
    labels: tuple[str, str],
    compared: Comparison,
    factor: float,
) -> ComparedRow:
    """Return a row whose comparison stands as it is among all."""
    records = ([one for one, _ in turns], [one for _, one in turns]) if turns else (pair.baseline, pair.candidate)
    if pair.key.provider is None:
        labels = records[0][0].provider, records[1][0].provider
    cycles_ratio = _cycles_ratio(pair, turns, compared.ratio / factor)
    before, after = records[0][0], records[1][0]
    if before.samples and after.samples:
        cause = compared.reason + _cycles_words(compared, cycles_ratio, factor)
    else:
        without = [name for name, one in (("baseline", before), ("candidate", after)) if not one.samples]
        cause = f"no samples were kept of the {' and the '.join(without)}, only a median"
    cause += source_words(before, after, compared.verdict)
    baseline, candidate = (Side(*side) for side in zip(labels, records, runs, strict=True))
    return ComparedRow(pair.key, baseline, candidate, compared, bool(turns), cycles_ratio, cause, factor)


def _cycles_ratio(pair: MatchedPair, turns: Pairs, ratio: float) -> float | None:
    """Return the ratio of the times in clock cycles; None where a clock is not known."""
    if turns:
        in_cycles = compare_cycles(turns, margin=0.0)
        return in_cycles.ratio if in_cycles else None
    before, after = _clock_hz(pair.baseline), _clock_hz(pair.candidate)
    return ratio * after / before if before and after else None


def _clock_hz(side: Sequence[Measured]) -> float | None:
    """Return the mean clock of the windows of a side; None where one of them is not known."""
    clocks = [one.sm_clock_hz for one in side if one.sm_clock_hz]
    return sum(clocks) / len(clocks) if len(clocks) == len(side) else None


def _cycles_words(compared: Comparison, cycles_ratio: float | None, factor: float) -> str:
    """Return whether a gap survives in clock cycles; nothing where there is no gap or no clock."""
    if compared.verdict not in (FASTER, SLOWER) or cycles_ratio is None:
        return ""
    verdict = verdict_in_cycles(compared, cycles_ratio)
    if verdict in (compared.verdict, None):
        return f"; counted in clock cycles it is {verdict} as well" if verdict else ""
    change = 100 * (cycles_ratio * factor / compared.ratio - 1)
    return f"; counted in clock cycles it is {verdict}: the clock frequency changed by {change:+.2g} %"


def _no_versions(run: LoadedRun, request: CompareOptions) -> list[Unmatched]:
    if request.by != "version":
        return []
    others = [one for one in run.measured if not VERSION.fullmatch(one.provider)]
    return [Unmatched("candidate", one, "its provider is no version of a kernel") for one in others]


def _usable(
    pairs: Sequence[MatchedPair], first: LoadedRun, second: LoadedRun, request: CompareOptions
) -> tuple[list[MatchedPair], list[float], list[Unmatched]]:
    """Return the pairs whose metric is known, the factor of each, and the records whose metric is not."""
    if request.metric == "time":
        return list(pairs), [1.0] * len(pairs), []
    usable, factors, incomparable = [], [], []
    for pair in pairs:
        before = first.work(pair.baseline[0], request.metric)
        after = second.work(pair.candidate[0], request.metric)
        if before and after:
            usable.append(pair)
            factors.append(before / after)
        else:
            side, one = ("candidate", pair.candidate[0]) if before else ("baseline", pair.baseline[0])
            incomparable.append(Unmatched(side, one, f"its {METRICS[request.metric]} is not known, or 0"))
    return usable, factors, incomparable


def _compared(
    pairs: Sequence[MatchedPair],
    turns: Sequence[Pairs],
    factors: Sequence[float],
    request: CompareOptions,
    given: float | None,
) -> tuple[list[Comparison], Drift | None]:
    """Return the comparison of each pair, as it stands among all, and what was allowed for drift."""
    apart = [place for place, shared in enumerate(turns) if not shared]
    results: list[Comparison | None] = [None] * len(pairs)
    quantity, drift = METRICS[request.metric], None
    if apart:
        sides = sides_of([(windows(pairs[place].baseline), windows(pairs[place].candidate)) for place in apart])
        drift = drift_of(given, *sides.spread_between())
        found = judge_sides(sides, request.margin, [factors[place] for place in apart], quantity, drift)
        for place, one in zip(apart, found, strict=True):
            results[place] = one
    flagged = []
    for pair, shared, factor, result in zip(pairs, turns, factors, results, strict=True):
        known = result or compare_turns(shared, request.margin, factor, quantity)
        flagged.append(with_flags(known, pair.baseline, pair.candidate, bool(shared)))
    return with_holm(flagged), drift


def _repeats(pairs: Sequence[MatchedPair]) -> list[str]:
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


def _allowance(pairs: Sequence[MatchedPair], turns: Sequence[Pairs], drift: Drift | None) -> list[str]:
    """Return a note on rows that were measured once on either side: what was allowed for drift between the two."""
    apart = sum(
        not shared and len(pair.baseline) == len(pair.candidate) == 1 for pair, shared in zip(pairs, turns, strict=True)
    )
    if not apart or drift is None:
        return []
    which = "each row was" if apart == len(pairs) else f"{apart} of {len(pairs)} rows were"
    changed = "changes of the machine between the two times"
    allowed = f"±{100 * drift.share:.2g} % are allowed for {changed}"
    differ = allowed if drift.share else f"{changed} are not in the intervals"
    return [f"{which} measured once on either side; {differ} ({drift.source})"]


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
