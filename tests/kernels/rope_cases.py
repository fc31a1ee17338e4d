"""Inputs, fp64 references and error bounds of rotary position embeddings."""

import math

import torch
from exact import DTYPES, EPS32, Expected, assert_close, run_guarded

from bench.rope import OPS

SPECIALS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-7, -3.0, 6e4, -6e4]


def draw(op, dtype, tokens, heads, kv_heads, head_dim):
    generator = torch.Generator().manual_seed(tokens + head_dim)

    def normal(*shape):
        return (3 * torch.randn(shape, generator=generator)).to(dtype)

    angles = normal(tokens, head_dim // 2)
    q = normal(tokens, heads, head_dim)
    return q, normal(tokens, kv_heads, head_dim), angles.cos(), angles.sin()


def check(op, module, *inputs):
    [definition] = [one for one in OPS if one.name == op]
    wide = [x.double() for x in inputs]
    exact = definition.reference(*wide)
    out = run_guarded(module.KERNELS[op], inputs, tuple(exact.shape))
    error = definition.magnitude(exact, *wide) * EPS32
    assert_close(out, Expected(exact, error), f"{op} {tuple(exact.shape)}")


def specials(op, dtype, count):
    q, *others = draw(op, dtype, max(1, count // 64), 3, 1, 16)
    q.view(-1)[: len(SPECIALS)] = torch.tensor(SPECIALS).to(dtype)
    return [(q, *others)]


def battery(module):
    for op in module.KERNELS:
        for dtype in DTYPES.values():
            for shape in ((3, 5, 2, 10), (2, 33, 17, 64), (2, 9, 1, 128), (1, 2, 3, 514)):
                check(op, module, *draw(op, dtype, *shape))
