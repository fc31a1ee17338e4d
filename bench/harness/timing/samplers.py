"""The ladder of clocks: CUDA graph replay, else queued CUDA events, else the host's clock.

Each sampler takes the calls of one provider, one call for each copy of the inputs, and rotates through them, so that a
launch never finds its own data in the cache. What the calls return is kept for a round, so that every launch of a round
writes memory of its own.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import psutil

from bench.harness.device.device import MIB, Device, memory_bytes
from bench.harness.timing.protocol import Limits, Sampler, no_garbage_collection

Call = Callable[[], object]

Reading = Callable[[Callable[[], int]], object]
"""Called after a sample with what queues `BUSY_S` of untimed work and counts its launches; reads clock and power."""

MAX_GRAPH_LAUNCHES = 2000
"""Longest graph: instantiating more takes seconds."""

HOST_TICKS = 1000
"""Ticks that a sample of the host's clock lasts at least."""

EVENT_TICK_S, EVENT_TICKS = 1.024e-6, 200
"""Coarsest step of CUDA event times seen in published records (triton#10149), and the ticks that a sample on a GPU
lasts at least, so that the tick is within the 0.5 % that its interval aims at."""

EVENT_PAIRS, MIN_TICK_S = 500, 1e-9
"""Event times are single precision: smaller steps are its last digits, not ticks."""

MAX_QUEUED = 300
"""Launches queued behind a spinning kernel: well below the roughly 1024 entries of the launch queue, so that the
host never waits for the GPU within a sample."""

SPIN_CYCLES_PER_S = 3.2e9
"""Cycles of the spinning kernel per second, above all clocks of the GPU table: slower clocks only spin longer."""

SPIN_SHARE = 1.3
"""Length of the spin over the time that it takes to queue the launches behind it."""

LEAST_SPIN_S, LONGEST_GRAPH_SPIN_S = 30e-6, 5e-3
"""Spin before the replay of a graph: launching one takes the host about 10 us."""

LONGEST_SPIN_S = 0.5
"""Longest spin before queued launches. It does not wait for a slower host: one enqueue time that contains a compilation
would make every sample last minutes."""

MOST_LONGER, SHORTER_SPIN = 8, 0.98
"""Factor by which the spin before queued launches may grow when the host is late, and by which a longer one becomes
shorter again with each sample that was queued in time."""

GROWN = 1.5
"""A graph whose replay is shorter than wanted by this factor is captured again, with more launches."""

BUSY_S = 0.05
"""Work that is queued before clock and power are read, so that the GPU is busy meanwhile: each takes up to 20 ms."""

ESTIMATE_LAUNCHES, LATENCY_CALLS, SHORTEST_LAUNCH_S = 5, 50, 1e-7
PROBE_CAP_S = 0.2
"""Time after which estimates stop calling: one call of a slow case is enough to know it."""

MAX_KEPT_BYTES = 1024 * MIB
"""Maximum memory for the results that `HostSampler` keeps; a quarter of the free memory if that is less."""

_failed_graphs: list[Any] = []
"""Graphs whose capture failed, without memory: torch's allocator of pinned memory asks them about every later one."""


