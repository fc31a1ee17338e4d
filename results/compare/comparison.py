"""Comparison of two runs, of providers of one run or two, or of two revisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from results.compare.earlier import SavedRuns, runs_beside
from results.compare.flags import (
    DISTURBED,
    MIN_DISTURBED_ROUNDS,
    OF_THE_ROOF,
    ONE_SIDED,
)
from results.compare.sides import (
    BY_PROVIDER,
    VERSION,
    WRONG,
    CompareOptions,
    Side,
    Unmatched,
    differences,
    from_version_to_version,
    is_users,
    match,
    sides_of,
)
from results.compare.turns import compare_rounds, cycles_ratio, rounds_of, shared_rounds
from results.record import Environment, Record, RowKey
from results.show.units import count
from results.stats.comparison import (
    DEFAULT_MARGIN,
    FASTER,
    MORE_RUNS,
    MORE_SAMPLES,
    SLOWER,
    TOO_NOISY,
    UNKNOWN,
    UNSURE,
    Comparison,
    compare_sides,
    is_beyond_disturbance,
    times_longer,
    verdict_of,
    with_holm,
)
from results.stats.samples import Spread, given_spread, spread_of_visits
from results.store.runfile import Run
from roofline.limits import ABOVE_ROOF, CACHED_RESULT


@dataclass(frozen=True, eq=False)
class ComparedRow:
    """One case of the baseline and of the candidate."""

    key: RowKey
    """Fields that are equal on both sides."""
    baseline: Side
    candidate: Side
    compared: Comparison
    is_paired: bool
    """Whether both were interleaved, so that the ratio is taken round by round."""
    cycles_ratio: float | None
    """Ratio of the times in clock cycles; None if a clock is unknown."""
    decided_after_s: float | None = None
    """Seconds of rounds that may decide an UNSURE row; None if decided, or if too many."""
    spread: Spread | None = None
    """Spread between separate measurements, included in the interval; None if interleaved or
    unknown.
    """

    @property
    def reason(self) -> str:
        text = self.compared.reason
        if self.compared.verdict in (FASTER, SLOWER) and self.cycles_verdict is not None:
            text += f"; in clock cycles it is {self.cycles_verdict}"
        medians = self.candidate.time_s / self.baseline.time_s
        ratio = self.ratio
        allowed = math.log1p(max(self.compared.margin, DEFAULT_MARGIN))
        if self.compared.bound or abs(math.log(medians / ratio)) <= allowed:
            return text
        low, high = self.ci95 or (ratio, ratio)
        if high > TOO_NOISY * low or (low <= medians <= high and (medians > 1) == (ratio > 1)):
            return text
        return f"{text}; the ratio of the medians is {medians:.4f}"

    @property
    def ratio(self) -> float:
        """Ratio of the times, or the end of its interval nearer to 1 if only a bound is known."""
        found = self.compared
        if not found.bound:
            return found.ratio
        return min(found.ci95) if found.ratio > 1 else max(found.ci95)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval of the ratio; None if unknown, or if only a bound is known."""
        found = self.compared
        return None if found.bound or found.ci95 == UNKNOWN else found.ci95

    @property
    def gap_closed(self) -> float | None:
        """Fraction of the baseline's time above its limit that the candidate saves; None if the
        limit is unknown, or above the baseline's time.
        """
        limit = self.baseline.of_ceiling
        if limit is None or limit[0] >= 1:
            return None
        return (1 - self.ratio) / (1 - limit[0])

    @property
    def cycles_verdict(self) -> str | None:
        """Verdict on the ratio in clock cycles with the same relative interval; None if either is
        unknown.
        """
        if self.cycles_ratio is None or self.ci95 is None:
            return None
        low, high = (end * self.cycles_ratio / self.ratio for end in self.ci95)
        return verdict_of(low, high, self.compared.margin, self.compared.pairs)


@dataclass(frozen=True, eq=False)
class Compared:
    """A comparison of two versions."""

    baseline: str
    candidate: str
    environments: tuple[Environment, Environment]
    margin: float
    rows: Sequence[ComparedRow]
    unmatched: Sequence[Unmatched]
    notes: Sequence[str]

    @cached_property
    def baselines(self) -> set[str]:
        """Providers of the baselines of the rows."""
        return {row.baseline.provider for row in self.rows}


