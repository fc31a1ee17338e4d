"""Bugs planted in the softmax kernels; there is no eps in them to misplace. See planted.py."""

from planted import Bug

V1 = "kernels/softmax/v1_naive.py"
V2 = "kernels/softmax/v2_aligned.py"
V3 = "kernels/softmax/v3_split_rows.py"
SHARED = "kernels/online_softmax.py"

BUGS = [
    Bug("mask off by one", V1, "inside = lanes < n\n", "inside = lanes < n - 1\n"),
    Bug("mask off by one", V1, "inside = lanes < n\n", "inside = lanes <= n\n"),
    Bug("wrong stride", V1, "out_ptr + row * out_stride", "out_ptr + row * n"),
    Bug("wrong stride", V1, "x_ptr + row * x_stride", "x_ptr + row * out_stride"),
    Bug("int32 offset wrap", V1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Bug("missing max-subtraction", V1, "tl.exp(x - tl.max(x, axis=0))", "tl.exp(x)"),
    Bug("wrong accumulate dtype", V1, "tl.sum(exponentials, axis=0)", "tl.sum(exponentials.to(tl.float16), axis=0)"),
    Bug(
        "lost tail",
        V1,
        "min(size for size in WARPS if size >= asked.n)",
        "max(s for s in WARPS if s <= max(asked.n, 1024))",
    ),
    Bug("swapped rounding", V1, "exponentials / total,", "exponentials.to(x_ptr.dtype.element_ty) / total,"),
    Bug("mask off by one", SHARED, "(edges < last) &", "(edges < last - 1) &", seen_in=V2),
    Bug("mask off by one", SHARED, "(edges < last) &", "(edges <= last) &", seen_in=V2),
    Bug("mask off by one", SHARED, "(edges < body) ==", "(edges <= body) ==", seen_in=V2),
    Bug("mask off by one", V2, "inside = lanes < length - full", "inside = lanes < length - full - 1"),
    Bug("mask off by one", V2, "inside = lanes < length\n", "inside = lanes <= length\n"),
    Bug("wrong stride", V2, "row * out_stride - row * x_stride", "row * x_stride - row * x_stride"),
    Bug("wrong stride", V2, "cuts(row * x_stride, n)", "cuts(row * n, n)", count=2),
    Bug("lost tail", V2, "    highest, total = running(highest, total, x_rest)\n", ""),
    Bug("lost tail", V2, "scale, mask=edge_inside)", "scale, mask=edge_inside & (edges < body))", count=2),
    Bug("lost tail", V2, " + tl.sum(e_edge, axis=0))", ")"),
    Bug("lost tail", V2, "length // STEP * STEP", "length // STEP * STEP - STEP"),
    Bug("lost tail", V2, "back in tl.range(0, full, STEP", "back in tl.range(STEP, full, STEP"),
    Bug("int32 offset wrap", V2, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=2),
    Bug(
        "missing max-subtraction",
        V2,
        "highest = tl.maximum(tl.max(x, axis=0), tl.max(x_edge, axis=0))",
        "highest = 0.0",
    ),
    Bug(
        "missing max-subtraction",
        SHARED,
        "higher = tl.maximum(highest, tl.max(x, axis=0))",
        "higher = highest * 0",
        seen_in=V2,
    ),
    Bug("missing max-subtraction", SHARED, "total * tl.exp2((highest - higher) * LOG2_E)", "total", seen_in=V2),
    Bug("missing max-subtraction", V2, "LOWEST, tl.float32", "float('-inf'), tl.float32"),
    Bug("wrong accumulate dtype", V2, "1.0 / (tl.sum(e, axis=0)", "1.0 / (tl.sum(e.to(tl.float16), axis=0)"),
    Bug(
        "wrong accumulate dtype", SHARED, " + tl.sum(e, axis=0)\n", " + tl.sum(e.to(tl.float16), axis=0)\n", seen_in=V2
    ),
    Bug("swapped rounding", V2, "lanes, e * scale,", "lanes, e.to(x_ptr.dtype.element_ty) * scale,"),
    Bug("mask off by one", V3, "mask=pieces < splits, other=LOWEST", "mask=pieces < splits - 1, other=LOWEST"),
    Bug("mask off by one", V3, "inside = lanes < length - full", "inside = lanes < length - full - 1"),
    Bug("wrong stride", V3, "(first_row + row) * x_stride + begin", "(first_row + row) * n + begin"),
    Bug("wrong stride", V3, "tops_ptr + row * splits", "tops_ptr + row * MAX_SPLITS"),
    Bug("wrong stride", V3, "cuts(row * x_stride + begin", "cuts(row * out_stride + begin"),
    Bug("lost tail", V3, "tl.range(0, full, STEP", "tl.range(0, full - STEP, STEP"),
    Bug("lost tail", V3, "scale, mask=edge_inside)", "scale, mask=edge_inside & (edges < body))"),
    Bug("lost tail", V3, "    row += first_row\n", ""),
    Bug("int32 offset wrap", V3, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=2),
    Bug("missing max-subtraction", V3, "totals * tl.exp2((tops - top) * LOG2_E)", "totals"),
    Bug("wrong accumulate dtype", V3, "1.0 / tl.sum(totals *", "1.0 / tl.sum(totals.to(tl.float16) *"),
    Bug(
        "swapped rounding",
        V3,
        "tl.exp2((x - top) * LOG2_E) * scale",
        "tl.exp2((x - top) * LOG2_E).to(x_ptr.dtype.element_ty) * scale",
    ),
]
