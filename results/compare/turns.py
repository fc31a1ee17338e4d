"""Records that took turns on the clock, as `python -m bench compare` keeps them: set beside each other round by round.

What the machine did meanwhile met both sides of a round. So nothing has to be allowed for drift, and the verdict is
the one that the live command gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from results.stats.comparison import TIME, Comparison, combine
from results.stats.samples import median
from results.stats.verdict import judge_rounds

if TYPE_CHECKING:
    from results.compare.load import Measured

INTERLEAVED = "interleaved"
"""Key of a record that took turns."""

Pairs = list[tuple["Measured", "Measured"]]
"""Records of baseline and candidate that shared their rounds, one pair for each process."""


class Turns(NamedTuple):
    """How the samples of one record lie among those of the others of its case."""

    samples_per_round: int
    is_fixed: bool
    """Whether the count of rounds was set beforehand."""
    rounds: tuple[Any, ...]
    """What is the same in all records of the same rounds, and in no others."""
    clocks_hz: tuple[float, ...] | None
    """SM clock of each round; None where it is not known."""


def turns_of(data: Mapping[str, Any], samples: int) -> Turns | None:
    """Return how a record took turns; None where it did not, or where what it keeps of that does not fit its samples.

    Args:
        data: the JSON object of its line.
        samples: how many samples it has.
    """
    found = data.get(INTERLEAVED)
    if not isinstance(found, dict):
        return None
    names, size, is_fixed = (found.get(name) for name in ("with", "samples_per_round", "is_fixed"))
    if not isinstance(names, list) or not isinstance(is_fixed, bool):
        return None
    if type(size) is not int or size < 1 or not samples or samples % size:
        return None
    clocks_hz = found.get("sm_clock_hz")
    is_known = isinstance(clocks_hz, list) and len(clocks_hz) == samples // size and all(map(_is_clock, clocks_hz))
    same = (*map(str, names), str(found.get("seed")), str(found.get("seconds")), samples // size)
    return Turns(size, is_fixed, same, tuple(clocks_hz) if is_known and clocks_hz else None)


def _is_clock(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12


def side_by_side(baseline: Sequence[Measured], candidate: Sequence[Measured]) -> Pairs:
    """Return the records of one case that took turns with each other; none where they were measured apart."""
    by_process = {one.process: one for one in baseline if one.turns}
    return [
        (by_process[one.process], one)
        for one in candidate
        if one.turns and one.process in by_process and _rounds(by_process[one.process]) == one.turns.rounds
    ]


def _rounds(one: Measured) -> tuple[Any, ...]:
    return one.turns.rounds if one.turns else ()


def compare_turns(pairs: Pairs, margin: float, factor: float = 1.0, quantity: str = TIME) -> Comparison:
    """Return the comparison of records that took turns, by the statistics of the live command.

    Args:
        pairs: as `side_by_side` returns them, at least one.
        margin: change of the time, as a fraction, that does not matter.
        factor: by what the ratio is to be multiplied: 2 where the candidate did half the work.
        quantity: what the reason speaks of, see `results.stats.comparison.judged`.
    """
    return _combined(pairs, margin, factor, quantity, in_cycles=False)


def cycles_ratio(pairs: Pairs) -> float | None:
    """Return the ratio of the times in clock cycles; None where the clock of a round is not known."""
    if any(one.turns is None or one.turns.clocks_hz is None for pair in pairs for one in pair):
        return None
    return _combined(pairs, 0.0, 1.0, TIME, in_cycles=True).ratio


def _combined(pairs: Pairs, margin: float, factor: float, quantity: str, in_cycles: bool) -> Comparison:
    results = []
    for baseline, candidate in pairs:
        assert candidate.turns is not None
        before, after = round_times(baseline, in_cycles), round_times(candidate, in_cycles)
        scaled = after if factor == 1 else [factor * time_s for time_s in after]
        results.append(judge_rounds(before, scaled, margin, candidate.turns.is_fixed, quantity))
    return combine(results, quantity)


def round_times(one: Measured, in_cycles: bool = False) -> list[float]:
    """Return one time for each round: the median of its samples, in seconds or in clock cycles."""
    import numpy as np

    assert one.turns is not None
    samples_s, size = np.frombuffer(one.samples).tolist(), one.turns.samples_per_round
    times = [median(samples_s[start : start + size]) for start in range(0, len(samples_s), size)]
    if not in_cycles:
        return times
    return [time_s * clock for time_s, clock in zip(times, one.turns.clocks_hz or (), strict=True)]
