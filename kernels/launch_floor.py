"""Version 1 of the launch floor: an empty kernel.

FLOPs 0, bytes 0. There is one program of one warp, so the measured time is that of the launch. The
kernel takes one pointer, which it does not follow, because Triton finds the device by a tensor
argument.
"""

import triton

from kernels.launch import Variant


@triton.jit
def empty_kernel(
    x_ptr,  # any tensor of the device
):
    pass


VARIANT = Variant(
    kernel=empty_kernel,
    constants={},
    warps=1,
    op="launch-floor",
    dtype="fp32",
)


def variants(arch: int) -> tuple[Variant, ...]:
    return (VARIANT,)
