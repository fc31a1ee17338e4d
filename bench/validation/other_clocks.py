"""Other clocks, the steps between them and ours, and which explain a difference; `Clocks.read(way)` times one way.

What is known of the other clocks, read in their sources:

- `triton.testing.do_bench` (triton 3.6 to 3.9): before each launch zeros are written to 256 MB, a pair of events
  around it; 25 ms of warm-up without the flush, then as many launches as 100 ms hold, flush included in that count;
  the mean by default.
- `triton.testing.do_bench_cudagraph`: one graph with 20 ms of launches on the same inputs, no flush, ten replays, no
  warm-up but five launches; the mean of ten values by default.
- `bench.do_bench`, ours with the signature of the first: zeros are written as there, each launch behind a spin until it
  is queued, so that the host's time is not in it; the mean by default. On a CPU the host's clock around each call.
- `torch.utils.benchmark.Timer.blocked_autorange`: the host's clock around blocks of launches on the same inputs, the
  device waited for at both ends; the median.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeGuard

import torch

from bench.harness.device.device import Device
from bench.harness.device.telemetry import Monitor
from bench.harness.timing import samplers
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Limits, collect, no_garbage_collection, warm_up
from bench.harness.timing.samplers import Call, EventSampler, GraphSampler
from bench.validation.listed_cases import Ready
from results.stats.samples import median, student_t_975

# ---- reasons of a difference ---------------------------------------------------------------------------------------

TOLERANCE = 0.02
"""A ratio within 2 % of 1 needs no reason."""

LEAST_STEP = 0.005
"""A step below half a percent is below what our own samples aim at, and is no reason."""

LEAST_SHARE = 0.2
"""A step must be this share of the gap to be named."""

LEAST_ROUNDS = 3
"""Fewer rounds tell nothing about how far they scatter."""

CLOCK_SHARE = (0.5, 2.0)
"""A change of the SM clock stands for a step where it is between half and twice as large, with the same sign."""

Round = Mapping[str, float]
"""Seconds of a launch, by the name of the way in which it was timed."""


@dataclass(frozen=True)
class Rung:
    """One way of timing, and what it changes against the rung before."""

    way: str
    change: str | None
    """None: nothing that is known, so that a difference is unexplained."""


@dataclass(frozen=True)
class Step:
    """From one rung to the next."""

    way: str
    change: str | None
    log_ratio: float
    """Median over the rounds of log(this rung / the one before)."""
    is_steady: bool
    """Whether the scatter of the rounds leaves no doubt that it is there."""


@dataclass(frozen=True)
class Explanation:
    """What one other clock says against one of ours, and why."""

    ours: str
    theirs: str
    ratio: float
    """Theirs over ours, median over the rounds."""
    low: float
    high: float
    """The least and the largest ratio of a round."""
    rounds: int
    verdict: str
    """`same` (within the tolerance), `explained`, `partly`, or `unexplained`."""
    reasons: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What was measured beside the times, by way; a way that is missing was not looked at."""

    clock_hz: Mapping[str, float] = field(default_factory=dict)
    """Median SM clock while it ran."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What its change rests on, in words and numbers."""
    scatter: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Values in one round, and the standard error of their mean as a fraction of it."""
    disturbance: str | None = None
    """What else was going on, where it can move times."""


def explain(ours: str, ladder: Sequence[Rung], rounds: Sequence[Round], evidence: Evidence) -> Explanation | None:
    """Return what the last rung of a ladder says against our own time, and the reasons; None where one has no time.

    Args:
        ours: the way that the ladder starts from.
        ladder: the rungs above it, the last one being the other clock.
        rounds: the times of each round; rungs that no round has are passed over.
        evidence: what else was measured.
    """
    theirs = ladder[-1].way
    complete = [one for one in rounds if is_time(one.get(ours)) and is_time(one.get(theirs))]
    if not complete:
        return None
    ratios = [one[theirs] / one[ours] for one in complete]
    gap = median([math.log(ratio) for ratio in ratios])
    found: dict[str, Any] = {"ours": ours, "theirs": theirs, "ratio": math.exp(gap)}
    found |= {"low": min(ratios), "high": max(ratios), "rounds": len(ratios)}
    if abs(math.exp(gap) - 1) <= TOLERANCE:
        return Explanation(**found, verdict="same")
    if not is_certain([math.log(ratio) for ratio in ratios]):
        return Explanation(**found, verdict="unexplained", reasons=(_disagreement(theirs, evidence),))
    steps = _steps(ours, ladder, complete)
    reasons, rest = [], gap
    before = ours
    for step in steps:
        text = _reason(step, before, gap, evidence)
        if text is not None:
            reasons.append(text)
            rest -= step.log_ratio
        before = step.way
    scatter = evidence.scatter.get(theirs)
    if abs(rest) > TOLERANCE and scatter is not None and abs(rest) <= 2 * scatter[1]:
        reasons.append(f"{percent(rest)} too few repetitions: {scatter[0]} values, ±{scatter[1]:.1%} on their mean")
        rest = 0.0
    if not reasons:
        return Explanation(**found, verdict="unexplained", reasons=("unexplained",), steps=steps)
    if abs(rest) > TOLERANCE:
        reasons.append(f"{percent(rest)} unexplained")
        return Explanation(**found, verdict="partly", reasons=tuple(reasons), steps=steps)
    return Explanation(**found, verdict="explained", reasons=tuple(reasons), steps=steps)


def is_time(value: float | None) -> TypeGuard[float]:
    """Return whether a value can be seconds of a launch."""
    return value is not None and math.isfinite(value) and value > 0


def is_certain(logs: Sequence[float]) -> bool:
    """Return whether the 95 % interval of the mean of some differences leaves 0 out: Student's, one value a round."""
    if len(logs) < LEAST_ROUNDS:
        return False
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return abs(statistics.fmean(logs)) > student_t_975(len(logs) - 1) * error


