"""What a training step holds on a GPU is what is predicted for one; `test_simulation.py` runs it on a simulated one."""

import pytest

from bench.harness.device.device import detect
from bench.harness.train.audit import measured_memory, memory_report
from bench.harness.train.check import check_step
from bench.harness.train.options import TrainingCase
from bench.harness.train.plan import plan_of
from bench.harness.train.step import TrainingStep
from roofline.accounting.config.file import read_config
from roofline.accounting.step_memory import step_memory

SIZES = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 1000}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
GPT = {"model_type": "nanogpt", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 1000}
MODELS = {
    "gpt": GPT | {"bias": True},
    "llama": {"model_type": "llama"} | SIZES | HEADS,
    "qwen3": {"model_type": "qwen3", "head_dim": 48} | SIZES | HEADS,
}


@pytest.mark.parametrize("recipe", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("checkpoint", ["none", "full"])
def test_memory_is_predicted_to_the_byte(model, recipe, checkpoint):
    case = TrainingCase(read_config(MODELS[model], model), 2, 40, recipe, checkpoint, 1, "adamw", "torch")
    plan = plan_of(case, "cuda")
    step = TrainingStep(plan, detect("cuda"), seed=0)
    step()
    report = memory_report(step_memory(plan), measured_memory(step))
    off = {name for name, error in report["error_pct"].items() if error}
    assert off <= (set() if checkpoint == "none" else {"total"})


@pytest.mark.parametrize("recipe", ["fp32", "amp"])
def test_gradients_are_right_where_keys_are_repeated(recipe):
    case = TrainingCase(read_config(MODELS["qwen3"], "qwen3"), 2, 24, recipe, "full", 2, "adamw", "torch")
    assert check_step(TrainingStep(plan_of(case, "cuda"), detect("cuda"), seed=0)).reason is None
