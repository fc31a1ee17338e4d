"""Curves of bandwidth against size, on a simulated memory whose launch, cache and bandwidth are known."""

import dataclasses
import itertools
import math
import random

import pytest

from bench.harness.calibrate import bandwidth_curve
from bench.harness.calibrate.bandwidth import CACHE, Stream
from bench.harness.calibrate.bandwidth_curve import (
    CurvePoint,
    cache_plateau,
    cold_copies,
    cold_curve,
    fit,
    knee_bytes,
    plateau,
    sizes,
    warm_curve,
)
from bench.harness.calibrate.search import Launch, NotMeasuredError, Trial
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Limits, Samples
from results.stats.samples import median, median_ci95

KIB, GIB = 2**10, 2**30
LIMITS = Limits(9, 0.01, 0.0, 1.0, 0.0, 0.0)


def device(cache_bytes=50 * MIB, kind="cuda"):
    return Device(kind, "cpu", "slug", "name", cache_bytes, 2**40, sm_count=132)


def samples_of(times_s):
    times_s = tuple(times_s)
    return Samples(times_s, 1, "graph", "cold", median(times_s), median_ci95(times_s), True)


@dataclasses.dataclass
class Memory:
    """A launch takes its floor, and its bytes at the speed of the cache for the share of them that is there."""

    launch_s: float = 2e-6
    memory: float = 4e12
    cache: float = 10e12
    cache_bytes: int = 50 * MIB
    noise: float = 0.01
    preempted: float = 0.0
    seed: int = 0

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.rounds = []

    def measure(self, calls, limits):
        self.rounds.append(calls)
        total = sum(size for _, size in {call[:2] for call in calls})
        [work] = {call[2] for call in calls}
        # Beyond the cache the share that still hits falls with the size, as in a cache of random replacement.
        hits = min(1.0, self.cache_bytes / total)
        seconds = self.launch_s + work * (hits / self.cache + (1 - hits) / self.memory)
        return samples_of(seconds * self.disturbance() for _ in range(limits.min_samples))

    def disturbance(self):
        slower = self.random.uniform(2, 50) if self.random.random() < self.preempted else 1.0
        return max(0.9, self.random.gauss(1, self.noise)) * slower

    def stream(self, mix="read", smallest=0):
        def launch(size, start):
            if size < smallest:
                raise ValueError("too small")
            return Launch((start, size, size), size)

        return Stream(mix, "simulated", launch)


# ---- sizes --------------------------------------------------------------------------------------------------------


def test_sizes_double_from_64_kib_to_the_largest():
    assert sizes(GIB) == [64 * KIB * 2**step for step in range(15)]
    assert sizes(128 * MIB, 4 * MIB) == [MIB * 2**step for step in range(2, 8)]


@pytest.mark.parametrize("largest", [100 * 10**6, 7 * MIB + 4096, GIB])
def test_sizes_are_whole_pages_and_end_with_the_largest(largest):
    for per_octave in (1, 2, 4):
        found = sizes(largest, 2 * MIB, per_octave)
        assert all(size % 4096 == 0 for size in found)
        assert largest - 4096 < found[-1] <= largest
        assert 2 * MIB <= found[0] < 2 * MIB * 2 ** (1 / per_octave) * 1.01
        for smaller, larger in itertools.pairwise(found):
            assert larger / smaller == pytest.approx(2 ** (1 / per_octave), rel=0.01)


def test_there_are_no_sizes_below_the_smallest():
    assert sizes(KIB) == []
    assert sizes(64 * KIB) == [64 * KIB]


# ---- curves -------------------------------------------------------------------------------------------------------


def test_a_warm_curve_stays_at_one_place():
    memory, lines = Memory(), []
    points = warm_curve(memory.stream(smallest=MIB), sizes(64 * MIB), memory.measure, LIMITS, lines.append)
    assert [point.working_set_bytes for point in points] == [MIB * 2**step for step in range(7)]  # none is too small
    assert all(len(calls) == 1 and calls[0][0] == 0 for calls in memory.rounds)
    assert lines[0] == "read of 1.05 MB, warm"


def test_a_cold_curve_goes_round_places_that_do_not_overlap():
    memory, machine = Memory(), device()
    points = cold_curve(memory.stream(), sizes(GIB, MIB), GIB, machine, memory.measure, LIMITS)
    assert [point.bytes_per_launch for point in points] == sizes(GIB, MIB)
    for calls in memory.rounds:
        starts, (size, *_) = [call[0] for call in calls], [call[1] for call in calls]
        assert starts == [place * size for place in range(len(calls))]
        assert len(calls) * size >= 3 * machine.cache_bytes  # what `COLD_CACHES` asks of a GPU
        assert GIB - size < starts[-1] + size <= GIB or len(starts) == 2000  # the whole of the arrays
    assert len(memory.rounds[-1]) == 1


