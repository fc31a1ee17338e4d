"""FLOPs: published counts to the digit, every convention, and the identities that hold between
them.
"""

import pytest

from roofline.accounting.flops import doubled_pairs, gemm_flops, train_flops
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import load_preset, preset_names
from roofline.model import mfu


def per_token(name, sequence, convention):
    return train_flops(load_preset(name), sequence, convention=convention).per_token


def test_nanogpt_notebook():
    """nanoGPT, transformer_sizing.ipynb: forward and training FLOPs of 1024 tokens, the PaLM
    formula, MFU.
    """
    config = load_preset("nanogpt-124m")
    count = train_flops(config, 1024, convention="gemm-full")
    assert sum(count.forward.values()) == 291_648_307_200
    assert count.model_flops == 874_944_921_600
    assert train_flops(config, 1024, convention="palm").model_flops == 875_062_886_400
    step = train_flops(config, 1024, batch=100, convention="gemm-full")
    assert round(100 * mfu(step.model_flops / 0.755, 312e12), 2) == 37.14


def test_chinchilla_appendix_f():
    """Hoffmann et al. 2022, appendix F, by hand for GPT-2 small: the embedding is a product,
    softmax has 3 a s^2.
    """
    s, d, layers, vocabulary = 1024, 768, 12, 50257
    attention = 2 * 3 * s * d * d + 2 * s * s * d + 3 * 12 * s * s + 2 * s * s * d + 2 * s * d * d
    forward = 2 * 2 * s * vocabulary * d + layers * (attention + 2 * s * 2 * d * 4 * d)
    assert (
        train_flops(load_preset("nanogpt-124m"), s, convention="chinchilla").model_flops
        == 3 * forward
    )


def test_attention_of_published_shapes():
    # pytorch/pytorch issue 195460: SDPA (1, 12, 64, 64) in full
    assert doubled_pairs(64, 64, "full") * 12 * (64 + 64) == 12_582_912
    # facebookresearch/xformers issue 1402: q [1, 1, 4, 8], v [1, 1, 10, 16], bottom right
    assert doubled_pairs(4, 10, "causal-half") * (8 + 16) == 1536
    assert doubled_pairs(4, 10, "causal-exact") * (8 + 16) == 1632


@pytest.mark.parametrize("window", [None, 1, 3, 7, 12, 50])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (4, 10), (12, 12), (7, 8)])
def test_pairs_are_those_of_a_mask(queries, keys, window):
    offset = keys - queries
    seen = sum(
        key <= row + offset and (window is None or key > row + offset - window)
        for row in range(queries)
        for key in range(keys)
    )
    assert doubled_pairs(queries, keys, "causal-exact", window) == 2 * seen


@pytest.mark.parametrize("name", preset_names())
def test_conventions_agree_where_they_must(name):
    config, count = load_preset(name), count_parameters(load_preset(name))
    full, half, exact = (
        train_flops(config, 512, convention=word)
        for word in ("gemm-full", "gemm-causal-half", "gemm-causal-exact")
    )
    core = full.components["attention_core"]
    assert core == 6 * 512**2 * config.layers * config.heads * (config.head_dim + config.value_dim)
    state = sum(full.components.get(name, 0) for name in ("convolution", "state_scan"))
    assert full.model_flops - core - state == 6 * count.matmul * 512
    if config.window is None or config.window >= 512:
        assert 2 * half.components["attention_core"] == core
        assert exact.components["attention_core"] * 512 == half.components["attention_core"] * 513
    assert sum(gemm_flops(config, 1).values()) - state // (3 * 512) == 2 * count.matmul
    assert train_flops(config, 512, convention="6nd").per_token == 6 * count.active
    assert all(type(flops) is int for flops in full.components.values())


def test_recomputation_is_the_hardwares_alone():
    config = load_preset("gpt-3")
    plain = train_flops(config, 2048, convention="gemm-full", is_flash=False)
    assert plain.hardware_flops == plain.model_flops
    full = train_flops(config, 2048, convention="gemm-full", checkpoint="full", is_flash=False)
    assert full.model_flops == plain.model_flops
    per_layer = 96 * 2048 * 12288**2 + 16 * 2048**2 * 12288
    # Narayanan et al. 2021, equation 3.
    assert full.hardware_flops == 96 * per_layer + 6 * 2048 * 12288 * 50257
    assert full.model_flops == korthikanti_flops(2048, 96, 12288, 50257)
    selective = train_flops(
        config, 2048, convention="gemm-full", checkpoint="selective", is_flash=False
    )
    overhead = selective.hardware_flops / selective.model_flops - 1
    # the papers count attention's forward and backward pass in what is added: three times what runs
    # once more
    assert 3 * overhead == pytest.approx(added_of_korthikanti(2048, 96, 12288, 50257), rel=1e-12)


def korthikanti_flops(sequence, layers, width, vocabulary):
    """Return F = 72 B L s h^2 (1 + s / (6h) + V / (12 h L)) of one sequence: Korthikanti et al.
    2022, appendix A.
    """
    return sequence * (
        72 * layers * width**2 + 12 * layers * width * sequence + 6 * width * vocabulary
    )


def added_of_korthikanti(sequence, layers, width, vocabulary):
    """Return s / (3h) in place of s / (6h), as a fraction of the model's FLOPs: Korthikanti et al.
    2022, appendix A.
    """
    added = 12 * sequence * layers * width * sequence
    return added / korthikanti_flops(sequence, layers, width, vocabulary)


def test_flash_attention_executes_seven_products_for_six():
    """Dao, flash-attention benchmark: the backward pass is 2.5 times the forward, 3.5 in all."""
    count = train_flops(load_preset("gpt2"), 1024, convention="gemm-full")
    core = count.forward["attention_core"]
    assert count.components["attention_core"] + count.recomputed["attention_scores"] == 3.5 * core
