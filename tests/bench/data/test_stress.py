"""Hard inputs: formulas that random inputs do not tell from right ones, and their honest twins."""

import importlib
from functools import partial

import pytest
import torch
from torch.nn import functional

from bench.harness.data import stress
from bench.harness.data.verify import Checks
from bench.harness.op import Case
from bench.harness.providers.registry import numerics
from bench.model.layers import decode_block
from tests.bench import commands
from tests.bench.commands import CPU

FAMILIES = (
    "adamw",
    "attention",
    "cross_entropy",
    "decode",
    "elementwise",
    "grouped_matmul",
    "matmul",
    "matvec",
    "norm",
    "quantize",
    "reduction",
    "rope",
    "softmax",
)
OPS = {op.name: op for family in FAMILIES for op in importlib.import_module(f"bench.{family}").OPS}
WITHOUT = {"dropout", "matvec-int8", "decode-step"}
"""A random result, integers, and many layers, of which one is an op."""

SHAPES = {"softmax": (12, 500), "cross-entropy": (8, 262_144), "layernorm": (6, 500)}
SHAPES |= {"rmsnorm": (6, 500), "prefill-attention": (5, 33), "decode-attention": (2, 1024)}
SHAPES |= {"sum": (300_001,), "dot": (1_000_001,), "matmul": (24, 40, 1042)}
SHAPES |= {"decode-block": (1, 1024), "matvec": (24, 65_536)}


def case_of(name, dtype, shape=None):
    op = OPS[name]
    extents = shape or SHAPES.get(name) or (300, 64, 32)[: len(op.axes)]
    options = {"batch": 1, "layout": "nn"} if name == "matmul" else {}
    if name == "grouped-matmul":
        options = {"experts": 4, "load": "even"}
    elif name in ("prefill-attention", "rope", "rope-interleaved"):
        options = {"heads": 32, "kv-heads": 8, "head-dim": 128}
    elif name in ("decode-attention", "decode-block"):
        options = {"model": "qwen2.5-0.5b", "layers": "all"}
    return Case(name, dtype, dict(zip(op.axes, extents, strict=True)), options)


def problems_of(function, name, dtype, shape=None):
    """Return what is wrong with a function, by default torch's, on random inputs, and on hard
    ones.
    """
    case = case_of(name, dtype, shape)
    data = commands.inputs_of(OPS[name], case)
    checks = Checks(OPS[name], case, CPU)
    own = function or OPS[name].in_place
    call = partial(function or OPS[name].eager, *data.inputs, **({} if own else {"out": data.out}))
    before = [x.clone() for x in data.inputs]
    with numerics(dtype):
        on_random = checks.check(call, data).reason
        first = (checks.call_s, checks.result)
        on_hard = stress.problem(checks, call, data)
    assert checks.call_s == first[0]
    assert checks.result is first[1]
    assert all(map(torch.equal, data.inputs, before))
    return on_random, on_hard


def softmax_without_maximum(x):
    exponentials = x.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def softmax_with_maximum(x):
    return softmax_without_maximum(x - x.amax(-1, keepdim=True))


def softmax_of_row_zero(x):
    return softmax_without_maximum(x - x[:1].amax())


def softmax_of_the_first(x):
    return softmax_without_maximum(x - x[..., :1])


def losses_without_maximum(logits, labels):
    chosen = logits.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)
    return (logits.exp().sum(-1).log() - chosen).where(labels != -100, 0.0)


def losses_with_maximum(logits, labels):
    return losses_without_maximum(logits - logits.amax(-1, keepdim=True), labels)


def losses_of_any_label(logits, labels):
    logits = logits - logits.amax(-1, keepdim=True)
    return logits.exp().sum(-1).log() - logits.gather(-1, labels.abs()[:, None]).squeeze(-1)


def layernorm_of_squares(x, weight, bias):
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    return ((wide - mean) * torch.rsqrt(variance + 1e-5) * weight + bias).to(x.dtype)


def layernorm_in_two_passes(x, weight, bias):
    wide = x.float()
    centered = wide - wide.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return (centered * torch.rsqrt(variance + 1e-5) * weight + bias).to(x.dtype)