def percent(log_ratio: float) -> str:
    """Return a step as a signed percentage, from a factor of two on as a factor."""
    return f"x{math.exp(log_ratio):.3g}" if abs(log_ratio) >= math.log(2) else f"{math.expm1(log_ratio):+.1%}"


def _steps(ours: str, ladder: Sequence[Rung], rounds: Sequence[Round]) -> tuple[Step, ...]:
    """Return the steps between the rungs that all rounds have; a rung without times hands its change to the next."""
    steps, before, pending = [], ours, []
    for rung in ladder:
        pending.append(rung.change)
        if not all(is_time(one.get(rung.way)) for one in rounds):
            continue
        logs = [math.log(one[rung.way] / one[before]) for one in rounds]
        # Where one of several changes at once is not known, the step cannot be told apart.
        change = None if None in pending else " or ".join(str(text) for text in pending)
        steps.append(Step(rung.way, change, median(logs), is_certain(logs)))
        before, pending = rung.way, []
    return tuple(steps)


def _reason(step: Step, before: str, gap: float, evidence: Evidence) -> str | None:
    """Return a step in words where it is one of the reasons, else None."""
    if not step.is_steady or abs(step.log_ratio) < max(LEAST_STEP, LEAST_SHARE * abs(gap)):
        return None
    clock = _clock_change(step, before, evidence)
    if clock is not None:
        return f"{percent(step.log_ratio)} {clock}" + (f" ({step.change})" if step.change else "")
    if step.change is None:
        return None
    note = evidence.notes.get(step.way)
    return f"{percent(step.log_ratio)} {step.change}" + (f" ({note})" if note else "")


def _clock_change(step: Step, before: str, evidence: Evidence) -> str | None:
    """Return the change of the SM clock where it stands for a step, else None."""
    first, second = evidence.clock_hz.get(before), evidence.clock_hz.get(step.way)
    if not (is_time(first) and is_time(second)):
        return None
    expected = math.log(first / second)
    if not CLOCK_SHARE[0] <= expected / step.log_ratio <= CLOCK_SHARE[1]:
        return None
    return f"SM clock {first / 1e6:.0f} -> {second / 1e6:.0f} MHz"


