"""What a comparison is to measure, and how: found to be possible before anything is measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from bench.harness.cli.session import Request
from bench.harness.compare.rounds import Share
from bench.harness.device.device import Device
from bench.harness.measure.plan import Settings, blank_record
from bench.harness.op import Case, Op
from bench.harness.op_file import is_own
from results.record import Record


@dataclass(frozen=True)
class Planned:
    """One case and the family of its op."""

    family: str
    op: Op
    case: Case

    @property
    def word(self) -> str:
        """How `--op` asks for the op."""
        return f"{self.family}:{self.op.name}" if is_own(self.family) else self.op.name


@dataclass(frozen=True)
class Conditions:
    """What is the same for all processes of a comparison: each field is the option of its name."""

    device: str | None
    threads: int | None
    gpu: str | None
    fill: str
    cache: str
    margin: float
    rounds: int | None
    budget: float | None
    timeout: float
    tolerance: float = 1.0

    @classmethod
    def of(cls, args: argparse.Namespace) -> Conditions:
        """Read the options of a command line."""
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Child:
    """What a process that measures one case is told by the command that started it, which shows what is found."""

    heartbeat: Path
    rows: int
    """Comparisons in the whole table."""
    deadline: float | None
    """Reading of `time.perf_counter` when the budget is spent."""
    case_deadline: float | None
    """Reading of it when this case is to end."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> Child | None:
        """Read the options of a command line; None where it is a user's."""
        if args.heartbeat is None:
            return None
        return cls(Path(args.heartbeat), args.table_rows, args.deadline, args.case_deadline)


@dataclass(frozen=True)
class ComparePlan:
    """What is to be compared."""

    request: Request
    conditions: Conditions
    settings: Settings
    cases: Sequence[Planned]
    providers: Sequence[str]
    """As they are loaded, the baseline first."""
    device: Device
    processes: int
    """How often all is measured, each time in new processes."""
    fail_on: str
    """Verdicts that exit with 1: `slower` or `unsure`."""
    child: Child | None = None
    deadline: float | None = None
    """Reading of `time.perf_counter` when the budget is spent, set as measuring begins; None: no budget."""

    @property
    def names(self) -> list[str]:
        """What each provider is called: one that is there again has a number."""
        return [
            name if name not in self.providers[:place] else f"{name}#{self.providers[: place + 1].count(name)}"
            for place, name in enumerate(self.providers)
        ]

    @property
    def is_elsewhere(self) -> bool:
        """Whether new processes measure: many of them, or one that a user's function may bring down."""
        from bench.harness.providers.registry import unavailable
        from bench.harness.providers.user_kernel import is_user_kernel

        foreign = [name for name in self.providers if is_user_kernel(name) and not unavailable(name, self.device)]
        return self.child is None and (self.processes > 1 or bool(foreign))

    def begun(self, now: float) -> ComparePlan:
        """Return the plan with its deadline, where measuring begins at a reading of `time.perf_counter`."""
        if self.child is not None:
            return replace(self, deadline=self.child.deadline)
        return replace(self, deadline=None if self.conditions.budget is None else now + self.conditions.budget)

    def share(self, cases_left: int) -> Share:
        """Return what the next case has of the whole, when so many are left, this one among them."""
        rows = self.child.rows if self.child else len(self.cases) * (len(self.providers) - 1) * self.processes
        return Share(rows, self.deadline, cases_left)

    def blanks(self, one: Planned) -> list[Record]:
        """Return for each provider the record of a case with nothing measured."""
        return [blank_record(one.op, one.case, name, self.settings) for name in self.names]
