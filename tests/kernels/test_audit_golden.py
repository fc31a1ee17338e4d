"""Golden figures: what is worse than recorded is reported."""

import json

import pytest

from kernels.__main__ import main
from kernels.audit import catalog, command, golden, rows
from kernels.launch import INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

ROW = {
    **{"kernel": "family/op", "version": "v2", "arch": "sm_90", "dtype": "bf16", "part": "", "shape_class": "n <= 8"},
    **{"registers": 100, "instructions": 1000, "stack_bytes": 0, "spill_bytes": 0, "double_precision": 0},
    **{"load_bits": 128, "store_bits": 128, "mma": "HGMMA", "fp_fusion": True},
}
KEY = "family/op | v2 | bf16 | n <= 8 | sm_90"


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "FILE", tmp_path / "golden.json")
    return golden.FILE


@pytest.fixture
def recorded(own_file):
    golden.record([ROW])
    return golden.load()


def test_the_same_is_no_worse(recorded):
    assert golden.compare([ROW], recorded) == []
    assert golden.is_same_triton(recorded)
    assert recorded["rows"].keys() == {KEY}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"registers": 106}, "registers 100 -> 106"),
        ({"instructions": 1060}, "instructions 1000 -> 1060"),
        ({"spill_bytes": 4}, "spill_bytes 0 -> 4"),
        ({"stack_bytes": 8}, "stack_bytes 0 -> 8"),
        ({"double_precision": 1}, "double_precision 0 -> 1"),
        ({"load_bits": 64}, "load_bits 128 -> 64"),
        ({"store_bits": None}, "store_bits 128 -> None"),
        ({"mma": None}, "mma HGMMA -> None"),
        ({"fp_fusion": False}, "fp_fusion True -> False"),
    ],
)
def test_what_is_worse_is_reported(recorded, changes, line):
    assert golden.compare([ROW | changes], recorded) == [f"{KEY}: {line}"]


@pytest.mark.parametrize(
    "changes", [{"registers": 105}, {"instructions": 1050}, {"registers": 50}, {"load_bits": "tma"}, {"load_bits": 256}]
)
def test_five_percent_and_improvements_pass(recorded, changes):
    assert golden.compare([ROW | changes], recorded) == []


def test_counts_of_another_triton_are_not_compared(recorded):
    foreign = recorded | {"triton": "3.1.0"}
    assert golden.compare([ROW | {"registers": 200, "instructions": 9999}], foreign) == []
    assert golden.compare([ROW | {"spill_bytes": 4}], foreign) == [f"{KEY}: spill_bytes 0 -> 4"]


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def instant(monkeypatch):
    """Give every variant the same figures, so that nothing has to be compiled."""

    def audit_all(choices):
        named = [(choice, choice.variant) for choice in choices]
        return [
            ROW
            | {"kernel": choice.kernel, "version": choice.version.name, "arch": f"sm_{choice.arch}", "obstacle": None}
            | {"dtype": variant.dtype, "part": variant.part, "shape_class": variant.shape_class}
            for choice, variant in named
        ]

    monkeypatch.setattr(rows, "audit_all", audit_all)
    monkeypatch.setattr(command, "_print", lambda found, args: None)


@pytest.mark.usefixtures("instant")
def test_the_quick_set_is_recorded_and_checked(own_file, capsys):
    count = len(catalog.quick(catalog.choices()))
    assert main(["audit", "--record"]) == 0
    assert main(["audit", "--check"]) == 0
    assert f"{count} of {count} rows have recorded figures; none is worse" in capsys.readouterr().err
    figures = json.loads(own_file.read_text())
    first = next(iter(figures["rows"]))
    figures["rows"][first]["registers"] = 50
    own_file.write_text(json.dumps(figures))
    assert main(["audit", "--check"]) == 1
    assert f"worse: {first}: registers 50 -> 100" in capsys.readouterr().err.splitlines()
    own_file.write_text(json.dumps(figures | {"triton": "3.1.0"}))
    assert main(["audit", "--check"]) == 0
    assert "recorded figures are of Triton 3.1.0" in capsys.readouterr().err


@pytest.mark.usefixtures("instant")
def test_a_part_of_the_quick_set_is_not_recorded(own_file, capsys):
    assert main(["audit", "gelu", "--record"]) == 2
    assert "--record records the quick set; leave out names" in capsys.readouterr().err
    assert not own_file.exists()


@pytest.mark.parametrize("text", [None, "{"])
def test_golden_figures_that_cannot_be_read(own_file, capsys, text):
    if text:
        own_file.write_text(text)
    assert main(["audit", "launch-floor", "--arch", "sm_90", "--format", "csv", "--check"]) == 2
    assert "cannot read the recorded figures" in capsys.readouterr().err
