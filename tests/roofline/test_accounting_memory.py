"""Bytes of state, activations and caches, against published cases and against what torch itself
keeps.
"""

import pytest

from roofline.accounting.activations import Kernels, layer_activations, model_activations
from roofline.accounting.config import ConfigError
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.presets import load_preset
from roofline.accounting.state import (
    RECIPES,
    bytes_per_param,
    cast_bytes,
    shard,
    state_bytes,
)

BYTES_OF_ADAMW = {
    "fp32": 16,
    "amp": 16,
    "bf16-master": 16,
    "bf16-master-fp32-grad": 18,
    "bf16-fp32-moments": 12,
    "bf16": 8,
    "fp8": 16,
}


def total(parts):
    assert all(type(size) is int for size in parts.values())
    return sum(parts.values())


@pytest.mark.parametrize(("recipe", "expected"), BYTES_OF_ADAMW.items())
def test_bytes_per_parameter_of_adamw(recipe, expected):
    """CS336 2025 and 2026, ZeRO, Megatron-LM; each recipe names its own."""
    assert bytes_per_param(RECIPES[recipe], "adamw") == expected
    parts = state_bytes(load_preset("gpt2"), RECIPES[recipe], "adamw")
    assert total(parts) == expected * 124_439_808
    cast = cast_bytes(load_preset("gpt2"), RECIPES[recipe], weights(load_preset("gpt2")))
    assert cast == (2 * 123_532_032 if recipe in ("amp", "fp8") else 0)


def test_bytes_per_parameter_of_other_optimizers():
    fp32 = RECIPES["fp32"]
    assert [
        bytes_per_param(fp32, name) for name in ("sgd", "momentum", "adagrad", "rmsprop", "lion")
    ] == [8] + [12] * 4
    with pytest.raises(ConfigError, match="requires a model"):
        bytes_per_param(fp32, "muon")


def test_optimizers_that_look_at_shapes():
    config = load_preset("notes-1.28b")
    plain = total(state_bytes(config, RECIPES["fp32"], "sgd"))
    h, f, layers, vocabulary = 2048, 8192, 24, 32000
    rows_and_columns = layers * (4 * (h + h) + 2 * (h + f)) + h + vocabulary
    norms = 49 * h
    assert total(state_bytes(config, RECIPES["fp32"], "adafactor")) - plain == 4 * (
        rows_and_columns + norms
    )
    matrices = count_parameters(config).matmul - vocabulary * h
    muon = total(state_bytes(config, RECIPES["fp32"], "muon")) - plain
    assert muon == 4 * matrices + 8 * (vocabulary * h + norms)
    eight_bit = (
        total(state_bytes(config, RECIPES["bf16"], "adam-8bit"))
        - 4 * count_parameters(config).total
    )
    # 2 + 8/256 bytes each, but the norms of 2048 stay in fp32
    assert eight_bit == (2 + 8 / 256) * (matrices + vocabulary * h) + 8 * norms


def test_tensor_parallelism_divides_matrices_and_keeps_norms():
    config = load_preset("llama-3-8b")
    whole = {weight.name: weight for weight in weights(config)}
    half = {weight.name: shard(weight, config, 2) for weight in weights(config)}
    for name, weight in whole.items():
        assert half[name].elements * (1 if weight.component == "norms" else 2) == weight.elements
    assert shard(whole["output"], config, 4).shape == (1024, 4096)
    # 8 heads: two devices have the same one.
    assert shard(whole["key"], config, 16).shape == (4096, 128)
    with pytest.raises(ConfigError, match="does not divide 32 heads"):
        shard(whole["query"], config, 5)


def test_checkpointing():
    config, kernels = load_preset("gpt-3"), Kernels(is_flash=False, has_dropout=True)
    layer = total(layer_activations(config, 2048, 1, kernels))
    words = {"none": (0, 96), "full": (96, 1), "every-1": (96, 1), "1": (96, 1), "sqrt": (10, 10)}
    for word, (boundaries, alive) in words.items():
        parts = model_activations(config, 2048, 1, kernels, word)
        assert total(parts) == 2 * 2048 * 12288 * boundaries + alive * layer
    for word in ("some", "every-0", "every-97", "every-x", "every-"):
        with pytest.raises(ConfigError, match="unknown checkpointing"):
            model_activations(config, 2048, 1, kernels, word)


def test_recomputed_layer_exists_once_with_micro_batches_in_flight():
    """Llama 3 70B, a stage of 10 layers, full checkpointing: 8 x 10 inputs of 2 s h bytes, and one
    layer.
    """
    stage = load_preset("llama-3-70b").with_layers(10)
    parts = model_activations(stage, 8192, checkpoint="full", micro_batches=8)
    assert parts.pop("checkpoints") == 8 * 10 * 2 * 8192 * 8192
    assert parts == layer_activations(stage, 8192)
    scores = "attention_scores"
    one, eight = (
        model_activations(stage, 512, 1, Kernels(is_flash=False), "selective", n) for n in (1, 8)
    )
    assert eight == {name: size * (1 if name == scores else 8) for name, size in one.items()}


def test_key_value_heads_are_repeated_beyond_their_number():
    """Llama 3 70B, 4,096 tokens on 16 devices: 4 query heads and one whole of the 8 key/value
    heads, 128 wide.
    """
    for ways, heads in ((16, 4), (8, 8)):
        parts = layer_activations(
            load_preset("llama-3-70b"), 4096, 1, Kernels(tensor_parallel=ways)
        )
        assert parts["attention"] == 4096 * 2 * 128 * (2 * heads + 2 * 1)


def test_experts_and_latent_attention_have_components():
    deepseek = load_preset("deepseek-v3")
    parts = layer_activations(deepseek, 4096, has_experts=True)
    per_token = 8 * (4 * 2048 * 2 + 2 * 7168 * 2) + 4 * 2048 * 2 + 256 * 4
    assert parts["experts"] == 4096 * per_token
    assert "mlp" in layer_activations(deepseek, 4096)
    whole = model_activations(deepseek, 4096)
    assert whole["experts"] == 58 * parts["experts"]
    assert whole["mlp"] == 3 * 4096 * 4 * 18432 * 2
