"""`python -m bench lecture`: statements, figures of this machine, the synchronize trap and the
page.
"""

import json
import re
import shlex
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from markupsafe import escape

from bench.__main__ import main
from bench.harness.commands import lecture as command
from bench.harness.device.device import cpu_device
from bench.harness.lecture import measured
from bench.harness.lecture.figures import FIGURES
from bench.harness.lecture.page import ladder
from results.store.runfile import load_run
from roofline.commands.notes import SECTIONS, load_notes
from roofline.machine import Machine
from tests.bench.commands import CPU, GPU, run_files
from tests.bench.fake_clock import set_clock

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
    assert all("roofline" in claim["command"] or claim["claim"] in FIGURES for claim in CLAIMS)


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


def test_measured_rows_are_one_ordinary_run(capsys, runs, tiny, monkeypatch):
    few = [
        claim
        for claim in CLAIMS
        if claim["claim"] in ("intensity of ReLU", "intensity of square products")
    ]
    monkeypatch.setattr(command, "load_notes", lambda: {"claims": few})
    code, printed = lecture(capsys, "--section", "3", "--quick")
    assert code == 0
    (path,) = run_files(runs)
    run = load_run(path)
    assert [record.op for record in run.records] == ["relu", "matmul"]
    texts = [
        text.get_text() for text in ladder(run.environment, run.records, "light").axes[0].texts
    ]
    assert {"relu", "matmul"} <= set(texts)
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


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_of_known_rows_or_of_code_that_their_command_runs(name, capsys):
    (claim,) = [claim for claim in CLAIMS if claim["claim"] == name]
    figure = FIGURES[name]
    if rows := measured.rows_of(figure):
        assert set(rows) <= measured.ROWS.keys()
        assert measured.value_of(figure, {}) is None
        return
    torch.manual_seed(0)
    value = measured.value_of(figure, {})
    assert value in claim["ours"] if isinstance(value, str) else value is not None
    ((_, _, code),) = map(shlex.split, measured.commands_of(figure, {}))
    torch.manual_seed(0)
    try:
        exec(code, {})
    except Exception as error:
        print(type(error).__name__)
    assert capsys.readouterr().out == f"{value}\n"


@pytest.mark.parametrize("quick_sizes", [{}, measured.QUICK])
@pytest.mark.parametrize("kind", measured.SIZES)
def test_no_two_rows_are_the_same(kind, quick_sizes):
    sizes = measured.SIZES[kind] | quick_sizes.get(kind, {})
    commands = [command.format(**sizes) for command in measured.ROWS.values()]
    assert len(set(commands)) == len(commands)


@pytest.mark.parametrize(("device", "left_s"), [(CPU, -8.0), (GPU, 32.0)])
def test_calibrating_a_gpu_is_not_in_the_budget(device, left_s, monkeypatch):
    clock, run = [0.0], MagicMock(device=device, records=[])
    set_clock(monkeypatch, lambda: clock[0])
    monkeypatch.setattr(measured, "document", lambda *_: {"records": []})
    args = SimpleNamespace(budget=32.0, seed=0, quick=True)

    def start(dtypes):
        clock[0] += 40.0
        run.deadline = clock[0] + args.budget

    run.args, run.start.side_effect, run.__exit__.return_value = args, start, None
    measured.Measurements([], args, device).measure(run)
    assert run.deadline - clock[0] == left_s


def test_an_error_of_the_gpu_costs_only_the_trap(monkeypatch):
    def trap(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    args = SimpleNamespace(budget=32.0, seed=0, quick=False)
    plan = measured.Measurements([lambda matmul: None], args, cpu_device(1))
    run = MagicMock(device=CPU, ceilings=Machine("cpu", "a CPU"))
    monkeypatch.setattr(measured, "synchronize_trap", trap)
    assert plan.synchronize_trap(run) == []
    assert "an illegal memory access" in run.progress.note.call_args.args[0]
    monkeypatch.setattr(measured, "release", lambda device: False)
    monkeypatch.setattr(measured.worker, "call", lambda *_, **how: (["rows"], ""))
    assert plan.synchronize_trap(run) == ["rows"]


def test_an_mfu_above_one_is_impossible(quick):
    rows = measured.synchronize_trap(cpu_device(1), 64, "fp32", 1.0)
    assert not any(row["possible"] for row in rows)
    assert all(
        row["possible"] for row in measured.synchronize_trap(cpu_device(1), 64, "fp32", 1e18)
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "B", "-"),
        (128, "B", "128 B"),
        (9.894e14, "FLOP/s", "989.4 TFLOP/s"),
        (True, "", "True"),
        (51.2, "%", "51.2%"),
    ],
)
def test_figures_have_their_units(value, unit, text):
    assert command.figure_text({"measured": value, "unit": unit, "flags": []}) == text


def test_a_page_needs_the_suffix_of_one(capsys):
    assert main(["lecture", "-o", "lecture.txt"]) == 2
    assert "expected a path that ends with .html" in capsys.readouterr().err
