"""What a user writes for a size: `4096`, `4096x1024x512`, `1024:4096:1024`, `256MiB`, and lists of these."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from bench.harness.op import Op

MAX_CASES = 10_000
"""More cases than this are a typing error in a range, not a plan."""

MAX_EXTENT = 10**18 - 1
"""No axis is longer: no machine has an exabyte."""

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class ShapeError(ValueError):
    """A size that cannot be one; the message says which and what to write instead."""


def parse_shapes(words: Iterable[str], op: Op) -> list[dict[str, int]]:
    """Return the shapes that `words` ask for, axis name to extent, each once, in the order written.

    Args:
        words: single numbers, `MxNxK`, and ranges `start:stop:step` (stop included) in place of any number.
        op: names the axes and says what a single number means.

    Raises:
        ShapeError: an extent is not a whole number above 0, or there are too many of them.
    """
    shapes: dict[tuple[int, ...], None] = {}
    for word in words:
        axes = [_extents(part, word) for part in word.split("x")]
        if len(shapes) + math.prod(len(axis) for axis in axes) > MAX_CASES:
            raise ShapeError(f"shape '{word}' makes more than {MAX_CASES} cases; use a larger step")
        for extents in itertools.product(*axes):
            try:
                shape = op.extents(extents, op.axes)
            except ValueError as error:
                raise ShapeError(f"shape '{word}' does not fit {op.name}: {error}") from None
            if max(shape) > MAX_EXTENT:
                raise ShapeError(f"shape '{word}' has more than 10^18 - 1 elements along one axis; use a smaller one")
            shapes[shape] = None
    return [dict(zip(op.axes, extents, strict=True)) for extents in shapes]


def parse_batch_shape(word: str, maximum: int = 10**7) -> tuple[int, int]:
    """Return sequences and tokens of `BxS`.

    Raises:
        ShapeError: it is not two integers from 1 to `maximum`.
    """
    match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", word)
    extents = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(1 <= extent <= maximum for extent in extents):
        raise ShapeError(f"shape '{word}' must be BxS, sequences x tokens, each from 1 to {maximum}; write 8x512")
    return extents


def _extents(text: str, word: str) -> Sequence[int]:
    """Return the values of one axis: a number, or a range."""
    fields = text.split(":")
    if match := re.fullmatch(r"([0-9]{1,9})([kKmM])", text):
        count, power = int(match[1]), "km".index(match[2].lower()) + 1
        raise ShapeError(f"shape '{word}' could be two: did you mean {count * 1024**power} or {count * 1000**power}?")
    if not all(re.fullmatch(r"[0-9]{1,18}", field) for field in fields) or any(int(field) == 0 for field in fields):
        raise ShapeError(
            f"shape '{word}' is not a size: each extent must be a whole number from 1 to 10^18 - 1; "
            "write 4096, 4096x4096x1024 or 1024:4096:1024"
        )
    if len(fields) == 1:
        return [int(fields[0])]
    if len(fields) != 3 or int(fields[0]) > int(fields[1]):
        raise ShapeError(f"range '{text}' must be start:stop:step with start <= stop, for example 1024:4096:1024")
    start, stop, step = map(int, fields)
    return range(start, stop + 1, step)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `256MiB`, `1GB` or `4096`.

    Raises:
        ShapeError: it is no size, or 0.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", text)
    if not match or match[2].upper() not in UNITS:
        raise ShapeError(f"size '{text}' is not one; write a number and B, KB, MB, GB, KiB, MiB or GiB: 256MiB")
    size_bytes = Fraction(match[1]) * UNITS[match[2].upper()]
    if size_bytes < 1 or size_bytes.denominator != 1:
        raise ShapeError(f"size '{text}' must be a whole number of bytes, 1 or more")
    return int(size_bytes)
