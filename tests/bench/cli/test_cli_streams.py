"""stdout and stderr that are not terminals: a full disk, a closed pipe, another encoding,
closed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from results.store.runfile import load_run
from tests.bench import commands


@pytest.fixture(autouse=True)
def ceilings(runs):
    commands.keep_ceilings(runs)


@pytest.fixture(params=[False, True], ids=["buffered", "unbuffered"])
def buffering(request, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if request.param:
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("buffering")
def test_a_full_disk_on_stdout_is_one_line_and_the_run_is_saved(runs):
    with Path("/dev/full").open("w") as full:
        code, _, err = commands.call("matmul", "--shape", "16", "-q", stdout=full)
    (saved,) = commands.run_files(runs)
    assert (code, err.count("\n")) == (2, 1)
    assert "No space left on device" in err
    assert str(saved) in err
    assert len(load_run(saved).records) == 1


@pytest.mark.exhaustive
def test_a_closed_pipe_changes_neither_run_nor_exit_code(runs, tmp_path):
    process = commands.start(
        "bench.matmul",
        "--shape",
        "16,32",
        "--device",
        "cpu",
        "--plot",
        tmp_path / "a.png",
        stderr=subprocess.STDOUT,
    )
    assert process.stdout.readline() == "[1/6] matmul 16x16x16 bf16 torch\n"
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    (saved,) = commands.run_files(runs)
    assert len(load_run(saved).records) == 2
    assert (tmp_path / "a.png").exists()


@pytest.mark.exhaustive
def test_output_is_ascii_if_the_terminal_is(runs, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, out, err = commands.call(
        "matmul", "--shape", "16", "-q", "--output", runs / "caf\xe9.jsonl"
    )
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "16x16x16" in out
    assert len(load_run(runs / "caf\xe9.jsonl").records) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "command", ["bench.matmul --shape 16 --device cpu", "bench suite", "bench list"]
)
def test_a_closed_stdout_is_rejected_before_measuring(runs, command):
    command = f"{sys.executable} -m {command} >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=commands.ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "stdout is closed" in done.stderr
    assert commands.run_files(runs) == []
