"""Argument checks and the launcher shared by all versions of cross-entropy."""

from collections.abc import Callable, Mapping

import torch

from kernels.launch import (
    Variant,
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
    row_stride,
)
from kernels.online_softmax import MAX_COLUMNS


def launchers(
    version: str, launch: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], None]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v2`.

    They call `launch` with logits, labels, out and the row stride of the logits in elements, unless
    there are no rows.
    """
    label = f"cross-entropy {version}"

    def run(logits: torch.Tensor, labels: torch.Tensor, *, out: torch.Tensor) -> None:
        require_tensors(label, logits=logits)
        stride = row_stride(label, "logits", logits, "(m, v)")
        m, v = logits.shape
        if not 1 <= v <= MAX_COLUMNS:
            raise ValueError(f"{label}: logits has {v} columns; 1 to {MAX_COLUMNS} are supported")
        for name, tensor, dtype in (("labels", labels, torch.int64), ("out", out, torch.float32)):
            require_companion(label, name, tensor, dtype, ("logits", logits))
            require_contiguous(label, **{name: tensor})
            require_shape(label, name, tensor, (m,))
        if m:
            launch(logits, labels, out, stride)

    return {"cross-entropy": run}


def one_launch(
    version: str, variants: Mapping[torch.dtype, Variant]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version of which one program computes a row."""

    def launch(logits: torch.Tensor, labels: torch.Tensor, out: torch.Tensor, stride: int) -> None:
        m, v = logits.shape
        variants[logits.dtype].launch(m, logits, labels, out, v, stride)

    return launchers(version, launch)
