"""Training FLOPs against torch's own counter on forward and backward passes of the real
architectures.

`FlopCounterMode` counts products of matrices (mm, addmm, bmm), whatever asked for them. It knows
nothing of the grouped products of experts, and of flash attention on a CPU only newer releases know
something, so attention and experts run in their plain forms here; what it counts and leaves out
otherwise are tests of their own.
"""

import pytest
import torch
from test_accounting_parameters import VARIED
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from roofline.accounting.flops import train_flops
from roofline.accounting.presets import read_config

SEQUENCE, BATCH = 24, 2
APART = ("nanogpt", "llama4_text", "mamba", "mamba2")
REAL = {name: values for name, values in VARIED.items() if values["model_type"] not in APART}
"""transformers has no model of nanoGPT's kind; of the others its plain form computes something
else, too: see below.
"""


def real_model(values, attention="eager", experts="eager"):
    transformers = pytest.importorskip("transformers")  # a machine with a GPU may have torch alone
    values = dict(values)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    if hasattr(config, "num_experts_per_tok"):
        config._experts_implementation = experts
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention
    ).train()


def counted(model):
    ids = torch.randint(1, 1000, (BATCH, SEQUENCE))
    with FlopCounterMode(display=False) as counter:
        loss = model(input_ids=ids, use_cache=False).logits.float().square().mean()
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


def predicted(values, checkpoint="none"):
    config = read_config(values, "config.json")
    return train_flops(config, SEQUENCE, BATCH, "gemm-full", checkpoint=checkpoint, is_flash=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("values", REAL.values(), ids=REAL)
def test_every_product_is_counted_and_no_other(values):
    count = predicted(values)
    assert counted(real_model(values)) == (sum(count.forward.values()), count.model_flops)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma2"])
def test_full_recomputation_runs_every_layer_once_more(name):
    model = real_model(VARIED[name])
    model.activation_checkpointing_enable({"use_reentrant": False})
    count = predicted(VARIED[name], "full")
    with set_checkpoint_early_stop(False):
        assert counted(model)[1] == count.hardware_flops > count.model_flops


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_frozen_weights_need_no_gradients_of_their_own(name):
    """Only the embedding is trained: every product still hands its gradient down to it."""
    model = real_model(VARIED[name] | {"tie_word_embeddings": False})
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.get_input_embeddings().weight)
    config = read_config(VARIED[name] | {"tie_word_embeddings": False}, "config.json")
    count = train_flops(config, SEQUENCE, BATCH, "gemm-full", is_flash=False, is_frozen=True)
    assert counted(model)[1] == count.model_flops


def test_llama_4_computes_every_expert_in_its_plain_form():
    """transformers multiplies each token with all experts, and all but the chosen ones by 0."""
    values, count = VARIED["llama4_text"], predicted(VARIED["llama4_text"])
    idle = values["num_local_experts"] // values["num_experts_per_tok"] - 1
    forward, both = counted(real_model(values))
    assert forward == sum(count.forward.values()) + idle * count.forward["experts"]
    assert both == count.model_flops + idle * count.components["experts"]


def test_a_state_space_model_forward():
    """The plain convolution has kernel - 1 positions more.

    The counter's formula for the backward pass of a convolution with groups is not that of what is
    executed.
    """
    values, count = VARIED["mamba"], predicted(VARIED["mamba"])
    padding = count.forward["convolution"] // SEQUENCE * (values["conv_kernel"] - 1)
    assert counted(real_model(values))[0] == sum(count.forward.values()) + padding


def test_projections_and_convolutions_of_mamba_2():
    """Its plain scan runs in padded chunks of 256 tokens, so that modules are compared, and not the
    whole.
    """
    values, count = VARIED["mamba2"], predicted(VARIED["mamba2"])
    model = real_model(values)
    with FlopCounterMode(display=False, depth=9) as counter, torch.no_grad():
        model(input_ids=torch.randint(1, 1000, (BATCH, SEQUENCE)), use_cache=False)
    flops = {name: sum(by_op.values()) for name, by_op in counter.get_flop_counts().items()}
    of = lambda *ends: sum(part for name, part in flops.items() if name.endswith(ends))  # noqa: E731
    assert of("in_proj", "out_proj") == count.forward["state_space"]
    assert of("lm_head") == count.forward["lm_head"]
    padded = SEQUENCE + values["conv_kernel"] - 1
    convolved = counter.get_flop_counts()["Global"][torch.ops.aten.convolution]
    assert convolved * SEQUENCE == count.forward["convolution"] * padded
