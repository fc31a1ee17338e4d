"""Decoding: compared with transformers, by hand and with torch's counter; planted mistakes; the
command.
"""

import json
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.decode import LAYER, OPS, OPTIONS
from bench.harness.data.verify import Checks, check, widened
from bench.harness.op import Case, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from bench.model import layers
from bench.model.layers import load_model
from roofline import estimate
from roofline.accounting.presets import preset_names
from roofline.gpu_table import load_gpus
from tests.bench.commands import CPU, here, inputs_of, keep_ceilings, meta_inputs

OP = {op.name: op for op in OPS}
SHAPE = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 101}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 4096}
CONFIGS = {
    "llama": SHAPE | {"tie_word_embeddings": False},
    "qwen2": SHAPE | {"tie_word_embeddings": True},
    "qwen3": SHAPE | {"head_dim": 16, "tie_word_embeddings": False},
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 4096, "vocab_size": 101},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the path of a small config.json of each family."""
    folder = tmp_path_factory.mktemp("models")
    for family, keys in CONFIGS.items():
        (folder / f"{family}.json").write_text(
            json.dumps({"model_type": family} | keys), encoding="utf-8"
        )
    return {family: str(folder / f"{family}.json") for family in CONFIGS}


pytestmark = pytest.mark.usefixtures("one_thread")


def case_of(op, model, batch, length, dtype="bf16", layers="all"):
    return Case.of(
        op, dtype, {"b": batch, "s": length}, OPTIONS, {"model": model, "layers": layers}
    )


def data_of(case, fill="uniform"):
    return inputs_of(OP[case.op], case, fill)


def verdict(case, data, provider="torch"):
    op = OP[case.op]
    with numerics(case.dtype):
        return Checks(op, case, CPU).check(load(provider, op, "", CPU).call(data), data)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_torch_decode_is_right_in_every_family_dtype_and_fill(models, family, dtype, fill):
    for op in OP:
        for batch, length in ((1, 1), (3, 5), (17, 48), (1, 333)):
            case = case_of(op, models[family], batch, length, dtype)
            OP[op].check(case, "cpu")
            found = verdict(case, data_of(case, fill))
            assert found.is_right, f"{op} {batch}x{length}: {found.reason}"
            assert found.checked_elements == found.elements


def transformers_model(family):
    """Return a small random fp64 model of transformers."""
    transformers = pytest.importorskip("transformers")
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gpt2": "GPT2"}
    more = {"layer_norm_epsilon": 1e-5} if family == "gpt2" else {"rms_norm_eps": 1e-6}
    if family != "gpt2":
        more |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    config = getattr(transformers, f"{names[family]}Config")(
        **CONFIGS[family] | more, attn_implementation="eager"
    )
    head = "GPT2LMHeadModel" if family == "gpt2" else f"{names[family]}ForCausalLM"
    model = getattr(transformers, head)(config).double().eval()
    torch.manual_seed(1)
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, 1.0 if tensor.dim() == 1 else 0.0, 0.3)
    return model


def llama_layer(layer):
    """Return the weights of a layer of transformers by the names used in `bench.decode`."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    found = {"qkv": torch.cat([part.weight for part in parts]), "output": attention.o_proj.weight}
    found |= {
        "attention_norm": layer.input_layernorm.weight,
        "mlp_norm": layer.post_attention_layernorm.weight,
    }
    found |= {
        "up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        "down": mlp.down_proj.weight,
    }
    if attention.q_proj.bias is not None:
        found["qkv_bias"] = torch.cat([part.bias for part in parts])
    if hasattr(attention, "q_norm"):
        found |= {"query_norm": attention.q_norm.weight, "key_norm": attention.k_norm.weight}
    return found


