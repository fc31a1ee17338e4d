"""Sweeps of an estimate over one or two of its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import NamedTuple

from results.show.terminal import one_line
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.estimate.answer import Row, filled
from roofline.estimate.question import (
    Estimate,
    exact,
    is_of_all,
    positive,
    size,
    values_of,
)

MAX_POINTS = 1000
MACHINES = ("gpu", "dtype", "convention")
"""Columns that are shown if their values differ."""
RANGE = re.compile(r"([^:,]+):([^:,]+):([x+])([^:,]+)")


class Over(NamedTuple):
    """A parameter and its values as text."""

    option: str
    values: list[str]

    @classmethod
    def read(cls, text: str) -> Over:
        """Parse `batch=1,8,64`, `sequence=2048:131072:x2` or `prompt=1:100:+10`."""
        name, _, listed = text.partition("=")
        option = name.strip().removeprefix("--").replace("_", "-")
        values = [word.strip() for word in listed.split(",") if word.strip()]
        match = RANGE.fullmatch(listed)
        if match:
            values = _range(*match.groups())
        if not option or not values or len(values) > MAX_POINTS:
            shown = one_line(text)
            raise ConfigError(
                f"--over '{shown}' is not OPTION=1,8,64, OPTION=2048:131072:x2 or "
                f"OPTION=1024:8192:+1024"
            )
        return cls(option, list(dict.fromkeys(values)))


def _range(first: str, last: str, sign: str, step: str) -> list[str]:
    value = exact(first)
    end = exact(last)
    by = exact(step)
    values: list[str] = []
    is_growing = by > 0 if sign == "+" else by > 1
    while value <= end and len(values) <= MAX_POINTS and is_growing:
        values.append(str(value if value.denominator == 1 else float(value)))
        value = value * by if sign == "x" else value + by
    return values


class Sweep(NamedTuple):
    """The rows of a sweep."""

    overs: Sequence[Over]
    main: Sequence[str]
    rows: list[Row]
    parts: Mapping[str, Mapping[str, float]]
    """Components of a total, by the value of the first option."""

    @property
    def columns(self) -> list[str]:
        """Columns of the printed table: the options, varying machines, and the main results."""
        names = [over.option for over in self.overs]
        main = [*self.main, "critical_batch"] if self.main else self.rows[0]
        for name in (*MACHINES, *main, "fits", "reason"):
            values = {row.get(name) for row in self.rows}
            is_told = len(values) > 1 if name in MACHINES else values != {None}
            if is_told and (name != "fits" or False in values):
                names.append(name)
        return list(dict.fromkeys(names))


def swept(name: str, given: Mapping[str, object], overs: Sequence[Over]) -> Sweep:
    """Evaluate an estimate at each combination of the values."""
    swept_options = [over.option for over in overs]
    if not 1 <= len(overs) <= 2 or len(set(swept_options)) < len(overs):
        raise ConfigError(
            "expected one or two different options: --over sequence=2048:131072:x2 --over "
            "batch=1,8,64"
        )
    function: Estimate = getattr(estimate, name)
    count = prod(len(over.values) for over in overs)
    if count > MAX_POINTS:
        raise ConfigError(f"{count:,} points exceed {MAX_POINTS:,}")
    combinations = product(*(over.values for over in overs))
    points = [dict(zip(swept_options, values, strict=True)) for values in combinations]
    # Parse all points first, to fail before the first answer.
    parsed = []
    for point in points:
        at = {option.replace("-", "_"): value for option, value in point.items()}
        parsed.append(values_of(function, {**given, **at}))
    if any(map(is_of_all, parsed)):
        raise ConfigError("--gpu all ranks GPUs: name those of a sweep")
    rows: list[Row] = []
    parts = {}
    main: Sequence[str] | None = None
    problem = None
    for values, point in zip(parsed, points, strict=True):
        here = {option: _typed(value) for option, value in point.items()}
        try:
            answer = function(**values)
        except ConfigError as error:
            problem = error
            rows.append({**here, "reason": str(error)})
            continue
        main = answer.main
        parts[point[swept_options[0]]] = answer.values.get("components", {})
        for row in answer.rows or [{}]:
            plain = {
                key: value
                for key, value in (answer.values | row).items()
                if key != "fastest" and (value is None or isinstance(value, str | int | float))
            }
            rows.append({**here, **plain, **here, "reason": None})
    if problem and main is None:
        raise problem
    main = [key for key in main or () if key not in swept_options]  # it would be drawn over itself
    return Sweep(overs, main, filled(rows), parts)


def _typed(value: str) -> float | str:
    for read in (positive, size):
        with suppress(ConfigError):
            return read(value)
    return value
