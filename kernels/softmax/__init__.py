"""Argument checks and the launcher shared by all versions of softmax."""

from collections.abc import Callable

import torch

from kernels.launch import require_shape, require_tensors, row_stride


def launcher(
    version: str,
    max_columns: int,
    launch: Callable[[torch.Tensor, torch.Tensor, int, int], None],
    unit: int = 1,
) -> Callable[..., None]:
    """Return the launcher of a version such as `v2`; the row strides of x and out must differ by a
    multiple of `unit`.

    It calls `launch` with x, out and their row strides in elements, unless out is empty.
    """
    label = f"softmax {version}"

    def softmax(x: torch.Tensor, *, out: torch.Tensor) -> None:
        require_tensors(label, x=x, out=out)
        x_stride = row_stride(label, "x", x)
        require_shape(label, "out", out, x.shape)
        out_stride = row_stride(label, "out", out)
        n = x.shape[1]
        if n > max_columns:
            raise ValueError(
                f"{label}: x has {n} columns; at most {max_columns} are supported by this version"
            )
        if (x_stride - out_stride) % unit:
            raise ValueError(
                f"{label}: rows of x are {x_stride} elements apart, rows of out {out_stride}; "
                f"the strides must differ by a multiple of {unit} (version 1 supports any)"
            )
        if out.numel():
            launch(x, out, x_stride, out_stride)

    return softmax
