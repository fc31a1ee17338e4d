"""The rounds that a record shared with others in `python -m bench compare`.

A disturbance of the machine during a round is in the times of both, so no allowance for drift is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from results.record import Record
from results.stats.comparison import Comparison
from results.stats.verdict import judge_rounds

Pair = tuple[Record, Record]
"""A record of the baseline and one of the candidate that shared their rounds."""


class Interleaving(NamedTuple):
    """How the samples of one record and those of the other providers of its case were interleaved."""

    samples_per_round: int
    is_fixed: bool
    """Whether the number of rounds was set beforehand."""
    rounds: tuple[Any, ...]
    """The same in all records of the same rounds, and in no others."""
    clocks_hz: tuple[float, ...] | None
    """SM clock of each round; None if unknown."""
    seconds: float | None
    """Duration of all rounds; None if unknown."""


def turns_of(record: Record) -> Interleaving | None:
    """Return how a record was interleaved with others; None if it was not, or if that does not fit its samples."""
    found = record.interleaved
    names, size, is_fixed = (found.get(name) for name in ("with", "samples_per_round", "is_fixed"))
    if not isinstance(names, list) or not isinstance(is_fixed, bool):
        return None
    samples = len(record.samples_s)
    if type(size) is not int or size < 1 or not samples or samples % size:
        return None
    clocks_hz, seconds = found.get("sm_clock_hz"), found.get("seconds")
    same = (*map(str, names), str(found.get("seed")), str(seconds), samples // size)
    clocks = tuple(clocks_hz) if clocks_hz and len(clocks_hz) == samples // size else None
    return Interleaving(size, is_fixed, same, clocks, seconds)


def side_by_side(baseline: Sequence[Record], candidate: Sequence[Record]) -> Pair | None:
    """Return the two records of one case that were interleaved; None if none were, or several."""
    by_rounds = {turns.rounds: one for one in baseline if (turns := turns_of(one))}
    found = [
        (by_rounds[turns.rounds], one) for one in candidate if (turns := turns_of(one)) if turns.rounds in by_rounds
    ]
    return found[0] if len(found) == 1 else None


def compare_turns(pair: Pair, margin: float) -> Comparison:
    """Return the comparison of two records that were interleaved; `margin` is a fraction."""
    (before, after), turns = map(round_times, pair), turns_of(pair[1])
    return judge_rounds(before, after, margin, turns is not None and turns.is_fixed)


def cycles_ratio(pair: Pair) -> float | None:
    """Return the ratio of the times in clock cycles; None if the clock of a round is unknown."""
    sides = []
    for record in pair:
        turns = turns_of(record)
        if turns is None or turns.clocks_hz is None:
            return None
        sides.append([time_s * hz for time_s, hz in zip(round_times(record), turns.clocks_hz, strict=True)])
    return judge_rounds(sides[0], sides[1], margin=0.0).ratio


def round_times(record: Record) -> list[float]:
    """Return one time for each round: the median of its samples, seconds.

    Raises:
        ValueError: the record was not interleaved.
    """
    turns = turns_of(record)
    if turns is None:
        raise ValueError(f"{record.provider} was not interleaved with others")
    samples_s, size = record.samples_s, turns.samples_per_round
    return [median(samples_s[start : start + size]) for start in range(0, len(samples_s), size)]
