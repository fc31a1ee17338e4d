"""Two versions side by side: two runs, two providers of one run or of two, or two revisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.compare.earlier import RunSpreads, between_visits, of_same_code
from results.compare.flags import with_flags
from results.compare.load import turns_of, windows
from results.compare.match import WRONG, MatchedPair, Unmatched, match
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
from results.stats.spread import GIVEN, Spread, given_spread, widest
from results.stats.unpaired import compare_sides, side_of
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
    spread: Spread | None = None
    """Widest spread that the verdicts allow for; None if all rows were interleaved, or nothing was repeated."""


def compare(
    first: Run, second: Run | None, request: CompareOptions, drift: float | None = None, earlier: Sequence[Run] = ()
) -> Compared:
    """Compare two runs, or two selections of one.

    Args:
        first: the baseline's run.
        second: the candidate's; None if both are in one run.
        request: how.
        drift: how much the machine may have changed between two runs, as a fraction; None: learned from repeats.
        earlier: runs of the same machine, for the spread between runs of the same code; those that are compared are
            among them if `first` and `second` hold selected records only.

    Raises:
        CompareError: nothing is common to both, they differ in what must agree, or a name is unknown.
    """
    found = compared_of(first, second, request, drift, earlier)
    if not found.rows:
        raise CompareError(_nothing_common(found.unmatched))
    return found


def compared_of(
    first: Run, second: Run | None, request: CompareOptions, drift: float | None, earlier: Sequence[Run] = ()
) -> Compared:
    """Return a comparison that may have no rows; arguments and errors as for `compare`."""
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
    learned = between_visits if is_one_run else RunSpreads([first, other, *earlier] if drift is None else []).between
    environments = (first.environment, other.environment)
    results, used = [], []
    for pair, shared in zip(pairs, turns, strict=True):
        if shared:
            one = _with_remedy(compare_turns(shared, request.margin), shared[1])
            results.append(with_flags(one, [shared[0]], [shared[1]], is_paired=True))
            continue
        used.append(learned(pair.baseline, pair.candidate) if drift is None else given_spread(drift))
        sides = side_of(windows(pair.baseline)), side_of(windows(pair.candidate))
        one = with_flags(
            compare_sides(*sides, request.margin, used[-1]), pair.baseline, pair.candidate, is_paired=False
        )
        results.append(of_same_code(one, pair.baseline[0], pair.candidate[0], environments))
    rows = tuple(
        _row(pair, shared, (first, other), labels, result)
        for pair, shared, result in zip(pairs, turns, with_holm(results), strict=True)
    )
    notes += [*matching.notes, *_repeats(pairs), *_spread_notes(used)]
    unmatched = (*matching.unmatched, *_no_versions(other, request))
    return Compared(*labels, environments, request, rows, unmatched, tuple(notes), widest(used))


def compare_live(environment: Environment, records: Iterable[Record], baseline: str, margin: float) -> Compared:
    """Return the comparison of the providers of a run; any wrong or failed result counts as broken.

    Args:
        environment: of the run, with the ceilings.
        records: as they were measured.
        baseline: provider with which the others are compared.
        margin: change of the time, as a fraction, that does not matter.
    """
    run = Run(Path(), environment, tuple(records))
    found = compared_of(run, None, CompareOptions(by="provider", baseline=baseline, margin=margin), 0.0)
    unmatched = tuple(
        replace(one, is_broken=one.record.status in WRONG)
        for one in found.unmatched
        if one.side == "candidate" or one.record.status != "ok"
    )
    return replace(found, unmatched=unmatched)


def _spread_notes(spreads: Sequence[Spread | None]) -> list[str]:
    learned = [spread for spread in spreads if spread and spread.has_runs and spread.source != GIVEN]
    if not learned:
        return []
    shares = sorted(100 * spread.share for spread in learned)
    shown = f"{shares[0]:.2g} %" if len(shares) == 1 else f"{shares[0]:.2g} to {shares[-1]:.2g} %"
    sources = " and ".join(dict.fromkeys(spread.source for spread in learned))
    return [f"measurements of the same code differ by ±{shown} on this machine, learned from {sources}"]


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


def _nothing_common(unmatched: Sequence[Unmatched]) -> str:
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
