"""Bus bandwidth factors, and the fit of latency and bandwidth."""

import numpy as np
import pytest
from plot_scenes import environment, saved

from results.record import Rank, Record
from roofline.links import OPS, bus_factor, fit, read_fits

SIZES = [2**power for power in range(10, 31, 2)]
"""1 KiB to 1 GiB."""


@pytest.mark.parametrize(
    ("op", "of_2", "of_8"),
    [
        ("all-reduce", 1, 14 / 8),
        ("all-gather", 1 / 2, 7 / 8),
        ("all-to-all", 1 / 2, 7 / 8),
        ("broadcast", 1, 1),
        ("send-recv", 1, 1),
    ],
)
def test_bus_factors_match_nccl_tests(op, of_2, of_8):
    assert (bus_factor(op, 2), bus_factor(op, 8)) == (of_2, of_8)


@pytest.mark.parametrize(("op", "ranks"), [("all-reduce", 1), ("gather", 4)])
def test_factor_of_an_unknown_case_is_an_error(op, ranks):
    with pytest.raises(ValueError, match="at least 2 ranks"):
        bus_factor(op, ranks)


def times(op, ranks, latency_s, bytes_per_s, noise, seed):
    errors = np.random.default_rng(seed).normal(0, noise, len(SIZES))
    exact = [latency_s + size * bus_factor(op, ranks) / bytes_per_s for size in SIZES]
    return [value * (1 + error) for value, error in zip(exact, errors, strict=True)]


@pytest.mark.parametrize("op", OPS)
def test_exact_times_give_latency_and_bandwidth(op):
    found = fit(op, 8, SIZES, times(op, 8, 12e-6, 400e9, 0, 0))
    assert found.latency_s == pytest.approx(12e-6, rel=1e-6)
    assert found.bytes_per_s == pytest.approx(400e9, rel=1e-6)
    assert found.seconds(2**20, ranks=2) == pytest.approx(12e-6 + 2**20 * bus_factor(op, 2) / 400e9)


def test_the_largest_size_does_not_decide_the_latency():
    disturbed = times("broadcast", 2, 20e-6, 10e9, 0, 0)
    disturbed[-1] *= 1.1  # by 10 ms, 500 times the latency
    assert fit("broadcast", 2, SIZES, disturbed).latency_s == pytest.approx(20e-6, rel=0.05)


def test_latency_is_never_negative():
    found = fit("broadcast", 2, [2**20, 2**22, 2**24], [0.8e-3, 4.1e-3, 17e-3])
    assert found.latency_s == 0
    assert found.bytes_per_s == pytest.approx(1.06e9, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([1024, 4096], [1e-5, 2e-5]),
        ([1, 2, 3], [0.0, 1.0, 2.0]),
    ],
)
def test_times_that_determine_no_fit_are_an_error(sizes, seconds):
    with pytest.raises(ValueError, match=r"expected positive|do not grow"):
        fit("all-reduce", 2, sizes, seconds)


def collective(size_bytes, samples_s, round_s):
    how = {
        "op": "all-reduce",
        "provider": "gloo",
        "dtype": "fp32",
        "case": str(size_bytes),
        "status": "ok",
    }
    values = {"shape": {"bytes": size_bytes}, "samples_s": samples_s, "median_s": min(samples_s)}
    telemetry = {"round_s": round_s} if round_s else {}
    return Record(**how, **values, options={"ranks": 2, "backend": "gloo"}, telemetry=telemetry)


def test_fits_are_read_from_the_newest_file_of_rank_0(tmp_path):
    sizes = (2**10, 2**16, 2**22)

    def write(name, rank, started_at, bytes_per_s):
        stamp = environment(started_at=started_at, fleet=Rank(rank=rank, node="a"))
        exact = {size: 1e-5 + size / bytes_per_s for size in sizes}
        records = [collective(size, (1e-9,) * 3, [seconds] * 3) for size, seconds in exact.items()]
        saved(tmp_path / name, records, stamp)

    write("a.jsonl", 0, "2026-11-20T21:03:12+00:00", 1e9)
    write("b.jsonl", 0, "2026-11-20T21:03:13+00:00", 2e9)
    write("c.jsonl", 1, "2026-11-20T21:03:14+00:00", 4e9)
    (tmp_path / "torn.jsonl").write_text('{"kind": "envi')
    found = read_fits(tmp_path)
    assert list(found) == ["all-reduce"]
    assert found["all-reduce"].bytes_per_s == pytest.approx(2e9)
    assert found["all-reduce"].latency_s == pytest.approx(1e-5)
