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
    """Return the elements from one row of A to the next; of one row its length, rounded up to a multiple of `unit`.

    A is (m, n), x (n,), out (m,), all of one dtype; with scales, fp32 and one a row, A is int8.
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
