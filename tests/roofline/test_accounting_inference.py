"""Caches, prefill and decode against published cases."""

from types import SimpleNamespace

import pytest

from roofline.accounting.config import model_of_size
from roofline.accounting.inference import (
    Serving,
    decode_flops,
    kv_bytes_per_token,
    kv_cache_bytes,
    prefill_flops,
    weight_bytes_read,
)
from roofline.accounting.machines import run_machine
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import load_preset
from roofline.machine import Ceiling, Machine

H100 = (989.4e12, 3.352e12)
"""FLOP/s and bytes/s."""


def test_kv_cache():
    # Llama 3 8B: 2 x 32 layers x 8 heads x 128 x 2 bytes = 128 KiB; Llama 1 without grouping four
    # times that
    assert kv_bytes_per_token(load_preset("llama-3-8b")) == 131_072
    assert kv_bytes_per_token(load_preset("llama-7b")) == 4 * 131_072
    # DeepSeek-V2 table 1 gives 9/2 d_h L for latent attention; V3: 61 x (512 + 64) x 2 bytes
    assert kv_bytes_per_token(load_preset("deepseek-v3")) == 61 * 576 * 2
    gemma = load_preset("gemma-3-1b")  # 4 of 26 layers see everything
    assert kv_cache_bytes(gemma, 8192, batch=3) == 3 * (4 * 8192 + 22 * 512) * 2 * 256 * 2
    assert kv_cache_bytes(gemma, 100) == 100 * kv_bytes_per_token(gemma)


def test_prefill_is_the_sum_of_its_decode_steps():
    """But for the head, which the last token alone needs."""
    for name in ("gpt2", "llama-3.2-1b", "gemma-3-1b"):
        config = load_preset(name)
        steps = sum(decode_flops(config, position) for position in range(1, 41))
        assert prefill_flops(config, 40) == steps - 39 * 2 * config.vocabulary * config.width


def test_latent_attention_decodes_in_its_absorbed_form():
    """DeepSeek-V3: 128 heads, each 576 elements of the cache for scores and 512 for values; 1,152
    bytes a position.
    """
    deepseek = load_preset("deepseek-v3")
    per_position = (decode_flops(deepseek, 4097) - decode_flops(deepseek, 4096)) // deepseek.layers
    assert per_position == 2 * 128 * (576 + 512) == 278_528
    assert Serving(deepseek, 1, 16 * 989.4e12, 16 * 4.8e12).critical_batch(131_072) == 688


def test_weights_that_a_decode_step_reads():
    llama, count = load_preset("llama-3-8b"), count_parameters(load_preset("llama-3-8b"))
    assert weight_bytes_read(llama, 1, "bf16") == 2 * (count.total - 128256 * 4096 + 4096)
    mixtral, all_of_it = load_preset("mixtral-8x7b"), count_parameters(load_preset("mixtral-8x7b"))
    one = weight_bytes_read(mixtral, 1, "bf16")
    # Of two experts; the embedding is but a row.
    assert one == pytest.approx(2 * all_of_it.active, rel=0.03)
    assert weight_bytes_read(mixtral, 512, "bf16") == pytest.approx(2 * all_of_it.total, rel=0.01)
    touched = 8 * (1 - (3 / 4) ** 4)
    experts = all_of_it.components["experts"]
    difference = weight_bytes_read(mixtral, 4, "bf16") - one - 2 * 3 * 4096
    assert difference == pytest.approx(2 * experts * (touched - 2) / 8, rel=1e-9)


def test_critical_batch_balances_compute_and_memory_time():
    """Every batch around it is on the side that it says."""
    mixtral = load_preset("mixtral-8x7b")
    # 8 experts of which each token reads 2 and computes with 2: about 46.6 / 12.7 times the batch
    # of a dense model
    free = Serving(mixtral, 1, *H100).critical_batch(0)
    assert free == pytest.approx(295.2 * 46.6e9 / 12.75e9, rel=0.01)
    for sequence in (0, 128, 512):
        batch = Serving(mixtral, 1, *H100).critical_batch(sequence)
        below, above = (Serving(mixtral, b, *H100) for b in (batch - 1, batch))
        compute_s, memory_s = below.times(below.decode(sequence))
        assert compute_s < memory_s
        compute_s, memory_s = above.times(above.decode(sequence))
        assert compute_s >= memory_s


@pytest.mark.parametrize("kind", ["measured", "datasheet"])
def test_a_run_under_published_ceilings_does_not_call_them_measured(kind):
    entries = tuple(
        Ceiling(quantity, name, 1e12, kind, "somewhere")
        for quantity, name in (("flops", "bf16"), ("bandwidth", "memory"))
    )
    environment = SimpleNamespace(device={"slug": "a"}, machine=Machine("a", "A", entries))
    assert (
        run_machine(
            SimpleNamespace(environment=environment, records=[], path="a.jsonl"), "run 1"
        ).source
        == f"{kind}, run 1"
    )


def test_state_space_models_store_a_constant_state():
    """Mamba 2.8B: 64 layers of 5,120 channels with 16 states and 4 columns of the convolution,
    whatever the length.
    """
    config = load_preset("mamba-2.8b")
    assert (
        kv_cache_bytes(config, 10) == kv_cache_bytes(config, 10**6) == 64 * 5120 * (16 * 4 + 4 * 2)
    )
    assert kv_bytes_per_token(config) == 0
    assert decode_flops(config, 10) == decode_flops(config, 10**6)
    # 64 layers x (convolution of 4, product of 16 states) x 5,120 channels beside the products of
    # weights
    assert decode_flops(config, 10) == 2 * count_parameters(config).matmul + 2 * 64 * 5120 * (
        4 + 16
    )


def test_critical_batch():
    """Austin et al. 2025: 240 for TPU v5e in bf16, 120 with int8 weights; H100 SXM 295 and 148."""
    dense = model_of_size(8e9)
    # 240.2, rounded up.
    for rates, batches in (((1.97e14, 8.2e11), (241, 121)), ((989.5e12, 3.35e12), (296, 148))):
        found = [
            Serving(dense, 1, *rates, weight_dtype=dtype).critical_batch(0)
            for dtype in ("bf16", "int8")
        ]
        assert found == list(batches)
