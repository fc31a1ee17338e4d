"""Argument checks and launchers shared by all versions of the reductions."""

from collections.abc import Callable

import torch

from kernels.launch import require_contiguous, require_shape, require_tensors


def launchers(
    version: str,
    launch: Callable[[str, torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor], None],
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v2`; `launch` takes the operation, x, y of `dot`,
    and out.
    """

    def run(op: str, out: torch.Tensor, **vectors: torch.Tensor) -> None:
        label = f"{op} {version}"
        require_tensors(label, **vectors, out=out)
        require_contiguous(label, **vectors, out=out)
        x, *others = vectors.values()
        if x.dim() != 1:
            raise ValueError(f"{label}: x has shape {tuple(x.shape)}; expected one dimension, (n,)")
        for other in others:
            require_shape(label, "y", other, x.shape)
        require_shape(label, "out", out, ())
        launch(op, x, tuple(others), out)

    def sum_of(x: torch.Tensor, *, out: torch.Tensor) -> None:
        run("sum", out, x=x)

    def dot(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> None:
        run("dot", out, x=x, y=y)

    return {"sum": sum_of, "dot": dot}
