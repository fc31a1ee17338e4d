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
    """A provider or a function that is timed in turns with the others of its case; `record` is set when it ends."""

    blank: Record
    """With nothing measured."""
    index: int
    """In the case; the baseline is the first."""
    device: Device
    new_call: Callable[[int], samplers.Call] | None = None
    """Makes the call on a copy of the inputs again; None for calls so slow that the memory of objects is irrelevant."""
    move: Callable[[int], None] | None = None
    """Moves a copy of the inputs, which all contenders share, to other memory; `new_call` makes calls that use it."""
    calls: list[samplers.Call] = field(default_factory=list)
    """A call for each copy of the inputs."""
    cache: str = "cold"
    record: Record | None = None
    sampler: Sampler = field(init=False)
    call_s = 0.0
    """Rough seconds of a call."""
    least_s = 0.0
    """Time of the fewest calls that a comparison makes; 0 for short calls."""
    samples = 1
    """Samples in a turn."""
    first = 0
    """Copy of the inputs that the next launch works on; the count of launches may run past the last copy."""

    @abstractmethod
    def prepare(self, earlier: Sequence[Contender]) -> None:
        """Verify the first result and make the calls, or set `record`; `earlier` are those that are prepared."""

    @abstractmethod
    def finish(self, samples: Samples) -> Record:
        """Verify the result again and return the record."""

    @abstractmethod
    def failed(self, error: BaseException) -> Record: ...

    def replay_check(self, first: int) -> ReplayCheck | None:
        """Return what verifies a graph of the calls that begins with the call on this copy; None: nothing does."""
        return None

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return what a step returns; an error, SystemExit too, ends only this contender's part."""
        made = None
        protocol.announce(self.index)
        try:
            made = step()
        except KeyboardInterrupt:  # ends the process while this contender is announced, so that it is blamed
            raise
        except BaseException as error:
            self.record = self.failed(error)
        protocol.announce(runs=False)
        return made

    def begin(self, first: int, poller: Poller) -> None:
        """Make the sampler, whose launches begin with the copy `first`, and take a sample."""
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
