"""A contender, which is compared with the others of its case, and what contenders share and
exchange.
"""

from __future__ import annotations

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bench.harness import clock
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller
from bench.harness.timing import protocol, samplers
from bench.harness.timing.protocol import LIMITS, Samples
from results.record import Record

T = TypeVar("T")

Within = Callable[[], AbstractContextManager[None]]

MAX_SHARED_SAMPLE_S = 0.02
"""Maximum length of a sample, seconds, that is extended to match those of other contenders."""

MOVE_SHARE = 1 / 4
"""Maximum length of a move, which calls each contender on each copy, as a fraction of the time
limit of the rounds: memory placement matters for short calls only."""


@dataclass(eq=False)
class Contender(ABC):
    """A provider or a function that is interleaved with the others of its case; `record` is set at
    the end.
    """

    blank: Record
    """The record before measuring."""
    index: int
    """Index in the case; the baseline is the first."""
    device: Device
    new_call: Any = None
    """Makes the call on a copy of the inputs again, by its index."""
    move: Any = None
    """Moves a copy of the inputs, which all contenders share, to other memory, for later calls of
    `new_call`.
    """
    calls: list[Any] = field(default_factory=list)
    """A call for each copy of the inputs, of functions a `partial`."""
    restore: samplers.Call | None = None
    """Restores all copies before each sample, if calls may change their inputs."""
    within: Within = nullcontext
    """The context of its turns."""
    cache: str = "cold"
    record: Record | None = None
    sampler: Any = field(init=False)
    poller: Poller = field(init=False)
    """Reads the clock of a GPU during its turns."""
    replay: ReplayCheck = field(init=False)
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
        """Verify the first result and make the calls, or set `record`; `earlier` contenders are
        prepared.
        """

    @abstractmethod
    def finish(self, samples: Samples) -> Record:
        """Verify the result again and return the record."""

    @abstractmethod
    def failed(self, error: BaseException) -> Record: ...

    def attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of a step; an error, or SystemExit, ends only this contender's part."""
        result = None
        protocol.announce(self.index)
        try:
            result = step()
        except KeyboardInterrupt:
            # Ends the process while this contender is announced, so it is the culprit.
            raise
        except BaseException as error:
            self.record = self.failed(error)
        protocol.announce(runs=False)
        return result

    def begin(self, first: int, poller: Poller) -> None:
        """Make the sampler, which starts with the copy `first`, and take a sample."""
        if self.restore is not None:
            first = 0  # the later copies are restored last, which evicts the first ones
        self.first = first
        self.poller = poller
        calls = [*self.calls[first:], *self.calls[:first]]
        self.replay = ReplayCheck(calls)
        limits = LIMITS[self.device.type]
        self.sampler = samplers.make_sampler(
            calls,
            self.device,
            limits,
            refusal=self.replay.refusal,
            reading=poller,
            before=self.restore,
        )
        self.call_s = self.sampler.sample() / self.sampler.launches_per_sample

    def slot(self) -> tuple[float, ...] | None:
        with self.within():
            return self.attempt(self._turn)

    def _turn(self) -> tuple[float, ...]:
        if (
            self.cache == "warm" and self.restore is None
        ):  # the others have evicted its data from the cache
            self.calls[0]()
            self.device.synchronize()
        self.first += self.samples * self.sampler.launches_per_sample
        return tuple(
            self.sampler.sample() / self.sampler.launches_per_sample for _ in range(self.samples)
        )


def running(contenders: Sequence[Contender]) -> list[Contender]:
    return [contender for contender in contenders if contender.record is None]


def on_host(contenders: Sequence[Contender]) -> list[Contender]:
    return [
        contender
        for contender in running(contenders)
        if isinstance(contender.sampler, samplers.HostSampler)
    ]


def share_launches(contenders: Sequence[Contender]) -> None:
    """Give all contenders on the host's timer as many launches per sample as the fastest one needs.

    On a busy machine some launches take many times as long. A mean over more launches includes one
    more often, so equal contenders with unequal samples would seem to differ. A contender whose
    samples would exceed `MAX_SHARED_SAMPLE_S` keeps fewer launches: it is so much slower that its
    verdict is clear.
    """
    hosts = on_host(contenders)
    most_launches = max((host.sampler.launches_per_sample for host in hosts), default=1)
    for contender in hosts:
        sampler = contender.sampler
        fitting = math.floor(MAX_SHARED_SAMPLE_S / max(contender.call_s, 1e-9))
        sampler.launches_per_sample = min(most_launches, max(sampler.launches_per_sample, fitting))


class Exchange:
    """Exchanges what may favor one of the contenders on the host's timer, outside the timed rounds.

    Each exchange permutes the copies that contenders start at and makes new call objects. Copies
    are permuted, not redrawn, so that the time since the last use of a copy stays the same: a
    contender closer behind another finds more in the cache. With 257 copies of 0.5 MB, a distance
    of 80 copies instead of 128 made a function 3 % slower than itself.

    The memory of inputs and results changes the time by up to 2 %, and without moves it would be
    one random draw for the whole comparison. So all copies move, and the samplers replace their
    kept results, whenever the rounds since the last move took as long as that move.

    `limit_s` is the time limit of the rounds, seconds.
    """

    def __init__(self, contenders: Sequence[Contender], seed: int, limit_s: float) -> None:
        self._contenders = contenders
        self._order = random.Random(seed)
        self._limit_s = limit_s
        self._moved_at = -math.inf
        self._move_s = 0.0

    def __call__(self) -> None:
        hosts = [host for host in on_host(self._contenders) if host.restore is None]
        start = clock.now()
        calls_s = sum(host.call_s * len(host.calls) for host in hosts)
        is_short = calls_s < MOVE_SHARE * self._limit_s
        moves = bool(hosts) and is_short and start - self._moved_at >= self._move_s
        self._make_calls(hosts, moves)
        firsts = [host.first for host in hosts]
        self._order.shuffle(firsts)
        for contender, first in zip(hosts, firsts, strict=True):
            contender.first = first % len(contender.calls)
            contender.sampler.calls = itertools.cycle(
                [*contender.calls[contender.first :], *contender.calls[: contender.first]]
            )
        if moves:
            for copy in range(len(hosts[0].calls)):
                for contender in self._order.sample(hosts, len(hosts)):
                    if contender.record is None:  # it has not failed at an earlier copy
                        contender.attempt(
                            partial(contender.sampler.keep_result_of, contender.calls[copy])
                        )
            self._moved_at = clock.now()
            self._move_s = self._moved_at - start

    def _make_calls(self, hosts: Sequence[Contender], moves: bool) -> None:
        """Make new objects for all calls, copy by copy, with the contenders in random order.

        A function whose objects were always made last was up to 2 % slower than itself.
        """
        copies = list(range(min((len(host.calls) for host in hosts), default=0)))
        if moves:
            self._order.shuffle(copies)  # a copy takes the memory that another has freed
            for contender in hosts:
                contender.sampler.drop_results()
        for copy in copies:
            if moves:
                hosts[0].move(copy)
            for contender in self._order.sample(hosts, len(hosts)):
                contender.calls[copy] = contender.new_call(copy)