def _disagreement(theirs: str, evidence: Evidence) -> str:
    """Return that the rounds do not agree, with how few repetitions they had and what disturbed them."""
    said = ["unexplained: the rounds disagree"]
    if theirs in evidence.scatter:
        count, error = evidence.scatter[theirs]
        said.append(f"{count} values each, ±{error:.1%} on their mean")
    if evidence.disturbance:
        said.append(evidence.disturbance)
    return ", ".join(said)


# ---- the clocks ----------------------------------------------------------------------------------------------------

COLD, WARM, DO_BENCH, CUDAGRAPH, TIMER = "cold", "warm", "do_bench", "do_bench_cudagraph", "torch Timer"
OURS = "bench.do_bench"
THEIRS = {OURS: COLD, DO_BENCH: COLD, CUDAGRAPH: WARM, TIMER: WARM}
"""The other clocks, each with our way that has the same temperature; `bench.do_bench` is our stand-in for Triton's."""

MEANS = (OURS, DO_BENCH, CUDAGRAPH)
"""Those that give a mean."""

LADDERS: dict[str, tuple[Rung, ...]] = {
    OURS: (
        Rung("pairs, copies", "a pair of events around each launch"),
        Rung("pairs, read flush", "one set of inputs behind a flush that reads, in place of copies"),
        Rung("pairs, zero flush", "a flush that writes zeros: its tail and the dirty lines that it leaves"),
        Rung(f"{OURS} median", None),
        Rung(OURS, "the mean instead of the median"),
    ),
    DO_BENCH: (
        Rung("pairs, copies", "a pair of events around each launch"),
        Rung("pairs, read flush", "one set of inputs behind a flush that reads, in place of copies"),
        Rung("pairs, zero flush", "a flush that writes zeros: its tail and the dirty lines that it leaves"),
        Rung("loop, zero flush", "launches not held back until all are queued"),
        Rung("do_bench median", None),
        Rung(DO_BENCH, "the mean instead of the median"),
    ),
    CUDAGRAPH: (
        Rung("graph of 20 ms", "ten replays of one graph of 20 ms"),
        Rung("do_bench_cudagraph median", None),
        Rung(CUDAGRAPH, "the mean instead of the median"),
    ),
    TIMER: (
        Rung("queued launches", "launched one by one instead of in a graph"),
        Rung("block of launches", "launches not held back until all are queued, on the host's clock"),
        Rung(TIMER, None),
    ),
}

CPU_LADDERS: dict[str, tuple[Rung, ...]] = {
    OURS: (
        Rung("single calls, copies", "one call between two readings of the clock"),
        Rung(f"{OURS} median", "one set of inputs behind a flush that writes zeros, in place of copies"),
        Rung(OURS, "the mean instead of the median"),
    ),
    TIMER: (Rung("block of launches", "blocks of launches as long as theirs"), Rung(TIMER, None)),
}

FLUSH_BYTES = 256 * 2**20
"""What Triton's drivers for NVIDIA GPUs clear: `get_empty_cache_for_benchmark`."""

TRITON_REP_S, TRITON_GRAPH_S, TRITON_REPLAYS = 0.1, 0.02, 10

HELD_LAUNCHES = 50
"""Launches with their flush and their events that are queued behind one spin: at most six operations each."""

LOOP_S, LEAST_LOOPS = 0.05, 10
"""Time that a loop of ours with a pair of events a launch takes, and launches that it has at least."""

TIMER_S = 0.2
"""What `blocked_autorange` takes by default."""

POLL_S = 0.01


class NotColdError(RuntimeError):
    """A case so small that it cannot be timed cold."""


