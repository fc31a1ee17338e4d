"""Golden figures: that they are those of today's compiler, and that something worse is told."""

import dataclasses
import json

import pytest
import triton

from kernels.__main__ import main
from kernels.audit import catalog, golden, work
from kernels.audit.rows import AuditRow, key_of
from kernels.launch import INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

ROW = AuditRow(
    kernel="family/op",
    version="v2",
    arch="sm_90",
    dtype="bf16",
    part="",
    shape_class="n <= 8",
    registers=100,
    stack_bytes=0,
    spill_bytes=0,
    shared_bytes=0,
    occupancy=0.5,
    obstacle=None,
    load_bits=128,
    load_bits_min=128,
    load_bits_max=128,
    store_bits=128,
    store_bits_min=128,
    store_bits_max=128,
    mma="HGMMA",
    instructions=1000,
    hot_instructions=800,
    hot_path="straight",
    instructions_per_element=1.0,
    issue_budget_instructions_per_element=40.0,
    bound="memory",
    fp_fusion=True,
    double_precision=0,
    gpu="h100-sxm",
    triton=triton.__version__,
    ptxas="1.2.3",
    target="sm_90a",
)


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "golden.json"
    assert golden.record([ROW], {ROW.key}, path) == 1
    return golden.load(path)


def worse(recorded, **changes):
    return golden.compare([dataclasses.replace(ROW, **changes)], recorded)


def test_the_same_is_no_worse(recorded):
    assert golden.compare([ROW], recorded) == []
    assert recorded.same_triton


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"registers": 106}, "registers 100 -> 106 (+6.0 %)"),
        ({"instructions": 1060}, "instructions 1000 -> 1060 (+6.0 %)"),
        ({"spill_bytes": 4}, "spill_bytes 0 -> 4"),
        ({"stack_bytes": 8}, "stack_bytes 0 -> 8"),
        ({"double_precision": 1}, "double_precision 0 -> 1"),
        ({"load_bits": 64}, "load_bits 128 -> 64"),
        ({"store_bits": None}, "store_bits 128 -> None"),
        ({"mma": None}, "mma HGMMA -> None"),
        ({"fp_fusion": False}, "fp_fusion True -> False"),
    ],
)
def test_what_is_worse_is_told(recorded, changes, line):
    assert worse(recorded, **changes) == [f"family/op | v2 | bf16 | n <= 8 | sm_90: {line}"]


@pytest.mark.parametrize(
    "changes", [{"registers": 105}, {"instructions": 1050}, {"registers": 50}, {"load_bits": "tma"}, {"load_bits": 256}]
)
def test_five_percent_and_improvements_pass(recorded, changes):
    assert worse(recorded, **changes) == []


def test_recording_some_kernels_keeps_those_of_the_others_that_are_still_wanted(tmp_path):
    path = tmp_path / "golden.json"
    other, vanished = (dataclasses.replace(ROW, kernel=kernel) for kernel in ("family/other", "family/vanished"))
    golden.record([ROW, other, vanished], {ROW.key, other.key, vanished.key}, path)
    unwanted = dataclasses.replace(ROW, dtype="fp16")
    assert golden.record([dataclasses.replace(ROW, registers=90), unwanted], {ROW.key, other.key}, path) == 1
    assert {key: row["registers"] for key, row in golden.load(path).rows.items()} == {ROW.key: 90, other.key: 100}


def test_counts_of_another_triton_are_not_compared(recorded):
    foreign = dataclasses.replace(recorded, triton="3.1.0")
    assert not foreign.same_triton
    assert worse(foreign, registers=200, instructions=9999) == []
    assert worse(foreign, spill_bytes=4) != []


# ---- the command ---------------------------------------------------------------------------------------------------

ONE = ("audit", "launch-floor", "--arch", "sm_90", "--format", "csv")


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    path = tmp_path / "golden.json"
    monkeypatch.setattr(golden, "FILE", path)
    monkeypatch.setattr(golden.record, "__defaults__", (path,))
    monkeypatch.setattr(golden.load, "__defaults__", (path,))
    return path


def test_record_then_check_then_a_planted_rise(own_file, capsys):
    assert main([*ONE, "--check"]) == 2
    assert "record them with --record" in capsys.readouterr().err
    assert main([*ONE, "--record"]) == 0
    assert main([*ONE, "--check"]) == 0
    assert "1 rows are no worse than recorded" in capsys.readouterr().err
    figures = json.loads(own_file.read_text())
    [row] = figures["rows"].values()
    row["registers"] = round(row["registers"] / 1.34)
    own_file.write_text(json.dumps(figures))
    assert main([*ONE, "--check"]) == 1
    assert "worse: launch_floor/launch-floor | v1 | fp32 | sm_90: registers 3 -> 4" in capsys.readouterr().err
    figures["rows"] = {}
    own_file.write_text(json.dumps(figures))
    assert main([*ONE, "--check"]) == 1
    assert "not recorded: launch_floor/launch-floor | v1 | fp32 | sm_90" in capsys.readouterr().err


@pytest.fixture
def instant(monkeypatch):
    """Give every variant the same figures, so that nothing has to be compiled."""

    def audit_all(jobs):
        return [
            dataclasses.replace(
                ROW,
                kernel=job.choice.kernel,
                version=job.choice.version.name,
                arch=f"sm_{job.choice.arch}",
                dtype=job.choice.variant.dtype,
                part=job.choice.variant.part,
                shape_class=job.choice.variant.shape_class,
            )
            for job in jobs
        ]

    monkeypatch.setattr(work, "audit_all", audit_all)


def rows_in(path):
    return json.loads(path.read_text())["rows"]


@pytest.mark.usefixtures("instant")
def test_figures_are_kept_of_the_quick_set(own_file, capsys):
    quick = set(map(key_of, catalog.quick(catalog.choices())))
    assert main(["audit", "--all", "--record"]) == 0
    assert set(rows_in(own_file)) == quick
    assert main(["audit", "--check"]) == 0
    assert f"{len(quick)} rows are no worse than recorded" in capsys.readouterr().err
    assert main(["audit", "--all", "--check"]) == 0
    others = len(catalog.choices()) - len(quick)
    assert f"{others} rows are of variants that no figures are kept of" in capsys.readouterr().err


@pytest.mark.usefixtures("instant")
def test_the_quick_set_finds_what_is_worse_or_forgotten(own_file, capsys):
    assert main(["audit", "--record"]) == 0
    figures = json.loads(own_file.read_text())
    first, second, *_ = map(key_of, catalog.quick(catalog.choices()))
    figures["rows"][first]["registers"] = 50
    del figures["rows"][second]
    own_file.write_text(json.dumps(figures))
    assert main(["audit", "--check"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"worse: {first}: registers 50 -> 100 (+100.0 %)" in lines
    assert f"not recorded: {second}" in lines


def test_check_with_another_triton_says_what_it_leaves_out(own_file, capsys):
    assert main([*ONE, "--record"]) == 0
    figures = json.loads(own_file.read_text())
    figures["triton"] = "3.1.0"
    next(iter(figures["rows"].values()))["registers"] = 1
    own_file.write_text(json.dumps(figures))
    capsys.readouterr()
    assert main([*ONE, "--check"]) == 0
    assert "recorded figures are of Triton 3.1.0" in capsys.readouterr().err


def test_golden_figures_that_cannot_be_read(own_file, capsys):
    own_file.write_text("{")
    assert main([*ONE, "--check"]) == 2
    assert "cannot read the recorded figures" in capsys.readouterr().err
