"""The formulas of the roofline against published figures and cases worked out by hand."""

from dataclasses import replace

import pytest

from results.record import Copy, Loop, Step
from roofline.machine import Ceiling, Machine
from roofline.model import (
    bound,
    hidden_share,
    intensity,
    judge,
    limits_s,
    mbu,
    mfu,
    ridge_intensity,
)
from tests.records import record

PEAK, BANDWIDTH = 1000e12, 2e12
"""A machine with a ridge point of 500 FLOP/byte."""


def ceilings(**values):
    """Return ceilings of bf16, bandwidth and launch, each under its quantity, all from a datasheet
    but the launch.
    """
    names = {"flops": "bf16", "bandwidth": "memory", "launch": "launch"}
    kinds = {"launch": "measured"}
    return Machine(
        "a-gpu",
        "A GPU",
        tuple(
            Ceiling(q, names[q], value, kinds.get(q, "datasheet"), "a test")
            for q, value in values.items()
        ),
    )


@pytest.mark.parametrize(
    ("peak", "bandwidth", "published"),
    [
        pytest.param(989.4e12, 3.352e12, 295, id="H100 SXM"),
        pytest.param(312e12, 2.039e12, 153, id="A100 SXM 80GB"),
        pytest.param(197e12, 8.2e11, 240, id="TPU v5e, scaling-book chapter 1"),
    ],
)
def test_ridge_point_is_the_published_one(peak, bandwidth, published):
    assert round(ridge_intensity(peak, bandwidth)) == published


def test_utilizations_are_fractions_and_never_clamped():
    assert (mfu(1500e12, PEAK), mbu(3e12, BANDWIDTH)) == (1.5, 1.5)
    copy = record(flops=0, bytes_read=10**9, bytes_written=10**9, median_s=0.5e-3)
    known = ceilings(flops=PEAK, bandwidth=BANDWIDTH)
    assert judge(copy, known).roofline_pct == pytest.approx(200)
    assert intensity(5, 0) is None
    assert judge(record(bytes_written=None), known).intensity == 2**31 / 2**22


@pytest.mark.parametrize(
    ("compute_s", "memory_s", "launch_s", "expected"),
    [
        (1.0, 0.5, 0.0, "compute"),
        (0.5, 1.0, 0.0, "memory"),
        (0.91, 1.0, 0.0, "mixed"),
        (0.1, 0.2, 1.0, "launch"),
        (0.0, 0.0, 0.0, "launch"),
    ],
)
def test_bound_is_the_longest_time_or_mixed_within_ten_percent(
    compute_s, memory_s, launch_s, expected
):
    times_s = {"compute": compute_s, "memory": memory_s, "launch": launch_s}
    assert bound(**times_s) == expected