def compare(
    first: Run,
    second: Run | None,
    request: CompareOptions,
    drift: float | None = None,
) -> Compared:
    """Compare two runs, or two selections of one run.

    `drift` is the assumed difference between two runs of the same code, as a fraction; None
    estimates it from repeats, in both files and others of the same machine beside them.

    Raises:
        CompareError: the runs do not match the request.
    """
    is_one_run = second is None
    other = second or first
    labels, baseline, candidate = sides_of(first, second, request)
    notes = [] if is_one_run else differences(first.environment, other.environment, request.force)
    by_provider = request.by in BY_PROVIDER
    pairs, alone, remarks = match(baseline, candidate, not by_provider, request.force)
    if request.by == "version" and request.baseline is None and is_one_run:
        pairs = from_version_to_version(pairs)
    saved = None
    if not is_one_run and drift is None:
        saved = SavedRuns(runs_beside([first, other]))
    rows = []
    for pair in pairs:
        # Only records of one run can have been interleaved.
        shared = shared_rounds(pair.baseline, pair.candidate) if is_one_run else None
        sides = []
        of_sides = shared or (pair.baseline, pair.candidate)
        runs = (first, other)
        for label, records, run in zip(labels, of_sides, runs, strict=True):
            name = records[0].provider if by_provider else label
            sides.append(Side.of(name, records, run.environment))
        before, after = sides
        if shared:
            rows.append(_compare_interleaved(pair.key, before, after, request.margin))
        else:
            rows.append(compare_apart(pair.key, before, after, request.margin, saved, drift))
    if request.by == "version":
        reason = "its provider is not a version of a kernel"
        for record in other.records:
            if not VERSION.fullmatch(record.provider):
                alone.append(Unmatched("candidate", record, reason))
    notes += remarks
    repeated = [row for row in rows if row.baseline.runs + row.candidate.runs > 2]
    if repeated:
        means = "compared by the means over all runs of the same code without interference"
        notes.append(f"{count(len(repeated), 'row')} {means}")
    results = with_holm([row.compared for row in rows])
    rows = [replace(row, compared=result) for row, result in zip(rows, results, strict=True)]
    return Compared(
        baseline=labels[0],
        candidate=labels[1],
        environments=(first.environment, other.environment),
        margin=request.margin,
        rows=rows,
        unmatched=alone,
        notes=notes,
    )


def compare_live(
    environment: Environment, records: Iterable[Record], baseline: str, margin: float
) -> Compared:
    """Return the comparison of the providers of a run; every wrong or failed result is broken."""
    request = CompareOptions(by="provider", baseline=baseline, margin=margin)
    run = Run(Path(), environment, tuple(records))
    if not run.records:  # interrupted before the first verdict
        return Compared(baseline, "", (environment, environment), margin, (), (), ())
    compared = compare(run, None, request, 0.0)
    unmatched = [
        replace(row, is_broken=row.record.status in WRONG)
        for row in compared.unmatched
        if row.side == "candidate" or row.record.status != "ok"
    ]
    return replace(compared, unmatched=unmatched)


def compare_apart(
    key: RowKey,
    baseline: Side,
    candidate: Side,
    margin: float,
    saved: SavedRuns | None,
    drift: float | None = None,
) -> ComparedRow:
    """Compare two sides that were not interleaved; if their code differs, by all saved runs of each
    side's code.

    If `saved` is None, both sides are from one run, and its visits give the spread. `drift`
    replaces the spread, as a fraction.
    """
    is_same = baseline.code.is_known and baseline.code == candidate.code
    if saved and not is_same:
        baseline = saved.repeated(baseline)
        candidate = saved.repeated(candidate)
    if drift is not None:
        spread: Spread | None = given_spread(drift)
    elif saved:
        spread = saved.between(baseline, candidate)
    else:
        spread = spread_of_visits(baseline.windows, candidate.windows)
    compared = compare_sides(baseline.times, candidate.times, margin, spread)
    compared = with_flags(compared, baseline, candidate, is_paired=False)
    if is_same and compared.verdict in (FASTER, SLOWER):
        compared = compared.unsure(", but the code is the same: the machine changed")
    before = baseline.clock_hz
    after = candidate.clock_hz
    in_cycles = compared.ratio * after / before if before and after else None
    return ComparedRow(key, baseline, candidate, compared, False, in_cycles, spread=spread)


def sides_of_run(run: Run) -> dict[RowKey, Side]:
    """Return the successful records of each case and provider; the path of the run is the label of
    each side.
    """
    by_row: dict[RowKey, list[Record]] = {}
    for record in run.records:
        if record.status == "ok":
            by_row.setdefault(record.row, []).append(record)
    label = str(run.path)
    return {row: Side.of(label, records, run.environment) for row, records in by_row.items()}


