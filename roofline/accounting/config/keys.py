"""Typed access to the keys of a model's configuration: each is read as what it must be, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from results.show.terminal import one_line
from roofline.accounting.config.config import ConfigError

_Value = TypeVar("_Value")

LARGEST = {"layers": 100_000, "extent": 100_000_000}
"""Far above any model, and small enough that all products stay exact and quick."""


class ConfigKeys:
    """The keys of one configuration, with where it comes from for the messages."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self.assumptions: list[str] = []
        """One line for each key that the file left out."""

    def has(self, key: str) -> bool:
        """Return whether the key is there and is not null."""
        return self._values.get(key) is not None

    def is_word(self, key: str, word: str) -> bool:
        """Return whether the value of a key is this word."""
        return bool(self._values.get(key) == word)

    def rank(self, key: str, default: int) -> int:
        """Return a whole number, 0 where the file says null, and the default where it does not name the key.

        Raises:
            ConfigError: it is something else.
        """
        return 0 if key in self._values and not self.has(key) else self.whole(key, default=default)

    def whole(self, *keys: str, default: int | None = None, least: int = 1, largest: str = "extent") -> int:
        """Return a whole number under the first of `keys` that is there.

        Args:
            keys: names of the same thing.
            default: what the family takes where none is there; None: the key is needed.
            least: smallest value allowed.
            largest: a key of `LARGEST`.

        Raises:
            ConfigError: it is missing, no whole number, or out of range.
        """
        key = next((name for name in keys if self.has(name)), None)
        if key is None:
            if default is None:
                raise ConfigError(f"{self._where}: '{keys[0]}' is missing")
            return self.assumed(keys[0], default)
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST[largest]:
            self.refuse(key, f"a whole number from {least} to {LARGEST[largest]:,}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Raises:
            ConfigError: it is something else.
        """
        if key not in self._values:
            return self.assumed(key, default)
        if not isinstance(self._values[key], bool):
            self.refuse(key, "true or false")
        return bool(self._values[key])

    def words(self, key: str, allowed: Sequence[str]) -> list[str] | None:
        """Return a list of words, or None where the key is not there.

        Raises:
            ConfigError: it is no list, or has another word.
        """
        if not self.has(key):
            return None
        value = self._values[key]
        if not isinstance(value, list) or any(word not in allowed for word in value):
            self.refuse(key, f"a list of {' or '.join(allowed)}")
        return list(value)

    def places(self, key: str, layers: int) -> set[int]:
        """Return a list of layer numbers as a set; empty where the key is not there.

        Raises:
            ConfigError: it is no list of layer numbers.
        """
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int and 0 <= item < layers for item in value):
            self.refuse(key, f"a list of layers from 0 to {layers - 1}")
        return set(value)

    def assumed(self, key: str, value: _Value) -> _Value:
        """Note that a key is not in the file, and return the value taken for it."""
        shown = str(value).lower() if isinstance(value, bool) else value
        self.assumptions.append(f"'{key}' is not in the configuration: {shown}, as its family takes it")
        return value

    def refuse(self, key: str, allowed: str) -> NoReturn:
        """Say that the value of a key is not allowed.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self._where}: '{key}' must be {allowed}, found {shown_value(self._values[key])}")


def shown_value(value: object) -> str:
    """Return a value of a file for a message: short, in one line, and quick even where the value is huge."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return one_line(repr(value)[:80])
