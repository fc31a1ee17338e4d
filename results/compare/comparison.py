"""Two versions side by side: two runs, two providers of one run or of two, or two revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.compare.flags import with_flags
from results.compare.load import turns_of, windows
from results.compare.match import MatchedPair, Unmatched, match
from results.compare.row import ComparedRow, Side, verdict_in_cycles
from results.compare.sides import (
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
from results.compare.turns import Pair, compare_cycles, compare_turns, side_by_side
from results.record import Environment, Record
from results.stats.comparison import FASTER, MORE_SAMPLES, SLOWER, Comparison, with_holm
from results.stats.drift import Drift, drift_of
from results.stats.unpaired import compare_sides, side_of, spread_between
from results.stats.verdict import times_longer
from results.store.runfile import Run


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
    """Allowance for drift between two windows; None if both sides of every row were interleaved."""


def compare(first: Run, second: Run | None, request: CompareOptions, drift: float | None = None) -> Compared:
    """Compare two runs, or two selections of one.

    Args:
        first: the baseline's run.
        second: the candidate's; None if both are in one run.
        request: how.
        drift: what to allow for between two windows, as a fraction; None: what the runs tell, else what is usual.

    Raises:
        CompareError: nothing is common to both, they differ in what must agree, or a name is unknown.
    """
    found = compared_of(first, second, request, drift)
    if not found.rows:
        raise CompareError(_nothing_common(found.unmatched))
    return found


def compared_of(first: Run, second: Run | None, request: CompareOptions, drift: float | None) -> Compared:
    """Return a comparison that may have no rows; arguments and errors as of `compare`."""
    is_one_run, other = second is None, second or first
    check_request(first, other, request, is_one_run)
    name, baseline = baseline_side(first, request)
    candidate = candidate_side(other, request, name)
    notes = [] if is_one_run else differences(first.environment, other.environment, request.force)
    matching = match(baseline, candidate, not request.by_provider, request.force)
    pairs = matching.pairs
    labels = labels_of(first, other, request, name)
    # Only records of one run can have been interleaved.
    turns = [side_by_side(pair.baseline, pair.candidate) if is_one_run else None for pair in pairs]
    results, allowed = _compared(pairs, turns, request.margin, drift)
    rows = tuple(
        _row(pair, shared, (first, other), labels, result)
        for pair, shared, result in zip(pairs, turns, results, strict=True)
    )
    notes += [*matching.notes, *_repeats(pairs), *_allowance(pairs, turns, allowed)]
    environments = (first.environment, other.environment)
    unmatched = (*matching.unmatched, *_no_versions(other, request))
    return Compared(*labels, environments, request, rows, unmatched, tuple(notes), allowed)


def _compared(
    pairs: Sequence[MatchedPair], turns: Sequence[Pair | None], margin: float, given: float | None
) -> tuple[list[Comparison], Drift | None]:
    """Return the comparison of each pair, corrected for their number, and the allowance for drift."""
    apart = {
        index: (side_of(windows(pair.baseline)), side_of(windows(pair.candidate)))
        for index, (pair, shared) in enumerate(zip(pairs, turns, strict=True))
        if not shared
    }
    drift = drift_of(given, *spread_between([side for sides in apart.values() for side in sides])) if apart else None
    found = []
    for index, (pair, shared) in enumerate(zip(pairs, turns, strict=True)):
        if shared:
            one = _with_remedy(compare_turns(shared, margin), shared[1])
            found.append(with_flags(one, [shared[0]], [shared[1]], is_paired=True))
        else:
            one = compare_sides(*apart[index], margin, drift)
            found.append(with_flags(one, pair.baseline, pair.candidate, is_paired=False))
    return with_holm(found), drift


def _with_remedy(compared: Comparison, candidate: Record) -> Comparison:
    """Return a comparison whose reason says how many seconds of rounds would make an UNSURE verdict clear."""
    longer, turns = times_longer(compared), turns_of(candidate)
    if longer is None or turns is None or turns.seconds is None:
        return compared
    seconds = longer * turns.seconds
    shown = f"{seconds:.2g}" if seconds < 99.5 else f"{seconds:,.0f}"
    return replace(compared, reason=compared.reason.replace(MORE_SAMPLES, f"about {shown} s of rounds would tell"))


def _row(
    pair: MatchedPair, turns: Pair | None, runs: tuple[Run, Run], labels: tuple[str, str], compared: Comparison
) -> ComparedRow:
    records = ([turns[0]], [turns[1]]) if turns else (pair.baseline, pair.candidate)
    if pair.key.provider is None:
        labels = records[0][0].provider, records[1][0].provider
    cycles_ratio = _cycles_ratio(pair, turns, compared.ratio)
    before, after = records[0][0], records[1][0]
    if before.samples_s and after.samples_s:
        cause = compared.reason + _cycles_words(compared, cycles_ratio)
    else:
        without = [name for name, one in (("baseline", before), ("candidate", after)) if not one.samples_s]
        cause = f"no samples were saved of the {' and the '.join(without)}, only a median"
    cause += source_words(before, after, compared.verdict)
    baseline, candidate = (
        Side(label, side, run.environment) for label, side, run in zip(labels, records, runs, strict=True)
    )
    return ComparedRow(pair.key, baseline, candidate, compared, turns is not None, cycles_ratio, cause)


def _cycles_ratio(pair: MatchedPair, turns: Pair | None, ratio: float) -> float | None:
    """Return the ratio of the times in clock cycles; None if a clock is unknown."""
    if turns:
        in_cycles = compare_cycles(turns, margin=0.0)
        return in_cycles.ratio if in_cycles else None
    before, after = _clock_hz(pair.baseline), _clock_hz(pair.candidate)
    return ratio * after / before if before and after else None


def _clock_hz(side: Sequence[Record]) -> float | None:
    """Return the mean clock of the windows of a side; None if one of them is unknown."""
    clocks = [hz for one in side if (hz := one.telemetry.get("sm_clock_hz"))]
    return sum(clocks) / len(clocks) if len(clocks) == len(side) else None


def _cycles_words(compared: Comparison, cycles_ratio: float | None) -> str:
    """Return whether a gap survives in clock cycles; nothing if there is no gap or no clock."""
    if compared.verdict not in (FASTER, SLOWER) or cycles_ratio is None:
        return ""
    verdict = verdict_in_cycles(compared, cycles_ratio)
    if verdict in (compared.verdict, None):
        return f"; counted in clock cycles it is {verdict} as well" if verdict else ""
    change = 100 * (cycles_ratio / compared.ratio - 1)
    return f"; counted in clock cycles it is {verdict}: the clock frequency changed by {change:+.2g} %"


def _no_versions(run: Run, request: CompareOptions) -> list[Unmatched]:
    if request.by != "version":
        return []
    others = [one for one in run.records if not VERSION.fullmatch(one.provider)]
    return [Unmatched("candidate", one, "its provider is no version of a kernel") for one in others]


def _repeats(pairs: Sequence[MatchedPair]) -> list[str]:
    """Return a note on keys that are there more than once."""
    notes = []
    for side in ("baseline", "candidate"):
        again = [records for records in (getattr(pair, side) for pair in pairs) if len(records) > 1]
        if again:
            one = again[0][0]
            notes.append(
                f"{len(again)} of the {side}'s rows are there several times, such as {one.op} {one.case} {one.dtype} "
                f"{one.provider}: taken as repeated measurements, whose spread widens the interval"
            )
    return notes


def _allowance(pairs: Sequence[MatchedPair], turns: Sequence[Pair | None], drift: Drift | None) -> list[str]:
    """Return a note on rows that were measured once on either side: the allowance for drift between the two."""
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
        first = min(of_side, key=lambda one: one.record.status != "ok", default=None)
        if first is None:
            shown.append(f"the {side} has no record")
        else:
            one = first.record
            shown.append(f"the {side} has {one.op} {one.case} {one.dtype} {one.provider} ({first.reason})")
    return f"there is nothing to compare: {', '.join(shown)}"