def test_a_size_that_cannot_be_made_cold_is_left_out():
    memory = Memory()
    points = cold_curve(memory.stream(), [KIB, 64 * KIB, MIB], GIB, device(), memory.measure, LIMITS)
    assert [point.bytes_per_launch for point in points] == [MIB]  # 2000 places of 64 KiB are less than 300 MiB
    assert cold_copies(MIB, 299, device()) is None  # too few places
    assert cold_copies(MIB, 300, device()) == 300
    assert cold_copies(MIB, 250, device(kind="cpu")) == 250  # a CPU needs four caches, a GPU six
    assert cold_copies(MIB, 4000, device()) == 2000
    assert cold_copies(300 * MIB, 1, device()) == 1


def test_a_loop_counts_its_bytes_but_its_working_set_once():
    stream = Stream(CACHE, "loop", lambda size, start: Launch((start, size, 16 * GIB), 16 * GIB), is_loop=True)
    [point] = warm_curve(stream, [8 * MIB], Memory(noise=0.0, launch_s=0.0).measure, LIMITS)
    assert (point.working_set_bytes, point.bytes_per_launch) == (8 * MIB, 16 * GIB)
    assert point.value() == pytest.approx(10e12)


def test_a_point_is_bytes_over_time_with_its_interval_the_right_way_up():
    point = CurvePoint(8, 12, Samples((0.5, 1.0, 2.0), 1, "graph", "cold", 1.0, (0.5, 2.0), True))
    assert (point.value(), point.ci95, point.value(min)) == (12.0, (6.0, 24.0), 24.0)


# ---- the line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_line_finds_launch_and_roof(seed):
    memory = Memory(seed=seed, noise=0.01)
    points = cold_curve(memory.stream(), sizes(4 * GIB, 128 * KIB), 4 * GIB, device(), memory.measure, LIMITS)
    line = fit(points)
    assert line.bandwidth == pytest.approx(4e12, rel=0.01)
    # The largest launch takes a millisecond: one percent of noise is five times the launch that is looked for.
    assert line.launch_s == pytest.approx(2e-6, rel=0.03)
    assert line.worst_residual < 0.02
    assert line.launch_ci95_s[0] < line.launch_s < line.launch_ci95_s[1]
    assert line.bandwidth_ci95[0] < line.bandwidth < line.bandwidth_ci95[1]


@pytest.mark.exhaustive
def test_the_intervals_of_the_line_cover_the_truth():
    covered = []
    for seed in range(200):
        memory = Memory(seed=seed, noise=0.03, cache=4e12)
        line = fit(cold_curve(memory.stream(), sizes(4 * GIB, 128 * KIB), 4 * GIB, device(), memory.measure, LIMITS))
        covered.append((line.launch_ci95_s[0] < 2e-6 < line.launch_ci95_s[1], line.bandwidth_ci95[0] < 4e12))
    launches, roofs = (sum(hits) / len(covered) for hits in zip(*covered, strict=True))
    assert 0.88 <= launches <= 0.99
    assert roofs >= 0.93  # one side only


def test_an_exact_line_is_found_exactly():
    points = [CurvePoint(size, size, samples_of([1e-5 + size / 2e11] * 3)) for size in sizes(GIB)]
    line = fit(points)
    assert line.launch_s == pytest.approx(1e-5, rel=1e-9)
    assert line.bandwidth == pytest.approx(2e11, rel=1e-9)
    assert line.worst_residual < 1e-9


def test_a_warm_curve_is_no_line_and_its_residual_says_so():
    memory = Memory()
    warm = warm_curve(memory.stream(), sizes(4 * GIB), memory.measure, LIMITS)
    assert fit(warm).worst_residual > 0.1


def test_preempted_samples_do_not_bend_the_line_of_the_fastest():
    memory = Memory(preempted=0.6, launch_s=5e-6, memory=4e10, cache=4e10)
    points = cold_curve(memory.stream(), sizes(GIB, 128 * KIB), GIB, device(), memory.measure, LIMITS)
    fastest, typical = fit(points, min), fit(points)
    assert fastest.bandwidth == pytest.approx(4e10, rel=0.05)
    assert fastest.launch_s == pytest.approx(5e-6, rel=0.1)
    assert fastest.worst_residual < 0.1
    assert typical.launch_s > 2e-5  # where most samples are disturbed, the median is no help
    assert typical.worst_residual > 0.5


def test_three_sizes_make_no_line():
    with pytest.raises(NotMeasuredError, match=r"^a line through 3 sizes says nothing; 4 or more are needed$"):
        fit([CurvePoint(size, size, samples_of([1.0])) for size in (1, 2, 3)])


