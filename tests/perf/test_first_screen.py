"""The table of the first screen: which rows it takes from which runs, and what stands in its cells."""

import json

import pytest

from bench.validation import first_screen
from bench.validation.publish import ROOT

PUBLISHED = ROOT / "results" / "published" / "cpu-amd-epyc-2t"
RUN = PUBLISHED / "20261120T233629Z-matmul-a349e4f85f.jsonl"


@pytest.fixture
def lines():
    return [json.loads(line) for line in RUN.read_text().splitlines()]


def written(path, head, records, **changes):
    path.write_text("\n".join(json.dumps(line) for line in [head | changes, *records]) + "\n")
    return path


def table(capsys, *words):
    assert first_screen.main([str(word) for word in words]) == 0
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_of_each_op_and_dtype_the_case_with_the_most_work(capsys):
    rows = table(capsys, RUN)
    assert [(row["dtype"], row["case"]) for row in rows] == [("bf16", "2048x2048x2048"), ("fp32", "2048x2048x2048")]
    assert (rows[0]["bound"], rows[0]["% measured roof"]) == ("compute", rows[0]["MFU"])  # no datasheet: the same roof
    assert len(table(capsys, RUN, "--all-cases")) == 8
    assert {row["dtype"] for row in table(capsys, RUN, "--dtype", "fp32", "--all-cases")} == {"fp32"}
    assert {row["op"] for row in table(capsys, PUBLISHED, "--op", "gelu,relu")} == {"gelu", "relu"}


def test_torch_its_compiler_and_the_newest_version_in_this_order(tmp_path, lines, capsys):
    head, *records = lines
    largest = max(records, key=lambda r: (r["dtype"] == "bf16", r["flops"]))
    names = ("triton-v2", "triton-v10-autotune", "torch-compile", "triton-v10", "mine.py:f", "torch", "triton-v9")
    clocked = {"telemetry": {**largest["telemetry"], "sm_clock_hz": 1.755e9}}
    path = written(tmp_path / "run.jsonl", head, [largest | {"provider": name} | clocked for name in names])
    rows = table(capsys, path)
    assert [row["provider"] for row in rows] == ["torch", "torch-compile", "triton-v10-autotune", "triton-v10"]
    assert {row["SM clock"] for row in rows} == {"1755 MHz"}


def test_the_newest_of_two_runs_counts_and_what_has_no_time_does_not(tmp_path, lines, capsys):
    head, *records = lines
    one = next(r for r in records if r["dtype"] == "bf16" and r["case"] == "512x512x512")
    slow = one | {"median_s": 1.0, "ci95_s": [0.99, 1.01], "samples_s": [1.0]}
    larger = one | {"status": "skipped", "reason": "no time", "case": "9x9x9"}
    written(tmp_path / "a.jsonl", head, [slow], started_at="2026-11-21T00:00:00+00:00")
    written(tmp_path / "b.jsonl", head, [one, larger], started_at="2026-11-20T00:00:00+00:00")
    rows = table(capsys, tmp_path)
    assert [(row["case"], row["median"], row["95% CI"]) for row in rows] == [("512x512x512", "1.000 s", "±1.0%")]


def test_layouts_of_one_shape_are_cases_of_their_own(tmp_path, lines, capsys):
    head, *records = lines
    bf16 = [record for record in records if record["dtype"] == "bf16"]
    turned = [record | {"options": {"layout": "nt", "batch": 4}} for record in bf16]
    path = written(tmp_path / "run.jsonl", head, [*bf16, *turned])
    cases = [row["case"] for row in table(capsys, path, "--all-cases")]
    assert {"512x512x512", "512x512x512 nt batch 4"} <= set(cases)
    assert len(cases) == 8


def test_a_row_whose_work_is_not_counted_is_shown(tmp_path, lines, capsys):
    head, *records = lines
    path = written(tmp_path / "run.jsonl", head, [records[0] | {"flops": None}])
    assert [row["median"] for row in table(capsys, path)] == ["54.19 us"]


@pytest.mark.parametrize("op", ["calibrate-matmul", "h2d", "train-step"])
def test_what_is_no_op_is_no_row(tmp_path, lines, capsys, op):
    head, *records = lines
    path = written(tmp_path / "run.jsonl", head, [record | {"op": op} for record in records])
    assert first_screen.main([str(path)]) == 2
    assert "no row with a time is in these runs" in capsys.readouterr().err


def test_a_broken_file_is_named_and_the_others_are_shown(tmp_path, lines, capsys):
    written(tmp_path / "good.jsonl", lines[0], lines[1:])
    (tmp_path / "torn.jsonl").write_text('{"kind": "envi')
    assert first_screen.main([str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 4
    assert err.count("\n") == 1
    assert "torn.jsonl" in err


def test_a_run_that_there_is_not(capsys):
    assert first_screen.main(["nothing"]) == 2
    assert capsys.readouterr().err.startswith("python -m bench.validation.first_screen: error: ")


def test_a_smaller_case_with_all_providers_comes_before_a_larger_one_with_torch_alone(tmp_path, lines, capsys):
    head, *records = lines
    small, large = (
        next(r for r in records if r["dtype"] == "bf16" and r["case"].startswith(n)) for n in ("512", "2048")
    )
    compared = [small | {"provider": name} for name in ("torch", "torch-compile", "triton-v1")]
    rows = table(capsys, written(tmp_path / "run.jsonl", head, [large, *compared]))
    assert [(row["case"], row["provider"]) for row in rows] == [
        ("512x512x512", name) for name in ("torch", "torch-compile", "triton-v1")
    ]
