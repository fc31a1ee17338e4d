"""Einsums of two operands as matrix products."""

from __future__ import annotations

import re
from collections.abc import Mapping

from results.show.terminal import one_line
from roofline.accounting.config import ConfigError
from roofline.estimate.question import text_of, whole

AXES = {(True, True, True): "batch", (True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}
"""Axis of an index of the matrix product, by whether it is in the first operand, in the second, and in the result."""


def index_sizes(value: object) -> dict[str, int]:
    """Return the extents of indices such as "b=4,s=8" or {"b": 4, "s": 8}."""
    given = value.items() if isinstance(value, Mapping) else ()
    text = ",".join(f"{name}={size}" for name, size in given) or text_of(value)
    pairs = [word.partition("=") for word in text.split(",")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise ConfigError(f"'{one_line(text)}' is not a list of sizes such as b=4,s=8,h=16,k=32")
    return {name.strip(): whole(size) for name, _, size in pairs}


def axes_of(einsum: str, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the indices of each axis of the matrix product that an einsum of two operands is: batch, m, n and k.

    Indices are names with spaces between them, as einops writes them, or letters, as torch does. Each is in both
    operands (batch if it is also in the result, else k), or in one operand and the result (m and n).

    Raises:
        ConfigError: it is not a matrix product, or an index has no size.
    """
    operands, arrow, result = einsum.partition("->")
    terms = [term.split() for term in (*operands.split(","), result)]
    if not arrow or len(terms) != 3:
        raise ConfigError(f"'{one_line(einsum)}' is not an einsum of two operands such as 'b s h, h k -> b s k'")
    if max(map(len, terms)) < 2:  # without spaces
        terms = [term if set(term) <= set(sizes) else re.findall(r"\.\.\.|.", "".join(term)) for term in terms]
    axes: dict[str, list[str]] = {axis: [] for axis in AXES.values()}
    for index in dict.fromkeys(index for term in terms for index in term):
        axis = AXES.get((index in terms[0], index in terms[1], index in terms[2]))
        if axis is None or max(term.count(index) for term in terms) > 1:
            raise ConfigError(f"index '{one_line(index)}' must be in two of the terms of the einsum, once in each")
        if index not in sizes:
            raise ConfigError(f"index '{one_line(index)}' has no size; --sizes has {', '.join(sizes) or 'none'}")
        axes[axis].append(index)
    if not axes["k"]:
        raise ConfigError("the einsum sums over no index, so it is not a matrix product")
    return axes
