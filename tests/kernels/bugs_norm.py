"""Bugs that could be in the row norms, each planted in turn: see planted.py.

`missing max-subtraction` does not apply: nothing here has an exponential.
"""

from planted import Bug

V1, V3 = "kernels/norm/v1_naive.py", "kernels/norm/v3_tiles.py"
V4 = "kernels/norm/v4_split_rows.py"
IN_DTYPE = ".to(out_ptr.dtype.element_ty)"
STORED = f"{IN_DTYPE}.to(tl.float32)"
SQUARES = "squares += x.to(tl.float32) * x.to(tl.float32)"

BUGS = [
    # Rows kept in registers.
    Bug("mask off by one", V3, "(rows < m) & (columns < n)", "(rows <= m) & (columns < n)", count=2),
    Bug("mask off by one", V3, "(rows < m) & (columns < n)", "(rows < m) & (columns <= n)", count=2),
    Bug("wrong stride", V3, "rows * out_stride + columns", "rows * x_stride + columns", count=2),
    Bug("wrong stride", V3, "rows * x_stride + columns", "rows * n + columns", count=2),
    Bug("wrong stride", V3, "rows * r_stride + columns", "rows * x_stride + columns"),
    Bug("wrong stride", V3, "        out_ptrs += plane\n", "        out_ptrs += n\n"),
    Bug("lost tail", V3, "triton.cdiv(asked.m, rows or 1)", "max(asked.m // (rows or 1), 1)"),
    Bug("int32 offset wrap", V3, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=4),
    Bug("eps misplaced", V3, "axis=1)[:, None] / n + EPS)", "axis=1)[:, None] / n) + EPS"),
    Bug("eps misplaced", V3, "variance) + EPS)", "variance)) + EPS"),
    Bug("eps misplaced", V3, "LAYER_EPS = 1e-5", "LAYER_EPS = 1e-6"),
    Bug("swapped rounding", V3, "tl.store(out_ptrs, x * scale * w", f"tl.store(out_ptrs, (x * scale){STORED} * w"),
    Bug("swapped rounding", V3, "r.to(tl.float32)).to(x.dtype)", "r.to(tl.float32))"),
    Bug("wrong accumulate dtype", V3, "tl.sum(x * x, axis=1)", f"tl.sum((x * x){IN_DTYPE}, axis=1)"),
    Bug("wrong accumulate dtype", V3, "tl.sum(d * d, axis=1)", f"tl.sum((d * d){IN_DTYPE}, axis=1)"),
    Bug("wrong accumulate dtype", V3, "mean = tl.sum(d, axis=1)[:, None] / n", "mean = 0.0"),
    # Wide rows.
    Bug(
        "mask off by one",
        V3,
        "        inside = columns < n\n        x =",
        "        inside = columns < n - 1\n        x =",
        count=2,
    ),
    Bug("mask off by one", V3, "d = tl.where(columns < n", "d = tl.where(columns <= n"),
    Bug("wrong stride", V3, "out_ptr + row * out_stride\n", "out_ptr + row * x_stride\n", count=2),
    Bug("wrong stride", V3, "r_ptr + row * r_stride", "r_ptr + row * n"),
    Bug("wrong stride", V3, "        out_row += plane\n", "        out_row += n\n"),
    Bug("lost tail", V3, "steps = tl.cdiv(n, WIDTH * ACCESSES)", "steps = n // (WIDTH * ACCESSES)", count=2),
    Bug("lost tail", V3, "(steps - 1 - step) *", "(steps - 1 - step // 2) *", count=2),
    Bug("eps misplaced", V3, "/ n, mean, EPS)\n    for", "/ n, mean, 0.0) + EPS\n    for"),
    Bug("eps misplaced", V3, "tl.rsqrt(tl.sum(squares) / n + EPS)", "tl.rsqrt((tl.sum(squares) + EPS) / n)"),
    Bug("swapped rounding", V3, "columns, x * scale * w, mask", f"columns, (x * scale){STORED} * w, mask"),
    Bug("wrong accumulate dtype", V3, SQUARES, "squares += (x * x).to(tl.float32)"),
    Bug("wrong accumulate dtype", V3, "            squares += d * d\n", f"            squares += (d * d){STORED}\n"),
    # Rows that programs share.
    Bug("mask off by one", V4, "inside = columns < n\n", "inside = columns < n - 1\n", count=3),
    Bug("mask off by one", V4, "d = tl.where(columns < n", "d = tl.where(columns <= n"),
    Bug("mask off by one", V4, "mask=pieces < splits, other", "mask=pieces < splits - 1, other", count=3),
    Bug("wrong stride", V4, "row = program // splits", "row = program // (splits + 1)", count=4),
    Bug("wrong stride", V4, "squares_ptr + row * splits", "squares_ptr + row * MAX_SPLITS"),
    Bug("wrong stride", V4, "sums_ptr + 3 * row * splits", "sums_ptr + row * splits"),
    Bug("wrong stride", V4, "    row += first_row\n", "", count=3),
    Bug("wrong stride", V4, "out_ptr + plane + row * out_stride", "out_ptr + plane + row * x_stride"),
    Bug("wrong stride", V4, "r_ptr + row * r_stride", "r_ptr + row * x_stride"),
    Bug("lost tail", V4, "range(first_step, first_step + steps)", "range(first_step, first_step + steps - 1)", count=4),
    Bug("int32 offset wrap", V4, "    row += first_row\n", "    row = (row + first_row).to(tl.int32)\n", count=3),
    Bug("eps misplaced", V4, "tl.rsqrt(squares / n + EPS)", "tl.rsqrt((squares + EPS) / n)"),
    Bug(
        "eps misplaced",
        V4,
        "inverse_deviation(squares / n, mean, EPS)",
        "inverse_deviation(squares / n, mean, 0.0) + EPS",
    ),
    Bug("swapped rounding", V4, "x * scale * w, mask", f"(x * scale){STORED} * w, mask"),
    Bug(
        "wrong accumulate dtype",
        V4,
        "inverse_deviation(squares / n, mean, EPS)",
        "inverse_deviation(squares / n, 0.0, EPS)",
    ),
    Bug("wrong accumulate dtype", V4, SQUARES, "squares += (x * x).to(tl.float32)"),
    # The first version.
    Bug("mask off by one", V1, "inside = columns < n", "inside = columns <= n", count=3),
    Bug("mask off by one", V1, "inside = columns < n", "inside = columns < n - 1", count=3),
    Bug("wrong stride", V1, "row * out_stride + columns", "row * x_stride + columns", count=3),
    Bug("wrong stride", V1, "row * residual_stride", "row * x_stride"),
    Bug("lost tail", V1, "if asked.n <= block)", "if asked.n // 2 <= block)"),
    Bug("int32 offset wrap", V1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=3),
    Bug("eps misplaced", V1, "tl.sum(h * h) / n + EPS", "(tl.sum(h * h) + EPS) / n"),
    Bug("eps misplaced", V1, "tl.rsqrt(tl.sum(d * d) / n + EPS)", "tl.rsqrt(tl.sum(d * d) / n) + EPS"),
    Bug("swapped rounding", V1, "rounded.to(tl.float32)", "x.to(tl.float32) + r.to(tl.float32)"),
    Bug("wrong accumulate dtype", V1, "tl.sum(x * x)", "tl.sum((x * x).to(out_ptr.dtype.element_ty))"),
]