def rmsnorm_of_narrow_squares(x, weight):
    scale = (x.square().float().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (x * scale * weight).to(x.dtype)


def rmsnorm_of_wide_squares(x, weight):
    return rmsnorm_of_narrow_squares(x.float(), weight).to(x.dtype)


def rmsnorm_without_epsilon(x, weight):
    return x * x.square().mean(-1, keepdim=True).rsqrt() * weight


def silu_of_exp(x):
    return x * x.exp() / (1 + x.exp())


def gelu_tanh_of_exp(x):
    power = torch.exp(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    return x / 2 * (1 + (power - 1) / (power + 1))


def relu_of_absolute(x):
    return (x + x.abs()) / 2


def relu_of_comparison(x):
    return torch.where(x > 0, x, 0.0)


def attention_without_maximum(q, keys, values):
    scores = q.unflatten(1, (keys.shape[1], -1)) @ keys.mT / q.shape[-1] ** 0.5
    powers = scores.exp()
    return (powers / powers.sum(-1, keepdim=True) @ values).flatten(1, 2)


def attention_with_maximum(q, keys, values):
    scores = q.unflatten(1, (keys.shape[1], -1)) @ keys.mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ values).flatten(1, 2)


def sum_in_fp16(x):
    """Sum in pairs of neighbors, each rounded."""
    while len(x) > 1:
        x = functional.pad(x, (0, len(x) % 2)).view(-1, 2)
        x = x[:, 0] + x[:, 1]
    return x[0]


def sum_without_the_last(x):
    return x[:-1].sum()


def dot_of_a_reversed_end(x, y):
    return x.dot(torch.cat((y[:-8], y[-8:].flip(0))))


def matvec_without_the_last(a, x):
    return a[:, :-1] @ x[:-1]


def attention_with_nonnegative_maximum(q, keys, values):
    scores = q.unflatten(1, (keys.shape[1], -1)) @ keys.mT / q.shape[-1] ** 0.5
    powers = (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()
    return (powers / powers.sum(-1, keepdim=True) @ values).flatten(1, 2)


def attention_without_the_last(q, keys, values):
    return attention_with_maximum(q, keys[:, :, :-1], values[:, :, :-1])


def block_without_the_oldest(*inputs):
    return decode_block(*inputs[:-2], *(cache[:, :, 1:] for cache in inputs[-2:]))


def grouped_matmul_of_equal_parts(x, weights, ends):
    return torch.bmm(x.unflatten(0, (len(weights), -1)), weights).flatten(0, 1)


def matmul_in_fp16(a, b):
    return (a.half() @ b.half()).to(a.dtype)


def matmul_of_integers_in_fp32(a, b):
    return (a.float() @ b.float()).to(torch.int32)


def matmul_of_fp16_parts(a, b):
    """Multiply fp32 as the sum of products of two fp16 parts."""
    high, low = (a.half().float(), (a - a.half()).half().float())
    return high @ b + low @ b


WRONG = [
    ("softmax", "fp32", softmax_without_maximum, softmax_with_maximum, "offset 1000"),
    ("softmax", "fp32", softmax_of_row_zero, softmax_with_maximum, "offset 1000"),
    ("softmax", "fp32", softmax_of_the_first, softmax_with_maximum, "largest and lowest"),
    ("cross-entropy", "fp32", losses_without_maximum, losses_with_maximum, "offset 1000"),
    ("cross-entropy", "fp32", losses_of_any_label, losses_with_maximum, "ignored label"),
    ("layernorm", "fp32", layernorm_of_squares, layernorm_in_two_passes, "offset 1000"),
    ("layernorm", "bf16", layernorm_of_squares, layernorm_in_two_passes, "one differs"),
    ("rmsnorm", "fp16", rmsnorm_of_narrow_squares, rmsnorm_of_wide_squares, "large"),
    ("rmsnorm", "fp32", rmsnorm_without_epsilon, rmsnorm_of_wide_squares, "small"),
    ("silu", "fp32", silu_of_exp, functional.silu, "1000"),
    ("gelu-tanh", "fp32", gelu_tanh_of_exp, partial(functional.gelu, approximate="tanh"), "1000"),
    ("gelu", "fp32", lambda x: functional.gelu(x) * (x > -3), None, "-3.5"),
    ("relu", "fp32", relu_of_comparison, torch.relu, "NaN"),
    ("relu", "bf16", relu_of_absolute, torch.relu, "largest"),
    ("decode-attention", "fp32", attention_without_maximum, attention_with_maximum, "scores"),
    ("matmul", "fp32", matmul_of_fp16_parts, torch.matmul, "small"),
    ("sum", "fp16", sum_in_fp16, torch.sum, "large among small"),
    ("sum", "bf16", sum_without_the_last, None, "only the ends"),
    ("dot", "bf16", dot_of_a_reversed_end, None, "only the ends"),
    ("matvec", "bf16", matvec_without_the_last, None, "only the ends"),
    ("decode-attention", "fp32", attention_with_nonnegative_maximum, None, "scores offset down"),
    ("decode-attention", "bf16", attention_without_the_last, None, "only the ends"),
    ("decode-block", "bf16", block_without_the_oldest, None, "large values at the ends"),
    ("grouped-matmul", "fp32", grouped_matmul_of_equal_parts, None, "small"),
    ("matmul", "bf16", matmul_in_fp16, None, "large"),
    ("matmul", "int8", matmul_of_integers_in_fp32, None, "largest integers"),
]
"""Op, dtype, wrong function, its honest twin (by default torch's), and the input that shows it."""


@pytest.mark.parametrize(("op", "dtype", "wrong", "twin", "name"), WRONG)
def test_functions_that_only_hard_inputs_show_are_found(op, dtype, wrong, twin, name):
    on_random, on_hard = problems_of(wrong, op, dtype)
    assert on_random is None
    assert on_hard.startswith(f"wrong result on hard inputs ({name}"), on_hard
    assert problems_of(twin, op, dtype) == (None, None)


def test_a_gelu_may_double_before_it_halves():
    def gelu(x):
        return x * (1 + torch.erf(x / 2**0.5)) * 0.5

    assert problems_of(gelu, "gelu", "fp32") == (None, None)


@pytest.mark.parametrize("name", sorted(OPS.keys() - WITHOUT))
def test_torch_is_right_on_hard_inputs(name):
    for dtype in ("fp32", "fp16", "bf16"):
        assert problems_of(None, name, dtype) == (None, None)


def test_each_op_has_hard_inputs():
    assert {name for name, op in OPS.items() if not op.stress} == WITHOUT


@pytest.mark.parametrize("rows", [1, 3, 500])
def test_few_rows_take_more_calls(rows):
    calls = []

    def softmax(x):
        calls.append(x.clone())
        return x.softmax(-1)

    assert problems_of(softmax, "softmax", "fp32", (rows, 40)) == (None, None)
    assert len(calls) - 1 == -(-len(OPS["softmax"].stress) // rows)
    assert not any(torch.equal(calls[0], hard) for hard in calls[1:])
