"""Finished rows are saved when a run ends early: Ctrl-C, kill -9, a full disk."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bench
from bench import __main__ as command
from bench.harness import loop
from bench.harness.calibrate import calibration
from bench.harness.measure import measure_row as row_protocol
from results.record import Record
from results.store.runfile import RunWriter, load_run
from tests.bench import commands
from tests.bench.process_checks import usual_signals

MANY_ROWS = ("elementwise", "--op", "relu,add", "--dtype", "fp32", "--shape", "1024:65536:1024")
ROWS = 2 * 64


pytestmark = pytest.mark.usefixtures("quick")


def start_many_rows(*words):
    family, *rest = MANY_ROWS
    return commands.start(f"bench.{family}", *rest, "--device", "cpu", *words)


def wait_for(condition, process, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.exhaustive
def test_a_killed_run_keeps_every_finished_record(runs):
    process = start_many_rows("-q")

    def finished():
        return sum(path.read_bytes().count(b"\n") - 1 for path in commands.run_files(runs))

    wait_for(lambda: finished() >= 3, process)
    seen = finished()
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    (saved,) = commands.run_files(runs)
    run = load_run(saved)
    assert seen <= len(run.records) < ROWS
    assert run.problems == ()
    assert [record.case for record in run.records] == [
        str(1024 * (i + 1)) for i in range(len(run.records))
    ]
    assert {record.status for record in run.records} == {"ok"}

    code, out, _ = commands.show(saved)
    assert code == 0
    assert len(re.findall(r"^relu +\d+ +fp32 +torch ", out, re.MULTILINE)) == len(run.records)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_print_and_save_finished_rows(runs, number):
    process = start_many_rows()
    while not process.stderr.readline().startswith("[3/"):
        assert process.poll() is None
    os.killpg(process.pid, number)
    code, out, err = commands.finish(process)
    assert code == 130
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert "Traceback" not in err

    (saved,) = commands.run_files(runs)
    records = load_run(saved).records
    assert 2 <= len(records) < ROWS
    rows = re.findall(r"^relu +(\d+) +fp32 +torch ", out, re.MULTILINE)
    assert rows == [record.case for record in records]
    assert out.splitlines()[-1] == f"saved: {saved}"


def interrupt_in_row(monkeypatch, number):
    """Interrupt the measurement of the row with this index."""
    prepare, seen = row_protocol.prepare, []

    def interrupted(*arguments):
        seen.append(None)
        if len(seen) > number:
            raise KeyboardInterrupt
        return prepare(*arguments)

    monkeypatch.setattr(row_protocol, "prepare", interrupted)


@pytest.mark.exhaustive
def test_an_interrupted_run_is_still_plotted(capsys, runs, tmp_path, monkeypatch):
    interrupt_in_row(monkeypatch, 1)
    assert (
        commands.here("matvec", "--op", "matvec", "--shape", "16,32", "--plot", tmp_path / "a.svg")
        == 130
    )
    assert (tmp_path / "a.svg").stat().st_size > 0


def test_an_interruption_in_the_first_row_is_no_error(capsys, runs, tmp_path, monkeypatch):
    interrupt_in_row(monkeypatch, 0)
    assert (
        commands.here("matvec", "--op", "matvec", "--shape", "16,32", "--plot", tmp_path / "a.svg")
        == 130
    )
    out, err = capsys.readouterr()
    assert "no row was measured" in out
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert load_run(commands.run_files(runs)[0]).records == ()


def test_an_interruption_after_a_wrong_result_exits_with_130(capsys, monkeypatch):
    def measure(row, *_):
        if row.case.name == "32x32":
            raise KeyboardInterrupt
        return row.blank()

    monkeypatch.setattr(loop, "measure_row", measure)
    assert commands.here("matvec", "--op", "matvec", "--shape", "16,32", "--no-save") == 130


def test_ctrl_c_while_calibrating_is_one_line_and_leaves_no_run(capsys, runs, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration.MeasuredCeilings, "complete", interrupted)
    assert commands.here("matvec", "--op", "matvec", "--shape", "16") == 130
    assert capsys.readouterr() == ("", "python -m bench.matvec: error: interrupted\n")
    assert commands.run_files(runs) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads from /proc how far a process has come")
def test_ctrl_c_while_torch_loads_is_one_line(runs):
    process = start_many_rows()
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(lambda: "libtorch" in maps.read_text(), process)
    os.killpg(process.pid, signal.SIGINT)
    assert commands.finish(process) == (130, "", "interrupted before anything was measured\n")
    assert commands.run_files(runs) == []


def run_to_end(text):
    """Run a program that signals itself; return exit code, stdout and stderr."""
    with usual_signals():
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=commands.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ctrl_c_before_the_arguments_are_read_is_one_line():
    text = (
        "import os, signal, sys; sys.argv = ['-m']; import bench; os.kill(os.getpid(), "
        "signal.SIGINT)"
    )
    assert run_to_end(text) == (130, "", "interrupted before anything was measured\n")


def test_ctrl_c_after_the_last_line_changes_nothing():
    """Libraries that clean up at exit would print their own traceback."""
    text = (
        "import os, signal, sys; from bench import matmul as m; from bench.harness.cli.main "
        "import main\n"
        "sys.argv = ['bench.matmul', '--shape', '0']\n"
        "code = main(m.__file__, m.__doc__, m.EXAMPLES, m.OPS, m.OPTIONS)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(code)"
    )
    code, _, err = run_to_end(text)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.exhaustive
def test_an_ignored_ctrl_c_stays_ignored(runs):
    """A shell starts background jobs of a script with SIGINT ignored."""
    process = start_many_rows_ignoring_interrupts()
    while not process.stderr.readline().startswith("[2/"):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    code, _, _ = commands.finish(process)
    assert code == 0
    assert len(load_run(commands.run_files(runs)[0]).records) == 4


def start_many_rows_ignoring_interrupts():
    command = (
        f"trap '' INT; exec {sys.executable} -m bench.matvec --op matvec --shape "
        f"16,32,48,64 --device cpu"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        ["sh", "-c", command], cwd=commands.ROOT, start_new_session=True, **pipes
    )


@pytest.fixture
def handler():
    before = {number: signal.signal(number, usual) for number, usual in bench.SIGNALS.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("others", [signal.SIG_IGN, lambda number, frame: None])
def test_signal_handlers_of_the_caller_are_kept(number, others):
    signal.signal(number, others)
    bench.leave_when_interrupted()
    assert signal.getsignal(number) is others


@pytest.mark.usefixtures("handler")
def test_a_command_called_by_a_program_restores_its_handlers(capsys):
    assert commands.here("matvec", "--op", "matvec", "--shape", "16", "--no-save") == 0
    assert {number: signal.getsignal(number) for number in bench.SIGNALS} == bench.SIGNALS


@pytest.fixture
def full_disk(monkeypatch):
    """Fill the disk after the first record of a run."""
    write, lines = os.write, []

    def full_after_one(descriptor, data):
        if re.match(rb'{"kind": ?"record"', bytes(data)):
            lines.append(bytes(data))
            if len(lines) > 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full_after_one)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_still_shows_the_measured_rows(capsys, runs):
    assert commands.here("matvec", "--op", "matvec", "--shape", "16,32,48") == 2
    out, err = capsys.readouterr()
    (saved,) = commands.run_files(runs)
    assert len(load_run(saved).records) == 1
    last_line = err.splitlines()[-1]
    assert last_line.startswith("python -m bench.matvec: error: 2 of 3 records")
    assert f"cannot write {saved}: No space left on device" in last_line
    assert not re.search("^saved: ", out + err, re.MULTILINE)
    assert re.findall(r"^matvec +(\d+)x", out, re.MULTILINE) == ["16", "32", "48"]


@pytest.fixture
def removal(monkeypatch, tmp_path):
    """Returns a function that has the directory of the run file removed, or replaced by a file,
    after the first record.
    """
    directory = tmp_path / "removed" / "runs"

    def remove(by_a_file=False):
        keep = RunWriter.append

        def append(writer, line):
            keep(writer, line)
            if isinstance(line, Record) and directory.is_dir():
                shutil.rmtree(directory)
                if by_a_file:
                    directory.write_text("in the way")

        monkeypatch.setattr(RunWriter, "append", append)
        return directory / "a.jsonl"

    return remove


COMPARE = ("compare", "--op", "relu", "--dtype", "fp32", "--shape", "1024", "--rounds", "6")
REMOVED = {
    "matvec": ("matvec", "--op", "matvec", "--shape", "16,32"),
    "compare": (*COMPARE, "--provider", "torch,torch"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REMOVED)
def test_a_run_file_removed_during_the_run_is_written_again(capsys, removal, name):
    path = removal()
    run = command.main if name == "compare" else lambda words: commands.here(*words)
    assert run([*REMOVED[name], "--output", str(path)]) == 0
    assert f"saved: {path}\n" in capsys.readouterr().out
    assert [record.status for record in load_run(path).records] == ["ok", "ok"]


@pytest.mark.parametrize("name", REMOVED)
def test_a_run_file_that_cannot_be_written_again_is_an_error(capsys, removal, name):
    path = removal(by_a_file=True)
    run = command.main if name == "compare" else lambda words: commands.here(*words)
    assert run([*REMOVED[name], "--output", str(path)]) == 2
    out, err = capsys.readouterr()
    assert "saved: " not in out
    assert err.splitlines()[-1].endswith(
        f"error: 2 of 2 records were not saved: cannot write {path}: a parent is a file; "
        f"choose another path"
    )
