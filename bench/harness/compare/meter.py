"""The clock of a comparison: waits until all providers of a case are ready, and lets them take turns.

The runner prepares, verifies and closes a row; in between it hands the row's calls to a meter. The meter here opens the
next provider's row before it answers, so that the rows lie in each other like brackets: when the innermost one is
ready, so are all, and the rounds begin.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.compare.rounds import Rounds, Rule, run_rounds
from bench.harness.device.device import Device
from bench.harness.device.telemetry import row_telemetry
from bench.harness.isolate.heartbeat import PROBES, SLOW_CALL_S, announced
from bench.harness.measure.cost import CALLS_PER_CASE
from bench.harness.measure.meter import Measurement, Meter
from bench.harness.providers.registry import ProviderUnavailableError
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits, Sampler, Samples
from bench.harness.timing.settle import CPU_SETTLE, GPU_SETTLE, Settling, settle
from results.stats.samples import half_width, median, median_ci95

SLOT_S = {"cpu": 0.0, "mps": 0.0, "cuda": 0.025, "rocm": 0.025}
"""Length of a turn: on a GPU so long that the clock follows the work that runs; on a CPU one sample, so that neighbors
who come and go meet both of a pair."""

LONGEST_SHARED_S = 0.02
"""A sample that is made longer to match the others is not made longer than that."""

CALIBRATION_TURNS = 3
"""Turns of the warm-up, the last ones, from which the count of samples in a turn is taken."""


Announce = Callable[[], None]
"""Says that one provider has its turn from now on."""


def _nothing() -> None:
    """Say nothing."""


@dataclass
class Turns:
    """A provider on the clock: turns of a fixed count of samples."""

    sampler: Sampler
    lead_in: Callable[[], object]
    """Runs before each turn, not timed: brings warm data back into the cache that others have used."""
    announce: Announce = _nothing
    """Says that this one has its turn now."""
    call_s: float = 0.0
    """Of one call, roughly."""
    samples: int = 1
    """Samples in a turn."""

    def slot(self) -> tuple[float, ...]:
        """Return the samples of one turn, seconds per launch."""
        self.announce()
        self.lead_in()
        return tuple(self.sampler.sample() / self.sampler.launches_per_sample for _ in range(self.samples))


@dataclass(frozen=True)
class Broken:
    """A provider that raised before the rounds began; it raises again in the first of them."""

    error: BaseException

    def slot(self) -> tuple[float, ...]:
        """Raise what it raised."""
        raise self.error


@dataclass(frozen=True)
class Ready:
    """A provider that is prepared and verified, and waits for the others."""

    calls: Sequence[samplers.Call]
    cache: str
    announce: Announce
    least_s: float = 0.0
    """Of the calls that even the shortest comparison makes; 0 where calls are short."""


@dataclass(frozen=True)
class Interleaved:
    """All that the rounds of one case gave."""

    rounds: Rounds
    turns: Sequence[Turns | Broken]
    settling: Settling
    telemetry: dict[str, Any]


class InterleavingMeter(Meter):
    """Measures all providers of a case at once, when the last of them is ready."""

    def __init__(self, device: Device, limits: Limits) -> None:
        """Open the telemetry of the device."""
        super().__init__(device, limits)
        self._ready: list[Ready] = []
        self._found: Interleaved | None = None
        self._rule = Rule(0.0)
        self._open_next = self._after_rounds = _nothing
        self._announcer: Callable[[], Announce] = lambda: _nothing

    def expect(
        self,
        rule: Rule,
        open_next: Callable[[], None],
        announcer: Callable[[], Announce],
        after_rounds: Callable[[], None],
    ) -> None:
        """Begin a case.

        Args:
            rule: when its rounds end.
            open_next: opens the row of the next provider; returns when that is closed.
            announcer: returns what announces the turns of the provider that was opened last.
            after_rounds: looks at what the rounds have left behind.
        """
        self._ready, self._found, self._rule = [], None, rule
        self._open_next, self._announcer, self._after_rounds = open_next, announcer, after_rounds

    def measure(
        self,
        calls: Sequence[samplers.Call],
        cache: str,
        flops: int | None = None,
        left_s: float | None = None,
        prepared_s: float = 0.0,
    ) -> Measurement:
        """Wait for the other providers, take turns with them, and return what was measured of these calls.

        A provider that is left alone is measured as in any other run. Arguments as of `Meter.measure`.

        Raises:
            ProviderUnavailableError: its calls are so slow that the fewest do not fit the time that is left.
        """
        announce, began = self._announcer(), time.perf_counter()
        calls = announced(calls, announce, self._device.synchronize)
        ready = Ready(calls, cache, announce, least_s(time.perf_counter() - began))
        self._refuse_if_too_slow(ready, left_s)
        place = len(self._ready)
        self._ready.append(ready)
        self._open_next()
        if len(self._ready) == 1:
            if self._rule.deadline is not None:
                left_s = max(0.0, self._rule.deadline - time.perf_counter())
            return super().measure(calls, cache, flops, left_s, prepared_s)
        if self._found is None:
            self._found = self._interleave()
            self._after_rounds()
        errors, turns = self._found.rounds.errors, self._found.turns[place]
        if place in errors:
            raise errors[place]
        if 0 in errors or isinstance(turns, Broken):
            raise ProviderUnavailableError("nothing to compare with: the baseline failed while it was timed")
        ready.announce()
        return self._measurement(ready, turns, place, self._found)

    def _refuse_if_too_slow(self, ready: Ready, left_s: float | None) -> None:
        """Refuse a provider whose slow calls, beside those of the others, would take longer than what is left."""
        least = ready.least_s + sum(other.least_s for other in self._ready)
        if left_s is not None and ready.least_s and least > left_s:
            text = f"a call takes {ready.least_s / CALLS_PER_CASE:.2g} s and the fewest of a comparison {least:.2g} s, "
            text += f"more than the {max(0.0, left_s):.2g} s that are left; a larger --budget allows it"
            raise ProviderUnavailableError(text)

    @property
    def rounds(self) -> Rounds | None:
        """The rounds of the case, the providers in the order in which they became ready; None where there were none."""
        return self._found.rounds if self._found else None

    def _interleave(self) -> Interleaved:
        """Settle, run the rounds, and see what the machine did meanwhile."""
        turns = [self._turns(ready, place) for place, ready in enumerate(self._ready)]
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
        settling = settle(work, self._monitor.clock_and_power, GPU_SETTLE if self._device.has_cuda else CPU_SETTLE)
        for times_s, turn in zip(warm_up, turns, strict=True):
            if isinstance(turn, Turns):
                turn.samples = samples_per_turn(median(times_s[-CALIBRATION_TURNS:]), self._device.type)
        before = self._monitor.snapshot()
        rounds = run_rounds(turns, self._rule, clock_hz=self._clock_hz)
        # Without the count of launches: energy cannot be told apart between providers that take turns.
        return Interleaved(rounds, turns, settling, row_telemetry(before, self._monitor.snapshot()))

    def _turns(self, ready: Ready, place: int) -> Turns | Broken:
        ready.announce()
        # All go round the same copies, as far apart as can be, so that nobody finds what another has just touched.
        first = place * len(ready.calls) // len(self._ready)
        calls = [*ready.calls[first:], *ready.calls[:first]]
        try:
            sampler = self.sampler(calls, self._limits)
            call_s = sampler.sample() / sampler.launches_per_sample
            return Turns(sampler, self._lead_in(ready), ready.announce, call_s)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Broken(error)

    def _lead_in(self, ready: Ready) -> Callable[[], object]:
        """Return what runs before a turn: one launch where the data is to be warm, nothing where it is cold anyway."""
        if ready.cache == "cold":
            return _nothing
        calls = itertools.cycle(ready.calls)

        def launch() -> None:
            next(calls)()
            self._device.synchronize()

        return launch

    def _clock_hz(self) -> float | None:
        return self._monitor.clock_and_power().sm_clock_hz

    def _measurement(self, ready: Ready, turns: Turns, place: int, found: Interleaved) -> Measurement:
        """Return what the rounds tell of one provider, with what is measured beside them."""
        calls = ready.calls
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
        clock = {"sm_clock_hz": median(clocks_hz)} if clocks_hz else {}
        return Measurement(
            samples=samples,
            warm_s=self._warm_s(calls, samples),
            host_launch_s=samplers.host_launch_s(calls, self._device.synchronize),
            host_latency_s=samplers.host_latency_s(calls, self._device.synchronize),
            tail_s=self._tail_s(turns.sampler) if self._device.has_cuda else None,
            settling=found.settling,
            telemetry=found.telemetry | clock,
        )


def share_launches(turns: Sequence[Turns | Broken]) -> None:
    """Let a sample of each provider on a CPU hold as many launches as that of the fastest one needs.

    Most launches of a busy machine are undisturbed and some take many times as long. A mean over more of them is
    disturbed more often, so that equal providers with unequal samples would not come out equal. One that is so much
    slower that its samples would last longer than `LONGEST_SHARED_S` keeps fewer: it will not be taken for equal.

    All begin their copies anew: the first samples had unequal launches, and who follows closer behind another finds
    more in the cache. On 257 copies of 0.5 MB, 80 of them apart instead of 128, a function was 3 % slower than itself.
    """
    found = [(turn, turn.sampler) for turn in turns if isinstance(turn, Turns)]
    hosts = [(turn.call_s, sampler) for turn, sampler in found if isinstance(sampler, samplers.HostSampler)]
    most = max((sampler.launches_per_sample for _, sampler in hosts), default=1)
    for call_s, sampler in hosts:
        fitting = math.floor(LONGEST_SHARED_S / max(call_s, 1e-9))
        sampler.launches_per_sample = min(most, max(sampler.launches_per_sample, fitting))
        sampler.rewind()


def least_s(probing_s: float) -> float:
    """Return the seconds of the fewest calls that a comparison makes, from those of probing; 0 for short calls."""
    call_s = probing_s / PROBES
    return CALLS_PER_CASE * call_s if call_s >= SLOW_CALL_S else 0.0


def samples_per_turn(sample_s: float, device_type: str) -> int:
    """Return how many samples of `sample_s` seconds fill a turn, at least one."""
    return max(1, math.floor(SLOT_S[device_type] / max(sample_s, 1e-9)))
