"""Causal attention: compared with a loop and with torch, planted mistakes, its work."""

import math

import pytest
import torch

from bench.attention import OPS, OPTIONS
from bench.harness.data.verify import check
from bench.harness.op import Case, UnsupportedCaseError
from bench.model.layers import causal_attention, plain_attention
from roofline.work import causal_attention_work
from tests.bench.commands import inputs_of

(OP,) = OPS


def case_of(b, s, dtype="fp32", heads=6, kv_heads=2, head_dim=16):
    values = {"heads": heads, "kv-heads": kv_heads, "head-dim": head_dim}
    return Case.of(OP.name, dtype, {"b": b, "s": s}, OPTIONS, values)


def data_of(case, fill="uniform"):
    return inputs_of(OP, case, fill)


def by_hand(q, keys, values):
    out = torch.zeros_like(q)
    group = q.shape[1] // keys.shape[1]
    for head in range(q.shape[1]):
        for token in range(q.shape[2]):
            seen_keys = keys[0, head // group, : token + 1]
            shares = (seen_keys @ q[0, head, token] / math.sqrt(q.shape[3])).exp()
            out[0, head, token] = (shares / shares.sum()) @ values[0, head // group, : token + 1]
    return out


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [1, 5, 129])
def test_the_attention_reference_is_the_formula_at_any_length(length):
    q, keys, values = data_of(case_of(1, length, "fp64")).inputs
    assert torch.allclose(
        plain_attention(q, keys, values), by_hand(q, keys, values), rtol=1e-12, atol=1e-13
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_torch_attention_is_right_in_every_dtype_and_grouping(dtype, kv_heads, fill):
    for shape in ((1, 1), (3, 7), (2, 150)):
        case = case_of(*shape, dtype, kv_heads=kv_heads)
        data = data_of(case, fill)
        found = check(OP, case, data, causal_attention(*data.inputs))
        assert found.is_right, f"{shape}: {found.reason}"


def attend(q, keys, values, mask=None, scale=None, **options):
    function = torch.nn.functional.scaled_dot_product_attention
    return function(q, keys, values, attn_mask=mask, scale=scale, enable_gqa=True, **options)


MISTAKES = {
    "no mask": lambda q, k, v: attend(q, k, v),
    "a mask one token late": lambda q, k, v: attend(
        q, k, v, torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1)
    ),
    "scale by d": lambda q, k, v: attend(q, k, v, scale=1 / q.shape[3], is_causal=True),
    "heads in another order": lambda q, k, v: attend(q, k.flip(1), v.flip(1), is_causal=True),
    "the last token left out": lambda q, k, v: torch.cat(
        (causal_attention(q, k, v)[:, :, :-1], q[:, :, -1:]), 2
    ),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_causal_attention_is_detected(mistake, dtype):
    case = case_of(2, 64, dtype)
    data = data_of(case)
    assert not check(OP, case, data, MISTAKES[mistake](*data.inputs)).is_right


def test_attention_work_counts_causal_pairs():
    """2 tokens have 3 pairs; each takes 2 d FLOPs to score and 2 d to weigh its value."""
    work = causal_attention_work(1, 2, 1, 1, 1, "bf16")
    assert (work.flops, work.bytes_read, work.bytes_written) == (12, 12, 4)
    work = OP.work(case_of(2, 3, "fp32", 4, 2, 8))
    assert (work.flops, work.bytes_read, work.bytes_written) == (
        2 * 4 * 6 * 32,
        4 * 2 * 3 * 8 * 8,
        4 * 2 * 3 * 8 * 4,
    )
    work = OP.work(case_of(1, 739, "bf16", 32, 8, 128))
    assert work.flops / work.bytes == pytest.approx((739 + 1) / (2 * (1 + 8 / 32)), rel=1e-12)


def test_attention_work_agrees_with_flashattention_2():
    """FlashAttention-2 halves 4 s^2 d FLOPs: 4 x 8192^2 x 128 x 32 / 2 = 549.8e9 for 32 heads of
    128.
    """
    flops = causal_attention_work(1, 8192, 32, 8, 128, "bf16").flops
    assert flops == 4 * 8192**2 * 128 * 32 // 2 + 2 * 8192 * 128 * 32
    assert flops == pytest.approx(549.8e9, rel=2e-4)


def test_heads_that_do_not_divide_are_rejected():
    with pytest.raises(UnsupportedCaseError, match="6 query heads cannot share 4 key heads evenly"):
        OP.check(case_of(1, 8, kv_heads=4), "cpu")
