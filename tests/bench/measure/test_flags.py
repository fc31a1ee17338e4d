"""Every flag on both sides of its threshold, and its reason."""

from dataclasses import replace

import pytest

from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.measure.flags import (
    ABOVE_ROOF,
    CACHED_RESULT,
    MAX_CORE_WAIT,
    PREEMPTIONS_PER_S,
    disturbance,
    judged,
    of_check,
    of_settings,
    recorded,
    slowed,
    too_low,
)
from bench.harness.timing.protocol import Samples
from results.record import Record
from results.show.words import FLAGS
from roofline.gpu_table import find_gpu
from roofline.machine import Ceiling, Machine
from roofline.work import Work

PEAK = Ceiling("flops", "bf16", 1e14, "datasheet", "a test")
BANDWIDTH = Ceiling("bandwidth", "memory", 1e12, "datasheet", "a test")
QUIET = {"throttle": {"sw_power_cap": 0.0, "sw_thermal": 0.0}, "throttle_resolution": 0.001}


USUAL, NOTHING = Work(2 * 10**9, 40 * 10**6, 40 * 10**6), Work(0, 0, 0)


def samples_of(median_s=1e-4, cache="cold", converged=True, launches=10, **others):
    values = tuple(median_s * (1 + 0.001 * (i % 5 - 2)) for i in range(40))
    interval = (0.99 * median_s, 1.02 * median_s)
    return Samples(values, launches, "graph", cache, median_s, interval, converged, **others)


def device_of(is_gpu=True, cache_bytes=100 * 10**6):
    kind = ("cuda", "cuda:0") if is_gpu else ("cpu", "cpu")
    return Device(*kind, "x", "X", cache_bytes, 2**30)


def blank_of(work=USUAL):
    fields = {
        "op": "x",
        "provider": "torch",
        "dtype": "bf16",
        "shape": {},
        "case": "x",
        "status": "skipped",
    }
    return Record(
        **fields, flops=work.flops, bytes_read=work.bytes_read, bytes_written=work.bytes_written
    )


def ceilings_of(*entries):
    return Machine("x", "X", entries or (PEAK, BANDWIDTH))


def row_of(
    median_s=1e-4,
    work=USUAL,
    entries=(),
    is_gpu=True,
    cache_bytes=100 * 10**6,
    requested_cache="cold",
    **samples,
):
    """Return a record, by default without flags: 80 MB in 100 us on a GPU with 1 TB/s and 100
    TFLOP/s.
    """
    usual = {
        "tick_s": 1e-6,
        "host_launch_s": 5e-6,
        "target_half_width": 0.005,
        "warm_median_s": 5e-5,
    }
    measured = samples_of(median_s, **(usual | {"telemetry": QUIET} | samples))
    return recorded(
        blank_of(work),
        measured,
        device_of(is_gpu, cache_bytes),
        ceilings_of(*entries),
        requested_cache,
    )


def test_a_clean_row_has_no_flag():
    record = row_of()
    assert (record.status, record.flags, record.flag_reasons) == ("ok", (), {})


def test_a_measured_ceiling_below_a_row_is_too_low_unless_the_row_is_warm():
    peak = Ceiling("flops", "bf16", 1e12, "measured", "here")
    copy = Ceiling("bandwidth", "copy", 1e9, "measured", "here")
    both = ceilings_of(peak, copy)
    assert too_low(row_of(), both) == [peak, copy]
    assert too_low(row_of(cache_bytes=10**9), both) == [peak, copy]
    assert too_low(row_of(cache="warm"), both) == [peak]
    assert too_low(row_of(2e-3), both) == [copy]  # 1 TFLOP/s, not above it
    assert too_low(row_of(), ceilings_of(replace(peak, kind="datasheet"))) == []


