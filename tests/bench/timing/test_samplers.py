"""Samplers, on a fake torch.cuda with simulated launch times."""

import contextlib
import weakref
from types import SimpleNamespace

import pytest
import torch

from bench.harness.op import UsageError
from bench.harness.timing import samplers
from bench.harness.timing.protocol import GPU_LIMITS, Limits
from bench.harness.timing.samplers import (
    BUSY_S,
    EVENT_TICK_S,
    EVENT_TICKS,
    LATENCY_CALLS,
    MAX_GRAPH_SPIN_S,
    MAX_QUEUED,
    MAX_SPIN_S,
    SPIN_CYCLES_PER_S,
    EventSampler,
    GraphSampler,
    HostSampler,
    graph_launches,
    host_latency_s,
    make_sampler,
)
from roofline.gpu_table import load_gpus
from tests.bench.commands import CPU, GPU
from tests.bench.fake_clock import set_clock

BROKEN = "operation failed due to a previous error during capture"
"""The error with which CUDA ends a capture after any other error."""


class FakeGpu:
    """Host and device clocks, a stream that runs queued work, and a log."""

    def __init__(self, enqueue_s=2e-6):
        self.host_s = self.device_s = 0.0
        self.enqueue_s, self.event_s = enqueue_s, 0.0
        self.log, self.capturing, self.can_capture = [], None, True
        self.current = "default stream"
        self.draws_recorded_numbers = False
        self.graph_launch_s, self.replays, self.pools = 0.0, 0, []

    def launch(self, name, duration_s):
        """Return a call that runs `duration_s` on the device, or is captured."""

        def call():
            self.host_s += self.enqueue_s
            if self.capturing is not None:
                self.capturing.append((name, duration_s))
            else:
                self._run(name, duration_s)

        return call

    def _run(self, name, duration_s):
        # The device cannot start before it is asked.
        self.device_s = max(self.device_s, self.host_s) + duration_s
        self.log.append(name)

    def sleep(self, cycles):
        self.log.append("spin")
        self.device_s = max(self.device_s, self.host_s) + cycles / 1.5e9

    def synchronize(self, device=None):
        self.host_s = max(self.host_s, self.device_s)

    @contextlib.contextmanager
    def graph(self, graph, pool=None):
        """Record; if that fails, leave stream and generator as torch leaves them.

        All graphs are captured on torch's stream for captures.
        """
        before, self.current = self.current, "capture stream"
        self.capturing, self.draws_recorded_numbers = graph.captured, True
        is_broken = True
        try:
            yield
            is_broken = False
        finally:
            self.capturing = None
            if is_broken:  # torch ends the capture also after an error, which is then the context
                raise RuntimeError(f"CUDA error: {BROKEN}")
        if graph.captured and not self.can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.current, self.draws_recorded_numbers = before, False

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def make(self):
        gpu = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                self.at_s = None

            def record(self):
                self.at_s = gpu.device_s = max(gpu.device_s, gpu.host_s) + gpu.event_s

            def query(self):
                return self.at_s <= gpu.host_s

            def synchronize(self):
                gpu.log.append("wait")
                gpu.host_s = max(gpu.host_s, self.at_s)

            def elapsed_time(self, other):
                return (other.at_s - self.at_s) * 1e3  # milliseconds, as torch has it

        class Graph:
            def __init__(self):
                self.captured = []

            def replay(self):
                gpu.replays += 1
                gpu.host_s += gpu.graph_launch_s  # before the GPU can begin with it
                for name, duration_s in self.captured:
                    gpu._run(name, duration_s)

        class Stream:
            pass

        return Event, Graph, Stream


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeGpu()
    event, graph, stream = fake.make()
    for name, value in {
        "Event": event,
        "CUDAGraph": graph,
        "Stream": stream,
        "graph": fake.graph,
        "stream": fake.stream,
        "current_stream": lambda: fake.current,
        "synchronize": fake.synchronize,
        "_sleep": fake.sleep,
        "graph_pool_handle": lambda: fake.pools.append(object()) or fake.pools[-1],
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    ended = []
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda device, pool: ended.append(pool)
    )
    monkeypatch.setattr(
        torch._C,
        "_cuda_releasePool",
        lambda device, pool: ended.remove(pool) or fake.pools.remove(pool),
    )
    set_clock(monkeypatch, lambda: fake.host_s)
    return fake


