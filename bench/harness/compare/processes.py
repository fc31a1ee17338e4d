"""Measures one case in a process of its own, because code may crash, and to repeat it with memory and code elsewhere.

All providers of a case take turns in one process, a user's functions too: in two processes they would also differ by
where each process has its code and memory. Where the process dies, its heartbeat says whose code was running: that
provider is kept as `failed`, and the others are measured again without it.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.harness.compare.case import all_without, without_baseline
from bench.harness.compare.phases import NAMES
from bench.harness.compare.plan import Conditions
from bench.harness.compare.rounds import Share
from bench.harness.isolate.heartbeat import Heartbeat, Watchdog
from bench.harness.isolate.pool import WorkerError, how_it_ended, started
from bench.harness.op import Case
from results.record import Record
from results.store.runs import StoreError, load_run

SEED_STEP = 1_000_003
"""Between the seeds of two processes: far more than a run has cases, each of which takes a seed of its own."""

MEASURED = 0
"""Exit code of a process that has kept a record of every provider, whatever became of them."""

CANNOT = (2, 3, -9)
"""Exit codes of a process that could not measure though no provider is to blame: the request is impossible, the device
is gone, or the system ended it by SIGKILL (9) because memory ran out."""

OVERTIME_S = 3.0
"""A call that is still going on when the budget is spent, and has taken so long, is ended."""

MOST_OF_SHARE = 0.5
"""Largest share of its case's time that one call may take, and `OVERTIME_S` at least, so that the others have time
too."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    records: Sequence[Record]
    code: int | None
    place: int | None
    """The provider whose code was running, where it did not end well."""
    reason: str
    """What happened, for that provider."""
    status: str = "failed"
    """What becomes of its record."""


@dataclass(frozen=True)
class CallLimit:
    """How long one call may take."""

    seconds: float
    advice: str = "--timeout allows more"
    deadline: float | None = None
    """Reading of `time.perf_counter` when the budget is spent."""
    tell: Callable[[str], object] = lambda name: None
    """Is told each phase of the process."""

    @classmethod
    def of(cls, timeout_s: float, share: Share, now: float) -> CallLimit:
        """Return the limit for a process that is started now, for a case with this share."""
        until = share.until(now)
        allowed_s = math.inf if until is None else max(OVERTIME_S, MOST_OF_SHARE * (until - now))
        if timeout_s <= allowed_s:
            return cls(timeout_s, deadline=share.deadline)
        return cls(allowed_s, "a larger --budget allows more", share.deadline)

    def check(self, heartbeat: Heartbeat) -> Callable[[], None]:
        """Return what is called again and again: it raises `WorkerError` when a call of the process takes too long."""
        watchdog, overtime = Watchdog(heartbeat, self.seconds), Watchdog(heartbeat, OVERTIME_S)
        phase = -1

        def check() -> None:
            nonlocal phase
            if phase != (phase := heartbeat.phase):
                self.tell(NAMES[phase % len(NAMES)])
            if watchdog.is_over:
                raise WorkerError(f"a call did not end within {self.seconds:.3g} s; {self.advice}")
            if overtime.is_over and self.deadline is not None and time.perf_counter() > self.deadline:
                reason = "the budget was spent in a call that had not ended; a larger --budget allows more"
                raise WorkerError(reason, "skipped")

        return check


def child_arguments(
    conditions: Conditions, op: str, case: Case, names: Sequence[str], seed: int, share: Share, now: float
) -> list[str]:
    """Return the arguments that measure one case here in another process, the first provider being the baseline.

    Args:
        conditions: those of the whole comparison.
        op: how `--op` asks for the op.
        case: the case.
        names: providers, the baseline first.
        seed: of this process.
        share: what this case has of the whole comparison.
        now: reading of `time.perf_counter`: the start of the process counts against its share.
    """
    words = ["compare", "--quiet", "--format", "json", "--seed", str(seed), "--processes", "1"]
    words += ["--op", op, "--dtype", case.dtype, "--shape", "x".join(map(str, case.shape.values()))]
    words += ["--provider", ",".join(names)]
    for name, value in case.options.items():
        words += [f"--{name}", str(value)]
    words += ["--table-rows", str(share.rows)]
    if share.deadline is not None:
        words += ["--deadline", repr(share.deadline), "--case-deadline", repr(share.until(now))]
    for name, value in asdict(conditions).items():
        if value is not None and name != "timeout":  # the limit of a call is watched from here
            words += [f"--{name}", str(value)]
    return words


