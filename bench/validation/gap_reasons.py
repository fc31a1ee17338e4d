"""Why another clock differs from ours: a ladder from our way of timing to theirs, changed in one thing a rung.

Every rung is timed in every round, so that the steps between rungs add up to the whole gap. A step that is large
enough, and certain by the scatter of the rounds, is a reason; what no such step covers stays unexplained.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from results.stats.samples import median, student_t_975

TOLERANCE = 0.02
"""A ratio within 2 % of 1 needs no reason."""

LEAST_STEP = 0.005
"""A step below half a percent is below what our own samples aim at, and is no reason."""

LEAST_SHARE = 0.2
"""A step must be this share of the gap to be named."""

LEAST_ROUNDS = 3
"""Fewer rounds tell nothing about how far they scatter."""

CLOCK_SHARE = (0.5, 2.0)
"""A change of the SM clock stands for a step where it is between half and twice as large, with the same sign."""

Round = Mapping[str, float]
"""Seconds of a launch, by the name of the way in which it was timed."""


@dataclass(frozen=True)
class Rung:
    """One way of timing, and what it changes against the rung before."""

    way: str
    change: str | None
    """None: nothing that is known, so that a difference is unexplained."""


@dataclass(frozen=True)
class Step:
    """From one rung to the next."""

    way: str
    change: str | None
    log_ratio: float
    """Median over the rounds of log(this rung / the one before)."""
    is_steady: bool
    """Whether the scatter of the rounds leaves no doubt that it is there."""


@dataclass(frozen=True)
class Explanation:
    """What one other clock says against one of ours, and why."""

    ours: str
    theirs: str
    ratio: float
    """Theirs over ours, median over the rounds."""
    low: float
    high: float
    """The least and the largest ratio of a round."""
    rounds: int
    verdict: str
    """`same` (within the tolerance), `explained`, `partly`, or `unexplained`."""
    reasons: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What was measured beside the times, by way; a way that is missing was not looked at."""

    clock_hz: Mapping[str, float] = field(default_factory=dict)
    """Median SM clock while it ran."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What its change rests on, in words and numbers."""
    scatter: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Values in one round, and the standard error of their mean as a fraction of it."""
    disturbance: str | None = None
    """What else was going on, where it can move times."""


def explain(ours: str, ladder: Sequence[Rung], rounds: Sequence[Round], evidence: Evidence) -> Explanation | None:
    """Return what the last rung of a ladder says against our own time, and the reasons; None where one has no time.

    Args:
        ours: the way that the ladder starts from.
        ladder: the rungs above it, the last one being the other clock.
        rounds: the times of each round; rungs that no round has are passed over.
        evidence: what else was measured.
    """
    theirs = ladder[-1].way
    complete = [one for one in rounds if is_time(one.get(ours)) and is_time(one.get(theirs))]
    if not complete:
        return None
    ratios = [one[theirs] / one[ours] for one in complete]
    gap = median([math.log(ratio) for ratio in ratios])
    found: dict[str, Any] = {"ours": ours, "theirs": theirs, "ratio": math.exp(gap)}
    found |= {"low": min(ratios), "high": max(ratios), "rounds": len(ratios)}
    if abs(math.exp(gap) - 1) <= TOLERANCE:
        return Explanation(**found, verdict="same")
    if not is_certain([math.log(ratio) for ratio in ratios]):
        return Explanation(**found, verdict="unexplained", reasons=(_disagreement(theirs, evidence),))
    steps = _steps(ours, ladder, complete)
    reasons, rest = [], gap
    before = ours
    for step in steps:
        text = _reason(step, before, gap, evidence)
        if text is not None:
            reasons.append(text)
            rest -= step.log_ratio
        before = step.way
    scatter = evidence.scatter.get(theirs)
    if abs(rest) > TOLERANCE and scatter is not None and abs(rest) <= 2 * scatter[1]:
        reasons.append(f"{percent(rest)} too few repetitions: {scatter[0]} values, ±{scatter[1]:.1%} on their mean")
        rest = 0.0
    if not reasons:
        return Explanation(**found, verdict="unexplained", reasons=("unexplained",), steps=steps)
    if abs(rest) > TOLERANCE:
        reasons.append(f"{percent(rest)} unexplained")
        return Explanation(**found, verdict="partly", reasons=tuple(reasons), steps=steps)
    return Explanation(**found, verdict="explained", reasons=tuple(reasons), steps=steps)


def is_time(value: float | None) -> TypeGuard[float]:
    """Return whether a value can be seconds of a launch."""
    return value is not None and math.isfinite(value) and value > 0


def is_certain(logs: Sequence[float]) -> bool:
    """Return whether the 95 % interval of the mean of some differences leaves 0 out: Student's, one value a round."""
    if len(logs) < LEAST_ROUNDS:
        return False
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return abs(statistics.fmean(logs)) > student_t_975(len(logs) - 1) * error


def percent(log_ratio: float) -> str:
    """Return a step as a signed percentage, from a factor of two on as a factor."""
    return f"x{math.exp(log_ratio):.3g}" if abs(log_ratio) >= math.log(2) else f"{math.expm1(log_ratio):+.1%}"


def _steps(ours: str, ladder: Sequence[Rung], rounds: Sequence[Round]) -> tuple[Step, ...]:
    """Return the steps between the rungs that all rounds have; a rung without times hands its change to the next."""
    steps, before, pending = [], ours, []
    for rung in ladder:
        pending.append(rung.change)
        if not all(is_time(one.get(rung.way)) for one in rounds):
            continue
        logs = [math.log(one[rung.way] / one[before]) for one in rounds]
        # Where one of several changes at once is not known, the step cannot be told apart.
        change = None if None in pending else " or ".join(str(text) for text in pending)
        steps.append(Step(rung.way, change, median(logs), is_certain(logs)))
        before, pending = rung.way, []
    return tuple(steps)


def _reason(step: Step, before: str, gap: float, evidence: Evidence) -> str | None:
    """Return a step in words where it is one of the reasons, else None."""
    if not step.is_steady or abs(step.log_ratio) < max(LEAST_STEP, LEAST_SHARE * abs(gap)):
        return None
    clock = _clock_change(step, before, evidence)
    if clock is not None:
        return f"{percent(step.log_ratio)} {clock}" + (f" ({step.change})" if step.change else "")
    if step.change is None:
        return None
    note = evidence.notes.get(step.way)
    return f"{percent(step.log_ratio)} {step.change}" + (f" ({note})" if note else "")


def _clock_change(step: Step, before: str, evidence: Evidence) -> str | None:
    """Return the change of the SM clock where it stands for a step, else None."""
    first, second = evidence.clock_hz.get(before), evidence.clock_hz.get(step.way)
    if not (is_time(first) and is_time(second)):
        return None
    expected = math.log(first / second)
    if not CLOCK_SHARE[0] <= expected / step.log_ratio <= CLOCK_SHARE[1]:
        return None
    return f"SM clock {first / 1e6:.0f} -> {second / 1e6:.0f} MHz"


def _disagreement(theirs: str, evidence: Evidence) -> str:
    """Return that the rounds do not agree, with how few repetitions they had and what disturbed them."""
    said = ["unexplained: the rounds disagree"]
    if theirs in evidence.scatter:
        count, error = evidence.scatter[theirs]
        said.append(f"{count} values each, ±{error:.1%} on their mean")
    if evidence.disturbance:
        said.append(evidence.disturbance)
    return ", ".join(said)
