"""Parameter counts: published totals to the last parameter, and the modules of transformers on the
meta device.
"""

import json
import tomllib
from pathlib import Path

import pytest

from roofline import estimate
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import MODEL_FOLDER, load_preset, preset_names, read_config

PUBLISHED_TOTALS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "nanogpt-124m": 124_337_664,  # nanoGPT, transformer_sizing.ipynb
    "gpt-3": 174_604_259_328,  # Brown et al. 2020: 174.6B
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,  # NVIDIA-NeMo/Automodel issue 786
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984,
    "olmo-2-7b": 7_298_617_344,
    "gpt-oss-20b": 20_914_757_184,  # OpenAI 2025: 20.9B
    "gpt-oss-120b": 116_829_156_672,  # 116.8B
    "gemma-3-27b": 27_009_346_304,
    "phi-4": 14_659_507_200,
    "mistral-small-24b": 23_572_403_200,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "deepseek-v2": 235_741_434_880,  # DeepSeek-AI 2024: 236B
    "falcon-7b": 6_921_720_704,
    "opt-125m": 125_239_296,
    "command-r": 34_980_831_232,
    "llama-4-maverick": 400_711_848_960,  # Meta 2025: 400B
    "mamba-130m": 129_135_360,
    "mamba-2.8b": 2_768_345_600,
    "mamba2-2.7b": 2_702_599_680,
}
"""Of the released weights, where no other source is named."""


@pytest.mark.parametrize(("name", "total"), PUBLISHED_TOTALS.items())
def test_published_totals(name, total):
    assert count_parameters(load_preset(name)).total == total


PUBLISHED_FILES = json.loads((Path(__file__).parent / "published_configs.json").read_text())
"""The keys of `config.json` files of Hugging Face as published, with the totals."""


@pytest.mark.parametrize("name", PUBLISHED_FILES)
def test_published_files(name):
    published = PUBLISHED_FILES[name]
    assert count_parameters(read_config(published["config"], name)).total == published["total"]


def test_dimensions_with_experts_are_those_of_mixtral():
    sizes = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
    answer = estimate.params(**sizes, experts=8, experts_per_token=2)
    assert answer.values["total"] == PUBLISHED_TOTALS["mixtral-8x7b"]
    with pytest.raises(ValueError, match="--style gpt2 has no --kv-heads"):
        estimate.params(**sizes, style="gpt2")


def test_active_and_matmul_parameters():
    mixtral = count_parameters(load_preset("mixtral-8x7b"))
    assert mixtral.active == 12_879_925_248  # Jiang et al. 2024: 13B active
    # Google/maxtext issue 1988.
    assert count_parameters(load_preset("llama-2-7b")).matmul == 6_607_077_376
    gpt2 = count_parameters(load_preset("gpt2"))  # tied: the head is multiplied by, but stored once
    assert "lm_head" not in gpt2.components
    assert gpt2.matmul == 12 * 12 * 768**2 + 50257 * 768


def meta_model(values):
    import torch
    import transformers

    values = dict(values)
    family = values.pop("model_type")
    is_nanogpt = family == "nanogpt"
    is_biased, has_positions = (
        is_nanogpt is False or values.pop("bias", True),
        values.pop("has_positions", True),
    )
    config = transformers.AutoConfig.for_model("gpt2" if is_nanogpt else family, **values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    left_out = lambda name: (  # noqa: E731
        (not is_biased and name.endswith("bias")) or (not has_positions and "wpe" in name)
    )
    return {name: parameter for name, parameter in model.named_parameters() if not left_out(name)}


def total_of(parameters):
    return sum(parameter.numel() for parameter in parameters.values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", preset_names())
def test_presets_count_as_the_real_architecture(name):
    values = tomllib.loads((MODEL_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))["config"]
    assert count_parameters(load_preset(name)).total == total_of(meta_model(values))


VARIED = json.loads(Path(__file__).with_name("varied_configs.json").read_text(encoding="utf-8"))
"""Small configurations of each family, with extents of which no two are alike."""


@pytest.mark.sampled(16)
@pytest.mark.parametrize("values", VARIED.values(), ids=VARIED)
def test_varied_configurations_count_as_the_real_architecture(values):
    count = count_parameters(read_config(values, "config.json"))
    real = meta_model(values)
    assert count.total == total_of(real)
    norms = sum(tensor.numel() for name, tensor in real.items() if "norm" in name or "ln_" in name)
    assert count.components["norms"] == norms


@pytest.mark.parametrize(
    "values", [VARIED["qwen2_moe some dense"], VARIED["deepseek_v3"], VARIED["mixtral"]]
)
def test_active_parameters_leave_out_the_experts_not_chosen(values):
    config = read_config(values, "config.json")
    count = count_parameters(config)
    real = meta_model(values)
    experts = [
        tensor for name, tensor in real.items() if ".experts." in name and "shared" not in name
    ]
    idle = sum(tensor.numel() // config.experts.count for tensor in experts)
    idle *= config.experts.count - config.experts.per_token
    assert count.active == count.total - idle
    matrices = [
        tensor for name, tensor in real.items() if tensor.ndim > 1 and "embed_tokens" not in name
    ]
    assert count.matmul == sum(tensor.numel() for tensor in matrices) - idle