def run_process(words: Sequence[str], limit: CallLimit) -> Ended:
    """Run `python -m bench` with these arguments in a new process until it ends, or a call in it does not.

    Args:
        words: as `child_arguments` returns them; the file of the records is added.
        limit: longest time of one call, or of the import of a user's file.

    Raises:
        KeyboardInterrupt: this process was interrupted.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "run.jsonl"
        place = None
        try:
            with started([*words, "--output", str(output)]) as process:
                try:
                    process.wait(limit.check(process.heartbeat))
                finally:
                    place = process.heartbeat.place
                code, message = process.exit_code(), last_line(process.output) if place is None else ""
        except WorkerError as error:
            return Ended((), None, place, str(error), error.status)
        records = _records(output) if code == MEASURED else ()
        becomes = "skipped" if place is None and code in CANNOT else "failed"
        return Ended(records, code, place, how(code, message), becomes)


def how(code: int | None, message: str) -> str:
    """Return how a process ended, in words."""
    if code is None or code < 0:
        return how_it_ended(code)
    if code in CANNOT and message:
        return message
    return how_it_ended(code) + (f": {message}" if message else "")


@contextmanager
def unheard() -> Iterator[None]:
    """Discard everything that users' functions print."""
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
    conditions: Conditions,
    op: str,
    case: Case,
    names: Sequence[str],
    blanks: Sequence[Record],
    seed: int,
    share: Share,
    note: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], object] = lambda name: None,
) -> list[Record]:
    """Measure one case in a new process, and once more without the provider that broke it, as often as needed.

    Where the process could not measure and no provider is to blame, all records say why.

    Args:
        conditions: those of the whole comparison.
        op: how `--op` asks for the op.
        case: the case.
        names: providers as they are loaded, the baseline first.
        blanks: for each a record with its name in the table, for where there is nothing to keep.
        seed: of this process.
        share: what this case has of the whole comparison; that of a process that is run again is counted anew.
        note: is told why a case is measured again.
        tell: is told each phase of it.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    kept: dict[int, Record] = {}
    places = list(range(len(names)))
    while len(places) > 1 and 0 in places:
        now, left = time.perf_counter(), [blanks[place] for place in places]
        if share.is_spent(now):
            spent = all_without(left, "skipped", f"the budget of {conditions.budget:g} s is spent")
            return _in_order(kept | dict(zip(places, spent, strict=True)))
        words = child_arguments(conditions, op, case, [names[place] for place in places], seed, share, now)
        ended = run_process(words, replace(CallLimit.of(conditions.timeout, share, now), tell=tell))
        if len(ended.records) == len(places):
            kept |= {
                place: _renamed(record, blanks[place]) for place, record in zip(places, ended.records, strict=True)
            }
            return _in_order(kept)
        if ended.place is None or ended.place >= len(places):
            return _in_order(kept | dict(zip(places, all_without(left, ended.status, ended.reason), strict=True)))
        culprit = places.pop(ended.place)
        kept[culprit] = replace(blanks[culprit], status=ended.status, reason=ended.reason)
        if len(places) > 1 and 0 in places:
            note(f"{blanks[culprit].provider}: {ended.reason}; the others are measured again without it")
    for place in places:
        if place:
            kept[place] = without_baseline(blanks[place], kept[0])
        else:
            kept[place] = replace(blanks[place], status="skipped", reason="nothing to compare with: no other is left")
    return _in_order(kept)


def _in_order(records: Mapping[int, Record]) -> list[Record]:
    return [records[place] for place in sorted(records)]


def _renamed(record: Record, blank: Record) -> Record:
    return replace(record, provider=blank.provider)
