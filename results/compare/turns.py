"""Records that took turns on the clock, as `python -m bench compare` makes them: set beside each other round by round.

What the machine did meanwhile met both sides of a round. So nothing has to be allowed for drift.
"""

from __future__ import annotations

from collections.abc import Sequence

from results.compare.load import Measured
from results.stats.comparison import TIME, Comparison, combine
from results.stats.samples import median
from results.stats.verdict import judge_rounds

Pairs = list[tuple[Measured, Measured]]
"""Records of baseline and candidate that shared their rounds, one pair for each process."""


def side_by_side(baseline: Sequence[Measured], candidate: Sequence[Measured]) -> Pairs:
    """Return the records of one case that took turns with each other; none where they were measured apart."""
    by_rounds = {(one.process, one.turns.rounds): one for one in baseline if one.turns}
    found = [(by_rounds.get((one.process, one.turns.rounds)), one) for one in candidate if one.turns]
    return [(other, one) for other, one in found if other]


def compare_turns(
    pairs: Pairs, margin: float, factor: float = 1.0, quantity: str = TIME, in_cycles: bool = False
) -> Comparison:
    """Return the comparison of records that took turns; of several processes, the spread between them counts too.

    Args:
        pairs: as `side_by_side` returns them, at least one.
        margin: change of the time, as a fraction, that does not matter.
        factor: by what the ratio is to be multiplied: 2 where the candidate did half the work.
        quantity: what the reason speaks of, see `results.stats.comparison.judged`.
        in_cycles: whether to compare clock cycles instead of seconds.
    """
    results = []
    for baseline, candidate in pairs:
        assert candidate.turns is not None
        before, after = round_times(baseline, in_cycles), round_times(candidate, in_cycles)
        scaled = after if factor == 1 else [factor * time_s for time_s in after]
        results.append(judge_rounds(before, scaled, margin, candidate.turns.is_fixed, quantity))
    return combine(results, quantity)


def compare_cycles(pairs: Pairs, margin: float) -> Comparison | None:
    """Return the comparison in clock cycles; None where the clock of a round is not known."""
    if any(one.turns is None or one.turns.clocks_hz is None for pair in pairs for one in pair):
        return None
    return compare_turns(pairs, margin, in_cycles=True)


def round_times(one: Measured, in_cycles: bool = False) -> list[float]:
    """Return one time for each round: the median of its samples, in seconds or in clock cycles."""
    import numpy as np

    assert one.turns is not None
    samples_s, size = np.frombuffer(one.samples).tolist(), one.turns.samples_per_round
    times = [median(samples_s[start : start + size]) for start in range(0, len(samples_s), size)]
    if not in_cycles:
        return times
    return [time_s * clock for time_s, clock in zip(times, one.turns.clocks_hz or (), strict=True)]
