"""Functions that are called with the same arguments: what a worker does before they are timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from bench.comparing.contender import Within
from bench.harness import worker
from bench.harness.data.agreement import Fn
from bench.harness.data.torch_settings import settings_kept
from bench.harness.measure.flags import Flag, of_settings
from bench.harness.op import UsageError
from bench.harness.settings import Settings
from bench.harness.timing import protocol
from bench.profiling.target import guarded_call
from results.record import Object, Record

Functions = dict[str, Fn]
"""Functions by name, the baseline first."""


@dataclass(kw_only=True)
class Case(ABC):
    """Functions of files, solutions of a problem, or an operation and a function in its place."""

    settings: Settings
    dtype: str
    """Dtype of records if no torch operation computes anything."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its records."""
    hashes: Mapping[str, str | None] = field(default_factory=dict)
    """SHA-256 of the source of each function."""
    device: str = "meta"
    """Device in torch's spelling, which a worker sets; on `meta` tensors have no values."""
    make: Callable[[], Any] | None = None
    """Makes new arguments, once the functions are loaded."""
    flags: dict[str, tuple[Flag, ...]] = field(default_factory=dict)
    """What is known of functions once they are loaded."""
    within: dict[str, Within] = field(default_factory=dict)
    """The context of the turns of a function."""

    @abstractmethod
    def functions(self, names: Sequence[str]) -> Functions:
        """Return the named functions, the baseline first, as `loaded` does."""

    @abstractmethod
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of a call, once the functions are loaded."""

    def judged(self, records: list[Record], earlier: Sequence[Record]) -> list[Record]:
        """Return the records of the case, judged with those of earlier cases."""
        return records

    def work(self, arguments: Sequence[Any]) -> Object:
        """Return declared FLOPs and bytes of a call."""
        return {}

    def loaded(self, names: Sequence[str], load: Callable[[str], Any]) -> Functions:
        """Return what `load` returns for each name, the baseline first; it may run a user's code.

        A function that cannot be loaded raises why when it is called. Settings of torch that
        `load` changes are put back.

        Raises:
            UsageError: the baseline cannot be loaded.
        """
        functions = {}
        for index, name in enumerate(names):
            protocol.announce(index)
            try:
                with guarded_call(name), settings_kept() as changed:
                    functions[name] = load(name)
            except UsageError as error:
                if index == 0:
                    raise
                functions[name] = partial(refuse, str(error))
            worker.end_with_parent()
            known = self.flags.get(name, ())
            self.flags[name] = known + of_settings(changed, "importing the file")
        protocol.announce(runs=False)
        return functions


def refuse(reason: str, *_: Any) -> NoReturn:
    raise UsageError(reason)
