"""Argument checks and launchers shared by all versions of the row norms."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.launch import require_contiguous, require_shape, require_tensors, row_stride


@dataclass(frozen=True)
class Operands:
    """The tensors of a norm over m rows of n elements.

    Attributes:
        inputs: Matrices, then vectors of n elements, in the order of the kernel arguments; x twice
            for rmsnorm, which has the kernels of residual-rmsnorm.
        out: The result; of residual-rmsnorm the sum and the result.
        strides: Row strides in elements of the input matrices and of `out`; 0 if there is only one
            row.
        plane: Elements from the sum to the result of residual-rmsnorm; 0 for the other operations.
    """

    m: int
    n: int
    inputs: tuple[torch.Tensor, ...]
    out: torch.Tensor
    strides: tuple[int, ...]
    plane: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Columns, strides and, if there may be a residual, `plane`, in the order of the kernel
        arguments.
        """
        sizes = (self.n, *self.strides)
        return (*sizes, self.plane) if len(self.strides) == 3 else sizes


def launchers(
    version: str, max_columns: int, launch: Callable[[str, Operands], None]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v3` by operation; they call `launch` unless out is
    empty.
    """

    def run(
        op: str,
        matrices: dict[str, torch.Tensor],
        vectors: dict[str, torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        operands = _read(f"{op} {version}", matrices, vectors, out, max_columns)
        if out.numel():
            launch(op, operands)

    def rmsnorm(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
        run("rmsnorm", {"x": x}, {"weight": weight}, out)

    def layernorm(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, out: torch.Tensor
    ) -> None:
        run("layernorm", {"x": x}, {"weight": weight, "bias": bias}, out)

    def residual(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor
    ) -> None:
        run("residual-rmsnorm", {"x": x, "residual": residual}, {"weight": weight}, out)

    return {"rmsnorm": rmsnorm, "layernorm": layernorm, "residual-rmsnorm": residual}


def _read(
    label: str,
    matrices: dict[str, torch.Tensor],
    vectors: dict[str, torch.Tensor],
    out: torch.Tensor,
    max_columns: int,
) -> Operands:
    x = matrices["x"]
    require_tensors(label, **matrices, **vectors, out=out)
    require_contiguous(label, **vectors)
    if x.dim() != 2:
        raise ValueError(
            f"{label}: x has shape {tuple(x.shape)}; expected two dimensions, (rows, columns)"
        )
    m, n = x.shape
    if n > max_columns:
        raise ValueError(
            f"{label}: x has {n} columns; at most {max_columns} are supported by this version"
        )
    for name, tensor in (matrices | vectors).items():
        require_shape(label, name, tensor, (m, n) if name in matrices else (n,))
    require_shape(label, "out", out, (2, m, n) if "residual" in matrices else (m, n))
    planes = out if out.dim() == 3 else out[None]
    stored = matrices | {"out": planes[0]}
    strides = tuple(
        row_stride(label, name, tensor, of_one_row=0) for name, tensor in stored.items()
    )
    plane = planes.stride(0) if len(planes) == 2 else 0
    if len(planes) == 2 and plane < (m - 1) * strides[-1] + n:
        raise ValueError(
            f"{label}: out has strides {out.stride()}; its two matrices must not overlap"
        )
    if "residual" not in matrices and "bias" not in vectors:
        return Operands(m, n, (x, x, *vectors.values()), out, (strides[0], *strides), plane)
    return Operands(m, n, (*matrices.values(), *vectors.values()), out, strides, plane)