def _compare_interleaved(
    key: RowKey, baseline: Side, candidate: Side, margin: float
) -> ComparedRow:
    """Compare two sides of one record each, which share their rounds."""
    before = baseline.records[0]
    after = candidate.records[0]
    compared = compare_rounds(before, after, margin)
    longer = times_longer(compared)
    rounds = rounds_of(after)
    seconds = None
    if rounds and longer is not None:
        seconds = longer * rounds.seconds
        shown = f"about {seconds:.2g}" if seconds < 99.5 else f"about {seconds:,.0f}"
        reason = compared.reason.replace(MORE_SAMPLES, f"{shown} s of rounds may decide")
        compared = replace(compared, reason=reason)
    compared = with_flags(compared, baseline, candidate, is_paired=True)
    in_cycles = cycles_ratio(before, after)
    return ComparedRow(key, baseline, candidate, compared, True, in_cycles, seconds)


def with_flags(
    compared: Comparison, baseline: Side, candidate: Side, is_paired: bool
) -> Comparison:
    """Return a comparison with the flags in its reason, UNSURE if a flag may explain the verdict.

    With `is_paired`, both sides share all interference, so FASTER and SLOWER hold after enough
    rounds; see also `judge_rounds`.
    """
    if compared.verdict == FASTER and _is_above_roof(candidate) and not _is_above_roof(baseline):
        return compared.unsure(
            ", but the candidate is above its roof: python -m bench calibrate measures it again"
        )
    shared = OF_THE_ROOF.intersection(baseline.flags, candidate.flags)
    before = [flag for flag in baseline.flags if flag not in shared]
    after = [flag for flag in candidate.flags if flag not in shared]
    if not before and not after:
        return compared
    named = {
        "both are": [flag for flag in before if flag in after],
        "the baseline is": [flag for flag in before if flag not in after],
        "the candidate is": [flag for flag in after if flag not in before],
    }
    parts = [f"{who} flagged {', '.join(flags)}" for who, flags in named.items() if flags]
    listed = "; ".join(parts)
    if "interpreted" in before + after:
        return compared.unsure(
            f", but {listed}: the time of an interpreter is not that of the kernel"
        )
    is_unverified = "not-fresh" in before + after and compared.verdict == FASTER
    if is_unverified or "not-compared" in before + after:
        return compared.unsure(f", but {listed}: whether both compute the same is unknown")
    if is_paired:
        are_disturbed = not DISTURBED.isdisjoint(before) and not DISTURBED.isdisjoint(after)
        is_open = (
            compared.verdict in (FASTER, SLOWER)
            and are_disturbed
            and _may_wait(compared, baseline, candidate)
        )
        advice = f"{compared.pairs} rounds are too few"
    else:
        is_one_sided = not ONE_SIDED.isdisjoint(set(before) ^ set(after))
        is_disturbed = not DISTURBED.isdisjoint(before + after)
        is_open = compared.verdict != UNSURE and (is_one_sided or is_disturbed)
        advice = MORE_RUNS
    if is_open:
        return compared.unsure(f", but {listed}; {advice}")
    return replace(compared, reason=f"{compared.reason}; {listed}")


def _is_above_roof(side: Side) -> bool:
    """Return whether a side is above its roof; a nearer cache may serve bytes that are not cold."""
    share, roof = side.of_ceiling or (0.0, "")
    may_be_near = roof == "memory" and side.records[0].cache != "cold"
    return share > (CACHED_RESULT if may_be_near else ABOVE_ROOF)


def _may_wait(compared: Comparison, baseline: Side, candidate: Side) -> bool:
    """Return whether waiting explains a difference: in few rounds, unless the fastest samples
    differ as much.
    """
    if compared.pairs >= MIN_DISTURBED_ROUNDS:
        return False
    fastest_s = []
    for side in (baseline, candidate):
        samples_s = chain.from_iterable(record.samples_s for record in side.records)
        fastest_s.append(min(samples_s, default=1.0))
    ratio = fastest_s[1] / fastest_s[0]
    if (ratio > 1) != (compared.ratio > 1):
        return True
    intervals = (compared.ci95, (ratio, ratio))
    return not all(is_beyond_disturbance(ends, compared.margin) for ends in intervals)


def nothing_common(unmatched: Sequence[Unmatched]) -> str:
    """Return why two runs have no row in common."""
    ordered = sorted(unmatched, key=lambda row: row.record.status != "ok")
    firsts = {row.side: row for row in reversed(ordered)}
    shown = [f"the {side} has {row.name} ({row.reason})" for side, row in sorted(firsts.items())]
    text = f"nothing to compare: {', '.join(shown)}"
    if any(is_users(row.record) for row in unmatched):
        text += "; --by provider compares the same function in two directories"
    return text
