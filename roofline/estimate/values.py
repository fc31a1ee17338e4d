"""What a parameter of an estimate may be: a reader returns the value of a text or of a Python value, or refuses it.

The readers raise a `ConfigError` of one line, whether the value was typed, sent by a form or passed from Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Annotated

from results.show.spelling import did_you_mean, known_as
from results.show.terminal import one_line
from roofline.accounting.config.config import MOST, ConfigError, ModelConfig
from roofline.work import dtype_named

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
NUMBER = re.compile(r"((?:\d{1,30}(?:_\d{1,30})*(?:\.\d{1,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)([kKmMbBgGtT]?)")
LARGEST = 10**30
"""As in run files: no count is larger."""


def _text(value: object) -> str:
    if callable(value) or isinstance(value, Mapping | bytes):
        raise ConfigError(f"takes no {type(value).__name__}; give a number, a text or a list of these")
    return str(value).strip()


def _number(text: str) -> Fraction | None:
    match = NUMBER.fullmatch(text)
    return Fraction(match[1]) * SUFFIXES[match[2].lower()] if match else None


def _shown(text: object) -> str:
    return f"'{one_line(str(text))}'"


def positive(value: object) -> float:
    """Return a number above 0, such as 70e9, "70B" or 0.5; a whole one as an integer, exact."""
    found = _number(text := _text(value))
    if found is None or not Fraction(1, LARGEST) <= found <= LARGEST:
        raise ConfigError(f"{_shown(text)} must be a number above 0 and at most 10^30, such as 70e9, 70B or 0.5")
    return int(found) if found.denominator == 1 else float(found)


def whole(value: object) -> int:
    """Return a whole number from 1, such as 8, 4096 or "15T"."""
    found = _number(text := _text(value))
    if found is None or found.denominator != 1 or not 1 <= found <= MOST:
        raise ConfigError(f"{_shown(text)} must be a whole number from 1 to 10^12")
    return int(found)


def share(value: object) -> float:
    """Return a fraction above 0, at most 1, such as 0.5 or "50%"."""
    text = _text(value)
    found = _number(text.removesuffix("%"))
    if found is not None and text.endswith("%"):
        found /= 100
    if found is None or not Fraction(1, LARGEST) <= found <= 1:
        hint = "; 40 % is 0.4" if found and found > 1 else ""
        raise ConfigError(f"{_shown(text)} must be a fraction above 0 and at most 1{hint}")
    return float(found)


def exact(value: object) -> Fraction:
    """Return a number of either sign as it is written, with at most 300 digits."""
    text = _text(value)
    found = _number(text.removeprefix("-"))
    if found is None or found > 10**300 or (found and found < Fraction(1, 10**330)):
        raise ConfigError(f"{_shown(text)} must be a number, such as 1e-8")
    return -found if text.startswith("-") else found


def extents(value: object) -> tuple[int, ...]:
    """Return the extents of a shape such as "49152x12288" or (49152, 12288)."""
    text = "x".join(map(str, value)) if isinstance(value, tuple | list) else _text(value)
    words = text.replace("×", "x").replace(",", "x").split("x")
    if len(words) > 32:
        raise ConfigError(f"{_shown(text)} has {len(words)} dimensions; at most 32")
    try:
        found = tuple(map(whole, words))
    except ConfigError:
        raise ConfigError(f"{_shown(text)} must be a shape such as 4096x4096") from None
    if prod(found) > LARGEST:
        raise ConfigError(f"{_shown(text)} has more than 10^30 elements")
    return found


def product_shape(value: object) -> tuple[int, int, int]:
    """Return M, N and K of a shape MxNxK; one number stands for all three."""
    found = extents(value)
    if len(found) not in (1, 3):
        raise ConfigError(f"{_shown(value)} must be MxNxK, such as 4096x4096x1024, or one number")
    m, n, k = found * 3 if len(found) == 1 else found
    return m, n, k


def names(value: object) -> list[str]:
    """Return the words of a list, or of a text with commas, each once."""
    listed = value if isinstance(value, list | tuple | set | frozenset) else [value]
    found = [word.strip() for one in listed for word in _text(one).split(",") if word.strip()]
    if not found:
        raise ConfigError("names nothing; write names with commas between")
    return list(dict.fromkeys(found))


def text(value: object) -> str:
    """Return a text, such as a path."""
    return _text(value)


def model_named(value: object) -> str | ModelConfig:
    """Return the name of a preset, or a model as it is."""
    return value if isinstance(value, ModelConfig) else _text(value)


@dataclass(frozen=True)
class OneOf:
    """Reads one of a few words; dtypes also by the names that torch has for them."""

    known: tuple[str, ...]

    @classmethod
    def of(cls, known: Iterable[str]) -> OneOf:
        """Return the reader of one of these words."""
        return cls(tuple(known))

    def __call__(self, value: object) -> str:
        """Return the word."""
        word = known_as(dtype_named(_text(value)), self.known)
        if word not in self.known:
            what = _shown(word) if word else "an empty text"
            hint = did_you_mean(word, self.known)
            raise ConfigError(f"{what} is not known; {hint}{' ' * bool(hint)}known: {', '.join(self.known)}")
        return word


@dataclass(frozen=True)
class SomeOf(OneOf):
    """Reads a list of such words."""

    def __call__(self, value: object) -> list[str]:  # type: ignore[override]
        """Return the words, each once."""
        return list(dict.fromkeys(OneOf(self.known)(word) for word in names(value)))


Number = Annotated[float, positive]
Whole = Annotated[int, whole]
Share = Annotated[float, share]
Names = Annotated[list[str], names]
Model = Annotated[str | ModelConfig, model_named]
