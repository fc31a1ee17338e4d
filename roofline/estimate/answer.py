"""Answers of estimates and how they are printed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from results.show.facts import facts_beside
from results.show.grid import WHOLE_WORDS, Column, html_of, print_grid, print_lines
from results.show.terminal import drawn, one_line
from results.show.units import COUNT_LETTERS, count, duration, gibibytes, number, percent, quantity

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]
"""Values by key, as in JSON: those of one machine and dtype."""

WRITERS: dict[str, Callable[[Any], str]] = {
    "bytes": partial(quantity, unit="B"),
    "count": count,
    "devices": partial(count, noun="device"),
    "letters": lambda value: quantity(value, "", COUNT_LETTERS) if value < 1e15 else number(value),
    "memory": gibibytes,
    "number": number,
    "percent": percent,
    "tera": lambda value: number(value / 1e12),
    "time": duration,
}
"""How a text writes a value, by the format of its field: `{seconds:time}`."""


class _Texts(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in WRITERS:
            return WRITERS[format_spec](value)
        return str(super().format_field(value, format_spec))


TEXTS = _Texts()


class Step(NamedTuple):
    """One step of the arithmetic."""

    label: str
    arithmetic: str
    result: str
    amount: float | None = None
    """If the step is a part of a total: its size, in the unit of the total."""


def steps_of(lines: str, **facts: Any) -> list[Step]:
    """Return the steps of lines `label | arithmetic | result` with their fields filled in, such as
    `{flops:number}` or `{use.peak:number}`, without those that need an unknown fact (None).
    """
    steps = []
    for line in lines.splitlines():
        label, arithmetic, result = line.split(" | ")
        fields = [name for _, name, _, _ in TEXTS.parse(arithmetic + result) if name]
        if all(TEXTS.get_field(name, (), facts)[0] is not None for name in fields):
            shown = TEXTS.format(arithmetic, **facts)
            steps.append(Step(label, shown, TEXTS.format(result, **facts)))
    return steps


class Curve(NamedTuple):
    """The plot of an answer without parts."""

    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """Points by name; a single point is the answer, or a reference."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
    """The result of an estimate, with its steps and sources."""

    title: str
    values: Row
    steps: Sequence[Step]
    formula: str
    source: str
    assumptions: Sequence[str]
    rows: Sequence[Row] = field(default_factory=tuple)
    """One per machine and dtype."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Printed keys of `rows`, with their titles."""
    worked: str = ""
    main: Sequence[str] = ()
    """Keys of the main results, printed first; a sweep prints only these."""
    curve: Curve | None = None
    """The plot, unless it shows the parts among the steps."""
    warnings: Sequence[str] = ()
    """Limits of the whole answer, such as a model that does not fit; printed first."""

    def main_texts(self) -> list[str]:
        """Return the main results as text with units."""
        known = [key for key in self.main if self.values.get(key) is not None]
        return [text_of_value(key, self.values[key]) for key in known]

    def table_rows(self) -> list[Row]:
        """Return the rows with the same keys, or the steps if there are none."""
        return filled(self.rows or [step._asdict() for step in self.steps])

    def to_dict(self) -> Row:
        """Return the JSON object."""
        document = dict(self.values)
        if self.rows:
            document["rows"] = list(map(dict, self.rows))
        document["formula"] = self.formula
        document["source"] = self.source
        document["assumptions"] = list(self.assumptions)
        document["warnings"] = list(self.warnings)
        document["steps"] = [step._asdict() for step in self.steps]
        return document

    def __repr__(self) -> str:
        return drawn(lambda console: print_answer(console, self))

    def _repr_html_(self) -> str:
        return html_of(lambda page: print_answer(page, self))


