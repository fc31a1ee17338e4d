"""Answers of estimates and how they are printed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from results.show.grid import WHOLE_WORDS, Column, html_of, print_grid, print_lines
from results.show.terminal import drawn, one_line
from results.show.units import COUNT_LETTERS, count, duration, gibibytes, number, quantity

if TYPE_CHECKING:
    from rich.console import Console


class Step(NamedTuple):
    """One step of the arithmetic."""

    label: str
    arithmetic: str
    result: str
    amount: float | None = None
    """If the step is a part of a total: its size, in the unit of the total."""


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
    values: dict[str, Any]
    steps: Sequence[Step]
    formula: str
    source: str
    assumptions: Sequence[str]
    rows: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """One per machine and dtype."""
    rows_key: str = "rows"
    """Name of `rows` in JSON; `steps` replaces the arithmetic."""
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
        return [
            text_of_value(key, value)
            for key in self.main
            if (value := self.values.get(key)) is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        rows = {self.rows_key: [dict(row) for row in self.rows]} if self.rows else {}
        document = {
            **self.values,
            **rows,
            "formula": self.formula,
            "source": self.source,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }
        document.setdefault("steps", [step._asdict() for step in self.steps])
        return document

    def __repr__(self) -> str:
        return drawn(lambda console: print_answer(console, self))

    def _repr_html_(self) -> str:
        return html_of(lambda page: print_answer(page, self))


def by_machine(rows: Sequence[dict[str, Any]], **shared: Any) -> dict[str, Any]:
    """Return the fields of an answer with `rows`; its values are `shared`, and those of a single
    row.
    """
    worked = ", ".join(rows[0][key] for key in ("gpu", "dtype") if key in rows[0])
    return {"values": shared | (rows[0] if len(rows) == 1 else {}), "rows": rows, "worked": worked}


def text_of_value(key: str, value: float | str) -> str:
    """Return a value as text with its unit: 8.03 B parameters, 7.1 GB, 143.9 days."""
    if isinstance(value, str):
        return f"{key} by {value}"
    if key == "gpus":
        return count(int(value), "device")
    if key == "flops_per_s":
        return f"{number(value / 1e12)} TFLOP/s"
    has_unit = key.endswith(("bytes", "seconds", "first_token_s", "mfu", "hfu", "communication"))
    shown = cell(key, value) if has_unit else quantity(value, "", COUNT_LETTERS)
    name = key.removesuffix("_bytes").replace("_", " ")
    return PHRASES.get(key, f"{{}} {'of ' if has_unit else ''}{name}").format(shown)


PHRASES = {
    "bytes": "{}",
    "flops": "{} FLOPs",
    "copied_bytes": "{} copied",
    "intensity": "{} FLOP/B",
    "ridge": "ridge at {} FLOP/B",
    "total_bytes": "{} in total",
    "activation_bytes": "{} of activations",
    "mfu": "MFU {}",
    "hfu": "HFU {}",
    "seconds": "{}",
    "step_seconds": "{} for a step",
    "communication": "{} of it waiting for links",
    "largest_gpus": "scales to {} devices",
    "decode_seconds": "{} for each step of decoding",
    "prefill_seconds": "{} of prefill",
    "first_token_s": "{} to the first token",
    "total": "{} parameters",
    "active": "{} of them active",
    "params": "{} parameters",
    "per_token": "{} FLOPs per token",
    "per_step": "{} per step",
    "run_flops": "{} FLOPs",
    "run_forward_flops": "{} of them forward",
    "run_backward_flops": "{} backward",
    "tokens_per_s": "{} tokens/s",
    "price": "price {}",
    "price_per_million_tokens": "price {} for 10^6 tokens",
}


MAX_WIDTH = 100
MAX_CELL_LETTERS = 200
MAX_BAR_LETTERS = 24
BAR = "█"
SMALL = 0.01
"""Parts below this fraction of the total are printed as one."""


def print_answer(console: Console, answer: Answer) -> None:
    def paragraph(opening: str, text: str) -> None:
        width = min(console.width, MAX_WIDTH)
        indent = " " * len(opening)
        lines = textwrap.wrap(
            one_line(text, 2000),
            width,
            initial_indent=opening,
            subsequent_indent=indent,
            **WHOLE_WORDS,
        )
        print_lines(console, *lines)

    print_lines(console, answer.title, "")
    for warning in answer.warnings:
        paragraph("! ", warning)
    if answer.warnings:
        print_lines(console, "")
    if main := answer.main_texts():
        paragraph("=> ", ", ".join(main))
        print_lines(console, "")
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        columns = [
            Column(
                title,
                [one_line(cell(key, row.get(key)), MAX_CELL_LETTERS) for row in answer.rows],
                "left" if index == 0 else "right",
                goes_below=max(0, index - 1),  # the later columns hold the result
            )
            for index, (key, title) in enumerate(answer.columns.items())
        ]
        print_grid(console, columns)
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


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    cells = {
        key: [one_line(cell(key, row.get(key)), MAX_CELL_LETTERS) for row in rows] for key in keys
    }
    print_grid(
        console, [Column(key.replace("_", " "), texts, "right") for key, texts in cells.items()]
    )


def _print_steps(console: Console, steps: Sequence[Step]) -> None:
    shown = [[one_line(text, MAX_CELL_LETTERS) for text in step[:3]] for step in steps]
    labels, arithmetic, results = zip(*shown, strict=True)
    columns = [
        Column("step", labels),
        Column("arithmetic", arithmetic, goes_below=2),
        Column("=", ["="] * len(labels), "right"),
        Column("result", results, "right"),
    ]
    total = sum(step.amount or 0 for step in steps)
    if total and console.is_terminal:
        bars = [BAR * round(MAX_BAR_LETTERS * (step.amount or 0) / total) for step in steps]
        columns.append(Column("share", bars, leaves=1))
    print_grid(console, columns)


def folded(answer: Answer) -> list[Step]:
    """Return the steps with the parts sorted by size, and those below `SMALL` merged."""
    parts = sorted(
        (step for step in answer.steps if step.amount is not None),
        key=lambda step: -(step.amount or 0),
    )
    others = [step for step in answer.steps if step.amount is None]
    total = sum(step.amount or 0 for step in parts)
    small = [step for step in parts if (step.amount or 0) < SMALL * total]
    if len(small) > 1:
        amount = sum(step.amount or 0 for step in small)
        shown = (
            quantity(amount, "B")
            if answer.main and answer.main[0].endswith("_bytes")
            else count(amount)
        )
        parts = [
            *parts[: -len(small)],
            Step(f"{len(small)} more", f"below {100 * SMALL:g} % each", shown, amount),
        ]
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
        return f"{100 * value:.1f} %"
    if key == "memory_bytes":
        return gibibytes(value)
    if key in ("bytes", "bytes_copied") or key.endswith("_bytes"):
        return quantity(value, "B")
    if key == "attainable_flops_per_s":
        return quantity(value, "FLOP/s")
    if key.endswith(("seconds", "_s")) and key not in ("tokens_per_s", "flops_per_s"):
        return duration(value)
    if key == "value":  # rounding shows in the fifth digit
        return number(value, 5)
    return number(value)
