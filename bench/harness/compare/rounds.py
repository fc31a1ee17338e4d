"""Rounds: all contenders of one case in turn, in random order, again and again, until their verdicts are clear.

A disturbance of the machine, such as a drifting clock or another process, affects all of them alike, and a ratio within
one round does not show it. Nothing here knows a device, so that tests use a fake clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.harness.timing.protocol import no_garbage_collection
from results.compare.flags import LEAST_DISTURBED_ROUNDS
from results.stats.comparison import FASTER, LEAST_PAIRS, MAX_ROUNDS, SAME, SLOWER, VERDICT_ERROR, Comparison
from results.stats.samples import drift, median, two_modes
from results.stats.verdict import judge_rounds

FIRST_LOOK = 20
"""Rounds before the first look: two blocks of ten make an interval of some use."""

LOOK_EVERY = 2
"""Factor by which the number of rounds grows until the next look: a much narrower interval."""

EXCHANGE_EVERY = 5
"""Rounds after which the contenders exchange what may favor one of them: often, because each exchange is one random
draw, but not so often that exchanging takes longer than the rounds."""


Turn = Callable[[], tuple[float, ...] | None]
"""Runs a contender for one turn: its samples, seconds per launch; None if it failed and takes no part from now."""


@dataclass(frozen=True)
class ComparePolicy:
    """When the verdicts of a comparison are clear, and when its rounds end anyway."""

    margin: float
    """Largest change of the time, as a fraction, that does not matter."""
    budget_s: float = 10.0
    """Time of the rounds of a case after which no further one begins: some thousand rounds of two short kernels."""
    rounds: int | None = None
    """Number of rounds, with one look at the end; None: until the verdicts are clear."""
    seed: int = 0
    rows: int = 1
    """Comparisons in the whole table: a verdict must hold among that many."""
    deadline: float | None = None
    """Reading of `time.perf_counter` after which no further round begins, however long the preparation took."""

    def of_case(self, index: int, cases: int, deadline: float | None, now: float) -> ComparePolicy:
        """Return the policy of case `index`, which shares the time until the run's deadline with those after it."""
        policy = replace(self, seed=self.seed + index)
        if deadline is None:
            return policy
        return replace(policy, budget_s=math.inf, deadline=now + max(0.0, deadline - now) / (cases - index))


@dataclass
class Rounds:
    """The samples and the clock of each contender, the baseline first, round by round."""

    slots: list[list[tuple[float, ...]]]
    clocks_hz: list[list[float | None]]
    """SM clock in each turn; None if it cannot be read."""
    failed: set[int] = field(default_factory=set)
    seconds: float = 0.0
    is_clear: bool = False

    @property
    def count(self) -> int:
        return len(self.slots[0])

    def running(self) -> list[int]:
        """Return the indices of the contenders that still take part; none without the baseline."""
        return [] if 0 in self.failed else [index for index in range(len(self.slots)) if index not in self.failed]

    def comparison(self, index: int, policy: ComparePolicy) -> Comparison:
        count = len(self.slots[index])
        baseline, candidate = ([median(slot) for slot in self.slots[side][:count]] for side in (0, index))
        return judge_rounds(baseline, candidate, policy.margin, is_fixed=policy.rounds is not None)

    def are_clear(self, policy: ComparePolicy) -> bool:
        """Return whether no verdict would change by going on: each is SAME, or holds among all rows of the table."""
        candidates = self.running()[1:] if self.count else []
        compared = [self.comparison(index, policy) for index in candidates]
        return bool(compared) and all(
            row.verdict == SAME or (row.verdict in (FASTER, SLOWER) and row.p_value <= VERDICT_ERROR / policy.rows)
            for row in compared
        )

    def look_disturbed(self) -> bool:
        sides = [[sample for slot in self.slots[index] for sample in slot] for index in self.running()]
        return any(two_modes(samples_s) is not None or drift(samples_s) is not None for samples_s in sides)


def run_rounds(
    turns: Sequence[Turn],
    policy: ComparePolicy,
    now: Callable[[], float] = time.perf_counter,
    clock_hz: Callable[[], float | None] = lambda: None,
    exchange: Callable[[], object] = lambda: None,
    is_disturbed: Callable[[], bool] = lambda: False,
) -> Rounds:
    """Let all contenders take turns until every verdict is clear, the time is over, or nothing is left to compare.

    Args:
        turns: of each contender, the baseline first.
        policy: margin, time and seed; its deadline is a reading of `now`.
        now: seconds of a clock that only runs forward.
        clock_hz: returns the SM clock of a turn, right after it.
        exchange: called before the first round and again and again: exchanges what may favor one of the contenders.
        is_disturbed: whether something took time from the rounds so far. Then a verdict takes more of them, as it does
            if the samples show it: two speeds, or a drift.
    """
    rounds = Rounds([[] for _ in turns], [[] for _ in turns])
    order, start, next_look = random.Random(policy.seed), now(), FIRST_LOOK
    with no_garbage_collection():
        while not rounds.is_clear and rounds.count < (policy.rounds or MAX_ROUNDS):
            running = rounds.running()
            if len(running) < 2:
                break
            if rounds.count % EXCHANGE_EVERY == 0:
                exchange()
            for index in order.sample(running, len(running)):
                samples_s = turns[index]()
                if samples_s is None:
                    rounds.failed.add(index)
                    continue
                rounds.slots[index].append(samples_s)
                rounds.clocks_hz[index].append(clock_hz())
            rounds.seconds = now() - start
            is_over = rounds.seconds >= policy.budget_s or (policy.deadline is not None and now() >= policy.deadline)
            if policy.rounds is None and rounds.count >= next_look:
                next_look *= LOOK_EVERY
                rounds.is_clear = rounds.are_clear(policy) and (
                    rounds.count >= LEAST_DISTURBED_ROUNDS or not (is_disturbed() or rounds.look_disturbed())
                )
            if is_over and rounds.count >= LEAST_PAIRS:
                break
    rounds.is_clear = rounds.are_clear(policy)
    return rounds
