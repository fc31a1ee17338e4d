"""Causal attention over a whole prompt, as in prefill and training.

    out (b, a, s, d) = softmax(mask(q K^T / sqrt(d))) V       q (b, a, s, d), K and V (b, k, s, d)

Shape   bxs: b sequences of s tokens. A token attends to itself and to earlier tokens.
Heads   Each of the k key heads serves a / k of the a query heads. Defaults: Llama 3 8B.
FLOPs   2 b a d s (s + 1): two matmuls with 2 d FLOPs for each of the s (s + 1) / 2 unmasked pairs
        of tokens. Masked pairs and the softmax are not counted.
Bytes   w b d s (a + 2 k) read and w b a d s written, where w is the bytes per element. Scores can
        stay on the chip.
Ridge   (s + 1) / (w (1 + k / a)) FLOP/byte, which is 0.4 s in bf16 with four query heads per key
        head. An H100 (ridge point 295) is compute-bound from about 740 tokens.
Torch   scaled_dot_product_attention with is_causal and enable_gqa; torch selects the kernel. No
        fused fp32 kernel of torch on a GPU supports groups, so keys and values are repeated; the
        time includes this.

Source  Dao, FlashAttention-2 (2023), section 4.1: 4 s^2 d a FLOPs, halved by a causal mask; here
        the diagonal counts in full. Grouped heads: Ainslie et al., GQA (2023). Heads: Llama 3 8B,
        config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import SCORES
from bench.harness.op import (
    Case,
    Op,
    Option,
    TensorMaker,
    UnsupportedCaseError,
    parse_count,
    sequences_by_length,
)
from bench.model.layers import attention_magnitude, causal_attention, plain_attention
from roofline.work import Work, causal_attention_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "prompts of several lengths"),
    ("--shape 1x512 --heads 8 --kv-heads 1,2,8", "one, two and eight key heads"),
    ("--shape 4x1024 --provider torch,torch-compile", "four prompts in one launch"),
)

QUERY_GAIN = 4.0
"""Queries are this much larger than keys. It spreads the scores, so a wrong scale, mask or head
changes the result.
"""


def parse_option(text: str) -> int:
    return parse_count(text, 99999)


OPTIONS = (
    Option("heads", "number of query heads", parse_option, lambda dtype: 32),
    Option("kv-heads", "number of key and value heads", parse_option, lambda dtype: 8),
    Option("head-dim", "elements per head", parse_option, lambda dtype: 128),
)


def check(case: Case, device_type: str) -> None:
    heads = case.options["heads"]
    kv_heads = case.options["kv-heads"]
    if heads % kv_heads:
        raise UnsupportedCaseError(f"{heads} query heads cannot share {kv_heads} key heads evenly")


def output_shape(case: Case) -> tuple[int, ...]:
    return case.shape["b"], case.options["heads"], case.shape["s"], case.options["head-dim"]


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return q (b, a, s, d), and K and V (b, k, s, d)."""
    b, _, s, d = output_shape(case)
    cache = (b, case.options["kv-heads"], s, d)
    return tensor(*output_shape(case)).mul_(QUERY_GAIN), tensor(*cache), tensor(*cache)


def eager(q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the attention; torch's function has no `out`."""
    return causal_attention(q, keys, values)


def work(case: Case) -> Work:
    b, heads, s, d = output_shape(case)
    return causal_attention_work(b, s, heads, case.options["kv-heads"], d, case.dtype)


OPS = (
    Op(
        name="prefill-attention",
        formula="out (b, a, s, d) = softmax(causal(q (b, a, s, d) K^T / sqrt(d))) V, K and V (b, "
        "k, s, d)",
        axes=("b", "s"),
        extents=sequences_by_length,
        default_shapes={
            "cpu": ("1x256", "1x1024"),
            "cuda": ("1x1024", "1x4096", "8x4096", "1x16384"),
        },
        make_inputs=make_inputs,
        output_shape=output_shape,
        reference=plain_attention,
        eager=eager,
        expression=causal_attention,
        writes_out_when_compiled=False,
        work=work,
        magnitude=attention_magnitude,
        intermediate_roundings=1,
        stress=SCORES,
        defined_in=("bench.model.layers",),
        check=check,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
