"""Argument checks shared by all versions of cross-entropy."""

import torch

from kernels.launch import (
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
    row_stride,
)
from kernels.online_softmax import MAX_COLUMNS


def read(
    label: str, logits: torch.Tensor, labels: torch.Tensor, out: torch.Tensor
) -> tuple[int, int, int]:
    """Check the tensors and return rows, columns and row stride of the logits."""
    require_tensors(label, logits=logits)
    stride = row_stride(label, "logits", logits, "(m, v)")
    m, v = logits.shape
    if not 1 <= v <= MAX_COLUMNS:
        raise ValueError(f"{label}: logits has {v} columns; 1 to {MAX_COLUMNS} are supported")
    for name, tensor, dtype in (("labels", labels, torch.int64), ("out", out, torch.float32)):
        require_companion(label, name, tensor, dtype, ("logits", logits))
        require_contiguous(label, **{name: tensor})
        require_shape(label, name, tensor, (m,))
    return m, v, stride
