"""Argument checks shared by all versions of the matrix-vector product."""

import torch

from kernels.launch import (
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
    row_stride,
)


def read(
    label: str,
    a: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    unit: int = 1,
) -> int:
    """Check the tensors and return the row stride of A in elements.

    A is (m, n), x (n,), out (m,), all of one dtype; with scales, fp32 and one per row, A is int8. A
    single row has its length, rounded up to a multiple of `unit`, as stride.

    Raises:
        ValueError: no version computes such a product.
    """
    vectors = {"x": x, "out": out}
    if scales is None:
        require_tensors(label, a=a, **vectors)
    else:
        require_tensors(label, **vectors)
        require_companion(label, "a", a, torch.int8, ("x", x))
        require_companion(label, "scales", scales, torch.float32, ("x", x))
        vectors["scales"] = scales
    require_contiguous(label, **vectors)
    stride = row_stride(label, "a", a, of_one_row=-(-x.numel() // unit) * unit)
    for name, vector in vectors.items():
        require_shape(label, name, vector, a.shape[1:] if name == "x" else a.shape[:1])
    return stride
