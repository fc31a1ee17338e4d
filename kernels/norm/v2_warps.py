"""Version 2 of the row norms: the number of warps follows the width of the row.

Computes what version 1 does, by its kernels, with the same bytes moved and the same rounding.

Changed against version 1: at most 64 elements a thread, 32 up to 16,384 columns: 4 warps to 4096 columns, then one for
each 1024, 16 at most. On sm_90 16,384 columns take 62 to 128 registers where version 1 takes 121 to 240;
at 32,768 fp32 and layernorm still spill. Rows beyond 32,768 columns are refused: 65,536 in one block is 64 elements for
each of 1024 threads, which may have 64 registers each.

What it leaves out: still one row a program, so one of 1024 columns has 4 warps wait for each other; up to half of a
block is idle; an n that is no multiple of 16, or a row stride that is none, costs every 16-byte access of every row.
"""

from functools import partial

from kernels.launch import Variant
from kernels.norm import launchers
from kernels.norm.v1_naive import launch, variants_of

WARPS = {1024: 4, 2048: 4, 4096: 4, 8192: 8, 16384: 16, 32768: 16}  # by columns; a row takes the first that holds it
VARIANTS = variants_of(WARPS)


def variants(arch: int) -> tuple[Variant, ...]:
    return tuple(VARIANTS.values())


KERNELS = launchers("v2", max(WARPS), partial(launch, VARIANTS))
