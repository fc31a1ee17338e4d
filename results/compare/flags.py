"""What the flags of a record do to a verdict: which are only told, and which leave it open.

The flags and their meaning are those of the benchmarks (`bench/harness/measure/evidence.py`), known here by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from results.stats.comparison import FASTER, SLOWER, UNSURE, Comparison

if TYPE_CHECKING:
    from results.compare.load import Measured

DISTURBED = frozenset({"preempted", "throttled", "drifting", "bimodal", "tick-limited"})
"""The time may be off by more than its samples tell: others had the cores, heat held the clock down, the speed was
still changing, the median is that of one of two speeds, or the clock is too coarse."""

DISTURBANCE = 2.0
"""Times by which such a measurement may be off. Beside another thread that is as busy, a thread has half of its core; a
GPU in hardware slowdown halves its clock.

Source: NVIDIA, NVML API reference, clocks event reasons: hardware slowdown reduces the clocks by a factor of 2 or more.
"""

LEAVES_OUT_WORK = frozenset({"other-stream"})
"""The time leaves out work: no gap is large enough."""

ONE_SIDED = frozenset({"l2-suspect", "not-cold"})
"""No harm where both sides have it; where one has, a gap may be that between cache and memory."""

BIMODAL = "bimodal"


def flags_of(side: Sequence[Measured]) -> tuple[str, ...]:
    """Return the flags of all windows of a side, each once."""
    if len(side) == 1:
        return side[0].flags
    return tuple(dict.fromkeys(flag for one in side for flag in one.flags))


def with_flags(compared: Comparison, baseline: Sequence[str], candidate: Sequence[str], is_paired: bool) -> Comparison:
    """Return a comparison that says what is flagged; FASTER and SLOWER only where no flag can be all there is to it.

    Records that took turns shared whatever disturbed them, so that their verdict stands.

    Args:
        compared: by the samples.
        baseline: flags of the one side.
        candidate: flags of the other.
        is_paired: whether the two took turns.
    """
    if not baseline and not candidate:
        return compared
    sides = (("baseline", baseline), ("candidate", candidate))
    told = "; ".join(f"the {side} is flagged {', '.join(flags)}" for side, flags in sides if flags)
    is_open = compared.verdict in (FASTER, SLOWER) and not is_paired and _may_explain(compared, baseline, candidate)
    if not is_open:
        return replace(compared, reason=f"{compared.reason}; {told}")
    reason = f"{compared.reason}, but {told}: measure again, or both in turns (bench compare)"
    return replace(compared, verdict=UNSURE, reason=reason, p_value=1.0)


def _may_explain(compared: Comparison, baseline: Sequence[str], candidate: Sequence[str]) -> bool:
    """Return whether a gap between records that were measured apart may come from what is flagged."""
    flags = {*baseline, *candidate}
    if not (LEAVES_OUT_WORK.isdisjoint(flags) and ONE_SIDED.isdisjoint(set(baseline) ^ set(candidate))):
        return True
    low, high = compared.ci95
    return (
        not DISTURBED.isdisjoint(flags)
        and low <= DISTURBANCE * (1 + compared.margin)
        and (high >= 1 / (DISTURBANCE * (1 + compared.margin)))
    )