class HostClock:
    def __init__(self, monkeypatch):
        self.seconds = 0.0
        self.log = []
        set_clock(monkeypatch, lambda: self.seconds)

    def call(self, name, duration_s):
        def call():
            self.log.append(name)
            self.seconds += duration_s

        return call


def test_the_host_sampler_continues_with_the_next_copy(monkeypatch):
    clock = HostClock(monkeypatch)
    sampler = HostSampler([clock.call(name, 0.5) for name in "abc"], launches_per_sample=2)
    assert [sampler.sample() for _ in range(3)] == [1.0, 1.0, 1.0]
    assert clock.log == list("abcabc")
    assert sampler.method == "host"


@pytest.mark.parametrize(("copies", "launches"), [(1, 1), (3, 3), (20, 8)])
def test_renewed_inputs_are_used_once_a_sample(monkeypatch, copies, launches):
    clock = HostClock(monkeypatch)
    calls = [clock.call(copy, 2**-10) for copy in range(copies)]
    limits = Limits(20, 0.02, 0, 2, 0.1, min_sample_s=2**-7)

    def before():
        clock.log.append("renewed")
        clock.seconds += 100.0

    sampler = make_sampler(calls, CPU, limits, before=before)
    assert clock.log == ["renewed", *range(min(copies, 5))]
    clock.log.clear()
    assert [sampler.sample(), sampler.sample()] == [launches * 2**-10] * 2
    assert clock.log == ["renewed", *range(launches)] * 2


def test_inputs_are_renewed_before_each_queued_sample(gpu):
    calls = [gpu.launch(name, 1e-3) for name in "abc"]
    sampler = make_sampler(calls, GPU, GPU_LIMITS, before=gpu.launch("renewed", 1e-3))
    gpu.log.clear()
    assert sampler.sample() == pytest.approx(3e-3)
    assert gpu.log == ["renewed", "spin", *"abc", "wait"]
    assert sampler.method == "events"


def made(alive):
    result = torch.empty(1)
    alive.add(result)
    return result


def test_retained_host_results_are_limited_in_memory(monkeypatch):
    rss = iter([0, 10, 90, 110, 1000])
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(rss)))
    monkeypatch.setattr(samplers.psutil, "Process", lambda: process)
    monkeypatch.setattr(samplers, "MAX_KEPT_BYTES", 100)
    alive = weakref.WeakSet()
    sampler = HostSampler([lambda: made(alive)] * 50, launches_per_sample=4)
    seen = []
    for _ in range(6):
        sampler.sample()
        seen.append(len(alive))
    assert seen == [4, 8, 12, 12, 12, 12]


def test_a_graph_is_timed_by_its_replay(gpu):
    sampler = GraphSampler([gpu.launch(name, 10e-6) for name in "abc"], launches=6)
    assert gpu.log == []  # capturing runs nothing
    assert sampler.sample() == pytest.approx(60e-6)
    assert gpu.log == ["spin", *"abcabc", "wait"]
    assert (sampler.method, sampler.launches_per_sample) == ("graph", 6)


@pytest.mark.parametrize("graph_launch_s", [1e-6, 15e-6, 400e-6, 2e-3])
def test_graph_launch_latency_is_not_in_the_sample(gpu, graph_launch_s):
    gpu.graph_launch_s = graph_launch_s
    sampler = GraphSampler([gpu.launch("a", 10e-6)], launches=100)
    assert sampler.sample() == pytest.approx(1e-3, rel=1e-3)
    gpu.replays = 0
    assert [sampler.sample() for _ in range(20)] == pytest.approx([1e-3] * 20, rel=1e-3)
    assert gpu.replays < 30  # the spin stays as long as it must be


def test_the_spin_has_a_maximum_length(gpu, monkeypatch):
    spins_s, gpu.graph_launch_s = spins_of(gpu, monkeypatch), 1.0
    sampler = GraphSampler([gpu.launch("a", 10e-6)], launches=100)
    for _ in range(5):
        sampler.sample()
    assert max(spins_s) == pytest.approx(MAX_GRAPH_SPIN_S, rel=1e-3)
    assert len(spins_s) < 20


def test_a_checked_replay_waits_for_queued_work(gpu):
    sampler = GraphSampler([gpu.launch("a", 10e-6)], launches=3)
    gpu.launch("poison", 1e-3)()
    waited_s = []
    sampler._graph.replay = lambda: waited_s.append(gpu.host_s - gpu.device_s)
    sampler.replay()
    assert waited_s == [0.0]


