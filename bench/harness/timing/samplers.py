"""Samplers: CUDA graph replay, else queued CUDA events, else the host's clock.

Each sampler rotates through the calls of one provider, one for each copy of the inputs, so that no
launch finds its data in the cache. Results are kept for a round, so that each launch of a round
writes to separate memory.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import psutil

from bench.harness import clock
from bench.harness.device.device import MIB, Device, memory_bytes
from bench.harness.op import UsageError
from bench.harness.timing.protocol import (
    Limits,
    Now,
    Sampler,
    no_garbage_collection,
    require_advance,
)
from bench.harness.torch_private import free_capture, spin, watched_autograd
from results.show.units import duration

Call = Callable[[], object]

Reading = Callable[[Callable[[], int]], object]
"""Reads clock and power after a sample; the argument queues `BUSY_S` of untimed work and returns
its launches.
"""

MAX_GRAPH_LAUNCHES = 2000
"""Instantiating larger graphs takes seconds."""

MAX_CAPTURE_S = 0.1
"""Maximum host time of the launches of a graph, of which one may have hundreds of kernels: at 5 us
a kernel, a graph has 20,000 at most.
"""

HOST_TICKS = 1000
"""Minimum length of a sample in ticks of the host's clock."""

EVENT_TICK_S = 1.024e-6
"""Coarsest resolution of CUDA events in published records (triton#10149)."""

EVENT_TICKS = 200
"""Minimum length of a sample on a GPU in ticks: a tick is then within the 0.5 % target of the
interval."""

EVENT_PAIRS = 500
"""Pairs of events whose times show the resolution of the GPU's timer."""

MIN_TICK_S = 1e-9
"""Event times are float32: smaller steps are rounding, not timer ticks."""

MAX_QUEUED = 300
"""Maximum launches queued behind a spinning kernel: well below the about 1024 entries of the launch
queue, so that the host never waits for the GPU within a sample."""

SPIN_CYCLES_PER_S = 3.2e9
"""Cycles per second of the spinning kernel, above all clocks of the GPU table: lower clocks only
spin longer.
"""

SPIN_SHARE = 1.3
"""Ratio of the spin to the time of queuing the launches behind it."""

MIN_SPIN_S = 30e-6
MAX_GRAPH_SPIN_S = 5e-3
"""Limits of the spin before a graph replay, whose launch takes the host about 10 us."""

MAX_SPIN_S = 0.5
"""Maximum spin before queued launches: an enqueue time that includes a compilation would make
samples last minutes.
"""

MAX_SPIN_GROWTH = 8
"""Maximum factor by which the spin grows if the host is late."""

SPIN_DECAY = 0.98
"""Factor by which the spin shrinks again with each sample that is queued in time."""

MIN_GRAPH_GROWTH = 1.5
"""A graph that needs this many times more launches is captured again."""

BROKEN_CAPTURE = "previous error during capture"
"""Part of the message of CUDA's error `cudaErrorStreamCaptureInvalidated`."""

BUSY_S = 0.05
"""Work queued before reading clock and power, so that the GPU stays busy: each reading takes up to
20 ms.
"""

ESTIMATE_LAUNCHES = 5
LATENCY_CALLS = 50
MIN_LAUNCH_S = 1e-7
PROBE_CAP_S = 0.2
"""Time limit of estimates: one call of a slow case is enough."""

UNSEEN_CALLS_S = 5e-3
UNSEEN_TRIES = 3
UNSEEN_RATIO = 1.5
MIN_UNSEEN_S = 1e-3
"""Work of a stream that is not joined is found if it lasts a millisecond longer than half as long
again as that of so many calls by events: waking up takes the host about 10 us.
"""

MAX_KEPT_BYTES = 1024 * MIB
"""Maximum memory for the results kept by `HostSampler`; a quarter of the free memory if that is
less.
"""

_failed_graphs: list[Any] = []
"""Graphs whose capture failed, without memory: torch's allocator of pinned memory still refers to
them.
"""


