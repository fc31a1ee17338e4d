"""Operations on the shape of a tensor: which ones make a view and which ones copy, by the rules of torch.

Source: torch 2.13, `computeStride` in aten/src/ATen/TensorUtils.cpp; the tests compare it with torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from results.show.terminal import one_line
from roofline.accounting.config import ConfigError


class Strided(NamedTuple):
    """The shape of a tensor, and the elements from one index to the next along each dimension."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def dense(cls, shape: Sequence[int]) -> Strided:
        """Return a contiguous tensor: row-major, without gaps."""
        return cls(tuple(shape), tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))

    def then(self, operation: str) -> tuple[Strided, bool]:
        """Return the tensor after an operation, and whether its elements are copied.

        Raises:
            ConfigError: unknown operation, or torch rejects it for this tensor.
        """
        shape, strides = "x".join(map(str, self.shape)), ", ".join(map(str, self.strides))
        tensor = f"a tensor of {shape or 'one element'} with strides {strides or 'none'}"
        try:
            result, is_copy = self._after(operation)
        except (ArithmeticError, IndexError, TypeError, ValueError):
            raise ConfigError(
                f"'{one_line(operation)}' does not fit {tensor}; operations are transpose, transpose:0:1, permute:1:0, "
                "reshape, reshape:8x4, view:8x4, contiguous, and indices such as [0] or [:,1]"
            ) from None
        if is_copy and operation.startswith("view"):
            raise ConfigError(f"{operation} of {tensor} is an error in torch; use reshape, which copies")
        return result, is_copy

    def _after(self, operation: str) -> tuple[Strided, bool]:
        if operation.startswith("["):
            return self._indexed(operation.strip("[]").split(",")), False
        name, _, words = operation.partition(":")
        numbers = [int(word) for word in re.split("[:x]", words)] if words else []
        if name == "transpose":
            first, second = numbers or (-2, -1)
            order = list(range(len(self.shape)))
            order[first], order[second] = order[second], order[first]
            return self._permuted(order), False
        if name == "permute":
            return self._permuted(numbers), False
        if name == "contiguous":
            dense = Strided.dense(self.shape)
            strides = zip(self.shape, self.strides, dense.strides, strict=True)
            is_dense = all(extent == 1 or own == other for extent, own, other in strides)
            return (self, False) if is_dense else (dense, True)
        if name in ("reshape", "view"):
            return self._reshaped(numbers or [-1])
        raise ValueError

    def _permuted(self, dims: Sequence[int]) -> Strided:
        known = range(len(self.shape))
        if sorted(known[dim] for dim in dims) != list(known):
            raise ValueError
        return Strided(tuple(self.shape[dim] for dim in dims), tuple(self.strides[dim] for dim in dims))

    def _indexed(self, parts: Sequence[str]) -> Strided:
        kept = []
        for axis, part in enumerate(parts):
            words = [int(word) if word.strip() else None for word in part.split(":")]
            indices = range(0, self.shape[axis] * self.strides[axis], self.strides[axis])
            chosen = indices[slice(*words)] if len(words) > 1 else indices[words[0]]  # type: ignore[index]
            if isinstance(chosen, range):
                kept.append((len(chosen), chosen.step))
        if not all(extent and stride > 0 for extent, stride in kept):
            raise ValueError
        kept += zip(self.shape[len(parts) :], self.strides[len(parts) :], strict=True)
        return Strided(tuple(extent for extent, _ in kept), tuple(stride for _, stride in kept))

    def _reshaped(self, sizes: Sequence[int]) -> tuple[Strided, bool]:
        """Return the tensor in a new shape, in which one size may be -1, and whether it is a copy."""
        elements = prod(self.shape)
        rest = elements // prod(size for size in sizes if size != -1)
        shape = [rest if size == -1 else size for size in sizes]
        if sizes.count(-1) > 1 or min(shape, default=1) < 1 or prod(shape) != elements:
            raise ValueError
        strides = self._viewed(shape)
        return (Strided.dense(shape), True) if strides is None else (Strided(tuple(shape), strides), False)

    def _viewed(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Return the strides of a view with this shape, or None if it needs a copy.

        Dimensions whose strides continue each other form a chunk. New dimensions may split it, but not span two.
        """
        chunks: list[tuple[int, int]] = []  # elements and stride, from the last dimension
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if chunks and (extent == 1 or stride == prod(chunks[-1])):
                chunks[-1] = (chunks[-1][0] * extent, chunks[-1][1])
            else:
                chunks.append((extent, stride))
        strides: list[int] = []
        left = list(shape)
        for elements, stride in chunks or [(1, 1)]:
            taken = 1
            while left and (taken < elements or left[-1] == 1):
                strides.append(taken * stride)
                taken *= left.pop()
            if taken != elements:
                return None
        return tuple(reversed(strides))
