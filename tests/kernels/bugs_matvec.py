"""Bugs planted in the matrix-vector kernels. eps and max-subtraction do not occur in them."""

from planted import Bug

V1 = "kernels/matvec/v1_naive.py"
V2 = "kernels/matvec/v2_pipelined.py"
V3 = "kernels/matvec/v3_split_k.py"

BUGS = [
    Bug("mask off by one", V1, "inside = columns < n", "inside = columns <= n"),
    Bug("wrong stride", V1, "row * row_stride", "row * n"),
    Bug("lost tail", V1, "in range(0, n.to(tl.int64), BLOCK)", "in range(0, n.to(tl.int64) // BLOCK * BLOCK, BLOCK)"),
    Bug("int32 offset wrap", V1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Bug("swapped rounding", V1, "tl.sum(partial)", "tl.sum(partial.to(x_ptr.dtype.element_ty))"),
    Bug("wrong accumulate dtype", V1, "a.to(tl.float32) * x.to(tl.float32)", "(a * x).to(tl.float32)"),
    Bug("mask off by one", V2, "row_inside = rows < m", "row_inside = rows <= m"),
    Bug("mask off by one", V2, "inside = lanes < n - full", "inside = lanes < n - full - 1"),
    Bug("wrong stride", V2, "rows[:, None] * row_stride", "rows[:, None] * n"),
    Bug("lost tail", V2, "if full < n:", "if full > n:"),
    Bug("int32 offset wrap", V2, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Bug("mask off by one", V3, "        inside = rows < m", "        inside = rows <= m", count=2),
    Bug("mask off by one", V3, "mask=columns < left", "mask=columns <= left", count=2),
    Bug("mask off by one", V3, "tl.where(lanes < ACCESS, head, n)", "tl.where(lanes < ACCESS, head, n - 1)"),
    Bug("mask off by one", V3, "tl.where(lanes < ACCESS, head, n)", "tl.where(lanes < ACCESS, head - 1, n)"),
    Bug("mask off by one", V3, "(start + lanes < splits)", "(start + lanes <= splits)"),
    Bug(
        "wrong stride",
        V3,
        "first = tl.where(inside, rows, 0) * row_stride\n",
        "first = tl.where(inside, rows, 0) * n\n",
    ),
    Bug("wrong stride", V3, "rows, 0) * row_stride * ACCESS", "rows, 0) * (n // ACCESS) * ACCESS"),
    Bug("wrong stride", V3, "out_ptr + rows * splits + split", "out_ptr + rows + split * m"),
    Bug("lost tail", V3, "if full_end < end:", "if full_end > end:"),
    Bug("lost tail", V3, "if (split == 0) &", "if (split < 0) &"),
    Bug("lost tail", V3, "range(0, splits, SPLITS)", "range(0, splits // SPLITS * SPLITS, SPLITS)"),
    Bug(
        "lost tail", V3, "start = tl.minimum(split * steps * STEP", "start = tl.minimum((split * steps + split) * STEP"
    ),
    Bug("int32 offset wrap", V3, "(program // splits).to(tl.int64)", "program // splits"),
    Bug(
        "swapped rounding",
        V3,
        "a.to(tl.float32) * x.to(tl.float32), (ROWS",
        "(a.to(tl.float32) * x.to(tl.float32)).to(x.dtype), (ROWS",
    ),
    Bug(
        "swapped rounding",
        V3,
        "tl.store(out_ptr + rows * splits + split, total",
        "tl.store(out_ptr + rows * splits + split, total.to(x_ptr.dtype.element_ty)",
    ),
    Bug(
        "wrong accumulate dtype",
        V3,
        "total = tl.sum(partial, axis=1)\n\n",
        "total = tl.sum(partial.to(x_ptr.dtype.element_ty), axis=1).to(tl.float32)\n\n",
    ),
    Bug("wrong accumulate dtype", V3, "(m, chosen.splits), dtype=torch.float32", "(m, chosen.splits), dtype=x.dtype"),
]