def test_a_record_is_judged_by_hand():
    judged = judge(record(), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    assert judged.flops_per_s == pytest.approx(500e12)
    assert judged.bytes_per_s == pytest.approx(3 * 2**21 / (2**31 / 500e12))
    assert judged.intensity == pytest.approx(1024 / 3)
    assert judged.mfu == pytest.approx(0.5)
    assert judged.mbu == pytest.approx(500e12 / (1024 / 3) / BANDWIDTH)
    assert judged.bound == "memory"  # 341 is left of the ridge at 500
    assert judged.roofline_pct == pytest.approx(100 * 500e12 / (1024 / 3 * BANDWIDTH))
    assert (judged.peak_kind, judged.bandwidth_kind, judged.excess) == (
        "datasheet",
        "datasheet",
        None,
    )


@pytest.mark.parametrize(("count", "launch_s"), [(None, 4e-6), (1, 4e-6), (7, 28e-6)])
def test_a_profile_row_of_n_calls_has_n_launch_floors(count, launch_s):
    row = record(count=count)
    known = ceilings(flops=PEAK, bandwidth=BANDWIDTH, launch=4e-6)
    compute_s = 2**31 / PEAK
    times_s = {"compute": compute_s, "memory": 3 * 2**21 / BANDWIDTH, "launch": launch_s}
    times_s |= {"cache": 0.0, "link": 0.0}
    assert limits_s(row, known) == pytest.approx(times_s)
    slow = record(count=count, median_s=2 * launch_s)
    assert judge(slow, known).bound == "launch"
    assert judge(slow, known).held_back_by is None  # it reaches half of that floor


@pytest.mark.parametrize(("both_s", "share"), [(3.0, 1.0), (5.0, 0.0), (6.0, -0.5), (4.5, 0.25)])
def test_hidden_share_is_of_the_shorter_job(both_s, share):
    """At best max(copy, compute), else their sum: 2 s of copies and 3 s of compute."""
    assert hidden_share(2.0, 3.0, both_s) == pytest.approx(share)
    assert hidden_share(3.0, 2.0, both_s) == pytest.approx(share)


COPY = {"op": "h2d", "flops": None, "bytes_read": 2**30, "bytes_written": 0, "median_s": 0.05}


def test_link_share_of_a_copy_is_of_one_direction():
    copy = record(**COPY, shape={"bytes": 10**9}, details=Copy(link_bytes_per_s=32e9))
    assert judge(copy, ceilings()).link_share == pytest.approx(20e9 / 32e9)
    bytes_alone = replace(copy, flops=0)
    assert judge(bytes_alone, ceilings(flops=PEAK, bandwidth=BANDWIDTH)).bound == "link"
    assert judge(replace(copy, details=Copy()), ceilings()).link_share is None
    assert judge(replace(copy, shape={"m": 1}), ceilings()).link_share is None
    assert judge(replace(copy, status="failed"), ceilings()).link_share is None


def test_hidden_share_of_a_copy_needs_both_times_alone():
    alone = Copy(copy_s=(0.01, 0.02, 0.06), compute_s=(0.04, 0.04, 0.01))
    copy = record(**COPY, details=alone)
    assert judge(copy, ceilings()).hidden_share == pytest.approx(0.01 / 0.02)
    assert (
        judge(replace(copy, details=Copy(compute_s=alone.compute_s)), ceilings()).hidden_share
        is None
    )
    assert judge(replace(copy, details=Copy(copy_s=alone.copy_s)), ceilings()).hidden_share is None


def test_wait_share_and_tokens_of_a_loop_with_its_batches():
    waits = Loop(waits_s=(0.1, 0.3), compute_s=(), file_bytes=1)
    loop = record(shape={"b": 4, "s": 512}, samples_s=(1.0, 3.0), median_s=2.0, details=waits)
    judged = judge(loop, ceilings())
    assert judged.wait_share == pytest.approx(0.1)
    assert judged.tokens_per_s == pytest.approx(1024)
    for shape in ({"b": 4}, {"s": 512}):
        assert judge(replace(loop, shape=shape), ceilings()).tokens_per_s is None
    without = judge(replace(loop, details=None), ceilings())
    assert (without.wait_share, without.tokens_per_s) == (None, None)
    assert judge(replace(loop, samples_s=()), ceilings()).wait_share is None


def test_step_has_tokens_and_hfu_with_recomputation():
    counts = Step(tokens_per_step=4096, hardware_flops=1200 * 10**12)
    step = record(median_s=2.0, flops=1000 * 10**12, details=counts)
    judged = judge(step, ceilings(flops=PEAK))
    assert judged.tokens_per_s == pytest.approx(2048)
    assert (judged.mfu, judged.hfu) == pytest.approx((0.5, 0.6))
    assert judge(replace(step, details=Step()), ceilings(flops=PEAK)).hfu is None
    assert judge(replace(step, flops=0), ceilings(flops=PEAK)).hfu is None


@pytest.mark.parametrize(
    "changes", [{"flags": ("interpreted",)}, {"median_s": None}, {"status": "invalid"}]
)
def test_row_without_a_time_of_its_own_has_only_its_intensity(changes):
    judged = judge(record(**changes), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    known = {key: value for key, value in vars(judged).items() if value is not None}
    assert known == {"intensity": pytest.approx(1024 / 3)}


@pytest.mark.parametrize("over", [1.004, 0.996])
@pytest.mark.parametrize(
    ("changes", "limit_s", "words"),
    [
        ({"bytes_read": 1}, 2**31 / PEAK, "above the datasheet bf16 peak"),
        ({"flops": 1}, 3 * 2**21 / BANDWIDTH, "above the datasheet memory bandwidth"),
        ({"flops": 1, "cache": "warm"}, 3 * 2**21 / BANDWIDTH, "inputs that are not cold"),
    ],
)
def test_a_row_is_above_a_ceiling_from_its_value_on(changes, limit_s, words, over):
    known = ceilings(flops=PEAK, bandwidth=BANDWIDTH)
    excess = judge(record(**changes, median_s=limit_s / over), known).excess
    assert (words in str(excess)) is (over > 1)
    assert (excess is None) is (over < 1)


@pytest.mark.parametrize("over", [1.004, 0.996])
@pytest.mark.parametrize("published", [True, False])
def test_a_row_is_above_a_measured_ceiling_from_its_value_on(over, published):
    mix = judge(streamed(1, 1, over * H200["copy"]), calibrated("copy", published=published))
    assert (mix.excess is None) is (over < 1)
    cube = record(**CUBE | {"median_s": CUBE["flops"] / (over * 795e12)})
    fast = judge(cube, calibrated(*H200, published=published))
    assert (fast.excess is None) is (over < 1)
    assert over < 1 or "above the measured bf16 peak" in str(fast.excess)


H200 = {"read": 4502e9, "write": 4284e9, "triad": 4045e9, "copy": 3928e9}
"""Bytes/s, as TileOPs publishes them; the datasheet says 4.8 TB/s."""


def calibrated(*names, published=True, peak=795e12):
    """Return an H200 with some mixes measured, and with its datasheet or without."""
    entries = [Ceiling("bandwidth", name, H200[name], "measured", "a test") for name in names]
    if published:
        entries.append(Ceiling("bandwidth", "memory", 4.8e12, "datasheet", "a test"))
        entries.append(Ceiling("flops", "bf16", 989.4e12, "datasheet", "a test"))
    if peak:
        entries.append(Ceiling("flops", "bf16", peak, "measured", "a test"))
    return Machine("h200-sxm", "H200", tuple(entries))


def streamed(read, written, bytes_per_s, **changes):
    """Return a record that moves so many GB at a rate, with one FLOP a byte."""
    moved = (read + written) * 10**9
    counts = {"flops": moved, "bytes_read": read * 10**9, "bytes_written": written * 10**9}
    return record(**counts | {"median_s": moved / bytes_per_s} | changes)


@pytest.mark.parametrize(
    ("read", "written", "mix"),
    [(1, 0, "read"), (0, 1, "write"), (1, 1, "copy"), (2, 1, "triad"), (3, 1, "triad")],
)
def test_without_a_datasheet_a_record_is_judged_by_the_mix_nearest_its_own(read, written, mix):
    judged = judge(streamed(read, written, 3.9e12), calibrated(*H200, published=False))
    assert (judged.mix, judged.bandwidth_kind) == (mix, "measured")
    assert judged.mbu == pytest.approx(3.9e12 / H200[mix])
    shares = (judged.mix_pct, judged.roofline_pct, judged.measured_pct)
    assert shares == pytest.approx([390e12 / H200[mix]] * 3)
    assert judged.excess is None


def test_with_a_datasheet_mbu_is_of_it_and_the_mix_has_its_own_share():
    judged = judge(streamed(1, 1, 3.85e12), calibrated(*H200))
    assert (judged.mbu, judged.bandwidth_kind, judged.mix) == (
        pytest.approx(3.85 / 4.8),
        "datasheet",
        "copy",
    )
    assert judged.roofline_pct == pytest.approx(385 / 4.8)
    assert (judged.mix_pct, judged.measured_pct) == pytest.approx((98.01, 98.01), abs=0.01)


CUBE = {
    "flops": 2 * 8192**3,
    "bytes_read": 4 * 8192**2,
    "bytes_written": 2 * 8192**2,
    "median_s": 2 * 8192**3 / 780e12,
}


def test_mfu_uses_the_datasheet_and_measured_pct_the_fastest_matmul():
    judged = judge(record(**CUBE), calibrated(*H200))
    assert (judged.mfu, judged.measured_pct) == pytest.approx((780 / 989.4, 78000 / 795))
    assert (judged.mix, judged.bound) == ("triad", "compute")


@pytest.mark.parametrize(
    ("row", "known", "measured_pct"),
    [
        (streamed(1, 1, 3.85e12), calibrated(*H200, peak=None), 385 / 3.928),
        (record(**CUBE), calibrated(), 78000 / 795),  # no mix is needed if the peak binds
        (record(**CUBE), calibrated(*H200, peak=None), None),
        (
            streamed(1, 1, 3.85e12, flops=0),
            calibrated(*H200, published=False, peak=None),
            385 / 3.928,
        ),
        (streamed(1, 1, 3.85e12), calibrated(*H200, published=False, peak=None), None),
    ],
)
def test_published_ceiling_replaces_a_measured_one_unless_it_binds(row, known, measured_pct):
    assert judge(row, known).measured_pct == pytest.approx(measured_pct)


LEVEL_BYTES = 2**20


def cached(**changes):
    """Return a machine with 20 GB/s of memory, a cache of 1 MiB with 100 GB/s, and a peak of 1
    TFLOP/s in fp32.
    """
    cache = Ceiling("cache-bandwidth", "last-level cache", 100e9, "measured", "a test")
    return Machine(
        "a-cpu",
        "A CPU",
        (
            Ceiling("flops", "fp32", 1e12, "measured", "a test"),
            Ceiling("bandwidth", "copy", 20e9, "measured", "a test"),
            replace(cache, **{"work_per_launch": LEVEL_BYTES // 2} | changes),
        ),
    )


def warm(**changes):
    """Return an fp32 addition of half of the level, at 50 GB/s."""
    work = {"flops": 2**17, "bytes_read": 2**18, "bytes_written": 2**18}
    own = {"op": "add", "dtype": "fp32", "cache": "warm", "median_s": 2**19 / 50e9}
    return record(**work | own | changes)


def test_a_warm_row_within_the_cache_is_judged_by_the_cache():
    found = judge(warm(), cached())
    assert (found.bound, found.excess, found.held_back_by) == ("cache", None, None)
    assert (found.roofline_pct, found.measured_pct) == pytest.approx((50, 50))
    assert found.mbu == pytest.approx(2.5)  # of the memory, as for any row
    times_s = limits_s(warm(), cached())
    assert times_s == pytest.approx(
        {"compute": 2**17 / 1e12, "memory": 0, "cache": 2**19 / 100e9, "link": 0, "launch": 0}
    )


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (warm(cache="cold"), cached()),
        (warm(bytes_written=LEVEL_BYTES - 2**18 + 1), cached()),
        (warm(), cached(work_per_launch=None)),
        (warm(), cached(work_per_launch=2**18 - 1)),
    ],
)
def test_any_other_row_is_judged_by_memory(row, known):
    found = judge(row, known)
    assert found.bound == "memory"
    assert found.roofline_pct == pytest.approx(100 * found.mbu)
    assert found.excess.startswith("above the measured copy bandwidth: ")


def test_a_row_of_exactly_the_level_is_in_the_cache():
    assert judge(warm(bytes_written=LEVEL_BYTES - 2**18), cached()).bound == "cache"


@pytest.mark.parametrize("over", [1.004, 0.996])
def test_a_row_above_the_cache_says_so(over):
    found = judge(warm(median_s=2**19 / (over * 100e9)), cached())
    assert (found.excess is None) is (over < 1)
    assert over < 1 or str(found.excess).startswith(
        "above the measured last-level cache bandwidth: a nearer cache serves it"
    )


VECTOR = Machine(
    "a-gpu",
    "A GPU",
    (
        Ceiling("flops", "bf16", PEAK, "datasheet", "a test"),
        Ceiling("fma", "fp32", 50e12, "datasheet", "a test"),
        Ceiling("bandwidth", "memory", BANDWIDTH, "datasheet", "a test"),
    ),
)
"""Ridge points of 500 FLOP/byte for products and 25 for everything else."""


def test_matmuls_use_the_tensor_core_peak_and_other_ops_the_vector_peak():
    # 60 FLOP/byte.
    work = {"flops": 2**31, "bytes_read": 2**25, "bytes_written": 2**21, "median_s": 2**31 / 25e12}
    gelu, product = (judge(record(op=op, **work), VECTOR) for op in ("gelu", "matmul"))
    assert (gelu.peak_units, gelu.bound, gelu.roofline_pct) == (
        "vector",
        "compute",
        pytest.approx(50),
    )
    assert (product.peak_units, product.bound) == ("matrix", "memory")
    assert gelu.mfu == product.mfu == 0.025  # over the dense peak of the dtype, whatever the units


def test_vector_peak_falls_back_to_fp32_except_for_fp64():
    assert [
        getattr(VECTOR.vector_peak(dtype), "name", None)
        for dtype in ("fp32", "bf16", "int8", "fp64")
    ] == [
        *("fp32", "fp32", "fp32"),
        None,
    ]
    assert judge(record(op="gelu", dtype="fp64"), VECTOR).roofline_pct is None


@pytest.mark.parametrize(
    ("share", "launch_s", "held_back"),
    [(0.29, None, True), (0.31, None, False), (0.05, 3e-5, False)],
)
def test_row_far_below_all_ceilings_is_held_back_by_another_cause(share, launch_s, held_back):
    known = ceilings(flops=PEAK, bandwidth=BANDWIDTH, **({"launch": launch_s} if launch_s else {}))
    found = judge(record(median_s=3 * 2**21 / BANDWIDTH / share), known)
    assert found.held_back_by == ("latency, instructions or the library" if held_back else None)


@pytest.mark.parametrize(
    ("op", "units", "known", "judged_by"),
    [
        *(
            ("mine", None, VECTOR, "matrix"),
            ("mine", "vector", VECTOR, "vector"),
            ("mine", "matrix", VECTOR, "matrix"),
        ),
        *(("gelu", None, VECTOR, "vector"), ("gelu", "matrix", VECTOR, "matrix")),
        # No rate of vector units is known.
        ("gelu", None, ceilings(flops=PEAK, bandwidth=BANDWIDTH), "matrix"),
    ],
)
def test_the_definition_of_an_op_decides_its_units_before_its_name(op, units, known, judged_by):
    assert judge(record(op=op, units=units), known).peak_units == judged_by
