"""Calibration by a command: once, only for missing ceilings, and again if the file is invalid."""

import json

import pytest

from bench import __main__ as bench
from bench.harness import run
from bench.harness.measure.flags import ABOVE_ROOF
from bench.harness.timing import protocol
from results.store.runfile import load_run
from roofline.machine import Machine
from tests.bench import commands


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(protocol.LIMITS, "cpu", commands.QUICK)


@pytest.fixture
def fresh_runs(tmp_path, monkeypatch, tiny_calibration):
    monkeypatch.setenv("ROOFMARK_RUNS", str(tmp_path))
    return tmp_path


def calibrated(capsys, *words):
    """Run a small case; return the calibrated parts, the ceilings it was rated by, and stderr."""
    assert commands.here("matmul", "--shape", "16", "--no-save", "--format", "json", *words) == 0
    out, err = capsys.readouterr()
    entries = json.loads(out)["environment"]["hardware"]["entries"]
    done = [
        line.removeprefix("calibrating: ")
        for line in err.splitlines()
        if line.startswith("calibrating")
    ]
    return done, {entry["name"]: entry["value"] for entry in entries}, err


@pytest.mark.exhaustive
def test_a_cpu_is_calibrated_once_and_for_each_new_dtype(capsys, fresh_runs, monkeypatch):
    monkeypatch.setattr(run, "too_low", lambda *_: [])
    done, first, _ = calibrated(capsys, "--dtype", "fp32")
    assert done == ["launch", "bandwidth of triad", "fp32 matmul", "cache"]
    assert set(first) == {"launch", "triad", "fp32", "last-level cache"}
    assert all(value > 0 for value in first.values())
    (file,) = fresh_runs.rglob("ceilings-*.json")
    assert {
        entry["name"]: entry["value"] for entry in json.loads(file.read_text())["entries"]
    } == first

    done, again, _ = calibrated(capsys, "--dtype", "fp32")
    assert (done, again) == ([], first)
    done, more, _ = calibrated(capsys, "--dtype", "fp64,fp32")
    assert done == ["fp64 matmul"]
    assert more == first | {"fp64": more["fp64"]}


@pytest.fixture
def low_peak(capsys, fresh_runs):
    """Save an fp32 peak a million times too low and a noisy bandwidth; return the file and the peak
    in FLOP/s.
    """
    calibrated(capsys, "--dtype", "fp32")
    (file,) = fresh_runs.rglob("ceilings-*.json")
    data = json.loads(file.read_text())
    peak = next(entry for entry in data["entries"] if entry["quantity"] == "flops")
    peak["value"] /= 1e6
    next(entry for entry in data["entries"] if entry["name"] == "triad")["disturbed"] = "throttled"
    file.write_text(json.dumps(data))
    return file, peak["value"]


def test_a_ceiling_that_a_row_exceeds_is_measured_again(capsys, fresh_runs, low_peak):
    file, low = low_peak
    run = fresh_runs / "run.jsonl"
    assert (
        commands.here(
            "matmul", "--dtype", "fp32", "--shape", "64", "--output", run, "--format", "json"
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "calibrating: fp32 matmul" in err
    assert "triad" not in err  # no row exceeds it
    document, saved = json.loads(out), load_run(run)
    peaks = {
        Machine.from_dict(hardware).peak("fp32").value
        for hardware in (document["environment"]["hardware"], saved.environment.machine.to_dict())
    }
    assert peaks == {Machine.from_dict(json.loads(file.read_text())).peak("fp32").value}
    [peak] = peaks
    assert peak > low
    for row, record in zip(document["records"], saved.records, strict=True):
        reached = 2 * 64**3 / record.median_s / peak
        assert row["mfu"] == pytest.approx(reached)
        assert ("measured peak" in record.flag_reasons.get("above-roof", "")) == (
            reached > ABOVE_ROOF
        )


def test_a_bandwidth_below_a_row_within_the_cache_is_measured_again_once(
    capsys, fresh_runs, low_peak
):
    """The row still exceeds it: this calibration of tiny arrays finds little more."""
    file, _ = low_peak
    data = json.loads(file.read_text())
    next(entry for entry in data["entries"] if entry["name"] == "triad")["value"] = 1.0
    file.write_text(json.dumps(data))
    words = ("elementwise", "--op", "add", "--dtype", "fp32", "--size", "64KiB", "--no-save")
    assert commands.here(*words, "--format", "json") == 0
    out, err = capsys.readouterr()
    entries = json.loads(out)["environment"]["hardware"]["entries"]
    assert err.count("calibrating: bandwidth of triad\n") == 1
    assert next(entry for entry in entries if entry["name"] == "triad")["value"] > 1.0


def test_a_ceiling_that_a_comparison_exceeds_is_measured_again(capsys, fresh_runs, low_peak):
    run = fresh_runs / "run.jsonl"
    words = [
        "--op",
        "matmul",
        "--dtype",
        "fp32",
        "--shape",
        "64",
        "--provider",
        "torch,torch",
        "--rounds",
        "15",
    ]
    bench.main(["compare", *words, "--device", "cpu", "--output", str(run), "--format", "json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    peak = load_run(run).environment.machine.peak("fp32").value
    assert peak > low_peak[1]
    assert str(load_run(run).environment.machine.note).count("may be too low") == 1
    assert row["mfu_baseline"] == pytest.approx(2 * 64**3 / row["baseline_s"] / peak)
