"""One reading of the machine: a value, or the name of the error that prevented it. Nothing here raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_ERROR_LETTERS = 80
"""Longest error text kept; a library may put a page into one."""


@dataclass(frozen=True)
class Reading:
    """A value, or the reason why there is none: exactly one of the two is None."""

    value: Any = None
    error: str | None = None

    def number(self, low: float, high: float, unit: float = 1.0) -> Reading:
        """Return the value times `unit`, or the error `Implausible` where it is no number from `low` to `high`.

        Libraries answer with all bits set, or with 0, where they have no answer: neither may pass as a measurement.

        Args:
            low: least value that can be true, in the unit that was read.
            high: largest value that can be true, in the unit that was read.
            unit: what one of the read unit is in SI base units; 1 leaves the value as it is.
        """
        if self.error is not None:
            return self
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return failed(f"Implausible: {type(value).__name__}")
        if not low <= value <= high:
            return failed(f"Implausible: {value}")
        return Reading(value if unit == 1.0 else value * unit)

    def map(self, convert: Callable[[Any], Any]) -> Reading:
        """Return what `convert` makes of the value; its failure becomes the error."""
        if self.error is not None:
            return self
        return attempt(lambda: convert(self.value))


def failed(error: str) -> Reading:
    """Return a reading that has no value, with why."""
    return Reading(None, error[:MAX_ERROR_LETTERS])


def attempt(read: Callable[[], Any]) -> Reading:
    """Return what `read` returns, or the name of what it raised."""
    try:
        value = read()
    except Exception as error:  # whatever a driver, a binding or a file system raises, the measurement goes on
        return failed(error_name(error))
    return failed("NoValue") if value is None else Reading(value)


def error_name(error: Exception) -> str:
    """Return the short name of an error: that of NVML without its prefix, else that of its class.

    Source: nvidia-ml-py makes one class for each `NVML_ERROR_*` of nvml.h, `NVMLError_NotSupported` for
    `NVML_ERROR_NOT_SUPPORTED`; a code that it does not know stays a plain `NVMLError` with its number.
    """
    name = type(error).__name__
    if name == "NVMLError":
        return f"NVMLError {getattr(error, 'value', '')}".strip()
    return name.removeprefix("NVMLError_")


def difference(before: Reading, after: Reading) -> Reading:
    """Return how far a counter went, or the error of either reading, or that it went backwards.

    A counter that wraps, or starts anew because a driver was reloaded, tells nothing of what lies between.
    """
    if before.error is not None:
        return before
    if after.error is not None:
        return after
    if after.value < before.value:
        return failed("CounterWentBackwards")
    return Reading(after.value - before.value)


def per_second(count: Reading, window_s: float) -> Reading:
    """Return a count over a window, in 1/s."""
    if count.error is not None:
        return count
    return Reading(count.value / window_s) if is_positive(window_s) else failed("NoWindow")


def is_positive(value: float | None) -> bool:
    """Return whether a value is a finite number above zero."""
    return value is not None and math.isfinite(value) and value > 0


def values(readings: Mapping[str, Reading]) -> dict[str, Any]:
    """Return the values by name, None where there is none."""
    return {name: reading.value for name, reading in readings.items()}


def errors(readings: Mapping[str, Reading], prefix: str = "") -> dict[str, str]:
    """Return the errors by name, of those readings that have one."""
    return {prefix + name: reading.error for name, reading in readings.items() if reading.error is not None}
