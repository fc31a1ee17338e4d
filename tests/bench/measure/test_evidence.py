"""Every flag on numbers whose answer is known, on either side of its threshold, and the words it gives."""

import itertools
from dataclasses import replace

import pytest

from bench.harness.device.device import Device
from bench.harness.measure.evidence import (
    ABOVE_ROOF,
    CACHED_RESULT,
    PREEMPTIONS_PER_S,
    Context,
    above_roof,
    bimodal,
    drifting,
    flags_of,
    l2_suspect,
    launch_limited,
    not_cold,
    not_converged,
    physics_gate,
    power_limited,
    preempted,
    throttled,
    tick_limited,
    too_low,
)
from bench.harness.measure.finish import judged_again, roofs_of
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import LONGEST_SPIN_S
from results.record import Record
from results.stats.samples import Modes
from roofline.ceilings import Ceiling, Ceilings, gpu_ceilings
from roofline.hardware.gpu import find_gpu
from roofline.model import judge
from roofline.work import Work


def samples_of(median_s=1e-4, cache="cold", converged=True, launches=10):
    values = tuple(median_s * (1 + 0.001 * (i % 5 - 2)) for i in range(40))
    return Samples(values, launches, "graph", cache, median_s, (0.99 * median_s, 1.02 * median_s), converged)


def context_of(**changes):
    """Return a clean row of a GPU with 1 TB/s and 100 TFLOP/s: 100 us for 40 MB and 2 GFLOP."""
    return Context(
        **{
            "is_gpu": True,
            "tick_s": 1e-6,
            "host_launch_s": 5e-6,
            "target_half_width": 0.005,
            "flops": 2 * 10**9,
            "bytes_moved": 80 * 10**6,
            "cache_bytes": 100 * 10**6,
            "warm_s": 5e-5,
            "memory_roof_bytes_per_s": 1e12,
            "peak": Ceiling("flops", "bf16", 1e14, "clock-limited", "a test"),
            "bandwidth": Ceiling("bandwidth", "memory", 1e12, "datasheet", "a test"),
            "telemetry": {"throttle": {"sw_power_cap": 0.0, "sw_thermal": 0.0}, "throttle_resolution": 0.001},
        }
        | changes
    )


def names(flags):
    return [flag.name for flag in flags]


def test_a_clean_row_has_no_flag():
    assert flags_of(samples_of(), context_of()) == ()


def test_a_measured_ceiling_that_a_row_is_above_is_too_low_unless_the_cache_explains_it():
    peak, copy = (
        Ceiling("flops", "bf16", 1e12, "measured", "here"),
        Ceiling("bandwidth", "copy", 1e9, "measured", "here"),
    )
    context = context_of(is_gpu=False, peak=peak, bandwidth=copy, cache_bytes=10**6)
    assert too_low(samples_of(), context) == [peak, copy]
    assert too_low(samples_of(), replace(context, cache_bytes=10**9)) == [peak]
    assert too_low(samples_of(cache="warm"), context) == [peak]
    assert too_low(samples_of(2e-3), context) == [copy]  # 1 TFLOP/s, not above it
    assert too_low(samples_of(), context_of(peak=replace(peak, kind="datasheet"))) == []


def test_flags_by_ceilings_are_decided_again_and_the_others_stay():
    samples = samples_of()
    reasons = {"above-roof": "2000 % of the measured peak; a reason", "preempted": "busy"}
    row = {"op": "matmul", "provider": "torch", "dtype": "bf16", "shape": {}, "case": "1", "status": "ok"}
    seen = {"samples_s": samples.samples_s, "median_s": 1e-4, "ci95_s": samples.ci95_s}
    record = Record(**row, **seen, flops=2 * 10**9, flags=tuple(reasons), flag_reasons=reasons)
    low, high = (Ceilings("a", "a", (Ceiling("flops", "bf16", value, "measured", "here"),)) for value in (1e12, 1e14))
    device = Device("cpu", "cpu", "cpu", "a CPU", 2**20, 2**30, threads=2)
    still, found = judged_again(record, device, low)
    assert (still.flags, found) == (("above-roof", "preempted"), list(low.entries))
    assert still.flag_reasons["above-roof"].startswith("2000 % of the measured peak")
    clean, found = judged_again(record, device, high)
    assert (clean.flags, clean.flag_reasons, found) == (("preempted",), {"preempted": "busy"}, [])


