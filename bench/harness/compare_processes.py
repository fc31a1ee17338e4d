"""One case in a process of its own: to repeat it where memory and code lie elsewhere, and because code may crash.

All providers of a case take turns in one process, a user's functions too: in processes of their own they would also
differ by what tells one process from another. A process that dies takes the case with it, so it says beforehand, in a
few bytes shared with the command, whose turn it is. The one that broke it is kept as `failed`, and the others go on.
The command is not the parent of that process: what stands between may be killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.harness import expendable
from bench.harness.arguments import UsageError
from bench.harness.forked_worker import signal_in_words
from bench.harness.op import Case
from bench.harness.trusted import hold_clocks
from bench.harness.turn_file import POLL_S, Patience, TurnFile
from results.record import Record
from results.store import StoreError, load_run

VALUES = ("device", "gpu", "fill", "cache", "margin", "rounds")
SEED_STEP = 1_000_003
"""Between the seeds of two processes: far more than a run has cases, each of which takes a seed of its own."""

GOOD = (0, 1)
"""Exit codes of a process that measured: with or without a regression."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    records: Sequence[Record]
    code: int | None
    place: int | None
    """Whose turn it was, where it did not end well."""
    reason: str
    """What happened, for the one whose turn it was."""


def child_arguments(
    args: argparse.Namespace, case: Case, names: Sequence[str], seed: int, left_s: float | None
) -> list[str]:
    """Return the arguments that measure one case here in another process, the first provider being the baseline.

    Args:
        args: those of the whole comparison.
        case: the case.
        names: providers, the baseline first.
        seed: of this process.
        left_s: time that it may take; None without a budget.
    """
    words = ["compare", "--quiet", "--format", "json", "--seed", str(seed), "--processes", "1"]
    words += ["--op", case.op, "--dtype", case.dtype, "--shape", "x".join(map(str, case.shape.values()))]
    words += ["--provider", ",".join(names)]
    for name, value in case.options.items():
        words += [f"--{name}", str(value)]
    if left_s is not None:
        words += ["--budget", f"{max(left_s, 1e-3):.3f}"]
    for name in VALUES:
        if getattr(args, name, None) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    return words


def run_process(words: Sequence[str], timeout_s: float) -> Ended:
    """Run `python -m bench` with these arguments in a new process until it ends, or a call in it does not.

    Args:
        words: as `child_arguments` returns them; the files are added.
        timeout_s: longest time of one call, or of the import of a user's file.

    Raises:
        KeyboardInterrupt: this process was interrupted.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output, turn_file, status = folder / "run.jsonl", folder / "turn", folder / "status"
        turns = TurnFile.create(turn_file)
        between = [sys.executable, "-I", "-S", expendable.__file__, str(os.getpid()), str(status)]
        command = [*between, "-m", "bench", *words, "--output", str(output), "--turn-file", str(turn_file)]
        with (folder / "errors").open("w+b") as errors:
            # A session of its own: Ctrl-C and a signal to its process group stay where they come from.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            patience = Patience(turns, timeout_s)
            try:
                has_hung = _wait(process, patience)
            finally:
                _end(process)
            errors.seek(0)
            message = last_line(errors.read().decode("utf-8", "replace"))
        code = exit_code_of(status)
        is_done = code in GOOD
        reason = patience.reason if has_hung else how(code, message if turns.place is None else "")
        return Ended(_records(output) if is_done else (), code, turns.place, reason)


def _wait(process: subprocess.Popen[bytes], patience: Patience) -> bool:
    """Wait for a process; return whether a call in it took too long."""
    while process.poll() is None:
        time.sleep(POLL_S)
        if patience.is_over:
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what stands between, with it the process behind it, and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def exit_code_of(status: Path) -> int | None:
    """Return how a process ended, below 0 by a signal; None where what stands between ended first."""
    try:
        return os.waitstatus_to_exitcode(int(status.read_text()))
    except (OSError, ValueError):
        return None


def how(code: int | None, message: str) -> str:
    """Return how a process ended, in words."""
    if code is None:
        return "killed its parent process"
    if code < 0:
        return signal_in_words(-code)
    return f"ended the process with exit code {code}" + (f": {message}" if message else "")


@contextmanager
def unheard() -> Iterator[None]:
    """Let nothing that users' functions print get out, and let none of them take the measuring code's clocks."""
    hold_clocks()
    kept = [os.dup(fd) for fd in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for fd in (1, 2):
            os.dup2(nowhere, fd)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a user's code may have closed or replaced them
                stream.flush()
        for fd, before in zip((1, 2), kept, strict=True):
            os.dup2(before, fd)
            os.close(before)
        os.close(nowhere)


def _records(output: Path) -> Sequence[Record]:
    try:
        return load_run(output).records
    except StoreError:
        return ()


def last_line(text: str) -> str:
    """Return the last line of a message that is not empty, without the name of the program before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].split("error: ", 1)[-1][:200] if lines else ""


def records_of_case(
    args: argparse.Namespace,
    case: Case,
    names: Sequence[str],
    blanks: Sequence[Record],
    seed: int,
    left_s: float | None,
) -> list[Record]:
    """Measure one case in a new process, and once more without the provider that broke it, as often as needed.

    Args:
        args: those of the whole comparison.
        case: the case.
        names: providers as they are loaded, the baseline first.
        blanks: for each a record with its name in the table, for where there is nothing to keep.
        seed: of this process.
        left_s: time that the rounds may take; None without a budget.

    Raises:
        UsageError: the process could not measure, and no provider is to blame.
        KeyboardInterrupt: it was interrupted.
    """
    kept: dict[int, Record] = {}
    places = list(range(len(names)))
    while len(places) > 1 and 0 in places:
        ended = run_process(child_arguments(args, case, [names[place] for place in places], seed, left_s), args.timeout)
        if len(ended.records) == len(places):
            kept |= {
                place: _renamed(record, blanks[place]) for place, record in zip(places, ended.records, strict=True)
            }
            places = []
            break
        if ended.place is None or ended.place >= len(places):
            raise UsageError(ended.reason)
        culprit = places.pop(ended.place)
        kept[culprit] = replace(blanks[culprit], status="failed", reason=ended.reason)
    for place in places:
        broken = blanks[0].provider if place and 0 not in places else "the other provider"
        text = f"nothing to compare with: {broken} failed"
        kept[place] = replace(blanks[place], status="skipped", reason=text)
    return [kept[place] for place in range(len(names))]


def _renamed(record: Record, blank: Record) -> Record:
    return replace(record, provider=blank.provider)
