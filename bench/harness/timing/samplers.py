"""The ladder of clocks: CUDA graph replay, else queued CUDA events, else the host's clock.

Each sampler takes the calls of one provider, one call for each copy of the inputs, and goes round them, so that a
launch never finds its own data in the cache.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bench.harness.device.device import Device
from bench.harness.timing.protocol import Limits, Sampler, clock_tick_s, launches_for
from results.stats.samples import median

Call = Callable[[], object]

MAX_GRAPH_LAUNCHES = 2000
"""Longest graph: instantiating more takes seconds."""

EVENT_TICK_S = 1.024e-6
"""Coarsest step of CUDA event times seen in published records (triton#10149)."""

EVENT_TICKS = 200
"""Ticks that a sample on a GPU lasts at least, so that the tick is within the 0.5 % that its interval aims at."""

EVENT_PAIRS = 500
LEAST_TICK_S = 1e-9

MAX_QUEUED = 300
"""Launches queued behind a spinning kernel: well below the roughly 1024 entries of the launch queue, so that the
host never waits for the GPU within a sample."""

SPIN_CYCLES_PER_S = 2e9
"""Cycles of the spinning kernel per second at the highest clock of today's GPUs: slower clocks only spin longer."""

SPIN_SHARE = 1.3
"""The spin lasts so many times what it takes to queue the launches behind it."""

LONGEST_SPIN_S = 0.5
"""Longer than `MAX_QUEUED` launches take that the host queues in a millisecond each. A host that takes longer is not
waited for: else one reading that holds a compilation would make every sample last for minutes."""

ESTIMATE_LAUNCHES = 5
SHORTEST_LAUNCH_S = 1e-7
GROWN = 1.5
"""Factor by which a graph must be too short to be captured again."""

WAITED_SAMPLE_S = 0.02
"""Shortest sample where the wait for the device is in it, so that its share of the time is small."""

LATENCY_CALLS = 50
PROBE_CAP_S = 0.2
"""Time after which estimates stop calling: one call of a slow case is enough to know it."""

_failed_graphs: list[Any] = []
"""Graphs whose capture failed, kept: torch's allocator asks them about every later capture."""


class HostSampler:
    """Times launches with the host's clock: the only clock of a CPU, and exact there.

    On an Apple GPU a sample ends when all of its launches are done. `torch.mps.Event` is not used: its times were found
    to be those of callbacks on the host, which come late and not always in order, and waiting for one could hang.

    Source: https://github.com/pytorch/pytorch/pull/196395.
    """

    method = "host"

    def __init__(
        self, calls: Sequence[Call], launches_per_sample: int, synchronize: Callable[[], object] = lambda: None
    ) -> None:
        """Go round `calls`, `launches_per_sample` of them between two readings, and wait with `synchronize`."""
        self.launches_per_sample = launches_per_sample
        self._synchronize = synchronize
        self.begin_with(calls)

    def begin_with(self, calls: Sequence[Call], first: int = 0) -> None:
        """Go round other calls from now on, beginning with the one at a place."""
        self._calls = itertools.islice(itertools.cycle(calls), first, None)

    def sample(self) -> float:
        """Return the duration of one sample, seconds."""
        launches = itertools.islice(self._calls, self.launches_per_sample)
        start = time.perf_counter()
        for call in launches:
            call()
        self._synchronize()
        return time.perf_counter() - start


class GraphSampler:
    """Times the replay of a CUDA graph that holds many launches: no host time is in it."""

    method = "graph"

    def __init__(self, calls: Sequence[Call], launches: int) -> None:
        """Capture `launches` launches, whole rounds of `calls`, on a stream of its own.

        Raises:
            RuntimeError: something in the calls cannot be captured.
        """
        import torch

        self.launches_per_sample = launches
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        try:
            # A capture that fails leaves its stream the current one.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(self._graph, stream=self._stream):
                for call in itertools.islice(itertools.cycle(calls), launches):
                    call()
        except RuntimeError:
            _after_failed_capture(self._graph, self._stream)
            raise

    def sample(self) -> float:
        """Return the duration of one replay, seconds."""
        import torch

        with torch.cuda.stream(self._stream):
            self._start.record()
            self._graph.replay()
            self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


def _after_failed_capture(graph: Any, stream: Any) -> None:
    """Let torch's random numbers be drawn again: they are still taken for recorded. One more capture ends that.

    Source: torch 2.11, `CUDAGraph::capture_end` returns with the error of `cudaStreamEndCapture` before it tells the
    default generator, whose next number then raises "Offset increment outside graph capture encountered unexpectedly".
    """
    import torch

    _failed_graphs.append(graph)
    with warnings.catch_warnings(), suppress(RuntimeError), torch.cuda.stream(torch.cuda.current_stream()):
        warnings.simplefilter("ignore")  # that it is empty
        empty = torch.cuda.CUDAGraph()
        with torch.cuda.graph(empty, stream=stream):
            pass


class EventSampler:
    """Times a queue of launches between two CUDA events, held back by a spinning kernel until all are queued.

    Without the spin the GPU would wait for the host between short launches, and the time would be the host's. The same
    is true of launches that take the host longer than the longest spin.
    """

    method = "events"

    def __init__(self, calls: Sequence[Call], launches_per_sample: int, enqueue_s: float) -> None:
        """Queue `launches_per_sample` calls a sample; enqueuing one takes the host `enqueue_s` seconds."""
        import torch

        self.launches_per_sample = launches_per_sample
        self._calls = itertools.cycle(calls)
        spin_s = min(wanted_spin_s(enqueue_s, launches_per_sample), LONGEST_SPIN_S)
        self._spin_cycles = math.ceil(spin_s * SPIN_CYCLES_PER_S)
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample(self) -> float:
        """Return the duration of one queue of launches, seconds."""
        import torch

        torch.cuda._sleep(self._spin_cycles)
        self._start.record()
        for call in itertools.islice(self._calls, self.launches_per_sample):
            call()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


def wanted_spin_s(enqueue_s: float, launches: int) -> float:
    """Return how long a spin has to be that holds launches back until all are queued, seconds."""
    return enqueue_s * launches * SPIN_SHARE


def make_sampler(calls: Sequence[Call], device: Device, limits: Limits, is_capturable: bool = True) -> Sampler:
    """Return the best sampler that this device and these calls allow; a graph only where `is_capturable`."""
    if not device.has_cuda:
        return _host_sampler(calls, device, limits)
    launch_s = host_launch_s(calls, device.synchronize)
    events = EventSampler(calls, min(MAX_QUEUED, max(1, len(calls))), launch_s)
    # The least, here too: where the host was late, the events also timed how long the GPU waited for it.
    device_s = min(events.sample() for _ in range(ESTIMATE_LAUNCHES)) / events.launches_per_sample
    wanted = launches_for(max(device_s, SHORTEST_LAUNCH_S), limits.min_sample_s, EVENT_TICK_S, EVENT_TICKS)
    try:
        if is_capturable:
            return _graph_sampler(calls, wanted, limits)
    except RuntimeError:
        device.synchronize()
    return EventSampler(calls, min(MAX_QUEUED, wanted), launch_s)


def _host_sampler(calls: Sequence[Call], device: Device, limits: Limits) -> HostSampler:
    """Return what times launches with the host's clock, so many of them that a sample is long enough."""
    durations = _timed_calls(calls, ESTIMATE_LAUNCHES, before=device.synchronize, after=device.synchronize)
    # The least: one preempted call of five must not make the samples a thousand times too short.
    launch_s, tick_s = max(min(durations), 1e-9), clock_tick_s()
    if not device.is_gpu:
        return HostSampler(calls, launches_for(launch_s, limits.min_sample_s, tick_s))
    least_s = max(limits.min_sample_s, WAITED_SAMPLE_S)
    few = HostSampler(calls, launches_for(launch_s, least_s, tick_s), device.synchronize)
    launch_s = max(few.sample() / few.launches_per_sample, SHORTEST_LAUNCH_S)  # so far each was waited for
    return HostSampler(calls, launches_for(launch_s, least_s, tick_s), device.synchronize)


def _graph_sampler(calls: Sequence[Call], wanted: int, limits: Limits) -> GraphSampler:
    """Return a graph of about `wanted` launches, or of more where its replay turns out to be too short.

    Between two events a short launch seems longer than it is, and a late host makes it seem longer still: then so few
    launches are wanted that the tick of the clock would show. Within a graph the GPU waits for nobody.

    Raises:
        RuntimeError: something in the calls cannot be captured.
    """
    sampler = GraphSampler(calls, graph_launches(len(calls), wanted))
    replay_s = min(sampler.sample() for _ in range(2))  # the first also moves the graph to the GPU
    launch_s = max(replay_s / sampler.launches_per_sample, SHORTEST_LAUNCH_S)
    launches = graph_launches(len(calls), launches_for(launch_s, limits.min_sample_s, EVENT_TICK_S, EVENT_TICKS))
    return sampler if launches < GROWN * sampler.launches_per_sample else GraphSampler(calls, launches)


def graph_launches(copies: int, wanted: int) -> int:
    """Return the launches of a graph: whole rounds of the copies, so that each replay starts on data long evicted."""
    rounds = max(1, math.ceil(wanted / copies))
    return max(copies, min(rounds * copies, MAX_GRAPH_LAUNCHES // copies * copies))


def host_launch_s(calls: Sequence[Call], synchronize: Callable[[], None]) -> float:
    """Return the seconds that one call keeps the host, median of a few, the queue empty before each.

    A first call that takes very long may have compiled something, and does not count.
    """
    durations = _timed_calls(calls, ESTIMATE_LAUNCHES, before=synchronize, after=lambda: None)
    if len(durations) == 1:
        durations = _timed_calls(calls, ESTIMATE_LAUNCHES, before=synchronize, after=lambda: None)
    synchronize()
    return median(durations)


def tick_s(device: Device) -> float:
    """Return the smallest step of the clock that samples are read from, seconds: the host's, or that of CUDA events."""
    return event_tick_s() if device.has_cuda else clock_tick_s()


def event_tick_s() -> float:
    """Return the smallest difference between the durations of many empty pairs of CUDA events, and nothing, seconds.

    A duration is a whole number of ticks. Where all are equal but for a late one, they tell more than the distance of
    the late one.
    """
    durations = sorted({0.0, *_empty_event_pairs_s()})
    steps = [after - before for before, after in itertools.pairwise(durations)]
    # Durations are handed over in single precision: steps of its last digits are none of the clock.
    return min((step for step in steps if step > LEAST_TICK_S), default=EVENT_TICK_S)


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


def empty_launch_s(device: Device) -> float:
    """Return the seconds that the host takes to launch an operation on one element: what every launch costs it."""
    import torch

    one = torch.ones(1, device=device.torch_name)
    calls = [lambda: one.add_(0)]
    calls[0]()
    return host_launch_s(calls, device.synchronize)


def host_latency_s(calls: Sequence[Call], synchronize: Callable[[], None]) -> float:
    """Return the seconds from a call to its finished result, as a caller who waits for it sees them: the median."""
    return median(_timed_calls(calls, LATENCY_CALLS, before=synchronize, after=synchronize))


def _timed_calls(
    calls: Sequence[Call], count: int, before: Callable[[], None], after: Callable[[], None]
) -> list[float]:
    """Return the durations of up to `count` calls, seconds, fewer once `PROBE_CAP_S` is spent."""
    durations: list[float] = []
    began = time.perf_counter()
    for call in itertools.islice(itertools.cycle(calls), count):
        before()
        start = time.perf_counter()
        call()
        after()
        durations.append(time.perf_counter() - start)
        if time.perf_counter() - began > PROBE_CAP_S:
            break
    return durations
