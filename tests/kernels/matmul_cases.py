"""Inputs, fp64 references and error bounds of matmul, in every layout.

Values are surrounded by NaN, also between rows, so that a read beyond a matrix shows in the result.
Only elements of C may be written.
"""

import math
from unittest.mock import patch

import torch
from exact import DEVICE, DTYPES, EPS32, FAR, Expected, Plane, assert_close, run_apart

from kernels.matmul import OUTPUTS
from kernels.matmul.tiles import GROUP_M, Tile, sizes

FP8 = {"fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2}
LAYOUTS = ("nn", "nt", "tn")


def row_stride(module, columns, dtype, is_padded=False):
    multiple = 16 // dtype.itemsize if hasattr(module, "MINIMUM_ARCH") else 1
    return (-(-columns // multiple) + is_padded) * multiple


def output_dtype(dtype):
    return OUTPUTS.get(dtype, dtype)


def values(shape, dtype, kind="normal", seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if kind == "normal":
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = {"ones": (-1, 2), "integers": (-4, 5), "bytes": (-128, 128)}[kind]
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def draw(op, dtype, m, n, k, batch=(), kind="normal"):
    return values((*batch, m, k), dtype, kind), values((*batch, k, n), dtype, kind, seed=1)


def expect(a, b, scale=1.0, is_exact=False):
    """Return the product in fp64; sums of k terms in fp32 err by no more than k half-ulps of the
    sum of magnitudes.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), equation 3.5, for any
    order of summation.
    """
    a, b = a.double(), b.double()
    error = None if is_exact else (a.shape[-1] + 2) * EPS32 / 2 * (a.abs() @ b.abs()) * abs(scale)
    return Expected(a @ b * scale, error)


def run(module, a, b, layout, scales=(), padded=False, launchers="KERNELS"):
    factors = [torch.tensor([scale], device=DEVICE) for scale in scales]
    orders = dict(zip("ab", layout, strict=True))

    def launch(*stored, out):
        operands = [
            rows if order == "n" else rows.mT for rows, order in zip(stored, layout, strict=True)
        ]
        getattr(module, launchers)["matmul"](*operands, *factors, out=out)

    stored = [a if orders["a"] == "n" else a.mT, b if orders["b"] == "n" else b.mT]
    strides = [row_stride(module, rows.shape[-1], rows.dtype, padded) for rows in stored]
    shape, dtype = (*a.shape[:-1], b.shape[-1]), output_dtype(a.dtype)
    return run_apart(
        launch, stored, strides, shape, row_stride(module, shape[-1], dtype, padded), dtype
    )


def check(op, module, a, b, layout="nn", is_exact=False, scales=(), **how):
    out = run(module, a, b, layout, scales, **how)
    what = f"{module.LABEL} {tuple(a.shape)} {tuple(b.shape)} {layout} {a.dtype}"
    if out.dtype.is_floating_point:
        expected = expect(a, b, math.prod(scales), is_exact)
        if is_exact:  # the sum is exact, but its rounding to the output dtype is not
            expected = Expected(expected.exact.to(out.dtype).double(), None)
        assert_close(out, expected, what)
    else:
        assert torch.equal(out.double(), a.double() @ b.double()), what


def check_case(module, dtype, layout, shape, batch=(), kind="normal", **more):
    a, b = draw("matmul", dtype, *shape, batch, kind)
    check("matmul", module, a, b, layout, is_exact=kind != "normal", **more)


def check_far(module):
    m, k = 3, 3
    for far, layout, n in (
        ("a", "nn", 8),
        ("a", "tn", 8),
        ("b", "nn", 8),
        ("b", "nt", 3),
        ("out", "nn", 8),
        ("batch", "nn", 8),
    ):
        batch = (3,) if far == "batch" else ()
        sizes = {"a": (m, k), "b": (k, n), "out": (m, n)}
        orders = {"a": layout[0], "b": layout[1], "out": "n"}
        placed = {}
        for name, size in sizes.items():
            strides = (FAR if name == far else 16, 1)
            strides = (FAR, *strides) if batch else strides
            matrix = Plane().strided(
                (*batch, *(size if orders[name] == "n" else size[::-1])), strides
            )
            matrix.copy_(values(tuple(matrix.shape), matrix.dtype, "integers", seed=len(name)))
            placed[name] = matrix if orders[name] == "n" else matrix.mT
        module.KERNELS["matmul"](placed["a"], placed["b"], out=placed["out"])
        wanted = placed["a"].double() @ placed["b"].double()
        assert torch.equal(placed["out"].double(), wanted), (
            f"{module.LABEL}: {far} beyond 2^31 elements, {layout}"
        )


def check_groups(module, k=8):
    tile = next(iter(sizes(module.TILES, 90, "fp32").values()))
    check_case(
        module, DTYPES["fp32"], "nt", ((GROUP_M + 1) * tile.m + 1, tile.n + 1, k), kind="integers"
    )


def check_splits(module):
    half, fp8, tile = DTYPES["fp16"], FP8["fp8e4m3"], Tile(64, 128, 64, 4, 3)
    # Split by the rule for few tiles.
    check_case(module, half, "nt", (60, 56, 700), kind="integers", padded=True)
    check_case(module, half, "nt", (330, 264, 72), kind="integers")
    with patch.object(module, "chosen", lambda operands: (tile, 2)):
        check_case(module, half, "nn", (33, 40, 600), (2,), "integers", padded=True)
        check_case(module, fp8, "nt", (33, 24, 400), kind="ones", scales=(4.0, 0.125))
    with patch.object(module, "chosen", lambda operands: (tile, 4)):
        check_case(module, half, "tn", (72, 129, 600), kind="integers")
        check_case(module, torch.int8, "nt", (70, 80, 700), kind="bytes")
    with patch.object(module, "chosen", lambda operands: (Tile(64, 64, 32, 4, 3), 4)):
        check_case(module, DTYPES["fp32"], "nt", (5, 36, 333))


def check_range_of_sums(module):
    a = torch.full((2, 256), 200.0).half()
    a[:, 128:] = -200.0
    check("matmul", module, a, torch.full((256, 8), 200.0).half(), "nt")
    a = torch.ones(2, 513).half()
    a[:, 0] = 2048.0
    check("matmul", module, a, torch.full((513, 8), 2.0**-8).half(), "nt", is_exact=True)


def battery(module):
    for layout in LAYOUTS:
        check_case(module, DTYPES["fp16"], layout, (33, 17, 31))
        check_case(module, DTYPES["fp32"], layout, (66, 65, 33), batch=(2,), padded=True)
    check_groups(module)
    check_range_of_sums(module)
    check_far(module)
    if sizes(module.TILES, 90, "int8"):
        check_case(module, torch.int8, "nt", (70, 66, 200), kind="bytes")
        check_case(module, FP8["fp8e4m3"], "nt", (33, 17, 144), kind="ones", scales=(4.0, 0.125))
        check_case(module, DTYPES["fp16"], "nn", (200, 264, 40), kind="integers")
        check_case(module, DTYPES["fp16"], "tn", (40, 48, 24))
    if hasattr(module, "chosen"):
        check_splits(module)
