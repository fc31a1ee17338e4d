"""A contender: a provider or a function that is compared with the others of its case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.harness.data.checks import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller
from bench.harness.timing import protocol, samplers
from bench.harness.timing.protocol import LIMITS, Sampler, Samples
from results.record import Record

T = TypeVar("T")


@dataclass(eq=False)
class Contender(ABC):
    """A provider or a function that is interleaved with the others of its case; `record` is set at the end."""

    blank: Record
    """The record before measuring."""
    index: int
    """Index in the case; the baseline is the first."""
    device: Device
    new_call: Callable[[int], samplers.Call] | None = None
    """Makes the call on a copy of the inputs again; None for calls so slow that memory placement is irrelevant."""
    move: Callable[[int], None] | None = None
    """Moves a copy of the inputs, which all contenders share, to other memory, for later calls of `new_call`."""
    calls: list[samplers.Call] = field(default_factory=list)
    """A call for each copy of the inputs."""
    cache: str = "cold"
    record: Record | None = None
    sampler: Sampler = field(init=False)
    call_s = 0.0
    """Rough time of a call."""
    min_s = 0.0
    """Time of the minimum number of calls in a comparison; 0 for short calls."""
    samples = 1
    """Samples per turn."""
    first = 0
    """Copy of the inputs of the next launch, modulo the number of copies."""

    @abstractmethod
    def prepare(self, earlier: Sequence[Contender]) -> None:
        """Verify the first result and make the calls, or set `record`; `earlier` contenders are prepared."""

    @abstractmethod
    def finish(self, samples: Samples) -> Record:
        """Verify the result again and return the record."""

    @abstractmethod
    def failed(self, error: BaseException) -> Record: ...

    def replay_check(self, first: int) -> ReplayCheck | None:
        """Return the check of a graph of the calls that starts with the copy `first`; None: no check."""
        return None

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step; an error, or SystemExit, ends only this contender's part."""
        result = None
        protocol.announce(self.index)
        try:
            result = step()
        except KeyboardInterrupt:  # ends the process while this contender is announced, so it is the culprit
            raise
        except BaseException as error:
            self.record = self.failed(error)
        protocol.announce(runs=False)
        return result

    def begin(self, first: int, poller: Poller) -> None:
        """Make the sampler, which starts with the copy `first`, and take a sample."""
        self.first = first
        calls = [*self.calls[first:], *self.calls[:first]]
        check, limits = self.replay_check(first), LIMITS[self.device.type]
        refusal = check.refusal if check else None
        self.sampler = samplers.make_sampler(calls, self.device, limits, refusal=refusal, reading=poller)
        self.call_s = self.sampler.sample() / self.sampler.launches_per_sample

    def slot(self) -> tuple[float, ...] | None:
        return self.attempt(self._turn)

    def _turn(self) -> tuple[float, ...]:
        if self.cache == "warm":  # the others have evicted its data from the cache
            self.calls[0]()
            self.device.synchronize()
        self.first += self.samples * self.sampler.launches_per_sample
        return tuple(self.sampler.sample() / self.sampler.launches_per_sample for _ in range(self.samples))


def running(contenders: Sequence[Contender]) -> list[Contender]:
    return [contender for contender in contenders if contender.record is None]
