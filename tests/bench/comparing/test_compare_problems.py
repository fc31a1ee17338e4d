"""`bench compare definition.json --workload workload.jsonl solution.json`."""

import json

import pytest
import torch
from msgspec.structs import replace

from bench import __main__ as command
from bench.commands import compare_functions
from bench.comparing.problems import Definition, File, Problem, Solution, read, read_workloads
from bench.comparing.turns import ComparePolicy
from bench.harness.device.device import cpu_device
from bench.harness.op import UsageError
from bench.harness.settings import Settings
from results.store.runfile import load_run
from tests.bench.commands import StubRun
from tests.bench.comparing.problem_files import RANDOM, SOLUTIONS, workload, write


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


def test_a_file_without_workloads_is_an_error(files):
    write(files, [])
    with pytest.raises(UsageError, match="has no workload"):
        read_workloads("workload.jsonl")


def test_a_workload_without_an_axis_of_the_definition_is_an_error(files):
    write(files, [workload(4, axes={})])
    with pytest.raises(UsageError, match="has no axis rows"):
        problem_of(files).arguments()


def test_a_source_outside_the_directory_of_its_solution_is_not_written(files):
    problem = problem_of(files)
    bad = read("right.json", Solution)
    path = {"path": "../main.py", "content": ""}
    problem.sides["bad.json"] = replace(bad, sources=(File(**path),))
    functions = problem.functions(["definition.json", "bad.json"])
    with pytest.raises(UsageError, match="is outside its directory"):
        functions["bad.json"]()
    assert not (files / "sources" / "main.py").exists()


def test_a_workload_whose_reference_fails_costs_only_its_own_rows(files, monkeypatch):
    def call(*arguments, **limits):
        raise UsageError("the inputs: KeyError: 'eps'")

    monkeypatch.setattr(compare_functions.worker, "call", call)
    run = StubRun(cpu_device())
    names = ["definition.json", "right.json"]
    records = compare_functions.measured(problem_of(files), names, run, ComparePolicy(0.01))
    assert [each.status for each in records] == ["failed", "skipped"]
    assert records[0].reason == "the inputs: KeyError: 'eps'"


@pytest.mark.exhaustive
def test_each_workload_and_solution_has_a_row_and_what_is_wrong_is_refused(files):
    write(files, [workload(8), {"workload": workload(16, {"x": {"type": "random"}})}])
    words = [f"{name}.json" for name in SOLUTIONS if name != "other"]
    assert compare(*words, "--rounds", "6", "--cache", "warm", "-o", "run.jsonl") == 1
    run = load_run(files / "run.jsonl")
    assert len(run.records) == 2 * (1 + len(words))
    first, second = run.records[: 1 + len(words)], run.records[1 + len(words) :]
    assert {each.case for each in second} == {"rows=16"}
    assert second[0].reason == "the inputs: KeyError: 'weight'"
    records = {each.provider.removesuffix(".json"): each for each in first}
    assert records["definition"].options == {"workload": "rows-8"}
    assert records["definition"].op == "rmsnorm_w32"
    assert records["right"].status == records["into"].status == "ok"
    assert "differs from the baseline's" in records["rounded"].reason
    assert "nan instead of" in records["unwritten"].reason
    assert records["cached"].reason.startswith("on new values in the same tensors")
    assert records["half"].reason.startswith("its result is torch.float16, ")
    assert records["cuda"].reason.startswith("its language is cuda; only python")
    assert records["crash"].reason == "crashed: SIGABRT (aborted)"


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
        (
            ["right.json", "--dtype", "fp32"],
            "the workloads replace --dtype; remove it",
        ),
        (["right.json", "--fill", "normal"], "the workloads replace --fill; remove it"),
        (["right.json", "--on", "b200-sxm"], "--on measures nothing; remove the solutions"),
        (["workload.jsonl"], "workload.jsonl is not a solution: Object missing required field"),
        ([], "expected at least two functions, got only 'definition.json'"),
    ],
)
def test_files_that_do_not_fit_end_with_one_line(files, capsys, words, message):
    assert compare(*words, "--no-save") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