def test_a_rejected_graph_is_not_timed(gpu):
    looked = []
    sampler = make_sampler(
        [gpu.launch("a", 10e-6)],
        GPU,
        GPU_LIMITS,
        refusal=lambda graph: looked.append(graph) or "no",
    )
    assert (sampler.method, sampler.why_no_graph, len(looked)) == ("events", "no", 1)
    assert make_sampler([gpu.launch("a", 10e-6)], GPU, GPU_LIMITS).why_no_graph is None


@pytest.mark.parametrize("copies", [1, 3])
def test_results_are_retained_for_one_round_of_copies(gpu, copies):
    alive = weakref.WeakSet()

    class Result:
        pass

    most = []

    def call():
        result = Result()
        alive.add(result)
        most.append(len(alive))
        return result

    GraphSampler([call] * copies, launches=4 * copies)
    assert max(most) == copies + 1  # the new one is made before the oldest is gone
    most.clear()
    sampler = EventSampler([call] * copies, 4 * copies, 0.0)
    sampler.sample()
    assert (max(most) >= copies + 1, len(alive)) == (True, copies)


def test_clock_and_power_are_polled_during_untimed_work(gpu):
    busy_s = []

    def read(keep_busy):
        assert keep_busy() == 300
        gpu.log.append("read")
        busy_s.append(gpu.device_s - gpu.host_s)

    call = gpu.launch("a", BUSY_S / 299.5)
    for sampler in (GraphSampler([call], 30, read), EventSampler([call], 30, 2e-6, read)):
        gpu.log.clear()
        assert [sampler.sample(), sampler.sample()] == pytest.approx([30 * BUSY_S / 299.5] * 2)
        expected = ["spin", *["a"] * 30, "wait", *["a"] * 300, "read"]
        assert gpu.log == expected * 2
    assert min(busy_s) > 0.9 * BUSY_S


def test_the_spin_is_long_enough_at_the_highest_clock():
    assert max(gpu.max_clock_hz or 0 for gpu in load_gpus().values()) <= SPIN_CYCLES_PER_S


def test_queued_launches_wait_behind_a_spin(gpu):
    gpu.enqueue_s = 50e-6  # the host is slower than the 10 us that a launch runs
    sampler = EventSampler([gpu.launch("a", 10e-6)], launches_per_sample=100, enqueue_s=50e-6)
    assert sampler.sample() == pytest.approx(100 * 10e-6)
    assert gpu.log == ["spin"] + ["a"] * 100 + ["wait"]
    assert (sampler.method, sampler.launches_per_sample) == ("events", 100)


def spins_of(gpu, monkeypatch):
    """Return the requested length of each spin in seconds, at the clock it is counted with."""
    spins_s, sleep = [], gpu.sleep
    monkeypatch.setattr(
        torch.cuda,
        "_sleep",
        lambda cycles: spins_s.append(cycles / SPIN_CYCLES_PER_S) or sleep(cycles),
    )
    return spins_s


@pytest.mark.parametrize("compiling", [1, 2, 3])
def test_compile_time_does_not_lengthen_the_spin(gpu, monkeypatch, compiling):
    spins_s, launch, calls = spins_of(gpu, monkeypatch), gpu.launch("a", 10e-6), iter(range(10**6))
    gpu.can_capture = False

    def call():
        gpu.host_s += 30.0 if next(calls) < compiling else 0.0
        launch()

    sampler = make_sampler([call] * 7, GPU, GPU_LIMITS)
    sampler.sample()
    assert spins_s
    assert max(spins_s) <= MAX_SPIN_S
    if compiling == 1:
        assert max(spins_s) < 0.01


def test_a_preempted_call_does_not_shorten_the_samples(monkeypatch):
    clock = HostClock(monkeypatch)
    monkeypatch.setattr(samplers, "tick_s", lambda device: 1e-9)
    durations_s = iter([2**-6, 2**-12, 2**-6, 2**-6, 2**-6])

    def call():
        clock.seconds += next(durations_s)

    sampler = make_sampler([call], CPU, Limits(20, 0.02, 0, 2, 0.1, min_sample_s=2**-10))
    assert (sampler.method, sampler.launches_per_sample) == ("host", 4)


