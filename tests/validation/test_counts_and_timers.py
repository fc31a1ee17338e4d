"""`false_verdicts` and `side_by_side`, on rows with known verdicts and in short runs."""

import json

import pytest

from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE
from tests.validation import false_verdicts, side_by_side


def row(verdict, kind=false_verdicts.SAME_WORK, elements=64):
    return {
        "verdict": verdict,
        "kind": kind,
        "elements": elements,
        "launch_s": 1e-6,
        "seconds": 1.0,
    }


def cells(text):
    """Return the rows of a Markdown table by their first two cells."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line
    ]
    return {tuple(line[:2]): dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


def test_false_and_right_verdicts_are_counted_by_kind():
    rows = [row(SAME), row(UNSURE), row(FASTER), row(SLOWER, elements=512)]
    rows += [row(verdict, "+5 %", 65536) for verdict in (SLOWER, SLOWER, SAME, FASTER)]
    found = cells(false_verdicts.table(rows))
    assert found["same", "64"]["false"] == "1"
    assert [found["same", "all"][name] for name in ("rows", "right", "false", "UNSURE")] == [
        "4",
        "1",
        "2",
        "1",
    ]
    assert [found["+5 %", "all"][name] for name in ("rows", "right", "false")] == ["4", "2", "1"]


def test_rows_cover_every_op_of_a_size_before_the_next_size():
    rows = false_verdicts.rows_of("same", 500, false_verdicts.SHAPES)
    assert len({(case.op, case.shape, case.dtype) for case in rows}) == 120
    assert [case.op for case in rows[:12]] == list(false_verdicts.OPS)
    assert {case.shape for case in rows[:12]} == {(8, 8)}


@pytest.mark.exhaustive
def test_counting_continues_after_an_interruption(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    words = ["--planted", "1", "--budget", "0.05", "--output", str(path)]
    assert false_verdicts.main(["--rows", "1", *words]) == 0
    assert false_verdicts.main(["--rows", "2", *words]) == 0
    saved = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(saved_row["index"], saved_row["kind"]) for saved_row in saved] == [
        (0, "same"),
        (0, "+5 %"),
        (1, "same"),
    ]
    assert cells(capsys.readouterr().out.split("\n\n")[-2])["same", "all"]["rows"] == "2"


@pytest.mark.exhaustive
def test_all_timers_of_a_cpu_time_every_case(tmp_path, capsys):
    path = tmp_path / "times.json"
    words = ["--case", "add/fp32/4096,matmul/bf16/32x32", "--rounds", "2", "--seconds", "0.01"]
    assert side_by_side.main([*words, "--output", str(path)]) == 0
    for found in json.loads(path.read_text())["seconds"].values():
        assert found.keys() >= {"ours cold", "ours warm", "bench.do_bench", "torch Timer"}
        assert all(len(values) == 2 and min(values) > 0 for values in found.values())
    assert "| matmul/bf16/32x32 |" in capsys.readouterr().out


def test_a_ratio_is_taken_within_each_round():
    found = {"ours cold": [1e-6, 2e-6], "ours warm": [1e-6, 1e-6], "bench.do_bench": [2e-6, 2e-6]}
    found["torch Timer"] = [1e-6, 1e-6]
    row = side_by_side.row_of("add/fp32/8", found)
    assert row["bench.do_bench / ours cold"] == "1.500 (1.00 to 2.00)"
    assert row["torch Timer / ours warm"] == "1.000 (1.00 to 1.00)"


@pytest.mark.parametrize("text", ["add", "adds/fp32/8", "add/fp33/8", "add/fp32/8x"])
def test_an_unknown_case_is_a_usage_error(text, capsys):
    with pytest.raises(SystemExit) as error:
        side_by_side.main(["--case", text])
    assert error.value.code == 2
    assert "expected OP/DTYPE/SHAPE" in capsys.readouterr().err
