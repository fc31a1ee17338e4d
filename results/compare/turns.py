"""Rounds that records share in `python -m bench compare`; interference during a round is in the
times of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from statistics import median
from typing import Any, NamedTuple

from results.compare.flags import LOST_TIME
from results.record import Record, Rounds
from results.stats.comparison import Comparison
from results.stats.verdict import judge_rounds


class RoundTimes(NamedTuple):
    """Times of a record's rounds, which it shares with the other providers of its case."""

    record: Record
    rounds: Rounds
    times_s: list[float]
    """Median of each round, seconds."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for records of the same rounds only."""
        return (*self.rounds.names, self.rounds.seed, self.rounds.seconds, len(self.times_s))

    @property
    def clocks_hz(self) -> tuple[float, ...] | None:
        """SM clock of each round; None if unknown."""
        clocks_hz = self.rounds.sm_clock_hz
        return clocks_hz if clocks_hz and len(clocks_hz) == len(self.times_s) else None


def rounds_of(record: Record) -> RoundTimes | None:
    """Return the rounds of a record; None if it was not interleaved or its samples do not match."""
    rounds = record.details_as(Rounds)
    samples_s = record.samples_s
    if not rounds or not samples_s or len(samples_s) % rounds.samples_per_round:
        return None
    starts = range(0, len(samples_s), rounds.samples_per_round)
    times_s = [median(samples_s[start : start + rounds.samples_per_round]) for start in starts]
    return RoundTimes(record, rounds, times_s)


def shared_rounds(
    baseline: Sequence[Record], candidate: Sequence[Record]
) -> tuple[RoundTimes, RoundTimes] | None:
    """Return the rounds that two records share; None unless there is exactly one pair."""
    before = {rounds.identity: rounds for rounds in map(rounds_of, baseline) if rounds}
    after = [rounds for rounds in map(rounds_of, candidate) if rounds and rounds.identity in before]
    return (before[after[0].identity], after[0]) if len(after) == 1 else None


def compare_rounds(before: RoundTimes, after: RoundTimes, margin: float) -> Comparison:
    is_disturbed = not LOST_TIME.isdisjoint((*before.record.flags, *after.record.flags))
    return judge_rounds(before.times_s, after.times_s, margin, after.rounds.is_fixed, is_disturbed)


def cycles_ratio(before: RoundTimes, after: RoundTimes) -> float | None:
    """Return the ratio of the times in clock cycles; None if the clock of a round is unknown."""
    if before.clocks_hz is None or after.clocks_hz is None:
        return None
    cycles = [list(map(mul, side.times_s, side.clocks_hz or ())) for side in (before, after)]
    return judge_rounds(cycles[0], cycles[1], margin=0.0).ratio
