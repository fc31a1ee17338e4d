"""Inverse questions: what fits, how long a context, which layout of devices."""

import pytest

from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.accounting.inference import cache_copies, kv_cache_bytes
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import load_preset
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.step_memory import StepPlan
from roofline.estimate.layout import shardings
from roofline.estimate.options import uses_of
from roofline.estimate.step import Layout, Network

PSI = 2 * count_parameters(load_preset("llama-3-8b")).total
"""Bytes of the weights of Llama 3 8B in bf16."""


# ---- context and batch


def test_context_is_the_last_that_fits():
    values = estimate.context(model="llama-3-8b", gpu="h100-sxm", batch=8, prompt=4096).values
    # vLLM's default --gpu-memory-utilization is 0.9.
    assert values["free_bytes"] == int(0.9 * 81089 * 2**20) - PSI
    config = load_preset("llama-3-8b")
    assert values["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert kv_cache_bytes(config, values["context"], 8) <= values["free_bytes"]
    assert kv_cache_bytes(config, values["context"] + 1, 8) > values["free_bytes"]
    assert values["batch"] == values["free_bytes"] // kv_cache_bytes(config, 4096)


def test_weights_that_do_not_fit_leave_no_context():
    answer = estimate.context(model="llama-3-70b", gpu="h100-sxm")
    assert (answer.values["context"], answer.values["batch"]) == (0, 0)
    assert "does not fit" in answer.warnings[0]
    assert estimate.context(model="llama-3-70b", gpu="h100-sxm", gpus=4).values["context"] > 100_000


def test_tensor_parallelism_stores_latent_keys_on_each_device():
    """DeepSeek-V3: 61 x 576 x 2 bytes a token, on each of 8 devices; data-parallel attention keeps
    a sequence on one, with all weights of attention.

    Source: sgl-project/sglang issue 1970. vLLM 0.7.1 stores 512,000 tokens on 8 H200 (Neural
    Magic's blog on MLA in vLLM, 2025).
    """
    values = estimate.context(
        model="deepseek-v3", gpu="h200-sxm", gpus=8, weight_dtype="fp8e4m3", utilization=1
    ).values
    config = load_preset("deepseek-v3")
    device_bytes = values["memory_bytes"] - values["weight_bytes"] / 8
    assert values["context"] == int(device_bytes // 70_272)
    assert 512_000 < values["context"] < 942_600
    attention = (
        values["weight_bytes"] / 8 + 7 / 8 * count_parameters(config).components["attention"]
    )
    left = values["memory_bytes"] - attention
    assert values["data_parallel_batch"] == 8 * int(left // (2048 * 70_272)) > values["batch"]


def test_tensor_parallelism_stores_each_of_few_key_heads_twice():
    """Llama 3 70B has 8 key and value heads: on 16 devices each is on two, and on 3 devices one has
    3 of them.

    Source: vLLM, `QKVParallelLinear`: `num_kv_head_replicas` = devices / heads.
    """
    config = load_preset("llama-3-70b")
    assert [cache_copies(config, devices) for devices in (1, 3, 8, 16)] == [1, 9 / 8, 1, 2]
    many = estimate.infer(model="llama-3-70b", gpu="h100-sxm", gpus=16, batch=64)
    assert many.values["cache_bytes"] == 2 * kv_cache_bytes(config, 2048, 64)
    assert many.values["decode_bytes"] == (
        many.values["weight_bytes_read"] + many.values["cache_bytes"]
    )
    assert "of KV cache" in many.main_texts()[-1]


# ---- what fits


@pytest.mark.parametrize(
    ("name", "given", "key", "is_less_better"),
    [
        ("infer", {"model": "llama-3-70b", "gpus": 2}, "decode_seconds", True),
        ("context", {"model": "llama-3-70b", "gpus": 2}, "batch", False),
        ("matmul", {"shape": "4096", "dtype": "fp8e4m3"}, "seconds", True),
        ("intensity", {"op": "gelu"}, "attainable_flops_per_s", False),
        ("memory", {"model": "llama-3.2-1b"}, "headroom_bytes", False),
    ],
)
def test_all_gpus_are_those_that_fit_the_best_first(name, given, key, is_less_better):
    answer = getattr(estimate, name)(**given, gpu="all")
    slugs = [row["gpu"] for row in answer.rows]
    assert "h100-sxm" in slugs
    values = [row[key] for row in answer.rows]
    assert values == sorted(values, reverse=not is_less_better)
    if "gpus" in given:
        left_out = next(
            line
            for line in answer.assumptions
            if line.startswith("left out, too small or too slow:")
        )
        assert "a100-sxm-40gb" in left_out  # 2 x 40 GB are less than 141 GB
        assert "a100-sxm-40gb" not in slugs
    if name == "matmul":
        assert "a100-sxm-80gb" not in slugs  # has no fp8


def test_the_batch_at_a_latency_is_the_largest():
    given = {"model": "llama-3-8b", "gpu": "h100-sxm"}
    found = estimate.infer(**given, latency=0.02)
    batch = found.values["batch"]
    assert found.values["decode_seconds"] <= 0.02
    assert estimate.infer(**given, batch=batch + 1).values["decode_seconds"] > 0.02
    assert found.values["tokens_per_s"] == batch / found.values["decode_seconds"]
    # Beyond it, 0.9 of the memory is the limit.
    long = estimate.infer(**given, latency=1).values
    assert long["used"] <= 0.9 < estimate.infer(**given, batch=long["batch"] + 1).values["used"]
    (warning,) = estimate.infer(**given, latency=1e-3).warnings
    assert warning == "h100-sxm: a step of one sequence takes 4.558 ms"
    assert estimate.infer(**given, latency="20 ms").values == found.values
    full = {"model": "deepseek-v3", "gpus": 8, "weight_dtype": "fp8e4m3", "latency": "1s"}
    (warning,) = estimate.infer(**full, gpu="h100-sxm").warnings  # one sequence takes 99 %
    assert "only 0.9 % of 8 x h100-sxm" in warning
    assert "h100-sxm" not in [row["gpu"] for row in estimate.infer(**full, gpu="all").rows]
    ranked = estimate.infer(model="llama-3-70b", gpu="all", gpus=4, latency=0.03)
    assert all(row["decode_seconds"] <= 0.03 for row in ranked.rows)
    assert "cache_bytes" not in ranked.values  # each GPU has another batch
    with pytest.raises(ValueError, match="--batch and --latency are mutually exclusive"):
        estimate.infer(**given, batch=2, latency=1)
    with pytest.raises(ValueError, match=r"argument --latency: '20x' is not.* seconds"):
        estimate.infer(**given, latency="20x")


def test_the_headline_of_several_gpus_names_the_fastest():
    several = estimate.infer(model="llama-3-8b", gpu="h100-sxm,h200-sxm,a10", weight_dtype="fp32")
    (fastest, _) = several.main_texts()
    assert fastest == "h200-sxm is the fastest: 6.310 ms a step"


def test_heads_that_do_not_divide_over_devices_are_noted():
    for ask in (estimate.context, estimate.infer):
        notes = ask(model="llama-3-70b", gpu="h100-sxm", gpus=12).assumptions
        assert "64 heads do not divide over 12 devices: engines refuse this" in notes


def test_speculative_decoding_gives_the_expected_tokens_of_a_cycle():
    """Leviathan et al. (2023), equation 1: (1 - a^(n + 1)) / (1 - a) tokens."""
    given = {"model": "llama-3-70b", "gpu": "h100-sxm", "gpus": 4, "output_tokens": 101}
    plain = estimate.generate(**given).values
    drafted = estimate.generate(**given, draft="llama-3-8b", draft_tokens=5, accepted=0.8).values
    assert drafted["tokens_per_cycle"] == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    others_s = drafted["seconds"] - drafted["first_token_s"]
    assert others_s == pytest.approx(100 * drafted["cycle_s"] / drafted["tokens_per_cycle"])
    assert drafted["cycle_s"] == pytest.approx(5 * drafted["draft_s"] + drafted["check_s"])
    assert drafted["speedup"] == pytest.approx(
        (plain["seconds"] - plain["first_token_s"]) / others_s
    )
    # The check of 6 tokens reads the weights once, like a step of one token.
    step_s = (plain["seconds"] - plain["first_token_s"]) / 100
    assert drafted["check_s"] == pytest.approx(step_s, rel=0.01)
    with pytest.raises(ValueError, match="--accepted has no effect without --draft"):
        estimate.generate(**given, accepted=0.5)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (
            "infer",
            {"model": "llama-3-405b"},
            "none of the GPUs in the table; at least 3 are",
        ),
        ("generate", {"model": "llama-3-8b", "price": 2}, "--price is that of one GPU"),
        ("mfu", {"params": 8e9, "tokens_per_s": 1e5}, "a run has the utilization of its own GPU"),
        ("context", {"model": "llama-3-8b", "memory": "80GB"}, "as it is: remove other GPUs"),
    ],
)
def test_all_gpus_are_refused_where_they_have_no_answer(name, given, said):
    with pytest.raises(ValueError, match=said):
        getattr(estimate, name)(**given, gpu="all")


def test_prices_by_name_rank_gpus_first():
    given = {"model": "llama-3-8b", "price": "h100-sxm=2.5,b200=4"}
    answer = estimate.generate(**given, gpu="all")
    rows = answer.rows
    assert [row["gpu"] for row in rows[:2]] == ["b200-sxm", "h100-sxm"]
    for row, price in zip(rows[:2], (4, 2.5), strict=True):
        assert row["price"] == pytest.approx(price * row["seconds"] / 3600)
    assert {row["price"] for row in rows[2:]} == {None}
    times = [row["seconds"] for row in rows[2:]]
    assert times == pytest.approx(sorted(times))
    assert "ranked by price; GPUs without one follow, by time" in answer.assumptions
    with pytest.raises(ValueError, match="--price names a GPU that --gpu does not"):
        estimate.generate(**given, gpu="b200")
    run = estimate.train(params=8e9, tokens=1e12, gpu="h100-sxm,b200", price={"b200": 4})
    assert [row["price"] is None for row in run.rows] == [True, False]


def test_all_gpus_leave_out_those_without_a_link_or_the_dtype():
    given = {"model": "llama-3-8b", "gpus": 64, "batch": 512}
    answer = estimate.parallel(**given, gpu="ALL")
    (left_out,) = [line for line in answer.assumptions if line.startswith("left out, without")]
    assert "tpu-v4" in left_out
    days = estimate.train(model="llama-3-8b", days=30, gpus=64, gpu="all").rows
    assert [row["tokens"] for row in days] == sorted((row["tokens"] for row in days), reverse=True)


# ---- layouts


def layout_of(sharding, micro_batches=1, sequence=2048):
    plan = StepPlan(
        config=load_preset("llama-3-8b"),
        recipe=RECIPES["bf16-master"],
        optimizer="adamw",
        sequence=sequence,
        batch=micro_batches,
        micro_batches=micro_batches,
        sharding=sharding,
    )
    (use,), _ = uses_of({"gpu": ["h100-sxm"]})
    return Layout(plan, use, Network(450e9))


@pytest.mark.parametrize(("zero", "psis"), [(1, 2), (3, 3)])
def test_zero_sends_as_much_as_its_paper_says(zero, psis):
    """Rajbhandari et al. (2020), section 7: 2 Psi up to stage 2, 3 Psi with stage 3, of many
    devices.
    """
    assert layout_of(Sharding(zero, data_parallel=1000)).traffic.sent["data"] == pytest.approx(
        psis * PSI, rel=2e-3
    )


def test_zero_3_sends_anew_for_each_micro_batch():
    assert layout_of(Sharding(3, data_parallel=1000), micro_batches=4).traffic.sent[
        "data"
    ] == pytest.approx(12 * PSI, rel=2e-3)


def test_tensor_parallelism_reduces_hidden_states_four_times_a_layer():
    """Shoeybi et al. (2019): 4 reductions of s b h elements, each 2 (t - 1) / t of them by a
    ring.
    """
    hidden_bytes = 2048 * 4096 * 2
    assert (
        layout_of(Sharding(0, tensor_parallel=8)).traffic.sent["tensor"]
        == 32 * 4 * 2 * hidden_bytes * 7 // 8
    )


def test_layouts_use_all_devices_and_divide_evenly():
    found = shardings(64, load_preset("llama-3-70b"), batch=512, sequence=2052)
    for each in found:
        ways = each.same_weights * each.tensor_parallel * each.pipeline_parallel
        assert (ways, 2052 % each.context_parallel) == (64, 0)
        assert (
            80 % each.pipeline_parallel == 512 % each.data_parallel == 8 % each.tensor_parallel == 0
        )
    assert len(found) == len(set(found))


def test_the_proposed_layout_fits_and_is_the_fastest():
    answer = estimate.parallel(
        model="llama-3-70b", gpu="h100-sxm", gpus=64, batch=512, sequence=8192, checkpoint="full"
    )
    assert all(row["total_bytes"] <= row["memory_bytes"] for row in answer.rows)
    times = [row["step_seconds"] for row in answer.rows]
    assert times == sorted(times)
    memory = estimate.memory(
        model="llama-3-70b",
        recipe="bf16-master",
        sequence=8192,
        accumulate=answer.values["micro_batches"],
        checkpoint="full",
        zero=answer.values["zero"],
        **{
            key: answer.values[key]
            for key in ("data_parallel", "tensor_parallel", "pipeline_parallel")
        },
    )
    assert memory.values["total_bytes"] == pytest.approx(answer.values["total_bytes"], rel=0.05)


def test_no_number_of_devices_holds_copies_of_a_large_cache():
    """Tensor parallelism stores the latent cache of DeepSeek-V3 on each device: 70,272 bytes for
    each of 4,096 x 2,048 tokens.
    """
    given = {"model": "deepseek-v3", "gpu": "gb300", "weight_dtype": "bf16"}
    never = estimate.infer(**given, batch=4096)
    assert never.rows[0]["gpus_needed"] is None
    assert "no number of devices is enough" in never.warnings[0]
    needed = estimate.infer(**given, batch=1024).rows[0]["gpus_needed"]
    assert needed == -(-2 * 671_026_404_352 // (309.2e9 - 1024 * 2048 * 70_272))


def test_layouts_of_a_model_with_experts_split_them():
    """DeepSeek-V3 on 256 H100: AutoModel (NVIDIA NeMo) ran 8.2 s a step with 64 expert-parallel
    devices; without expert parallelism no layout is below 40 s.
    """
    shape = {"model": "deepseek-v3", "gpu": "h100-sxm", "gpus": 256, "batch": 1024}
    shape |= {"checkpoint": "full", "mfu": 0.5}
    answer = estimate.parallel(**shape)
    best = answer.values
    assert answer.main_texts()[-2:] == ["ZeRO 3", f"{best['step_range']} for a step"]
    known = estimate.train(**shape, expert_parallel=64, zero=3).values
    assert best["expert_parallel"] > 1
    assert best["step_seconds"] <= known["step_seconds"] < 40


def test_layouts_split_long_sequences_where_nothing_else_fits():
    """Liu et al., Ring Attention (2023): a device has a part of each sequence and all weights."""
    shape = {"model": "llama-3-70b", "gpu": "h100-sxm", "gpus": 64, "batch": 512}
    shape |= {"checkpoint": "full", "mfu": 0.5, "sequence": 65536}
    best = estimate.parallel(**shape).values
    known = estimate.train(**shape, zero=3, context_parallel=8).values
    assert best["context_parallel"] > 1
    assert best["step_seconds"] <= known["step_seconds"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 8}, "no layout fits.*; --checkpoint full or more --gpus"),
        ({"gpus": 8, "checkpoint": "full"}, "no layout fits[^;]*; more --gpus"),
        (
            {"gpus": 7, "batch": 1, "model": "llama-3-8b"},
            "a batch of 1 sequences do not",
        ),
    ],
)
def test_layouts_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        estimate.parallel(**{"model": "llama-3-70b", "gpu": "h100-sxm"} | options)
