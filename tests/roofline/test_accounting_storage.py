"""Bytes of quantized weights against published files, and what `quantization_config` says."""

import json

import pytest

from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.accounting.parameters import weights
from roofline.accounting.presets import load_config, load_preset
from roofline.accounting.storage import stored_bytes


@pytest.mark.parametrize(
    ("model", "dtype", "published", "tolerance"),
    [
        # OpenAI, gpt-oss model card (2025), table 1: checkpoints of 60.8 and 12.8 GiB.
        ("gpt-oss-120b", "mxfp4", 60.8 * 2**30, 0.005),
        ("gpt-oss-20b", "mxfp4", 12.8 * 2**30, 0.005),
        # Lin et al., AWQ (2023), groups of 128: 4.16 bits; embedding and head of 16.
        ("llama-3-8b", "int4", 6.98e9 * 4.16 / 8 + 2 * 128_256 * 4096 * 2, 0.005),
        # README of llama.cpp's tools/quantize, Llama 3.1 8B: 4.58 and 7.95 GiB.
        ("llama-3-8b", "q4_k_m", 4.58 * 2**30, 0.005),
        ("llama-3-8b", "q8_0", 7.95 * 2**30, 0.005),
        # Dettmers et al., QLoRA (2023), section 3: 0.5 bytes and 0.127 bits a weight.
        ("llama-7b", "nf4", 6_476_005_376 * 4.127 / 8 + 262_410_240 * 2, 1e-6),
        # DeepSeek-V3 (2024), section 3.3.1: embedding, head, router and norms keep bf16.
        ("deepseek-v3", "fp8e4m3", 671_026_404_352 + 2 * 129_280 * 7168, 0.001),
    ],
)
def test_a_format_quantizes_the_tensors_that_its_files_have_quantized(
    model, dtype, published, tolerance
):
    stored = stored_bytes(weights(load_preset(model)), dtype)
    assert stored == pytest.approx(published, rel=tolerance)


def quantized(folder, given):
    """Return the path of a Llama with a `quantization_config`."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "vocab_size": 256, "num_key_value_heads": 4}
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, "quantization_config": given}))
    return path


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8e4m3"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        (
            {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
            },
            "nf4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8e4m3",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
                "config_groups": {
                    "group_0": {
                        "input_activations": {"num_bits": 8, "type": "float"},
                        "weights": {"num_bits": 4, "type": "int"},
                    }
                },
            },
            "int4",
        ),
        ({"load_in_8bit": True, "bnb_4bit_quant_type": "fp4"}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "aqlm", "config_groups": 3}, None),
    ],
)
def test_quantization_config_is_read(tmp_path, given, dtype):
    """Source: the keys of published files, as transformers' `quantizers/auto.py` reads them."""
    path = quantized(tmp_path, given)
    config = load_config(path)
    answer = estimate.context(config=str(path), memory=1e9)
    assert answer.values["weight_bytes"] == stored_bytes(weights(config), dtype or "bf16")
    expected = f"'quantization_config': weights in {dtype}" if dtype else "is ignored"
    assert any(expected in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4),  # one for each column
    ],
)
def test_scales_are_those_of_a_group(tmp_path, given, bits):
    """A scale of 16 bits and a zero of 4 for each group: Frantar et al., GPTQ (2022)."""
    answer = estimate.infer(config=str(quantized(tmp_path, given)), gpu="h100-sxm")
    products = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    others = 2 * 256 * 64 + 5 * 64
    assert answer.values["weight_bytes"] == (products * bits + others * 16) / 8
    notes = "; ".join(answer.assumptions)
    assert f"weights in int4: {bits:g} bits for" in notes


@pytest.mark.parametrize("given", [[], "x", 4])
def test_a_quantization_config_that_is_no_object_is_refused(tmp_path, given):
    with pytest.raises(ConfigError, match="expected an object for 'quantization_config', got"):
        load_config(quantized(tmp_path, given))


def test_bits_per_weight_and_what_is_quantized_are_printed():
    answer = estimate.infer(model="gpt-oss-20b", gpu="h100-sxm")
    (weighed,) = [step for step in answer.steps if step.label == "weights"]
    assert weighed.arithmetic == "20,914,757,184 parameters of 5.264 bits on average"
    assert (
        "weights in mxfp4: 4.25 bits for routed experts (else products of the layers), 16 for the "
        "others" in answer.assumptions
    )


def test_a_cache_of_four_bits():
    """DeepSeek-V3 stores 61 x 576 elements a token, of 4.5 bits in nvfp4.

    Source: gpustack/gguf-parser-go issue 8, whose cache of 4 bits could not be computed.
    """
    answer = estimate.infer(model="deepseek-v3", gpu="h200-sxm", gpus=8, kv_dtype="nvfp4")
    assert answer.values["kv_bytes_per_token"] == 61 * 576 * 4.5 / 8
