"""What the flags of a record do to a verdict: which are only told, and which leave it open.

The flags and their meaning are those of the benchmarks (`bench/harness/measure/evidence.py`), known here by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from results.record import Record
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE, Comparison, is_beyond_disturbance, verdict_of
from results.stats.samples import median
from results.stats.unpaired import MORE_RUNS

DISTURBED = frozenset({"preempted", "throttled", "drifting", "bimodal", "tick-limited", "interpreted"})
"""The time may be off by more than its samples tell: others had the cores, heat held the clock down, the speed was
still changing, the median is that of one of two speeds, the clock is too coarse, or an interpreter ran the kernel."""

LEAST_DISTURBED_ROUNDS = 80
"""Rounds in which what disturbs both sides meets them about equally: a process that takes a core for some milliseconds
at a time slowed one of them down by 16 to 30 % more than the other in 20 rounds."""

ONE_SIDED = frozenset({"l2-suspect", "not-cold", "not-captured"})
"""No harm if both sides have it; if one has, a gap may be that between cache and memory, or events and graph."""

BIMODAL, PREEMPTED = "bimodal", "preempted"

OF_THE_ROOF = frozenset({"above-roof", "doubtful-roof"})
"""They speak of the ceiling that a time is held against: where both sides have one, not of the ratio of their times."""


def flags_of(side: Sequence[Record]) -> tuple[str, ...]:
    """Return the flags of all windows of a side, each once."""
    return tuple(dict.fromkeys(flag for one in side for flag in one.flags))


def with_flags(
    compared: Comparison, baseline: Sequence[Record], candidate: Sequence[Record], is_paired: bool
) -> Comparison:
    """Return a comparison that says what is flagged; a verdict only where no flag can be all there is to it.

    Records that took turns shared whatever disturbed them, so that FASTER and SLOWER stand after rounds enough.

    Args:
        compared: by the samples.
        baseline: the records of the one side.
        candidate: those of the other.
        is_paired: whether the two took turns.
    """
    shared = OF_THE_ROOF & {*flags_of(baseline)} & {*flags_of(candidate)}
    before, after = ([flag for flag in flags_of(side) if flag not in shared] for side in (baseline, candidate))
    if not before and not after:
        return compared
    told = _flagged(before, after)
    if compared.verdict == SAME and PREEMPTED in before and PREEMPTED in after:
        waited = max(_times_the_fastest(baseline), _times_the_fastest(candidate))
        if _may_hide_a_difference(compared, waited):
            reason = (
                f"{compared.reason}, but {told}: waiting for the processor is in both times, which are "
                f"{waited:.3g} times those of the fastest samples; a quiet machine would tell"
            )
            return replace(compared, verdict=UNSURE, reason=reason, p_value=1.0)
    may_explain = _too_few_rounds if is_paired else _may_explain
    judged = (FASTER, SLOWER) if is_paired else (FASTER, SLOWER, SAME)
    if compared.verdict not in judged or not may_explain(compared, before, after):
        return replace(compared, reason=f"{compared.reason}; {told}")
    advice = f"{compared.pairs} rounds are too few for that" if is_paired else MORE_RUNS
    reason = f"{compared.reason}, but {told}; {advice}"
    return replace(compared, verdict=UNSURE, reason=reason, p_value=1.0)


def _times_the_fastest(side: Sequence[Record]) -> float:
    """Return how many times the median of a side is the fastest of its samples; 1 where no samples were kept."""
    medians_s = [one.median_s for one in side if one.median_s]
    samples_s = [sample_s for one in side for sample_s in one.samples_s]
    return median(medians_s) / min(samples_s) if medians_s and samples_s else 1.0


def _may_hide_a_difference(compared: Comparison, waited: float) -> bool:
    """Return whether the functions may differ by more than the margin where both times hold the same wait.

    With times a and b and a wait w, (b + w) / (a + w) is as much closer to 1 as a is a part of a + w.
    """
    low, high = (1 + (end - 1) * waited for end in compared.ci95)
    return verdict_of(low, high, compared.margin, compared.pairs) != SAME


def _flagged(baseline: Sequence[str], candidate: Sequence[str]) -> str:
    both = [flag for flag in baseline if flag in candidate]
    sides = {"baseline is": baseline, "candidate is": candidate}
    own = {f"the {side}": [flag for flag in flags if flag not in both] for side, flags in sides.items()}
    return "; ".join(f"{who} flagged {', '.join(flags)}" for who, flags in ({"both are": both} | own).items() if flags)


def _too_few_rounds(compared: Comparison, baseline: Sequence[str], candidate: Sequence[str]) -> bool:
    """Return whether both sides of a comparison in turns were disturbed, and its rounds too few to bear that."""
    if compared.pairs >= LEAST_DISTURBED_ROUNDS or is_beyond_disturbance(compared.ci95, compared.margin):
        return False
    return not DISTURBED.isdisjoint(baseline) and not DISTURBED.isdisjoint(candidate)


def _may_explain(compared: Comparison, baseline: Sequence[str], candidate: Sequence[str]) -> bool:
    """Return whether a gap between records that were measured apart may come from what is flagged."""
    is_one_sided = not ONE_SIDED.isdisjoint(set(baseline) ^ set(candidate))
    return is_one_sided or not DISTURBED.isdisjoint({*baseline, *candidate})
