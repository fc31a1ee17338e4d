"""FLOPs and bytes of decoding: on paper, by torch's counter, by what lies in memory, and by the estimate of a step."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.decode import OPS, OPTIONS
from bench.harness.model.layers import FAMILIES, load_model
from bench.harness.op import Case, UnsupportedCaseError
from roofline import estimate
from roofline.accounting.presets import preset_names
from roofline.gpu_table import load_gpus
from roofline.model import bound, intensity, least_time_s, ridge_intensity
from tests.bench.commands import meta_inputs

OP = {op.name: op for op in OPS}


def case_of(op, model, batch, length, dtype="bf16", layers="all"):
    return Case.of(op, dtype, {"b": batch, "s": length}, OPTIONS, {"model": model, "layers": layers})


def supported(op="decode-block", length=64):
    """Return the presets that are measured."""
    found = []
    for name in preset_names():
        try:
            OP[op].check(case_of(op, name, 1, length), "cpu")
        except UnsupportedCaseError:
            continue
        found.append(name)
    return found


# op, model, batch, KV length: FLOPs, bytes read, bytes written, all in bf16. Worked out on paper.
#
# Llama 3 8B: 4096 wide, 32 layers, 32 and 8 heads of 128, MLP 14336, V 128256. A layer has 4096 x 128 x 80 = 41943040
#   and 3 x 4096 x 14336 = 176160768 weights in products, and two norms of 4096: 218112000. A token has 2 x 8 x 128 x 2
#   = 4096 bytes in the cache of a layer. All 32 layers, the last norm, the head and one row: 7504928768 parameters.
# GPT-2: 768 wide, 12 layers, 12 heads of 64, V 50257. A layer has 12 x 768^2 + 13 x 768 = 7087872 parameters and 3072
#   bytes of cache a token; all of the model but its 1024 positions are 123653376, and two rows for each token.
BY_HAND = [
    ("decode-attention", "llama-3-8b", 2, 1024, 33_554_432, 8_404_992, 16_384),
    ("decode-attention", "gpt2", 1, 10, 30_720, 32_256, 1_536),
    ("decode-block", "llama-3-8b", 4, 1024, 1_811_939_328, 453_017_600, 49_152),
    ("decode-block", "gpt2", 2, 10, 28_372_992, 14_234_112, 9_216),
    ("decode-step", "llama-3-8b", 1, 8192, 19_304_284_160, 15_009_857_536 + 1_073_610_752, 131_072 + 256_512),
    ("decode-step", "gpt2", 1, 10, 247_432_704, 247_309_824 + 331_776, 36_864 + 100_514),
]


@pytest.mark.parametrize(("op", "model", "batch", "length", "flops", "read", "written"), BY_HAND)
def test_work_by_hand_follows_the_dtype(op, model, batch, length, flops, read, written):
    for dtype, bits in (("bf16", 16), ("fp16", 16), ("fp32", 32), ("fp64", 64)):
        work = OP[op].work(case_of(op, model, batch, length, dtype))
        found = (work.flops, work.bytes_read, work.bytes_written)
        assert found == (flops, read * bits // 16, written * bits // 16)
        assert {*map(type, found)} == {int}


def counted(function, inputs):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", supported())
@pytest.mark.parametrize("op", OP)
def test_inputs_and_output_are_the_bytes_and_torch_counts_the_flops(op, model):
    """The tables of rotary positions are no traffic: they follow from the position."""
    batch, length, config = 3, 40, load_model(model)
    case = case_of(op, model, batch, length, layers="2" if op == "decode-step" else "all")
    work, (inputs, out) = OP[op].work(case), meta_inputs(OP[op], case)
    tables = 0 if op == "decode-attention" or config.position_embeddings else 2 * config.head_dim * 2
    assert sum(x.nbytes for x in inputs) == work.bytes_read + tables
    assert out.nbytes == work.bytes_written
    if op == "decode-attention":
        assert counted(OP[op].reference, inputs) == work.flops
        return
    layers = 2 if op == "decode-step" else 1
    # Each head's product of a weight with the new value is not one that torch counts: it is added in place.
    new_value = 2 * layers * batch * config.heads * config.head_dim
    assert counted(OP[op].eager, inputs) == work.flops - new_value


def test_at_least_one_model_of_each_family_but_biasless_gpt_is_measured():
    assert {load_model(name).family for name in supported()} == set(FAMILIES) - {"nanogpt", "phi3"}


@pytest.mark.parametrize("batch", [1, 16, 512])
@pytest.mark.parametrize("model", ["gpt2", "qwen2.5-0.5b", "llama-3-8b", "qwen3-0.6b"])
def test_a_step_is_what_estimate_infer_predicts(model, batch):
    """`python -m roofline estimate infer` leaves the logits out, as activations; nothing else is different."""
    length, config = 1000, load_model(model)
    machine = load_gpus()["h100-sxm"]
    row = estimate.infer(model=config, gpu="h100-sxm", prompt=length, batch=batch).rows[0]
    work = OP["decode-step"].work(case_of("decode-step", model, batch, length))
    logits = 2 * batch * config.vocabulary
    assert work.flops == row["decode_flops"]
    assert work.bytes - logits == row["weight_bytes_read"] + row["cache_bytes"]
    predicted = least_time_s(work.flops, work.bytes - logits, machine.peak("bf16").value, machine.bandwidth().value)
    assert row["decode_seconds"] == predicted


def test_attention_nears_heads_over_key_heads_at_any_batch_and_a_block_turns_at_the_critical_batch():
    """Austin et al. (2025): G = 4 of Llama 3 8B in bf16; 295 on an H100 (989.5 / 3.35), a context of one token."""
    peak, bandwidth = 989.5e12, 3.35e12
    for batch in (1, 64, 4096):
        work = OP["decode-attention"].work(case_of("decode-attention", "llama-3-8b", batch, 131072))
        assert intensity(work.flops, work.bytes) == pytest.approx(4, rel=1e-4)
    assert round(ridge_intensity(peak, bandwidth)) == 295
    works = {batch: OP["decode-block"].work(case_of("decode-block", "llama-3-8b", batch, 1)) for batch in range(1, 400)}
    turn = min(batch for batch, work in works.items() if work.flops / peak >= work.bytes / bandwidth)
    assert 295 < turn < 310  # later than the formula, because of the cache and the hidden states
    assert bound(works[32].flops / peak, works[32].bytes / bandwidth, None) == "memory"
    assert bound(works[399].flops / peak, works[399].bytes / bandwidth, None) == "compute"


REFUSED = [
    ("deepseek-v3", 64, "latent attention"),
    ("mixtral-8x7b", 64, "mixtures of experts"),
    ("gemma-2b", 64, "family gemma is not supported"),
    ("nanogpt-124m", 64, "LayerNorm without biases"),
    ("gpt2", 1025, "the model has 1024 positions"),
    ("mistral-7b", 4097, "use at most 4096 tokens"),
]


@pytest.mark.parametrize(("model", "length", "why"), REFUSED)
@pytest.mark.parametrize("op", OP)
def test_what_is_built_otherwise_is_refused_by_name_and_still_counted(op, model, length, why):
    case = case_of(op, model, 1, length)
    with pytest.raises(UnsupportedCaseError, match=why) as refused:
        OP[op].check(case, "cpu")
    assert str(refused.value).startswith(f"{model}: ")
    assert OP[op].work(case).flops > 0