@pytest.mark.parametrize("duration_s", [5e-6, 1e-4, 0.01])
def test_the_graph_sampler_replays_whole_rounds_of_copies(gpu, duration_s):
    calls = [gpu.launch(str(index), duration_s) for index in range(7)]
    sampler = make_sampler(calls, GPU, GPU_LIMITS)
    assert isinstance(sampler, GraphSampler)
    assert sampler.launches_per_sample % 7 == 0
    gpu.log.clear()
    sample_s = sampler.sample()
    launches = [name for name in gpu.log if name not in ("spin", "wait")]
    assert launches == [str(index) for index in range(7)] * (sampler.launches_per_sample // 7)
    assert sample_s >= GPU_LIMITS.min_sample_s * 0.99
    assert sample_s / sampler.launches_per_sample == pytest.approx(duration_s)


def test_a_graph_of_calls_that_launch_hundreds_of_kernels_is_limited(gpu):
    """By the time to launch them, as nothing tells how many a call has."""
    launch = gpu.launch("a", 1e-8)

    def call():
        gpu.host_s += 500 * 5e-6
        for _ in range(500):
            launch()

    sampler = make_sampler([call], GPU, GPU_LIMITS)
    assert sampler.method == "graph"
    assert sampler.launches_per_sample * 500 <= 20_000


@pytest.mark.parametrize(
    ("late", "event_s"), [(3, 0.0), (5, 0.0), (0, 8e-6)], ids=["late", "later", "slow events"]
)
def test_a_late_host_does_not_shorten_the_samples(gpu, late, event_s):
    """The first five calls measure the enqueue time, the next five are queued behind too short a
    spin.
    """
    launch, calls, gpu.event_s = gpu.launch("a", 5e-6), iter(range(10**6)), event_s

    def call():
        gpu.host_s += 1e-3 if 5 <= next(calls) < 5 + late else 0.0
        launch()

    sampler = make_sampler([call], GPU, GPU_LIMITS)
    assert isinstance(sampler, GraphSampler)
    assert sampler.launches_per_sample * 5e-6 >= GPU_LIMITS.min_sample_s * 0.98


def test_a_failed_capture_falls_back_to_events(gpu):
    gpu.can_capture = False
    sampler = make_sampler([gpu.launch(name, 10e-6) for name in "ab"], GPU, GPU_LIMITS)
    assert isinstance(sampler, EventSampler)
    assert sampler.sample() / sampler.launches_per_sample == pytest.approx(10e-6)  # and it works
    assert sampler.launches_per_sample <= MAX_QUEUED
    wanted_s = max(GPU_LIMITS.min_sample_s, EVENT_TICK_S * EVENT_TICKS)
    assert sampler.launches_per_sample >= min(MAX_QUEUED, wanted_s / 10e-6)
    assert (gpu.current, gpu.draws_recorded_numbers, gpu.pools) == ("default stream", False, [])


def test_the_first_error_of_a_broken_capture_is_named(gpu):
    """Its own context is not named: it is a cause that the call has handled."""
    launch = gpu.launch("a", 10e-6)

    def call():
        if gpu.capturing is None:
            return launch()
        try:
            raise KeyError("not in a cache")
        except KeyError:
            raise RuntimeError("operation not permitted when stream is capturing\n...")  # noqa: B904

    sampler = make_sampler([call], GPU, GPU_LIMITS)
    assert sampler.method == "events"
    assert sampler.why_no_graph == "operation not permitted when stream is capturing"


def test_errors_of_the_calls_are_raised(gpu):
    def broken():
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        make_sampler([broken], GPU, GPU_LIMITS)


@pytest.mark.parametrize(
    ("copies", "wanted", "launches"), [(7, 200, 203), (300, 10**6, 1800), (2001, 1, 2001)]
)
def test_graph_launches_are_whole_rounds_within_the_limit(copies, wanted, launches):
    assert graph_launches(copies, wanted, most=2000) == launches


def test_host_latency_is_the_median_from_call_to_result(gpu):
    # 2 us to enqueue, 10 us to run, waited for each time; the first call also loads a library.
    durations_s = iter([1.0] + [10e-6] * (LATENCY_CALLS - 1))

    def call():
        gpu.launch("a", next(durations_s))()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, "PROBE_CAP_S", 100.0)
        assert host_latency_s([call], GPU.synchronize) == pytest.approx(12e-6)
    assert len(gpu.log) == LATENCY_CALLS


