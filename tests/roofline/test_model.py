"""The formulas of the roofline against published figures and cases worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from results.record import Record
from roofline import model
from roofline.ceilings import Ceiling, Ceilings
from roofline.model import (
    attainable_flops_per_s,
    bound,
    intensity,
    judge,
    judged_keys,
    least_time_s,
    mbu,
    mfu,
    ridge_intensity,
    roofline_pct,
)
from roofline.work import matmul_work

PEAK, BANDWIDTH = 1000e12, 2e12
"""A machine with a ridge point of 500 FLOP/byte."""


def ceilings(**values: float) -> Ceilings:
    """Return ceilings of bf16, bandwidth and launch, each under its quantity, all from a datasheet but the launch."""
    names = {"flops": "bf16", "bandwidth": "memory", "launch": "launch"}
    kinds = {"launch": "measured"}
    return Ceilings(
        "a-gpu",
        "A GPU",
        tuple(Ceiling(q, names[q], value, kinds.get(q, "datasheet"), "a test") for q, value in values.items()),
    )


def record(**changes: Any) -> Record:
    """Return a 1024-cube bf16 product at half of PEAK: 2^31 FLOPs in 4.294967296 us."""
    values: dict[str, Any] = {
        "op": "matmul",
        "provider": "torch",
        "dtype": "bf16",
        "shape": {"m": 1024, "n": 1024, "k": 1024},
        "case": "1024x1024x1024",
        "status": "ok",
        "flops": 2**31,
        "bytes_read": 2**22,
        "bytes_written": 2**21,
        "median_s": 2**31 / 500e12,
        "cache": "cold",
    }
    return Record(**values | changes)


@pytest.mark.parametrize(
    ("peak", "bandwidth", "published"),
    [
        pytest.param(989.4e12, 3.352e12, 295, id="H100 SXM"),
        pytest.param(312e12, 2.039e12, 153, id="A100 SXM 80GB"),
        pytest.param(312e12, 1.555e12, 201, id="A100 SXM 40GB"),
        pytest.param(989.4e12, 4.8e12, 206, id="H200 SXM"),
        pytest.param(197e12, 8.2e11, 240, id="TPU v5e, scaling-book chapter 1"),
    ],
)
def test_ridge_point_is_the_published_one(peak: float, bandwidth: float, published: int) -> None:
    assert round(ridge_intensity(peak, bandwidth)) == published


def test_a_square_bf16_matmul_crosses_the_ridge_of_an_h100_at_887() -> None:
    ridge = ridge_intensity(989.5e12, 3.35e12)

    def of_square(n: int) -> float:
        work = matmul_work(n, n, n, "bf16", "bf16")
        return intensity(work.flops, work.bytes) or 0

    assert of_square(886) < ridge <= of_square(887)


def test_attainable_is_the_lower_of_slope_and_peak() -> None:
    assert attainable_flops_per_s(250, PEAK, BANDWIDTH) == 500e12
    assert attainable_flops_per_s(500, PEAK, BANDWIDTH) == PEAK
    assert attainable_flops_per_s(5000, PEAK, BANDWIDTH) == PEAK


@pytest.mark.parametrize(("flops", "moved"), [(2**31, 3 * 2**21), (2**20, 2**22), (1, 10**9), (10**12, 2)])
def test_roofline_pct_equals_achieved_over_attainable(flops: int, moved: int) -> None:
    time_s = 3 * least_time_s(flops, moved, PEAK, BANDWIDTH)
    achieved = flops / time_s
    attainable = attainable_flops_per_s(flops / moved, PEAK, BANDWIDTH)
    assert roofline_pct(time_s, flops, moved, PEAK, BANDWIDTH) == pytest.approx(100 * achieved / attainable, rel=1e-12)
    assert roofline_pct(time_s, flops, moved, PEAK, BANDWIDTH) == pytest.approx(100 / 3)


def test_a_copy_has_a_share_of_the_roof_too() -> None:
    assert roofline_pct(2e-3, 0, 2 * 10**9, PEAK, BANDWIDTH) == pytest.approx(50)


def test_utilizations_are_fractions_and_never_clamped() -> None:
    assert mfu(500e12, PEAK) == 0.5
    assert mfu(1500e12, PEAK) == 1.5
    assert mbu(3e12, BANDWIDTH) == 1.5
    assert roofline_pct(0.5e-3, 0, 2 * 10**9, PEAK, BANDWIDTH) == pytest.approx(200)


@pytest.mark.parametrize(
    ("compute_s", "memory_s", "launch_s", "expected"),
    [
        (1.0, 0.5, None, "compute"),
        (0.5, 1.0, None, "memory"),
        (1.0, 0.91, None, "mixed"),
        (0.91, 1.0, None, "mixed"),
        (1.0, 0.89, None, "compute"),
        (0.1, 0.2, 1.0, "launch"),
        (0.1, 0.95, 1.0, "mixed"),
        (0.1, 1.0, 0.5, "memory"),
    ],
)
def test_bound_is_the_longest_time_or_mixed_within_ten_percent(
    compute_s: float, memory_s: float, launch_s: float | None, expected: str
) -> None:
    assert bound(compute_s, memory_s, launch_s) == expected


def test_nothing_moved_has_no_intensity() -> None:
    assert intensity(5, 0) is None
    assert intensity(6, 4) == 1.5


def test_a_record_is_judged_by_hand() -> None:
    judged = judge(record(), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    assert judged.flops_per_s == pytest.approx(500e12)
    assert judged.bytes_per_s == pytest.approx(3 * 2**21 / (2**31 / 500e12))
    assert judged.intensity == pytest.approx(1024 / 3)
    assert judged.mfu == pytest.approx(0.5)
    assert judged.mbu == pytest.approx(500e12 / (1024 / 3) / BANDWIDTH)
    assert judged.bound == "memory"  # 341 is left of the ridge at 500
    assert judged.roofline_pct == pytest.approx(100 * 500e12 / (1024 / 3 * BANDWIDTH))
    assert (judged.peak_kind, judged.bandwidth_kind, judged.excess) == ("datasheet", "datasheet", None)


def test_a_launch_longer_than_the_work_is_what_binds() -> None:
    judged = judge(record(), ceilings(flops=PEAK, bandwidth=BANDWIDTH, launch=4e-6))
    assert judged.bound == "launch"


def test_an_unknown_peak_leaves_mfu_blank() -> None:
    judged = judge(record(dtype="fp16"), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    assert (judged.mfu, judged.peak_kind, judged.bound, judged.roofline_pct) == (None, None, None, None)
    assert judged.flops_per_s == pytest.approx(500e12)
    assert judged.mbu is not None


def test_an_unknown_bandwidth_leaves_mbu_and_bound_blank() -> None:
    judged = judge(record(), ceilings(flops=PEAK))
    assert judged.mfu == pytest.approx(0.5)
    assert (judged.mbu, judged.bound, judged.roofline_pct) == (None, None, None)


@pytest.mark.parametrize("status", ["skipped", "invalid", "failed"])
def test_what_did_not_run_well_has_no_rate(status: str) -> None:
    judged = judge(record(status=status), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    assert judged.intensity == pytest.approx(1024 / 3)
    assert (judged.flops_per_s, judged.mfu, judged.bound) == (None, None, None)


def test_a_record_without_counts_has_no_judgment() -> None:
    judged = judge(record(flops=None), ceilings(flops=PEAK, bandwidth=BANDWIDTH))
    assert set(vars(judged).values()) == {None}


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"median_s": 2**31 / 1100e12}, "datasheet", "clock"),
        ({"median_s": 2**31 / 1100e12}, "measured", "slower when the roof was measured"),
        ({"flops": 1, "median_s": 1e-6}, "datasheet", "bandwidth"),
        ({"flops": 1, "median_s": 1e-6, "cache": "warm"}, "datasheet", "warm"),
    ],
)
def test_more_than_a_roof_is_kept_and_has_a_cause(changes: dict[str, Any], kind: str, words: str) -> None:
    known = Ceilings(
        "a-gpu",
        "A GPU",
        (
            Ceiling("flops", "bf16", PEAK, kind, "a test"),
            Ceiling("bandwidth", "memory", BANDWIDTH * (1 if "flops" in changes else 10), kind, "a test"),
        ),
    )
    judged = judge(record(**changes), known)
    assert judged.roofline_pct is not None
    assert judged.roofline_pct > 100
    assert judged.excess is not None
    assert words in judged.excess


def test_judged_keys_are_those_of_the_judgment() -> None:
    known = ceilings(flops=PEAK, bandwidth=BANDWIDTH)
    assert judged_keys(record(), known.to_dict()) == vars(judge(record(), known))
    assert judged_keys(record(), {})["mfu"] is None


@pytest.mark.parametrize(
    "formula",
    [
        "intensity",
        "rate",
        "ridge_intensity",
        "attainable_flops_per_s",
        "least_time_s",
        "mfu",
        "mbu",
        "roofline_pct",
        "bound",
    ],
)
def test_every_formula_states_its_source(formula: str) -> None:
    assert "\n    Source: " in str(getattr(model, formula).__doc__)
