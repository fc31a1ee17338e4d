"""Effect of flags on verdicts; the flags are those of `bench/harness/measure/flags.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from results.compare.sides import Side
from results.stats.comparison import (
    FASTER,
    SLOWER,
    UNSURE,
    Comparison,
    is_beyond_disturbance,
)
from results.stats.verdict import MORE_RUNS

DISTURBED = frozenset(
    {"preempted", "throttled", "drifting", "bimodal", "tick-limited", "interpreted"}
)
"""Flags of interference: the error of the time may exceed its interval."""

MIN_DISTURBED_ROUNDS = 80
"""Rounds after which interference has affected both sides about equally: a process that takes a
core for some milliseconds at a time slowed one side down by 16 to 30 % more than the other in 20
rounds."""

ONE_SIDED = frozenset({"l2-suspect", "not-cold", "not-captured"})
"""On one side only, such a flag may explain a difference: cache and memory, or events and graph."""

LOST_TIME = frozenset({"preempted", "throttled"})
"""Flags of time that something other than the code took; rounds do not remove it from a ratio."""

INTERPRETED = "interpreted"
NOT_COMPARED = "not-compared"
NOT_FRESH = "not-fresh"

OF_THE_ROOF = frozenset({"above-roof", "doubtful-roof"})
"""On both sides, these flags do not affect the ratio: they are about the ceiling."""


def with_flags(
    compared: Comparison, baseline: Side, candidate: Side, is_paired: bool
) -> Comparison:
    """Return a comparison with the flags in its reason, UNSURE if a flag may explain the verdict.

    With `is_paired`, both sides share all interference, so FASTER and SLOWER hold after enough
    rounds; see also `judge_rounds`.
    """
    shared = OF_THE_ROOF.intersection(baseline.flags, candidate.flags)
    before = [flag for flag in baseline.flags if flag not in shared]
    after = [flag for flag in candidate.flags if flag not in shared]
    if not before and not after:
        return compared
    listed = _listed(before, after)
    if INTERPRETED in before + after:
        return compared.unsure(
            f", but {listed}: the time of an interpreter is not that of the kernel"
        )
    is_unverified = NOT_FRESH in before + after and compared.verdict == FASTER
    if is_unverified or NOT_COMPARED in before + after:
        return compared.unsure(f", but {listed}: whether both compute the same is unknown")
    is_decided = compared.verdict in (FASTER, SLOWER)
    if is_paired:
        are_disturbed = not DISTURBED.isdisjoint(before) and not DISTURBED.isdisjoint(after)
        is_open = is_decided and are_disturbed and _may_wait(compared, baseline, candidate)
        advice = f"{compared.pairs} rounds are too few"
    else:
        is_one_sided = not ONE_SIDED.isdisjoint(set(before) ^ set(after))
        is_disturbed = not DISTURBED.isdisjoint(before + after)
        is_open = compared.verdict != UNSURE and (is_one_sided or is_disturbed)
        advice = MORE_RUNS
    if is_open:
        return compared.unsure(f", but {listed}; {advice}")
    return replace(compared, reason=f"{compared.reason}; {listed}")


def _listed(baseline: Sequence[str], candidate: Sequence[str]) -> str:
    named = {
        "both are": [flag for flag in baseline if flag in candidate],
        "the baseline is": [flag for flag in baseline if flag not in candidate],
        "the candidate is": [flag for flag in candidate if flag not in baseline],
    }
    return "; ".join(f"{who} flagged {', '.join(flags)}" for who, flags in named.items() if flags)


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