def test_ceiling_flags_are_recomputed_and_the_others_stay():
    reasons = {"above-roof": "2000 % of the measured bf16 peak; a reason", "preempted": "busy"}
    record = replace(
        row_of(cache="warm", requested_cache="warm"), flags=tuple(reasons), flag_reasons=reasons
    )
    low, high = (
        ceilings_of(Ceiling("flops", "bf16", value, "measured", "here")) for value in (1e12, 1e14)
    )
    device = device_of(is_gpu=False)
    still, clean = judged(record, device, low), judged(record, device, high)
    assert still.flags == ("above-roof", "preempted")
    assert still.flag_reasons["above-roof"].startswith("2000 % of the measured bf16 peak")
    assert (clean.flags, clean.flag_reasons) == (("preempted",), {"preempted": "busy"})


def test_a_row_without_ceilings_and_telemetry_has_no_flag():
    for is_gpu in (True, False):
        assert recorded(blank_of(Work(0, 0, 0)), samples_of(), device_of(is_gpu), None).flags == ()


TEN_TIMES = Work(10**11, 40 * 10**6, 40 * 10**6)
BY_DATASHEET = (Ceiling("flops", "bf16", 1e14, "datasheet", ""), BANDWIDTH)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"work": TEN_TIMES}, "faster-than-physics"),
        ({"work": Work(12 * 10**9, 40 * 10**6, 40 * 10**6), "entries": BY_DATASHEET}, "above-roof"),
        ({"warm_median_s": 1e-4}, "l2-suspect"),
        ({"cache": "warm"}, "not-cold"),
        ({"tick_s": 1e-4}, "tick-limited"),
        ({"telemetry": {"throttle": {"hw_thermal": 0.1}}}, "throttled"),
        ({"telemetry": {"throttle": {"sw_power_cap": 0.1}}}, "power-limited"),
        ({"is_gpu": False, "telemetry": {"thread_switches_per_s": 500.0}}, "preempted"),
        ({"converged": False}, "not-converged"),
        ({"host_launch_s": 2e-4}, "launch-limited"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_finding_gives_exactly_its_flag(changes, name):
    record = row_of(**changes)
    assert record.flags == (name,)
    assert "; " in record.flag_reasons[name]
    assert name in FLAGS  # which `bench explain` explains


SLOWER = [1e-4 * (1 + i / 200) for i in range(60)]
TWO = [1e-4 * (1 + 0.1 * (i % 3 == 0)) for i in range(60)]


@pytest.mark.parametrize(
    ("samples_s", "reason"),
    [
        (SLOWER, "the last third of the samples is 19 % slower than the first"),
        (TWO, "two speeds: 33 % of the samples are 10 % slower than the others"),
        (
            [4.5 * s if s > 1e-4 else s for s in TWO],
            "two speeds: 33 % of the samples are 395 % slower than the others",
        ),
    ],
)
def test_drifting_and_bimodal_samples_are_flagged(samples_s, reason):
    samples = Samples(tuple(samples_s), 10, "graph", "cold", 1e-4, (1e-4, 1e-4), True)
    (text,) = recorded(blank_of(), samples, device_of(), ceilings_of()).flag_reasons.values()
    assert text.startswith(f"{reason}; ")


def test_neighboring_timer_ticks_are_not_bimodal():
    samples = Samples(tuple(TWO), 10, "graph", "cold", 1e-4, (1e-4, 1e-4), True, tick_s=1e-4)
    assert "bimodal" not in recorded(blank_of(), samples, device_of(), ceilings_of()).flags


def test_the_most_serious_flag_comes_first():
    wanted = (
        "faster-than-physics",
        "l2-suspect",
        "tick-limited",
        "not-converged",
        "launch-limited",
    )
    assert row_of(median_s=1e-7, converged=False, tick_s=1e-6).flags == wanted


def gate(
    median_s,
    cache="cold",
    work=NOTHING,
    peak=PEAK,
    bandwidth=BANDWIDTH,
    cache_bytes=10**8,
    slug="x",
):
    """Return the reason why a row is invalid, or None."""
    record = recorded(
        blank_of(work), samples_of(median_s, cache), device_of(True, cache_bytes), None
    )
    record = judged(record, device_of(True, cache_bytes), Machine(slug, "X", (peak, bandwidth)))
    reason = record.flag_reasons.get("faster-than-physics")
    assert (record.status == "invalid") is (reason is not None)
    return reason


TERAFLOP, GIGABYTE = Work(10**12, 0, 0), Work(0, 10**9, 0)


@pytest.mark.parametrize(("kind", "margin"), [("datasheet", 1.25), ("derived", 1.5)])
def test_the_margin_of_a_peak_depends_on_its_kind(kind, margin):
    peak, least_s = replace(PEAK, kind=kind), 10**12 / (margin * 1e14)
    assert gate(1.001 * least_s, work=TERAFLOP, peak=peak) is None
    assert f"{kind} flops ceiling" in gate(0.999 * least_s, work=TERAFLOP, peak=peak)


@pytest.mark.parametrize(("kind", "margin"), [("datasheet", 1.02), ("derived", 1.5)])
def test_the_margin_of_a_bandwidth_depends_on_its_kind(kind, margin):
    bandwidth, least_s = replace(BANDWIDTH, kind=kind), 10**9 / (margin * 1e12)
    assert gate(1.001 * least_s, work=GIGABYTE, bandwidth=bandwidth) is None
    assert "its bytes take" in gate(0.999 * least_s, work=GIGABYTE, bandwidth=bandwidth)


def test_bandwidth_limits_only_rows_that_read_from_memory():
    too_fast_s = 5e-4
    assert gate(too_fast_s, work=GIGABYTE) is not None
    assert gate(too_fast_s, work=GIGABYTE, cache="warm") is None
    assert gate(too_fast_s, work=GIGABYTE, cache_bytes=10**9) is None


@pytest.mark.parametrize(
    ("times", "work", "cause"),
    [
        (1.5, TERAFLOP, "part of the work is left out"),
        (1.1 * CACHED_RESULT, TERAFLOP, "an earlier result is returned"),
        (1.5, Work(0, 10**10, 0), "came from the cache"),
        (1.1 * CACHED_RESULT, Work(0, 10**10, 0), "an earlier result is returned"),
    ],
)
def test_the_physics_gate_names_the_likely_cause(times, work, cause):
    least_s = 10**12 / 1e14 / 1.25 if work.flops else 10**10 / 1e12 / 1.02
    assert cause in gate(least_s / times, work=work)


@pytest.mark.parametrize(
    ("reached", "is_flagged"), [(ABOVE_ROOF - 0.001, False), (ABOVE_ROOF + 0.01, True), (4.1, True)]
)
def test_a_possible_rate_above_a_measured_peak_is_flagged(reached, is_flagged):
    record = row_of(10**12 / (reached * 1e14), TERAFLOP, (replace(PEAK, kind="measured"),))
    assert record.flags == ("above-roof",) * is_flagged
    if is_flagged:
        text = f"{100 * reached:.0f} % of the measured bf16 peak; likely the machine was slower"
        assert record.flag_reasons["above-roof"].startswith(text)


@pytest.mark.parametrize(
    ("times", "disturbed", "again", "status"),
    [
        (1.9, None, {("flops", "bf16")}, "ok"),
        (2.1, None, {("flops", "bf16")}, "invalid"),
        (2.1, "a thread waited", {("flops", "bf16")}, "ok"),
        (2.1, None, {("flops", "fp32")}, "ok"),
        (2.1, None, (), "ok"),
    ],
)
def test_a_row_above_a_peak_that_was_measured_again_is_invalid(times, disturbed, again, status):
    peak = replace(PEAK, kind="measured", disturbed=disturbed)
    record = row_of(10**12 / (times * 1e14), TERAFLOP, (peak,), is_gpu=False)
    found = judged(record, device_of(is_gpu=False), ceilings_of(peak), again=again)
    assert found.status == status
    assert ("faster-than-physics" in found.flags) == (status == "invalid")


def test_cold_bytes_that_fit_the_cache_are_not_held_to_the_memory():
    copy = Ceiling("bandwidth", "copy", 1e12, "measured", "a test")
    again = {("bandwidth", "copy")}
    for cache_bytes, status in ((10**8, "invalid"), (10**12, "ok")):
        record = row_of(1e-3, Work(0, 2 * 10**9, 2 * 10**9), (copy,), is_gpu=False)
        device = device_of(is_gpu=False, cache_bytes=cache_bytes)
        assert judged(record, device, ceilings_of(copy), again=again).status == status


@pytest.mark.parametrize(("time_s", "is_near"), [(3e-6, True), (23e-6, True), (24e-6, False)])
def test_a_launch_of_a_few_floors_is_flagged_with_the_floor(time_s, is_near):
    floor = Ceiling("launch", "launch", 2.4e-6, "measured", "a test")
    record = row_of(time_s, Work(0, 0, 0), (floor,), launches=100, host_launch_s=1e-6)
    assert record.flags == ("near-floor",) * is_near
    if time_s == 3e-6:
        text = "the launch takes 3e-06 s, that of an empty kernel 2.4e-06 s; "
        assert record.flag_reasons["near-floor"].startswith(text)


def test_a_row_without_a_graph_has_the_reason():
    record = row_of(why_no_graph="operation not permitted when stream is capturing")
    assert record.flags == ("not-captured",)
    assert "operation not permitted" in record.flag_reasons["not-captured"]


def test_a_row_rated_by_a_noisy_ceiling_is_flagged():
    why = "a thread lost its core 300 times per second"
    busy = Ceiling("bandwidth", "copy", 1e12, "measured", "a test", disturbed=why)
    record = row_of(entries=(PEAK, busy))
    assert record.flags == ("doubtful-roof",)
    assert "the copy bandwidth may be too low" in record.flag_reasons["doubtful-roof"]
    assert f"when it was measured, {why}" in record.flag_reasons["doubtful-roof"]
    assert not row_of(work=Work(2 * 10**9, 0, 0), entries=(PEAK, busy)).flags  # it judges nothing


def test_a_measured_ceiling_makes_no_row_invalid():
    low = (
        Ceiling("flops", "bf16", 1.0, "measured", "a test"),
        Ceiling("bandwidth", "copy", 1.0, "measured", "a test"),
    )
    assert row_of(1e-3, Work(10**12, 10**12, 0), low).status == "ok"


CALIBRATED = {"read": 4.5e12, "write": 4.28e12, "triad": 4.05e12, "copy": 3.93e12}
"""Bytes/s of an H200, as published."""


COPY = Work(10, 10**9, 10**9)


def test_a_row_above_its_mix_only_is_not_l2_suspect():
    entries = [
        Ceiling("bandwidth", name, value, "measured", "a test")
        for name, value in CALIBRATED.items()
    ]
    record = row_of(COPY.bytes / 4.2e12, COPY, entries)  # 107 % of a copy, 93 % of a read
    text = "107 % of the measured copy bandwidth; likely its mix of reads and writes is faster"
    assert record.flag_reasons["above-roof"].startswith(text)
    assert record.flags == ("above-roof",)


def test_a_warm_row_above_the_bandwidth_names_the_cache():
    record = row_of(80e6 / 2e12, cache="warm", requested_cache="warm")
    assert record.flags == ("above-roof",)
    text = "200 % of the datasheet memory bandwidth; likely inputs that are not cold are served by"
    assert record.flag_reasons["above-roof"].startswith(text)


@pytest.mark.parametrize(
    ("bytes_per_s", "fits", "text"),
    [
        (2e12, True, None),
        (2e12, False, "200 % of the datasheet memory bandwidth; likely inputs"),
        (4e12, True, "133 % of the measured L2 cache bandwidth; likely a nearer cache"),
    ],
)
def test_a_warm_row_is_compared_with_a_cache_that_it_fits(bytes_per_s, fits, text):
    half_bytes = 40 * 10**6 if fits else 39 * 10**6
    cache = Ceiling(
        "cache-bandwidth", "L2 cache", 3e12, "measured", "a test", work_per_launch=half_bytes
    )
    entries = (PEAK, BANDWIDTH, cache)
    record = row_of(80e6 / bytes_per_s, entries=entries, cache="warm", requested_cache="warm")
    assert (record.flags == ("above-roof",)) is bool(text)
    assert record.flag_reasons.get("above-roof", "").startswith(text or "")
    assert too_low(record, ceilings_of(*entries)) == []


@pytest.mark.parametrize(
    ("slug", "dtype", "highest"),
    [
        ("h100-sxm", "bf16", 132 * 4096 * 1.98e9),  # 1,070.5 TFLOP/s, above the datasheet's 989.4
        # Sold with a rounded peak just above its own clock times its rate.
        ("a100-sxm-80gb", "bf16", 312e12),
    ],
)
def test_the_physics_gate_uses_the_highest_clock(slug, dtype, highest):
    ceilings = find_gpu(slug)
    blank = replace(blank_of(Work(10**12, 1, 1)), dtype=dtype)
    within, above = (
        recorded(blank, samples_of(10**12 / (t * highest)), device_of(), ceilings)
        for t in (1.01, 1.03)
    )
    assert (within.status, above.flags) == ("ok", ("faster-than-physics",))
    assert "clock-limited flops ceiling" in above.reason


def suspect(cold_s, warm_s=5e-5, bytes_moved=80 * 10**6, cache="cold", entries=(PEAK, BANDWIDTH)):
    """Return the reason of `l2-suspect`, or None."""
    blank = blank_of(Work(2 * 10**9, bytes_moved // 2, bytes_moved // 2))
    samples = samples_of(cold_s, cache, warm_median_s=warm_s)
    return recorded(blank, samples, device_of(), Machine("x", "X", entries)).flag_reasons.get(
        "l2-suspect"
    )


@pytest.mark.parametrize(
    ("warm_s", "is_flagged"), [(0.99e-4, True), (0.975e-4, False), (0.5e-4, False), (1.1e-4, True)]
)
def test_cold_must_be_slower_than_warm_if_data_fits_the_cache(warm_s, is_flagged):
    assert (suspect(1e-4, warm_s=warm_s) is not None) is is_flagged


def test_warm_may_be_as_slow_if_data_exceeds_the_cache():
    assert suspect(2e-4, warm_s=2e-4, bytes_moved=150 * 10**6) is None


def test_warm_may_be_as_slow_if_the_row_is_compute_bound():
    assert suspect(2e-3, warm_s=2e-3) is None  # 80 us of its 2 ms are the memory's
    assert suspect(2e-3, warm_s=2e-3, entries=()) is not None  # without a roof, who knows


@pytest.mark.parametrize("bytes_moved", [80 * 10**6, 800 * 10**6])
def test_a_cold_row_faster_than_memory_is_l2_suspect(bytes_moved):
    at_roof_s = bytes_moved / 1e12
    assert suspect(at_roof_s / 1.01, bytes_moved=bytes_moved, warm_s=at_roof_s / 3) is None
    reason = suspect(at_roof_s / 1.05, bytes_moved=bytes_moved, warm_s=at_roof_s / 3)
    assert reason.startswith("1050 GB/s cold, 105 % of the memory bandwidth (1000 GB/s); ")


@pytest.mark.parametrize(
    ("cache", "reason"),
    [("partly-cold", "the time is neither cold nor warm"), ("warm", "the same inputs")],
)
def test_not_cold_is_flagged_only_if_cold_was_requested(cache, reason):
    assert reason in row_of(cache=cache).flag_reasons["not-cold"]
    assert "not-cold" not in row_of(cache=cache, requested_cache="warm").flags


@pytest.mark.parametrize(
    ("time_s", "launches", "is_flagged"),
    [(5e-6, 10, False), (4.9e-6, 10, True), (5e-6, 1, True)],
)
def test_samples_below_fifty_ticks_are_flagged(time_s, launches, is_flagged):
    record = recorded(
        blank_of(), samples_of(time_s, launches=launches, tick_s=1e-6), device_of(False), None
    )
    assert ("tick-limited" in record.flags) is is_flagged


@pytest.mark.parametrize(
    ("throttle", "is_throttled", "is_power_limited"),
    [
        ({}, False, False),
        ({"sw_thermal": 0.005}, False, False),  # below a hundredth of the time
        ({"sw_thermal": 0.02}, True, False),
        ({"sw_power_cap": 0.5}, False, True),  # normal for a large matmul
        ({"sw_power_cap": 0.5, "hw_thermal": 0.2}, True, True),
        ({"cgroup_quota": 0.3}, True, False),
        ({"steal": 0.3}, False, False),
        ({"sw_thermal": None}, False, False),
    ],
)
def test_throttling_and_power_limits_have_separate_flags(throttle, is_throttled, is_power_limited):
    names = ("throttled",) * is_throttled + ("power-limited",) * is_power_limited
    assert tuple(flag.name for flag in slowed({"throttle": throttle}, True)) == names
    assert (disturbance({"throttle": throttle}, True) is not None) is is_throttled


def test_lost_cores_and_stolen_time_are_preemption():
    often = {"thread_switches_per_s": 3 * PREEMPTIONS_PER_S}
    assert disturbance({"thread_switches_per_s": PREEMPTIONS_PER_S}, False) is None
    assert disturbance(often, False).reason.startswith("a thread lost its core 210 times")
    assert disturbance(often | {"window_s": 0.01}, False) is None  # two switches are not a rate
    assert "steal 30 %" in disturbance({"throttle": {"steal": 0.3}}, False).reason


@pytest.mark.parametrize(
    ("method", "launches", "is_cut"),
    [("events", 200, True), ("events", 2, False), ("graph", 200, False)],
)
def test_launches_that_take_longer_to_queue_than_the_spin_lasts_are_flagged(
    method, launches, is_cut
):
    samples = replace(
        samples_of(1e-2, launches=launches), method=method, host_launch_s=5e-3, tick_s=1e-6
    )
    reasons = recorded(blank_of(), samples, device_of(), ceilings_of()).flag_reasons
    assert ("launch-limited" in reasons) is is_cut
    if is_cut:
        assert (
            "; a sample of 200 launches may include host time, as the GPU waits 0.5 s at most; "
            in reasons["launch-limited"]
        )


@pytest.mark.parametrize(
    ("is_gpu", "cause", "advice"),
    [(True, "sw_thermal", "improve cooling"), (False, "cgroup_quota", "use fewer threads")],
)
def test_lost_time_is_flagged_with_what_to_do(is_gpu, cause, advice):
    record = row_of(is_gpu=is_gpu, telemetry={"throttle": {cause: 0.25}})
    assert record.flag_reasons["throttled"].startswith(f"time lost: {cause} 25 %; {advice}")


@pytest.mark.parametrize(("threads", "is_advised"), [(2, True), (1, False), (None, False)])
def test_one_thread_is_advised_if_several_waited(threads, is_advised):
    busy = samples_of(telemetry={"core_wait": 2 * MAX_CORE_WAIT})
    device = replace(device_of(is_gpu=False), threads=threads)
    reason = recorded(blank_of(), busy, device, None).flag_reasons["preempted"]
    assert reason.startswith("a thread waited for a core 10 % of the time; run it again when")
    assert ("--threads 1" in reason) is is_advised


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (0.005, "±1.5 % after 40 samples, the target is ±0.5 %; "),
        (None, "±1.5 % after 40 samples; "),
        (0.05, "±1.5 % after 40 samples: too few to rely on; increase --budget"),
    ],
)
def test_not_converged_states_the_interval_and_the_target(target, reason):
    samples = samples_of(converged=False, target_half_width=target)
    assert (
        recorded(blank_of(), samples, device_of(False), None)
        .flag_reasons["not-converged"]
        .startswith(reason)
    )


def test_restored_settings_are_named():
    assert of_settings([], "the function") == ()
    [flag] = of_settings(["threads", "default dtype"], "the function")
    assert flag.name == "settings-restored"
    assert flag.reason.startswith("the function changed threads, default dtype; ")


def test_flags_of_a_check_are_what_is_not_verified_or_was_allowed():
    assert list(of_check(CheckResult(None, max_error_of_bound=1.0), "--tolerance")) == []
    [allowed] = of_check(CheckResult(None, max_error_of_bound=1.5), "--tolerance")
    assert allowed.name == "beyond-rounding"
    assert "1.5 times" in allowed.reason
    assert "--tolerance allowed it" in allowed.reason
    [unknown] = of_check(CheckResult(None, unverified="it takes no tensor"), "")
    assert unknown.name == "not-fresh"
