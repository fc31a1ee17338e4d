"""Sweeps of an estimate over one or two of its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from results.show.terminal import one_line
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.estimate.answer import Answer
from roofline.estimate.question import parameters, positive, values_of, whole

MAX_POINTS = 1000
RANGE = re.compile(r"([^:,]+):([^:,]+):([x+])([^:,]+)")


class Over(NamedTuple):
    """A parameter and its values as text."""

    option: str
    values: list[str]

    @classmethod
    def read(cls, text: str) -> Over:
        """Parse `batch=1,8,64`, `sequence=2048:131072:x2` or `prompt=1:100:+10`."""
        name, sign, listed = text.partition("=")
        option = name.strip().removeprefix("--").replace("_", "-")
        values = [word.strip() for word in listed.split(",") if word.strip()]
        if match := RANGE.fullmatch(listed):
            values = _range(*match.groups())
        if not sign or not option or not values or len(values) > MAX_POINTS:
            shown = one_line(text)
            raise ConfigError(
                f"--over '{shown}' is not OPTION=1,8,64, OPTION=2048:131072:x2 or "
                f"OPTION=1024:8192:+1024"
            )
        return cls(option, list(dict.fromkeys(values)))


def _range(first: str, last: str, sign: str, step: str) -> list[str]:
    value = whole(first)
    end = whole(last)
    by = whole(step)
    values: list[str] = []
    while value <= end and len(values) <= MAX_POINTS and (sign == "+" or by > 1):
        values.append(str(value))
        value = value * by if sign == "x" else value + by
    return values


class Sweep(NamedTuple):
    """The rows of a sweep."""

    overs: Sequence[Over]
    main: Sequence[str]
    rows: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        """Columns of the printed table: the options, varying machines, and the main results."""
        several = [
            name
            for name in ("gpu", "dtype", "convention")
            if len({row.get(name) for row in self.rows}) > 1
        ]
        names = [over.option for over in self.overs]
        known: set[str] = set()
        for row in self.rows:
            known.update(key for key, value in row.items() if value is not None)
        shown = (*several, *self.main, "critical_batch") if self.main else self.rows[0]
        names += [key for key in shown if key in known and key != "reason"]
        if any(row.get("fits") is False for row in self.rows):
            names.append("fits")
        if any(row["reason"] for row in self.rows):
            names.append("reason")
        return list(dict.fromkeys(names))


def swept(name: str, given: Mapping[str, object], overs: Sequence[Over]) -> Sweep:
    """Evaluate an estimate at each combination of the values."""
    if not 1 <= len(overs) <= 2 or len({over.option for over in overs}) < len(overs):
        raise ConfigError(
            "expected one or two different options: --over sequence=2048:131072:x2 --over "
            "batch=1,8,64"
        )
    function: Callable[..., Answer] = getattr(estimate, name)
    known = [parameter.name for parameter in parameters(function).values()]
    for over in overs:
        if over.option not in known:
            options = ", ".join(f"--{option}" for option in known)
            raise ConfigError(f"{name} has no option --{over.option}; it has {options}")
    points = list(product(*(over.values for over in overs)))
    if len(points) > MAX_POINTS:
        raise ConfigError(f"{len(points):,} points exceed {MAX_POINTS:,}")
    named = [
        {over.option.replace("-", "_"): value for over, value in zip(overs, at, strict=True)}
        for at in points
    ]
    # Parse all points first, to fail before the first answer.
    parsed = [values_of(function, {**given, **values}) for values in named]
    rows: list[dict[str, Any]] = []
    answer = None
    problem = None
    for values, point in zip(parsed, points, strict=True):
        swept_values = {
            over.option: _typed(value) for over, value in zip(overs, point, strict=True)
        }
        try:
            answer = function(**values)
        except ConfigError as error:
            problem = error
            rows.append({**swept_values, "reason": str(error)})
            continue
        answers = answer.rows
        if len(answers) <= 1:
            answers = [{**answer.values, **(answers[0] if answers else {})}]
        rows += [{**_scalars(row), **swept_values, "reason": None} for row in answers]
    if answer is None:
        raise problem or ConfigError("nothing to sweep")
    names = dict.fromkeys(over.option for over in overs)
    for row in rows:
        names |= dict.fromkeys(row)
    return Sweep(overs, answer.main, [{key: row.get(key) for key in names} for row in rows])


def _typed(value: str) -> float | str:
    try:
        return positive(value)
    except ConfigError:
        return value


def _scalars(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in row.items()
        if value is None or isinstance(value, str | int | float)
    }


def memory_marks(rows: Sequence[Mapping[str, Any]], option: str) -> dict[str, float]:
    """Return the value of an option at which the model stops or starts to fit in memory, by its
    label.
    """
    values = sorted((row[option], row.get("fits") is not False) for row in rows)
    too_large = [value for value, fits in values if not fits]
    if not too_large:
        return {}
    if values[-1][1]:  # such as more devices
        return {f"does not fit up to {too_large[-1]:g}": too_large[-1]}
    return {f"does not fit from {too_large[0]:g}": too_large[0]}
