"""Products of small models of `transformers`, counted by hand, on a CPU and projected."""

import pytest
import torch

import bench
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import target_of

transformers = pytest.importorskip("transformers")

WIDTH = 64
INNER = 96
PAIRS = 4 * 2 * 8 * 8 * WIDTH
"""FLOPs of the scores and values of a layer: 2 sequences of 8 tokens."""
TOKEN = 2 * 2 * 8
"""FLOPs of each weight for all tokens."""
HEAD = 128 * WIDTH
ATTENTION = 4 * WIDTH * WIDTH
GROUPED = 2 * WIDTH * WIDTH + 2 * WIDTH * 32
"""Weights of attention with half as many heads of keys as of queries."""
GATED = 3 * WIDTH * INNER
PLAIN = 2 * WIDTH * INNER
EXPERT = 3 * WIDTH * 32
POOLER = 2 * 2 * WIDTH * WIDTH

IDS = torch.randint(0, 128, (2, 8))
TEXT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PAIR = TEXT | {"labels": IDS}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {
    "vocab_size": 128,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA = BERT | ENDS | {"num_key_value_heads": 2}
WIDE = LLAMA | {"head_dim": 16}
MOE = WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
MLA_WEIGHTS = WIDTH * 32 + 32 * 4 * 24 + WIDTH * (16 + 8) + 16 * 4 * (16 + 16) + 4 * 16 * WIDTH
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": INNER,
    "image_size": 32,
    "patch_size": 8,
}
BOTH = {
    "vocab_size": 128,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_start_token_id": 2,
    **ENDS,
}
T5 = {"vocab_size": 128, "d_model": WIDTH, "d_kv": 16, "d_ff": INNER, "num_layers": 2}


def images(size):
    return {"pixel_values": torch.randn(2, 3, size, size)}


