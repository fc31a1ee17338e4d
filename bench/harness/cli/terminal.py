"""What a person sees of a run while it goes on and when it is done. Data to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from results.record import Environment, Record
from results.show.table import name_of, render_table, table_of_run
from results.show.terminal import OutputError, print_out, printable, say

if TYPE_CHECKING:
    from rich.console import Console


Render = Callable[[Environment, Sequence[Record], "Console"], None]
"""Prints a run as a table for people."""

Document = Callable[[Environment, Sequence[Record]], Mapping[str, Any]]
"""Returns a run as the object that `--format json` prints."""


class Progress:
    """A progress bar on stderr: a live one on a terminal, a line a row elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        """Show nothing yet."""
        self._quiet = quiet
        self._total = self._done = 0
        self._left_s: Callable[[], float | None] = lambda: None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Start the live bar where there is a terminal."""
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            # A thread that redraws the bar would run in the middle of a sample: it is drawn between rows only.
            self._bar = Bar(
                *columns,
                TimeElapsedColumn(),
                console=Console(stderr=True, emoji=False),
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def expect(self, rows: int, left_s: Callable[[], float | None] = lambda: None) -> None:
        """Say how many rows there will be; `left_s` returns the seconds left of a budget, None without one."""
        self._total, self._left_s = rows, left_s
        if self._bar is not None:
            self._bar.update(self._task, total=rows, refresh=True)

    def say(self, text: str) -> None:
        """Show what is going on now."""
        left_s = self._left_s()
        left = "" if left_s is None else f", {max(0.0, left_s):.0f} s left"
        if self._bar is not None:
            self._bar.update(self._task, description=printable(f"{text}{left}"), refresh=True)
        elif not self._quiet:
            say(f"[{self._done + 1}/{self._total}{left}] {text}" if self._total else text)

    def advance(self) -> None:
        """Count one row as done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, refresh=True)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)


def print_run(
    environment: Environment,
    records: Sequence[Record],
    output_format: str,
    baseline: str | None = None,
    saved: Path | None = None,
    render: Render | None = None,
    document: Document | None = None,
) -> None:
    """Print a finished or interrupted run to stdout in the format asked for, and where it was `saved`.

    Args:
        environment: of the run.
        records: what was measured.
        output_format: `table`, or another of `results.show.terminal.TABLE_FORMATS`.
        baseline: provider that a table sets the others against.
        saved: where the run is kept.
        render: prints the table in place of that of ops.
        document: what JSON holds, in place of what it holds of ops.
    """
    kept = f"; the run is kept in {saved}" if saved else ""
    try:
        text = run_text(environment, records, output_format, baseline, render, document)
    except OutputError as error:  # rich writes to a stdout without a buffer while it captures
        raise OutputError(f"{error}{kept}") from None
    print_out(text, kept)
    if saved is not None:
        print_path("saved", saved, output_format)


def run_text(
    environment: Environment,
    records: Sequence[Record],
    output_format: str,
    baseline: str | None = None,
    render: Render | None = None,
    document: Document | None = None,
) -> str:
    """Return a run in the format asked for; a table is as wide as stdout is, and colored where that is a terminal."""

    def draw(console: Console) -> None:
        (render or render_table)(environment, records, console)
        for line in baseline_lines(records, baseline):
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    content = None if document is None else lambda: document(environment, records)
    return table_of_run(environment, records, draw=draw, content=content).render(output_format)


def print_path(title: str, path: Path, output_format: str) -> None:
    """Say where something was written: below the table, but on stderr where stdout holds data."""
    line = f"{title}: {path}"
    if output_format == "table":
        print_out(printable(line) + "\n")
    else:
        say(line)


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
        lines.append(f"{name_of(record)}: {ratio:.3g} x the time of {baseline}")
    return lines


def _case_key(record: Record) -> tuple[str, str, str, str | None]:
    return record.op, record.dtype, record.case, record.fill
