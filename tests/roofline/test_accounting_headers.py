"""Models by the headers of safetensors files."""

import json

import pytest
from test_accounting_parameters import meta_model, total_of

from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.accounting.presets import load_preset

SMALL = {"vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SMALL |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}


def write(path, tensors):
    """Write the headers of tensors of 2 bytes per element, of fp8 weights, and of a buffer."""
    header = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name, shape in {**tensors, "rotary_emb.inv_freq": (8,)}.items():
        start, size = stop, 1 if name.endswith("proj.weight") else 2
        for extent in shape:
            size *= extent
        stop = start + size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return stop


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
def test_parameters_and_bytes_of_a_folder(tmp_path, family):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    parameters = meta_model({"model_type": family, **SMALL, **experts})
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    half = len(shapes) // 2
    held = write(tmp_path / "model-00001-of-00002.safetensors", dict(list(shapes.items())[:half]))
    held += write(tmp_path / "model-00002-of-00002.safetensors", dict(list(shapes.items())[half:]))
    write(tmp_path / "consolidated.safetensors", {"the same again": (10, 10)})
    counts = estimate.params(model=str(tmp_path)).values
    assert counts["total"] == total_of(parameters)
    assert 0 < counts["matmul"] < counts["total"]
    row = estimate.infer(model=str(tmp_path), gpu="h100-sxm").values
    assert row["weight_bytes"] == held - 2 * 16  # the buffers
    looked_up = (512 - 1) * 64 * 2  # one row of the embedding is read
    assert row["decode_bytes"] == row["weight_bytes_read"] == row["weight_bytes"] - looked_up
    wide = estimate.infer(model=str(tmp_path), gpu="h100-sxm", weight_dtype="fp32").values
    assert wide["weight_bytes"] == 4 * counts["total"]
    assert row["cache_bytes"] is None
    assert estimate.memory(model=str(tmp_path)).values["state_bytes"] == 16 * counts["total"]


def test_the_configuration_of_a_folder_is_used_if_it_is_known(tmp_path, monkeypatch):
    values = {"model_type": "llama", **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert load_preset(str(tmp_path)).layers == 3
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": "none"}))
    with pytest.raises(ConfigError, match="transformers builds no"):
        load_preset(str(tmp_path))
    write(
        tmp_path / "model.safetensors",
        {"embed_tokens.weight": (10, 4), "layers.0.up.weight": (8, 4)},
    )
    answer = estimate.params(model=str(tmp_path))
    assert answer.values["total"] == 72
    assert any("config.json: transformers builds no" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"w": {"shape": [-5, 4], "data_offsets": [0, 40]}}',
        b'{"w": {"shape": [5, 4], "data_offsets": [40, 0]}}',
        b"hello, world",
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text):
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ConfigError, match=r"model.*: no header of safetensors") as refusal:
        load_preset(str(tmp_path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["context", "parallel"])
def test_what_needs_layers_is_refused(tmp_path, name):
    write(tmp_path / "model.safetensors", {"embed_tokens.weight": (10, 4)})
    with pytest.raises(ConfigError, match="its layers are not known"):
        getattr(estimate, name)(model=str(tmp_path), gpu="h100-sxm", gpus=2)
