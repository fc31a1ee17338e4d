"""Records that were interleaved, as `python -m bench compare` makes them: compared round by round.

Whatever the machine did during a round is in both times, so that no allowance for drift is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from results.compare.load import turns_of
from results.record import Record
from results.stats.comparison import Comparison
from results.stats.samples import median
from results.stats.verdict import judge_rounds

Pair = tuple[Record, Record]
"""A record of the baseline and one of the candidate that shared their rounds."""


def side_by_side(baseline: Sequence[Record], candidate: Sequence[Record]) -> Pair | None:
    """Return the two records of one case that were interleaved; None if none were, or several."""
    by_rounds = {turns.rounds: one for one in baseline if (turns := turns_of(one))}
    found = [
        (by_rounds[turns.rounds], one) for one in candidate if (turns := turns_of(one)) if turns.rounds in by_rounds
    ]
    return found[0] if len(found) == 1 else None


def compare_turns(pair: Pair, margin: float, in_cycles: bool = False) -> Comparison:
    """Return the comparison of two records that were interleaved.

    Args:
        pair: as `side_by_side` returns it.
        margin: change of the time, as a fraction, that does not matter.
        in_cycles: whether to compare clock cycles instead of seconds.
    """
    before, after = (round_times(one, in_cycles) for one in pair)
    turns = turns_of(pair[1])
    return judge_rounds(before, after, margin, turns is not None and turns.is_fixed)


def compare_cycles(pair: Pair, margin: float) -> Comparison | None:
    """Return the comparison in clock cycles; None if the clock of a round is unknown."""
    clocks = [turns.clocks_hz for one in pair if (turns := turns_of(one))]
    return None if None in clocks else compare_turns(pair, margin, in_cycles=True)


def round_times(record: Record, in_cycles: bool = False) -> list[float]:
    """Return one time for each round: the median of its samples, in seconds or in clock cycles.

    Raises:
        ValueError: the record was not interleaved.
    """
    turns = turns_of(record)
    if turns is None:
        raise ValueError(f"{record.provider} was not interleaved with others")
    samples_s, size = record.samples_s, turns.samples_per_round
    times = [median(samples_s[start : start + size]) for start in range(0, len(samples_s), size)]
    if not in_cycles:
        return times
    return [time_s * clock for time_s, clock in zip(times, turns.clocks_hz or (), strict=True)]
