"""Configurations of models: presets, what a file may leave out, and files that are wrong, foreign
or hostile.
"""

import json
import tomllib

import pytest
from test_accounting_parameters import VARIED

from roofline.accounting.config import ConfigError
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import MODEL_FOLDER, load_config, load_preset, read_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def config_of(**changes):
    return read_config({**LLAMA, **changes}, "config.json")


def refused(**changes):
    with pytest.raises(ConfigError) as caught:
        config_of(**changes)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_file_gives_the_shape_of_its_preset(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    config, preset = load_config(path), load_preset("llama-3-8b")
    for field in (
        "layers",
        "width",
        "heads",
        "kv_heads",
        "head_dim",
        "mlp_width",
        "vocabulary",
        "is_tied",
        "context",
    ):
        assert getattr(config, field) == getattr(preset, field)
    assert str(path) in config.source


def test_what_a_file_leaves_out_is_named():
    config = read_config(
        {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, "config.json"
    )
    assert config.kv_heads == 32
    assert any(
        "'num_key_value_heads' is missing in the configuration: default 32" in line
        for line in config.assumptions
    )


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"]
)
def test_a_missing_key_is_named(key):
    assert f"'{key}' is missing" in refused(**{key: None})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "4096"),
        ("hidden_size", 4096.0),
        ("hidden_size", True),
        ("hidden_size", -1),
        ("hidden_size", 0),
        ("hidden_size", 10**400),
        ("num_hidden_layers", 10**6),
        ("hidden_size", [4096]),
        ("hidden_size", {"a": 1}),
        ("tie_word_embeddings", "yes"),
        ("head_dim", "x\n\x1b[31m" * 1000),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key, value):
    message = refused(**{key: value})
    assert f"'{key}'" in message
    assert "\x1b" not in message


def test_text_part_of_a_multimodal_model_is_counted_and_named():
    """LLaVA 1.5 7B holds Vicuna 7B, which is Llama 2 7B with 64 more rows of vocabulary."""
    text = {**LLAMA, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32064}
    seeing = {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_config": {},
    }
    config = read_config({**seeing, "text_config": text}, "config.json")
    assert count_parameters(config).total == 6_738_415_616 + 2 * 64 * 4096
    assert "'text_config' of a 'llava' only" in config.assumptions[0]
    assert "'model_type' is missing" in refused(model_type="gemma3", text_config={})


def test_null_rank_is_none_and_missing_rank_is_the_family_default():
    """transformers: `q_lora_rank` is 1536 where a file does not name it; DeepSeek-V2-Lite says
    null.
    """
    values = tomllib.loads((MODEL_FOLDER / "deepseek-v3.toml").read_text(encoding="utf-8"))[
        "config"
    ]
    named, left_out = (
        read_config(values, "a"),
        {k: v for k, v in values.items() if k != "q_lora_rank"},
    )
    assert read_config(left_out, "a").latent == named.latent
    assert any(
        "'q_lora_rank' is missing in the configuration: default 1536" in line
        for line in read_config(left_out, "a").assumptions
    )
    assert read_config({**values, "q_lora_rank": None}, "a").latent.query_rank == 0


def test_a_model_with_another_head_is_refused():
    message = refused(architectures=["LlamaForSequenceClassification"])
    assert "unsupported architecture 'LlamaForSequenceClassification'" in message


def test_windows():
    gemma = load_preset("gemma-2-9b")
    assert (gemma.window, gemma.windowed_layers) == (4096, 21)
    assert load_preset("gemma-3-1b").windowed_layers == 22
    assert load_preset("mistral-7b").windowed_layers == 32
    assert load_preset("llama-3-8b").window is None
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert read_config(qwen, "config.json").window is None  # named, but not used
    assert read_config({**qwen, "use_sliding_window": True}, "config.json").windowed_layers == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "a JSON object"),
        (b"{" * 10, "not JSON"),
        (b'{"model_type": NaN}', "'model_type' is nan, not a name"),
        (b'{"model_type": "llama", "num_attention_heads": Infinity}', "got inf"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"{}", "'model_type' is missing"),
    ],
)
def test_hostile_files_get_one_line(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_infinity_as_transformers_writes_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**VARIED["mamba2"], "time_step_limit": [0.0, float("inf")]}))
    assert load_config(path).layers == VARIED["mamba2"]["num_hidden_layers"]
