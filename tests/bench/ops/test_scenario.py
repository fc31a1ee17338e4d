"""A command whose rows are no ops: what it keeps, prints and returns, whatever becomes of its rows."""

import csv
import io
import json
import time
from dataclasses import replace

import matplotlib.image
import pytest

from bench.harness.measure import runner
from bench.harness.scenarios.scenario import Column, Scenario, ScenarioRow, main
from results.record import Record
from results.store.runs import RunWriter, StoreError, load_run
from tests.bench import commands


@pytest.fixture(autouse=True)
def ceilings(runs):
    commands.keep_ceilings(runs)


def blank(size, reason=None):
    return Record(
        op="nap",
        provider="torch",
        dtype="fp32",
        shape={"n": size},
        case=str(size),
        status="skipped",
        reason=reason,
        flops=10**11 * size,
        bytes_read=8,
        bytes_written=8,
    )


def finished(size):
    return replace(
        blank(size),
        status="ok",
        median_s=0.25,
        samples_s=(0.25,),
        launches_per_sample=1,
        ci95_s=(0.25, 0.25),
        phases_s={"asleep": 0.25},
        tokens_per_step=500,
        hardware_flops=2 * 10**11 * size,
    )


def nap(*rows, **changes):
    """Return a scenario of rows: each a size and what its measurement does, or a reason to be skipped."""

    def plan(args, device, settings):
        return [
            ScenarioRow(
                blank(size, act if isinstance(act, str) else None), act if callable(act) else finished, f"nap of {size}"
            )
            for size, act in rows
        ]

    values = {
        "name": "nap",
        "command": "bench.nap",
        "formula": "z",
        "axes": "n",
        "dtypes": ("fp32",),
        "providers": ("torch",),
        "doc": "Sleep.",
        "notes": "columns: none",
        "examples": (("--deep", "deeper"),),
        "add_options": lambda group: group.add_argument("--deep", action="store_true"),
        "check": lambda args: None,
        "plan": plan,
        "columns": (
            Column("size", lambda record, _: record.case, is_text=True),
            Column("MFU", lambda _, judged: f"{judged['mfu']:.3f}"),
            Column("HFU", lambda _, judged: f"{judged['hfu']:.3f}"),
            Column("always", lambda record, _: "same", is_quiet=True),
            Column("never", lambda record, _: None),
        ),
    }
    return Scenario(**values | changes)


def run(scenario, *words):
    try:
        return main(scenario, [*words, "--device", "cpu"])
    except SystemExit as exit:
        return exit.code


def ok(bench):
    return finished(1)


def test_a_table_has_the_columns_of_the_command_and_those_that_say_something(capsys, runs):
    assert run(nap((1, ok), (2, lambda bench: finished(2)))) == 0
    out, err = capsys.readouterr()
    titles = next(line for line in out.splitlines() if "MFU" in line)
    assert titles.split() == ["size", "MFU", "HFU"]
    assert [line.split() for line in out.splitlines() if line[:1] in ("1", "2")] == [
        ["1", "0.040", "0.080"],  # 1e11 FLOPs in 0.25 s, of the made-up 1e13 FLOP/s
        ["2", "0.080", "0.160"],
    ]
    assert "[2/2] nap of 2" in err
    (saved,) = commands.run_files(runs)
    assert out.splitlines()[-1] == f"saved: {saved}"


def test_a_full_disk_shows_what_was_measured(capsys, runs, monkeypatch):
    def full(writer, record):
        raise StoreError(f"cannot write {writer.path}: No space left on device")

    monkeypatch.setattr(RunWriter, "append", full)
    assert run(nap((1, ok), (2, lambda bench: finished(2)))) == 2
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line[:1] in ("1", "2")] == ["1", "2"]
    assert err.splitlines()[-1].startswith("python -m bench.nap: error: 2 of 2 records are in no file: cannot write ")
    assert err.splitlines()[-1].endswith("No space left on device")


def test_more_tables_have_the_same_rows_and_a_footer_ends_them(capsys):
    more = {"sizes again": (Column("n", lambda record, _: str(record.shape["n"])),)}
    assert run(nap((7, lambda bench: finished(7)), more_tables=more, footer=lambda records: ["the end"])) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("sizes again")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == ["n", "7"]
    assert lines.index("the end") > at


