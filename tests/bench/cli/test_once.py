"""Runs whose rows are not ops: what is saved, printed and returned for each outcome."""

import io
import os
import sys
import time
from dataclasses import replace

import pytest

from bench.harness import loop
from bench.harness.cli.arguments import UsageError
from bench.harness.cli.main import device_of
from bench.harness.device.device import cpu_device
from bench.harness.loop import measure_once
from bench.harness.run import Progress
from bench.harness.settings import MACHINE, SAVING, Settings
from results.record import Record
from results.show.options import add, given, parameters
from results.show.terminal import Parser
from results.store.runfile import load_run
from tests.bench import commands
from tests.bench.fake_clock import set_clock


@pytest.fixture(autouse=True)
def ceilings(runs):
    commands.keep_ceilings(runs)


def blank(size, reason=None):
    work = {"flops": 10**11 * size, "bytes_read": 8, "bytes_written": 8}
    names = {
        "op": "nap",
        "provider": "torch",
        "dtype": "fp32",
        "shape": {"n": size},
        "case": str(size),
    }
    return Record(**names, status="skipped", reason=reason, **work)


def ok(record, run, rows):
    return replace(
        record,
        status="ok",
        median_s=0.25,
        samples_s=(0.25,),
        launches_per_sample=1,
        ci95_s=(0.25, 0.25),
    )


def fails(record, run, rows):
    raise RuntimeError("it broke\nat length")


def no_memory(record, run, rows):
    raise MemoryError


def interrupted(record, run, rows):
    raise KeyboardInterrupt


def run(*rows, words=()):
    parser = Parser()
    add(parser, parameters(Settings), (*MACHINE, *SAVING))
    return measure_once(
        given(Settings, parser.parse_args(words)),
        words,
        "transfer",
        cpu_device(commands.THREADS),
        rows,
        (),
    )


def outcomes(runs):
    (path,) = commands.run_files(runs)
    return [(record.status, record.reason) for record in load_run(path).records]


def test_a_row_that_raises_fails_alone(capsys, runs):
    assert run((blank(1), fails), (blank(2), no_memory), (blank(3), ok)).conclude() == 1
    assert "[3/3] nap 3 fp32 torch" in capsys.readouterr().err
    assert outcomes(runs) == [
        ("failed", "RuntimeError: it broke"),
        ("skipped", "out of memory"),
        ("ok", None),
    ]


def with_process(record, run, rows):
    return replace(ok(record, run, rows), options={"pid": os.getpid()})


def test_rows_after_a_lost_gpu_run_in_new_processes(monkeypatch):
    usable = iter([True, False, False, False])
    monkeypatch.setattr(loop, "release", lambda device: next(usable))
    measured = run(*((blank(size), with_process) for size in (1, 2, 3)), (blank(4), fails)).records
    assert [record.status for record in measured] == ["ok", "ok", "ok", "failed"]
    assert measured[3].reason == "RuntimeError: it broke"
    first, *others = [record.options["pid"] for record in measured[:3]]
    assert first == os.getpid()
    assert len({first, *others}) == 3


def test_impossible_rows_are_saved_with_a_reason_unless_all_are(runs):
    assert run((blank(1, "too large"), ok), (blank(2), ok)).conclude() == 0
    assert outcomes(runs) == [("skipped", "too large"), ("ok", None)]
    with pytest.raises(UsageError, match=r"nap fp32 1: too large \(and 1 more\)"):
        run((blank(1, "too large"), ok), (blank(2, "too small"), ok))
    assert len(commands.run_files(runs)) == 1


def test_ctrl_c_saves_and_prints_finished_rows(capsys, runs):
    assert run((blank(1), ok), (blank(2), interrupted), (blank(3), ok)).conclude() == 130
    assert "interrupted" in capsys.readouterr().err
    assert outcomes(runs) == [("ok", None)]


def test_a_spent_budget_starts_no_further_row(runs):
    shares = []

    def slow(record, run, rows):
        shares.append(run.share_s(rows))
        time.sleep(0.3)
        shares.append(run.share_s(rows))
        return ok(record, run, rows)

    assert run((blank(1), slow), (blank(2), fails), words=("--budget", "0.25")).conclude() == 0
    assert outcomes(runs) == [("ok", None), ("skipped", "the budget of 0.25 s is spent")]
    assert 0 < shares[0] <= 0.25  # less than a second is shared by no others
    assert shares[1] == 0


def test_time_left_is_estimated_without_a_budget(capsys, monkeypatch):
    clock = iter((0.0, 10.0))
    set_clock(monkeypatch, lambda: next(clock))
    progress = Progress(quiet=False)
    progress.expect(3)
    progress.say("one")
    progress.advance()
    progress.say("two")
    assert capsys.readouterr().err == "[1/3] one\n[2/3, about 20 s left] two\n"


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "shown"),
    [(True, False, "loading torch"), (True, True, ""), (False, False, "")],
)
def test_a_terminal_says_that_torch_is_loading(monkeypatch, is_terminal, quiet, shown):
    stderr, seen = io.StringIO(), []
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(
        "bench.harness.device.device.detect", lambda name: seen.append(stderr.getvalue())
    )
    device_of(Settings(quiet=quiet))
    assert seen == [shown]
    assert stderr.getvalue().endswith("\033[K" if shown else "")
