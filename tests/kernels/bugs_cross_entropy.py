"""Bugs planted in the cross-entropy kernels; there is no eps in them to misplace. See planted.py."""

from planted import Bug

V1 = "kernels/cross_entropy/v1_naive.py"
V2 = "kernels/cross_entropy/v2_online.py"
V3 = "kernels/cross_entropy/v3_split_rows.py"
SHARED = "kernels/online_softmax.py"

BUGS = [
    Bug("mask off by one", V1, "mask=start + lanes < v,", "mask=start + lanes < v - 1,", count=2),
    Bug("mask off by one", V1, "mask=start + lanes < v,", "mask=start + lanes <= v,", count=2),
    Bug("mask off by one", V1, "(label < v)", "(label <= v)"),
    Bug("wrong stride", V1, "x_ptr + row * x_stride", "x_ptr + row * v"),
    Bug("int32 offset wrap", V1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Bug("lost tail", V1, "range(0, v, BLOCK)", "range(0, tl.maximum(v - BLOCK, 1), BLOCK)", count=2),
    Bug("missing max-subtraction", V1, "highest = tl.maximum(highest, tl.max(x, axis=0))", "highest = 0.0"),
    Bug("wrong accumulate dtype", V1, "tl.exp(x - highest)", "tl.exp(x - highest).to(tl.float16)"),
    Bug("swapped rounding", V1, "(highest - picked) + tl.log(total)", "(highest + tl.log(total)) - picked"),
    Bug("mask off by one", V2, "(label >= 0) & (label < v)", "(label >= -1) & (label < v)"),
    Bug("wrong stride", V2, "first = row * x_stride", "first = row * v"),
    Bug("int32 offset wrap", V2, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Bug("swapped rounding", V2, "(top - picked) + tl.log(row_total)", "(top + tl.log(row_total)) - picked"),
    Bug("mask off by one", SHARED, "(edges < last) &", "(edges < last - 1) &", seen_in=V3),
    Bug("mask off by one", SHARED, "(edges < last) &", "(edges <= last) &", seen_in=V3),
    Bug("mask off by one", SHARED, "(edges < body) ==", "(edges <= body) ==", seen_in=V3),
    Bug("mask off by one", SHARED, "mask=lanes < length - full,", "mask=lanes < length - full - 1,", seen_in=V3),
    Bug("mask off by one", V3, "(label < v)", "(label <= v)"),
    Bug("mask off by one", V3, "mask=lanes < splits", "mask=lanes < splits - 1", count=2),
    Bug("wrong stride", V3, "row * x_stride + label", "row * v + label"),
    Bug("wrong stride", V3, "first = row * x_stride + begin", "first = row * v + begin"),
    Bug("wrong stride", V3, "tops_ptr + row * splits", "tops_ptr + row * MAX_SPLITS"),
    Bug("int32 offset wrap", V3, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", count=2),
    Bug("int32 offset wrap", V3, "program = tl.program_id(0).to(tl.int64)", "program = tl.program_id(0)"),
    Bug("lost tail", SHARED, "    highest, total = running(highest, total, x_rest)\n", "", seen_in=V3),
    Bug(
        "lost tail",
        SHARED,
        "of_lanes + tl.sum(tl.exp2((x_edge - top) * LOG2_E), axis=0)",
        "of_lanes",
        seen_in=V3,
    ),
    Bug("lost tail", SHARED, "length // STEP * STEP", "tl.maximum(length // STEP * STEP - STEP, 0)", seen_in=V3),
    Bug("lost tail", V3, "tl.minimum(v - begin, chunk)", "chunk"),
    Bug("lost tail", V3, "return triton.cdiv(v, chunk), chunk", "return max(v // chunk, 1), chunk"),
    Bug(
        "missing max-subtraction",
        SHARED,
        "higher = tl.maximum(highest, tl.max(x, axis=0))",
        "higher = highest * 0",
        seen_in=V3,
    ),
    Bug("missing max-subtraction", SHARED, "total * tl.exp2((highest - higher) * LOG2_E)", "total", seen_in=V3),
    Bug("missing max-subtraction", V3, "totals * tl.exp2((tops - top) * LOG2_E)", "totals"),
    Bug("missing max-subtraction", SHARED, "LOWEST, tl.float32", "float('-inf'), tl.float32", seen_in=V3),
    Bug(
        "wrong accumulate dtype", SHARED, " + tl.sum(e, axis=0)\n", " + tl.sum(e.to(tl.float16), axis=0)\n", seen_in=V3
    ),
    Bug(
        "wrong accumulate dtype",
        SHARED,
        "    of_lanes = tl.sum(total *",
        "    of_lanes = tl.sum(total.to(tl.float16) *",
        seen_in=V3,
    ),
    Bug("swapped rounding", V3, "(top - picked) + tl.log(total)", "(top + tl.log(total)) - picked"),
]
