"""Heartbeat of a measuring process: which provider's code is running, and a counter of its calls.

A user's function may never return, or end its process. Where the counter stands still for longer than a call may take,
the command kills the process; the provider that ran last is the one that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence, Sequence

from bench.harness.timing.protocol import Sampler

NOBODY = 255
"""In the place of a provider's number: the measuring code itself is at work."""

POLL_S = 0.05
"""Time between two looks at a heartbeat: seldom enough not to disturb the measurement."""

OWN_TIMEOUT_S = 600.0
"""For what the measuring code does itself between two calls: filling gigabytes, and checking them in fp64."""

SLOW_CALL_S = 0.01
"""From here on each call is announced; it costs some tenths of a microsecond."""

PROBES = 3

Call = Callable[[], object]
Announce = Callable[[], object]


class Heartbeat:
    """Which provider is running and how many calls have begun, in two bytes of memory that two processes share."""

    def __init__(self, memory: MutableSequence[int]) -> None:
        """Share `memory`."""
        self._shared = memory

    def announce(self, place: int = 0) -> None:
        """Say that a call of the provider at a place begins."""
        self._shared[0] = min(place, NOBODY)
        self._shared[1] = (self._shared[1] + 1) % 256

    def rest(self) -> None:
        """Say that the measuring code itself is at work."""
        self.announce(NOBODY)

    def read(self) -> list[int]:
        """Return the state, which changes with each call."""
        return list(self._shared)

    @property
    def place(self) -> int | None:
        """The provider whose code is running; None if it is the measuring code itself."""
        return None if self._shared[0] == NOBODY else self._shared[0]


class Watchdog:
    """Notices that a call takes too long."""

    def __init__(self, heartbeat: Heartbeat, timeout_s: float, what: str = "a call") -> None:
        """Watch the heartbeat of another process, in which `what` may take `timeout_s` seconds."""
        self._heartbeat, self._timeout_s, self._what = heartbeat, timeout_s, what
        self._state, self._since = heartbeat.read(), time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing was announced for longer than a call may take; to be asked every `POLL_S`."""
        now = time.monotonic()
        if (state := self._heartbeat.read()) != self._state:
            self._state, self._since = state, now
        allowed_s = self._timeout_s if self._heartbeat.place is not None else max(self._timeout_s, OWN_TIMEOUT_S)
        return now - self._since > allowed_s

    @property
    def reason(self) -> str:
        """What to say of a call that took too long."""
        return f"{self._what} did not end within {self._timeout_s:.3g} s; --timeout allows more"


class AnnouncedSampler:
    """A sampler that announces each of its samples, outside of what is timed."""

    def __init__(self, sampler: Sampler, announce: Announce) -> None:
        """Announce the samples of `sampler`."""
        self._sampler, self._announce = sampler, announce
        self.method, self.launches_per_sample = sampler.method, sampler.launches_per_sample
        self.why_no_graph = sampler.why_no_graph

    def sample(self) -> float:
        """Return the duration of one sample, seconds."""
        self._announce()
        return self._sampler.sample()


def announced(calls: Sequence[Call], announce: Announce, synchronize: Callable[[], None]) -> Sequence[Call]:
    """Return calls of which each is announced before it begins, where they are slow; the same where they are fast."""
    least_s = float("inf")
    for _ in range(PROBES):  # the least: one that was interrupted does not make them slow
        announce()
        start = time.perf_counter()
        calls[0]()
        synchronize()
        least_s = min(least_s, time.perf_counter() - start)
        if least_s < SLOW_CALL_S:
            return calls

    def with_announcement(call: Call) -> Call:
        def announced_call() -> object:
            announce()
            return call()

        return announced_call

    return [with_announcement(call) for call in calls]
