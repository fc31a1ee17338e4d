"""References, error bounds and inputs for the tests of the row norms.

The bounds follow the formulas in fp32: u is half the distance from 1 to the next fp32 number, a sum
of n terms has a depth of about log2(n) additions and a few more, and what is left is one rounding
to the dtype of the output.
"""

import math
from unittest.mock import patch

import torch
from exact import EPS32, FAR, Expected, Plane, assert_close, far_rows, run_apart, run_guarded

import kernels.launch

OPS = ("rmsnorm", "layernorm", "residual-rmsnorm")
# Of rows: plain, where eps decides, where squares pass the range of fp16.
SCALES = (
    1.0,
    1e-4,
    300.0,
)
RMS_EPS, LAYER_EPS = 1e-6, 1e-5
U = EPS32 / 2
SMALLEST32 = 2.0**-149  # the last step of fp32 below its normal range


def depth(n):
    """Return the maximum number of additions of a term in a sum of n."""
    return max(n, 1).bit_length() + n / 2048 + 4


def expect_rmsnorm(x, weight):
    """Evaluate RMSNorm in fp64; halving by the root and 6 roundings after the sum bound the
    error.
    """
    x, weight = x.double(), weight.double()
    exact = x * torch.rsqrt(x.square().mean(1, keepdim=True) + RMS_EPS) * weight
    relative = (depth(x.shape[1]) / 2 + 6) * U
    return Expected(exact, exact.abs() * relative + SMALLEST32 * (1 + weight.abs()))


def expect_layernorm(x, weight, bias):
    """Evaluate LayerNorm in fp64; the error of the mean follows the spread of a row."""
    x, weight, bias = x.double(), weight.double(), bias.double()
    centered = x - x.mean(1, keepdim=True)
    variance = centered.square().mean(1, keepdim=True)
    scale = torch.rsqrt(variance + LAYER_EPS)
    exact = centered * scale * weight + bias
    steps = depth(x.shape[1])
    mean_error = steps * U * 2 * variance.sqrt()
    relative = (steps / 2 + 6) * U + (mean_error * scale) ** 2
    error = weight.abs() * scale * (mean_error + centered.abs() * relative) + 2 * U * (
        exact.abs() + bias.abs()
    )
    return Expected(exact, error + SMALLEST32)


def check(op, module, *inputs):
    shape = tuple(inputs[0].shape)
    out = run_guarded(
        module.KERNELS[op], inputs, (2, *shape) if op == "residual-rmsnorm" else shape
    )
    compare(op, out, *inputs)
    return out


def compare(op, out, *inputs):
    what = f"{op} {tuple(inputs[0].shape)} {inputs[0].dtype}"
    if op == "layernorm":
        assert_close(out, expect_layernorm(*inputs), what)
        return
    x, weight = inputs[0], inputs[-1]
    if op == "residual-rmsnorm":
        x = (x.float() + inputs[1].float()).to(x.dtype)
        same = (out[0] == x) | (out[0].isnan() & x.isnan())
        assert same.all(), f"{what}: the sum is not the rounded sum"
        out = out[1]
    assert_close(out, expect_rmsnorm(x, weight), what)


def draw(op, dtype, m, n, scales=(1.0,), shift=0.0):
    """Return m rows of n, scaled by `scales` in rotation, and vectors of n."""
    generator = torch.Generator().manual_seed(1000 * m + n)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    matrices = 2 if op == "residual-rmsnorm" else 1
    vectors = 2 if op == "layernorm" else 1
    scale = torch.tensor(scales).repeat(m)[:m, None]
    rows = [(scale * normal(m, n) + shift).to(dtype) for _ in range(matrices)]
    return (*rows, *((1 + normal(n) / 2).to(dtype) for _ in range(vectors)))


def specials(op, dtype, n):
    x, *others = draw(op, dtype, 9, n, SCALES)
    for row, (column, value) in enumerate(
        [(0, math.nan), (n - 1, math.inf), (n // 2, -math.inf), (n - 1, math.nan)]
    ):
        x[2 * row, column] = value
    x[1], x[3] = 0.0, -0.0
    x[5, ::2] = 2.0**-24  # below the normal range of fp16
    x[7] = 1e-40
    return [(x, *others)]


def check_apart(op, module, dtype, m, n, pads):
    """`pads` are the strides of x, a residual and out minus n."""
    inputs = draw(op, dtype, m, n, SCALES)
    *strides, out_stride = [n + more for more in (pads if op == "residual-rmsnorm" else pads[::2])]
    shape = (2, m, n) if op == "residual-rmsnorm" else (m, n)
    compare(op, run_apart(module.KERNELS[op], inputs, strides, shape, out_stride), *inputs)


def check_far_rows(op, module, dtype, n):
    inputs = draw(op, dtype, 3, n)
    count = 2 if op == "residual-rmsnorm" else 1
    views = [far_rows(tensor, FAR + 16 * number) for number, tensor in enumerate(inputs[:count])]
    rows = (FAR + 48, 1)
    shape, strides = ((2, 3, n), (2**31 + 2**16, *rows)) if count == 2 else ((3, n), rows)
    out = Plane(dtype).strided(shape, strides)
    module.KERNELS[op](*views, *inputs[count:], out=out)
    compare(op, out.clone(), *inputs)


def battery(module):
    if hasattr(module, "SHARED"):
        battery_of_shared_rows(module)
        return
    has_wide_rows = hasattr(module, "norm_tiles")
    for op in ("residual-rmsnorm", "layernorm", "rmsnorm"):
        for dtype, m, n in (
            (torch.float16, 17, 40),
            (torch.float16, 3, 1001),
            (torch.float32, 1, 1025),
        ):
            check(op, module, *draw(op, dtype, m, n, SCALES))
        for extra in ((3, 5, 9), (3, 11, 19)):
            check_apart(op, module, torch.float16, 3, 200, extra)
        check_far_rows(op, module, torch.float16, 40)
        if has_wide_rows:
            check(op, module, *draw(op, torch.float16, 2, 9001, (300.0, 1e-4)))
            check_far_rows(op, module, torch.float32, 8301)
    check("layernorm", module, *draw("layernorm", torch.float32, 3, 1000, shift=1e4))
    if has_wide_rows:
        check_apart("residual-rmsnorm", module, torch.float16, 2, 9001, (7, 15, 31))


def battery_of_shared_rows(module):
    with patch.object(kernels.launch, "MIN_STEPS", 1):  # shorter rows, so that it takes less
        for op in ("residual-rmsnorm", "layernorm", "rmsnorm"):
            check(op, module, *draw(op, torch.float16, 3, 6008, SCALES))
            check(op, module, *draw(op, torch.float32, 2, 5001, (300.0, 1e-4)))
            check_apart(op, module, torch.float16, 3, 5003, (7, 15, 31))
            check_far_rows(op, module, torch.float16, 4104)
        check("layernorm", module, *draw("layernorm", torch.float32, 3, 5001, shift=1e4))
        check("rmsnorm", module, *draw("rmsnorm", torch.float32, 3, 10001))
        # A row at a time.
        with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 30_000)):
            check("rmsnorm", module, *draw("rmsnorm", torch.float16, 3, 5001, SCALES))
