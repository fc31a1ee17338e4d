"""Any estimate over one or two of its parameters, as rows."""

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

MOST_POINTS = 1000
RANGE = re.compile(r"([^:,]+):([^:,]+):([x+])([^:,]+)")


class Over(NamedTuple):
    """A parameter and its values, as they are typed."""

    option: str
    values: list[str]

    @classmethod
    def read(cls, text: str) -> Over:
        """Return what `batch=1,8,64`, `sequence=2048:131072:x2` or `prompt=0:100:+10` stands for."""
        name, sign, listed = text.partition("=")
        option = name.strip().removeprefix("--").replace("_", "-")
        match = RANGE.fullmatch(listed)
        values = _range(*match.groups()) if match else [word.strip() for word in listed.split(",") if word.strip()]
        if not sign or not option or not values or len(values) > MOST_POINTS:
            shown = one_line(text)
            raise ConfigError(f"--over '{shown}' must be OPTION=1,8,64 or OPTION=2048:131072:x2, or :+1024")
        return cls(option, list(dict.fromkeys(values)))


def _range(first: str, last: str, sign: str, step: str) -> list[str]:
    value, end, by = whole(first), whole(last), whole(step)
    values: list[str] = []
    while value <= end and len(values) <= MOST_POINTS and (sign == "+" or by > 1):
        values.append(str(value))
        value = value * by if sign == "x" else value + by
    return values


class Sweep(NamedTuple):
    """The answers to an estimate over some parameters."""

    overs: Sequence[Over]
    main: Sequence[str]
    rows: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        """What a table for people shows: the options, machines if there are several, and what was asked first."""
        several = [name for name in ("gpu", "dtype", "convention") if len({row.get(name) for row in self.rows}) > 1]
        names = [over.option for over in self.overs]
        known = {key for row in self.rows for key, value in row.items() if value is not None and key != "reason"}
        asked = (*several, *self.main, "critical_batch") if self.main else self.rows[0]
        found = [key for key in asked if key in known]
        found += ["fits"] if any(row.get("fits") is False for row in self.rows) else []
        reason = ["reason"] if any(row["reason"] for row in self.rows) else []
        return list(dict.fromkeys([*names, *found, *reason]))


def swept(name: str, given: Mapping[str, object], overs: Sequence[Over]) -> Sweep:
    """Return the answers to an estimate at each combination of the values."""
    if not 1 <= len(overs) <= 2 or len({over.option for over in overs}) < len(overs):
        raise ConfigError(
            "give one or two different options to sweep: --over sequence=2048:131072:x2 --over batch=1,8,64"
        )
    function: Callable[..., Answer] = getattr(estimate, name)
    known = [parameter.name for parameter in parameters(function).values()]
    for over in overs:
        if over.option not in known:
            options = ", ".join(f"--{option}" for option in known)
            raise ConfigError(f"{name} has no option --{over.option}; it has {options}")
    points = list(product(*(over.values for over in overs)))
    if len(points) > MOST_POINTS:
        raise ConfigError(f"{len(points):,} points are more than {MOST_POINTS:,}")
    named = [{over.option.replace("-", "_"): value for over, value in zip(overs, at, strict=True)} for at in points]
    asked = [values_of(function, {**given, **place}) for place in named]  # a wrong value ends it before any answer
    rows: list[dict[str, Any]] = []
    answer, problem = None, None
    for values, point in zip(asked, points, strict=True):
        place = {over.option: _typed(value) for over, value in zip(overs, point, strict=True)}
        try:
            answer = function(**values)
        except ConfigError as error:
            problem = error
            rows.append({**place, "reason": str(error)})
            continue
        found = answer.rows if len(answer.rows) > 1 else [{**answer.values, **(answer.rows[0] if answer.rows else {})}]
        rows += [{**_scalars(row), **place, "reason": None} for row in found]
    if answer is None:
        raise problem or ConfigError("a sweep of nothing")
    names = list(dict.fromkeys([*(over.option for over in overs), *(key for row in rows for key in row)]))
    return Sweep(overs, answer.main, [{key: row.get(key) for key in names} for row in rows])


def _typed(value: str) -> float | str:
    try:
        return positive(value)
    except ConfigError:
        return value


def _scalars(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is None or isinstance(value, str | int | float)}


def memory_marks(rows: Sequence[Mapping[str, Any]], option: str) -> dict[str, float]:
    """Return where along an option the memory ends to be enough, or begins to be: what it is called, and its place."""
    places = sorted((row[option], row.get("fits") is not False) for row in rows)
    too_large = [place for place, fits in places if not fits]
    if not too_large:
        return {}
    if places[-1][1]:  # such as more devices
        return {f"does not fit up to {too_large[-1]:g}": too_large[-1]}
    return {f"does not fit from {too_large[0]:g}": too_large[0]}
