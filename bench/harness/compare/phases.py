"""Counts what the time of a compared case is spent on, and reports each phase as it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

STARTING, PREPARING, SETTLING, ROUNDS, CHECKING = NAMES = (
    "starting its process",
    "preparing and checking",
    "settling",
    "rounds",
    "checking again",
)


class Phases:
    """Counts the seconds of each phase of a case, one after the other."""

    def __init__(self, tell: Callable[[str], object] = lambda name: None) -> None:
        """Begin with nothing; `tell` is called with the name of each phase as it begins."""
        self._tell = tell
        self._name: str | None = None
        self._since = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def enter(self, name: str) -> None:
        """Begin a phase, which ends the one before."""
        now = time.perf_counter()
        if self._name is not None:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        if name != self._name:
            self._tell(name)
        self._name, self._since = name, now


def where_time_went(seconds: Mapping[str, float], case_s: float, has_own_process: bool) -> str:
    """Return what the time of a case was spent on, in words.

    Args:
        seconds: of each phase, as a record of the case holds them.
        case_s: of the whole case.
        has_own_process: whether what is in no phase is the start of a process.
    """
    rest_s = max(0.0, case_s - sum(seconds.values()))
    rest = f"{STARTING} and the rest" if has_own_process else "the rest"
    parts = {**seconds, rest: rest_s}
    return f"{case_s:.1f} s: " + ", ".join(f"{name} {part_s:.1f} s" for name, part_s in parts.items())
