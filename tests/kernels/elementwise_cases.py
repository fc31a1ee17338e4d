"""Inputs, fp64 references and error bounds of the elementwise kernels, and Philox in numpy."""

import math

import numpy as np
import torch
from exact import DEVICE, EPS32, TINY32, Expected, assert_close, run_guarded, version_of

UNARY = ("copy", "relu", "gelu", "gelu-tanh", "silu")
SPECIALS = [
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    1e-7,
    -1e-7,
    0.5,
    -1.0,
    -3.0,
    -5.0,
    -10.0,
    -88.5,
    -6e4,
    6e4,
    2.7,
]
DROPPED = 0.1
SEED = 0x0123456789ABCDEF  # both halves of the key count

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), Philox4x32."""


def philox4x32(counters, key, rounds):
    """Return the words of counters, both of shape (n, 4), 32-bit numbers as uint64."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = counters.astype(np.uint64).T
    k0, k1 = key
    for _ in range(rounds):
        first, second = (
            np.uint64(m) * c for m, c in zip(PHILOX_MULTIPLIERS, (c0, c2), strict=True)
        )
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            second & low,
            (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            first & low,
        )
        k0, k1 = (
            (k + step) & 0xFFFFFFFF for k, step in zip((k0, k1), PHILOX_KEY_STEPS, strict=True)
        )
    return np.stack((c0, c1, c2, c3), axis=1)


def words(seed, numbers, rounds):
    halves = np.stack((numbers & 0xFFFFFFFF, numbers >> 32, 0 * numbers, 0 * numbers), axis=1)
    return philox4x32(halves, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF), rounds)


def keep_mask(version, seed, n, first=0):
    elements = np.arange(first, first + n, dtype=np.int64)
    # Triton's uniform number of the first word, negative integers mirrored.
    if version == "v1":
        word = words(seed, elements, 10)[:, 0].astype(np.uint32).view(np.int32)
        uniform = np.where(word < 0, ~word, word).astype(np.float32) * np.float32(4.6566127342e-10)
        return torch.from_numpy(uniform >= np.float32(DROPPED))
    of_element = words(seed, elements // 4, 7)[np.arange(n), elements % 4]
    return torch.from_numpy(of_element >= round(DROPPED * 2**32))


def _gelu(v, argument_error, version):
    exact = 0.5 * v * torch.special.erfc(-v * math.sqrt(0.5))
    # 1 + erf cancels in the negative tail, so the error is absolute there; the slope of GELU stays
    # below 1.13.
    error = (0.5 * v.abs() + exact.abs()) * 4 * EPS32 + 1.13 * argument_error
    if version != "v1":  # which multiplies infinity by zero
        exact = torch.where(v == -math.inf, -0.0, exact)
        error = torch.where(v == -math.inf, 16 * TINY32, error)
    return Expected(exact, error)


def _logistic_product(v, argument, argument_eps):
    exact = v * torch.sigmoid(argument)
    # A relative error of the argument grows by |argument| (1 - logistic), which is large in the
    # negative tail only.
    growth = argument.abs() * torch.sigmoid(-argument)
    return Expected(exact, exact.abs() * (8 + argument_eps * growth) * EPS32 + v.abs() * TINY32)


def expect(op, version, *inputs):
    x = inputs[0].double()
    if op == "dropout":
        keep = keep_mask(version, int(inputs[1]), x.numel()).view(x.shape)
        exact = torch.where(keep, x / (1 - DROPPED), 0.0)
        return Expected(exact, exact.abs() * EPS32)
    y = inputs[1].double() if len(inputs) == 2 else torch.zeros_like(x)
    if op == "copy":
        return Expected(x, None)
    if op == "relu":
        return Expected(torch.where(x <= 0, 0.0, x), None)
    if op in ("add", "residual-add", "mul"):
        exact = x * y if op == "mul" else x + y
        return Expected(exact, exact.abs() * EPS32 / 2)
    if op == "triad":
        exact = x + 3 * y
        return Expected(exact, (exact.abs() + 3 * y.abs()) * EPS32 / 2)
    if op == "gelu":
        return _gelu(x, torch.zeros_like(x), version)
    if op == "bias-gelu":
        return _gelu(x + y, (x + y).abs() * EPS32 / 2, version)
    if op == "gelu-tanh":
        return _logistic_product(
            x, 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), argument_eps=4
        )
    gate = _logistic_product(x, x, argument_eps=2)
    if op == "silu":
        return gate
    assert op == "swiglu", f"no reference for {op}"
    exact = gate.exact * y
    return Expected(exact, gate.fp32_error * y.abs() + exact.abs() * EPS32)


def check(op, module, *inputs):
    version = version_of(module)
    out = run_guarded(module.KERNELS[op], inputs, tuple(inputs[0].shape))
    expected = expect(op, version, *inputs)
    assert_close(out, expected, f"{op} {version}")
    zero = expected.exact == 0
    # On a GPU the larger of -0 and 0 is 0, in the interpreter it may be either.
    if op != "relu" or DEVICE != "cpu":
        assert torch.equal(torch.signbit(out)[zero], torch.signbit(expected.exact)[zero]), (
            f"{op}: sign of zero"
        )


def draw(op, dtype, n, cols=None):
    generator = torch.Generator().manual_seed(n)

    def normal(*shape):
        return (3 * torch.randn(shape, generator=generator)).to(dtype)

    if op == "bias-gelu":
        cols = cols or n
        return normal(n // cols, cols), normal(cols)
    if op == "dropout":
        return normal(n), torch.tensor([SEED + n])
    return (normal(n),) if op in UNARY else (normal(n), normal(n))


def specials(op, dtype, count):
    pairs = torch.cartesian_prod(torch.tensor(SPECIALS), torch.tensor(SPECIALS)).to(dtype)
    pairs = pairs.repeat(-(-count // len(pairs)), 1)[:count]
    first, second = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    if op == "bias-gelu":
        return [(first[None, :], second)]
    if op == "dropout":
        return [(first, torch.tensor([SEED]))]
    return [(first,) if op in UNARY else (first, second)]


def battery(module):
    block = module.VARIANTS["copy", torch.float16].elements
    for op in ("copy", "triad", "swiglu", "gelu-tanh", "bias-gelu", "dropout"):
        check(op, module, *specials(op, torch.float16, 307)[0])
        for n in (block + 512, 2 * block - 1):
            check(op, module, *draw(op, torch.float16, n))
    check("bias-gelu", module, *draw("bias-gelu", torch.float16, 3 * 1000, 1000))
    check("bias-gelu", module, *draw("bias-gelu", torch.float32, 3 * 1040, 1040))