def test_probing_a_slow_case_stops_after_one_call(monkeypatch):
    clock = HostClock(monkeypatch)
    assert host_latency_s([clock.call("a", 3.0)], CPU.synchronize) == 3.0
    assert clock.log == ["a"]


@pytest.mark.parametrize(
    ("durations_s", "tick_s"),
    [
        ([1.024e-6] * 499 + [8e-3], 1.024e-6),  # one late pair says nothing of the tick
        ([2e-6, 2.0000002e-6, 2.5e-6], 0.5e-6 - 2e-13),  # float rounding is not a timer tick
        ([0.0] * 500, EVENT_TICK_S),
    ],
)
def test_event_resolution_is_estimated_from_empty_pairs(monkeypatch, durations_s, tick_s):
    monkeypatch.setattr(samplers, "empty_event_pairs_s", lambda: durations_s)
    assert samplers.tick_s(GPU) == pytest.approx(tick_s)


def test_a_backward_pass_is_not_captured(gpu):
    launch = gpu.launch("a", 10e-6)
    weight = torch.ones(2, requires_grad=True)

    def call():
        launch()
        (weight * 2).sum().backward()

    engine = torch.autograd.Variable._execution_engine
    sampler = make_sampler([call], GPU, GPU_LIMITS)
    assert (sampler.method, sampler.why_no_graph) == ("events", "autograd runs a backward pass")
    assert make_sampler([call], GPU, GPU_LIMITS, is_capturable=False).why_no_graph is None
    assert torch.autograd.Variable._execution_engine is engine


@pytest.mark.parametrize(("unseen_s", "is_found"), [(0.0, False), (50e-6, True), (5e-3, True)])
def test_work_on_a_stream_that_is_not_joined_is_no_empty_interval(
    gpu, monkeypatch, unseen_s, is_found
):
    launch = gpu.launch("a", 2e-6)
    other_s = [0.0]

    def call():
        launch()
        other_s[0] = max(other_s[0], gpu.host_s) + unseen_s

    def synchronize(device=None):
        gpu.host_s = max(gpu.host_s, gpu.device_s, other_s[0])

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    gpu.can_capture = False  # as a stream that is not joined
    if not is_found:
        assert make_sampler([call], GPU, GPU_LIMITS).method == "events"
        return
    with pytest.raises(UsageError, match=r"a stream that .* does not wait for.*by CUDA events"):
        make_sampler([call], GPU, GPU_LIMITS)


def test_a_host_that_wakes_up_late_once_is_no_unseen_work(gpu, monkeypatch):
    gpu.can_capture = False
    launches = []
    launch = gpu.launch("a", 2e-6)

    def call():
        launches.append(1)
        launch()

    def synchronize(device=None):
        is_first = len(launches) > 2 * MAX_QUEUED and "late" not in gpu.log
        if is_first:
            gpu.log.append("late")
        gpu.host_s = max(gpu.host_s, gpu.device_s) + 0.01 * is_first

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert make_sampler([call], GPU, GPU_LIMITS).method == "events"
    assert "late" in gpu.log


def test_a_late_queue_is_repeated_behind_a_longer_spin(gpu):
    delays_s, launch = [5e-3, 0.0], gpu.launch("a", 10e-6)

    def call():
        gpu.host_s += delays_s.pop(0) if delays_s else 0.0
        launch()

    sampler = EventSampler([call], 10, enqueue_s=1e-4)
    # 5 ms with the time in which the GPU waited for the host.
    assert sampler.sample() == pytest.approx(100e-6)
    assert gpu.log.count("spin") == 2


def test_work_that_waits_for_the_gpu_is_not_repeated_for_ever(gpu, monkeypatch):
    spins_s, launch, waits = spins_of(gpu, monkeypatch), gpu.launch("a", 5e-3), [True]

    def call():
        launch()
        if waits[0]:
            gpu.synchronize()

    sampler = EventSampler([call], 1, enqueue_s=5e-3)
    for _ in range(10):
        sampler.sample()
    assert spins_s[-9:] == pytest.approx([6.5e-3] * 9)
    waits[0] = False
    sampler.sample()
    waits[0] = True
    spins_s.clear()
    sampler.sample()
    assert spins_s == pytest.approx([6.5e-3, 13e-3, 26e-3, 52e-3])
