"""One case in a process of its own: to repeat it where memory and code lie elsewhere, and because code may crash.

All providers of a case take turns in one process, a user's functions too: in processes of their own they would also
differ by what tells one process from another. A process that dies takes the case with it, so it says beforehand, in a
few bytes shared with its parent, whose turn it is. The one that broke it is kept as `failed`, and the others go on.
"""

from __future__ import annotations

import argparse
import mmap
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from bench.harness.arguments import UsageError
from bench.harness.interrupt import INTERRUPTED
from bench.harness.op import Case
from results.record import Record
from results.store import StoreError, load_run

VALUES = ("device", "gpu", "fill", "cache", "margin", "rounds")
SEED_STEP = 1_000_003
"""Between the seeds of two processes: far more than a run has cases, each of which takes a seed of its own."""

GOOD = (0, 1)
"""Exit codes of a process that measured: with or without a regression."""

POLL_S = 0.05
"""The parent looks so seldom at the process that it does not disturb it."""

KILLED_AFTER_S = 5.0
"""Time to leave in peace, after an interruption."""

NOBODY = 255
"""In the place of a provider's number: the process itself is at work."""


class TurnFile:
    """Says, in a file shared by two processes, whose turn it is; a turn costs well below a microsecond to announce."""

    def __init__(self, path: Path) -> None:
        """Share `path`, which has two bytes."""
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 2)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make the file, with nobody's turn."""
        path.write_bytes(bytes([NOBODY, 0]))
        return cls(path)

    def announce(self, place: int) -> None:
        """Say that the provider at a place has its turn from now on."""
        self._shared[0] = place if place < NOBODY else NOBODY
        self._shared[1] = (self._shared[1] + 1) % 256

    def read(self) -> bytes:
        """Return the state, which changes with each turn."""
        return self._shared[:]

    @property
    def place(self) -> int | None:
        """The provider whose turn it is; None where it is nobody's."""
        return None if self._shared[0] == NOBODY else self._shared[0]


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    records: Sequence[Record]
    code: int
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
    """Run `python -m bench` with these arguments in a new process until it ends, or nothing moves in it.

    Args:
        words: as `child_arguments` returns them; the files are added.
        timeout_s: longest time that one provider may take for a turn, its first call and its check.

    Raises:
        KeyboardInterrupt: this process or that one was interrupted.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, turn_file = Path(folder) / "run.jsonl", Path(folder) / "turn"
        turns = TurnFile.create(turn_file)
        command = [sys.executable, "-m", "bench", *words, "--output", str(output), "--turn-file", str(turn_file)]
        with (Path(folder) / "errors").open("w+b") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                has_hung = _wait(process, turns, timeout_s)
            finally:
                _end(process)
            errors.seek(0)
            message = last_line(errors.read().decode("utf-8", "replace"))
        code = process.returncode
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        reason = f"no turn ended for {timeout_s:g} s; --timeout allows more" if has_hung else _how(code, message)
        return Ended(_records(output), code, turns.place, reason)


def _wait(process: subprocess.Popen[bytes], turns: TurnFile, timeout_s: float) -> bool:
    """Wait for a process; return whether it hung, so that it was killed."""
    state, since = turns.read(), time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_S)
        if (now := turns.read()) != state:
            state, since = now, time.monotonic()
        elif time.monotonic() - since > timeout_s:
            process.kill()
            process.wait()
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process that is still there end: one that was interrupted with this one is given a moment."""
    if process.poll() is not None:
        return
    try:
        process.wait(KILLED_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _how(code: int, message: str) -> str:
    """Return how a process ended, in words."""
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}" + (f": {message}" if message else "")


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