class HostSampler:
    """Times launches with the host's clock.

    Results of a single call, which is warm, are not kept, so that malloc returns the block that is
    in the cache.
    """

    method = "host"
    why_no_graph: str | None = None
    untimed_s = 0.0
    reading: Reading | None = None

    def __init__(
        self, calls: Sequence[Call], launches_per_sample: int, before: Call | None = None
    ) -> None:
        """`before` is called before each sample and not timed."""
        self.launches_per_sample = launches_per_sample
        self._before = before
        self.calls: Iterable[Call] = calls if before else itertools.cycle(calls)
        """Endless, so that the next sample continues after the last one, unless `before` renews
        them."""
        self._kept: deque[object] = deque(maxlen=len(calls) if len(calls) > 1 else 0)
        self._max_rss = psutil.Process().memory_info().rss + min(
            MAX_KEPT_BYTES, memory_bytes()[1] // 4
        )

    def sample(self, now: Now = clock.now) -> float:
        keep = self._kept.append
        if self._before is not None:
            start = now()
            self._before()
            self.untimed_s += now() - start
        launches = itertools.islice(self.calls, self.launches_per_sample)
        start = now()
        for call in launches:
            keep(call())
        sample_s = now() - start
        if (
            len(self._kept) < (self._kept.maxlen or 0)
            and psutil.Process().memory_info().rss > self._max_rss
        ):
            self._kept = deque(self._kept, maxlen=len(self._kept))
        return sample_s

    def drop_results(self) -> None:
        self._kept.clear()

    def keep_result_of(self, call: Call) -> None:
        """Call once, untimed; a later launch replaces the result."""
        self._kept.append(call())


def timed_result(calls: Sequence[Call]) -> object:
    """Return the result of the last of several calls in one sample, so that a function that knows
    the timer, or the pause between two calls, does for a check what it does for a sample.
    """
    sampler = HostSampler(calls, len(calls))
    sampler._kept = deque(maxlen=1)
    with no_garbage_collection():
        sampler.sample()
    return sampler._kept[-1]


