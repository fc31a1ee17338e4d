"""Numbers as text, with units and prefixes.

One rule for all: four significant digits, whole numbers without decimals, and an exponent, a
multiple of three, below 10^-4 and from 10^6 on. Only counts have commas, so a number of a table can
be parsed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ABSENT = "-"
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
COUNT_LETTERS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1.0, ""))
"""Letters of large counts, as options take them: 8.030 B parameters."""

TIME_UNITS = ((86400.0, "days"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
MIN_PERCENT = 0.001
TOO_NOISY = 1
"""Half width of an interval, as a fraction of its center, above which its number is not shown."""


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, such as 143.9, 12346, 12.63e9; `-` for
    None.

    The digits before the decimal point are never rounded.
    """
    if value is None:
        return ABSENT
    if value and not 1e-300 < abs(value) < math.inf:
        return f"{value:.{digits}g}"
    if abs(value) < 1e6 and math.isclose(value, round(value)):
        return f"{round(value)}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if -4 <= exponent < 6:
        return f"{value:.{max(0, digits - 1 - exponent)}f}"
    exponent -= exponent % 3
    return f"{number(value / 10**exponent, digits)}e{exponent}"


def count(value: float, noun: str = "") -> str:
    """Return a count, such as 98,765,000 or `8 devices`: exact below 10^15, else as `number`."""
    text = f"{value:,.0f}" if value < 1e15 and value == int(value) else number(value)
    if not noun:
        return text
    return f"{text} {noun}" if value == 1 else f"{text} {noun}s"


def quantity(
    value: float | None,
    unit: str = "",
    prefixes: Sequence[tuple[float, str]] = PREFIXES,
    digits: int = 4,
) -> str:
    """Return a value with the prefix that suits it, such as `989.4 TFLOP/s` for the unit `FLOP/s`;
    seconds as `duration`; `-` for None.
    """
    if value is None:
        return ABSENT
    if unit == "s":
        return duration(value)
    factor, prefix = next((entry for entry in prefixes if abs(value) >= entry[0]), prefixes[-1])
    return f"{number(value / factor, digits)} {prefix}{unit}".rstrip()


def gibibytes(byte_count: float) -> str:
    """Return the memory of a device in the unit that it is sold in, whose GB are of 2^30 bytes:
    79.19 GiB.
    """
    return f"{number(byte_count / 2**30)} GiB"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it, such as `12.34 us`; `-` for None."""
    return quantity(seconds, "", TIME_UNITS)


def percent(part: float | None, whole: float = 1.0) -> str:
    """Return a part of a whole in percent with three significant digits, such as 12.3%, or that it
    is below `MIN_PERCENT`; `-` for None.
    """
    if part is None:
        return ABSENT
    share = 100 * part / whole
    if 0 < share < MIN_PERCENT:
        return f"<{MIN_PERCENT:g}%"
    return f"{number(share, 3)}%"


def format_half_width(interval: tuple[float, float] | None, center: float | None) -> str:
    """Return half the width of an interval as a share of its center, such as `±1.2%`; `-` if one is
    None.
    """
    if interval is None or center is None:
        return ABSENT
    low, high = interval
    return uncertainty((high - low) / 2 / center)


def uncertainty(share: float) -> str:
    return f"±{number(100 * share, 2)}%" if share <= TOO_NOISY else "too noisy"
