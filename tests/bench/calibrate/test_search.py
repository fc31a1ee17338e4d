"""The search for the fastest, on a simulated device whose true speeds are known and whose readings are noisy."""

import itertools
import math
import random
import statistics

import pytest

from bench.harness.calibrate.matmul_shapes import (
    DEPTHS,
    TILES,
    WAVES,
    Shape,
    cpu_shapes,
    fitting,
    gpu_shapes,
    neighbors,
)
from bench.harness.calibrate.search import (
    Candidate,
    Launch,
    NotMeasuredError,
    SearchPlan,
    ShapeSearch,
    Trial,
    best_of,
    rate_of,
)
from bench.harness.timing.protocol import Limits, Samples
from results.stats.samples import median, median_ci95

PEAK = 1e15  # FLOP/s of the simulated device
STEP = 128
GRID = [Shape(STEP * rows, STEP * columns, 4096) for rows in range(1, 21) for columns in range(1, 21)]
FEW = Limits(5, 0.05, 0.0, 1.0, 0.0, 0.0)
MANY = Limits(20, 0.01, 0.0, 1.0, 0.0, 0.0)


def wave_quantized(generator):
    """Whole waves of 128 x 256 tiles on 132 SMs are fast, with a few percent of difference between neighbors."""

    def efficiency(shape):
        tiles = math.ceil(shape.m / 128) * math.ceil(shape.n / 256)
        waves = math.ceil(tiles / 132)
        return tiles / (waves * 132) * (1 - 0.2 / waves) * (0.97 + 0.03 * generator.random())

    return {shape: efficiency(shape) for shape in GRID}


def unrelated(generator):
    """Every shape has a speed of its own."""
    return {shape: 0.5 + 0.5 * generator.random() for shape in GRID}


def needle(generator):
    """One shape is 3 % faster than all others, of which a seventh are within 1 % of each other."""
    speeds = {shape: 0.9 + 0.07 * generator.random() for shape in GRID}
    speeds[generator.choice(GRID)] = 1.0
    return speeds


class Simulated:
    """A device with 400 shapes: `measure` draws times around the truth."""

    def __init__(self, landscape, seed, noise=0.01, preempted=0.0):
        self.random = random.Random(seed)
        self.speeds = landscape(self.random)
        self.noise, self.preempted = noise, preempted
        self.asked = []

    def measure(self, shape, repetitions):
        self.asked.append((shape, repetitions))
        return tuple(self.seconds(shape) for _ in range(repetitions))

    def seconds(self, shape):
        slower = self.random.uniform(1.5, 10) if self.random.random() < self.preempted else 1.0
        return shape.flops / (PEAK * self.speeds[shape]) * self.random.gauss(1, self.noise) * slower

    def around(self, shape):
        return [other for other in neighbors(shape, STEP) if other in self.speeds]

    def search(self, plan, **options):
        return ShapeSearch(GRID, self.measure, plan, self.around, **options)


def outcome(landscape, seed, full, summary=median, first=1, **device):
    """Speed of the shape found over that of the best, and the share of the brute-force measurements."""
    simulated = Simulated(landscape, seed, **device)
    search = simulated.search(SearchPlan(full, first, summary=summary, seed=seed))
    found = search.run()
    assert search.repetitions == sum(repetitions for _, repetitions in simulated.asked)
    share = simulated.speeds[found.shape] / max(simulated.speeds.values())
    return share, search.repetitions / (len(GRID) * full)


@pytest.mark.exhaustive
@pytest.mark.parametrize("full", [30, 100])
@pytest.mark.parametrize("landscape", [wave_quantized, unrelated, needle])
def test_within_one_percent_of_the_best_for_15_percent_of_the_measurements(landscape, full):
    outcomes = [outcome(landscape, seed, full) for seed in range(100)]
    assert sum(share >= 0.99 for share, _ in outcomes) >= 95
    assert max(cost for _, cost in outcomes) <= 0.15


@pytest.mark.exhaustive
def test_on_a_shared_machine_the_fastest_sample_counts():
    options = {"full": 30, "first": 3, "preempted": 0.2}
    by_fastest = [outcome(needle, seed, summary=min, **options)[0] for seed in range(40)]
    assert sum(share >= 0.99 for share in by_fastest) >= 38