DENSE = TOKEN * (2 * (GROUPED + GATED) + HEAD) + 2 * PAIRS
ENCODER_DECODER = TOKEN * (2 * (3 * ATTENTION + 2 * PLAIN) + HEAD) + 6 * PAIRS
PATCHES = 2 * 32 * WIDTH * 3 * 8 * 8
VIT = PATCHES + 2 * 34 * 2 * (ATTENTION + PLAIN) + 2 * 4 * 2 * 17 * 17 * WIDTH
WHISPER = (
    2 * 2 * 32 * WIDTH * 80 * 3  # first convolution
    + 2 * 2 * 16 * WIDTH * WIDTH * 3
    + 2 * 32 * 2 * (ATTENTION + PLAIN)
    + 2 * 4 * 2 * 16 * 16 * WIDTH
    + TOKEN * (2 * (ATTENTION + ATTENTION // 2 + PLAIN) + HEAD)
    + 2 * 32 * 2 * (ATTENTION // 2)  # keys and values of the encoder's tokens
    + 2 * PAIRS
    + 2 * 4 * 2 * 8 * 16 * WIDTH
)
# Of each stage: depthwise 7 x 7, two pointwise of four times the channels, then 2 x 2 to the next.
CONVNEXT = (
    2 * 2 * 256 * 16 * 48
    + 2 * 2 * 256 * (16 * 49 + 8 * 16 * 16)
    + 2 * 2 * 64 * (16 * 4 * 32 + 32 * 49 + 8 * 32 * 32)
    + 2 * 2 * 16 * (32 * 4 * 64 + 64 * 49 + 8 * 64 * 64)
    + 2 * 2 * 4 * (64 * 4 * 64 + 64 * 49 + 8 * 64 * 64)
)
RESNET = (
    2 * 2 * 256 * 16 * 3 * 49
    + 2 * 2 * 64 * 2 * 16 * 16 * 9
    + 2 * 2 * 16 * (16 * 32 + 16 * 32 * 9 + 32 * 32 * 9)
)

CASES = {
    # Class, configuration, inputs, products of a forward pass, and the products without a gradient
    # of their input or of both operands.
    "Llama": ("AutoModelForCausalLM", LLAMA, TEXT, DENSE, 0),
    "Qwen3": ("AutoModelForCausalLM", WIDE, TEXT, DENSE, 0),
    "Gemma3Text": ("AutoModelForCausalLM", WIDE, TEXT, DENSE, 0),
    "GPT2": (
        "AutoModelForCausalLM",
        {"vocab_size": 128, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, **ENDS},
        TEXT,
        TOKEN * (2 * 12 * WIDTH * WIDTH + HEAD) + 2 * PAIRS,
        0,
    ),
    "Mixtral": (
        "AutoModelForCausalLM",
        LLAMA | {"num_local_experts": 4},
        TEXT,
        TOKEN * (2 * (GROUPED + 2 * GATED + 4 * WIDTH) + HEAD) + 2 * PAIRS,
        0,
    ),
    "GptOss": (
        "AutoModelForCausalLM",
        WIDE | {"num_local_experts": 4},
        TEXT,
        TOKEN * (2 * (GROUPED + 4 * GATED + 4 * WIDTH) + HEAD) + 2 * PAIRS,
        0,
    ),
    "Qwen3Moe": (
        "AutoModelForCausalLM",
        MOE,
        TEXT,
        TOKEN * (2 * (GROUPED + 2 * EXPERT + 4 * WIDTH) + HEAD) + 2 * PAIRS,
        0,
    ),
    "DeepseekV3": (
        "AutoModelForCausalLM",
        LLAMA | MLA,
        TEXT,
        TOKEN * (2 * MLA_WEIGHTS + GATED + 3 * EXPERT + 8 * WIDTH + HEAD)
        + 2 * 2 * 2 * 64 * 4 * (24 + 16),
        0,
    ),
    "Bert": (
        "AutoModel",
        BERT,
        TEXT,
        TOKEN * 2 * (ATTENTION + PLAIN) + 2 * PAIRS + POOLER,
        2 * POOLER,
    ),
    "ModernBert": (
        "AutoModel",
        BERT | ENDS | {"cls_token_id": 1, "sep_token_id": 2},
        TEXT,
        TOKEN * 2 * (ATTENTION + GATED) + 2 * PAIRS,
        0,
    ),
    "Bart": ("AutoModelForSeq2SeqLM", BOTH, PAIR, ENCODER_DECODER, 0),
    "T5": (
        "AutoModelForSeq2SeqLM",
        T5 | ENDS | {"num_heads": 4, "decoder_start_token_id": 0},
        PAIR,
        ENCODER_DECODER,
        0,
    ),
    "SwitchTransformers": (  # one of four experts for each token, in a loop over experts
        "AutoModelForSeq2SeqLM",
        T5
        | ENDS
        | {"num_heads": 4, "decoder_start_token_id": 0, "num_experts": 4, "num_decoder_layers": 2}
        | {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        {"input_ids": IDS, "labels": IDS},
        ENCODER_DECODER + TOKEN * 2 * 4 * WIDTH,
        0,
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        BOTH | {"max_source_positions": 16},
        {"input_features": torch.randn(2, 80, 32), "labels": IDS},
        WHISPER,
        2 * 2 * 32 * WIDTH * 80 * 3,
    ),
    "ViT": ("AutoModel", VISION, images(32), VIT + POOLER, PATCHES + 2 * POOLER),
    "CLIPVision": ("CLIPVisionModel", VISION, images(32), VIT, PATCHES),
    "ConvNext": (
        "AutoModel",
        {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "image_size": 64},
        images(64),
        CONVNEXT,
        2 * 2 * 256 * 16 * 48,
    ),
    "ResNet": (
        "AutoModel",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
        images(32),
        RESNET,
        2 * 2 * 256 * 16 * 3 * 49,
    ),
}


@pytest.mark.exhaustive
@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_products_of_a_model_agree_with_counts_by_hand(name):
    kind, options, inputs, forward, missing = CASES[name]
    config = getattr(transformers, f"{name}Config")(**options)
    made = getattr(transformers, kind)
    model = made.from_config(config) if kind.startswith("Auto") else made(config)
    for mode, flops in (("forward", forward), ("backward", 3 * forward - missing)):
        step = ProfiledStep(target_of(name, model, (), dict(inputs)), mode)
        operations = account(step).operations
        assert sum(each.matmul_flops for each in operations) == flops
        assert all(each.is_modelled for each in operations)
        rows = bench.profile(model, **inputs, on="h100-sxm", backward=mode == "backward").rows()
        assert sum(row["matmul_flops"] or 0 for row in rows) == flops
