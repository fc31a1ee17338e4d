"""`python -m bench lecture`: statements, figures of this machine, the synchronize trap and the
page.
"""

import json
import re
import shlex
from types import SimpleNamespace

import pytest
import torch
from markupsafe import escape

from bench.__main__ import main
from bench.commands import lecture as command
from bench.harness.data.verify import CheckResult
from bench.lecture import measured
from bench.lecture.figures import CODE, FIGURES
from bench.lecture.page import prose
from results.store.runfile import load_run
from roofline.commands.notes import SECTIONS, load_notes
from tests.bench.commands import CPU, GPU, run_files

CLAIMS = load_notes()["claims"]
KEYS = (
    "section",
    "statement",
    "notes",
    "right",
    "verdict",
    "source",
    "measured",
    "unit",
    "flags",
    "command",
    "remark",
)
TINY = {
    "layers": 1,
    "size": "64KiB",
    "n": 64,
    "m": 32,
    "step": "2x16",
    "parts": 2,
    "copied": "64KiB",
}


@pytest.fixture
def tiny(quick, monkeypatch):
    monkeypatch.setitem(measured.SIZES, "cpu", measured.SIZES["cpu"] | TINY)
    monkeypatch.setitem(measured.QUICK, "cpu", TINY)


def lecture(capsys, *words):
    capsys.readouterr()
    code = main(["lecture", "--device", "cpu", "--format", "json", "-q", *words])
    return code, json.loads(capsys.readouterr().out)


def test_every_statement_has_a_command_or_a_figure():
    assert all(
        "roofline" in claim["command"] or claim["claim"] in CODE | FIGURES for claim in CLAIMS
    )
    assert {claim["claim"] for claim in CLAIMS} >= CODE.keys() | FIGURES.keys()


def test_a_section_without_rows_measures_only_code(capsys, runs):
    code, printed = lecture(capsys, "--section", "1")
    assert code == 0
    assert run_files(runs) == []  # nothing to save
    rows = {row["statement"]: row for row in printed["rows"]}
    assert {row["section"] for row in rows.values()} == {SECTIONS[0]}
    assert all(tuple(row) == KEYS for row in rows.values())
    row = rows["4 x 8 in fp32"]
    assert (row["notes"], row["right"], row["measured"], row["unit"]) == (
        "128 bytes (S2, S4)",
        "128",
        128,
        "B",
    )
    assert row["command"].endswith("; python -c 'import torch; print(torch.zeros(4, 8).nbytes)'")


@pytest.fixture
def two_rows(tiny, monkeypatch):
    few = [
        claim
        for claim in CLAIMS
        if claim["claim"] in ("intensity of ReLU", "intensity of square products")
    ]
    monkeypatch.setattr(command, "load_notes", lambda: {"claims": few})


def test_a_row_without_a_figure_says_why(capsys, runs, two_rows, monkeypatch):
    wrong = CheckResult("wrong result", elements=1)
    monkeypatch.setattr("bench.harness.data.verify.check", lambda *_: wrong)
    assert main(["lecture", "--device", "cpu", "-q", "--section", "3", "--quick"]) == 1
    assert "matmul 64x64x64 fp32 torch: invalid: wrong result" in capsys.readouterr().err


def test_measured_rows_are_one_ordinary_run(capsys, runs, two_rows):
    code, printed = lecture(capsys, "--section", "3", "--quick")
    assert code == 0
    (path,) = run_files(runs)
    run = load_run(path)
    assert [record.op for record in run.records] == ["relu", "matmul"]
    rows = {row["statement"]: row for row in printed["rows"]}
    assert rows["intensity of square products"]["measured"] == 64 / 6
    assert rows["intensity of ReLU"]["command"].endswith(
        "python -m bench.elementwise --op relu --dtype fp32 --size 64KiB"
    )
    overhead, call = printed["synchronize"]["rows"]
    assert overhead["seconds"] < call["seconds"]
    assert "Nothing is asynchronous" in printed["synchronize"]["note"]


def test_flagged_figures_are_marked_and_explained():
    row = {"verdict": "holds", "measured": 0.5, "unit": "%", "flags": ["preempted", "drifting"]}
    plain = row | {"flags": []}
    assert command.figure_text(row) == command.figure_text(plain) + " *"
    assert command.summary([row, row]).endswith(
        "; *: a measurement is flagged preempted, drifting."
    )
    assert command.summary([plain]).endswith("1 measured here.")


@pytest.mark.exhaustive
def test_every_figure_is_measured_and_the_page_is_self_contained(capsys, runs, tiny, tmp_path):
    code, printed = lecture(capsys, "-o", str(tmp_path / "lecture.html"))
    assert code == 0
    missing = [
        row["statement"] for row in printed["rows"] if row["unit"] and row["measured"] is None
    ]
    assert missing == []
    page = (tmp_path / "lecture.html").read_text()
    assert page.count("data:image/svg+xml") == 4  # two pictures, each light and dark
    assert not re.search(r"<script|<link|(src|href)=\"http", page)
    assert all(escape(row["statement"]) in page for row in printed["rows"])


def test_each_section_has_prose_a_formula_and_a_command():
    sections = prose()
    assert tuple(sections) == SECTIONS
    for blocks in sections.values():
        assert [kind for kind, _ in blocks] == ["p", "p", "pre", "p"]
        assert blocks[2][1].startswith("python -m ")


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", CODE)
def test_a_command_prints_what_its_statement_shows(name, capsys):
    (claim,) = [claim for claim in CLAIMS if claim["claim"] == name]
    torch.manual_seed(0)
    row = measured.statement(claim, {}, {})
    value = row["measured"]
    assert value in claim["ours"] if isinstance(value, str) else value is not None
    *_, code = shlex.split(row["command"])
    torch.manual_seed(0)
    try:
        exec(code, {})
    except Exception as error:
        print(type(error).__name__)
    assert capsys.readouterr().out == f"{value}\n"


def test_an_mfu_above_one_is_impossible():
    environment = SimpleNamespace(preflight={"host_launch_s": 5e-6})
    matmul = SimpleNamespace(mfu=0.5, median_s=1e-3, host_latency_s=2e-3)
    run = SimpleNamespace(environment=environment, device=GPU)
    rows = {row["timing"]: row for row in measured.synchronize_trap(run, matmul)}
    assert [row["mfu"] for row in rows.values()] == [100.0, 0.25, 0.5]
    assert [name for name, row in rows.items() if not row["possible"]] == ["not synchronized"]
    run.device = CPU
    assert [row["mfu"] for row in measured.synchronize_trap(run, matmul)] == [100.0, 0.5]
    matmul.mfu = None
    assert all(row["possible"] for row in measured.synchronize_trap(run, matmul))


def test_a_page_needs_the_suffix_of_one(capsys):
    assert main(["lecture", "-o", "lecture.txt"]) == 2
    assert "expected a path that ends with .html" in capsys.readouterr().err
