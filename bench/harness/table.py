"""What a person sees of a run while it goes on and when it is done. Data to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from results.record import Environment, Record
from results.table import WIDE, format_time, printable, render_table

if TYPE_CHECKING:
    from rich.console import Console


def console_of(stream: TextIO) -> Console:
    """Return a console for `stream`; one that is no terminal gets whole lines, whatever their length."""
    from rich.console import Console

    return Console(file=stream) if stream.isatty() else Console(file=stream, width=WIDE)


class Progress:
    """A progress bar on stderr: a live one on a terminal, a line a row elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        """Show nothing yet."""
        self._quiet = quiet
        self._total = self._done = 0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Start the live bar where there is a terminal."""
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def expect(self, rows: int) -> None:
        """Say how many rows there will be."""
        self._total = rows
        if self._bar is not None:
            self._bar.update(self._task, total=rows)

    def say(self, text: str) -> None:
        """Show what is going on now."""
        if self._bar is not None:
            self._bar.update(self._task, description=printable(text))
        elif not self._quiet:
            print(f"[{self._done + 1}/{self._total}] {text}" if self._total else text, file=sys.stderr, flush=True)

    def advance(self) -> None:
        """Count one row as done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        else:
            print(printable(text), file=sys.stderr, flush=True)


def describe(record: Record) -> str:
    """Return how one row was verified and timed, in a line."""
    if record.status != "ok":
        return f"{_name(record)}: {record.status}: {record.reason}"
    checked = record.verified.get("after", {})
    return (
        f"{_name(record)}: {len(record.samples_s)} samples of {record.launches_per_sample} launches "
        f"by {record.method}, {record.cache} ({record.copies} copies), first call {format_time(record.first_call_s)}, "
        f"host latency {format_time(record.host_latency_s)}, verified {checked.get('checked_elements')} of "
        f"{checked.get('elements')} elements, largest error {checked.get('max_error_of_bound', 0):.2g} of the bound"
    )


def _name(record: Record) -> str:
    return f"{record.op} {record.case} {record.dtype} {record.provider}"


def print_run(
    environment: Environment,
    records: Sequence[Record],
    output_format: str,
    baseline: str | None = None,
    saved: Path | None = None,
) -> None:
    """Print a finished or interrupted run to stdout in the format asked for, and where it was saved."""
    if output_format == "table":
        console = console_of(sys.stdout)
        render_table(environment, records, console)
        for line in baseline_lines(records, baseline):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    else:
        from results.export import render

        sys.stdout.write(render(environment, records, output_format))
    sys.stdout.flush()
    if saved is not None:
        print(f"saved: {saved}", file=sys.stdout if output_format == "table" else sys.stderr)


def baseline_lines(records: Sequence[Record], baseline: str | None) -> list[str]:
    """Return a line for each measured row that says how its time stands to the baseline's; no verdict is given."""
    if baseline is None:
        return []
    base = {_case_key(r): r for r in records if r.provider == baseline and r.median_s}
    lines = []
    for record in records:
        against = base.get(_case_key(record))
        if record.provider == baseline or record.median_s is None or against is None or against.median_s is None:
            continue
        ratio = record.median_s / against.median_s
        lines.append(f"{_name(record)}: {ratio:.3g} x the time of {baseline}")
    return lines


def _case_key(record: Record) -> tuple[str, str, str]:
    return record.op, record.dtype, record.case
