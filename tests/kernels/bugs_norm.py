"""Bugs that could be in the row norms, each planted in turn: see planted.py.

`missing max-subtraction` does not apply: nothing here has an exponential.
"""

from planted import Bug

V1, V2, V3 = "kernels/norm/v1_naive.py", "kernels/norm/v2_warps.py", "kernels/norm/v3_vectors.py"
ROWS_MASK = "inside = (rows < m) & (lanes < body)"
EDGE_LANES = "tl.arange(0, EDGE)[None, :] < n - body)"

BUGS = [
    # Rows kept in registers, and what wide rows share with them.
    Bug("mask off by one", V3, ROWS_MASK, "inside = (rows < m) & (lanes <= body)", count=2),
    Bug("mask off by one", V3, ROWS_MASK, "inside = (rows <= m) & (lanes < body)", count=2),
    Bug("mask off by one", V3, f"(rows < m) & ({EDGE_LANES}", f"(rows < m) & ({EDGE_LANES[:-1]} + 1)", count=2),
    Bug("mask off by one", V3, "tl.where(lanes >= head, body, 0)", "tl.where(lanes > head, body, 0)"),
    Bug("wrong stride", V3, "aligned(rows * out_stride, SHIFTED)", "aligned(rows * x_stride, SHIFTED)", count=2),
    Bug("wrong stride", V3, "rows * x_stride + columns", "rows * n + columns", count=2),
    Bug("wrong stride", V3, "aligned(rows * r_stride, SHIFTED)", "aligned(rows * x_stride, SHIFTED)"),
    Bug("wrong stride", V3, "plane + rows * out_stride", "n + rows * out_stride"),
    Bug("wrong stride", V3, "w_ptr + head + lanes, mask", "w_ptr + lanes, mask", count=4),
    Bug("lost tail", V3, "if SHIFTED or n % VECTOR != 0:", "if SHIFTED:", count=5),
    Bug("lost tail", V3, "triton.cdiv(m, rows or 1)", "max(1, m // (rows or 1))"),
    Bug("int32 offset wrap", V3, "tl.program_id(0).to(tl.int64) * ROWS", "tl.program_id(0) * ROWS", count=2),
    Bug("eps misplaced", V3, "tl.rsqrt(squares / n + EPS)", "tl.rsqrt((squares + EPS) / n)"),
    Bug("eps misplaced", V3, "tl.rsqrt(squares / n + EPS)", "1 / (tl.sqrt(squares / n) + EPS)"),
    Bug("eps misplaced", V3, "- rest * rest + EPS)", "- rest * rest)"),
    Bug("eps misplaced", V3, "LAYER_EPS = 1e-5", "LAYER_EPS = 1e-6"),
    Bug(
        "swapped rounding",
        V3,
        "+ plane, x * scale * w, mask=inside)",
        "+ plane, (x * scale).to(out_ptr.dtype.element_ty).to(tl.float32) * w, mask=inside)",
    ),
    Bug("swapped rounding", V3, "r.to(tl.float32)).to(x.dtype)", "r.to(tl.float32))"),
    Bug(
        "wrong accumulate dtype",
        V3,
        "squares = tl.sum(x * x, axis=1)",
        "squares = tl.sum((x * x).to(out_ptr.dtype.element_ty), axis=1)",
    ),
    Bug(
        "wrong accumulate dtype",
        V3,
        "squares = tl.sum(d * d, axis=1)",
        "squares = tl.sum((d * d).to(out_ptr.dtype.element_ty), axis=1)",
    ),
    # Wide rows.
    Bug("mask off by one", V3, "r_body + lanes, lanes < body,", "r_body + lanes, lanes <= body,"),
    Bug(
        "mask off by one",
        V3,
        "loose = tl.arange(0, EDGE) < n - body",
        "loose = tl.arange(0, EDGE) < n - body - 1",
        count=2,
    ),
    Bug("wrong stride", V3, "aligned(row * out_stride, SHIFTED)", "aligned(row * x_stride, SHIFTED)", count=2),
    Bug("wrong stride", V3, "aligned(row * r_stride, SHIFTED)", "aligned(row * n, SHIFTED)"),
    Bug("lost tail", V3, "tiles = tl.cdiv(body, WIDTH * ACCESSES)", "tiles = body // (WIDTH * ACCESSES)", count=2),
    Bug("lost tail", V3, "for step in range(tiles):", "for step in range(tiles - 1):", count=2),
    Bug("int32 offset wrap", V3, "row = tl.program_id(0).to(tl.int64)\n", "row = tl.program_id(0)\n", count=2),
    Bug("eps misplaced", V3, "tl.sum(x_edge * x_edge)) / n + EPS)", "tl.sum(x_edge * x_edge)) / n) + EPS"),
    Bug("eps misplaced", V3, "tl.PropagateNan.ALL) + EPS)", "tl.PropagateNan.ALL)) + EPS"),
    Bug(
        "swapped rounding",
        V3,
        "plane + lanes, x * scale * w, mask=lanes",
        "plane + lanes, (x * scale).to(out_ptr.dtype.element_ty).to(tl.float32) * w, mask=lanes",
    ),
    Bug(
        "wrong accumulate dtype",
        V3,
        "squares += x.to(tl.float32) * x.to(tl.float32)",
        "squares += (x * x).to(tl.float32)",
    ),
    Bug(
        "wrong accumulate dtype",
        V3,
        "            squares += d * d\n",
        "            squares += (d * d).to(out_ptr.dtype.element_ty).to(tl.float32)\n",
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
            Bug("lost tail", file, "if n <= block)", "if n // 2 <= block)"),
            Bug("int32 offset wrap", file, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=3),
            Bug("eps misplaced", file, "tl.sum(h * h) / n + EPS", "(tl.sum(h * h) + EPS) / n"),
            Bug("eps misplaced", file, "tl.rsqrt(tl.sum(d * d) / n + EPS)", "tl.rsqrt(tl.sum(d * d) / n) + EPS"),
            Bug("swapped rounding", file, "rounded.to(tl.float32)", "x.to(tl.float32) + r.to(tl.float32)"),
            Bug("wrong accumulate dtype", file, "tl.sum(x * x)", "tl.sum((x * x).to(out_ptr.dtype.element_ty))"),
        )
    ),
]