def test_json_keeps_what_only_this_command_records_and_judges_it_anew(capsys, runs):
    assert run(nap((1, ok)), "--format", "json") == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["phases_s"] == {"asleep": 0.25}
    assert (record["tokens_per_s"], record["mfu"], record["hfu"]) == (2000, 0.04, 0.08)
    (stored,) = commands.lines_of(commands.run_files(runs)[0])[1:]
    assert "hfu" not in stored
    assert stored["hardware_flops"] == 2 * 10**11


def test_csv_has_the_judged_columns(capsys):
    assert run(nap((1, ok)), "--format", "csv", "-q") == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (float(row["hfu"]), float(row["tokens_per_s"])) == (0.08, 2000)


def fails(bench):
    raise RuntimeError("it broke\nat length")


def no_memory(bench):
    raise MemoryError


def test_a_row_that_raises_fails_alone(capsys, runs):
    assert run(nap((1, fails), (2, no_memory), (3, lambda bench: finished(3)))) == 1
    out = capsys.readouterr().out
    assert "nap 1 fp32 torch: failed: RuntimeError: it broke\n" in out
    assert "nap 2 fp32 torch: skipped: out of memory\n" in out
    found = [record.status for record in load_run(commands.run_files(runs)[0]).records]
    assert found == ["failed", "skipped", "ok"]


def test_no_row_is_measured_where_the_gpu_keeps_an_error(capsys, runs, monkeypatch):
    usable = [True, False]
    monkeypatch.setattr(runner, "release", lambda device: usable.pop(0))
    assert run(nap((1, ok), (2, ok)), "--format", "json") == 1
    first, second = json.loads(capsys.readouterr().out)["records"]
    assert (first["status"], second["status"], second["reason"]) == ("ok", "failed", runner.DEVICE_LOST)


def test_rows_that_cannot_run_are_kept_with_their_reason_unless_all_are(capsys, runs):
    assert run(nap((1, "too large"), (2, ok))) == 0
    assert load_run(commands.run_files(runs)[0]).records[0].reason == "too large"
    capsys.readouterr()
    assert run(nap((1, "too large"), (2, "too small"))) == 2
    assert capsys.readouterr().err == "python -m bench.nap: error: nap of 1: too large (and 1 more)\n"
    assert len(commands.run_files(runs)) == 1


def interrupted(bench):
    raise KeyboardInterrupt


def test_ctrl_c_keeps_and_shows_what_was_finished(capsys, runs):
    assert run(nap((1, ok), (2, interrupted), (3, ok))) == 130
    out, err = capsys.readouterr()
    assert "interrupted: what was finished is kept" in err
    assert [line.split()[0] for line in out.splitlines() if line[:1] in ("1", "2", "3")] == ["1"]
    assert [record.case for record in load_run(commands.run_files(runs)[0]).records] == ["1"]


def test_a_spent_budget_starts_no_further_row(capsys, runs):
    seen = []

    def slow(bench):
        seen.append(bench.left_s())
        time.sleep(0.3)
        return finished(1)

    assert run(nap((1, slow), (2, fails)), "--budget", "0.25") == 0
    assert [record.reason for record in load_run(commands.run_files(runs)[0]).records][
        1
    ] == "the budget of 0.25 s is spent"
    assert 0 < seen[0] <= 0.25  # less than a second is shared by no others


def test_a_plot_is_drawn_and_nothing_is_saved_where_that_is_asked(capsys, runs, tmp_path):
    assert run(nap((1, ok)), "--no-save", "--plot", str(tmp_path / "nap.png"), "--theme", "dark") == 0
    assert matplotlib.image.imread(tmp_path / "nap.png")[0, 0, 0] == pytest.approx(0.09, abs=0.01)
    assert (tmp_path / "nap.png").read_bytes().startswith(b"\x89PNG")
    assert commands.run_files(runs) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-save", "--output", "x"], "exclude each other"),
        (["--gpu", "nonsense"], "nonsense"),
        (["--plot", "x.txt"], "suffix"),
        (["--budget", "0"], "0.001 to 1e9"),
        (["--fill", "zeros"], "unrecognized"),
    ],
)
def test_bad_options_take_one_line(capsys, words, said):
    assert run(nap((1, ok)), *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


def test_verbose_says_what_the_command_says_of_a_row(capsys):
    assert run(nap((1, ok), describe=lambda record: [f"slept {record.median_s} s"]), "-v") == 0
    assert "slept 0.25 s" in capsys.readouterr().err