def gpt2_layer(layer):
    """Return the weights of a layer of GPT-2, which transformers stores transposed."""
    parts = {
        "qkv": layer.attn.c_attn,
        "output": layer.attn.c_proj,
        "up": layer.mlp.c_fc,
        "down": layer.mlp.c_proj,
    }
    found = {name: part.weight.T for name, part in parts.items()}
    found |= {f"{name}_bias": part.bias for name, part in parts.items()}
    for name, norm in (("attention_norm", layer.ln_1), ("mlp_norm", layer.ln_2)):
        found |= {name: norm.weight, f"{name}_bias": norm.bias}
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_decode_step_computes_what_transformers_computes(models, family):
    """transformers reads a prompt of 11 tokens; both then compute one more from its weights and
    cache.
    """
    model, length = transformers_model(family), 12
    words = torch.randint(0, 101, (3, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = model(words[:, :-1], use_cache=True).past_key_values
        earlier = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        expected = model(words[:, -1:], past_key_values=cache, use_cache=True).logits[:, 0]
        later = [
            part[:, :, -1].flatten(1)
            for layer in cache.layers
            for part in (layer.keys, layer.values)
        ]
    is_gpt = family == "gpt2"
    inner = model.transformer if is_gpt else model.model
    made = data_of(case_of("decode-step", models[family], 3, length, "fp64"))
    inputs, none = list(made.inputs), torch.empty(0, dtype=torch.float64)
    embedding = inner.wte if is_gpt else inner.embed_tokens
    inputs[0] = embedding(words[:, -1]).detach()
    last = inner.ln_f if is_gpt else inner.norm
    inputs[3:6] = [last.weight, last.bias if is_gpt else none, model.lm_head.weight]
    if is_gpt:
        inputs[1] = inner.wpe.weight[length - 1].expand(3, -1)
    layers = []
    for layer, (keys, values) in zip(inner.h if is_gpt else inner.layers, earlier, strict=True):
        w = (gpt2_layer if is_gpt else llama_layer)(layer) | {"keys": keys, "values": values}
        layers += [w.get(name, none) for name in LAYER]
    assert [x.shape for x in made.inputs] == [x.shape for x in (*inputs[:6], *layers)]
    wanted = torch.cat((expected, *later), 1)
    with torch.no_grad():
        assert torch.allclose(
            OP["decode-step"].reference(*inputs[:6], *layers), wanted, rtol=1e-5, atol=1e-5
        )


def plain_attention(q, keys, values):
    return layers.plain_attention(q[:, :, None], keys, values)[:, :, 0]


def attend(q, keys, values, key, value):
    return plain_attention(
        q, torch.cat((keys, key[:, :, None]), 2), torch.cat((values, value[:, :, None]), 2)
    )


def wrong_heads(q, keys, values, key, value):
    """Query head i reads key head i mod k instead of i // (a / k)."""
    order = torch.arange(q.shape[1]).view(-1, keys.shape[1]).T.flatten()
    return attend(q[:, order], keys, values, key, value)[:, order.argsort()]


def rotated_too_little(x, table):
    """Rotate by one position less: subtract the angle of one step."""
    half = table.shape[1] // 2
    step = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.atan2(table[1].double(), table[0].double()) - torch.cat((step, step))
    return ROTATED(x, torch.stack((angle.cos(), angle.sin())).to(table.dtype))


ROTATED = layers.rotated
MISTAKES = {
    "scale": ("cached_attention", lambda q, *cache: attend(q / math.sqrt(q.shape[-1]), *cache)),
    "heads": ("cached_attention", wrong_heads),
    "new token masked": (
        "cached_attention",
        lambda q, keys, values, *_: plain_attention(q, keys, values),
    ),
    "oldest token masked": (
        "cached_attention",
        lambda q, k, v, *new: attend(q, k[:, :, 1:], v[:, :, 1:], *new),
    ),
    "rotation": ("rotated", rotated_too_little),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_block_is_detected(models, mistake, dtype, monkeypatch):
    case = case_of("decode-block", models["llama"], 16, 24, dtype)
    data = data_of(case)
    right = OP["decode-block"].reference(*widened(data.inputs)).to(data.out.dtype)
    assert check(OP["decode-block"], case, data, right).is_right
    with numerics(dtype), monkeypatch.context() as patched:
        patched.setattr(layers, *MISTAKES[mistake])
        wrong = OP["decode-block"].eager(*data.inputs)
    found = check(OP["decode-block"], case, data, wrong.to(data.out.dtype))
    assert not found.is_right, f"{found.max_error_of_bound:.3g} of the bound"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_mistake_in_decode_attention_is_detected(models, dtype):
    op, case = OP["decode-attention"], case_of("decode-attention", models["llama"], 16, 24, dtype)
    data = data_of(case)
    q, keys, values = data.inputs
    for wrong in (
        (q, keys.flip(1), values.flip(1)),
        (q / 8**0.5, keys, values),
        (q, keys[:, :, 1:], values[:, :, 1:]),
    ):
        assert not check(op, case, data, plain_attention(*wrong).to(data.out.dtype)).is_right


def supported(op="decode-block", length=64):
    """Return the presets that `op` supports."""
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
# Llama 3 8B: 4096 wide, 32 layers, 32 and 8 heads of 128, MLP 14336, V 128256. A layer has 4096 x
# 128 x 80 = 41943040   and 3 x 4096 x 14336 = 176160768 weights in products, and two norms of 4096:
# 218112000. A token has 2 x 8 x 128 x 2   = 4096 bytes in the cache of a layer. All 32 layers, the
# last norm, the head and one row: 7504928768 parameters. GPT-2: 768 wide, 12 layers, 12 heads of
# 64, V 50257. A layer has 12 x 768^2 + 13 x 768 = 7087872 parameters and 3072   bytes of cache a
# token; all of the model but its 1024 positions are 123653376, and two rows for each token.
BY_HAND = [
    ("decode-attention", "llama-3-8b", 2, 1024, 33_554_432, 8_404_992, 16_384),
    ("decode-attention", "gpt2", 1, 10, 30_720, 32_256, 1_536),
    ("decode-block", "llama-3-8b", 4, 1024, 1_811_939_328, 453_017_600, 49_152),
    ("decode-block", "gpt2", 2, 10, 28_372_992, 14_234_112, 9_216),
    (
        "decode-step",
        "llama-3-8b",
        1,
        8192,
        19_304_284_160,
        15_009_857_536 + 1_073_610_752,
        131_072 + 256_512,
    ),
    ("decode-step", "gpt2", 1, 10, 247_432_704, 247_309_824 + 331_776, 36_864 + 100_514),
]


@pytest.mark.parametrize(("op", "model", "batch", "length", "flops", "read", "written"), BY_HAND)
def test_decode_work_by_hand_follows_the_dtype(op, model, batch, length, flops, read, written):
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
def test_decode_bytes_are_those_of_tensors_and_flops_those_of_torch(op, model):
    """The tables of rotary positions are not traffic: they follow from the position."""
    batch, length, config = 3, 40, load_model(model)
    case = case_of(op, model, batch, length, layers="2" if op == "decode-step" else "all")
    work, (inputs, out) = OP[op].work(case), meta_inputs(OP[op], case)
    tables = (
        0 if op == "decode-attention" or config.position_embeddings else 2 * config.head_dim * 2
    )
    assert sum(x.nbytes for x in inputs) == work.bytes_read + tables
    assert out.nbytes == work.bytes_written
    if op == "decode-attention":
        assert counted(OP[op].reference, inputs) == work.flops
        return
    layers = 2 if op == "decode-step" else 1
    # torch does not count each head's product of a weight and the new value: it is added in place.
    new_value = 2 * layers * batch * config.heads * config.head_dim
    assert counted(OP[op].eager, inputs) == work.flops - new_value


@pytest.mark.parametrize("model", ["gpt2", "llama-3-8b"])
def test_decode_work_is_what_estimate_infer_predicts(model):
    """The estimate differs only in the logits, which it does not count."""
    length, batch, config = 1000, 16, load_model(model)
    machine = load_gpus()["h100-sxm"]
    row = estimate.infer(model=config, gpu="h100-sxm", prompt=length, batch=batch).rows[0]
    work = OP["decode-step"].work(case_of("decode-step", model, batch, length))
    logits = 2 * batch * config.vocabulary
    assert work.flops == row["decode_flops"]
    assert work.bytes - logits == row["weight_bytes_read"] + row["cache_bytes"]
    predicted = max(
        work.flops / machine.peak("bf16").value,
        (work.bytes - logits) / machine.bandwidth().value,
    )
    assert row["decode_seconds"] == predicted


REFUSED = [
    ("deepseek-v3", 64, "latent attention"),
    ("mixtral-8x7b", 64, "mixtures of experts"),
    ("gemma-2b", 64, "family gemma is not supported"),
    ("nanogpt-124m", 64, "LayerNorm without biases"),
    ("gpt2", 1025, "the model has 1024 positions"),
    ("mistral-7b", 4097, "use at most 4096 tokens"),
]


@pytest.mark.parametrize(("model", "length", "why"), REFUSED)
def test_unsupported_models_are_rejected_by_name_and_counted(model, length, why):
    case = case_of("decode-block", model, 1, length)
    with pytest.raises(UnsupportedCaseError, match=why) as refused:
        OP["decode-block"].check(case, "cpu")
    assert str(refused.value).startswith(f"{model}: ")
    assert OP["decode-block"].work(case).flops > 0


BAD = [
    (("--model", "nope"), "--help`, or give --model path/to/config.json\n"),
    (("--model", "no/such/config.json"), "cannot read no/such/config.json"),
    (("--layers", "0"), "layers '0' must be 'all' or a whole number"),
    (("--op", "decode-step", "--layers", "99"), "use --layers 24 or fewer"),
    (("--shape", "1x2x3"), "write bxs"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_invalid_decode_arguments_are_a_one_line_error(words, message, runs, error_of):
    keep_ceilings(runs)
    shape = () if "--shape" in words else ("--shape", "16")
    assert message in error_of(here("decode", *words, *shape))