@dataclass(frozen=True)
class Reading:
    """What one way says of one launch, once."""

    value_s: float
    """The number that it gives by itself: our median, Triton's mean, torch's median."""
    values_s: tuple[float, ...]
    """What that was made of, seconds per launch."""
    launches: int
    """Launches in each of the values."""

    @property
    def standard_error(self) -> float:
        """Standard error of the mean as a fraction of it; infinite where a single value tells nothing."""
        if len(self.values_s) < 2:
            return math.inf
        return statistics.stdev(self.values_s) / math.sqrt(len(self.values_s)) / statistics.fmean(self.values_s)


def ladders_of(device: Device) -> dict[str, tuple[Rung, ...]]:
    """Return the ladder to each of the other clocks that a device has."""
    return LADDERS if device.is_gpu else CPU_LADDERS


def ways_of(device: Device) -> list[str]:
    """Return all ways that a device has, in the order of the ladders."""
    rungs = [rung.way for ladder in ladders_of(device).values() for rung in ladder]
    return list(dict.fromkeys([COLD, WARM, *(way for way in rungs if not way.endswith(" median"))]))


def limits_of(device: Device, seconds: float) -> Limits:
    """Return the limits of our own protocol for one turn of about so many seconds."""
    limits = GPU_LIMITS if device.is_gpu else CPU_LIMITS
    least_s = min(limits.min_time_s, seconds)
    return replace(limits, cap_s=seconds, min_time_s=least_s, warm_up_s=min(limits.warm_up_s, seconds / 4))


