"""Calibrations against what others have published: the figures as they were read, and what is said of a miss."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.validation import ceilings
from results.record import Environment, Record
from results.store.runs import RunWriter
from roofline.ceilings import QUANTITIES, Ceiling, Ceilings
from roofline.hardware.gpu import load_gpus

H200_GOALS = {
    "bandwidth read": 4.50e12,
    "bandwidth write": 4.284e12,
    "bandwidth copy": 4.03e12,
    "bandwidth triad": 4.07e12,
    "cache last-level": 10e12,
    "fma fp32": 59.5e12,
    "flops bf16": 795e12,
    "flops fp8e4m3": 1454e12,
    "launch launch": 1.3e-6,
    "launch back-to-back": 2.43e-6,
}
PUBLISHED = {
    ("h200-sxm", "bandwidth", "read"): 4502e9,
    ("h200-sxm", "bandwidth", "triad"): 4070e9,
    ("h200-sxm", "flops", "bf16"): 794.5e12,
    ("h200-sxm", "flops", "fp8e4m3"): 1453.4e12,
    ("h200-sxm", "launch", "launch"): 1.26e-6,
    ("h100-sxm", "bandwidth", "copy"): 2958e9,
    ("h100-sxm", "fma", "fp32"): 59e12,
    ("h100-sxm", "flops", "bf16"): 794.5e12,
    ("h100-sxm", "flops", "fp8e4m3"): 1402.6e12,
    ("h100-pcie", "bandwidth", "write"): 2016e9,
    ("a100-sxm-80gb", "bandwidth", "read"): 1776e9,
    ("a100-sxm-80gb", "bandwidth", "write"): 1908e9,
    ("a100-sxm-80gb", "bandwidth", "triad"): 1794e9,
    ("a100-sxm-80gb", "cache", "last-level"): 5.4e12,
    ("a100-sxm-80gb", "flops", "bf16"): 271.2e12,
    ("a100-sxm-40gb", "fma", "fp32"): 19.2e12,
    ("a100-sxm-40gb", "launch", "launch"): 1.34e-6,
    ("a100-pcie-80gb", "flops", "bf16"): 252.9e12,
    ("b200-sxm", "flops", "bf16"): 1745e12,
    ("b200-sxm", "bandwidth", "triad"): 6.72e12,
    ("mi300x", "bandwidth", "write"): 4849e9,
    ("l40", "fma", "fp32"): 50.9e12,
}
"""As they stand in their sources, typed here once more."""


def measured(quantity, name, value, **details):
    source = details.pop("source", "measured here 2026-11-22: made up, GPU threads")
    return Ceiling(quantity, name, value, "measured", source, **{"config": "made up", "sm_clock_hz": 1.98e9} | details)


def h200(*entries):
    return Ceilings("h200-sxm", "NVIDIA H200", (Ceiling("flops", "bf16", 989.4e12, "datasheet", "t"), *entries))


def kept(folder, known):
    path = folder / "ceilings-0123456789ab.json"
    path.write_text(json.dumps(known.to_dict() | {"identity": {"host": "any"}}))
    return path


def rows_of(calibration):
    return {row["ceiling"]: row for row in ceilings.judged(calibration, ceilings.load_records())}


# ---- the figures ---------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_their_sources():
    records = ceilings.load_records()
    for (gpu, quantity, name), value in PUBLISHED.items():
        found = [r.value for r in records if gpu in r.gpus and (r.quantity, r.name) == (quantity, name)]
        assert found == [value], (gpu, quantity, name)
    goals = {f"{r.quantity} {r.name}": r.goal for r in records if "h200-sxm" in r.gpus}
    assert goals == H200_GOALS


def test_every_figure_can_be_held_against_a_ceiling():
    records = ceilings.load_records()
    seen = [(gpu, r.quantity, r.name) for r in records for gpu in r.gpus]
    assert len(seen) == len(set(seen))
    assert {gpu for gpu, _, _ in seen} <= set(load_gpus())
    for record in records:
        assert record.unit == QUANTITIES[record.quantity]
        assert record.source.startswith(("github.com/", "AMD"))
        assert record.protocol
        # A goal is the figure as it is rounded, or the other end of the range that its source gives.
        assert 0.95 < record.goal / record.value < 1.04
        for gpu in record.gpus:  # none is above what the hardware can do
            if record.quantity == "flops":
                assert record.value < 1.1 * load_gpus()[gpu].peaks_flops_per_s[record.name]  # boost clocks are higher
            if record.quantity == "bandwidth":
                assert record.value < load_gpus()[gpu].memory_bandwidth_bytes_per_s


def test_a_figure_of_another_unit_is_refused():
    with pytest.raises(ValueError, match="TFLOP/s is not the unit of flops"):
        ceilings.Published(("h200-sxm",), "flops", "bf16", 794.5, "TFLOP/s", "", "")


# ---- the judgment --------------------------------------------------------------------------------------------------


def test_rates_are_reached_from_below_and_times_from_above():
    known = h200(
        measured("bandwidth", "read", 4.51e12, ci95=(4.50e12, 4.52e12)),
        measured("bandwidth", "copy", 4.02e12),
        measured("launch", "launch", 1.2e-6),
        measured("launch", "back-to-back", 2.5e-6),
    )
    rows = rows_of(ceilings.Calibration(Path("any"), known))
    assert list(rows) == list(H200_GOALS)
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == dict.fromkeys(H200_GOALS, "not measured") | {
        "bandwidth read": "reached",
        "bandwidth copy": "missed",
        "launch launch": "reached",
        "launch back-to-back": "missed",
    }
    read = rows["bandwidth read"]
    assert (read["ours"], read["published"], read["goal"]) == ("4.510 TB/s", "4.502 TB/s", "4.500 TB/s")
    assert (read["95% CI"], read["SM clock"]) == ("4.500 TB/s to 4.520 TB/s", "1980 MHz")
    assert read["ours/published"] == "1.002"
    # A datasheet is no measurement, also where it lies above the goal.
    assert rows["flops bf16"]["ours"] == ""


def test_a_gpu_is_judged_by_its_own_records(tmp_path, capsys):
    entries = (measured("flops", "bf16", 794.6e12),)
    path = kept(tmp_path, Ceilings("h100-sxm", "NVIDIA H100 80GB HBM3", entries))
    assert ceilings.main([str(path)]) == 1  # its other records were not measured
    table = capsys.readouterr().out
    assert "| flops bf16 | 794.6 TFLOP/s |" in table
    assert "reached" in table  # the H200 would have to reach 795
    assert "TileOPs" not in table


@pytest.mark.parametrize("slug", ["v100-sxm-32gb", "cpu-amd-epyc-2t"])
def test_a_device_without_records_is_told_so(tmp_path, capsys, slug):
    path = kept(tmp_path, Ceilings(slug, "any", (measured("flops", "bf16", 1e12),)))
    assert ceilings.main([str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"no published record of {slug} is known" in err


# ---- the reasons ---------------------------------------------------------------------------------------------------


def record(op, dtype="bf16", converged=True, throttle=None, flag_reasons=None):
    return Record(
        op=op,
        provider="torch",
        dtype=dtype,
        shape={"n": 1},
        case="1",
        status="ok",
        samples_s=(1.0, 1.0),
        launches_per_sample=1,
        method="graph",
        median_s=1.0,
        ci95_s=(1.0, 1.0),
        converged=converged,
        flags=tuple(flag_reasons or ()),
        flag_reasons=flag_reasons or {},
        telemetry={"throttle": throttle} if throttle else {},
        flops=1,
        bytes_read=0,
        bytes_written=0,
    )


def calibration_run(folder, records, name="20261122T101500Z", quick=False):
    environment = Environment(
        run_id=f"{name}-0123456789",
        started_at="2026-11-22T10:15:00+00:00",
        argv=("python",),
        device={"slug": "h200-sxm", "name": "NVIDIA H200", "type": "cuda"},
        settings={"is_quick": quick},
    )
    path = folder / f"{name}-calibrate-0123456789.jsonl"
    with RunWriter.create(environment, "calibrate", path) as writer:
        for one in records:
            writer.append(one)
    return path


def test_a_miss_is_explained_by_what_the_calibration_knows(tmp_path):
    slow = measured("flops", "bf16", 700e12, ci95=(680e12, 720e12), sm_clock_hz=1.4e9)
    sides = measured("burst", "bf16", 790e12), measured("sustained", "bf16", 690e12)
    read = measured("bandwidth", "read", 4e12, disturbed="time lost: hw_thermal_slowdown 40 %")
    path = kept(tmp_path, h200(slow, *sides, read, measured("bandwidth", "copy", 4e12)))
    limited = record("calibrate-matmul", converged=False, throttle={"sw_power_cap": 0.7})
    other = record("calibrate-matmul", dtype="fp16", flag_reasons={"throttled": "of another dtype"})
    calibration_run(
        tmp_path, [other, limited, record("calibrate-copy", flag_reasons={"throttled": "too hot; cool it"})]
    )
    rows = rows_of(ceilings.load(path))
    assert rows["flops bf16"]["why"] == (
        "SM clock 1400 of 1980 MHz; not converged: ±2.86%; the clock was held down at the power limit: "
        "sw_power_cap 70 %; burst 790.0 TFLOP/s; sustained 690.0 TFLOP/s"
    )
    assert rows["bandwidth read"]["why"] == "disturbed: time lost: hw_thermal_slowdown 40 %"
    assert rows["bandwidth copy"]["why"] == "too hot; cool it"


def test_a_quick_calibration_says_so_and_a_full_one_beside_it_goes_first(tmp_path):
    path = kept(tmp_path, h200(measured("bandwidth", "copy", 4e12)))
    calibration_run(tmp_path, [record("calibrate-copy")], "20261122T111500Z", quick=True)
    assert rows_of(ceilings.load(path))["bandwidth copy"]["why"].startswith("a quick calibration")
    calibration_run(tmp_path, [record("calibrate-copy")])
    assert rows_of(ceilings.load(path))["bandwidth copy"]["why"] == "the calibration knows of nothing"


def test_the_short_calibration_of_another_command_and_an_unknown_clock_are_named(tmp_path):
    path = kept(tmp_path, h200(measured("launch", "launch", 9e-6, config=None, sm_clock_hz=None)))
    why = rows_of(ceilings.load(path))["launch launch"]["why"]
    assert why == "the SM clock is not known; the short calibration of another command, not `python -m bench calibrate`"


# ---- the files -----------------------------------------------------------------------------------------------------


def test_the_run_of_a_calibration_leads_to_the_ceilings_beside_it(tmp_path):
    run = calibration_run(tmp_path, [record("calibrate-copy")])
    with pytest.raises(ceilings.FileError, match="holds no measured ceiling"):
        ceilings.load(run)
    kept(tmp_path, h200(measured("bandwidth", "copy", 4.1e12)))
    assert rows_of(ceilings.load(run))["bandwidth copy"]["verdict"] == "reached"
    shutil.copyfile(tmp_path / "ceilings-0123456789ab.json", tmp_path / "published.json")
    assert rows_of(ceilings.load(tmp_path / "published.json"))["bandwidth copy"]["verdict"] == "reached"


def test_any_other_run_has_the_ceilings_it_was_judged_by(tmp_path):
    run = calibration_run(tmp_path, [])
    lines = run.read_text().splitlines()
    head = json.loads(lines[0]) | {"hardware": h200(measured("bandwidth", "copy", 4.1e12)).to_dict()}
    (tmp_path / "run.jsonl").write_text("\n".join([json.dumps(head), json.dumps(record("copy").to_dict())]) + "\n")
    assert rows_of(ceilings.load(tmp_path / "run.jsonl"))["bandwidth copy"]["verdict"] == "reached"


def test_the_newest_ceilings_are_the_default(runs, capsys):
    assert ceilings.main([]) == 2
    assert "there are no ceilings in" in capsys.readouterr().err
    folder = runs / "h200-sxm"
    folder.mkdir(parents=True)
    kept(folder, h200(*(measured(*name.split(" "), goal) for name, goal in H200_GOALS.items())))
    assert ceilings.main(["--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert {row["verdict"] for row in json.loads(out)} == {"reached"}
    assert err.splitlines()[-1] == "10 reached"


ENTRY = {"quantity": "launch", "name": "launch", "value": 1.0, "kind": "measured", "source": "s"}
HOSTILE = {
    "torn": '{"slug": "h200-sxm", "entr',
    "empty": "",
    "list": "[]",
    "deep": "[" * 100_000,
    "no entries": '{"entries": 3}',
    "infinite": json.dumps({"entries": [ENTRY | {"value": float("inf")}]}),
    "nothing measured": json.dumps({"slug": "h200-sxm", "entries": [ENTRY | {"kind": "datasheet"}]}),
    "no interval": json.dumps({"entries": [ENTRY | {"ci95": 7}]}),
}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_is_no_calibration_takes_one_line(tmp_path, capsys, text, suffix):
    path = tmp_path / f"ceilings-any{suffix}"
    path.write_text(text)
    assert ceilings.main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("python -m bench.validation.ceilings: error: ")
    assert err.count("\n") == 1


def test_a_name_that_a_terminal_would_obey_is_shown_as_its_escape(tmp_path, capsys):
    known = replace(h200(measured("bandwidth", "copy", 4e12)), name="\x1b[2J")
    ceilings.main([str(kept(tmp_path, known))])
    assert "\x1b" not in "".join(capsys.readouterr())
