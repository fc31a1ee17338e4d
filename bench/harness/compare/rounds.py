"""Rounds: all providers of one case in turn, in random order, again and again, until their verdicts are clear.

A disturbance of the machine, such as a drifting clock or another process, meets all of them alike, and a ratio within
one round does not show it. Nothing here knows a device, so that tests use a fake clock.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bench.harness.timing.protocol import no_garbage_collection
from results.compare.flags import LEAST_DISTURBED_ROUNDS
from results.stats.comparison import FASTER, LEAST_PAIRS, SAME, SLOWER, VERDICT_ERROR, Comparison
from results.stats.samples import drift, median, two_modes
from results.stats.verdict import judge_rounds

FIRST_LOOK = 20
"""Rounds before the first look: two blocks of ten make an interval of some use."""

LOOK_EVERY = 2
"""Factor by which the number of rounds grows until the next look: a much narrower interval."""

EXCHANGE_EVERY = 5
"""Rounds after which the contenders exchange what may favor one of them: often, because each exchange is one random
draw, but not so often that exchanging takes longer than the rounds."""

MOST_LOOKS = 10
MOST_ROUNDS = FIRST_LOOK * LOOK_EVERY ** (MOST_LOOKS - 1)
"""10,240: there the interval is a twentieth as wide as at the first look, and more rounds hardly make it narrower."""


class Contender(Protocol):
    """One provider of a case, ready to run."""

    def slot(self) -> Sequence[float]:
        """Run for one turn and return its samples, seconds per launch, at least one."""


@dataclass(frozen=True)
class ComparePolicy:
    """When the verdicts of a comparison are clear, and when its rounds end anyway."""

    margin: float
    """Largest change of the time, as a fraction, that does not matter."""
    budget_s: float = 10.0
    """Time of the rounds of a case after which no further one begins: some thousand rounds of two short kernels."""
    rounds: int | None = None
    """Exactly so many rounds and one look at the end; None: until the verdicts are clear."""
    seed: int = 0
    rows: int = 1
    """Comparisons in the whole table: a verdict must hold among so many."""
    deadline: float | None = None
    """Reading of the clock after which no further round begins, whatever time the preparation took; None: no such."""

    def of_case(self, index: int, cases: int, deadline: float | None, now: float) -> ComparePolicy:
        """Return the policy of a case that begins now and shares the time that is left with those after it.

        Args:
            index: of the case.
            cases: count of all cases.
            deadline: when the budget of the run is spent; None without one.
            now: reading of the same clock.
        """
        policy = replace(self, seed=self.seed + index)
        if deadline is None:
            return policy
        return replace(policy, budget_s=math.inf, deadline=now + max(0.0, deadline - now) / (cases - index))


@dataclass
class Rounds:
    """What was measured: of each contender, the baseline first, its samples and its clock, round by round."""

    slots: list[list[tuple[float, ...]]]
    clocks_hz: list[list[float | None]]
    """SM clock in each turn; None where it cannot be read."""
    errors: dict[int, BaseException] = field(default_factory=dict)
    """What a contender raised in its turn; it takes no part from there on."""
    seconds: float = 0.0
    is_clear: bool = False

    @property
    def count(self) -> int:
        """Rounds in which the baseline had its turn."""
        return len(self.slots[0])

    def running(self) -> list[int]:
        """Return the places of those that still take part."""
        return [place for place in range(len(self.slots)) if place not in self.errors]

    def comparison(self, place: int, policy: ComparePolicy) -> Comparison:
        """Return how the contender at a place stands to the baseline."""
        baseline, candidate = ([median(slot) for slot in self.slots[at][: len(self.slots[place])]] for at in (0, place))
        return judge_rounds(baseline, candidate, policy.margin, is_fixed=policy.rounds is not None)


def run_rounds(
    contenders: Sequence[Contender],
    policy: ComparePolicy,
    now: Callable[[], float] = time.perf_counter,
    clock_hz: Callable[[], float | None] = lambda: None,
    exchange: Callable[[], object] = lambda: None,
    is_disturbed: Callable[[], bool] = lambda: False,
) -> Rounds:
    """Let all contenders take turns until every verdict is clear, the time is over, or nothing is left to compare.

    Args:
        contenders: the baseline first.
        policy: margin, time and seed; its deadline is a reading of `now`.
        now: seconds of a clock that only runs forward.
        clock_hz: returns the SM clock of a turn, right after it.
        exchange: called before the first round and again and again: exchanges what may favor one of the contenders.
        is_disturbed: whether something took time from the rounds so far. Then a verdict takes more of them, as it does
            where the samples show it: two speeds, or a drift.
    """
    found = Rounds([[] for _ in contenders], [[] for _ in contenders])
    order, start, next_look = random.Random(policy.seed), now(), FIRST_LOOK
    with no_garbage_collection():
        while not found.is_clear and found.count < (policy.rounds or MOST_ROUNDS):
            places = found.running()
            if 0 in found.errors or len(places) < 2:
                break
            if found.count % EXCHANGE_EVERY == 0:
                exchange()
            for place in order.sample(places, len(places)):
                _take_turn(found, place, contenders[place], clock_hz)
            found.seconds = now() - start
            is_over = found.seconds >= policy.budget_s or (policy.deadline is not None and now() >= policy.deadline)
            if policy.rounds is None and found.count >= next_look:
                next_look *= LOOK_EVERY
                found.is_clear = _are_clear(found, policy) and (
                    found.count >= LEAST_DISTURBED_ROUNDS or not (is_disturbed() or _look_disturbed(found))
                )
            if is_over and found.count >= LEAST_PAIRS:
                break
    found.is_clear = _are_clear(found, policy)
    return found


def _take_turn(found: Rounds, place: int, contender: Contender, clock_hz: Callable[[], float | None]) -> None:
    """Keep the samples of one turn, or what went wrong in it."""
    try:
        samples_s = tuple(contender.slot())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a provider may raise anything, also what is to end the process; the others go on
        found.errors[place] = error
        return
    found.slots[place].append(samples_s)
    found.clocks_hz[place].append(clock_hz())


def _look_disturbed(found: Rounds) -> bool:
    """Return whether the samples of a contender have two speeds, or become slower or faster."""
    sides = [[sample for slot in found.slots[place] for sample in slot] for place in found.running()]
    return any(two_modes(samples_s) is not None or drift(samples_s) is not None for samples_s in sides)


def _are_clear(found: Rounds, policy: ComparePolicy) -> bool:
    """Return whether no verdict would change by going on: each is SAME, or holds among all rows of the table."""
    places = [place for place in found.running() if place]
    if not places or 0 in found.errors or not found.count:
        return False
    compared = [found.comparison(place, policy) for place in places]
    return all(
        row.verdict == SAME or (row.verdict in (FASTER, SLOWER) and row.p_value <= VERDICT_ERROR / policy.rows)
        for row in compared
    )