def filled(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the same keys."""
    names: Row = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return [names | row for row in rows]


def by_machine(rows: Sequence[Row], **shared: Any) -> Row:
    """Return the fields of an answer with `rows`; its values are `shared`, and those of a single
    row.
    """
    names = [rows[0][key] for key in ("gpu", "dtype") if key in rows[0]]
    if len(rows) == 1:
        shared |= rows[0]
    return {"values": shared, "rows": rows, "worked": ", ".join(names)}


def text_of_value(key: str, value: float | str) -> str:
    """Return a value as text with its unit: 8.03 B parameters, 7.1 GB, 143.9 days."""
    phrase = f"{{:letters}} {key.replace('_', ' ')}"
    if isinstance(value, str):
        phrase = f"{key} by {{}}"
    return TEXTS.format(PHRASES.get(key, phrase), value)


PHRASES: dict[str, str] = facts_beside(__file__, "phrases.toml")


MAX_WIDTH = 100
MAX_CELL_LETTERS = 200
MAX_BAR_LETTERS = 24
MIN_BAR_WIDTH = 100
"""Of a terminal, so that the bars stay beside their rows."""
BAR = "█"
SMALL = 0.01
"""Parts below this fraction of the total are printed as one."""


def print_answer(console: Console, answer: Answer) -> None:
    def paragraph(opening: str, text: str) -> None:
        width = min(console.width, MAX_WIDTH)
        indent = " " * len(opening)
        text = one_line(text, 2000)
        wrapped = textwrap.wrap(
            text, width, initial_indent=opening, subsequent_indent=indent, **WHOLE_WORDS
        )
        print_lines(console, *wrapped)

    print_lines(console, answer.title, "")
    for warning in answer.warnings:
        paragraph("! ", warning)
    if answer.warnings:
        print_lines(console, "")
    main = answer.main_texts()
    if main:
        paragraph("=> ", ", ".join(main))
        print_lines(console, "")
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        print_rows(console, answer.rows, answer.columns)
        print_lines(console, "")
    if answer.steps:
        if answer.worked:
            print_lines(console, f"Worked for {answer.worked}:")
        _print_steps(console, folded(answer))
        print_lines(console, "")
    paragraph("formula: ", answer.formula)
    paragraph("source: ", answer.source)
    for note in sorted(answer.assumptions, key=_is_boilerplate):
        paragraph("- ", note)


def print_rows(console: Console, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    grid = []
    for index, (key, title) in enumerate(columns.items()):
        cells = [one_line(cell(key, row.get(key)), MAX_CELL_LETTERS) for row in rows]
        is_name = index == 0 and isinstance(rows[0].get(key), str)
        below = max(0, index - 1)  # the later columns hold the result
        grid.append(Column(title, cells, "left" if is_name else "right", leaves=below))
    print_grid(console, grid)


def _print_steps(console: Console, steps: Sequence[Step]) -> None:
    shown = [[one_line(text, MAX_CELL_LETTERS) for text in step[:3]] for step in steps]
    labels, arithmetic, results = zip(*shown, strict=True)
    columns = [
        Column("step", labels),
        Column("arithmetic", arithmetic, leaves=2),
        Column("=", ["="] * len(labels), "right"),
        Column("result", results, "right"),
    ]
    amounts = [step.amount or 0 for step in steps]
    if any(amounts) and console.is_terminal and console.width >= MIN_BAR_WIDTH:
        bars = [BAR * round(MAX_BAR_LETTERS * amount / sum(amounts)) for amount in amounts]
        columns.append(Column("share", bars, leaves=1))
    print_grid(console, columns)


def folded(answer: Answer) -> list[Step]:
    """Return the steps with the parts sorted by size, and those below `SMALL` merged."""
    others = [step for step in answer.steps if step.amount is None]
    parts = [step for step in answer.steps if step.amount is not None]
    parts.sort(key=lambda step: -(step.amount or 0))
    limit = SMALL * sum(step.amount or 0 for step in parts)
    small = [step for step in parts if (step.amount or 0) < limit]
    if len(small) > 1:
        amount = sum(step.amount or 0 for step in small)
        is_bytes = answer.main and answer.main[0].endswith("_bytes")
        shown = quantity(amount, "B") if is_bytes else count(amount)
        merged = Step(f"{len(small)} more", f"below {percent(SMALL)} each", shown, amount)
        parts[-len(small) :] = [merged]
    return [*parts, *others]


def _is_boilerplate(note: str) -> bool:
    return note.startswith(("left out", "lower bounds", "'")) and " only: " not in note


def cell(key: str, value: Any) -> str:
    if value is None:
        return "never" if key == "critical_batch" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if key in ("mfu", "hfu", "used", "communication"):
        return percent(value)
    if key in ("bytes", "bytes_copied") or key.endswith("_bytes"):
        return quantity(value, "B")
    if key == "attainable_flops_per_s":
        return quantity(value, "FLOP/s")
    if key.endswith("bytes_per_s"):
        return quantity(value, "B/s")
    if key.endswith(("seconds", "_s")) and not key.endswith("_per_s"):
        return duration(value)
    if key == "value":  # rounding shows in the fifth digit
        return number(value, 5)
    return number(value)
