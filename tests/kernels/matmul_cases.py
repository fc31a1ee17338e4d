"""Matrices stored in every way a matmul may get them, and what their product must be.

Values are surrounded by NaN, also between the end of a row and the start of the next, so that whatever a kernel reads
beyond its matrix shows in the result; and nothing but the elements of C may be written.
"""

import math
import mmap

import torch
from exact import EPS32, GUARD, UNWRITTEN, Expected, assert_close

from kernels.matmul import OUTPUTS, v1_tile, v2_grouped, v3_persistent, v4_tma, v5_split_k

VERSIONS = {"v1": v1_tile, "v2": v2_grouped, "v3": v3_persistent, "v4": v4_tma, "v5": v5_split_k}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
FP8 = {"fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2}
LAYOUTS = ("nn", "nt", "tn")
FAR = 2**30  # a row stride: the third row lies beyond 2^31 elements
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13


class Stored:
    """A matrix or a stack of them, stored row-major (`n`) or transposed (`t`) amid other values."""

    def __init__(self, values, order, multiple=1, fill=math.nan, device="cpu", padded=False):
        rows_first = values if order == "n" else values.mT
        *batch, rows, columns = rows_first.shape
        stride = (-(-columns // multiple) + padded) * multiple
        count = math.prod(batch) * rows * stride
        if not values.dtype.is_floating_point:
            fill = 101 if math.isnan(fill) else fill
        self.buffer = torch.full((count + 2 * GUARD,), fill, dtype=torch.float64).to(values.dtype).to(device)
        inner = self.buffer[GUARD : GUARD + count].view(*batch, rows, stride)[..., :columns]
        inner.copy_(rows_first)
        self.tensor = inner if order == "n" else inner.mT
        self.before = self.buffer.clone()

    def assert_untouched_around(self, what):
        """Fail if the buffer changed anywhere but in the matrix."""
        now = self.buffer.clone()
        matrix = now.as_strided(self.tensor.shape, self.tensor.stride(), GUARD)
        matrix.copy_(self.before.as_strided(self.tensor.shape, self.tensor.stride(), GUARD))
        assert torch.equal(now.view(torch.uint8), self.before.view(torch.uint8)), f"{what}: wrote outside C"


def row_multiple(module, dtype):
    """Return of what number of elements the row strides must be multiples: 16 bytes for tensor descriptors."""
    return 16 // dtype.itemsize if hasattr(module, "MINIMUM_ARCH") else 1


def output_dtype(dtype):
    return OUTPUTS.get(dtype, dtype)


def draw(shape, dtype, kind="normal", seed=0):
    """Return seeded values: normal ones, or small whole numbers whose products and sums are exact."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if kind == "normal":
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = {"ones": (-1, 2), "integers": (-4, 5), "bytes": (-128, 128)}[kind]
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def expect(a, b, scale=1.0, is_exact=False):
    """Return the product in fp64; sums of k terms in fp32 err by no more than k half-ulps of the sum of magnitudes.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), equation 3.5, for any order of summation.
    """
    a, b = a.double(), b.double()
    error = None if is_exact else (a.shape[-1] + 2) * EPS32 / 2 * (a.abs() @ b.abs()) * abs(scale)
    return Expected(a @ b * scale, error)


def run(module, a, b, layout, scales=(), device="cpu", padded=False, launchers="KERNELS"):
    """Launch on stored copies of A and B and return C."""
    blank = torch.full((*a.shape[:-1], b.shape[-1]), UNWRITTEN).to(output_dtype(a.dtype))
    out = Stored(blank, "n", row_multiple(module, blank.dtype), UNWRITTEN, device, padded)
    multiple = row_multiple(module, a.dtype)
    operands = [
        Stored(matrix, order, multiple, device=device, padded=padded).tensor
        for matrix, order in zip((a, b), layout, strict=True)
    ]
    factors = [torch.tensor([scale], device=device) for scale in scales]
    getattr(module, launchers)["matmul"](*operands, *factors, out=out.tensor)
    out.assert_untouched_around("matmul")
    return out.tensor.cpu()


def check(module, a, b, layout, is_exact=False, scales=(), **how):
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
    m, n, k = shape
    a, b = draw((*batch, m, k), dtype, kind), draw((*batch, k, n), dtype, kind, seed=1)
    check(module, a, b, layout, is_exact=kind != "normal", **more)


class Plane:
    """fp16 elements counted from the middle of a sparse mapping, from -2^31 to a little over 2^31."""

    def __init__(self):
        side, margin = 2 * FAR * DTYPES["fp16"].itemsize, 1 << 16
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory = mmap.mmap(-1, 2 * side + margin, flags=flags)
        self._elements = torch.frombuffer(self._memory, dtype=DTYPES["fp16"])
        self._middle = 2 * FAR

    def view(self, shape, strides):
        """Return a tensor that starts at element 0."""
        return self._elements.as_strided(shape, strides, self._middle)


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
        for name, (rows, columns) in sizes.items():
            if orders[name] == "t":
                rows, columns = columns, rows
            strides = (FAR if name == far else 16, 1)
            if batch:
                strides = (FAR, *strides)
            matrix = Plane().view((*batch, rows, columns), strides)
            matrix.copy_(draw(tuple(matrix.shape), matrix.dtype, "integers", seed=len(name)))
            placed[name] = matrix if orders[name] == "n" else matrix.mT
        module.KERNELS["matmul"](placed["a"], placed["b"], out=placed["out"])
        wanted = placed["a"].double() @ placed["b"].double()
        assert torch.equal(placed["out"].double(), wanted), f"{module.LABEL}: {far} beyond 2^31 elements, {layout}"
