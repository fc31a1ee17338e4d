"""What the flags of a record do to a verdict: which are only told, and which leave it open.

The flags and their meaning are those of the benchmarks (`bench/harness/measure/evidence.py`), known here by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from results.stats.comparison import FASTER, SLOWER, UNSURE, Comparison, is_beyond_disturbance
from results.stats.unpaired import MORE_WINDOWS

if TYPE_CHECKING:
    from results.compare.load import Measured

DISTURBED = frozenset({"preempted", "throttled", "drifting", "bimodal", "tick-limited"})
"""The time may be off by more than its samples tell: others had the cores, heat held the clock down, the speed was
still changing, the median is that of one of two speeds, or the clock is too coarse."""

LEAST_DISTURBED_ROUNDS = 80
"""Rounds in which what disturbs both sides meets them about equally: a process that takes a core for some milliseconds
at a time slowed one of them down by 16 to 30 % more than the other in 20 rounds."""

LEAVES_OUT_WORK = frozenset({"other-stream"})
"""The time leaves out work: no gap is large enough."""

ONE_SIDED = frozenset({"l2-suspect", "not-cold"})
"""No harm where both sides have it; where one has, a gap may be that between cache and memory."""

BIMODAL = "bimodal"

OF_THE_ROOF = frozenset({"above-roof", "doubtful-roof"})
"""They speak of the ceiling that a time is held against: where both sides have one, not of the ratio of their times."""


def flags_of(side: Sequence[Measured]) -> tuple[str, ...]:
    """Return the flags of all windows of a side, each once."""
    if len(side) == 1:
        return side[0].flags
    return tuple(dict.fromkeys(flag for one in side for flag in one.flags))


def with_flags(compared: Comparison, baseline: Sequence[str], candidate: Sequence[str], is_paired: bool) -> Comparison:
    """Return a comparison that says what is flagged; FASTER and SLOWER only where no flag can be all there is to it.

    Records that took turns shared whatever disturbed them, so that their verdict stands after rounds enough.

    Args:
        compared: by the samples.
        baseline: flags of the one side.
        candidate: flags of the other.
        is_paired: whether the two took turns.
    """
    shared = OF_THE_ROOF & {*baseline} & {*candidate}
    baseline, candidate = ([flag for flag in side if flag not in shared] for side in (baseline, candidate))
    if not baseline and not candidate:
        return compared
    told = _flagged(baseline, candidate)
    may_explain = _too_few_rounds if is_paired else _may_explain
    if compared.verdict not in (FASTER, SLOWER) or not may_explain(compared, baseline, candidate):
        return replace(compared, reason=f"{compared.reason}; {told}")
    advice = f"{compared.pairs} rounds are too few for that" if is_paired else MORE_WINDOWS
    reason = f"{compared.reason}, but {told}; {advice}"
    return replace(compared, verdict=UNSURE, reason=reason, p_value=1.0)


def _flagged(baseline: Sequence[str], candidate: Sequence[str]) -> str:
    """Return which flags the sides have: first those of both."""
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
    flags = {*baseline, *candidate}
    if not (LEAVES_OUT_WORK.isdisjoint(flags) and ONE_SIDED.isdisjoint(set(baseline) ^ set(candidate))):
        return True
    return not DISTURBED.isdisjoint(flags) and not is_beyond_disturbance(compared.ci95, compared.margin)
