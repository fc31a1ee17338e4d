"""Argument checks and launchers shared by all versions of the reductions."""

from collections.abc import Callable
from functools import partial

import torch

from kernels.launch import require_contiguous, require_shape, require_tensors

INPUTS = {"sum": ("x",), "dot": ("x", "y")}
"""Names of the inputs by operation."""


def launchers(
    version: str,
    launch: Callable[[str, torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor], None],
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v2`; `launch` takes the operation, x, y of `dot`,
    and out.
    """

    def run(op: str, *vectors: torch.Tensor, out: torch.Tensor) -> None:
        label = f"{op} {version}"
        operands = dict(zip(INPUTS[op], vectors, strict=True))
        require_tensors(label, **operands, out=out)
        require_contiguous(label, **operands, out=out)
        x, *others = vectors
        if x.dim() != 1:
            raise ValueError(f"{label}: x has shape {tuple(x.shape)}; expected one dimension, (n,)")
        for other in others:
            require_shape(label, "y", other, x.shape)
        require_shape(label, "out", out, ())
        launch(op, x, tuple(others), out)

    return {op: partial(run, op) for op in INPUTS}
