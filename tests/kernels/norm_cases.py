"""References, error bounds, inputs and sparse memory for the tests of the row norms.

The bounds follow the formulas in fp32: u is half the distance from 1 to the next fp32 number, a sum of n terms has a
depth of about log2(n) additions and a few more, and what is left is one rounding to the dtype of the output.
"""

import mmap

import torch
from exact import EPS32, Expected, assert_close, run_guarded

from kernels.norm import v1_naive, v2_warps, v3_tiles, v4_split_rows

VERSIONS = {"v1": v1_naive, "v2": v2_warps, "v3": v3_tiles, "v4": v4_split_rows}
OPS = ("rmsnorm", "layernorm", "residual-rmsnorm")
RMS_EPS, LAYER_EPS = 1e-6, 1e-5
U = EPS32 / 2
SMALLEST32 = 2.0**-149  # the last step of fp32 below its normal range
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13


def depth(n: int) -> float:
    """Return how many additions one term of a sum of n goes through, at most."""
    return max(n, 1).bit_length() + n / 2048 + 4


def expect_rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> Expected:
    """Evaluate RMSNorm in fp64; halving by the root and 6 roundings after the sum bound the error."""
    x, weight = x.double(), weight.double()
    exact = x * torch.rsqrt(x.square().mean(1, keepdim=True) + RMS_EPS) * weight
    relative = (depth(x.shape[1]) / 2 + 6) * U
    return Expected(exact, exact.abs() * relative + SMALLEST32 * (1 + weight.abs()))


def expect_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, corrected: bool) -> Expected:
    """Evaluate LayerNorm in fp64.

    Args:
        x: Matrix of rows.
        weight: Factor of each column.
        bias: Summand of each column.
        corrected: Whether the error of the mean follows the spread of a row, not its mean.
    """
    x, weight, bias = x.double(), weight.double(), bias.double()
    mean = x.mean(1, keepdim=True)
    centered = x - mean
    variance = centered.square().mean(1, keepdim=True)
    scale = torch.rsqrt(variance + LAYER_EPS)
    exact = centered * scale * weight + bias
    steps = depth(x.shape[1])
    size = 2 * variance.sqrt() if corrected else x.abs().mean(1, keepdim=True)
    mean_error = steps * U * size
    relative = (steps / 2 + 6) * U + (mean_error * scale) ** 2
    error = weight.abs() * scale * (mean_error + centered.abs() * relative) + 2 * U * (exact.abs() + bias.abs())
    return Expected(exact, error + SMALLEST32)


def check(op, launcher, *inputs, corrected=False, device="cpu"):
    """Run a launcher on guarded copies of the inputs and compare every element; return the output on the host."""
    shape = tuple(inputs[0].shape)
    out = run_guarded(launcher, inputs, (2, *shape) if op == "residual-rmsnorm" else shape, device).cpu()
    compare(op, out, *inputs, corrected=corrected)
    return out


def compare(op, out, *inputs, corrected=False):
    """Compare an output with the exact one, and a residual sum with the rounded one, bit by bit."""
    what = f"{op} {tuple(inputs[0].shape)} {inputs[0].dtype}"
    if op == "layernorm":
        assert_close(out, expect_layernorm(*inputs, corrected=corrected), what)
        return
    x, weight = inputs[0], inputs[-1]
    if op == "residual-rmsnorm":
        x = (x.float() + inputs[1].float()).to(x.dtype)
        same = (out[0] == x) | (out[0].isnan() & x.isnan())
        assert same.all(), f"{what}: the sum is not the rounded sum"
        out = out[1]
    assert_close(out, expect_rmsnorm(x, weight), what)


def draw(op, dtype, m, n, scales=(1.0,), shift=0.0):
    """Draw seeded normal inputs of an operation: m rows of n, scaled in turns by `scales`, and vectors of n."""
    generator = torch.Generator().manual_seed(1000 * m + n)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    matrices = 2 if op == "residual-rmsnorm" else 1
    vectors = 2 if op == "layernorm" else 1
    scale = torch.tensor(scales).repeat(m)[:m, None]
    rows = [(scale * normal(m, n) + shift).to(dtype) for _ in range(matrices)]
    return (*rows, *((1 + normal(n) / 2).to(dtype) for _ in range(vectors)))


def padded(tensor, stride, fill):
    """Return a copy of a matrix, or of a stack of two, whose rows lie `stride` elements apart, and all its memory."""
    *planes, m, n = tensor.shape
    storage = torch.full((*planes, m, stride), fill, dtype=tensor.dtype, device=tensor.device)
    view = storage[..., :n]
    view.copy_(tensor)
    return view, storage


class Plane:
    """Memory that is mapped and never filled: 2^32 elements after its middle, 2^31 before it, where a wrap leads."""

    def __init__(self, dtype: torch.dtype, margin: int = 2**17) -> None:
        self.before = 2**31 + margin
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory = mmap.mmap(-1, (self.before + 2**32 + margin) * dtype.itemsize, flags=flags)
        self._all = torch.frombuffer(self._memory, dtype=dtype)

    def strided(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        """Return a view that starts in the middle."""
        return self._all.as_strided(shape, strides, self.before)
