"""`bench compare definition.json --workload workload.jsonl solution.json`."""

import json

import pytest
import torch

from bench import __main__ as command
from bench.comparing.problems import Definition, Problem, Tolerance, read, read_workloads
from bench.harness.op import UsageError
from bench.harness.settings import Settings
from results.store.runfile import load_run
from tests.bench.comparing.problem_files import RANDOM, SOLUTIONS, workload, write

ROUNDS = "12"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, [workload(8), {"definition": "rmsnorm_w32", "workload": workload(16)}])
    return tmp_path


def problem_of(directory, index=0):
    return Problem(
        settings=Settings(),
        dtype="fp32",
        definition=read("definition.json", Definition),
        workload=read_workloads("workload.jsonl")[index],
        sides={"definition.json": None},
        file=directory / "workload.jsonl",
        directory=directory / "sources",
        device="cpu",
    )


def compare(*words):
    words = ["compare", "definition.json", "--workload", "workload.jsonl", *words]
    return command.main([*words, "--device", "cpu", "-q"])


def test_axes_and_bytes_come_from_the_definition_and_the_workload(files):
    problem = problem_of(files, index=1)
    assert problem.axes == {"rows": 16, "heads": 4, "width": 32}
    x, weight, eps, y = arguments = problem.arguments()
    assert problem.work(arguments) == {
        "bytes_read": 4 * (16 * 32 + 32),
        "bytes_written": 4 * 16 * 32,
    }
    assert (tuple(x.shape), tuple(weight.shape), eps) == ((16, 32), (32,), 1e-6)
    assert y.isnan().all()


def test_inputs_come_from_the_entry_point_or_a_file_above_the_workload(files):
    safetensors = pytest.importorskip("safetensors.torch")
    custom = {name: {"type": "custom"} for name in RANDOM}
    saved = RANDOM | {"x": {"type": "safetensors", "path": "data/x.st", "tensor_key": "k"}}
    write(files, [workload(4, custom), workload(4, saved)])
    x, weight, eps, _ = problem_of(files).arguments()
    assert (float(x.mean()), float(weight.mean()), eps) == (2.0, 1.0, 0.5)
    (files / "data").mkdir()
    safetensors.save_file({"k": torch.full((4, 32), 3.0)}, "data/x.st")
    assert float(problem_of(files, index=1).arguments()[0].mean()) == 3.0


def test_a_workload_without_an_axis_of_the_definition_is_an_error(files):
    write(files, [workload(4, axes={})])
    with pytest.raises(UsageError, match="has no axis rows"):
        problem_of(files).arguments()


@pytest.mark.parametrize(
    ("values", "error", "allows"),
    [({}, 0.01, True), ({}, 0.03, False), ({"max_error_cap": 0.005}, 0.01, False)],
)
def test_a_tolerance_counts_the_elements_within_it(values, error, allows):
    expected = torch.ones(100)
    other = expected.clone()
    other[0] += error
    tolerance = Tolerance(max_atol=0.01, max_rtol=0.01, **values)
    assert tolerance.allows(expected, other) is allows
    half = Tolerance(required_matched_ratio=0.5)
    assert half.allows(expected, other)


@pytest.mark.exhaustive
def test_each_workload_and_solution_has_a_row_and_what_is_wrong_is_refused(files):
    words = [f"{name}.json" for name in SOLUTIONS if name != "other"]
    assert compare(*words, "--rounds", ROUNDS, "-o", "run.jsonl") == 1
    run = load_run(files / "run.jsonl")
    assert len(run.records) == 2 * (1 + len(words))
    for rows in (8, 16):
        records = {
            each.provider.removesuffix(".json"): each
            for each in run.records
            if each.case == f"rows={rows}"
        }
        assert records["definition"].options == {"workload": f"rows-{rows}"}
        assert records["definition"].op == "rmsnorm_w32"
        assert records["right"].status == records["into"].status == "ok"
        assert "differs from the baseline's" in records["rounded"].reason
        assert "nan instead of" in records["unwritten"].reason
        assert records["cached"].reason.startswith("on new values in the same tensors")
        assert records["half"].reason.startswith("its result is torch.float16, ")
        assert records["cuda"].reason.startswith("its language is cuda; only python")
        assert records["crash"].reason == "crashed: SIGABRT (aborted)"


@pytest.mark.exhaustive
def test_errors_that_a_workload_allows_are_flagged(files):
    write(files, [workload(8, tolerance={"max_atol": 1e-2, "max_rtol": 1e-2})])
    compare("rounded.json", "unwritten.json", "--rounds", ROUNDS, "-o", "run.jsonl")
    _, rounded, unwritten = load_run(files / "run.jsonl").records
    assert (rounded.status, unwritten.status) == ("ok", "invalid"), rounded.reason
    assert "beyond-rounding" in rounded.flags


def test_the_least_time_on_a_gpu_needs_none(files, capsys):
    assert compare("--on", "b200-sxm", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in rows] == ["rows=8", "rows=16"]
    moved = 4 * (2 * 16 * 32 + 32)
    assert rows[1]["bytes_read"] + rows[1]["bytes_written"] == moved
    assert rows[1]["limit_s"] == pytest.approx(moved / 8e12)
    assert rows[1]["limit"] == "memory"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["other.json"], "other.json solves softmax, not rmsnorm_w32"),
        (["right.json", "--dtype", "fp32"], "the workloads replace --dtype; remove it"),
        (["right.json", "--on", "b200-sxm"], "--on measures nothing; remove the solutions"),
        (["workload.jsonl"], "workload.jsonl is not a solution: Object missing required field"),
        ([], "expected at least two functions, got only 'definition.json'"),
    ],
)
def test_files_that_do_not_fit_end_with_one_line(files, capsys, words, message):
    assert compare(*words, "--no-save") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
