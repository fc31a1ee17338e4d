"""What a comparison is to measure, and how: found to be possible before anything is measured."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.compare.rounds import Rule
from bench.harness.device.device import Device
from bench.harness.measure.rows import Settings, blank_record
from bench.harness.op import Case, Op
from results.record import Record

CASE_S = 10.0
"""Time of the rounds of one case if no budget is given: some thousand rounds of two short kernels."""


@dataclass(frozen=True)
class Planned:
    """One case and the family of its op."""

    family: str
    op: Op
    case: Case


@dataclass(frozen=True)
class ComparePlan:
    """What is to be compared."""

    args: argparse.Namespace
    """The options of the command."""
    settings: Settings
    cases: Sequence[Planned]
    providers: Sequence[str]
    """As they are loaded, the baseline first."""
    device: Device
    margin: float
    rounds: int | None
    """Of each case; None: until its verdicts are clear."""
    timeout_s: float
    """Longest call of a user's function."""
    fail_on: str
    """Verdicts that exit with 1: `slower` or `unsure`."""

    @property
    def names(self) -> list[str]:
        """What each provider is called: one that is there again has a number."""
        return [
            name if name not in self.providers[:place] else f"{name}#{self.providers[: place + 1].count(name)}"
            for place, name in enumerate(self.providers)
        ]

    @property
    def is_isolated(self) -> bool:
        """Whether each case is measured in a new process, which a user's function may bring down."""
        from bench.harness.providers.registry import unavailable
        from bench.harness.providers.user_kernel import is_user_kernel

        return any(is_user_kernel(name) and not unavailable(name, self.device) for name in self.providers)

    def rule(self, place: int, deadline: float | None, now: float) -> Rule:
        """Return when the rounds of a case end, which begins now and shares the time that is left with those after it.

        Args:
            place: of the case among all.
            deadline: when the budget is spent; None without one.
            now: reading of the same clock.
        """
        rows, seed = len(self.cases) * (len(self.providers) - 1), self.settings.seed + place
        if deadline is None:
            return Rule(self.margin, rows, CASE_S, seed, self.rounds)
        until = now + max(0.0, deadline - now) / (len(self.cases) - place)
        return Rule(self.margin, rows, math.inf, seed, self.rounds, until)

    def blanks(self, one: Planned) -> list[Record]:
        """Return for each provider the record of a case with nothing measured."""
        return [blank_record(one.op, one.case, name, self.settings) for name in self.names]
