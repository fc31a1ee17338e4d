"""Numbers as text with units and prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

ABSENT = "-"
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
TOO_NOISY = 1
"""Half width of an interval, as a fraction of its center, above which its number is not shown."""


def _in_unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    factor, unit = next((entry for entry in units if abs(value) >= entry[0]), units[-1])
    return value / factor, unit


def format_number(value: float | None, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits and no exponent where that stays short; `-`
    for None.
    """
    if value is None:
        return ABSENT
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def format_time(seconds: float | None) -> str:
    """Return a time in the unit that suits it, such as `12.34 us`; `-` for None."""
    if seconds is None:
        return ABSENT
    value, unit = _in_unit(seconds, TIME_UNITS)
    return f"{format_number(value)} {unit}"


def format_rate(value: float | None, unit: str) -> str:
    """Return a rate with the prefix that suits it, such as `989.4 TFLOP/s` for the unit `FLOP/s`;
    `-` for None.
    """
    if value is None:
        return ABSENT
    value, prefix = _in_unit(value, PREFIXES)
    return f"{format_number(value)} {prefix}{unit}"


def format_percent(value: float | None) -> str:
    """Return a percentage with three significant digits; above 100 it is shown as it is. `-` for
    None.
    """
    return ABSENT if value is None else f"{format_number(value, 3)}%"


def format_share(value: float | None) -> str:
    return format_percent(None if value is None else 100 * value)


def format_uncertainty(share: float) -> str:
    return f"±{format_number(100 * share, 2)}%" if share <= TOO_NOISY else "too noisy"


def count(value: float) -> str:
    """Return a count: exact with commas if an integer below 10^15, else as `number`."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return number(value)


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits: 143.9, 6.3e24, 0.00123."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        text = (
            f"{value:.{digits}g}"
            if abs(value) < 10 ** (digits - 1)
            else f"{value:,.1f}".removesuffix(".0")
        )
        return text if abs(value) < 10**digits else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def billions(value: float) -> str:
    """Return a count as so many times 10^9, with four digits or more: 12.63e9, 40.00e9."""
    scaled = value / 1e9
    if not 1e-3 <= scaled < 1e6:
        return number(value)
    return f"{scaled:.{max(0, 3 - math.floor(math.log10(scaled)))}f}e9"


def abbreviated(value: float) -> str:
    """Return a number with the letter of its size, as options take it: 8.03 B; none below 10^6 and
    from 10^15 on.
    """
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if factor <= value < factor * 1000:
            return f"{value / factor:.4g} {letter}"
    return number(value)


def devices(gpus: int) -> str:
    return f"{gpus:,} device{'' if gpus == 1 else 's'}"


def size(byte_count: float) -> str:
    """Return bytes in the decimal unit that fits, with four digits: 2.416 GB."""
    value, prefix = _in_unit(byte_count, PREFIXES)
    return f"{number(value)} {prefix}B"


def memory(byte_count: float) -> str:
    """Return the memory of a device in the unit that it is sold in, whose GB are of 2^30 bytes:
    79.19 GiB.
    """
    return f"{number(byte_count / 2**30)} GiB"


def duration(seconds: float) -> str:
    """Return seconds in the unit that fits, with four digits: 2.315 ms."""
    value, unit = _in_unit(seconds, ((86400, "days"), *TIME_UNITS))
    return f"{number(value)} {unit}"


def significant(value: float, digits: int = 3) -> str:
    """Return a value above 0 with `digits` significant digits and never an exponent below a
    million: 295, 20.7.
    """
    if not 1e-4 <= value < 1e6:
        return f"{value:.{digits}g}"
    places = max(0, digits - 1 - math.floor(math.log10(value)))
    shown = f"{value:.{places}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def si(value: float, unit: str) -> str:
    """Return a value with a decimal prefix, for example `si(989.4e12, "FLOP/s")` =
    `989 TFLOP/s`.
    """
    value, prefix = _in_unit(value, PREFIXES[1:])  # peaks are compared in TFLOP/s
    return f"{significant(value)} {prefix}{unit}"


def rate_unit(largest: float) -> tuple[float, str]:
    """Return the unit of an axis of FLOP/s that ends at `largest`: its value in FLOP/s and its
    name.
    """
    factor, prefix = next(
        (entry for entry in PREFIXES[1:] if largest >= 5 * entry[0]), PREFIXES[-1]
    )
    return factor, f"{prefix}FLOP/s"


def tick(value: float) -> str:
    """Return the label of a decade: 0.1, 1, 10, 1,000; with an exponent where that would be
    long.
    """
    if 1e-3 <= value < 1e6:
        return f"{value:,.0f}" if value >= 1 else f"{value:g}"
    return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
