"""Bugs planted in the reductions. eps and max-subtraction do not occur in them.

An offset beyond 2^31 takes more elements than a test without a GPU can add, so the wraps show in compiled form only.
"""

from planted import Bug

V1 = "kernels/reduction/v1_two_pass.py"
V2 = "kernels/reduction/v2_one_launch.py"
OUTPUT_DTYPE = ".to(x_ptr.dtype.element_ty)"
WIDENED = "tl.program_id(0).to(tl.int64)"

BUGS = [
    Bug("mask off by one", V1, "inside = offsets < n", "inside = offsets <= n"),
    Bug("mask off by one", V1, "mask=offsets < count", "mask=offsets < count - 1"),
    Bug("wrong stride", V1, "program * BLOCK + tl", "program * (BLOCK - 1) + tl"),
    Bug("lost tail", V1, "range(0, count, BLOCK)", "range(0, count - BLOCK + 1, BLOCK)"),
    Bug("int32 offset wrap", V1, WIDENED, "tl.program_id(0)", only_compiled=True),
    Bug("swapped rounding", V1, "program, tl.sum(terms)", f"program, tl.sum(terms){OUTPUT_DTYPE}"),
    Bug("wrong accumulate dtype", V1, "other=0.0).to(tl.float32)", f"other=0.0){OUTPUT_DTYPE}", count=2),
    Bug("mask off by one", V2, "inside = offsets < left", "inside = offsets <= left"),
    Bug("mask off by one", V2, "(program == 0, n, 0)", "(program == 0, n - 1, 0)"),
    Bug("mask off by one", V2, "slots < programs", "slots < programs - 1"),
    Bug("wrong stride", V2, "at += programs.to(tl.int64) * BLOCK", "at += BLOCK"),
    Bug("wrong stride", V2, "(LANES * LOADS) + program * piece", "(LANES * LOADS) + program * LANES"),
    Bug("lost tail", V2, "    total += terms\n", "    total += terms * 0\n"),
    Bug("lost tail", V2, "range(rounds)", "range(rounds - 1)"),
    Bug("lost tail", V2, "accesses - begin, piece), 0)", "accesses - begin - 1, piece), 0)"),
    Bug(
        "int32 offset wrap",
        V2,
        "at = program * BLOCK",
        "at = (tl.program_id(0) * BLOCK).to(tl.int64)",
        only_compiled=True,
    ),
    Bug("int32 offset wrap", V2, "at += programs.to(tl.int64) * BLOCK", "at += programs * BLOCK", only_compiled=True),
    Bug("swapped rounding", V2, "program, tl.sum(total)", f"program, tl.sum(total){OUTPUT_DTYPE}"),
    Bug("wrong accumulate dtype", V2, "tl.reshape(terms,", f"tl.reshape(terms{OUTPUT_DTYPE},"),
]
