"""Rounds that records share in `python -m bench compare`; interference during a round is in the
times of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from statistics import median
from typing import Any, NamedTuple

from results.compare.flags import LOST_TIME
from results.record import Record
from results.stats.comparison import Comparison
from results.stats.verdict import judge_rounds


class Rounds(NamedTuple):
    """Rounds of a record, interleaved with the other providers of its case."""

    record: Record
    times_s: list[float]
    """Median of each round, seconds."""
    is_fixed: bool
    """Whether the number of rounds was set beforehand."""
    identity: tuple[Any, ...]
    """Equal for records of the same rounds only."""
    clocks_hz: tuple[float, ...] | None
    """SM clock of each round; None if unknown."""
    seconds: float | None
    """Duration of all rounds; None if unknown."""


def rounds_of(record: Record) -> Rounds | None:
    """Return the rounds of a record; None if it was not interleaved or its samples do not match."""
    fields = record.interleaved
    samples_s = record.samples_s
    names = fields.get("with")
    size = fields.get("samples_per_round")
    is_fixed = fields.get("is_fixed")
    if not names or is_fixed is None or not size or not samples_s or len(samples_s) % size:
        return None
    times_s = [median(samples_s[start : start + size]) for start in range(0, len(samples_s), size)]
    clocks_hz = fields.get("sm_clock_hz")
    seconds = fields.get("seconds")
    identity = (*map(str, names), str(fields.get("seed")), str(seconds), len(times_s))
    clocks = tuple(clocks_hz) if clocks_hz and len(clocks_hz) == len(times_s) else None
    return Rounds(record, times_s, is_fixed, identity, clocks, seconds)


def shared_rounds(
    baseline: Sequence[Record], candidate: Sequence[Record]
) -> tuple[Rounds, Rounds] | None:
    """Return the rounds that two records share; None unless there is exactly one pair."""
    before = {rounds.identity: rounds for rounds in map(rounds_of, baseline) if rounds}
    after = [rounds for rounds in map(rounds_of, candidate) if rounds and rounds.identity in before]
    return (before[after[0].identity], after[0]) if len(after) == 1 else None


def compare_rounds(before: Rounds, after: Rounds, margin: float) -> Comparison:
    is_disturbed = not LOST_TIME.isdisjoint((*before.record.flags, *after.record.flags))
    return judge_rounds(before.times_s, after.times_s, margin, after.is_fixed, is_disturbed)


def cycles_ratio(before: Rounds, after: Rounds) -> float | None:
    """Return the ratio of the times in clock cycles; None if the clock of a round is unknown."""
    if before.clocks_hz is None or after.clocks_hz is None:
        return None
    cycles = [list(map(mul, side.times_s, side.clocks_hz or ())) for side in (before, after)]
    return judge_rounds(cycles[0], cycles[1], margin=0.0).ratio
