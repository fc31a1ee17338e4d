"""`python -m bench calibrate`: what it saves and prints, with simulated parts; one tiny real
run.
"""

import csv
import errno
import io
import json
import math
import os
from dataclasses import replace

import pytest
from test_setup import CPU, H100, rate_of

from bench import __main__ as command
from bench.commands import calibrate as calibrate_command
from bench.harness.calibrate import calibration
from bench.harness.calibrate import setup as calibrate_setup
from bench.harness.calibrate.setup import FULL, QUICK, Measured, NotMeasuredError, Setup
from bench.harness.device.device import MIB
from bench.matmul import OPS as MATMUL
from results.store.runfile import load_run
from roofline.__main__ import main as roofline
from roofline.gpu_table import find_gpu
from roofline.machine import Ceiling, Machine
from tests.bench.commands import HALF_SECONDS


def a_ceiling(quantity="bandwidth", name="copy", value=2e10):
    return Ceiling(
        quantity,
        name,
        value,
        "measured",
        "a test",
        ci95=(1.9e10, 2.1e10),
        config="a way",
        work_per_launch=8,
    )


def a_part(*ceilings, name="a part", notes=()):
    def measure(setup):
        setup.missing += notes
        rate, moved = rate_of("a way", 8, 1e-9), {"bytes_read": 4, "bytes_written": 4}
        records = (
            setup.measured("bandwidth", c.name, rate, c.name, "fp32", {"n": 1}, **moved).record
            for c in ceilings
        )
        return [
            Measured(ceiling, record) for ceiling, record in zip(ceilings, records, strict=True)
        ]

    return name, measure


def raising(error, name="a broken part"):
    def measure(setup):
        raise error

    return name, measure


@pytest.fixture
def given_parts(monkeypatch):
    """Return a function that replaces the parts of a calibration."""

    def put(*parts):
        monkeypatch.setattr(calibration, "parts_of", lambda *_: list(parts))

    return put


def run(capsys, *words):
    """Return exit code, stdout and stderr."""
    try:
        code = command.main(["calibrate", "--device", "cpu", *map(str, words)])
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()


def saved_values(runs):
    (path,) = runs.rglob("ceilings-*.json")
    return {(e["quantity"], e["name"]): e["value"] for e in json.loads(path.read_text())["entries"]}


def with_process(setup):
    record = replace(HALF_SECONDS, shape={"n": 1})
    return [Measured(replace(a_ceiling(), config=str(os.getpid())), record)]


def fails(setup):
    raise RuntimeError("it broke")


def test_parts_after_a_lost_gpu_run_in_new_processes(monkeypatch):
    usable = iter([True, False, False])
    monkeypatch.setattr(calibrate_setup, "release", lambda device: next(usable))
    setup = Setup(CPU, QUICK)
    parts = ("first", with_process), ("second", fails), ("third", with_process)
    (first,), missing, (third,) = calibrate_setup.measure_all(parts, setup, print)
    assert first.ceiling.config == str(os.getpid()) != third.ceiling.config
    assert (missing, setup.missing) == ([], ["second: RuntimeError: it broke"])


def test_a_measured_ceiling_replaces_only_its_earlier_value(capsys, runs, given_parts):
    given_parts(a_part(a_ceiling(), a_ceiling(name="triad", value=1e10)))
    run(capsys, "--no-save")
    given_parts(a_part(a_ceiling(value=5e10)))
    run(capsys, "--no-save")
    assert saved_values(runs) == {("bandwidth", "copy"): 5e10, ("bandwidth", "triad"): 1e10}
    assert list(runs.rglob("*.jsonl")) == []
    given_parts(a_part(replace(a_ceiling(value=3e10), disturbed="heat")))
    out = run(capsys, "--no-save")[1]
    assert "30 GB/s may be too low" in out
    assert saved_values(runs)["bandwidth", "copy"] == 5e10


