"""Measures the prepared providers of a case in turns, and returns a measurement of each.

Where in memory the objects of a call lie, and which copies of the inputs it works on, makes up to 4 % of the time of a
short launch. So providers exchange both, again and again: see `exchange`.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness import worker
from bench.harness.compare.rounds import Rounds, Rule, run_rounds
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, row_telemetry, snapshot
from bench.harness.measure.budget import CALLS_PER_CASE
from bench.harness.measure.flags import disturbance
from bench.harness.measure.samples import make_sampler, warm_median_s
from bench.harness.providers.registry import ProviderUnavailableError
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Sampler, Samples, Settling, limits_of, settle
from results.stats.samples import half_width, median, median_ci95

SLOT_S = {"cpu": 0.0, "cuda": 0.025, "rocm": 0.025}
"""Length of a turn, seconds: on a GPU long enough for the clock frequency to follow the work; on a CPU one sample, so
that other processes that come and go disturb both of a pair."""

LONGEST_SHARED_S = 0.02
"""Longest sample, in seconds, of those that are made longer to match the samples of the other providers."""

PROBES = 3
SLOW_CALL_S = 0.01
"""Calls from this length on are checked against the time that is left, and their place in memory does not matter."""

CALIBRATION_TURNS = 3
"""Turns of the warm-up, the last ones, from which the count of samples in a turn is taken."""


@dataclass
class Turns:
    """A provider on the clock: turns of a fixed count of samples."""

    sampler: Sampler
    lead_in: Callable[[], object]
    """Runs before each turn, not timed: brings warm data back into the cache that others have used."""
    index: int = 0
    """Index of the provider in its case, for `worker.announce`."""
    call_s: float = 0.0
    """Of one call, roughly."""
    samples: int = 1
    """Samples in a turn."""
    first: int = 0
    """Copy of the inputs that the next launch works on; the count of launches may run past the last copy."""
    replay: ReplayCheck | None = None
    """Verifies what a graph of its launches writes; None where none is timed."""

    def slot(self) -> tuple[float, ...]:
        """Return the samples of one turn, seconds per launch."""
        worker.announce(self.index)
        self.lead_in()
        self.first += self.samples * self.sampler.launches_per_sample
        return tuple(self.sampler.sample() / self.sampler.launches_per_sample for _ in range(self.samples))


@dataclass(frozen=True)
class Broken:
    """A provider that raised before the rounds began; it raises the same error in the first round."""

    error: BaseException

    def slot(self) -> tuple[float, ...]:
        """Raise what it raised."""
        raise self.error


@dataclass(frozen=True)
class Ready:
    """A provider that is prepared and verified, and waits for the others."""

    calls: Sequence[samplers.Call]
    cache: str
    index: int = 0
    """Index of the provider in its case."""
    least_s: float = 0.0
    """Seconds of the calls that even the shortest comparison makes; 0 where calls are short."""
    new_call: Callable[[int], samplers.Call] | None = None
    """Makes a call on a copy of the inputs once more; None for calls so slow that their place does not matter."""
    replay: Callable[[int], ReplayCheck] | None = None
    """Returns what verifies a graph of the calls that begins with the call on this copy; None on a CPU."""


@dataclass(frozen=True)
class Interleaved:
    """The outcome of the rounds of one case, the providers in the order in which they became ready."""

    rounds: Rounds
    turns: Sequence[Turns | Broken]
    settling: Settling
    telemetry: dict[str, Any]


class InterleavingMeter:
    """Measures several providers of a case at once, in turns."""

    def __init__(self, device: Device) -> None:
        """Prepare for a device."""
        self._device, self._limits, self._poller = device, limits_of(device), Poller(device)

    def interleave(self, ready: Sequence[Ready], rule: Rule) -> Interleaved:
        """Settle, run the rounds, and see what the machine did meanwhile; the baseline comes first."""
        turns = [self._turns(ready, place) for place in range(len(ready))]
        warm_up: list[list[float]] = [[] for _ in turns]

        def work() -> float:
            for place, turn in enumerate(turns):
                if isinstance(turn, Turns):
                    try:
                        warm_up[place].append(turn.slot()[0] * turn.sampler.launches_per_sample)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:  # as in the rounds
                        turns[place] = Broken(error)
            return sum(times_s[-1] for times_s in warm_up if times_s)

        share_launches(turns)
        settling = settle(work, self._limits)
        for times_s, turn in zip(warm_up, turns, strict=True):
            if isinstance(turn, Turns):
                turn.call_s = min(times_s) / turn.sampler.launches_per_sample  # a single one may have been held up
                turn.samples = samples_per_turn(median(times_s[-CALIBRATION_TURNS:]), self._device.type)
        share_launches(turns)
        self._poller.begin()
        before = snapshot(self._device)
        order = random.Random(rule.seed)

        def is_disturbed() -> bool:
            return disturbance(row_telemetry(before, snapshot(self._device)), self._device.is_gpu) is not None

        rounds = run_rounds(
            turns,
            rule,
            clock_hz=self._clock_hz,
            exchange=lambda: exchange(ready, turns, order),
            is_disturbed=is_disturbed,
        )
        # Without the count of launches: energy cannot be told apart between providers that take turns.
        return Interleaved(rounds, turns, settling, row_telemetry(before, snapshot(self._device)))

    def _turns(self, ready: Sequence[Ready], place: int) -> Turns | Broken:
        one = ready[place]
        worker.announce(one.index)
        # All go round the same copies, as far apart as can be, so that nobody finds what another has just touched.
        first = place * len(one.calls) // len(ready)
        try:
            replay = one.replay(first) if one.replay else None
            calls = [*one.calls[first:], *one.calls[:first]]
            sampler = make_sampler(calls, self._device, self._limits, self._poller, replay)
            call_s = sampler.sample() / sampler.launches_per_sample
            return Turns(sampler, self._lead_in(one), one.index, call_s, first=first, replay=replay)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Broken(error)

    def _lead_in(self, ready: Ready) -> Callable[[], object]:
        """Return what runs before a turn: one launch where the data is to be warm, else nothing."""
        if ready.cache != "warm":
            return samplers.nothing
        calls = itertools.cycle(ready.calls)

        def launch() -> None:
            next(calls)()
            self._device.synchronize()

        return launch

    def _clock_hz(self) -> float | None:
        """Return the clock that was read in the turn that ends, and read again in the next one."""
        seen = self._poller.seen
        self._poller.begin()
        return seen[-1].sm_clock_hz if seen else None

    def samples_of(self, ready: Ready, place: int, found: Interleaved) -> Samples:
        """Return what the rounds tell of one provider, with what is measured beside them.

        Raises:
            ProviderUnavailableError: the baseline failed, so that there is nothing to compare with.
            BaseException: what the provider raised in its turn.
        """
        errors, turns = found.rounds.errors, found.turns[place]
        if place in errors:
            raise errors[place]
        if 0 in errors or isinstance(turns, Broken):
            raise ProviderUnavailableError("nothing to compare with: the baseline failed while it was timed")
        samples_s = tuple(sample for slot in found.rounds.slots[place] for sample in slot)
        middle, interval = median(samples_s), median_ci95(samples_s)
        samples = Samples(
            samples_s=samples_s,
            launches_per_sample=turns.sampler.launches_per_sample,
            method=turns.sampler.method,
            cache=ready.cache,
            median_s=middle,
            ci95_s=interval,
            converged=len(samples_s) >= self._limits.min_samples
            and half_width(interval, middle) <= self._limits.target_half_width,
        )
        # One window for all of them, but each ran at a clock of its own.
        clocks_hz = [clock for clock in found.rounds.clocks_hz[place] if clock is not None]
        telemetry = found.telemetry | ({"sm_clock_hz": median(clocks_hz)} if clocks_hz else {})
        calls, device = ready.calls, self._device
        return replace(
            samples,
            settled=found.settling.settled,
            host_launch_s=samplers.host_launch_s(calls, device.synchronize),
            host_latency_s=samplers.host_latency_s(calls, device.synchronize),
            warm_median_s=warm_median_s(calls, samples, device),
            tick_s=samplers.tick_s(device),
            target_half_width=self._limits.target_half_width,
            telemetry=telemetry,
            why_no_graph=turns.sampler.why_no_graph,
        )


def share_launches(turns: Sequence[Turns | Broken]) -> None:
    """Let a sample of each provider on a CPU hold as many launches as that of the fastest one needs.

    Most launches of a busy machine are undisturbed and some take many times as long. A mean over more of them is
    disturbed more often, so that equal providers with unequal samples would seem to differ. A provider that is so much
    slower that its samples would last longer than `LONGEST_SHARED_S` keeps fewer: its verdict is clear anyway.
    """
    found = [(turn, turn.sampler) for turn in turns if isinstance(turn, Turns)]
    hosts = [(turn.call_s, sampler) for turn, sampler in found if isinstance(sampler, samplers.HostSampler)]
    most = max((sampler.launches_per_sample for _, sampler in hosts), default=1)
    for call_s, sampler in hosts:
        fitting = math.floor(LONGEST_SHARED_S / max(call_s, 1e-9))
        sampler.launches_per_sample = min(most, max(sampler.launches_per_sample, fitting))


def exchange(ready: Sequence[Ready], turns: Sequence[Turns | Broken], order: random.Random) -> None:
    """Let the providers on the host's clock exchange the copies they work on, with new objects for their calls.

    The objects of one copy are made one after the other, in random order: a function whose objects were always made
    later was up to 2 % slower than itself. The copies are exchanged and not chosen anew, so that the time since the
    last use of a copy stays the same: a provider closer behind another finds more in the cache. With 257 copies of 0.5
    MB, a distance of 80 copies instead of 128 made a function 3 % slower than itself.
    """
    on_host = [
        (turn, one, turn.sampler)
        for turn, one in zip(turns, ready, strict=True)
        if isinstance(turn, Turns) and isinstance(turn.sampler, samplers.HostSampler)
    ]
    calls = [list(one.calls) for _, one, _ in on_host]
    makers = [(made, one.new_call) for made, (_, one, _) in zip(calls, on_host, strict=True) if one.new_call]
    for copy in range(min(map(len, calls), default=0)):
        order.shuffle(makers)
        for made, new_call in makers:
            made[copy] = new_call(copy)
    places = [turn.first for turn, _, _ in on_host]
    order.shuffle(places)
    for (turn, one, sampler), made, place in zip(on_host, calls, places, strict=True):
        turn.first = place % len(one.calls)
        sampler.begin_with(made, turn.first)


def least_s(call: samplers.Call, synchronize: Callable[[], None]) -> float:
    """Return the seconds of the fewest calls that a comparison makes; 0 for short calls."""
    seconds = math.inf
    for _ in range(PROBES):  # the minimum: an interrupted call is not a slow one
        worker.announce()
        start = time.perf_counter()
        call()
        synchronize()
        seconds = min(seconds, time.perf_counter() - start)
        if seconds < SLOW_CALL_S:
            return 0.0
    return CALLS_PER_CASE * seconds


def samples_per_turn(sample_s: float, device_type: str) -> int:
    """Return how many samples of `sample_s` seconds fill a turn, at least one."""
    return max(1, math.floor(SLOT_S[device_type] / max(sample_s, 1e-9)))
