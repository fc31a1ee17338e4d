"""python -m results history: one case over many runs, in order, with the points where its level changed."""

import csv
import io
import json
import math
import random

import numpy as np
import pytest

from results.__main__ import main
from results.history import LEAST_RUNS, change_points
from results.store import RunWriter


@pytest.fixture
def keep(make_environment, make_record):
    """Returns a function that keeps a run of one day, at a time relative to 4 us, with noise of 0.2 %."""

    def write(day, scale=1.0, provider="torch", environment=None, **changes):
        generator = random.Random(f"{day} {provider} {changes}")
        samples = tuple(4e-6 * scale * generator.lognormvariate(0, 0.002) for _ in range(60))
        ordered = sorted(samples)
        record = make_record(
            **(
                {
                    "provider": provider,
                    "samples_s": samples,
                    "median_s": (ordered[29] + ordered[30]) / 2,
                    "ci95_s": (ordered[20], ordered[40]),
                }
                | changes
            )
        )
        usual = {
            "run_id": f"202611{day:02d}T100000Z-{day:010x}{abs(hash(provider)) % 10**6}",
            "started_at": f"2026-11-{day:02d}T10:00:00+00:00",
            "git": {"sha": f"{day:02d}" * 20, "dirty": day == 2},
        }
        with RunWriter.create(make_environment(**(usual | (environment or {}))), "matmul") as writer:
            writer.append(record)
        return writer.path

    return write


