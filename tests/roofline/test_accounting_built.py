"""Models that transformers builds, since no formula is known for their architecture."""

import json
import sys
import warnings

import pytest
from test_accounting_parameters import VARIED, meta_model, total_of

from roofline import estimate
from roofline.accounting.built import built_config
from roofline.accounting.config import ConfigError
from roofline.accounting.flops import train_flops
from roofline.accounting.inference import (
    kv_bytes_per_token,
    kv_cache_bytes,
    state_bytes,
    weight_bytes_read,
)
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import read_config
from roofline.accounting.state import Sharding

WITHOUT_HEADS = ("mamba", "mamba2")
OTHER_CACHE = ("opt", "gpt_neox", "falcon")  # a key in VARIED that these do not read
BOTH_WAYS = {
    name: values
    for name, values in VARIED.items()
    if values["model_type"] not in ("nanogpt", *WITHOUT_HEADS)
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_built_model_is_that_of_the_formula(name):
    formula = read_config(BOTH_WAYS[name], name)
    built = built_config(BOTH_WAYS[name], name)
    count = count_parameters(built)
    assert count == count_parameters(formula)
    for convention in ("palm", "gemm-full", "gemm-causal-exact"):
        flops = train_flops(built, 64, convention=convention).model_flops
        assert flops == train_flops(formula, 64, convention=convention).model_flops
    if formula.family not in OTHER_CACHE:
        assert kv_cache_bytes(built, 64) == kv_cache_bytes(formula, 64)


FAMILIES = [
    "apertus",
    "bamba",
    "cohere2",
    "ernie4_5_moe",
    "falcon_h1",
    "glm4_moe_lite",
    "gpt_bigcode",
    "granitemoehybrid",
    "granitemoeshared",
    "gemma3n_text",
    "gemma4_text",
    "jamba",
    "kimi_linear",
    "lfm2",
    "minicpm3",
    "minimax",
    "mpt",
    "nemotron_h",
    "olmo_hybrid",
    "phimoe",
    "qwen3_5_moe",
    "qwen3_next",
    "recurrent_gemma",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_modules(family):
    config = read_config({"model_type": family}, "config.json")
    assert count_parameters(config).total == total_of(meta_model({"model_type": family}))
    assert 0 < count_parameters(config).matmul <= count_parameters(config).active


QWEN3_NEXT = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}
"""Qwen3-Next 80B A3B, whose keys have the default values."""


def test_layers_with_a_state_have_no_cache_and_no_scores():
    """Qwen, Qwen3-Next (2025): 80B, 3B active, and attention in every fourth of 48 layers with two
    heads of 256 keys and values.
    """
    config = read_config(QWEN3_NEXT, "config.json")
    count = count_parameters(config)
    assert (round(count.total / 1e9), round(count.active / 1e9, 1)) == (80, 3.9)
    assert kv_bytes_per_token(config) == 12 * 2 * 2 * 256 * 2
    core = train_flops(config, 1024, convention="gemm-full").forward["attention_core"]
    assert core == 12 * 4 * 1024**2 * 16 * 256
    half = Sharding(pipeline_parallel=2).stage(config)
    assert (half.layers, half.cached_layers) == (24, 6)
    table = 2 * config.vocabulary * config.width
    assert count_parameters(half).total - table == pytest.approx(
        (count.total - table) / 2, rel=1e-6
    )


def allocated(values, names, device="meta"):
    """Return the bytes that transformers allocates for a sequence of 5 tokens, in bf16."""
    import torch
    import transformers

    given = {key: values[key] for key in values if key != "model_type"}
    config = transformers.AutoConfig.for_model(values["model_type"], **given)
    with torch.device(device), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        out = model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=True)
    cache = out.cache_params if "cache_params" in out else out.past_key_values
    states = []
    for layer in cache.layers:
        for name in names:
            found = getattr(layer, name, {})
            states += found.values() if isinstance(found, dict) else [found]
    return sum(state.nbytes for state in states if state is not None)


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **SIZES}},
        {"model_type": "qwen2_vl", **SIZES, "vision_config": {"embed_dim": 64, "depth": 2}},
        {"model_type": "llava", "text_config": {"model_type": "llama", **SIZES}},
    ],
    ids=lambda values: values["model_type"],
)
def test_parameters_with_the_vision_tower(values, tmp_path, monkeypatch):
    import torch
    import transformers

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"vision_config": {}, **values, "auto_map": {"AutoModel": "no.No"}}))
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**{"vision_config": {}, **values})
        model = transformers.AutoModelForImageTextToText.from_config(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    answer = estimate.params(config=str(path))
    assert answer.values["total"] == count
    assert answer.values["language_model"] == count - answer.values["encoders"]
    assert not answer.warnings
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert (
        "encoders and their projections are left out"
        in estimate.params(config=str(path)).warnings[0]
    )


def test_a_configuration_with_vision_and_no_text_is_read_as_it_is():
    values = {"model_type": "git", "vision_config": {}}
    assert count_parameters(read_config(values, "config.json")).total == 176_619_066


ATTENDS = {"num_hidden_layers": 4, "layer_types": [*["linear_attention"] * 3, "full_attention"]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "qwen3_next"},
        {"model_type": "olmo_hybrid"},
        {"model_type": "kimi_linear"},
        {"model_type": "bailing_hybrid"},
        {"model_type": "falcon_h1"},
        {"model_type": "nemotron_h"},
        {"model_type": "jamba"},
        {"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [2]},
        {"model_type": "granitemoehybrid", **ATTENDS},
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
        VARIED["mamba"],
        VARIED["mamba2"],
    ],
    ids=lambda values: values["model_type"],
)
def test_states_have_the_bytes_that_transformers_allocates(values):
    config = read_config(values, "config.json")
    assert state_bytes(config) == allocated(values, ("conv_states", "recurrent_states")) > 0
    grown = kv_cache_bytes(config, 64, 2) - kv_cache_bytes(config, 32, 2)
    assert grown == 2 * 32 * kv_bytes_per_token(config)