def test_a_calibration_can_be_plotted_directly_and_from_its_file(
    capsys, runs, tmp_path, given_parts
):
    given_parts(a_part(a_ceiling(), a_ceiling("flops", "fp32", 1e12)))
    code, out, _ = run(capsys, "--output", tmp_path / "run.jsonl", "--plot", tmp_path / "b.png")
    assert (code, f"plot: {tmp_path / 'b.png'}" in out) == (0, True)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert roofline(["plot", str(tmp_path / "run.jsonl"), "-o", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_json_has_ceilings_records_and_failed_parts(capsys, given_parts):
    given_parts(
        a_part(a_ceiling(), notes=["a note"]), raising(NotMeasuredError("too little memory"))
    )
    code, out, _ = run(capsys, "--format", "json", "-q")
    document = json.loads(out)
    assert code == 0
    (entry,) = document["ceilings"]
    assert (entry["value"], entry["unit"], entry["ci95"]) == (2e10, "B/s", [1.9e10, 2.1e10])
    assert entry["work_per_launch"] == 8
    assert document["records"][0]["bytes_read"] == 4
    assert document["not_measured"] == [
        "a note",
        "a broken part: NotMeasuredError: too little memory",
    ]
    assert document["environment"]["hardware"]["entries"][0]["name"] == "copy"


def test_rows_are_ceilings_in_base_units(capsys, given_parts):
    given_parts(a_part(replace(a_ceiling(), p5_p95=(1.8e10, 2.2e10))))
    _, out, _ = run(capsys, "--format", "csv", "-q")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["quantity"], row["name"], float(row["value"]), row["unit"]) == (
        "bandwidth",
        "copy",
        2e10,
        "B/s",
    )
    assert (float(row["ci95_low"]), row["sm_clock_hz"]) == (1.9e10, "")


def test_power_and_flops_per_joule_are_shown_if_known(capsys, given_parts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    given_parts(a_part(a_ceiling()))
    assert "per J" not in run(capsys, "-q")[1]
    matmul = replace(
        a_ceiling("flops", "bf16", 700e12), sm_clock_hz=1.41e9, power_w=700.0, at_power_limit=True
    )
    given_parts(a_part(a_ceiling(), matmul))
    out = run(capsys, "-q")[1]
    assert "power" in out
    assert "1410 MHz" in out
    assert "700 W" in out
    assert "1 TFLOP/J" in out
    row = calibrate_command.row_of(matmul)
    assert (row["power_w"], row["flops_per_j"], row["at_power_limit"]) == (700.0, 1e12, True)


def test_ctrl_c_saves_and_prints_finished_parts(capsys, runs, given_parts):
    given_parts(a_part(a_ceiling()), raising(KeyboardInterrupt()), a_part(a_ceiling(name="read")))
    code, out, err = run(capsys)
    assert code == 130
    assert saved_values(runs) == {("bandwidth", "copy"): 2e10}
    assert "20 GB/s" in out
    assert "interrupted" in err
    (file,) = runs.rglob("*.jsonl")
    assert [record.op for record in load_run(file).records] == ["calibrate-copy"]


def test_a_calibration_that_measures_nothing_exits_with_1(capsys, given_parts):
    given_parts(raising(MemoryError("no room\nat line 3")))
    code, out, err = run(capsys)
    assert code == 1
    assert "no ceiling was measured" in out
    assert "not measured: a broken part: MemoryError: no room\n" in out
    assert "Traceback" not in out + err


def test_a_full_disk_leaves_the_earlier_ceilings(capsys, runs, monkeypatch, given_parts):
    given_parts(a_part(a_ceiling()))
    run(capsys, "--no-save")
    before = saved_values(runs)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    given_parts(a_part(a_ceiling(value=9e10)), a_part(a_ceiling(name="read")))
    code, out, err = run(capsys, "--no-save")
    assert code == 0
    assert "90 GB/s" in out
    assert (
        err.count("the measured ceilings are not saved: ")
        == err.count("No space left on device")
        == 1
    )
    assert saved_values(runs) == before
    assert list(runs.rglob("*.tmp")) == []


def test_power_limit_and_driver_are_part_of_the_identity(monkeypatch, tmp_path):
    before = calibration.MeasuredCeilings(H100, tmp_path, print, print).identity
    assert {"power_limit_w", "driver", "triton", "uuid", "torch", "threads"} <= set(before)
    monkeypatch.setattr(calibration.gpu_state, "modes", lambda uuid: {"power_limit_w": 350.0})
    assert calibration.MeasuredCeilings(H100, tmp_path, print, print).identity != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dtype", "bf15"], "unknown dtype 'bf15'; did you mean bf16"),
        (["--plot", "x.gif"], "cannot tell the format of 'x.gif'"),
        (["--output", "/proc/no/such"], "/proc/no/such"),
    ],
)
def test_invalid_calibrate_arguments_are_a_one_line_error(capsys, given_parts, words, message):
    given_parts(raising(AssertionError("measured")))
    code, out, err = run(capsys, "-q", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_quick_has_the_same_parts_and_less_time(capsys, runs, monkeypatch):
    seen, parts_of = [], calibration.parts_of
    monkeypatch.setattr(
        calibration, "parts_of", lambda *of: seen.append(parts_of(*of)) or [a_part(a_ceiling())]
    )
    run(capsys)
    memory = ["launch", "bandwidth of copy, triad, read, write"]
    assert "not measured: fp8e4m3: " in run(capsys, "--quick", "--dtype", "fp8e4m3,fp32")[1]
    assert [[name for name, _ in parts] for parts in seen] == [
        [*memory, "bf16 matmul", "fp32 matmul", "cache"],
        [*memory, "fp32 matmul", "cache"],
    ]
    settings = [
        load_run(file).environment.settings["confirming_s"] for file in runs.rglob("*.jsonl")
    ]
    assert sorted(settings) == [QUICK.confirming_s, FULL.confirming_s]


@pytest.mark.parametrize("quick", [False, True])
def test_a_quick_calibration_of_a_gpu_has_no_fmas(quick):
    options = calibrate_command.Options(quick, ["fp32"])
    parts = calibrate_command.planned(options, Setup(H100, FULL), MATMUL[0])
    assert ("fp32 FMA" in dict(parts)) is not quick


# 132 SMs x 4096 FLOPs a clock x 1.755 GHz = 948.9 TFLOP/s; 132 x 256 x 1.98 GHz = 66.9 TFLOP/s
@pytest.mark.parametrize(
    ("peak", "title", "steps"),
    [
        (
            ("flops", "bf16", 790e12),
            "bf16",
            "989.4 TFLOP/s -> x clock 0.96 (1755 MHz) = 948.9 -> x software 0.83",
        ),
        (
            ("fma", "fp32", 60e12),
            "fp32 FMA",
            "66.9 TFLOP/s -> x clock 1.00 (1980 MHz) = 66.91 -> x software 0.90",
        ),
    ],
)
def test_peak_sentences_decompose_the_measured_peak(peak, title, steps):
    quantity, dtype, value = peak
    measured = Ceiling(
        *peak, "measured", "a test", sm_clock_hz=1.755e9 if quantity == "flops" else 1.98e9
    )
    gpu = find_gpu("h100-sxm")
    sentence = f"{title}: datasheet {steps} -> measured {value / 1e12:g} TFLOP/s"
    assert calibration.peak_sentences(gpu.with_entries([measured]), [dtype, "fp16"]) == [sentence]
    assert (
        calibration.peak_sentences(gpu.with_entries([replace(measured, sm_clock_hz=None)]), [dtype])
        == []
    )
    assert calibration.peak_sentences(Machine(CPU.slug, CPU.name, (measured,)), [dtype]) == []


def test_a_tiny_real_calibration(capsys, runs, tiny_calibration):
    code, out, err = run(capsys, "--quick", "--dtype", "fp32", "--format", "json", "-q")
    assert (code, [line.split(": ")[0] for line in err.splitlines()]) == (0, ["saved", "ceilings"])
    document = json.loads(out)
    found = {(c["quantity"], c["name"]): c for c in document["ceilings"]}
    mixes = {("bandwidth", mix) for mix in ("read", "write", "copy", "triad")}
    assert mixes | {("launch", "launch"), ("flops", "fp32")} <= set(found)
    assert all(
        math.isfinite(c["value"]) and c["value"] > 0 and c["measured_at"] for c in found.values()
    )
    assert found["bandwidth", "triad"]["work_per_launch"] == 3 * 4 * MIB
    (file,) = runs.rglob("*-calibrate-*.jsonl")
    loaded = load_run(file)
    assert len(loaded.records) == len(document["records"])
    assert not loaded.notes
    assert all(r.samples_s and r.bytes_read is not None for r in loaded.records)
    assert {c["kind"] for c in found.values()} == {"measured"}
