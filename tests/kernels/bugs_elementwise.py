"""Bugs to plant in the elementwise kernels. An eps, a maximum to subtract, they have none."""

from planted import Bug

V1, V2, V3 = (f"kernels/elementwise/{name}.py" for name in ("v1_masked", "v2_split_tail", "v3_lean"))
FIRST_BLOCK = "tl.program_id(0).to(tl.int64) * BLOCK"
WRAPPING_BLOCK = "tl.program_id(0) * BLOCK"

BUGS = [
    Bug("mask off by one", V1, "inside = offsets < n", "inside = offsets <= n", count=4),
    Bug("mask off by one", V2, "inside = offsets < n", "inside = offsets <= n", count=4),
    Bug("mask off by one", V2, "if start + BLOCK <= n:", "if start + BLOCK <= n + 1:", count=4),
    Bug("mask off by one", V3, "offsets < whole", "offsets <= whole", count=3),
    Bug("mask off by one", V3, "mask=rest < n)", "mask=rest <= n)", count=9),
    Bug("mask off by one", V3, "mask=rest < n)", "mask=rest < n - 1)", count=9),
    Bug("lost tail", V1, "inside = offsets < n", "inside = offsets < n // 16 * 16", count=4),
    Bug("lost tail", V2, "inside = offsets < n", "inside = offsets < n // 16 * 16", count=4),
    Bug("lost tail", V3, "(n % WHOLE.value > 0)", "0"),
    Bug("lost tail", V3, "whole = n // WHOLE * WHOLE", "whole = n // BLOCK * BLOCK", count=4),
    Bug("wrong stride", V1, "offsets % cols", "offsets % (cols - 1)"),
    Bug("wrong stride", V2, "first // cols * cols", "first // cols * (cols - 1)"),
    Bug("wrong stride", V2, "(column + lanes) % cols", "(column + lanes) % (cols - 1)", count=2),
    Bug("wrong stride", V3, "first // cols * cols", "first // cols * (cols - 1)"),
    Bug("wrong stride", V3, "column - cols, column)", "column, column)"),
    Bug("wrong stride", V3, "bias_ptr + rest % cols", "bias_ptr + rest % 16"),
    Bug("wrong stride", V3, "counters = first // 4", "counters = first // 2"),
    Bug(
        "wrong stride",
        V3,
        "tl.join(tl.join(word0, word2), tl.join(word1, word3))",
        "tl.join(tl.join(word0, word1), tl.join(word2, word3))",
    ),
    Bug("wrong accumulate dtype", V1, "TRIAD_SCALAR * y.to(tl.float32)", "(y * TRIAD_SCALAR).to(y.dtype)"),
    Bug("wrong accumulate dtype", V3, "v * root * root", "(v * root).to(tl.float16).to(tl.float32) * root"),
    *(
        Bug("swapped rounding", file, "gelu(x.to(tl.float32) + bias.to(tl.float32))", "gelu((x + bias).to(x.dtype))")
        for file in (V1, V3)
    ),
    *(
        Bug("swapped rounding", file, "silu(x) * y.to(tl.float32)", "silu(x).to(y.dtype) * y.to(tl.float32)")
        for file in (V1, V3)
    ),
    *(Bug("swapped rounding", file, "x.to(tl.float32) * KEPT_SCALE", "x.to(tl.float32) * 1.111") for file in (V1, V3)),
    *(
        Bug("int32 offset wrap", file, FIRST_BLOCK, WRAPPING_BLOCK, count=4, only_compiled=True)
        for file in (V1, V2, V3)
    ),
]
