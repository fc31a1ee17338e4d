"""What `python -m roofline` says where its output is full, closed, or not read to the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from results.show.terminal import OutputError, print_out

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m roofline` with arguments and redirections as a shell takes them."""
    text = f"{sys.executable} -m roofline {line}"
    return subprocess.run(["sh", "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.sampled(1)
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["gpus", "gpus t4", "gpus --format json", "gpus --format csv", "--help"])
def test_a_full_disk_is_one_line_and_exit_2(arguments: str) -> None:
    done = shell(f"{arguments} >{FULL}")
    prog = "python -m roofline gpus" if "gpus" in arguments else "python -m roofline"
    assert done.stderr == f"{prog}: error: cannot write the output: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arguments", ["gpus", "gpus t4", "gpus --format md", "gpus --help"])
def test_a_closed_output_is_one_line_and_exit_2(arguments: str) -> None:
    done = shell(f"{arguments} >&-")
    assert done.stderr.endswith(": error: cannot write the output: stdout is closed\n")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


@pytest.mark.parametrize("redirection", ["2>&-", f"2>{FULL}"])
def test_an_error_that_nobody_reads_keeps_its_code_and_stays_off_stdout(redirection: str) -> None:
    done = shell(f"gpus no-such {redirection}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_closed_stdout_is_an_error_with_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="stdout is closed; the run is kept"):
        print_out("x", kept="; the run is kept")
