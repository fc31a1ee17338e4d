"""Training steps: predicted memory and FLOPs, and wrong steps."""

import gc
import math
import weakref
from dataclasses import replace

import pytest
import torch

from bench.harness.device.device import cpu_device
from bench.model.step import (
    TrainingStep,
    check_step,
    counted_flops,
    memory_report,
)
from bench.model.transformer import Transformer
from bench.train_step import OPTIMIZER_NAMES, countable_flops, flops_of
from roofline.accounting.activations import torch_kernels
from roofline.accounting.presets import read_config
from roofline.accounting.state import RECIPES
from roofline.accounting.step_memory import StepPlan

pytestmark = pytest.mark.usefixtures("one_thread")

LLAMA = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4, "vocab_size": 1000}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def gpt(**changes):
    sizes = {
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 1000,
        "bias": True,
    }
    return read_config({"model_type": "nanogpt", **sizes, **changes}, "gpt")


def llama(family="llama", **changes):
    return read_config({"model_type": family, **LLAMA, **changes}, family)


def plan(
    config,
    recipe="fp32",
    checkpoint="none",
    micro_batches=1,
    optimizer="adamw",
    batch=4,
    sequence=40,
):
    kernels = torch_kernels(config, RECIPES[recipe], "cpu")
    return StepPlan(
        config, RECIPES[recipe], optimizer, sequence, batch, micro_batches, checkpoint, kernels
    )


def report_of(of_plan):
    step = TrainingStep(of_plan, cpu_device(), seed=0)
    step()
    return memory_report(step)


def differences(report):
    """Return the bytes by which the peak and the state differ from the estimate, without zeros."""
    measured = {name: report["measured"][name] for name in report["error_pct"]}
    found = {
        name: report["estimated"][name] - size
        for name, size in measured.items()
        if size is not None
    }
    return {name: size for name, size in found.items() if size}


