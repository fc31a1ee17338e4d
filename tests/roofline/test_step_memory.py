"""The most memory of a step, worked out by hand; tests of `bench.train_step` hold it against
torch.
"""

from dataclasses import replace

from roofline.accounting.activations import Kernels
from roofline.accounting.presets import load_preset
from roofline.accounting.state import RECIPES, Lora, Sharding
from roofline.accounting.step_memory import StepPlan, step_memory

GPT2, PARAMS, H, V, LAYERS = load_preset("gpt2"), 124_439_808, 768, 50257, 12
TOKENS = 4 * 1024


def plan(**changes):
    values = {
        "config": GPT2,
        "recipe": RECIPES["fp32"],
        "optimizer": "adamw",
        "sequence": 1024,
        "batch": 4,
    }
    return StepPlan(**values | {"kernels": Kernels(4)} | changes)


def test_gpt_2_in_fp32_at_4x1024():
    """A layer keeps 16 w h + 4 a + 16 bytes a token, the head 2 w h + 8 + 4 V; 8 V more while the
    loss goes back.
    """
    found = step_memory(plan())
    assert found.moment == "loss"
    sizes = found.sizes()
    assert (sizes["parameters"], sizes["gradients"]) == (4 * PARAMS, 4 * PARAMS)
    tensors = 2 + LAYERS * 16 + 2
    assert sizes["optimizer_state"] == 8 * PARAMS + 4 * tensors
    assert sizes["inputs"] == 16 * TOKENS
    assert (
        sizes["activations"]
        == LAYERS * TOKENS * (16 * 4 * H + 4 * 12 + 16)
        == sizes["kept_by_layers"]
    )
    assert sizes["logits_loss"] == TOKENS * (2 * 4 * H + 8 + 4 * V)
    assert sizes["temporary"] == TOKENS * 8 * V + 8
    assert found.total == sum(found.components().values())


def test_few_tokens_hold_most_at_the_vocabulary():
    assert step_memory(plan(sequence=8, batch=1)).moment == "embedding"
    found = step_memory(plan(config=replace(GPT2, is_tied=False), sequence=8, batch=1))
    assert found.moment == "head"
    assert found.components()["temporary"] == 4 * V * (8 + H) + 4 * 8 * H + 8


def test_logits_of_llama_3():
    """Llama 3, s 8192: 4.2 GB for one fp32 copy, of which torch's cross entropy holds three at
    most.
    """
    step = plan(
        config=load_preset("llama-3-8b"),
        recipe=RECIPES["bf16"],
        sequence=8192,
        batch=1,
        kernels=Kernels(2),
    )
    whole = step_memory(step)
    copy = 4 * 8192 * 128256
    assert round(copy / 1e9, 1) == 4.2
    assert whole.moment == "loss"
    assert whole.parts["head_logits_fp32"] == copy
    assert whole.components()["temporary"] == 2 * copy + 8
    for change in ({"loss_chunks": 2}, {"sharding": Sharding(tensor_parallel=2)}):
        half = step_memory(replace(step, **change))
        assert (half.moment, 2 * half.parts["head_logits_fp32"]) == ("loss", copy)


def test_selective_checkpointing_holds_no_scores_in_the_loss_backward():
    found = step_memory(plan(kernels=Kernels(4, is_flash=False), checkpoint="selective"))
    assert (found.moment, found.parts["activations_attention_scores"]) == ("loss", 0)
    # One layer's.
    assert found.kept_by_layers - found.sizes()["activations"] == 4 * 4 * 12 * 1024 * 1024


def test_pipeline_stage_holds_its_micro_batches_in_flight():
    """The first of four stages holds four micro-batches of three layers, and no logits."""
    step = plan(config=replace(GPT2, vocabulary=1000), batch=8, micro_batches=8)
    whole, piped = (
        step_memory(step),
        step_memory(replace(step, sharding=Sharding(pipeline_parallel=4))),
    )
    assert piped.kept_by_layers == whole.kept_by_layers
    assert "head_logits_fp32" not in piped.parts
    assert piped.parts["token_ids"] * 2 == whole.parts["token_ids"] == 16 * 8 * 1024
    full = step_memory(replace(step, checkpoint="full", sharding=Sharding(pipeline_parallel=4)))
    layer = whole.kept_by_layers // LAYERS
    assert full.kept_by_layers == (4 * 3 - 1) * 4 * 1024 * H + layer


def test_adapters_need_no_gradients_of_frozen_weights():
    step = plan(sequence=8, batch=1)
    trained, adapted = step_memory(step), step_memory(replace(step, lora=Lora(4)))
    assert trained.moment == "embedding"
    assert adapted.parts["temporary"] < 4 * V * H < trained.parts["temporary"]