class Clocks:
    """Times one case in each of the ways; what can be prepared once is prepared once."""

    def __init__(self, ready: Ready, seconds: float) -> None:
        """Prepare; the warm-up runs here.

        Args:
            ready: the case, verified.
            seconds: that one of our own readings takes at most.
        """
        self.device, self._calls, self._one = ready.device, ready.calls, ready.calls[0]
        self._limits = limits_of(ready.device, seconds)
        self._seconds = seconds
        self.facts: dict[str, float] = {"host_launch_s": samplers.host_launch_s(ready.calls, ready.device.synchronize)}
        self._samplers = {WARM: samplers.make_sampler(self._calls[:1], self.device, self._limits)}
        if ready.cache == COLD:
            self._samplers[COLD] = samplers.make_sampler(self._calls, self.device, self._limits)
        self.methods = {way: sampler.method for way, sampler in self._samplers.items()}
        warm_up(self._samplers.get(COLD, self._samplers[WARM]), self._limits.warm_up_s)
        self._block = 1
        with suppress(Exception):  # it fails again, and is reported, when its turn comes
            self._block = _timer(self._one).blocked_autorange(min_run_time=TIMER_S / 4).number_per_run
        if self.device.is_gpu:
            self._buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int, device=self.device.torch_name)
            self.facts |= self._gpu_facts()
        self._ways: dict[str, Callable[[], Reading]] = {
            "pairs, copies": lambda: self._held(self._calls, None),
            "pairs, read flush": lambda: self._held([self._one], self._buffer.amax),
            "pairs, zero flush": lambda: self._held([self._one], self._buffer.zero_),
            "loop, zero flush": self._loop,
            OURS: self._our_do_bench,
            "single calls, copies": self._single_calls,
            DO_BENCH: self._do_bench,
            "graph of 20 ms": self._long_graph,
            CUDAGRAPH: self._cudagraph,
            "queued launches": self._queued,
            "block of launches": self._host_block,
            TIMER: self._torch_timer,
        }

    def read(self, way: str) -> Reading:
        """Time the case in one way.

        Raises:
            NotColdError: there is no cold time, because the copies did not fill the cache.
            Exception: whatever the other clock raises.
        """
        if way in (COLD, WARM):
            if way not in self._samplers:
                raise NotColdError("the copies do not fill the cache")
            sampler = self._samplers[way]
            warm_up(sampler, self._limits.warm_up_s / 2)
            taken = collect(sampler, self._limits, way)
            return Reading(taken.median_s, taken.samples_s, taken.launches_per_sample)
        with nullcontext() if way in THEIRS else no_garbage_collection():  # theirs run as their users run them
            return self._ways[way]()

    def _our_do_bench(self) -> Reading:
        from bench.harness.api.do_bench import do_bench

        values = [ms / 1e3 for ms in do_bench(self._one, rep=1e3 * self._seconds, return_mode="all")]
        return Reading(statistics.fmean(values), tuple(values), 1)

    def _single_calls(self) -> Reading:
        """Time single calls that go round the copies by the host's clock."""
        if COLD not in self._samplers:
            raise NotColdError("the copies do not fill the cache")
        sampler = samplers.HostSampler(self._calls, 1, self.device.synchronize)
        taken = collect(sampler, replace(self._limits, min_time_s=0.0, cap_s=LOOP_S), COLD)
        return Reading(taken.median_s, taken.samples_s, 1)

    # ---- theirs ---------------------------------------------------------------------------------------------------

    def _do_bench(self) -> Reading:
        from triton.testing import do_bench

        values = [ms / 1e3 for ms in do_bench(self._one, return_mode="all")]
        return Reading(statistics.fmean(values), tuple(values), 1)

    def _cudagraph(self) -> Reading:
        from triton.testing import do_bench_cudagraph

        values = [ms / 1e3 for ms in do_bench_cudagraph(self._one, return_mode="all")]
        return Reading(statistics.fmean(values), tuple(values), self._graph_launches)

    def _torch_timer(self) -> Reading:
        taken = _timer(self._one).blocked_autorange(min_run_time=TIMER_S)
        self._block = taken.number_per_run
        return Reading(taken.median, tuple(taken.times), taken.number_per_run)

    # ---- the rungs between ----------------------------------------------------------------------------------------

    def _held(self, calls: Sequence[Call], flush: Call | None) -> Reading:
        """Time each launch by its own pair of events, all of them queued before the first one runs."""
        rounds, end = itertools.cycle(calls), time.perf_counter() + LOOP_S
        values: list[float] = []
        enqueue_s = self._enqueue_s(rounds, flush)
        spin_cycles = math.ceil(HELD_LAUNCHES * enqueue_s * 1.3 * samplers.SPIN_CYCLES_PER_S)
        while not values or time.perf_counter() < end:
            values += _pairs_s(itertools.islice(rounds, HELD_LAUNCHES), flush, spin_cycles)
        return Reading(median(values), tuple(values), 1)

    def _loop(self) -> Reading:
        """Time launches as `do_bench` does: each behind a flush, nothing held back."""
        values = _pairs_s([self._one] * LEAST_LOOPS, self._buffer.zero_, 0)
        each_s = median(values) + self.facts["flush_s"]
        count = max(LEAST_LOOPS, int(TRITON_REP_S / each_s))
        values = _pairs_s([self._one] * count, self._buffer.zero_, 0)
        return Reading(median(values), tuple(values), 1)

    def _long_graph(self) -> Reading:
        """Replay a graph that is as long as Triton's, as often as Triton does."""
        if not hasattr(self, "_graph"):
            self._graph = GraphSampler([self._one], self._graph_launches)
            self._graph.sample()
        values = [self._graph.sample() / self._graph_launches for _ in range(TRITON_REPLAYS)]
        return Reading(median(values), tuple(values), self._graph_launches)

    def _queued(self) -> Reading:
        """Time launches one after the other, held back until all are queued: one pair of events for them all."""
        count = max(1, min(samplers.MAX_QUEUED // 2, self._block))
        sampler = EventSampler([self._one], count, self.facts["host_launch_s"])
        warm_up(sampler, 0.0)
        taken = collect(sampler, replace(self._limits, min_time_s=0.0, cap_s=LOOP_S), WARM)
        return Reading(taken.median_s, taken.samples_s, count)

    def _host_block(self) -> Reading:
        """Time blocks as long as those of torch's Timer by the host's clock, waiting at both ends."""
        values: list[float] = []
        end = time.perf_counter() + TIMER_S
        while not values or time.perf_counter() < end:
            self.device.synchronize()
            start = time.perf_counter()
            for _ in range(self._block):
                self._one()
            self.device.synchronize()
            values.append((time.perf_counter() - start) / self._block)
        return Reading(median(values), tuple(values), self._block)

    # ---- what they rest on ----------------------------------------------------------------------------------------

    def _gpu_facts(self) -> dict[str, float]:
        """Return what the clocks of a GPU cost, seconds; `graph_launches` is Triton's estimate of its graph."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.device.synchronize()
        start.record()
        for _ in range(5):  # as do_bench_cudagraph estimates, host time of short launches included
            self._one()
        end.record()
        self.device.synchronize()
        estimate_s = max(start.elapsed_time(end) / 5e3, 1e-9)
        self._graph_launches = max(1, int(TRITON_GRAPH_S / estimate_s))
        flushes = _pairs_s([self._buffer.zero_] * 5, None, 0)
        return {
            "event_floor_s": samplers.event_floor_s(),
            "flush_s": median(flushes),
            "pair_behind_flush_s": median(_pairs_s([_nothing] * HELD_LAUNCHES, self._buffer.zero_, 0)),
            "graph_launches": self._graph_launches,
        }

    def _enqueue_s(self, rounds: Iterator[Call], flush: Call | None) -> float:
        """Return how long the host takes to queue a launch with its flush and its events, the queue empty."""
        self.device.synchronize()
        start = time.perf_counter()
        _record(itertools.islice(rounds, 5), flush)
        taken_s = (time.perf_counter() - start) / 5
        self.device.synchronize()
        return taken_s


def _nothing() -> None:
    """Stand for a launch that is none."""


def _timer(call: Call) -> Any:
    from torch.utils.benchmark import Timer

    return Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())


def _record(calls: Iterator[Call] | Sequence[Call], flush: Call | None) -> list[tuple[Any, Any]]:
    """Queue each launch between two events, behind a flush where there is one; return the events."""
    pairs = []
    for call in calls:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if flush is not None:
            flush()
        start.record()
        call()
        end.record()
        pairs.append((start, end))
    return pairs


def _pairs_s(calls: Iterator[Call] | Sequence[Call], flush: Call | None, spin_cycles: int) -> list[float]:
    """Return the seconds between the two events around each launch, all queued behind a spin of so many cycles."""
    if spin_cycles:
        torch.cuda._sleep(spin_cycles)
    pairs = _record(calls, flush)
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]


class ClockPoller:
    """Reads the SM clock while something runs, in a thread of its own: `with ClockPoller(device) as clock: ...`.

    Times that are taken meanwhile are thrown away: the thread takes the interpreter for moments.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor, self._done = monitor, threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _poll(self) -> None:
        while not self._done.wait(POLL_S):
            clock_hz = self._monitor.clock_and_power().sm_clock_hz
            if clock_hz is not None:
                self._seen.append(clock_hz)

    @property
    def median_hz(self) -> float | None:
        """Median of the clocks seen; None where it cannot be read."""
        return median(self._seen) if self._seen else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()


def clocks_of(clocks: Clocks, ways: Sequence[str]) -> dict[str, float]:
    """Return the median SM clock while each of the ways runs once more, Hz; a way that fails has none."""
    if not clocks.device.is_gpu:
        return {}
    monitor, found = Monitor(clocks.device), {}
    for way in ways:
        with suppress(Exception), ClockPoller(monitor) as poller:
            clocks.read(way)
        if poller.median_hz is not None:
            found[way] = poller.median_hz
    return found


@contextmanager
def torch_threads(device: Device) -> Iterator[None]:
    """Let a CPU use the threads that it really has; what was set before comes back."""
    before = torch.get_num_threads()
    if device.threads:
        torch.set_num_threads(device.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
