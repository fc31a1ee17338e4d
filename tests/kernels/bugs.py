"""Bugs to plant in the kernels: one of a kind in a version, and none in some versions between the
oldest and the newest. See planted.py.
"""

from planted import Bug

from kernels.versions import modules

MASK = "mask off by one"
STRIDE = "wrong stride"
TAIL = "lost tail"
WRAP = "int32 offset wrap"
EPS = "eps misplaced"
ROUNDING = "swapped rounding"
MAXIMUM = "missing max-subtraction"
ACCUMULATOR = "wrong accumulate dtype"

ONLINE = "kernels/online_softmax.py"


def files_of(family):
    return [f"{module.replace('.', '/')}.py" for module in modules(family).values()]


def adamw():
    [v1] = files_of("adamw")
    return [
        Bug(MASK, v1, "inside = at < n", "inside = at < n - 1"),
        Bug(TAIL, v1, "triton.cdiv(n, BLOCK)", "max(1, n // BLOCK)"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", only_compiled=True),
        Bug(EPS, v1, "(tl.sqrt(v) * ROOT + 1e-8)", "tl.sqrt(v * ROOT * ROOT + 1e-8)"),
        Bug(ROUNDING, v1, "v_out_ptr + at, v,", "v_out_ptr + at, v.to(tl.float16),"),
        Bug(
            ACCUMULATOR,
            v1,
            "p = tl.load(p_ptr + at, mask=inside)",
            "p = g.to(p_ptr.dtype.element_ty)",
        ),
    ]


def cross_entropy():
    v1, _, v3 = files_of("cross_entropy")
    return [
        Bug(MASK, v1, "mask=start + lanes < v,", "mask=start + lanes < v - 1,", count=2),
        Bug(STRIDE, v1, "x_ptr + row * x_stride", "x_ptr + row * v"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(TAIL, v1, "range(0, v, BLOCK)", "range(0, tl.maximum(v - BLOCK, 1), BLOCK)", count=2),
        Bug(MAXIMUM, v1, "highest = tl.maximum(highest, tl.max(x, axis=0))", "highest = 0.0"),
        Bug(ACCUMULATOR, v1, "tl.exp(x - highest)", "tl.exp(x - highest).to(tl.float16)"),
        Bug(
            ROUNDING, v1, "(highest - picked) + tl.log(total)", "(highest + tl.log(total)) - picked"
        ),
        Bug(MASK, ONLINE, "(edges < last) &", "(edges < last - 1) &", seen_in=v3),
        Bug(STRIDE, v3, "x_ptr + row * x_stride, label", "x_ptr + row * v, label"),
        Bug(WRAP, v3, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(TAIL, ONLINE, "    highest, total = running(highest, total, x_rest)\n", "", seen_in=v3),
        Bug(
            MAXIMUM,
            ONLINE,
            "higher = tl.maximum(highest, tl.max(x, axis=0))",
            "higher = highest * 0",
            seen_in=v3,
        ),
        Bug(
            ACCUMULATOR,
            ONLINE,
            " + tl.sum(e, axis=0)\n",
            " + tl.sum(e.to(tl.float16), axis=0)\n",
            seen_in=v3,
        ),
        Bug(ROUNDING, v3, "(top - picked) + tl.log(total)", "(top + tl.log(total)) - picked"),
    ]


def elementwise():
    v1, v3 = files_of("elementwise")
    return [
        Bug(MASK, v1, "inside = offsets < n", "inside = offsets <= n"),
        Bug(TAIL, v1, "inside = offsets < n", "inside = offsets < n // 16 * 16"),
        Bug(STRIDE, v1, "offsets % cols", "offsets % (cols - 1)"),
        Bug(ACCUMULATOR, v1, "TRIAD_SCALAR * y.to(tl.float32)", "(y * TRIAD_SCALAR).to(y.dtype)"),
        Bug(
            ROUNDING,
            v1,
            "gelu(x.to(tl.float32) + bias.to(tl.float32))",
            "gelu((x + bias).to(x.dtype))",
        ),
        Bug(
            WRAP,
            v1,
            "tl.program_id(0).to(tl.int64) * BLOCK",
            "tl.program_id(0) * BLOCK",
            only_compiled=True,
        ),
        Bug(MASK, v3, "inside = start + lanes < end", "inside = start + lanes <= end"),
        Bug(TAIL, v3, "(n % WHOLE.value > 0)", "0"),
        Bug(STRIDE, v3, "first // cols * cols", "first // cols * (cols - 1)"),
        Bug(ACCUMULATOR, v3, "v * root * root", "(v * root).to(tl.float16).to(tl.float32) * root"),
        Bug(
            ROUNDING,
            v3,
            "gelu(x.to(tl.float32) + bias.to(tl.float32))",
            "gelu((x + bias).to(x.dtype))",
        ),
        Bug(
            WRAP,
            v3,
            "tl.program_id(0).to(tl.int64) * BLOCK",
            "tl.program_id(0) * BLOCK",
            only_compiled=True,
        ),
    ]


def matmul():
    v1, _, v3, v4, v5 = files_of("matmul")
    return [
        Bug(MASK, v1, "(rows < m) & (across < k)", "(rows < m) & (across <= k)"),
        Bug(STRIDE, v1, "rows * a_stride + across", "rows * k + across"),
        Bug(TAIL, v1, "range(0, k, BLOCK_K)", "range(0, k // BLOCK_K * BLOCK_K, BLOCK_K)"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(ACCUMULATOR, v1, "acc = tl.dot(a, b, acc,", "acc = tl.dot(a, b, acc.to(tl.float16),"),
        Bug(MASK, v3, "lanes_k < a_end - start", "lanes_k < a_end - start - 1"),
        Bug(STRIDE, v3, "across * a_stride + rows", "across * m + rows"),
        Bug(TAIL, v3, "tl.range(0, k, BLOCK_K)", "tl.range(0, k // BLOCK_K * BLOCK_K, BLOCK_K)"),
        Bug(WRAP, v3, "tl.cast(tile, tl.int64), tiles_m", "tl.cast(tile, tl.int32), tiles_m"),
        Bug(ACCUMULATOR, v3, "dtype=ACCUMULATOR)", "dtype=tl.float16)"),
        Bug(MASK, v4, "tiles_m = tl.cdiv(m, BLOCK_M)", "tiles_m = tl.cdiv(m - 1, BLOCK_M)"),
        Bug(
            STRIDE,
            v4,
            "row_stride = stride if rows > 1",
            "row_stride = -(-columns // unit) * unit if rows > 1",
        ),
        Bug(TAIL, v4, "range(0, k, BLOCK_K)", "range(0, k // BLOCK_K * BLOCK_K, BLOCK_K)"),
        Bug(ACCUMULATOR, v4, "dtype=ACCUMULATOR)", "dtype=tl.float16)"),
        Bug(WRAP, v4, "tl.cast(tile, tl.int64)", "tl.cast(tile, tl.int32)", only_compiled=True),
        Bug(
            WRAP,
            v4,
            "tl.cast(tiles_m, tl.int64) * tiles_n",
            "tiles_m * tiles_n",
            only_compiled=True,
        ),
        Bug(MASK, v5, "tiles_n = tl.cdiv(n, BLOCK_N)", "tiles_n = tl.cdiv(n - 1, BLOCK_N)"),
        Bug(STRIDE, v5, "start = split * k + step", "start = split * (k - BLOCK_K) + step"),
        Bug(TAIL, v5, "range(0, k, BLOCK_K)", "range(0, k - BLOCK_K, BLOCK_K)"),
        Bug(ACCUMULATOR, v5, "dtype=sums_ptr.dtype.element_ty)", "dtype=tl.float16)"),
        Bug(
            WRAP,
            v5,
            "block = tl.program_id(0).to(tl.int64)",
            "block = tl.program_id(0)",
            only_compiled=True,
        ),
    ]


def matvec():
    v1, v3 = files_of("matvec")
    return [
        Bug(MASK, v1, "inside = columns < n", "inside = columns <= n"),
        Bug(STRIDE, v1, "row * row_stride", "row * n"),
        Bug(
            TAIL,
            v1,
            "in range(0, n.to(tl.int64), BLOCK)",
            "in range(0, n.to(tl.int64) // BLOCK * BLOCK, BLOCK)",
        ),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(ROUNDING, v1, "tl.sum(partial)", "tl.sum(partial.to(x_ptr.dtype.element_ty))"),
        Bug(ACCUMULATOR, v1, "a.to(tl.float32) * x.to(tl.float32)", "(a * x).to(tl.float32)"),
        Bug(MASK, v3, "        inside = rows < m", "        inside = rows <= m", count=2),
        Bug(
            STRIDE,
            v3,
            "first = tl.where(inside, rows, 0) * row_stride\n",
            "first = tl.where(inside, rows, 0) * n\n",
        ),
        Bug(TAIL, v3, "if full_end < end:", "if full_end > end:"),
        Bug(WRAP, v3, "(program // splits).to(tl.int64)", "program // splits"),
        Bug(
            ACCUMULATOR,
            v3,
            "(m, chosen.splits), dtype=torch.float32",
            "(m, chosen.splits), dtype=x.dtype",
        ),
    ]


def norm():
    v1, _, v4 = files_of("norm")
    return [
        Bug(MASK, v1, "inside = columns < n", "inside = columns <= n"),
        Bug(STRIDE, v1, "row * out_stride + columns", "row * x_stride + columns"),
        Bug(TAIL, v1, "if operands.n <= block)", "if operands.n // 2 <= block)"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(EPS, v1, "tl.sum(h * h) / n + EPS", "(tl.sum(h * h) + EPS) / n"),
        Bug(
            *(ROUNDING, v1, "x = (h + r.to(tl.float32)).to(x.dtype)\n        h = x.to(tl.float32)"),
            "h += r.to(tl.float32)\n        x = h.to(x.dtype)",
        ),
        Bug(ACCUMULATOR, v1, "tl.sum(h * h)", "tl.sum((h * h).to(out_ptr.dtype.element_ty))"),
        Bug(MASK, v4, "inside = columns < n\n", "inside = columns < n - 1\n", count=2),
        Bug(STRIDE, v4, "row = program // splits", "row = program // (splits + 1)"),
        Bug(
            TAIL,
            v4,
            "range(first_step, first_step + steps)",
            "range(first_step, first_step + steps - 1)",
            count=2,
        ),
        Bug(
            WRAP,
            v4,
            "    row += first_row\n",
            "    row = (row + first_row).to(tl.int32)\n",
            count=3,
        ),
        Bug(EPS, v4, "tl.rsqrt(squares / n + EPS)", "tl.rsqrt((squares + EPS) / n)"),
        Bug(
            ROUNDING,
            v4,
            "x * scale * w, mask",
            "(x * scale).to(out_ptr.dtype.element_ty).to(tl.float32) * w, mask",
        ),
        Bug(
            ACCUMULATOR,
            v4,
            "inverse_deviation(squares / n, mean, EPS)",
            "inverse_deviation(squares / n, 0.0, EPS)",
        ),
    ]


def quantize():
    [v1] = files_of("quantize")
    return [
        Bug(MASK, v1, "& (columns < n)", "& (columns < n - 1)"),
        Bug(STRIDE, v1, "group[:, None] * n", "group[:, None] * (n - 1)"),
        Bug(TAIL, v1, "triton.cdiv(groups, ", "max(1, groups // "),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", only_compiled=True),
        Bug(
            EPS,
            v1,
            "tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10)",
            "(tl.max(tl.abs(x), axis=1) + 1e-6)",
        ),
        Bug(MAXIMUM, v1, "tl.max(tl.abs(x), axis=1)", "tl.max(x, axis=1)"),
        Bug(ACCUMULATOR, v1, "1e-10) * (1.0 / 448.0)", "1e-10).to(tl.float16) / 448.0"),
        Bug(ROUNDING, v1, "(x * (1.0 / scale)", "(x.to(tl.float16) * (1.0 / scale)"),
    ]


def reduction():
    v1, v2 = files_of("reduction")
    return [
        Bug(MASK, v1, "offsets, offsets < n)", "offsets, offsets <= n)"),
        Bug(STRIDE, v1, "program * BLOCK + tl", "program * (BLOCK - 1) + tl"),
        Bug(TAIL, v1, "range(0, count, BLOCK)", "range(0, count - BLOCK + 1, BLOCK)"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", only_compiled=True),
        Bug(
            ROUNDING,
            v1,
            "offsets, offsets < n)))",
            "offsets, offsets < n)).to(x_ptr.dtype.element_ty))",
        ),
        Bug(
            ACCUMULATOR,
            v1,
            "other=0.0).to(tl.float32)",
            "other=0.0).to(x_ptr.dtype.element_ty)",
            count=2,
        ),
        Bug(MASK, v2, "offsets, offsets < left)", "offsets, offsets <= left)"),
        Bug(STRIDE, v2, "at += programs.to(tl.int64) * BLOCK", "at += BLOCK"),
        Bug(TAIL, v2, "total += terms_of(", "total += 0 * terms_of("),
        Bug(
            WRAP,
            v2,
            "at = program * BLOCK",
            "at = (tl.program_id(0) * BLOCK).to(tl.int64)",
            only_compiled=True,
        ),
        Bug(
            WRAP,
            v2,
            "at += programs.to(tl.int64) * BLOCK",
            "at += programs * BLOCK",
            only_compiled=True,
        ),
        Bug(
            ROUNDING,
            v2,
            "program, tl.sum(total)",
            "program, tl.sum(total).to(x_ptr.dtype.element_ty)",
        ),
        Bug(ACCUMULATOR, v2, "tl.reshape(terms,", "tl.reshape(terms.to(x_ptr.dtype.element_ty),"),
    ]


def rope():
    [v1] = files_of("rope")
    return [
        Bug(MASK, v1, "columns < 2 * half if", "columns < 2 * half - 1 if"),
        Bug(STRIDE, v1, "token * q_heads * (2 * half)", "token * q_heads * half"),
        Bug(TAIL, v1, "triton.cdiv(q_heads, heads)", "max(q_heads // heads, 1)"),
        Bug(WRAP, v1, "// blocks).to(tl.int64)", "// blocks)", only_compiled=True),
        Bug(ROUNDING, v1, "tl.join(a * cos -", "tl.join((a * cos).to(tl.float16) -"),
        Bug(ACCUMULATOR, v1, "inside).to(tl.float32)", "inside).to(tl.bfloat16)"),
    ]


def softmax():
    v1, _, v3 = files_of("softmax")
    return [
        Bug(MASK, v1, "inside = lanes < n\n", "inside = lanes < n - 1\n"),
        Bug(STRIDE, v1, "out_ptr + row * out_stride", "out_ptr + row * n"),
        Bug(WRAP, v1, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(MAXIMUM, v1, "tl.exp(x - tl.max(x, axis=0))", "tl.exp(x)"),
        Bug(
            ACCUMULATOR,
            v1,
            "tl.sum(exponentials, axis=0)",
            "tl.sum(exponentials.to(tl.float16), axis=0)",
        ),
        Bug(
            ROUNDING,
            v1,
            "exponentials / total,",
            "exponentials.to(x_ptr.dtype.element_ty) / total,",
        ),
        Bug(
            MASK, v3, "mask=pieces < splits, other=LOWEST", "mask=pieces < splits - 1, other=LOWEST"
        ),
        Bug(
            STRIDE,
            ONLINE,
            "(first_row + row) * x_stride + begin",
            "(first_row + row) * n + begin",
            seen_in=v3,
        ),
        Bug(TAIL, v3, "tl.range(0, full, STEP", "tl.range(0, full - STEP, STEP"),
        Bug(WRAP, v3, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        Bug(MAXIMUM, v3, "totals * tl.exp2((tops - top) * LOG2_E)", "totals"),
        Bug(ACCUMULATOR, v3, "1.0 / tl.sum(totals *", "1.0 / tl.sum(totals.to(tl.float16) *"),
    ]


BUGS = {
    family.__name__: family()
    for family in (
        adamw,
        cross_entropy,
        elementwise,
        matmul,
        matvec,
        norm,
        quantize,
        reduction,
        rope,
        softmax,
    )
}