def test_the_same_seed_gives_the_same_search():
    runs = []
    for search_seed in (1, 1, 2):
        device = Simulated(unrelated, seed=5)
        device.search(SearchPlan(16, seed=search_seed)).run()
        runs.append(device.asked)
    assert runs[0] == runs[1]
    assert [shape for shape, _ in runs[0][:400]] != [shape for shape, _ in runs[2][:400]]
    assert [shape for shape, _ in runs[0][:400]] != GRID  # in no order that drift could follow


def test_each_round_keeps_half_and_doubles_the_samples():
    device = Simulated(unrelated, seed=0)
    ShapeSearch(GRID[:40], device.measure, SearchPlan(full_repetitions=16)).run()
    rounds = [(len(list(group)), repetitions) for repetitions, group in itertools.groupby(r for _, r in device.asked)]
    # 40 and 20 shapes get one sample more each, 10 get two more, 5 four, 3 eight; then the winner all of them anew
    assert rounds == [(60, 1), (10, 2), (5, 4), (3, 8), (1, 16)]


def test_a_slow_first_reading_costs_no_more_than_its_round():
    speeds = {GRID[0]: 1.0, **dict.fromkeys(GRID[1:9], 0.5)}
    search = ShapeSearch(speeds, lambda shape, count: [shape.flops / speeds[shape]] * count, SearchPlan(4))
    assert search.run().shape == GRID[0]


def test_the_result_rests_on_fresh_samples_only():
    equal = Simulated(lambda generator: dict.fromkeys(GRID, 0.8), seed=3, noise=0.05)
    screened, confirmed = [], []
    for seed in range(60):
        search = ShapeSearch(GRID[:64], equal.measure, SearchPlan(8, seed=seed, local_steps=0))
        found = search.run(lambda line, search=search: screened.append(search.best) if "again" in line else None)
        confirmed.append(found.shape.flops / median(found.samples_s) / PEAK)
        assert found.is_confirmed
        assert len(found.samples_s) == 8
        assert search.best is found
    before = [found.shape.flops / median(found.samples_s) / PEAK for found in screened]
    assert not any(found.is_confirmed for found in screened)
    error = 0.8 * 0.05 * 1.25 / math.sqrt(8 * 60)  # standard error of the mean of 60 medians of 8
    assert statistics.mean(confirmed) == pytest.approx(0.8, abs=4 * error)
    assert statistics.mean(before) > 0.8 + 4 * error  # the winner's curse, were it reported


@pytest.mark.parametrize("after", [1, 30, 500, 780])
def test_interrupted_it_keeps_the_best_so_far(after):
    device = Simulated(unrelated, seed=0)

    def measure(shape, repetitions):
        if len(device.asked) == after:
            raise KeyboardInterrupt
        return device.measure(shape, repetitions)

    search = ShapeSearch(GRID, measure, SearchPlan(100))
    assert search.best is None
    with pytest.raises(KeyboardInterrupt):
        search.run()
    best = search.best
    assert not best.is_confirmed
    assert search.repetitions == sum(repetitions for _, repetitions in device.asked)
    if after >= 500:  # the first round is over
        assert device.speeds[best.shape] > 0.97
    seen = {shape for shape, _ in device.asked}
    assert best.shape in seen


@pytest.mark.parametrize("allowed", [1, 100, 450, 2000])
def test_when_its_time_is_spent_only_the_confirmation_is_left(allowed):
    device = Simulated(unrelated, seed=0)
    search = device.search(SearchPlan(100), is_spent=lambda: len(device.asked) >= allowed)
    found = search.run()
    assert found.is_confirmed
    assert len(device.asked) <= allowed + 2  # a challenger that was being measured, and the confirmation
    assert device.asked[-1] == (found.shape, 100)
    if allowed == 450:
        assert device.speeds[found.shape] > 0.97 * max(device.speeds.values())


def test_a_search_without_any_time_still_says_so():
    device = Simulated(unrelated, seed=0)
    with pytest.raises(NotMeasuredError, match=r"^no shape of the search can run here$"):
        device.search(SearchPlan(100), is_spent=lambda: True).run()
    assert device.asked == []


def test_shapes_that_cannot_run_are_left_out_and_asked_for_once():
    device = Simulated(unrelated, seed=0)
    missing = set(GRID[::2])
    asked = []

    def measure(shape, repetitions):
        asked.append(shape)
        return () if shape in missing else device.measure(shape, repetitions)

    found = ShapeSearch(GRID, measure, SearchPlan(16), device.around).run()
    assert found.shape not in missing
    assert max(asked.count(shape) for shape in missing) == 1
    with pytest.raises(NotMeasuredError):
        ShapeSearch(GRID, lambda shape, repetitions: (), SearchPlan(16)).run()


