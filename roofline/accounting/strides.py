"""Operations on the shape of a tensor: which ones make a view and which ones copy, by the rules of
torch.

NumPy decides as `computeStride` in aten/src/ATen/TensorUtils.cpp does (torch 2.13); the tests
compare them.
"""

from __future__ import annotations

import re
from math import prod

from results.show.terminal import one_line
from roofline.accounting.config import ConfigError

Ints = tuple[int, ...]


def dense_strides(shape: Ints) -> Ints:
    """Return the strides of a contiguous tensor: row-major, without gaps."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def after(operation: str, shape: Ints, strides: Ints) -> tuple[Ints, Ints, bool, int]:
    """Return shape and strides of a tensor after an operation, whether its elements are copied, and
    how many elements before its first one it leaves out.

    Raises:
        ConfigError: unknown operation, or torch rejects it for this tensor.
    """
    extents = "x".join(map(str, shape))
    steps = ", ".join(map(str, strides))
    tensor = f"a tensor of {extents or 'one element'} with strides {steps or 'none'}"
    try:
        shape, strides, is_copy, skipped = _view(operation, shape, strides)
        if min((*shape, *strides), default=1) < 1:
            raise ValueError
    except (IndexError, TypeError, ValueError):
        raise ConfigError(
            f"'{one_line(operation)}' does not fit {tensor}; operations are transpose, "
            "transpose:0:1, permute:1:0, reshape, reshape:8x4, view:8x4, contiguous, and "
            "indices such as [0] or [:,1]"
        ) from None
    if is_copy and operation.startswith("view"):
        raise ConfigError(
            f"{operation} of {tensor} is an error in torch; use reshape, which copies"
        )
    return shape, strides, is_copy, skipped


def _view(operation: str, shape: Ints, strides: Ints) -> tuple[Ints, Ints, bool, int]:
    """Return what `after` does; ValueError, TypeError or IndexError if there is no such view."""
    import numpy as np
    from numpy.lib.stride_tricks import as_strided

    # An element has one byte, and only the first element exists.
    array = as_strided(np.zeros(1, np.uint8), shape, strides)
    name, _, words = operation.partition(":")
    if operation.startswith("["):
        view = array[(*map(_index, operation.strip("[]").split(",")), ...)]
        return view.shape, view.strides, False, view.ctypes.data - array.ctypes.data
    numbers = [int(word) for word in re.split("[:x]", words)] if words else []
    if name in ("transpose", "permute"):
        if name == "permute":
            view = array.transpose(numbers)
        else:
            view = array.swapaxes(*(numbers or (-2, -1)))
        return view.shape, view.strides, False, 0
    if name == "contiguous":
        if array.flags.c_contiguous:
            return shape, strides, False, 0
        return shape, dense_strides(shape), True, 0
    if name not in ("reshape", "view") or min(numbers, default=1) < -1:
        raise ValueError
    shape = as_strided(array, shape, dense_strides(shape)).reshape(numbers or -1).shape
    try:
        view = array.reshape(shape, copy=False)
    except ValueError:
        return shape, dense_strides(shape), True, 0
    torch_strides: list[int] = []
    following = strides[-1] if strides else 1
    for extent, stride in zip(reversed(shape), reversed(view.strides), strict=True):
        # NumPy defines no stride for an extent of 1.
        torch_strides.append(following if extent == 1 else stride)
        following = torch_strides[-1] * extent
    return shape, tuple(reversed(torch_strides)), False, 0


def _index(text: str) -> int | slice:
    numbers = [int(word) if word.strip() else None for word in text.split(":")]
    return slice(*numbers) if len(numbers) > 1 else int(text)