class HostSampler:
    """Times launches with the host's clock: the only clock of a CPU, and exact there.

    The results of a single call, which is warm, are not kept: malloc then returns the block that is in the cache.
    """

    method = "host"
    why_no_graph: str | None = None

    def __init__(self, calls: Sequence[Call], launches_per_sample: int, before: Call | None = None) -> None:
        """Time so many of the calls between two readings of the clock, right after `before`, which is not timed."""
        self.launches_per_sample, self._before = launches_per_sample, before
        self.calls = itertools.cycle(calls)
        """Endless: the next sample goes on where the last one ended."""
        self._kept: deque[object] = deque(maxlen=len(calls) if len(calls) > 1 else 0)
        self._max_rss = psutil.Process().memory_info().rss + min(MAX_KEPT_BYTES, memory_bytes()[1] // 4)

    def sample(self) -> float:
        launches, keep = itertools.islice(self.calls, self.launches_per_sample), self._kept.append
        if self._before is not None:
            self._before()
        start = time.perf_counter()
        for call in launches:
            keep(call())
        sample_s = time.perf_counter() - start
        if len(self._kept) < (self._kept.maxlen or 0) and psutil.Process().memory_info().rss > self._max_rss:
            self._kept = deque(self._kept, maxlen=len(self._kept))
        return sample_s

    def drop_results(self) -> None:
        self._kept.clear()

    def keep_result_of(self, call: Call) -> None:
        """Call once, untimed, so that the result of a later launch takes the place of this one."""
        self._kept.append(call())


class _QueuedSampler:
    """Times what is queued between two CUDA events, behind a spinning kernel that holds the GPU back meanwhile.

    Without the spin the first event would pass on an idle GPU, and the time that the host takes to queue the work would
    be in the sample. A sample that was queued too late is taken again behind a longer spin, up to the longest.
    """

    why_no_graph: str | None = None
    _stream: Any = None
    """The current stream if None."""

    _entries = 1
    """Entries of the launch queue that a sample takes."""
    _before: Call | None = None

    def __init__(self, launches: int, reading: Reading | None, spin_s: float, longest_spin_s: float) -> None:
        self.launches_per_sample, self._reading = launches, reading
        self._spin_s, self._shortest_spin_s, self._longest_spin_s = spin_s, spin_s, longest_spin_s

    def _launch(self) -> None:
        raise NotImplementedError

    def sample(self) -> float:
        was_late = True
        while was_late:
            start, end, was_late = self._queued()
            end.synchronize()
            if was_late and self._spin_s >= self._longest_spin_s:
                break
            longer_s, shorter_s = 2 * self._spin_s, SHORTER_SPIN * self._spin_s
            self._spin_s = min(longer_s, self._longest_spin_s) if was_late else max(shorter_s, self._shortest_spin_s)
        sample_s = float(start.elapsed_time(end)) / 1e3
        if self._reading is not None:
            self._reading(partial(self._keep_busy, sample_s))
        return sample_s

    def _queued(self) -> tuple[Any, Any, bool]:
        """Queue a sample behind a spin; return the events around it, and whether the GPU had begun before the end."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(math.ceil(self._spin_s * SPIN_CYCLES_PER_S))
            if self._before is not None:
                self._before()
            start.record()
            self._launch()
            end.record()
        return start, end, start.query()

    def _keep_busy(self, sample_s: float) -> int:
        """Queue `BUSY_S` of work, or less if launches are so short that the queue does not hold enough of them."""
        import torch

        times = min(math.ceil(BUSY_S / max(sample_s, SHORTEST_LAUNCH_S)), max(1, MAX_QUEUED // self._entries))
        with torch.cuda.stream(self._stream):
            for _ in range(times):
                self._launch()
        return times * self.launches_per_sample


class GraphSampler(_QueuedSampler):
    """Times the replay of a CUDA graph that holds many launches: no host time is in it."""

    method = "graph"

    def __init__(self, calls: Sequence[Call], launches: int, reading: Reading | None = None) -> None:
        """Capture `launches` launches, whole rounds of `calls`; raise `RuntimeError` if not all can be captured."""
        import torch

        super().__init__(launches, reading, LEAST_SPIN_S, LONGEST_GRAPH_SPIN_S)
        self._stream = torch.cuda.Stream()
        self._graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        self.results: list[object] = [None] * len(calls)
        """What the last captured launch of each call returned: a replay writes it anew."""
        torch.cuda.synchronize()
        try:
            # A graph or Triton kernel that is collected meanwhile is unloaded, which ends the capture: pytorch#161037;
            # Triton 3.9, `triton/testing.py`. A capture that fails leaves its stream the current one.
            with (
                no_garbage_collection(),
                warnings.catch_warnings(record=True) as caught,
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(self._graph, pool=pool, stream=self._stream),
            ):
                warnings.simplefilter("always")
                for index in range(launches):
                    self.results[index % len(calls)] = calls[index % len(calls)]()
        except RuntimeError:
            self.results.clear()
            _after_failed_capture(self._graph, pool, self._stream)
            raise
        if any("graph is empty" in str(warning.message).lower() for warning in caught):
            raise RuntimeError("nothing was captured: the work is on a stream that a capture does not see")

    def _launch(self) -> None:
        self._graph.replay()

    def replay(self) -> None:
        """Replay the graph once, after all that was queued before on any stream, and wait for it."""
        import torch

        torch.cuda.synchronize()  # its stream does not wait for the default one
        with torch.cuda.stream(self._stream):
            self._launch()
        torch.cuda.synchronize()


def _after_failed_capture(graph: Any, pool: Any, stream: Any) -> None:
    """Give the memory of a failed capture back, and let one more capture end, which makes torch's generator usable.

    Source: torch 2.11, `CUDAGraph::capture_end` returns with the error of `cudaStreamEndCapture` before it tells the
    allocator and the default generator, whose next number then raises "Offset increment outside graph capture".
    """
    import torch

    _failed_graphs.append(graph)
    for give_back in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
        with suppress(RuntimeError):
            give_back(torch.cuda.current_device(), pool)
    with warnings.catch_warnings(), suppress(RuntimeError), torch.cuda.stream(torch.cuda.current_stream()):
        warnings.simplefilter("ignore")  # that it is empty
        empty = torch.cuda.CUDAGraph()
        with torch.cuda.graph(empty, stream=stream):
            pass


class EventSampler(_QueuedSampler):
    """Times a queue of launches; if they take the host longer than the longest spin, the time is the host's."""

    method = "events"

    def __init__(
        self,
        calls: Sequence[Call],
        launches_per_sample: int,
        enqueue_s: float,
        reading: Reading | None = None,
        before: Call | None = None,
    ) -> None:
        """Time calls that take the host `enqueue_s` each; `before` is called behind the spin, and is not timed."""
        spin_s = min(wanted_spin_s(enqueue_s, launches_per_sample), LONGEST_SPIN_S)
        super().__init__(launches_per_sample, reading, spin_s, min(MOST_LONGER * spin_s, LONGEST_SPIN_S))
        self._before, self._entries = before, launches_per_sample
        self._calls = itertools.cycle(calls)
        self._kept: deque[object] = deque(maxlen=len(calls))

    def _launch(self) -> None:
        for call in itertools.islice(self._calls, self.launches_per_sample):
            self._kept.append(call())


def wanted_spin_s(enqueue_s: float, launches: int) -> float:
    """Return the seconds of a spin that holds launches back until all are queued."""
    return enqueue_s * launches * SPIN_SHARE


def make_sampler(
    calls: Sequence[Call],
    device: Device,
    limits: Limits,
    is_capturable: bool = True,
    refusal: Callable[[GraphSampler], str | None] | None = None,
    reading: Reading | None = None,
) -> Sampler:
    """Return the best sampler for these calls; `refusal` returns why a captured graph is rejected, or None."""
    if not device.is_gpu:
        # The least: one preempted call of five must not make the samples a thousand times too short.
        launch_s = max(min(timed_calls(calls, ESTIMATE_LAUNCHES, device.synchronize)), 1e-9)
        least_s = max(limits.min_sample_s, HOST_TICKS * tick_s(device))
        return HostSampler(calls, max(1, math.ceil(least_s / launch_s)))
    launch_s = host_launch_s(calls, device.synchronize)
    events = EventSampler(calls, min(MAX_QUEUED, max(1, len(calls))), launch_s)
    # The least, here too: if the host was late, the events also timed how long the GPU waited for it.
    device_s = min(events.sample() for _ in range(ESTIMATE_LAUNCHES)) / events.launches_per_sample
    least_s = max(limits.min_sample_s, EVENT_TICKS * EVENT_TICK_S)
    wanted = math.ceil(least_s / max(device_s, SHORTEST_LAUNCH_S))
    events = EventSampler(calls, min(MAX_QUEUED, wanted), launch_s, reading)
    try:
        if is_capturable:
            graph = _graph_sampler(calls, wanted, least_s, reading)
            events.why_no_graph = refusal(graph) if refusal else None
            if events.why_no_graph is None:
                return graph
    except RuntimeError as error:
        device.synchronize()
        events.why_no_graph = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:150]
    return events