class _QueuedSampler:
    """Times launches between two CUDA events, queued while a spinning kernel occupies the GPU.

    Without the spin the sample would include the time to queue the work. A sample that was queued
    too late is repeated with a longer spin, up to the maximum. If no spin is long enough, because
    the work waits for the GPU or exceeds its launch queue, the sample includes host time, and
    samples are no longer repeated until one is queued in time.
    """

    why_no_graph: str | None = None
    untimed_s = 0.0
    _stream: Any = None
    """None: the current stream."""
    _entries = 1
    """Entries of a sample in the launch queue."""
    _before: Call | None = None

    def __init__(
        self, launches: int, reading: Reading | None, spin_s: float, max_spin_s: float
    ) -> None:
        self.launches_per_sample = launches
        self.reading = reading
        self._spin_s = spin_s
        self._min_spin_s = spin_s
        self._max_spin_s = max_spin_s
        self._is_in_vain = False
        """Whether the last sample was late behind each spin."""

    def _launch(self) -> None:
        raise NotImplementedError

    def sample(self) -> float:
        spin_s = self._spin_s
        start, end, is_late = self._queued(spin_s)
        while is_late and not self._is_in_vain and spin_s < self._max_spin_s:
            spin_s = min(2 * spin_s, self._max_spin_s)
            start, end, is_late = self._queued(spin_s)
        self._is_in_vain = is_late
        if spin_s == self._spin_s:
            spin_s = max(SPIN_DECAY * spin_s, self._min_spin_s)
        if not is_late:
            self._spin_s = spin_s
        sample_s = float(start.elapsed_time(end)) / 1e3
        if self.reading is not None:
            self.reading(partial(self._keep_busy, sample_s))
        return sample_s

    def _queued(self, spin_s: float) -> tuple[Any, Any, bool]:
        """Queue a sample behind a spin and wait for it; return its events, and whether the GPU
        started before all was queued.
        """
        import torch

        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            if self._before is not None:
                self._before()
            spin(math.ceil(spin_s * SPIN_CYCLES_PER_S))
            start.record()
            self._launch()
            end.record()
        is_late = start.query()
        end.synchronize()
        return start, end, is_late

    def _keep_busy(self, sample_s: float) -> int:
        """Queue `BUSY_S` of work, or less if the queue cannot hold enough short launches."""
        import torch

        times = min(
            math.ceil(BUSY_S / max(sample_s, MIN_LAUNCH_S)), max(1, MAX_QUEUED // self._entries)
        )
        with torch.cuda.stream(self._stream):
            for _ in range(times):
                if self._before is not None:
                    self._before()
                self._launch()
        return times * self.launches_per_sample


class GraphSampler(_QueuedSampler):
    """Times the replay of a CUDA graph of many launches, without host time."""

    method = "graph"

    def __init__(
        self, calls: Sequence[Call], launches: int, reading: Reading | None = None
    ) -> None:
        """Capture launches in whole rounds of `calls`; raise `RuntimeError` if they cannot be
        captured.
        """
        import torch

        super().__init__(launches, reading, MIN_SPIN_S, MAX_GRAPH_SPIN_S)
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        self.results: list[object] = [None] * len(calls)
        """Results of the last captured launch of each call; a replay overwrites them."""
        torch.cuda.synchronize()
        try:
            # Garbage collection may unload a graph or Triton kernel, which ends the capture:
            # pytorch#161037; Triton 3.9, `triton/testing.py`. A failed capture leaves its stream
            # the current one.
            with (
                no_garbage_collection(),
                warnings.catch_warnings(record=True) as caught,
                torch.cuda.stream(torch.cuda.current_stream()),
                # On torch's one stream for captures: on each stream, cuBLAS keeps 32 MiB for good.
                torch.cuda.graph(self._graph, pool=pool),
            ):
                warnings.simplefilter("always")
                for index in range(launches):
                    self.results[index % len(calls)] = calls[index % len(calls)]()
        except RuntimeError:
            self.results.clear()
            _after_failed_capture(self._graph, pool)
            raise
        if any("graph is empty" in str(warning.message).lower() for warning in caught):
            raise RuntimeError("nothing was captured: the work is on another stream")

    def _launch(self) -> None:
        self._graph.replay()

    def replay(self) -> None:
        """Replay the graph once, after all queued work, and wait for it."""
        import torch

        torch.cuda.synchronize()  # its stream does not wait for the default one
        with torch.cuda.stream(self._stream):
            self._launch()
        torch.cuda.synchronize()


def _after_failed_capture(graph: Any, pool: Any) -> None:
    """Free the memory of a failed capture, and complete an empty capture, which makes torch's
    generator usable again.

    Source: torch 2.11, `CUDAGraph::capture_end` raises the error of `cudaStreamEndCapture` before
    it resets the allocator and the default generator, whose next number then raises "Offset
    increment outside graph capture".
    """
    import torch

    _failed_graphs.append(graph)
    free_capture(pool)
    with (
        warnings.catch_warnings(),
        suppress(RuntimeError),
        torch.cuda.stream(torch.cuda.current_stream()),
    ):
        warnings.simplefilter("ignore")  # that it is empty
        empty = torch.cuda.CUDAGraph()
        with torch.cuda.graph(empty):
            pass


class EventSampler(_QueuedSampler):
    """Times queued launches; the sample includes host time if queuing takes longer than the maximum
    spin.
    """

    method = "events"

    def __init__(
        self,
        calls: Sequence[Call],
        launches_per_sample: int,
        enqueue_s: float,
        reading: Reading | None = None,
        before: Call | None = None,
    ) -> None:
        """`enqueue_s` is the host time of a call; `before` is called before the spin and not
        timed.
        """
        spin_s = min(wanted_spin_s(enqueue_s, launches_per_sample), MAX_SPIN_S)
        super().__init__(
            launches_per_sample, reading, spin_s, min(MAX_SPIN_GROWTH * spin_s, MAX_SPIN_S)
        )
        self._before = before
        self._entries = launches_per_sample
        self._calls: Iterable[Call] = calls if before else itertools.cycle(calls)
        self._kept: deque[object] = deque(maxlen=len(calls))

    def _launch(self) -> None:
        for call in itertools.islice(self._calls, self.launches_per_sample):
            self._kept.append(call())


def wanted_spin_s(enqueue_s: float, launches: int) -> float:
    return enqueue_s * launches * SPIN_SHARE


def make_sampler(
    calls: Sequence[Call],
    device: Device,
    limits: Limits,
    is_capturable: bool = True,
    refusal: Callable[[GraphSampler], str | None] | None = None,
    reading: Reading | None = None,
    before: Call | None = None,
) -> Sampler:
    """Return the best sampler for these calls; `refusal` returns the reason to reject a graph, or
    None.

    `before` renews the inputs of all calls, untimed; a sample then has each call once at most.
    """
    if before is not None:
        before()
        few = calls[:ESTIMATE_LAUNCHES]
        launch_s = min(timed_calls(few, len(few), device.synchronize, is_awaited=True))
        wanted = math.ceil(limits.min_sample_s / max(launch_s, MIN_LAUNCH_S))
        launches = min(wanted, len(calls), MAX_QUEUED)
        if not device.is_gpu:
            return HostSampler(calls, launches, before)
        return EventSampler(calls, launches, launch_s, reading, before)
    if not device.is_gpu:
        # The minimum: one preempted call of five must not make the samples a thousand times too
        # short.
        launch_s = max(min(timed_calls(calls, ESTIMATE_LAUNCHES, device.synchronize)), 1e-9)
        min_s = max(limits.min_sample_s, HOST_TICKS * tick_s(device))
        return HostSampler(calls, max(1, math.ceil(min_s / launch_s)))
    with watched_autograd() as autograd:
        launch_s = host_launch_s(calls, device.synchronize)
    events = EventSampler(calls, min(MAX_QUEUED, max(1, len(calls))), launch_s)
    # The minimum, because events include the time that the GPU waited for a late host.
    device_s = min(events.sample() for _ in range(ESTIMATE_LAUNCHES)) / events.launches_per_sample
    min_s = max(limits.min_sample_s, EVENT_TICKS * EVENT_TICK_S)
    wanted = math.ceil(min_s / max(device_s, MIN_LAUNCH_S))
    events = EventSampler(calls, min(MAX_QUEUED, wanted), launch_s, reading)
    try:
        if is_capturable and autograd.run_backward.called:  # capturing them may fail halfway
            events.why_no_graph = "autograd runs a backward pass"
        elif is_capturable:
            most = min(MAX_GRAPH_LAUNCHES, int(MAX_CAPTURE_S / launch_s))
            graph = _graph_sampler(calls, wanted, min_s, reading, most)
            events.why_no_graph = refusal(graph) if refusal else None
            if events.why_no_graph is None:
                return graph
    except RuntimeError as error:
        device.synchronize()
        # What broke the capture, and not the error that a broken capture ends with: in torch 2.11,
        # `torch.cuda.graph.__exit__` calls `capture_end` also after an error.
        first: BaseException = error
        while BROKEN_CAPTURE in str(first) and first.__context__ is not None:
            first = first.__context__
        lines = str(first).strip().splitlines()
        events.why_no_graph = lines[0].strip()[:150] if lines else ""
    require_joined(calls, device, max(launch_s, device_s), device_s)
    return events


def require_joined(calls: Sequence[Call], device: Device, call_s: float, device_s: float) -> None:
    """Compare what events show with the host's clock, which waits for all streams.

    `device_s` is the time of a call by events, and `call_s` the longer one of that and the host's.

    Raises:
        UsageError: the GPU works on after the last call longer than the calls take by events.
    """
    count = min(MAX_QUEUED, math.ceil(UNSEEN_CALLS_S / call_s))
    waits_s = []
    for _ in range(UNSEEN_TRIES):  # a busy host may wake up late
        for call in itertools.islice(itertools.cycle(calls), count):
            call()
        queued_at = clock.now()
        device.synchronize()
        waits_s.append(clock.now() - queued_at)
    unseen_s = min(waits_s) - UNSEEN_RATIO * count * device_s
    if unseen_s > MIN_UNSEEN_S:
        raise UsageError(
            f"a call launches work on a stream that torch's current stream does not wait for, so "
            f"its time is unknown: {duration(device_s)} by CUDA events, but after {count} calls "
            f"the GPU works {duration(unseen_s)} longer"
        )


def _graph_sampler(
    calls: Sequence[Call], wanted: int, min_s: float, reading: Reading | None, most: int
) -> GraphSampler:
    """Return a graph of about `wanted` launches, or of more if its replay is shorter than `min_s`.

    Timed by events, a short launch seems longer than it is, so `wanted` may be too low.
    """
    sampler = GraphSampler(calls, graph_launches(len(calls), wanted, most), reading)
    replay_s = min(sampler.sample() for _ in range(2))  # the first also moves the graph to the GPU
    launch_s = max(replay_s / sampler.launches_per_sample, MIN_LAUNCH_S)
    launches = graph_launches(len(calls), math.ceil(min_s / launch_s), most)
    if launches < MIN_GRAPH_GROWTH * sampler.launches_per_sample:
        return sampler
    del sampler  # frees its memory for the next capture
    return GraphSampler(calls, launches, reading)


def graph_launches(copies: int, wanted: int, most: int) -> int:
    """Return the number of launches of a graph: whole rounds of the copies, so that each replay
    starts cold. Only one round may have more than `most`.
    """
    rounds = max(1, math.ceil(wanted / copies))
    return max(copies, min(rounds * copies, most // copies * copies))


def host_launch_s(calls: Sequence[Call], synchronize: Call) -> float:
    """Return the median host time of a call, seconds, with an empty queue; a very slow first call
    does not count.
    """
    durations = timed_calls(calls, ESTIMATE_LAUNCHES, synchronize)
    if len(durations) == 1:
        durations = timed_calls(calls, ESTIMATE_LAUNCHES, synchronize)
    synchronize()
    return median(durations)


def host_latency_s(calls: Sequence[Call], synchronize: Call) -> float:
    """Return the median time from a call to its finished result, seconds."""
    return median(timed_calls(calls, LATENCY_CALLS, synchronize, is_awaited=True))


def empty_launch_s(device: Device) -> float:
    """Return the host time to launch an operation on one element, seconds: the minimum cost of a
    launch.
    """
    import torch

    element = torch.ones(1, device=device.torch_name)
    element.add_(0)
    return median(timed_calls([lambda: element.add_(0)], ESTIMATE_LAUNCHES, device.synchronize))


def timed_calls(
    calls: Sequence[Call],
    count: int,
    synchronize: Call,
    is_awaited: bool = False,
    now: Now = clock.now,
) -> list[float]:
    """Return the durations of `count` calls, seconds, or fewer after `PROBE_CAP_S`."""
    durations: list[float] = []
    began = now()
    for call in itertools.islice(itertools.cycle(calls), count):
        synchronize()
        start = now()
        call()
        if is_awaited:
            synchronize()
        durations.append(now() - start)
        if now() - began > PROBE_CAP_S:
            break
    return durations


def tick_s(device: Device, now: Now = clock.now) -> float:
    """Return the resolution of the host's clock, or of CUDA events, seconds; it may be the cost of
    reading the clock.

    Event durations are multiples of a tick, so the smallest one counts as a step too, in case the
    others are equal.

    Raises:
        UsageError: the host's clock does not advance.
    """
    if device.is_gpu:
        readings = sorted({0.0, *empty_event_pairs_s()})
        min_s = MIN_TICK_S
        default_s = EVENT_TICK_S
    else:
        readings = [now() for _ in range(HOST_TICKS)]
        require_advance(readings[-1] - readings[0])
        min_s = 0.0
        default_s = 0.0
    steps = (after - before for before, after in itertools.pairwise(readings))
    return min((step for step in steps if step > min_s), default=default_s)


def empty_event_pairs_s() -> list[float]:
    """Return durations of empty pairs of CUDA events, seconds, the minimum of a sample."""
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(EVENT_PAIRS)]
    for start, end in pairs:
        start.record()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
