"""Parameters of estimates, derived from their signatures, for the command line, the forms and the
help.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial, wraps
from inspect import signature
from typing import Annotated, Any, ParamSpec, cast

from results.show import options
from results.show.facts import facts_beside
from results.show.options import Parameter
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import ADVANCED, one_line
from roofline.accounting.config import MAX_EXTENT, ConfigError, ModelConfig
from roofline.estimate.answer import Answer, Row
from roofline.gpu_table import find_gpu, load_gpus
from roofline.work import dtype_named

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
SIZES = {unit: factor for unit, factor in COUNTS.items() if unit != "b"}  # bytes, or billions
for power, letter in enumerate("kmgt", 1):
    SIZES |= {f"{letter}b": 1000**power, f"{letter}ib": 1024**power}
TIMES = {"": Fraction(1), "s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6)}
SHARES = {"": Fraction(1), "%": Fraction(1, 100)}
"""Factors of the units of numbers, bytes, seconds and fractions."""
NUMBER = re.compile(
    r"((?:\d{1,30}(?:_\d{1,30})*(?:\.\d{1,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?) ?([A-Za-z%]*)"
)
MAX_NUMBER = 10**30


def text_of(value: object) -> str:
    if callable(value) or isinstance(value, Mapping | bytes):
        raise ConfigError(
            f"expected a number, a text or a list of these, got {type(value).__name__}"
        )
    return str(value).strip()


def _number(text: str, units: Mapping[str, int | Fraction] = COUNTS) -> Fraction | None:
    match = NUMBER.fullmatch(text)
    factor = units.get(match[2].lower()) if match else None
    return Fraction(match[1]) * factor if match and factor else None


def _shown(text: object) -> str:
    return f"'{one_line(str(text))}'"


NUMBERS = "a number above 0, at most 10^30, such as"


def _above_0(
    units: Mapping[str, int | Fraction], expected: str, value: object, most: int = MAX_NUMBER
) -> float:
    text = text_of(value)
    number = _number(text, units)
    if number is None or not Fraction(1, MAX_NUMBER) <= number <= most:
        raise ConfigError(f"{_shown(text)} is not {expected}")
    return int(number) if number.denominator == 1 else float(number)


positive = partial(_above_0, COUNTS, f"{NUMBERS} 70e9, 70B or 0.5")
"""Return a number above 0, such as 70e9, "70B" or 0.5; integers are exact."""
BYTES = "80e9, 80GB or 74.5GiB (units KB, MB, GB, TB, KiB, ..., TiB)"
size = partial(_above_0, SIZES, f"{NUMBERS} {BYTES}")
"""Return bytes above 0, such as 80e9, "80GB" or "74.5GiB"."""
UNITS = "units are s (without one), ms and us: seconds"
seconds = partial(_above_0, TIMES, f"{NUMBERS} 0.02 or 20ms; {UNITS}")
"""Return seconds above 0, such as 0.02 or "20ms"."""
share = partial(_above_0, SHARES, "a fraction above 0, at most 1; 40 % is 0.4", most=1)
"""Return a fraction above 0, at most 1, such as 0.5 or "50%"."""


def whole(value: object) -> int:
    """Return an integer from 1, such as 8, 4096 or "15T"."""
    number = _number(text := text_of(value))
    if number is None or number.denominator != 1 or not 1 <= number <= MAX_EXTENT:
        raise ConfigError(f"{_shown(text)} is not an integer from 1 to 10^12")
    return int(number)


def _words(value: object) -> list[str]:
    texts = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return ",".join(map(text_of, texts)).split(",")


def named(value: object) -> dict[str, Any]:
    """Return the values of a text such as "b=4,s=8" or of a mapping, by name."""
    if isinstance(value, Mapping):
        return dict(value)
    parts = [word.partition("=") for word in _words(value)]
    return {name.strip(): text for name, _, text in parts}


def prices(value: object) -> list[float] | dict[str, float]:
    """Return the prices of a text such as "2.5,0.8" or a list, or those of GPUs by slug, of a text
    such as "h100-sxm=2.5,b200=4".
    """
    if not isinstance(value, Mapping) and "=" not in str(value):
        return [positive(word) for word in _words(value)]
    return {find_gpu(name).slug: positive(price) for name, price in named(value).items()}


def exact(value: object) -> Fraction:
    """Return a number of either sign, exactly as written, with at most 300 digits."""
    text = text_of(value)
    number = _number(text.removeprefix("-"), COUNTS | SIZES)
    if number is None or number > 10**300 or (number and number < Fraction(1, 10**330)):
        raise ConfigError(f"{_shown(text)} is not a number such as 1e-8")
    return -number if text.startswith("-") else number


def extents(value: object) -> tuple[int, ...]:
    """Return the extents of a shape such as "49152x12288" or (49152, 12288)."""
    text = "x".join(map(str, value)) if isinstance(value, tuple | list) else text_of(value)
    words = text.replace("×", "x").replace(",", "x").split("x")
    try:
        sizes = tuple(map(whole, words))
    except ConfigError:
        raise ConfigError(f"{_shown(text)} is not a shape such as 4096x4096") from None
    if math.prod(sizes) > MAX_NUMBER:
        raise ConfigError(f"{_shown(text)} has more than 10^30 elements")
    return sizes


def product_shape(value: object) -> tuple[int, int, int]:
    """Return M, N and K of a shape MxNxK; one number stands for all three."""
    sizes = extents(value)
    if len(sizes) not in (1, 3):
        raise ConfigError(f"{_shown(value)} is not MxNxK, such as 4096x4096x1024, or one number")
    m, n, k = sizes * 3 if len(sizes) == 1 else sizes
    return m, n, k


def names(value: object) -> list[str]:
    listed = [word.strip() for word in _words(value) if word.strip()]
    if not listed:
        raise ConfigError("expected names separated by commas")
    return list(dict.fromkeys(listed))


def model_named(value: object) -> str | ModelConfig:
    return value if isinstance(value, ModelConfig) else text_of(value)


def one_of(word: str, known: tuple[str, ...]) -> str:
    """Return the known name that a word stands for; dtypes also have their torch names."""
    found = known_as(dtype_named(word), known)
    if found not in known:
        problem = f"unknown {_shown(found)}"
        hint = ELSEWHERE.get(word) or did_you_mean(found, known)
        if hint:
            problem += f"; {hint}"
        raise ConfigError(f"{problem} (choose from {', '.join(known)})")
    return found


Number = Annotated[float, positive]
Whole = Annotated[int, whole]
Share = Annotated[float, share]
Size = Annotated[float, size]
Seconds = Annotated[float, seconds]
Prices = Annotated[list[float] | dict[str, float], prices]
Names = Annotated[list[str], names]
Model = Annotated[str | ModelConfig | None, model_named]

USUAL = {
    "model",
    "config",
    "params",
    "tokens",
    "tokens_per_s",
    "seconds_per_step",
    "flops",
    "layers",
    "width",
    "heads",
    "ffn",
    "vocab",
    "sequence",
    "batch",
    "prompt",
    "latency",
    "size",
    "kind",
    "output_tokens",
    "recipe",
    "checkpoint",
    "gpu",
    "gpus",
    "mfu",
    "days",
    "dtype",
    "shape",
    "rows",
    "einsum",
    "sizes",
    "index",
    "then",
    "value",
}
"""Parameters that --help lists first, but for `LATER`."""
LATER = {("train", "batch"), ("train", "checkpoint")}
FIRST = ("intensity", "op")

RANKS = {
    "batch": -1,
    "decode_seconds": 1,
    "tokens": -1,
    "seconds": 1,
    "step_seconds": 1,
    "prefill_seconds": 1,
    "attainable_flops_per_s": -1,
    "params": -1,
    "gpus": 1,
    "headroom_bytes": -1,
}
"""Values by which all GPUs are ranked, the first that an estimate has: 1 if less is better."""

_P = ParamSpec("_P")
Estimate = Callable[..., Answer]


HELP: dict[str, str] = facts_beside(__file__, "help.toml")
NEEDS: dict[str, dict[str, list[str]]] = facts_beside(__file__, "needs.toml")
ELSEWHERE: dict[str, str] = facts_beside(__file__, "elsewhere.toml")


def question(function: Callable[_P, Answer]) -> Callable[_P, Answer]:
    """Parse the arguments of an estimate, and document them."""
    bind = signature(function).bind_partial
    by_name = cast(Estimate, function)

    @wraps(function)
    def ask(*args: _P.args, **named: _P.kwargs) -> Answer:
        given = bind(*args, **named).arguments
        others = given.pop("options", {})
        values = values_of(ask, {**given, **others})
        if is_of_all(values):
            return _ranked(by_name, values)
        price = values.get("price")
        if isinstance(price, dict) and price.keys() - {
            find_gpu(word).slug for word in values.get("gpu", ())
        }:
            raise ConfigError("--price names a GPU that --gpu does not")
        answer = by_name(**values)
        slower: Sequence[Row] = ()
        if "network" in values:
            with suppress(ConfigError):
                slower = by_name(**{**values, "network": values["network"] / 2**40}).rows
        if slower and answer.rows == slower:
            raise ConfigError("--network has no effect: nothing is sent between nodes (--node)")
        return answer

    lines = [f"    {parameter.key}: {parameter.help}" for parameter in parameters(ask).values()]
    raises = "Raises:\n    ValueError: an argument is invalid."
    ask.__doc__ = "\n".join([f"{function.__doc__}\n", "Args:", *lines, "", raises, ""])
    return ask


def is_of_all(values: Mapping[str, Any]) -> bool:
    """Return whether the GPUs are all of the table.

    Raises:
        ConfigError: another machine is named too, or a figure that would be that of all.
    """
    given = [name.lower() for name in values.get("gpu") or ()]
    if "all" not in given:
        return False
    if len(given) > 1 or {"measured", "peak", "bandwidth", "memory"} & values.keys():
        raise ConfigError(
            "--gpu all is every GPU of the table as it is: remove other GPUs, --measured, --peak, "
            "--bandwidth and --memory"
        )
    return True


def _ranked(function: Estimate, values: Mapping[str, Any]) -> Answer:
    """Answer for all GPUs of the table that have the dtype and the memory, the best first."""
    if function.__name__ == "mfu":
        raise ConfigError("--gpu all: a run has the utilization of its own GPU: name that one")
    if isinstance(values.get("price"), list):
        raise ConfigError(
            "--price is that of one GPU: give those of --gpu all by name, such as "
            "h100-sxm=2.5,b200=4"
        )
    ranks: dict[str, list[float]] = {}
    short: dict[str, int] = {}
    for row in _rows_of_all(function, values):
        slug = row["gpu"]
        known = [
            sign * float(f"{row[key]:.9g}")  # equal but for rounding
            for key, sign in RANKS.items()
            if row.get(key) is not None
        ]
        if values.get("price"):  # of the whole job; without one, after all others
            known.insert(0, row.get("price") or math.inf)
        if row.get("fits") is False:
            short[slug] = row.get("gpus_needed") or 0
        elif known:
            ranks[slug] = min(ranks.get(slug, known), known)
    if not ranks:
        needed = min(filter(None, short.values()), default=None)
        hint = f"; at least {needed} are needed of one of them" if needed else ""
        raise ConfigError(f"it fits on none of the GPUs in the table{hint}")
    answer = function(**{**values, "gpu": sorted(ranks, key=ranks.__getitem__)})
    notes = list(answer.assumptions)
    if values.get("price"):
        notes.append("ranked by price; GPUs without one follow, by time")
    others = [slug for slug in load_gpus() if slug not in ranks and slug not in short]
    if short:
        notes.append(f"left out, too small or too slow: {', '.join(short)}")
    if others:
        notes.append(f"left out, without the dtype, a link or a place: {', '.join(others)}")
    return replace(answer, assumptions=notes)


def _rows_of_all(function: Estimate, values: Mapping[str, Any]) -> list[Row]:
    """Return the rows of all GPUs, without those for which an estimate is refused, such as for a
    missing link.
    """
    rows: list[Row] = []
    problem = None
    for slug in load_gpus():
        try:
            rows += function(**{**values, "gpu": [slug]}).rows
        except ConfigError as error:  # such as a missing link
            problem = error
    if not rows and problem:
        raise problem
    return rows


@cache
def parameters(function: Estimate) -> dict[str, Parameter]:
    """Return the parameters of an estimate by Python name, with their help and group."""
    known = {}
    for key, parameter in options.parameters(function).items():
        text = HELP[parameter.name]
        if isinstance(parameter.read, tuple):
            text += f" ({', '.join(parameter.read)})"
        if parameter.default is not None and parameter.default is not False:
            text += f"; default: {parameter.default}"
        place = (function.__name__, key)
        is_usual = place == FIRST or (key in USUAL and place not in LATER)
        group = "what to estimate" if is_usual else ADVANCED
        known[key] = replace(parameter, help=text, group=group)
    return known


def read(parameter: Parameter, value: object) -> Any:
    if parameter.is_flag:
        return bool(value)
    if not isinstance(parameter.read, tuple):
        return text_of(value) if parameter.read is str else parameter.read(value)
    words = names(value) if parameter.is_list else [text_of(value)]
    chosen = list(dict.fromkeys(one_of(word, parameter.read) for word in words))
    return chosen if parameter.is_list else chosen[0]


def values_of(function: Estimate, given: Mapping[str, object]) -> dict[str, Any]:
    """Parse the arguments of an estimate; None, False and empty texts count as omitted.

    Raises:
        ConfigError: an option is unknown, missing or invalid, or has no effect beside the others.
    """
    known = parameters(function)
    values = {}
    for key, value in given.items():
        if key not in known:
            problem = f"unrecognized arguments: --{key.replace('_', '-')}"
            hint = did_you_mean(key, known, 1)
            if hint:
                problem += f"; {hint}"
            raise ConfigError(problem)
        if value is None or value is False or value == "":
            continue
        values[key] = value
    needed = [key for key, parameter in known.items() if parameter.is_required]
    missing = [f"--{known[key].name}" for key in needed if key not in values]
    if missing:
        raise ConfigError(f"the following arguments are required: {', '.join(missing)}")
    names = {known[key].name for key in values}
    needs = NEEDS["any"] | NEEDS.get(function.__name__, {})
    for name, texts in needs.items():
        for words in map(str.split, texts):
            if name in names and names.isdisjoint(words):
                raise ConfigError(f"--{name} has no effect without --{' or --'.join(words)}")
    for key, value in values.items():
        try:
            values[key] = read(known[key], value)
        except ConfigError as error:
            raise ConfigError(f"argument --{known[key].name}: {error}") from None
    return values
