"""What a matrix-vector product is asked for, read from its tensors once for all versions; anything else is refused."""

import torch

from kernels.launch import require_companion, require_contiguous, require_shape, require_tensors, row_stride


def read(
    label: str,
    a: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None = None,
    unit: int = 1,
) -> int:
    """Return the elements from one row of A to the next.

    Args:
        label: Opening words of a message.
        a: A, (m, n); of the dtype of x, or int8 where there are scales.
        x: x, (n,).
        out: y, (m,), of the dtype of x.
        scales: One factor a row of an int8 matrix, fp32.
        unit: The stride of a matrix that has one row is its length, rounded up to a multiple of this.
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
