"""Bugs that could be in the row norms, each planted in turn: see planted.py.

`missing max-subtraction` does not apply: nothing here has an exponential.
"""

from planted import Bug

V1, V2, V3 = "kernels/norm/v1_naive.py", "kernels/norm/v2_warps.py", "kernels/norm/v3_vectors.py"
V4 = "kernels/norm/v4_split_rows.py"
ROWS = "kernels/norm/rows.py"  # what version 3 reads rows with
WRAPS = "tl.program_id(0) + tl.zeros((1, 1), tl.int32)"
LOOSE = "loose = valid & (columns < n)"
OUT_ROWS, OUT_ROW = "write(out_ptr, rows * out_stride + head", "write(out_ptr, row * out_stride + head"
IN_DTYPE = ".to(out_ptr.dtype.element_ty)"
STORED = f"{IN_DTYPE}.to(tl.float32)"

BUGS = [
    # How rows are cut, and what lies across two vectors.
    Bug(
        "mask off by one", ROWS, "mask=(lanes < body) & valid, other", "mask=(lanes <= body) & valid, other", seen_in=V3
    ),
    Bug(
        "mask off by one",
        ROWS,
        "mask=(lanes < body) & valid, evict",
        "mask=(lanes < body - 1) & valid, evict",
        seen_in=V3,
    ),
    Bug("mask off by one", ROWS, "tl.where(lanes >= head, body, 0)", "tl.where(lanes > head, body, 0)", seen_in=V3),
    Bug("mask off by one", ROWS, "(pieces < body // VECTOR)", "(pieces < body // VECTOR - 1)", seen_in=V3),
    Bug("lost tail", ROWS, "body = n // VECTOR * VECTOR", "body = n // 16 * 16", seen_in=V3),
    Bug("lost tail", ROWS, "later(c, c, skip, 32)", "c", seen_in=V3),
    Bug("wrong stride", ROWS, "halves + 2, mask", "halves + 1, mask", seen_in=V3),
    Bug("wrong stride", ROWS, "skip = skipped >= VECTOR // 2", "skip = skipped > VECTOR // 2", seen_in=V3),
    Bug("wrong stride", ROWS, "skipped % (VECTOR // 2) >= VECTOR // 4", "skipped % VECTOR >= VECTOR // 4", seen_in=V3),
    Bug("wrong stride", ROWS, "(b << (64 - BITS))", "(b << (63 - BITS))", seen_in=V3),
    # Rows kept in registers.
    Bug("mask off by one", V3, "valid = rows < m", "valid = rows <= m", count=2),
    Bug("mask off by one", V3, LOOSE, LOOSE.replace("< n", "<= n"), count=3),
    Bug("wrong stride", V3, OUT_ROWS, OUT_ROWS.replace("out_stride", "x_stride"), count=2),
    Bug("wrong stride", V3, "rows * x_stride + columns", "rows * n + columns", count=2),
    Bug("wrong stride", V3, "rows * r_stride + head", "rows * x_stride + head"),
    Bug("wrong stride", V3, "        y += plane\n", "        y += n\n"),
    Bug("wrong stride", V3, "read(w_ptr, head,", "read(w_ptr, 0 * head,", count=4),
    Bug("wrong stride", V3, "tl.arange(0, ROWS)[:, None] * APART", "tl.arange(0, ROWS)[:, None]", count=2),
    Bug("lost tail", V3, "if SHIFTED or n % VECTOR != 0:", "if SHIFTED:", count=5),
    Bug("lost tail", V3, "+ min(rest, apart)", "+ min(rest // 2, apart)"),
    Bug("int32 offset wrap", V3, "tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)", WRAPS, count=4),
    Bug("eps misplaced", V3, "tl.rsqrt(squares / n + EPS)", "tl.rsqrt((squares + EPS) / n)", count=2),
    Bug("eps misplaced", V3, "tl.rsqrt(squares / n + EPS)", "1 / (tl.sqrt(squares / n) + EPS)", count=2),
    Bug("eps misplaced", V3, "variance) + EPS)", "variance)) + EPS"),
    Bug("eps misplaced", V3, "LAYER_EPS = 1e-5", "LAYER_EPS = 1e-6"),
    Bug(
        "swapped rounding",
        V3,
        "x.to(tl.float32) * scale * w, 0",
        f"(x.to(tl.float32) * scale){STORED} * w, 0",
    ),
    Bug("swapped rounding", V3, "r.to(tl.float32)).to(x.dtype)", "r.to(tl.float32))"),
    Bug(
        "wrong accumulate dtype",
        V3,
        "squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)",
        "squares = tl.sum(x * x, axis=1)",
    ),
    Bug(
        "wrong accumulate dtype", V3, "squares = tl.sum(d * d, axis=1)", f"squares = tl.sum((d * d){IN_DTYPE}, axis=1)"
    ),
    # Wide rows.
    Bug(
        "mask off by one",
        V3,
        "mask=columns < n, other=0.0)\n    if RES",
        "mask=columns < n - 1, other=0.0)\n    if RES",
    ),
    Bug("mask off by one", V3, "d_edge = tl.where(columns < n", "d_edge = tl.where(columns <= n"),
    Bug("wrong stride", V3, OUT_ROW, OUT_ROW.replace("out_stride", "x_stride"), count=2),
    Bug("wrong stride", V3, "row * r_stride + head", "row * n + head"),
    Bug("wrong stride", V3, "again, y = out_ptr, row * out_stride", "again, y = out_ptr, row * x_stride"),
    Bug("lost tail", V3, "tiles = tl.cdiv(body, WIDTH * ACCESSES)", "tiles = body // (WIDTH * ACCESSES)", count=2),
    Bug("lost tail", V3, "for step in range(tiles):", "for step in range(tiles - 1):", count=2),
    Bug("eps misplaced", V3, "squares / n, mean, EPS)", "squares / n, mean, 0.0) + EPS"),
    Bug(
        "swapped rounding",
        V3,
        "write(out_ptr, y + head, x * scale * w, at",
        f"write(out_ptr, y + head, (x * scale){STORED} * w, at",
    ),
    Bug(
        "wrong accumulate dtype",
        V3,
        "squares += x.to(tl.float32) * x.to(tl.float32)",
        "squares += (x * x).to(tl.float32)",
    ),
    Bug("wrong accumulate dtype", V3, "            squares += d * d\n", f"            squares += (d * d){STORED}\n"),
    # Rows that programs share.
    Bug("mask off by one", V4, "tl.where(place == 0, n, 0)", "tl.where(place == 0, n + 1, 0)", count=4),
    Bug("mask off by one", V4, "inside = pieces < splits", "inside = pieces < splits - 1"),
    Bug("mask off by one", V4, "mask=pieces < splits, other", "mask=pieces < splits - 1, other"),
    Bug("wrong stride", V4, "row = program // splits", "row = program // (splits + 1)"),
    Bug("wrong stride", V4, "squares_ptr + number * splits", "squares_ptr + number * MAX_SPLITS"),
    Bug("wrong stride", V4, "number * (3 * splits)", "number * splits", count=2),
    Bug("wrong stride", V4, "return first_row + row +", "return row +"),
    Bug("wrong stride", V4, "y = plane + row * out_stride", "y = plane + row * x_stride"),
    Bug("wrong stride", V4, "read(r_ptr, row * r_stride + head", "read(r_ptr, row * x_stride + head"),
    Bug("lost tail", V4, "tl.minimum(body // VECTOR, (", "tl.minimum(body // VECTOR - 1, ("),
    Bug("lost tail", V4, "tl.sum(squares) + edge_squares", "tl.sum(squares)"),
    Bug("lost tail", V4, "+ tl.where(pieces == 0, n - body, 0)", "+ 0"),
    Bug("lost tail", V4, "return triton.cdiv(n, chunk), chunk", "return max(n // chunk, 1), chunk"),
    Bug("int32 offset wrap", V4, "row + tl.zeros((1, 1), tl.int64)", "row.to(tl.int32) + tl.zeros((1, 1), tl.int32)"),
    Bug("eps misplaced", V4, "tl.rsqrt(squares / n + EPS)", "tl.rsqrt((squares + EPS) / n)"),
    Bug(
        "eps misplaced",
        V4,
        "inverse_deviation(squares / n, 0.0, EPS)",
        "inverse_deviation(squares / n, 0.0, 0.0) + EPS",
    ),
    Bug("eps misplaced", V4, "inverse_deviation(squares / n, 0.0, EPS)", "inverse_deviation(squares / n, mean, EPS)"),
    Bug("swapped rounding", V4, "x * scale * w, at", f"(x * scale){STORED} * w, at"),
    Bug("wrong accumulate dtype", V4, "pivots - pivot + means", "pivots + means - pivot"),
    Bug(
        "wrong accumulate dtype",
        V4,
        "squares += x.to(tl.float32) * x.to(tl.float32)",
        "squares += (x * x).to(tl.float32)",
    ),
    # Older versions.
    *(
        bug
        for file in (V1, V2)
        for bug in (
            Bug("mask off by one", file, "inside = columns < n", "inside = columns <= n", count=3),
            Bug("mask off by one", file, "inside = columns < n", "inside = columns < n - 1", count=3),
            Bug("wrong stride", file, "row * out_stride + columns", "row * x_stride + columns", count=3),
            Bug("wrong stride", file, "row * residual_stride", "row * x_stride"),
            Bug("lost tail", file, "if asked.n <= block)", "if asked.n // 2 <= block)"),
            Bug("int32 offset wrap", file, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=3),
            Bug("eps misplaced", file, "tl.sum(h * h) / n + EPS", "(tl.sum(h * h) + EPS) / n"),
            Bug("eps misplaced", file, "tl.rsqrt(tl.sum(d * d) / n + EPS)", "tl.rsqrt(tl.sum(d * d) / n) + EPS"),
            Bug("swapped rounding", file, "rounded.to(tl.float32)", "x.to(tl.float32) + r.to(tl.float32)"),
            Bug("wrong accumulate dtype", file, "tl.sum(x * x)", "tl.sum((x * x).to(out_ptr.dtype.element_ty))"),
        )
    ),
]
