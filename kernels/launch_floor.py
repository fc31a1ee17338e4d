"""Version 1 of the launch floor: a kernel with no instruction but its own end.

FLOPs 0, bytes 0. It takes one pointer, which it never follows, because a launch finds its device by a tensor.

Changed against the last version: nothing, this is the starting point. One warp and one program: what is left is
the launch.
"""

import torch
import triton

from kernels.launch import Variant, require_tensors


@triton.jit
def empty_kernel(
    x_ptr,  # any tensor of the device
):
    """Do nothing."""
    pass


VARIANT = Variant(
    kernel=empty_kernel,
    constants={},
    options={"num_warps": 1, "enable_fp_fusion": True},
    op="launch-floor",
    dtype="fp32",
)


def variants(arch: int) -> tuple[Variant, ...]:
    return (VARIANT,)


def launch(x: torch.Tensor) -> None:
    """Start one program that ends at once, on the device of `x`."""
    require_tensors("launch floor v1", x=x)
    VARIANT.launch(1, x)