def shown(capsys, *arguments):
    assert main(["history", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["series"]


def refused(capsys, *arguments):
    assert main(["history", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_runs_come_by_date_with_their_revisions_and_verdicts(keep, capsys):
    for day, scale in ((3, 1.1), (1, 1.0), (2, 1.0)):
        keep(day, scale)
    (series,) = shown(capsys, "--op", "matmul")
    points = series["points"]
    assert [point["started_at"][:10] for point in points] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert [point["revision"] for point in points] == ["0101010101", "0202020202-dirty", "0303030303"]
    assert [point["verdict"] for point in points] == [None, "SAME", "SLOWER"]
    assert points[2]["ratio_to_last"] == pytest.approx(1.1, rel=0.003)
    assert [point["value"] for point in points] == [point["median_s"] for point in points]
    assert points[0]["ci95"] == points[0]["ci95_s"]
    assert (series["op"], series["case"], series["provider"], series["device"]) == (
        "matmul",
        "1024x1024x1024",
        "torch",
        "h100-sxm",
    )


def test_the_metric_is_that_of_the_judge(keep, capsys):
    keep(1)
    (point,) = shown(capsys, "--metric", "mfu")[0]["points"]
    assert point["value"] == pytest.approx(2**31 / point["median_s"] / 1000e12)
    low, high = point["ci95"]
    assert low == pytest.approx(2**31 / point["ci95_s"][1] / 1000e12)
    assert low < point["value"] < high
    (point,) = shown(capsys, "--metric", "flops")[0]["points"]
    assert point["value"] == pytest.approx(2**31 / point["median_s"])
    (point,) = shown(capsys, "--metric", "mbu")[0]["points"]
    assert point["value"] == pytest.approx((2**22 + 2**21) / point["median_s"] / 2e12)


def test_a_change_that_stays_is_marked_once(keep, capsys, tmp_path):
    for day in range(1, 13):
        keep(day, 1.0 if day < 7 else 0.95)
    picture = tmp_path / "history.svg"
    (series,) = shown(capsys, "-o", str(picture))
    assert [point["started_at"][8:10] for point in series["points"] if point["is_change"]] == ["07"]
    text = picture.read_text(encoding="utf-8")
    assert "change: 0707070707" in text
    assert "2026-11-02  0202020202-dirty" in text
    assert main(["history"]) == 0
    out = capsys.readouterr().out
    (marked,) = [line for line in out.splitlines() if "<- from here on" in line]
    assert marked.startswith("2026-11-07 10:00  0707070707")
    assert "binary segmentation" in out


def test_each_provider_has_its_own_series(keep, capsys):
    for day in (1, 2):
        keep(day)
        keep(day, 1.2, provider="triton-v1")
    found = {series["provider"]: len(series["points"]) for series in shown(capsys)}
    assert found == {"torch": 2, "triton-v1": 2}
    (only,) = shown(capsys, "--provider", "triton-v1")
    assert only["provider"] == "triton-v1"
    main(["history", "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sorted((row["provider"], row["verdict"]) for row in rows) == [
        ("torch", ""),
        ("torch", "SAME"),
        ("triton-v1", ""),
        ("triton-v1", "SAME"),
    ]
    main(["history", "--format", "md"])
    out = capsys.readouterr().out
    assert out.startswith("**matmul 1024x1024x1024 bf16 uniform cold on h100-sxm**\n\n| date | revision |")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "fp16"}, "2 values of --dtype fit: bf16, fp16; name one"),
        ({"op": "gelu"}, "2 values of --op fit: matmul, gelu; name one"),
        ({"case": "64x64x64"}, "2 values of --case fit: 1024x1024x1024, 64x64x64; name one"),
    ],
    ids=str,
)
def test_more_than_one_case_is_refused(keep, capsys, changes, message):
    keep(1)
    keep(2, **changes)
    assert message in refused(capsys)
    ((name, value),) = changes.items()
    assert len(shown(capsys, f"--{name}", value)[0]["points"]) == 1


def test_runs_of_several_machines_are_refused_unless_one_is_named(keep, capsys):
    keep(1)
    keep(2, environment={"device": {"slug": "a100-pcie", "name": "NVIDIA A100", "type": "cuda"}})
    assert "the runs are of 2 machines: h100-sxm, a100-pcie; name one with --gpu" in refused(capsys)
    assert shown(capsys, "--gpu", "a100-pcie")[0]["device"] == "a100-pcie"


def test_where_nothing_fits_it_is_said(keep, capsys, runs):
    assert "no run has a finished record of gelu bf16" in refused(capsys, "--op", "gelu", "--dtype", "bf16")
    keep(1, dtype="fp8e4m3")
    assert "the MFU of matmul 1024x1024x1024 fp8e4m3 torch is not known in any run" in refused(
        capsys, "--metric", "mfu"
    )


def test_a_broken_run_is_left_out_and_said(keep, runs, capsys):
    keep(1)
    (runs / "broken.jsonl").write_bytes(b"\0\0")
    with keep(2).open("ab") as file:
        file.write(b"hello\n")
    assert main(["history"]) == 2
    out, err = capsys.readouterr()
    assert "2026-11-02" in out
    assert f"note: left out: {runs / 'broken.jsonl'} is not a run file" in err
    assert ":3: not JSON" in err


def test_few_runs_have_no_change_points_and_it_is_said(keep, capsys):
    keep(1)
    assert main(["history"]) == 0
    assert f"note: 1 runs: change points are looked for from {LEAST_RUNS} on" in capsys.readouterr().err


def levels(seed, *parts, sigma=0.005):
    generator = np.random.default_rng(seed)
    return [level * math.exp(generator.normal(0, sigma)) for level, count in parts for _ in range(count)]


def test_change_points_are_where_they_are():
    assert change_points(levels(1, (1.0, 6), (1.05, 6))) == [6]
    assert change_points(levels(2, (1.0, 10), (1.1, 10), (1.0, 10))) == [10, 20]
    assert change_points([1.0] * 4 + [2.0] * 5) == [4]
    assert change_points(levels(4, (1.0, 8), (1.1, 5), (1.2, 9), (0.9, 30))) == [8, 13, 22]


def test_a_change_within_the_margin_is_none():
    assert change_points(levels(3, (1.0, 20), (1.005, 20), sigma=0.0005)) == []
    assert change_points(levels(3, (1.0, 20), (1.005, 20), sigma=0.0005), margin=0.001) == [20]
    assert change_points([1.0] * 20) == []


def test_noise_alone_is_hardly_ever_a_change():
    found = sum(bool(change_points(levels(seed, (1.0, 20), sigma=0.03), seed=seed)) for seed in range(300))
    assert found <= 26  # 5 % of 300 are 15, and three standard deviations 11


def test_one_run_off_is_no_change_of_level():
    assert change_points([*levels(5, (1.0, 30)), 1.5, *levels(6, (1.0, 30))]) == []


def test_fewer_runs_than_can_tell_have_no_change_points():
    assert change_points([1.0] * 4 + [2.0] * 4) == []
    assert change_points([]) == []