@pytest.mark.parametrize(
    ("family", "device"),
    [
        ("gemma3n_text", "cpu"),
        ("gemma4_text", "meta"),
        ("mimo_v2_flash", "meta"),
        ("dots3_note_text", "meta"),
    ],
)
def test_layers_with_other_heads_or_without_keys_of_their_own(family, device):
    """Google, Gemma 3n (2025): 4B parameters without the embeddings of layers; the last 15 layers
    use the keys and values of others.
    """
    small = {"model_type": family, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 512}
    small |= {"vocab_size_per_layer_input": 512, "pad_token_id": 0}
    cached = kv_cache_bytes(read_config(small, "config.json"), 5)
    assert cached == allocated(small, ("keys", "values"), device)
    config = read_config({"model_type": family}, "config.json")
    windows = sum(elements for elements, window in config.caches if window)
    grown = kv_cache_bytes(config, 8192) - kv_cache_bytes(config, 4096)
    assert grown == 4096 * (kv_bytes_per_token(config) - 2 * windows)
    if family == "gemma3n_text":
        cached = estimate.infer(config, gpu="h100-sxm").steps[2].arithmetic
        assert cached.endswith("16 layers store at most 512")
        active = count_parameters(config).active
        assert active == pytest.approx(4e9, rel=0.15)
        assert weight_bytes_read(config, 1, "bf16") == pytest.approx(2 * active, rel=1e-4)


