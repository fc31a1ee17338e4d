"""Matrices stored in every way a matmul may get them, and what their product must be.

Values are surrounded by NaN, also between the end of a row and the start of the next, so that whatever a kernel reads
beyond its matrix shows in the result; and nothing but the elements of C may be written.
"""

import math

import torch
from exact import EPS32, FAR, Expected, Plane, assert_close, run_apart

from kernels.matmul import OUTPUTS

FP8 = {"fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2}
LAYOUTS = ("nn", "nt", "tn")


def row_stride(module, columns, dtype, is_padded=False):
    """Return a row stride that a version takes: a multiple of 16 bytes for tensor descriptors."""
    multiple = 16 // dtype.itemsize if hasattr(module, "MINIMUM_ARCH") else 1
    return (-(-columns // multiple) + is_padded) * multiple


def output_dtype(dtype):
    return OUTPUTS.get(dtype, dtype)


def values(shape, dtype, kind="normal", seed=0):
    """Return seeded values: normal ones, or small whole numbers whose products and sums are exact."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if kind == "normal":
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = {"ones": (-1, 2), "integers": (-4, 5), "bytes": (-128, 128)}[kind]
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def draw(op, dtype, m, n, k, batch=(), kind="normal"):
    """Return A and B of a product."""
    return values((*batch, m, k), dtype, kind), values((*batch, k, n), dtype, kind, seed=1)


def expect(a, b, scale=1.0, is_exact=False):
    """Return the product in fp64; sums of k terms in fp32 err by no more than k half-ulps of the sum of magnitudes.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), equation 3.5, for any order of summation.
    """
    a, b = a.double(), b.double()
    error = None if is_exact else (a.shape[-1] + 2) * EPS32 / 2 * (a.abs() @ b.abs()) * abs(scale)
    return Expected(a @ b * scale, error)


def run(module, a, b, layout, scales=(), device="cpu", padded=False, launchers="KERNELS"):
    """Launch on stored copies of A and B and return C."""
    factors = [torch.tensor([scale], device=device) for scale in scales]
    orders = dict(zip("ab", layout, strict=True))

    def launch(*stored, out):
        operands = [rows if order == "n" else rows.mT for rows, order in zip(stored, layout, strict=True)]
        getattr(module, launchers)["matmul"](*operands, *factors, out=out)

    stored = [a if orders["a"] == "n" else a.mT, b if orders["b"] == "n" else b.mT]
    strides = [row_stride(module, rows.shape[-1], rows.dtype, padded) for rows in stored]
    shape, dtype = (*a.shape[:-1], b.shape[-1]), output_dtype(a.dtype)
    return run_apart(launch, stored, strides, shape, row_stride(module, shape[-1], dtype, padded), device, dtype)


def check(op, module, a, b, layout="nn", is_exact=False, scales=(), **how):
    """Compare every element of the product that a version computes."""
    out = run(module, a, b, layout, scales, **how)
    what = f"{module.LABEL} {tuple(a.shape)} {tuple(b.shape)} {layout} {a.dtype}"
    if out.dtype.is_floating_point:
        expected = expect(a, b, math.prod(scales), is_exact)
        if is_exact:  # the one rounding of a whole number is known too, and not of every number is none needed
            expected = Expected(expected.exact.to(out.dtype).double(), None)
        assert_close(out, expected, what)
    else:
        assert torch.equal(out.double(), a.double() @ b.double()), what


def check_case(module, dtype, layout, shape, batch=(), kind="normal", **more):
    """Draw A and B of a shape (m, n, k) and check their product."""
    a, b = draw("matmul", dtype, *shape, batch, kind)
    check("matmul", module, a, b, layout, is_exact=kind != "normal", **more)


def check_far(module):
    """Let the third row, or matrix, of A, B and C in turn lie beyond 2^31 elements: wrapped offsets read zeros."""
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
            matrix = Plane().strided((*batch, *(size if orders[name] == "n" else size[::-1])), strides)
            matrix.copy_(values(tuple(matrix.shape), matrix.dtype, "integers", seed=len(name)))
            placed[name] = matrix if orders[name] == "n" else matrix.mT
        module.KERNELS["matmul"](placed["a"], placed["b"], out=placed["out"])
        wanted = placed["a"].double() @ placed["b"].double()
        assert torch.equal(placed["out"].double(), wanted), f"{module.LABEL}: {far} beyond 2^31 elements, {layout}"