def test_a_row_of_which_nothing_else_is_known_has_no_flag():
    assert flags_of(samples_of(), Context(is_gpu=True)) == ()
    assert flags_of(samples_of(cache="warm"), Context(is_gpu=False, asked_cache="warm")) == ()


@pytest.mark.parametrize(
    ("samples", "changes", "name"),
    [
        (samples_of(), {"flops": 10**11}, "faster-than-physics"),
        (samples_of(), {"flops": 12 * 10**9, "peak": Ceiling("flops", "bf16", 1e14, "datasheet", "")}, "above-roof"),
        (samples_of(), {"warm_s": 1e-4}, "l2-suspect"),
        (samples_of(cache="warm"), {}, "not-cold"),
        (samples_of(), {"tick_s": 1e-4}, "tick-limited"),
        (samples_of(), {"telemetry": {"throttle": {"hw_thermal": 0.1}}}, "throttled"),
        (samples_of(), {"telemetry": {"throttle": {"sw_power_cap": 0.1}}}, "power-limited"),
        (samples_of(), {"is_gpu": False, "telemetry": {"thread_switches_per_s": 500.0}}, "preempted"),
        (samples_of(converged=False), {}, "not-converged"),
        (samples_of(), {"host_launch_s": 2e-4}, "launch-limited"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_finding_alone_gives_its_flag_alone(samples, changes, name):
    flags = flags_of(samples, context_of(**changes))
    assert names(flags) == [name]
    assert flags[0].reason
    assert flags[0].advice


@pytest.mark.parametrize(("method", "is_told"), [("events", True), ("graph", False)])
def test_a_queue_that_is_held_back_for_too_short_a_time_is_told(method, is_told):
    slow = replace(samples_of(median_s=1.0, launches=2), method=method)
    flags = flags_of(slow, context_of(host_launch_s=0.9 * LONGEST_SPIN_S, flops=None, bytes_moved=None, warm_s=None))
    assert names(flags) == ["launch-limited"] * is_told
    assert not is_told or "a sample is 2 of them, held back for 0.5 s at most" in flags[0].reason


def test_the_samples_themselves_are_looked_at():
    rising = [1e-4 * (1 + i / 200) for i in range(60)]
    samples = Samples(tuple(rising), 10, "graph", "cold", 1e-4, (1e-4, 1e-4), True)
    assert names(flags_of(samples, context_of())) == ["drifting"]
    two = tuple(1e-4 * (1 + 0.1 * (i % 3 == 0)) for i in range(60))
    samples = Samples(two, 10, "graph", "cold", 1e-4, (1e-4, 1e-4), True)
    assert names(flags_of(samples, context_of())) == ["bimodal"]
    # The same two values are the two nearest readings of a clock with such a step, 1e-5 s a launch.
    assert "bimodal" not in names(flags_of(samples, context_of(tick_s=1e-4)))


def test_the_most_serious_comes_first():
    flags = flags_of(samples_of(median_s=1e-7, converged=False), context_of(tick_s=1e-6))
    assert names(flags) == ["faster-than-physics", "l2-suspect", "tick-limited", "not-converged", "launch-limited"]


# ---- the physics gate ---------------------------------------------------------------------------------------------


def gate(median_s, cache="cold", **changes):
    return physics_gate(samples_of(median_s, cache), context_of(**changes))


@pytest.mark.parametrize(("kind", "margin"), [("clock-limited", 1.02), ("datasheet", 1.25), ("derived", 1.5)])
def test_the_margin_of_a_peak_is_that_of_its_kind(kind, margin):
    peak = Ceiling("flops", "bf16", 1e14, kind, "a test")
    least_s = 10**12 / (margin * 1e14)
    assert gate(1.001 * least_s, flops=10**12, peak=peak) is None
    flag = gate(0.999 * least_s, flops=10**12, peak=peak)
    assert flag.name == "faster-than-physics"
    assert f"{kind} flops ceiling" in flag.reason


@pytest.mark.parametrize(("kind", "margin"), [("datasheet", 1.02), ("derived", 1.5)])
def test_the_margin_of_a_bandwidth_is_that_of_its_kind(kind, margin):
    bandwidth = Ceiling("bandwidth", "memory", 1e12, kind, "a test")
    least_s = 10**9 / (margin * 1e12)
    changes = {"bytes_moved": 10**9, "bandwidth": bandwidth}
    assert gate(1.001 * least_s, **changes) is None
    assert "its bytes take" in gate(0.999 * least_s, **changes).reason


def test_the_memory_counts_only_where_the_data_must_come_from_it():
    too_fast_s = 5e-4
    assert gate(too_fast_s, bytes_moved=10**9) is not None
    assert gate(too_fast_s, bytes_moved=10**9, cache="warm") is None
    assert gate(too_fast_s, bytes_moved=10**9, cache_bytes=10**9) is None
    assert gate(too_fast_s, bytes_moved=10**9, cache_bytes=None) is None


def test_an_h100_at_its_highest_clock_is_no_finding_against_the_datasheet():
    # 1070.5 TFLOP/s at 1980 MHz; the datasheet's 989.4 hold at 1830 MHz
    datasheet = Ceiling("flops", "bf16", 989.4e12, "datasheet", "NVIDIA H100 datasheet")
    assert gate(10**12 / 1070.5e12, flops=10**12, peak=datasheet) is None


@pytest.mark.parametrize(
    ("times", "changes", "cause"),
    [
        (1.5, {"flops": 10**12}, "part of the work is left out"),
        (1.1 * CACHED_RESULT, {"flops": 10**12}, "the result of an earlier launch"),
        (1.5, {"bytes_moved": 10**10}, "came from the cache"),
        (1.1 * CACHED_RESULT, {"bytes_moved": 10**10}, "the result of an earlier launch"),
    ],
)
def test_the_gate_names_the_likely_cause(times, changes, cause):
    least_s = 10**12 / 1e14 / 1.02 if "flops" in changes else 10**10 / 1e12 / 1.02
    assert cause in gate(least_s / times, **changes).reason


def test_the_gate_says_both_times():
    reason = gate(1e-3, flops=10**12).reason
    assert reason.startswith("faster than physics: 0.001 s, but its FLOPs take 0.0098 s or more by the clock-limited")


@pytest.mark.parametrize(
    ("reached", "is_flagged"), [(ABOVE_ROOF - 0.001, False), (ABOVE_ROOF + 0.01, True), (4.1, True)]
)
def test_above_a_measured_peak_but_possible_is_a_finding_about_the_peak(reached, is_flagged):
    peak = Ceiling("flops", "bf16", 1e14, "measured", "a test")
    context = context_of(flops=10**12, peak=peak)
    flag = above_roof(samples_of(10**12 / (reached * 1e14)), context)
    assert (flag is not None) is is_flagged
    if flag:
        assert flag.reason == f"{100 * reached:.0f} % of the measured peak"
        assert "calibrate again" in flag.advice


@pytest.mark.parametrize(("time_s", "is_near"), [(3e-6, True), (23e-6, True), (24e-6, False)])
def test_a_launch_of_a_few_floors_is_told_with_the_floor(time_s, is_near):
    found = flags_of(
        samples_of(time_s, launches=100), context_of(launch_floor_s=2.4e-6, host_launch_s=1e-6, flops=0, bytes_moved=0)
    )
    assert [flag.name for flag in found] == ["near-floor"] * is_near
    if time_s == 3e-6:
        assert found[0].reason == "an empty kernel takes 2.4e-06 s of these 3e-06 s, which leaves 6e-07 s"


def test_a_row_that_no_graph_could_time_says_why():
    [flag] = flags_of(samples_of(), context_of(why_no_graph="operation not permitted when stream is capturing"))
    assert (flag.name, "operation not permitted" in flag.reason) == ("not-captured", True)


def test_a_row_that_a_disturbed_ceiling_judges_says_so():
    busy = Ceiling(
        "bandwidth", "copy", 1e12, "measured", "a test", disturbed="300 times a second a thread lost its core"
    )
    [flag] = flags_of(samples_of(), context_of(bandwidth=busy, mix=busy))
    assert (flag.name, "the copy bandwidth may be too low" in flag.reason) == ("doubtful-roof", True)
    assert flag.reason.endswith("when it was measured, 300 times a second a thread lost its core")
    assert not flags_of(samples_of(), context_of(bandwidth=busy, mix=busy, bytes_moved=None))  # it judges nothing


def test_a_measured_ceiling_makes_no_row_invalid():
    roofs = {
        "peak": Ceiling("flops", "bf16", 1.0, "measured", "a test"),
        "bandwidth": Ceiling("bandwidth", "copy", 1.0, "measured", "a test"),
    }
    samples = samples_of(1e-3)
    assert physics_gate(samples, context_of(flops=10**12, bytes_moved=10**12, **roofs)) is None


CALIBRATED = {"read": 4.5e12, "write": 4.28e12, "triad": 4.05e12, "copy": 3.93e12}
"""Bytes/s of an H200, as published."""
COUNTS = {"read": (999, 1), "write": (0, 1000), "copy": (500, 500), "triad": (2000, 1000), "between": (3000, 1000)}
"""Megabytes read and written; the last has a mix of its own."""


def machine(mixes, is_published, peak=None):
    entries = [Ceiling("bandwidth", name, value, "measured", "a test") for name, value in mixes.items()]
    entries += [Ceiling("bandwidth", "memory", 4.8e12, "datasheet", "a test")] if is_published else []
    entries += [Ceiling("flops", "bf16", 989.4e12, "datasheet", "a test")] if is_published else []
    return Ceilings("h", "H", (*entries, *([Ceiling("flops", "bf16", peak, "measured", "a test")] if peak else [])))


SINGLE = [{name: value} for name, value in CALIBRATED.items()]


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_gpu", [True, False], ids=["gpu", "cpu"])
@pytest.mark.parametrize("is_published", [True, False], ids=["published", "measured"])
@pytest.mark.parametrize("mixes", [CALIBRATED, {}, *SINGLE], ids=lambda mixes: "+".join(mixes) or "none")
@pytest.mark.parametrize("cache_bytes", [10**6, 10**12], ids=["beyond the cache", "in the cache"])
def test_no_row_is_above_a_roof_by_3_percent_without_a_flag(is_gpu, is_published, mixes, cache_bytes):
    ceilings = machine(mixes, is_published, peak=795e12)
    above = within = 0
    for counts, flops, cache, share in itertools.product(
        COUNTS.values(), (10**9, 10**15), ("cold", "warm"), (0.5, 0.99, 1.029, 1.031, 1.2, 40.0)
    ):
        work = Work(flops, *(count * 10**6 for count in counts))
        roof = ceilings.mix(work.bytes_read, work.bytes_written) or ceilings.bandwidth()
        least_s = max(flops / 795e12, work.bytes / roof.value if roof else 0)
        words = {"op": "x", "provider": "torch", "dtype": "bf16", "shape": {}, "case": "x", "status": "ok"}
        record = Record(**words, **vars(work), median_s=least_s / share, cache=cache)
        judged = judge(record, ceilings)
        context = Context(
            is_gpu=is_gpu,
            asked_cache=cache,
            flops=flops,
            bytes_moved=work.bytes,
            cache_bytes=cache_bytes,
            warm_s=least_s / share / 2,
            **roofs_of(ceilings, "bf16", work),
        )
        flags = names(flags_of(samples_of(record.median_s, cache), context))
        reached = max(judged.roofline_pct or 0, judged.measured_pct or 0, judged.mix_pct or 0, 100 * (judged.mbu or 0))
        if max(reached, 100 * (judged.mfu or 0)) > 103:
            assert len(set(flags) & {"above-roof", "l2-suspect", "faster-than-physics"}) >= 1, (work, cache, share)
            above += 1
        elif reached <= 102:
            assert flags == [], (work, cache, share)
            within += 1
    assert above >= 20
    assert within >= 20


def test_a_row_above_its_own_mix_but_not_above_the_memory_is_no_proof_of_a_cache():
    ceilings = machine(CALIBRATED, is_published=False)
    copy = Work(10, 10**9, 10**9)
    roofs = roofs_of(ceilings, "bf16", copy)
    assert (roofs["bandwidth"].name, roofs["mix"].name, roofs["memory_roof_bytes_per_s"]) == ("copy", "copy", 4.5e12)
    context = Context(is_gpu=True, flops=10, bytes_moved=copy.bytes, cache_bytes=10**8, **roofs)
    (flag,) = flags_of(samples_of(copy.bytes / 4.2e12), context)  # 107 % of a copy, 93 % of a read
    assert flag.name == "above-roof"
    assert flag.reason == "107 % of the measured copy bandwidth, the mix nearest to its own"
    assert "calibrate again" in flag.advice


def test_a_published_bandwidth_hides_no_row_above_the_measured_mix():
    copy = Work(10, 10**9, 10**9)
    context = Context(is_gpu=True, bytes_moved=copy.bytes, cache_bytes=10**8)
    samples = samples_of(copy.bytes / 4.2e12)
    alone = roofs_of(machine({}, is_published=True), "bf16", copy)
    assert flags_of(samples, replace(context, **alone)) == ()
    roofs = roofs_of(machine(CALIBRATED, is_published=True), "bf16", copy)
    assert roofs["bandwidth"].kind == "datasheet"
    assert names(flags_of(samples, replace(context, **roofs))) == ["above-roof"]


def test_warm_data_from_the_cache_is_said_to_be_that():
    context = context_of(asked_cache="warm")
    (flag,) = flags_of(samples_of(80e6 / 2e12, cache="warm"), context)
    assert flag.name == "above-roof"
    assert flag.reason == "200 % of the datasheet memory bandwidth: warm data comes from the cache"


def test_above_the_measured_peak_below_the_published_one_is_flagged():
    ceilings = machine({}, is_published=True, peak=795e12)
    work = Work(10**12, 10, 10)
    context = Context(is_gpu=True, flops=work.flops, bytes_moved=work.bytes, **roofs_of(ceilings, "bf16", work))
    (flag,) = flags_of(samples_of(10**12 / 850e12), context)
    assert flag.reason == "107 % of the measured peak"
    assert flags_of(samples_of(10**12 / 800e12), context) == ()


def test_a_function_of_no_dtype_has_a_memory_roof_and_no_peak():
    roofs = roofs_of(gpu_ceilings(find_gpu("h100-sxm")), "", Work(0, 2**18, 2**18))
    assert (roofs["peak"], roofs["highest_peak"], roofs["measured_peak"]) == (None, None, None)
    assert roofs["memory_roof_bytes_per_s"] > 3e12


def test_without_ceilings_there_are_no_roofs():
    assert roofs_of(None, "bf16", Work(1, 1, 1)) == {}
    assert set(roofs_of(Ceilings("x", "X"), "bf16", Work(1, 1, 1)).values()) == {None}


@pytest.mark.parametrize(
    ("slug", "dtype", "highest"),
    [
        ("h100-sxm", "bf16", 132 * 4096 * 1.98e9),  # 1,070.5 TFLOP/s, above the datasheet's 989.4
        ("a100-sxm-80gb", "bf16", 312e12),  # sold with a rounded peak just above its own clock times its rate
    ],
)
def test_the_gate_stands_at_the_highest_clock(slug, dtype, highest):
    ceilings = gpu_ceilings(find_gpu(slug))
    roofs = roofs_of(ceilings, dtype, Work(10**12, 1, 1))
    assert roofs["highest_peak"].value == pytest.approx(highest)
    assert roofs["peak"].kind == "datasheet"
    at = {"is_gpu": True, "flops": 10**12, **roofs}
    assert physics_gate(samples_of(10**12 / (1.01 * highest)), Context(**at)) is None
    flag = physics_gate(samples_of(10**12 / (1.03 * highest)), Context(**at))
    assert flag.name == "faster-than-physics"
    assert "clock-limited flops ceiling" in flag.reason


# ---- cold or not --------------------------------------------------------------------------------------------------


def suspect(cold_s, **changes):
    return l2_suspect(samples_of(cold_s), context_of(**changes))


@pytest.mark.parametrize(
    ("warm_s", "is_flagged"), [(0.99e-4, True), (0.975e-4, False), (0.5e-4, False), (1.1e-4, True)]
)
def test_cold_must_be_slower_than_warm_where_the_data_fits_the_cache(warm_s, is_flagged):
    assert (suspect(1e-4, warm_s=warm_s) is not None) is is_flagged


def test_where_the_data_does_not_fit_warm_may_be_as_slow():
    assert suspect(2e-4, warm_s=2e-4, bytes_moved=150 * 10**6) is None


def test_where_arithmetic_takes_most_of_the_time_warm_may_be_as_slow():
    assert suspect(2e-3, warm_s=2e-3) is None  # 80 us of its 2 ms are the memory's
    assert suspect(2e-3, warm_s=2e-3, memory_roof_bytes_per_s=None) is not None  # without a roof, who knows


@pytest.mark.parametrize("bytes_moved", [80 * 10**6, 800 * 10**6])
def test_faster_than_the_memory_is_not_cold_however_much_it_moves(bytes_moved):
    at_roof_s = bytes_moved / 1e12
    assert suspect(at_roof_s / 1.01, bytes_moved=bytes_moved, warm_s=at_roof_s / 3) is None
    flag = suspect(at_roof_s / 1.05, bytes_moved=bytes_moved, warm_s=at_roof_s / 3)
    assert flag.reason == "1050 GB/s cold, 105 % of what the memory does (1000 GB/s)"


def test_a_warm_row_is_not_suspected():
    assert l2_suspect(samples_of(1e-9, cache="warm"), context_of()) is None


@pytest.mark.parametrize(
    ("cache", "asked", "is_flagged"), [("warm", "cold", True), ("cold", "cold", False), ("warm", "warm", False)]
)
def test_not_cold_is_what_was_asked_for_and_not_given(cache, asked, is_flagged):
    assert (not_cold(cache, asked) is not None) is is_flagged


def test_a_time_that_is_neither_cold_nor_warm_says_so():
    flag = not_cold("partly-cold", "cold")
    assert "neither cold nor warm" in flag.reason
    assert "--cache warm for the time with one copy" in flag.advice
    assert "same inputs again" in not_cold("warm", "cold").reason


# ---- the clock ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_s", "launches", "is_flagged"), [(5e-6, 10, False), (4.9e-6, 10, True), (5e-6, 1, True), (5e-5, 1, False)]
)
def test_a_sample_lasts_fifty_ticks(time_s, launches, is_flagged):
    assert (tick_limited(time_s, launches, 1e-6) is not None) is is_flagged


def test_the_tick_is_told_in_percent_of_a_sample():
    assert tick_limited(1e-6, 8, 1.024e-6).reason == (
        "a sample is 7.8 ticks of 1.02e-06 s long, so that a tick is 12.8 % of it"
    )
    assert tick_limited(1e-6, 8, None) is None


@pytest.mark.parametrize(("host_s", "is_flagged"), [(9e-6, False), (1.1e-5, True), (None, False)])
def test_launch_limited_is_when_the_host_takes_longer(host_s, is_flagged):
    assert (launch_limited(samples_of(median_s=1e-5), host_s) is not None) is is_flagged


# ---- what slowed it down ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("throttle", "is_throttled", "is_power_limited"),
    [
        ({}, False, False),
        ({"sw_thermal": 0.0, "sw_power_cap": 0.0}, False, False),
        ({"sw_thermal": 0.005}, False, False),  # below a hundredth of the time
        ({"sw_thermal": 0.02}, True, False),
        ({"power_brake": 0.5}, True, False),
        ({"sw_power_cap": 0.5}, False, True),  # normal for a large matmul
        ({"sw_power_cap": 0.5, "hw_thermal": 0.2}, True, True),
        ({"cgroup_quota": 0.3}, True, False),
        ({"steal": 0.3}, False, False),
        ({"sw_thermal": None}, False, False),
    ],
)
def test_throttling_is_told_from_a_power_limit(throttle, is_throttled, is_power_limited):
    assert (throttled({"throttle": throttle}, True) is not None) is is_throttled
    assert (power_limited({"throttle": throttle}) is not None) is is_power_limited


def test_the_share_of_time_lost_is_told_for_each_cause():
    telemetry = {
        "throttle": {"sw_thermal": 0.123, "hw_thermal": None, "sw_power_cap": 0.9},
        "clock_events": ["hw_thermal"],
    }
    assert throttled(telemetry, True).reason == "time lost: sw_thermal 12 %, hw_thermal seen, for how long is not known"
    assert power_limited(telemetry).reason.endswith("sw_power_cap 90 %")
    assert "quota" in throttled({"throttle": {"cgroup_quota": 0.2}}, False).advice


@pytest.mark.parametrize("telemetry", [{}, {"throttle": None}, {"throttle": {}, "thread_switches_per_s": None}])
def test_missing_telemetry_speaks_against_nothing(telemetry):
    assert throttled(telemetry, True) is None
    assert power_limited(telemetry) is None
    assert preempted(telemetry) is None


def test_lost_cores_and_stolen_time_are_preemption():
    assert preempted({"thread_switches_per_s": PREEMPTIONS_PER_S}) is None
    assert preempted({"thread_switches_per_s": 3 * PREEMPTIONS_PER_S}).reason.startswith("210 times a second")
    few = {"thread_switches_per_s": 3 * PREEMPTIONS_PER_S, "window_s": 0.01}
    assert preempted(few) is None  # two switches are not a rate
    assert "steal 30 %" in preempted({"throttle": {"steal": 0.3}}).reason


# ---- the samples --------------------------------------------------------------------------------------------------


def test_the_words_of_two_modes_and_of_drift():
    assert bimodal(Modes(1.0, 1.08, 0.31)).reason == ("two speeds: 31 % of the samples are 8 % slower than the others")
    assert "are 350 % slower" in bimodal(Modes(1.0, 4.5, 0.31)).reason
    assert drifting(0.034).reason == "the last third of the samples is 3.4 % slower than the first"
    assert drifting(-0.02).reason == "the last third of the samples is 2 % faster than the first"
    assert bimodal(None) is None
    assert drifting(None) is None


def test_an_interval_that_stayed_wide_says_how_wide():
    assert not_converged(samples_of(converged=False), 0.005).reason == "±1.5 % after 40 samples, ±0.5 % was asked for"
    assert not_converged(samples_of(converged=False), None).reason == "±1.5 % after 40 samples"
    assert not_converged(samples_of(), 0.005) is None


def test_a_narrow_interval_of_too_few_samples_is_not_said_to_be_wide():
    flag = not_converged(samples_of(converged=False), 0.05)
    assert (flag.reason, flag.advice) == ("±1.5 % after 40 samples: too few to believe it", "a larger --budget")