def test_tensor_parallelism_repeats_the_cache_but_not_states():
    """Two KV heads on 8 devices are stored four times; MiniMax, Lightning Attention (2025): a
    state of 128 x 128 for each of 64 heads.
    """
    config = read_config(QWEN3_NEXT, "config.json")
    states = 36 * (8192 * 4 * 2 + 32 * 128 * 128 * 4)
    assert kv_cache_bytes(config, 100) == states + 100 * 24_576
    assert kv_cache_bytes(config, 100, devices=8) == states + 4 * 100 * 24_576
    sizes = {"num_attention_heads": 64, "head_dim": 128, "num_hidden_layers": 4}
    minimax = read_config({"model_type": "minimax", **sizes}, "config.json")
    assert state_bytes(minimax) == 2 * 64 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "t5"}, "an encoder and a decoder, which `params` counts; or give its dim"),
        ({"model_type": "zamba2"}, "its layers share weights"),
        (QWEN3_NEXT | {"num_hidden_layers": 10**18}, "more than 1,000 layers"),
        (QWEN3_NEXT | {"num_experts_per_tok": 600}, "more experts than there are"),
        ({"model_type": "olmo", "num_hidden_layers": 0}, "a size is below 1"),
        ({"model_type": "glm4_mo"}, "did you mean glm4_moe?"),
        ({"model_type": "gemma3", "hidden_size": 96}, "does not read 'hidden_size'"),
        (
            QWEN3_NEXT | {"architectures": ["Qwen3NextForQuestionAnswering"]},
            "no language-model head",
        ),
        ({"model_type": "olmo", "hidden_size": "wide"}, "builds no language model"),
    ],
)
def test_what_cannot_be_built_is_one_line(values, reason):
    with pytest.raises(ConfigError) as refusal:
        read_config(values, "config.json")
    message = str(refusal.value)
    assert reason in message
    assert "\n" not in message
    assert len(message) < 450


@pytest.mark.parametrize(
    ("values", "encoder", "decoder", "total"),
    [
        # Raffel et al., T5 (2020): 60 million; google-t5/t5-small has 60,506,624.
        ({"model_type": "t5"}, 18_881_280, 25_175_808, 60_506_624),
        # Radford et al., Whisper (2022), table 1: tiny has 39 million, its file 37,760,640.
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            8_208_384,
            29_552_256,
            37_760_640,
        ),
        # Warner et al., ModernBERT (2024): 149 million.
        (
            {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]},
            0,
            0,
            149_655_232,
        ),
    ],
)
def test_parameters_of_models_without_a_causal_decoder(values, encoder, decoder, total, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    answer = estimate.params(config=str(path))
    parts = answer.values["components"]
    found = (parts.get("encoder", 0), parts.get("decoder", 0), answer.values["total"])
    assert found == (encoder, decoder, total)
    with pytest.raises(ConfigError, match=r"`params` counts.* dimensions \(--layers"):
        estimate.flops(config=str(path))


def test_layers_of_an_mlp_have_no_cache_and_unknown_kinds_are_named():
    kinds = {"layers_block_type": ["mamba", "moe", "attention", "moe"]}
    mixed = read_config({"model_type": "nemotron_h", **kinds}, "config.json")
    assert (mixed.layers, mixed.cached_layers) == (4, 1)
    wide = read_config({"model_type": "cpmant", "dim_head": 256}, "config.json")
    assert kv_bytes_per_token(wide) == 48 * 2 * 32 * 256 * 2
    sparse = read_config({"model_type": "deepseek_v32"}, "config.json")
    note = "layers of indexed_attention are counted as attention to all keys"
    assert note in sparse.assumptions


@pytest.mark.parametrize("family", ["qwen3_next", "mpt", "kimi_linear"])
def test_memory_and_layouts_of_built_models(family, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family}))
    given = {"config": str(path), "pipeline_parallel": 2, "tensor_parallel": 2}
    assert estimate.memory(**given, sequence_parallel=True).values["total_bytes"] > 0
    half = estimate.memory(**given).values["state_bytes"]
    whole = estimate.memory(config=str(path)).values["state_bytes"]
    assert 0.25 * whole <= half < 0.4 * whole  # routers and norms are not split


def test_without_transformers_the_command_to_install_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="pip install 'roofmark") as refusal:
        read_config({"model_type": "jamba"}, "config.json")
    assert "--experts-per-token) or its size (--params, --active-params)" in str(refusal.value)


def test_warnings_of_the_caller_stay_on():
    read_config({"model_type": "arcee"}, "config.json")  # imports add filters of their own
    filters = list(warnings.filters)
    read_config({"model_type": "arcee"}, "config.json")
    assert warnings.filters == filters


def test_code_of_a_repository_is_never_run(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    values = {"model_type": "jamba", "auto_map": {"AutoConfig": f"{tmp_path}--mine.Config"}}
    assert read_config(values, "config.json").layers == 32
