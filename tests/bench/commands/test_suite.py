"""`python -m bench suite`: its plan, the order of its cases, and one short run."""

import json

import pytest

from bench import __main__ as command
from bench.commands.suite import by_information, planned
from bench.harness import run
from roofline.machine import Machine
from tests.bench.commands import keep_ceilings


def families():
    return command.families()


def test_every_op_is_planned_at_all_its_default_shapes():
    cases = planned(["bf16"], families(), "cpu")
    for family, ops in families().items():
        for op in ops:
            found = [
                case
                for name, planned_op, case in cases
                if (name, planned_op.name) == (family, op.name)
            ]
            assert len(found) == (len(op.default_shapes["cpu"]) if op.is_in_suite else 0), op.name
            assert {case.dtype for case in found} == ({"bf16"} if op.is_in_suite else set())
    assert [op.name for ops in families().values() for op in ops if not op.is_in_suite] == [
        "decode-step"
    ]


def test_the_largest_case_of_every_op_comes_first():
    cases = by_information(planned(["bf16", "fp32"], families(), "cpu"))
    kinds = [(op.name, case.dtype) for _, op, case in cases]
    firsts = len(set(kinds))
    assert len(set(kinds[:firsts])) == firsts
    assert [name for name, _ in kinds[:2]] == ["matmul", "matmul"]
    for kind in set(kinds):
        sizes = [op.work(case).bytes for _, op, case in cases if (op.name, case.dtype) == kind]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.exhaustive
def test_a_short_run_saves_one_file_and_a_plot(capsys, runs):
    keep_ceilings(runs)
    words = ["--device", "cpu", "--budget", "1", "--format", "json", "-q", "--provider", "torch"]
    # 2: a busy machine finishes no row in a second.
    assert command.main(["suite", *words]) in (0, 2)
    document = json.loads(capsys.readouterr().out)
    assert document["environment"]["argv"][:4] == ["python", "-m", "bench", "suite"]
    assert {record["op"] for record in document["records"]} >= {"matmul", "dot", "gelu", "matvec"}
    files = list(runs.rglob("*-suite-*.jsonl"))
    assert len(files) == 1
    assert files[0].with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(files[0].read_text(encoding="utf-8").splitlines()) == 1 + len(document["records"])


@pytest.fixture
def no_roof(monkeypatch):
    nothing = Machine("box", "a box")
    monkeypatch.setattr(run.MeasuredCeilings, "complete", lambda *_, **__: nothing)


@pytest.mark.usefixtures("no_roof")
def test_without_a_roof_there_is_a_note_and_no_plot(capsys, runs):
    assert (
        command.main(["suite", "--budget", "0.001", "--provider", "torch", "--device", "cpu"]) == 2
    )
    out, err = capsys.readouterr()
    assert "saved: " in out
    assert "plot: " not in out
    assert len(list(runs.rglob("*-suite-*.jsonl"))) == 1
    assert not list(runs.rglob("*.png"))
    assert "no plot: no ceiling is known for" in err