# ---- the plateau --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_plateau_and_its_end(seed):
    memory = Memory(seed=seed, launch_s=0.0)
    points = warm_curve(memory.stream(), sizes(256 * MIB, 2 * MIB, 4), memory.measure, LIMITS)
    found = plateau(points, "simulated", 50 * MIB)
    assert found.value == pytest.approx(10e12, rel=0.01)
    assert found.ci95[0] <= found.value <= found.ci95[1]
    assert max(found.working_sets_bytes) <= 50 * MIB
    assert len(found.working_sets_bytes) >= 15
    # 9 TB/s are reached where a share h hits: 1/9 = h/10 + (1 - h)/4, so h is 0.926
    assert found.knee_bytes == pytest.approx(50 * MIB / 0.926, rel=0.08)
    assert found.points == tuple(points)
    assert found.config == "simulated"


def test_launches_of_small_sizes_are_not_part_of_the_plateau():
    memory = Memory(launch_s=2e-6)
    points = warm_curve(memory.stream(), sizes(128 * MIB, 64 * KIB), memory.measure, LIMITS)
    found = plateau(points, "simulated", 50 * MIB)
    assert min(found.working_sets_bytes) >= 16 * MIB


def test_a_curve_that_never_falls_has_no_knee():
    memory = Memory()
    points = warm_curve(memory.stream(), sizes(32 * MIB, 2 * MIB), memory.measure, LIMITS)
    assert plateau(points, "simulated", 50 * MIB).knee_bytes is None


def test_a_dip_inside_the_plateau_is_not_its_end():
    speeds = [10.0, 5.0, 10.0, 10.0, 4.0]
    points = [
        CurvePoint(size, size, samples_of([size / speed]))
        for size, speed in zip(sizes(16 * MIB, MIB), speeds, strict=True)
    ]
    found = plateau(points, "simulated", 8 * MIB)
    assert 8 * MIB < found.knee_bytes < 16 * MIB
    assert found.working_sets_bytes == (MIB, 4 * MIB, 8 * MIB)


def test_a_curve_that_grows_beyond_the_cache_shows_no_cache():
    busy = [
        CurvePoint(size, size, samples_of([8e-3])) for size in sizes(128 * MIB, MIB)
    ]  # each launch waits for its turn
    with pytest.raises(NotMeasuredError, match=r"^4\.19 GB/s inside the last-level cache and 16\.8 GB/s beyond it"):
        plateau(busy, "simulated", 32 * MIB)
    level = [CurvePoint(size, size, samples_of([size / 1e12])) for size in sizes(128 * MIB, MIB)]
    assert plateau(level, "simulated", 32 * MIB).value == pytest.approx(1e12)  # a cache no faster than memory may be


def test_no_size_inside_the_cache_is_refused():
    memory = Memory()
    points = warm_curve(memory.stream(), [64 * MIB], memory.measure, LIMITS)
    with pytest.raises(NotMeasuredError, match=r"^no working set of 52.4 MB or less was measured$"):
        plateau(points, "simulated", 50 * MIB)


def test_the_knee_lies_between_two_points_on_a_logarithmic_scale():
    points = [CurvePoint(size, size, samples_of([size / speed])) for size, speed in ((MIB, 10.0), (4 * MIB, 8.0))]
    assert knee_bytes(points, 10.0) == pytest.approx(2 * MIB)  # 9 is half way, and so is 2 between 1 and 4
    assert knee_bytes(points, 12.0) is None  # below the bar from the start
    assert knee_bytes(points, 10 / 0.9) == pytest.approx(MIB)
    assert knee_bytes(points[:1], 10.0) is None


@pytest.mark.parametrize(("kind", "smallest"), [("cuda", 2 * MIB), ("cpu", 50 * MIB // 8)])
def test_the_cache_is_measured_by_the_stream_that_is_fastest_in_it(kind, smallest):
    memory = Memory(seed=4, launch_s=0.0, preempted=0.6 if kind == "cpu" else 0.0)
    slow = Stream(CACHE, "slow", lambda size, start: Launch((start, size, size), int(0.9 * size)))
    fast = Stream(CACHE, "fast", memory.stream().launch)
    machine, lines = device(kind=kind), []
    found = cache_plateau(
        [slow, fast],
        256 * MIB,
        machine,
        Trial(memory.measure, LIMITS, LIMITS, lines.append, min if kind == "cpu" else median),
    )
    assert found.config == "fast"
    assert smallest <= found.points[0].working_set_bytes < 1.5 * smallest
    assert found.points[-1].working_set_bytes == 256 * MIB
    assert found.value == pytest.approx(10e12, rel=0.03)
    assert found.knee_bytes > 45 * MIB
    assert lines[0] == "slow"
    assert math.isfinite(found.ci95[1])


def test_the_curve_starts_where_the_documentation_says():
    assert bandwidth_curve.SMALLEST_BYTES == 64 * KIB