def _graph_sampler(calls: Sequence[Call], wanted: int, least_s: float, reading: Reading | None) -> GraphSampler:
    """Return a graph of about `wanted` launches, or of more if its replay turns out to be shorter than `least_s`.

    Between two events a short launch seems longer than it is, so that too few launches are wanted.
    """
    sampler = GraphSampler(calls, graph_launches(len(calls), wanted), reading)
    replay_s = min(sampler.sample() for _ in range(2))  # the first also moves the graph to the GPU
    launch_s = max(replay_s / sampler.launches_per_sample, SHORTEST_LAUNCH_S)
    launches = graph_launches(len(calls), math.ceil(least_s / launch_s))
    if launches < GROWN * sampler.launches_per_sample:
        return sampler
    del sampler  # with its memory, before the next capture takes as much
    return GraphSampler(calls, launches, reading)


def graph_launches(copies: int, wanted: int) -> int:
    """Return the launches of a graph: whole rounds of the copies, so that each replay starts on data long evicted."""
    rounds = max(1, math.ceil(wanted / copies))
    return max(copies, min(rounds * copies, MAX_GRAPH_LAUNCHES // copies * copies))


def host_launch_s(calls: Sequence[Call], synchronize: Call) -> float:
    """Return the seconds that one call keeps the host, median of a few, the queue empty before each.

    A first call that takes very long may have compiled something, and does not count.
    """
    durations = timed_calls(calls, ESTIMATE_LAUNCHES, synchronize)
    if len(durations) == 1:
        durations = timed_calls(calls, ESTIMATE_LAUNCHES, synchronize)
    synchronize()
    return median(durations)


def host_latency_s(calls: Sequence[Call], synchronize: Call) -> float:
    """Return the seconds from a call to its finished result, as a caller who waits for it sees them: the median."""
    return median(timed_calls(calls, LATENCY_CALLS, synchronize, is_awaited=True))


def empty_launch_s(device: Device) -> float:
    """Return the seconds that the host takes to launch an operation on one element: what every launch costs it."""
    import torch

    one = torch.ones(1, device=device.torch_name)
    one.add_(0)
    return median(timed_calls([lambda: one.add_(0)], ESTIMATE_LAUNCHES, device.synchronize))


def timed_calls(calls: Sequence[Call], count: int, synchronize: Call, is_awaited: bool = False) -> list[float]:
    """Return the durations of up to `count` calls, seconds, fewer once `PROBE_CAP_S` is spent."""
    durations: list[float] = []
    began = time.perf_counter()
    for call in itertools.islice(itertools.cycle(calls), count):
        synchronize()
        start = time.perf_counter()
        call()
        if is_awaited:
            synchronize()
        durations.append(time.perf_counter() - start)
        if time.perf_counter() - began > PROBE_CAP_S:
            break
    return durations


def tick_s(device: Device) -> float:
    """Return the smallest step of the clock that samples are read from, seconds: the host's, or that of CUDA events.

    The host's may be the cost of reading it. Durations between events are whole numbers of ticks, so the smallest
    duration counts too: if all are equal except for a late one, it is nearer to the tick than their distance.
    """
    if device.is_gpu:
        readings, least_s, default_s = sorted({0.0, *_empty_event_pairs_s()}), MIN_TICK_S, EVENT_TICK_S
    else:
        readings, least_s, default_s = [time.perf_counter() for _ in range(HOST_TICKS)], 0.0, 0.0
    steps = (after - before for before, after in itertools.pairwise(readings))
    return min((step for step in steps if step > least_s), default=default_s)


def event_floor_s() -> float:
    """Return the median duration of an empty pair of CUDA events, seconds: no sample can be shorter."""
    return median(_empty_event_pairs_s())


def _empty_event_pairs_s() -> list[float]:
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(EVENT_PAIRS)]
    for start, end in pairs:
        start.record()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) / 1e3 for start, end in pairs]