def test_local_steps_climb_beyond_the_candidates():
    def measure(shape, repetitions):
        return [shape.flops / (1 - ((shape.m - 1280) / 10000) ** 2)] * repetitions

    start = [Shape(256, 256, 256), Shape(896, 256, 256)]
    steps = {
        local_steps: ShapeSearch(
            start, measure, SearchPlan(8, local_steps=local_steps), lambda shape: neighbors(shape, STEP)
        )
        .run()
        .shape.m
        for local_steps in (0, 1, 2, 5)
    }
    assert steps == {0: 896, 1: 1024, 2: 1152, 5: 1280}


def test_progress_names_every_shape():
    device, lines = Simulated(unrelated, seed=0), []
    found = ShapeSearch(GRID[:4], device.measure, SearchPlan(2)).run(lines.append)
    assert len(lines) == len(device.asked)
    assert all(shape.name in line for line, (shape, _) in zip(lines, device.asked, strict=True))
    assert lines[-1] == f"{found.shape.name}, again"


# ---- configurations of one kernel ---------------------------------------------------------------------------------


def samples_of(times_s):
    times_s = tuple(times_s)
    return Samples(times_s, 1, "host", "warm", median(times_s), median_ci95(times_s), True)


class Bench:
    """Candidates whose call is their name, and a protocol that draws their times."""

    def __init__(self, speeds, noise=0.0, seed=0):
        self.speeds, self.noise, self.random = speeds, noise, random.Random(seed)
        self.measured = []

    def candidates(self):
        return [Candidate(name, lambda name=name: self.prepare(name)) for name in self.speeds]

    def prepare(self, name):
        if isinstance(self.speeds[name], Exception):
            raise self.speeds[name]
        return Launch(name, 1000)

    def measure(self, calls, limits):
        [name] = calls
        self.measured.append((name, limits))
        return samples_of(
            1000 / self.speeds[name] * self.random.gauss(1, self.noise) for _ in range(limits.min_samples)
        )


def test_all_are_screened_and_the_fastest_is_measured_again():
    bench, lines = Bench({"slow": 1.0, "fast": 4.0, "middle": 2.0}), []
    chosen = best_of(bench.candidates(), Trial(bench.measure, FEW, MANY, lines.append))
    assert bench.measured == [("slow", FEW), ("fast", FEW), ("middle", FEW), ("fast", MANY)]
    assert chosen.rate.config == "fast"
    assert chosen.rate.value == pytest.approx(4.0)
    assert chosen.rate.work_per_launch == 1000
    assert len(chosen.rate.samples.samples_s) == MANY.min_samples
    assert [name for name, _ in chosen.screened] == ["fast", "middle", "slow"]
    assert [rate for _, rate in chosen.screened] == pytest.approx([4.0, 2.0, 1.0])
    assert lines == ["slow", "fast", "middle", "fast, again"]


def test_the_rate_carries_no_winners_curse():
    curse, fresh = [], []
    for seed in range(200):
        bench = Bench(dict.fromkeys("abcdefgh", 1.0), noise=0.1, seed=seed)
        chosen = best_of(bench.candidates(), Trial(bench.measure, FEW, MANY))
        curse.append(chosen.screened[0][1])
        fresh.append(chosen.rate.value)
    assert statistics.mean(curse) > 1.04
    assert statistics.mean(fresh) == pytest.approx(1.0, abs=0.01)


def test_what_cannot_run_is_told_and_the_others_go_on():
    bench = Bench({"broken": RuntimeError("no such instruction\nmore"), "works": 1.0, "odd": ValueError("too small")})
    chosen = best_of(bench.candidates(), Trial(bench.measure, FEW, MANY))
    assert chosen.rate.config == "works"
    assert chosen.refused == (("broken", "RuntimeError: no such instruction"), ("odd", "ValueError: too small"))


def test_none_that_runs_is_one_line():
    bench = Bench({"broken": RuntimeError("no such instruction\nmore")})
    with pytest.raises(NotMeasuredError) as error:
        best_of(bench.candidates(), Trial(bench.measure, FEW, MANY))
    assert str(error.value) == "none of 1 configurations runs here; broken: RuntimeError: no such instruction"
    with pytest.raises(NotMeasuredError, match="there are none"):
        best_of([], Trial(bench.measure, FEW, MANY))


