"""`python -m roofline estimate sweep`: any estimate over one or two of its options, as rows or as a picture."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from results.show.terminal import Parser, one_line
from results.show.theme import add_theme
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.config import ConfigError
from roofline.commands.estimate import arguments
from roofline.commands.estimate.options import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 1000
RANGE = re.compile(r"([^:,]+):([^:,]+):([x+])([^:,]+)")
PROG = "python -m roofline estimate sweep"
FORMATS = ("text", "csv", "json")


class Over(NamedTuple):
    """An option and its values, as they are typed."""

    option: str
    values: list[str]


class Sweep(NamedTuple):
    """What a sweep is asked for, and its rows."""

    title: str
    overs: list[Over]
    main: Sequence[str]
    rows: list[dict[str, Any]]
    format: str
    plot: Path | None
    theme: str

    @property
    def columns(self) -> list[str]:
        """What a table for people shows: the options, machines where there are several, and what was asked first."""
        several = [name for name in ("gpu", "dtype", "convention") if len({row.get(name) for row in self.rows}) > 1]
        names = [over.option for over in self.overs]
        known = {key for row in self.rows for key, value in row.items() if value is not None and key != "reason"}
        asked = (*several, *self.main, "critical_batch") if self.main else self.rows[0]
        found = [key for key in asked if key in known]
        found += ["fits"] if any(row.get("fits") is False for row in self.rows) else []
        reason = ["reason"] if any(row["reason"] for row in self.rows) else []
        return list(dict.fromkeys([*names, *found, *reason]))


def over(text: str) -> Over:
    """Return an option and its values: `batch=1,8,64`, `sequence=2048:131072:x2` or `prompt=0:100:+10`.

    Raises:
        argparse.ArgumentTypeError: it is something else, or has too many values.
    """
    name, sign, listed = text.partition("=")
    option = name.strip().removeprefix("--").replace("_", "-")
    match = RANGE.fullmatch(listed)
    values = _range(*match.groups()) if match else [word.strip() for word in listed.split(",") if word.strip()]
    if not sign or not option or not values or len(values) > MOST_POINTS:
        shown = one_line(text)
        raise argparse.ArgumentTypeError(f"'{shown}' must be OPTION=1,8,64 or OPTION=2048:131072:x2, or :+1024")
    return Over(option, list(dict.fromkeys(values)))


def _range(first: str, last: str, sign: str, step: str) -> list[str]:
    """Return the numbers from first to last; nothing where they do not grow."""
    value, end, by = arguments.whole(first), arguments.whole(last), arguments.whole(step)
    values: list[str] = []
    while value <= end and len(values) <= MOST_POINTS and (sign == "+" or by > 1):
        values.append(str(value))
        value = value * by if sign == "x" else value + by
    return values


def swept(words: Sequence[str], parts: Sequence[Part]) -> Sweep:
    """Return the rows of a sweep.

    Raises:
        ConfigError: the command is unknown, has no such option, or no point of the sweep can be answered.
    """
    own = Parser(prog=PROG, add_help=False)
    own.add_argument("--over", action="append", type=over, default=[])
    own.add_argument("--format", choices=FORMATS, default="text")
    own.add_argument("--plot", type=Path)
    add_theme(own)
    asked, rest = argparse.ArgumentParser.parse_known_args(own, list(words))  # the rest is of another parser
    part = next((part for part in parts if rest and part.name == rest[0]), None)
    if part is None:
        raise ConfigError(f"sweep needs one of: {', '.join(part.name for part in parts)}")
    if not 1 <= len(asked.over) <= 2 or len({entry.option for entry in asked.over}) < len(asked.over):
        raise ConfigError(
            "give one or two different options to sweep: --over sequence=2048:131072:x2 --over batch=1,8,64"
        )
    parser = Parser(prog=f"{PROG} {part.name}")
    part.add_options(parser)
    for entry in asked.over:
        if f"--{entry.option}" not in parser._option_string_actions:
            known = ", ".join(name for name in parser._option_string_actions if name not in ("-h", "--help"))
            raise ConfigError(f"{part.name} has no option --{entry.option}; it has {known}")
    points = list(product(*(entry.values for entry in asked.over)))
    if len(points) > MOST_POINTS:
        raise ConfigError(f"{len(points):,} points are more than {MOST_POINTS:,}")
    rows, last = _rows(part, parser, rest[1:], asked.over, points)
    title = f"{part.description.removesuffix('.')}: {' '.join(rest[1:])}"
    return Sweep(title, asked.over, last.main, rows, asked.format, asked.plot, asked.theme)


def _rows(
    part: Part,
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    overs: Sequence[Over],
    points: Sequence[tuple[str, ...]],
) -> tuple[list[dict[str, Any]], Answer]:
    rows: list[dict[str, Any]] = []
    last, problem = None, None
    for point in points:
        named = [word for entry, value in zip(overs, point, strict=True) for word in (f"--{entry.option}", value)]
        args = parser.parse_args([*words, *named])
        place = {entry.option: _typed(value) for entry, value in zip(overs, point, strict=True)}
        try:
            last = part.answer(args)
        except ConfigError as error:
            problem = error
            rows.append({**place, "reason": str(error)})
            continue
        found = last.rows if len(last.rows) > 1 else [{**last.values, **(last.rows[0] if last.rows else {})}]
        rows += [{**_scalars(row), **place, "reason": None} for row in found]
    if last is None:
        raise problem or ConfigError("a sweep of nothing")
    names = list(dict.fromkeys([*(entry.option for entry in overs), *(key for row in rows for key in row)]))
    return [{name: row.get(name) for name in names} for row in rows], last


def _typed(value: str) -> float | str:
    try:
        return arguments.positive(value)
    except argparse.ArgumentTypeError:
        return value


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is None or isinstance(value, str | int | float)}


def draw(sweep: Sweep) -> Figure:
    """Return the picture of a sweep: what was asked first along the first option, a line for each of the others.

    Raises:
        ConfigError: the option or what is asked has no numbers.
    """
    from roofline.plot.estimates import draw_lines

    x, y = sweep.overs[0].option, sweep.main[0]
    telling = [
        name for name in sweep.columns if name in ("gpu", "dtype", "convention", *(o.option for o in sweep.overs[1:]))
    ]
    lines: dict[str, list[tuple[float, float]]] = {}
    marks: dict[str, float] = {}
    drawn: dict[str, list[dict[str, Any]]] = {}
    for row in sweep.rows:
        if isinstance(row[x], str) or not isinstance(row[y], int | float):
            continue
        name = ", ".join(f"{key} {row[key]}" for key in telling)
        lines.setdefault(name, []).append((row[x], row[y]))
        if x == "batch" and row.get("critical_batch"):
            marks[f"critical batch {name}".strip()] = row["critical_batch"]
        drawn.setdefault(name, []).append(row)
    if not lines:
        raise ConfigError(f"--plot needs numbers along --{x}: {y} has none")
    for name, rows in drawn.items():
        marks |= {f"{words} {name}".strip(): place for words, place in memory_marks(rows, x).items()}
    return draw_lines(sweep.title, x, y.replace("_", " "), lines, marks, sweep.theme)


def memory_marks(rows: Sequence[Mapping[str, Any]], option: str) -> dict[str, float]:
    """Return where along an option the memory ends to be enough, or begins to be: what it is called, and its place."""
    places = sorted((row[option], row.get("fits") is not False) for row in rows)
    too_large = [place for place, fits in places if not fits]
    if not too_large:
        return {}
    if places[-1][1]:  # such as more devices
        return {f"does not fit up to {too_large[-1]:g}": too_large[-1]}
    return {f"does not fit from {too_large[0]:g}": too_large[0]}
