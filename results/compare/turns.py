"""Rounds that records share in `python -m bench compare`; interference during a round is in the
times of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from statistics import median

from results.compare.flags import LOST_TIME
from results.record import Record, Rounds
from results.stats.comparison import Comparison, judge_rounds


def rounds_of(record: Record) -> Rounds | None:
    """Return the rounds of a record; None if it was not interleaved or its samples do not match."""
    rounds = record.details_as(Rounds)
    samples = len(record.samples_s)
    return rounds if rounds and samples and not samples % rounds.samples_per_round else None


def round_times(record: Record) -> list[float]:
    """Return the median of each round, seconds; of each sample if it has no rounds."""
    rounds = rounds_of(record)
    size = rounds.samples_per_round if rounds else 1
    starts = range(0, len(record.samples_s), size)
    return [median(record.samples_s[start : start + size]) for start in starts]


def shared_rounds(
    baseline: Sequence[Record], candidate: Sequence[Record]
) -> tuple[list[Record], list[Record]] | None:
    """Return the records that share their rounds; None unless there is exactly one pair."""
    before = {_identity(record): record for record in baseline if rounds_of(record)}
    after = [record for record in candidate if _identity(record) in before]
    return ([before[_identity(after[0])]], after) if len(after) == 1 else None


def _identity(record: Record) -> object:
    """Return what is equal for records of the same rounds only."""
    rounds = rounds_of(record)
    if rounds is None:
        return None
    count = len(record.samples_s) // rounds.samples_per_round
    return rounds.names, rounds.seed, rounds.seconds, count


def compare_rounds(before: Record, after: Record, margin: float) -> Comparison:
    """Compare two records that share their rounds."""
    rounds = rounds_of(after)
    is_fixed = rounds is not None and rounds.is_fixed
    is_disturbed = not LOST_TIME.isdisjoint((*before.flags, *after.flags))
    return judge_rounds(round_times(before), round_times(after), margin, is_fixed, is_disturbed)


def cycles_ratio(before: Record, after: Record) -> float | None:
    """Return the ratio of the times in clock cycles; None if the clock of a round is unknown."""
    cycles = []
    for record in (before, after):
        rounds = rounds_of(record)
        times_s = round_times(record)
        clocks_hz = rounds.sm_clock_hz if rounds else None
        if not clocks_hz or len(clocks_hz) != len(times_s):
            return None
        cycles.append(list(map(mul, times_s, clocks_hz)))
    return judge_rounds(cycles[0], cycles[1], margin=0.0).ratio