def test_an_interruption_is_no_refusal():
    bench = Bench({"first": KeyboardInterrupt()})
    candidates = [Candidate("first", lambda: (_ for _ in ()).throw(KeyboardInterrupt))]
    with pytest.raises(KeyboardInterrupt):
        best_of(candidates, Trial(bench.measure, FEW, MANY))


def test_the_screening_can_go_by_the_fastest_sample():
    times = {"steady": [1.0] * 5, "disturbed": [0.9, 3.0, 3.0, 3.0, 0.9]}
    candidates = [Candidate(name, lambda name=name: Launch(name, 1)) for name in times]

    def measure(calls, limits):
        return samples_of(times[calls[0]])

    assert best_of(candidates, Trial(measure, FEW, MANY)).rate.config == "steady"
    assert best_of(candidates, Trial(measure, FEW, MANY, summary=min)).rate.config == "disturbed"


def test_a_rate_is_work_over_time_with_its_interval_the_right_way_up():
    samples = Samples((0.5, 1.0, 2.0), 1, "graph", "cold", 1.0, (0.5, 2.0), True)
    rate = rate_of("any", 12, samples)
    assert (rate.value, rate.ci95, rate.fastest) == (12.0, (6.0, 24.0), 24.0)
    assert rate.p5_p95 == pytest.approx((12 / 1.9, 12 / 0.55))


# ---- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sm_count", [108, 132, 148])
def test_gpu_shapes_fill_whole_waves(sm_count):
    shapes = gpu_shapes(sm_count)
    assert 100 <= len(shapes) <= 400
    assert len(set(shapes)) == len(shapes)
    assert {shape.layout for shape in shapes} == {"nn", "nt", "tn"}
    assert {shape.k for shape in shapes} >= set(DEPTHS)

    def fills(shape):
        for (tile_m, tile_n), waves in itertools.product(TILES, WAVES):
            tiles = shape.m // tile_m * (shape.n // tile_n)
            whole = shape.m % tile_m == 0 == shape.n % tile_n
            if whole and 0.97 * sm_count * waves <= tiles <= sm_count * waves:
                return True
        return shape.m == shape.n == shape.k  # the usual squares

    assert all(fills(shape) for shape in shapes)
    assert all(1 / 4 <= shape.m / shape.n <= 4 for shape in shapes)
    assert all(extent % 64 == 0 for shape in shapes for extent in (shape.m, shape.n, shape.k))


def test_132_multiprocessors_take_12_by_11_tiles():
    assert Shape(12 * 128, 11 * 128, 4096, "tn") in gpu_shapes(132) or Shape(11 * 128, 12 * 128, 4096) in gpu_shapes(
        132
    )
    assert {shape.layout for shape in gpu_shapes(132, ("nt",))} == {"nt"}


def test_cpu_shapes_reach_from_small_to_large_and_are_not_all_square():
    shapes = cpu_shapes()
    assert len(shapes) == len(set(shapes)) <= 40
    assert {shape.m for shape in shapes if shape.m == shape.n == shape.k} >= {512, 1024, 2048, 4096}
    assert sum(len({shape.m, shape.n, shape.k}) > 1 for shape in shapes) >= 10


def test_a_shape_is_a_case_of_the_matmul_family():
    from bench.matmul import OPS

    shape = Shape(256, 512, 1024, "nt")
    case = shape.case("bf16")
    assert (case.name, shape.name) == ("256x512x1024:nt", "256x512x1024:nt")
    work = OPS[0].work(case)
    assert shape.flops == work.flops == 2 * 256 * 512 * 1024
    assert shape.bytes("bf16", "bf16") == work.bytes
    assert fitting([shape], "bf16", "bf16", work.bytes) == [shape]
    assert fitting([shape], "bf16", "bf16", work.bytes - 1) == []


def test_neighbors_differ_in_one_extent_and_stay_above_zero():
    around = neighbors(Shape(128, 256, 384, "tn"), 128)
    assert len(around) == 5  # m cannot shrink
    assert all(shape.layout == "tn" for shape in around)
    moves = [(shape.m - 128, shape.n - 256, shape.k - 384) for shape in around]
    assert sorted(map(sorted, moves)) == [[-128, 0, 0], [-128, 0, 0], [0, 0, 128], [0, 0, 128], [0, 0, 128]]
