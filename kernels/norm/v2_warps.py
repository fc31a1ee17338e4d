"""Version 2 of the row norms: the number of warps depends on the width of the row.

Computes the same as version 1 with the same kernels, bytes and rounding.

Changes from version 1: a thread has at most 64 elements, and at most 32 up to 16,384 columns: 4
warps up to 4096 columns, then one per 1024 columns, at most 16. On sm_90, 16,384 columns take 62 to
128 registers instead of 121 to 240, so more programs share a multiprocessor. At 32,768 columns fp32
and layernorm still spill. Rows beyond 32,768 columns are rejected: 65,536 in one block are 64
elements for each of 1024 threads, which may have 64 registers each.

What is slow: one row per program, so with 1024 columns 4 warps wait for each other; up to half of a
block is idle; if n or a row stride is not a multiple of 16, no access is 16 bytes wide.
"""

from functools import partial

from kernels.launch import on_any_arch
from kernels.norm import launchers
from kernels.norm.v1_naive import launch, variants_of

# By columns; a row takes the first that holds it.
WARPS = {1024: 4, 2048: 4, 4096: 4, 8192: 8, 16384: 16, 32768: 16}
VARIANTS = variants_of(WARPS)
variants = on_any_arch(VARIANTS)

KERNELS = launchers("v2", max(WARPS), partial(launch, VARIANTS))