MODELS = {
    "gpt": gpt(),
    "gpt-untied": gpt(tie_word_embeddings=False, bias=False),
    "llama": llama(),
    "llama-tied": llama(tie_word_embeddings=True, attention_bias=True),
    "qwen3": llama("qwen3", head_dim=48),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("recipe", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_memory_of_a_step_is_predicted_to_the_byte(model, recipe):
    assert differences(report_of(plan(MODELS[model], recipe))) == {}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("recipe", "micro_batches", "checkpoint", "percent"),
    [
        ("fp32", 1, "full", 0.05),
        ("fp32", 1, "every-3", 0.05),
        ("bf16", 1, "sqrt", 0.5),
        ("amp", 2, "every-3", 2.0),
    ],
)
@pytest.mark.parametrize("model", ["gpt", "qwen3"])
def test_the_peak_of_a_checkpointed_step_is_predicted(
    model, recipe, micro_batches, checkpoint, percent
):
    report = report_of(plan(MODELS[model], recipe, checkpoint, micro_batches))
    # Temporaries within layers are estimates without biases and the workspace of bf16 kernels.
    assert abs(report["error_pct"]["total"]) < percent
    assert recipe == "amp" or set(differences(report)) <= {"total"}


@pytest.mark.parametrize(
    ("config", "moment", "shape"),
    [
        (llama(), "loss", {"batch": 1, "sequence": 128}),
        (gpt(vocab_size=50), "layers", {}),
        (gpt(vocab_size=4000), "embedding", {"batch": 1, "sequence": 4}),
        (gpt(vocab_size=4000, tie_word_embeddings=False), "head", {"batch": 1, "sequence": 4}),
    ],
)
def test_the_shape_decides_the_moment_of_peak_memory(config, moment, shape):
    report = report_of(plan(config, **shape))
    assert report["estimated"]["moment"] == moment
    assert abs(report["error_pct"]["total"]) < 0.1


@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
def test_state_of_each_optimizer_is_predicted_to_the_byte(optimizer):
    left = differences(report_of(plan(gpt(), optimizer=optimizer, checkpoint="full")))
    assert set(left) <= {"total"}


def test_memory_of_a_counted_step_is_released_immediately():
    """The garbage collector may not run before the next case needs the memory."""
    step = TrainingStep(plan(gpt()), cpu_device(), seed=0)
    step()
    memory_report(step)
    storages = [weakref.ref(parameter.untyped_storage()) for parameter in step.model.parameters()]
    gc.collect()
    gc.disable()
    try:
        memory_report(step)
        del step
        assert [storage for storage in storages if storage() is not None] == []
    finally:
        gc.enable()


def test_the_gpu_peak_is_what_its_allocator_adds_to_the_state(monkeypatch):
    step = TrainingStep(plan(gpt()), cpu_device(), seed=0)
    step()
    step.device = replace(step.device, type="cuda")
    monkeypatch.setattr(TrainingStep, "__call__", lambda step: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda name: 1000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda name: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda name: 1007)
    measured = memory_report(step)["measured"]
    state = sum(measured[name] for name in ("parameters", "gradients", "optimizer_state", "inputs"))
    assert (measured["allocator_peak"], measured["total"] - state) == (1007, 7)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("checkpoint", ["none", "full", "every-3"])
@pytest.mark.parametrize("model", MODELS)
def test_flops_that_torch_counts_are_predicted(model, checkpoint):
    of_plan = plan(MODELS[model], checkpoint=checkpoint, micro_batches=2)
    assert sum(counted_flops(of_plan).values()) == countable_flops(of_plan)
    assert flops_of(of_plan).model_flops == flops_of(plan(MODELS[model])).model_flops


def test_a_llama_computes_what_transformers_computes():
    transformers = pytest.importorskip("transformers")
    ours = Transformer(llama()).double()
    ours.rotate_for(24, torch.float64, "cpu")
    constants = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **constants)).double()
    names = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    names |= {
        f"attention.{name}": f"self_attn.{name[0]}_proj"
        for name in ("query", "key", "value", "output")
    }
    names |= {f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    state = {
        "model.embed_tokens.weight": ours.embedding.weight,
        "model.norm.weight": ours.head.norm.weight,
    }
    state["lm_head.weight"] = ours.head.product.weight
    for index, block in enumerate(ours.blocks):
        for own, other in names.items():
            state[f"model.layers.{index}.{other}.weight"] = block.get_parameter(f"{own}.weight")
    theirs.load_state_dict(state)
    ids, targets = torch.randint(0, 1000, (2, 24)), torch.randint(0, 1000, (2, 24))
    logits = theirs(ids).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten())
    assert ours(ids, targets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("recipe", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize(
    ("checkpoint", "micro_batches"), [("none", 1), ("every-3", 2), ("full", 4)]
)
@pytest.mark.parametrize("model", ["gpt", "qwen3"])
def test_gradients_are_equal_to_those_of_the_plain_step(model, checkpoint, micro_batches, recipe):
    step = TrainingStep(
        plan(MODELS[model], recipe, checkpoint, micro_batches), cpu_device(), seed=1
    )
    problem, verified, _ = check_step(step)
    assert problem is None
    assert 0 < verified["max_error"] < verified["bound"]
    assert verified["loss"] == pytest.approx(math.log(1000), abs=0.1)
    assert not any(parameter.grad.any() for parameter in step.model.parameters())


LOSS = TrainingStep.loss

WRONG_LOSSES = {
    "micro-batches summed up, not averaged": lambda step, *tokens: (
        LOSS(step, *tokens) * step.plan.micro_batches
    ),
    "shifted": lambda step, *tokens: LOSS(step, *tokens) + 0.5,
}

WRONG_GRADIENTS = {
    "lost": ("1.mlp.up.weight", torch.zeros_like),
    "off by a hundredth": ("0.attention.value.weight", lambda gradient: 1.01 * gradient),
    "not finite": ("0.mlp.down.bias", lambda gradient: gradient / 0),
}


@pytest.mark.parametrize("mistake", WRONG_LOSSES)
def test_a_wrong_loss_is_detected(mistake, monkeypatch):
    monkeypatch.setattr(TrainingStep, "loss", WRONG_LOSSES[mistake])
    reason, *_ = check_step(TrainingStep(plan(gpt(), micro_batches=2), cpu_device(), seed=0))
    assert reason.startswith("the loss starts at")


@pytest.mark.parametrize("mistake", WRONG_GRADIENTS)
def test_a_wrong_gradient_is_detected(mistake):
    step = TrainingStep(plan(gpt(), micro_batches=2), cpu_device(), seed=0)
    name, hook = WRONG_GRADIENTS[mistake]
    step.model.blocks.get_parameter(name).register_hook(hook)
    reason, *_ = check_step(step)
    assert reason.startswith("the gradient of ")


def test_a_step_updates_weights_and_leaves_no_gradients():
    step = TrainingStep(plan(gpt(), optimizer="sgd"), cpu_device(), seed=0)
    before = {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}
    step.loss(step.ids, step.targets).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in step.model.named_parameters()}
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
    assert norm > 1  # so that the step clips
    step.optimizer.zero_grad(set_to_none=False)
    step()
    for name, parameter in step.model.named_parameters():
        assert torch.allclose(
            parameter, before[name] - 1e-5 / norm * gradients[name], rtol=0, atol=1e-9
        )
        assert not parameter.grad.any()
