"""Number formats: ranges, precision and rounding, by exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with subnormals."""

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    """Stored bits, without the leading 1."""
    largest: Fraction
    overflow: str
    """Result of overflow: `inf`, `largest` (saturation), or `open` if conversions differ."""
    source: str

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(1, 1 << (self.bias - 1))

    @property
    def smallest_subnormal(self) -> Fraction:
        return self.smallest_normal * self.epsilon

    @property
    def epsilon(self) -> Fraction:
        return Fraction(1, 1 << self.mantissa_bits)

    @property
    def decimal_digits(self) -> float:
        """log10 of 2 to the number of mantissa bits, including the leading 1."""
        return (self.mantissa_bits + 1) * math.log10(2)

    def nearest(self, value: Fraction) -> Fraction | None:
        """Return the nearest value of the format, ties to even; None on overflow.

        Source: IEEE 754-2019, section 4.3.1, roundTiesToEven.
        """
        size = abs(value)
        if size == 0:
            return Fraction(0)
        power = size.numerator.bit_length() - size.denominator.bit_length()
        if Fraction(2) ** power > size:
            power -= 1
        exponent = max(power, 1 - self.bias)
        step = Fraction(2) ** (exponent - self.mantissa_bits)
        rounded = round(size / step) * step  # Python rounds fractions to even
        if rounded > self.largest:
            return None
        return rounded if value > 0 else -rounded


def _ieee(name: str, bits: int, exponent_bits: int, mantissa_bits: int, source: str) -> FloatFormat:
    largest = (2 - Fraction(1, 2**mantissa_bits)) * Fraction(2) ** (2 ** (exponent_bits - 1) - 1)
    return FloatFormat(name, bits, exponent_bits, mantissa_bits, largest, "inf", source)


FP8 = "Micikevicius et al., FP8 Formats for Deep Learning (2022), table 1"
FP4 = "OCP Microscaling Formats (2023), E2M1; without the scales of a block"
FORMATS = {
    entry.name: entry
    for entry in (
        _ieee("fp64", 64, 11, 52, "IEEE 754-2019, binary64"),
        _ieee("fp32", 32, 8, 23, "IEEE 754-2019, binary32"),
        _ieee(
            "tf32",
            32,
            8,
            10,
            "NVIDIA A100 whitepaper (2020): fp32 in memory, 10 bits in the multiplier",
        ),
        _ieee("fp16", 16, 5, 10, "IEEE 754-2019, binary16"),
        _ieee("bf16", 16, 8, 7, "Google Brain, bfloat16 (2018)"),
        FloatFormat("fp8e4m3", 8, 4, 3, Fraction(448), "open", FP8),
        _ieee("fp8e5m2", 8, 5, 2, FP8),
        FloatFormat("nvfp4", 4, 2, 1, Fraction(6), "largest", FP4),
        FloatFormat("mxfp4", 4, 2, 1, Fraction(6), "largest", FP4),
    )
}

INTEGERS = {
    "int64": range(-(2**63), 2**63),
    "int32": range(-(2**31), 2**31),
    "int8": range(-128, 128),
    "uint8": range(256),
    "bool": range(2),
}
"""Values of integer types, as torch stores them in two's complement."""


SCALE_BLOCK = {"nvfp4": 16, "mxfp4": 32}
"""Elements that share one scale of 8 bits. Sources: NVIDIA, NVFP4 (2025); OCP Microscaling Formats
(2023): 4 + 8 / 16 = 4.5 and 4 + 8 / 32 = 4.25 bits an element.
"""


def scale_bytes(elements: int, dtype: str) -> int:
    """Return the bytes of block scales, one byte per block; 0 for formats without blocks."""
    block = SCALE_BLOCK.get(dtype)
    return -(-elements // block) if block else 0


def shown_in(value: Fraction, dtype: str) -> float | str | None:
    """Return a value rounded to a format: a number, `inf`, `-inf`, or `448 or nan` if conversions
    differ; for an integer type without its fraction, None if it is out of range.
    """
    if dtype in INTEGERS:
        return int(value) if int(value) in INTEGERS[dtype] else None
    nearest = FORMATS[dtype].nearest(value)
    if nearest is not None:
        return float(nearest)
    sign = "-" if value < 0 else ""
    largest = float(FORMATS[dtype].largest)
    if FORMATS[dtype].overflow == "largest":
        return -largest if sign else largest
    return f"{sign}inf" if FORMATS[dtype].overflow == "inf" else f"{sign}{largest:g} or nan"
