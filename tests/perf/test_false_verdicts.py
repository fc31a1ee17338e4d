"""The count of false verdicts: it continues where it was interrupted, and counts what is false and what is found."""

import json

from bench.validation import false_verdicts
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE


def row(verdict, kind="same", elements=64, launch_s=1e-6):
    found = {"op": "add", "dtype": "fp32", "elements": elements, "kind": kind, "verdict": verdict, "place": 0}
    return found | {"ratio": 1.0, "ci95": [0.99, 1.01], "rounds": 40, "launch_s": launch_s, "seconds": 1.0}


def cells(text):
    """Return the rows of a Markdown table, by their first two cells."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {(one[0], one[1]): dict(zip(lines[0], one, strict=True)) for one in lines[2:]}


def test_a_difference_that_is_not_there_is_false_and_one_that_is_there_is_found():
    rows = [row(SAME), row(UNSURE), row(FASTER), row(SLOWER, elements=512)]
    rows += [row(SLOWER, "+5 %", 65536, 1e-4), row(SAME, "+5 %", 65536, 1e-4), row(FASTER, "+5 %", 65536)]
    found = cells(false_verdicts.table(rows))
    assert found["same", "64"]["false"] == "1 (33.3 %)"
    assert (found["same", "all"]["false"], found["same", "all"]["UNSURE"]) == ("2 (50.0 %)", "1")
    assert found["+5 %", "all"]["false"] == "1 (33.3 %)"
    assert found["+5 %", "launch above 20 us"]["found"] == "50 %"


def test_every_size_is_compared_op_after_op():
    rows = false_verdicts.rows_of(500)
    assert len({row[1:] for row in rows}) == 120
    assert [row[1] for row in rows[:12]] == list(false_verdicts.OPS)
    assert {row[2] for row in rows[:12]} == {64}


def test_what_was_measured_is_not_measured_again(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    words = ["--planted", "1", "--budget", "0.05", "--output", str(path)]
    assert false_verdicts.main(["--rows", "1", *words]) == 0
    with path.open("a") as file:
        file.write('{"place": 1, "op"')  # killed in the middle of a line
    kept = path.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in kept[1:3]] == ["same", "+5 %"]
    assert false_verdicts.main(["--rows", "2", *words]) == 0
    assert [json.loads(line)["place"] for line in path.read_text().splitlines()[-1:]] == [1]
    assert capsys.readouterr().out.count("| same | all | 2 |") == 1
    assert false_verdicts.main(["--rows", "2", *words, "--seed", "1"]) == 2
    assert "name another --output" in capsys.readouterr().err
