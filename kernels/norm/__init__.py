"""Argument checks and launchers shared by all versions of the row norms."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from kernels.launch import require_contiguous, require_shape, require_tensors, row_stride

INPUTS = {
    "rmsnorm": ("x", "weight"),
    "layernorm": ("x", "weight", "bias"),
    "residual-rmsnorm": ("x", "residual", "weight"),
}
"""Names of the inputs by operation."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a norm over m rows of n elements.

    Attributes:
        inputs: x, the residual, weight and bias; without a residual x twice, because all operations
            have the same kernels. Only layernorm has a bias.
        out: The result; of residual-rmsnorm the sum and the result.
        strides: Row strides in elements of x, the residual and `out`; 0 if there is only one row.
        plane: Elements from the sum to the result of residual-rmsnorm; 0 for the other operations.
    """

    m: int
    n: int
    inputs: tuple[torch.Tensor, ...]
    out: torch.Tensor
    strides: tuple[int, ...]
    plane: int

    def arguments(self, *first_sizes: int) -> tuple[torch.Tensor | int, ...]:
        """Return tensors, sizes and bias in the order of the kernel arguments."""
        tensors = (*self.inputs[:3], self.out)
        return (*tensors, *first_sizes, self.n, *self.strides, self.plane, *self.inputs[3:])


def launchers(
    version: str, max_columns: int, launch: Callable[[str, Operands], None]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v3` by operation; they call `launch` unless out is
    empty.
    """

    def run(op: str, *inputs: torch.Tensor, out: torch.Tensor) -> None:
        operands = _read(f"{op} {version}", op, inputs, out, max_columns)
        if out.numel():
            launch(op, operands)

    return {op: partial(run, op) for op in INPUTS}


def _read(
    label: str, op: str, inputs: tuple[torch.Tensor, ...], out: torch.Tensor, max_columns: int
) -> Operands:
    tensors = dict(zip(INPUTS[op], inputs, strict=True))
    require_tensors(label, **tensors, out=out)
    x = inputs[0]
    if x.dim() != 2:
        raise ValueError(
            f"{label}: x has shape {tuple(x.shape)}; expected two dimensions, (rows, columns)"
        )
    m, n = x.shape
    if n > max_columns:
        raise ValueError(
            f"{label}: x has {n} columns; at most {max_columns} are supported by this version"
        )
    strides = []
    for name, tensor in tensors.items():
        if name in ("x", "residual"):
            require_shape(label, name, tensor, (m, n))
            strides.append(row_stride(label, name, tensor, of_one_row=0))
        else:
            require_contiguous(label, **{name: tensor})
            require_shape(label, name, tensor, (n,))
    has_sum = op == "residual-rmsnorm"
    require_shape(label, "out", out, (2, m, n) if has_sum else (m, n))
    strides.append(row_stride(label, "out", out[0] if has_sum else out, of_one_row=0))
    plane = out.stride(0) if has_sum else 0
    if has_sum and plane < (m - 1) * strides[-1] + n:
        raise ValueError(
            f"{label}: out has strides {out.stride()}; its two matrices must not overlap"
        )
    if not has_sum:
        inputs = (x, *inputs)
        strides.insert(0, strides[0])
    return Operands(m, n, inputs, out, tuple(strides), plane)
