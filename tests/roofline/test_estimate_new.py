"""Utilization, devices needed, replies, models by dimensions: published and hand-worked numbers."""

import pytest
from test_estimate import call, data_of, text_of

from roofline import estimate
from roofline.accounting.inference import Serving
from roofline.accounting.presets import load_preset


def test_utilization_of_nanogpt(capsys):
    """nanoGPT, transformer_sizing.ipynb: 100 sequences of 1,024 in 0.755 s on an A100: 37.14 % and
    some more digits.
    """
    line = (
        "mfu --model nanogpt-124m --seconds-per-step 0.755 --batch 100 --sequence 1024 --gpu "
        "a100-sxm-40gb"
    )
    data = data_of(capsys, line)
    assert data["mfu"] == pytest.approx(875_062_886_400 * 100 / 0.755 / 312e12, rel=1e-4)
    both = data_of(capsys, f"{line} --convention palm,6nd")
    assert both.keys() - data.keys() == set()
    rows = {row["convention"]: row for row in both["rows"]}
    assert rows["6nd"]["mfu"] == pytest.approx(6 * 124_337_664 * 102_400 / 0.755 / 312e12)
    assert rows["palm"]["hfu"] > rows["palm"]["mfu"] == data["mfu"]


def test_every_command_has_the_mfu_of_palm(capsys):
    """6 N + 12 L a d s, all pairs, N without lookups: 7,504,924,672 and 6.44e9 at 4,096 tokens.

    Source: Chowdhery et al., PaLM (2022), appendix B. torchtitan prints 33 % for 5,762 tokens/s
    of Llama 3.1 8B, sequences of 8,192, on an H100 (its benchmarks of December 2024).
    """
    speed = "--tokens-per-s 5762 --sequence 8192 --gpu h100-sxm"
    line = f"mfu --model llama-3-8b {speed}"
    data = data_of(capsys, line)
    assert data["flops_per_token"] == 6 * 7_504_924_672 + 12 * 32 * 32 * 128 * 8192
    assert data["mfu"] == pytest.approx(0.337, abs=5e-4)
    text = text_of(capsys, line)
    assert "palm: 6 x 7,504,924,672 + 12,884,901,888 of attention" in text
    assert "0.38 to 0.57" in text
    flops = data_of(capsys, "flops --model llama-3-8b --sequence 8192")
    assert (flops["per_token"], flops["convention"]) == (data["flops_per_token"], "palm")
    assert sum(flops["components"].values()) == flops["per_step"]
    assert flops["components"]["lm_head"] == 6 * 8192 * 128_256 * 4096
    run = "train --model llama-3-8b --tokens 1e12 --sequence 8192 --gpu h100-sxm"
    assert data_of(capsys, run)["flops"] == 1e12 * data["flops_per_token"]
    step = data_of(
        capsys,
        "train --model llama-3-8b --gpu h100-sxm --gpus 8 --zero 3 --batch 64 --sequence 8192 "
        "--checkpoint full",
    )
    speed = f"--tokens-per-s {step['tokens_per_s']} --sequence 8192 --gpu h100-sxm"
    same = data_of(capsys, f"mfu --model llama-3-8b --gpus 8 {speed}")
    assert step["mfu"] == pytest.approx(same["mfu"])


def test_utilization_of_days(capsys):
    """The lecture's 143.92659 days of 70B on 15T tokens are an MFU of 0.5; all again forward is a
    third more.
    """
    line = (
        "mfu --params 70e9 --tokens 15e12 --days 143.92659 --gpu h100-sxm --peak 989.5e12 "
        "--gpus 1024"
    )
    data = data_of(capsys, f"{line} --checkpoint full")
    assert round(data["mfu"], 6) == 0.5
    assert data["hfu"] == pytest.approx(data["mfu"] * 8 / 6)


def test_utilization_above_the_peak_is_said(capsys):
    assert (
        "above the peak"
        in text_of(capsys, "mfu --params 70e9 --tokens-per-s 1e6 --gpu h100-sxm").splitlines()[2]
    )


def test_generation_by_parameters_alone(capsys):
    """Chen, Transformer Inference Arithmetic (2022): 52B on four A100 take 17.3 ms a step, batch
    208 is critical.
    """
    line = "--params 52e9 --gpu a100-sxm-40gb --gpus 4 --peak 312e12 --bandwidth 1.5e12"
    data = data_of(capsys, f"infer {line} --prompt 512")
    assert data["decode_seconds"] == pytest.approx(2 * 52e9 / (4 * 1.5e12))
    assert data["prefill_seconds"] == pytest.approx(2 * 52e9 * 512 / (4 * 312e12))
    assert (data["decode_bound"], data["prefill_bound"], data["critical_batch"]) == (
        "memory",
        "compute",
        208,
    )
    assert data["cache_bytes"] is None
    reply = data_of(capsys, f"generate {line} --prompt 512 --output-tokens 100")
    assert reply["first_token_s"] == data["prefill_seconds"]
    assert reply["seconds"] == pytest.approx(data["prefill_seconds"] + 99 * data["decode_seconds"])


def test_a_model_of_which_a_token_uses_a_part(capsys):
    """DeepSeek-V3: 671B parameters, 37B of them for each of 14.8T tokens. FLOPs and the bytes for
    one token count the active ones, memory all.

    Source: DeepSeek-AI, DeepSeek-V3 (2024), section 1.
    """
    size = "--params 671e9 --active-params 37e9"
    assert data_of(capsys, f"flops {size} --tokens 14.8T")["run_flops"] == 6 * 37e9 * 14.8e12
    line = f"{size} --gpu h200-sxm --gpus 8 --weight-dtype fp8e4m3"
    one = data_of(capsys, f"infer {line} --prompt 1")
    assert (one["weight_bytes"], one["decode_bytes"]) == (671e9, 37e9)
    assert one["decode_flops"] == 2 * 37e9
    two = data_of(capsys, f"infer {line} --batch 2")
    assert two["decode_bytes"] == pytest.approx(37e9 * (2 - 37 / 671))
    run = data_of(capsys, f"gpus {size} --recipe bf16-master --tokens 14.8T --gpu h100-sxm")
    assert run["state_bytes"] == 16 * 671e9
    assert run["flops"] == pytest.approx(6 * 37e9 * 14.8e12)
    assert call("flops", "--params", "37e9", "--active-params", "671e9") == 2
    assert "--active-params 6.71e+11 exceeds --params" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "gpus", "bound"),
    [
        # ZeRO 2020: 120 GB of state.
        ("--params 7.5e9 --recipe bf16-master --memory 32e9", 4, "memory"),
        # CS336 2025: 143.93.
        ("--params 70e9 --tokens 15e12 --days 144 --mfu 0.5 --peak 989.5e12", 1024, "time"),
        ("--params 70e9 --tokens 15e12 --days 143.9 --mfu 0.5 --peak 989.5e12", 1025, "time"),
    ],
)
def test_devices_needed(capsys, line, gpus, bound):
    data = data_of(capsys, f"gpus --gpu h100-sxm {line}")
    assert (data["gpus"], data["bound"]) == (gpus, bound)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-1b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("limits", [(989.4e12, 3.352e12), (2e12, 3e12, "int8", "int8")])
def test_a_reply_is_the_sum_of_its_steps(name, limits):
    for prompt, tokens, batch in ((5, 40, 1), (490, 60, 7), (700, 20, 3), (5, 1, 1)):
        serving = Serving(load_preset(name), batch, *limits)
        steps = sum(
            max(serving.times(serving.decode(seen))) for seen in range(prompt + 1, prompt + tokens)
        )
        assert serving.decode_seconds(prompt, tokens) == pytest.approx(steps, rel=1e-12)


def test_rate_and_price_of_a_reply(capsys):
    line = "generate --model llama-3-8b --gpu h100-sxm --prompt 1000 --output-tokens 101"
    data = data_of(capsys, f"{line} --price 3")
    assert data["tokens_per_s"] == pytest.approx(101 / data["seconds"])
    assert data["price_per_million_tokens"] == pytest.approx(3 / 3600 * data["seconds"] / 101 * 1e6)
    assert data_of(capsys, line)["price_per_million_tokens"] is None


@pytest.mark.parametrize(
    ("line", "total"),
    [
        (
            "--layers 16 --width 2048 --heads 32 --kv-heads 8 --ffn 8192 --vocab 128256 --tied",
            1_235_814_400,
        ),
        ("--layers 12 --width 768 --heads 12 --vocab 50257 --style gpt2", 124_439_808),
        ("--layers 48 --width 1600 --heads 25 --vocab 50257 --style gpt2 --tied", 1_557_611_200),
    ],
)
def test_a_model_by_its_dimensions(capsys, line, total):
    """Llama 3.2 1B, GPT-2 small and XL."""
    assert data_of(capsys, f"params {line}")["total"] == total


@pytest.mark.parametrize(("rank", "millions"), [(1, 4.7), (8, 37.7)])
def test_adapters_of_chosen_matrices(capsys, rank, millions):
    """GPT-3 with adapters of query and value. Source: Hu et al., LoRA (2021), table 4."""
    data = data_of(capsys, f"memory --model gpt-3 --lora {rank} --lora-on query,value")
    trained = data["components"]["gradients"] / 2
    assert trained == 96 * 2 * 2 * 12288 * rank
    assert trained / 1e6 == pytest.approx(millions, abs=0.06)


def test_a_quantized_model_under_adapters(capsys):
    """Dettmers et al., QLoRA (2023): LLaMA 65B, more than 780 GB in 16 bits, takes less than 48 GB.

    torchtune's README: QLoRA of Llama 3.1 8B peaks at 7.4 GiB, batch 2 of 2,048 tokens; its loss is
    computed in 8 chunks (`CEWithChunkedOutputLoss`).
    """
    words = "--lora 64 --weight-dtype nf4 --recipe bf16-fp32-moments --checkpoint full"
    data = data_of(capsys, f"memory --model llama-65b {words} --sequence 512")
    assert data["total_bytes"] < 48e9
    adapters = data["components"]["gradients"]
    assert data["components"]["weights"] - adapters == pytest.approx(65.3e9 * 4.127 / 8, rel=0.03)
    assert data_of(capsys, "memory --model llama-65b --recipe bf16-master")["state_bytes"] > 780e9
    words = "--lora 8 --lora-on query,value,output --weight-dtype nf4 --checkpoint full"
    data = data_of(capsys, f"memory --model llama-3-8b {words} --loss-chunks 8 --batch 2")
    assert 0.9 < data["total_bytes"] / (7.4 * 2**30) < 1.0


def test_selective_checkpointing_with_flash_attention(capsys):
    """Llama 3.1 8B with FSDP over 8 H100, 2 sequences each, selective: 82.4 GiB reserved, with a
    copy of the logits in fp32 before the loss.

    Of each layer remain its input, the outputs of query, value, attention, gate and down, in bf16,
    and the log-sum-exp. Source: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1;
    its `activation_checkpoint.py` for what is kept.
    """
    line = "memory --model llama-3-8b --recipe fsdp --zero 3 --data-parallel 8 --batch 2"
    line += " --sequence 8192 --checkpoint"
    data = {name: data_of(capsys, f"{line} {name}") for name in ("none", "selective", "full")}
    copy = 4 * 2 * 8192 * 128_256
    assert 0.9 < (data["selective"]["total_bytes"] + copy) / (82.4 * 2**30) < 1.0
    kept = 2 * (3 * 4096 + 4096 + 1024 + 14336) + 32 * 4
    assert data["selective"]["components"]["activations_checkpoints"] == 2 * 8192 * 32 * kept
    totals = [answer["total_bytes"] for answer in data.values()]
    assert totals == sorted(totals, reverse=True)
    # key, output and up are computed again
    flops = data_of(capsys, "flops --model llama-3-8b --checkpoint selective")
    again = flops["recomputed"]["every_second_product"]
    assert again == 2 * 2048 * 32 * (4096 * 1024 + 4096 * 4096 + 4096 * 14336)


def test_fsdp_shards_in_fp32_and_gathers_in_bf16(capsys):
    """16 bytes a parameter, and the largest layer, the embedding, in bf16 without copies.

    Source: torch.distributed.fsdp.MixedPrecisionPolicy: `param_dtype` is that of the all-gather.
    """
    line = "memory --model llama-3-8b --recipe fsdp --zero 3 --data-parallel 8"
    parts = data_of(capsys, line)["components"]
    assert (parts["weights"], parts["optimizer_states"]) == (8_030_261_248 // 2, 8_030_261_248)
    assert parts["gathered_layer"] == 2 * 128_256 * 4096
    assert "cast_copies" not in parts


def test_shared_along_layers_experts_and_sequence(capsys):
    base = data_of(capsys, "memory --model llama-3-8b --accumulate 8")["components"]
    piped = data_of(capsys, "memory --model llama-3-8b --accumulate 8 --pipeline-parallel 4")[
        "components"
    ]
    # a stage of 8 layers of 218,112,000 parameters and the embedding; four micro-batches are under
    # way
    assert piped["weights"] == 2 * (8 * 218_112_000 + 128256 * 4096 + 4096)
    assert piped["activations_norm_inputs"] == base["activations_norm_inputs"]
    assert not any(name.startswith("head_") for name in piped)
    experts = data_of(capsys, "memory --model mixtral-8x7b --expert-parallel 8")["components"]
    assert experts["weights"] == 2 * (46_702_792_704 - 7 * 32 * 3 * 4096 * 14336)
    both = data_of(
        capsys, "memory --model mixtral-8x7b --zero 3 --data-parallel 8 --expert-parallel 4"
    )["components"]
    # two of the eight devices keep the same two experts; all eight share the rest
    assert both["weights"] == 2 * (32 * 8 * 3 * 4096 * 14336 // 4 // 2 + 1_605_636_096 // 8)
    split = data_of(capsys, "memory --model llama-3-8b --tensor-parallel 8 --sequence-parallel")[
        "components"
    ]
    assert split["activations_norm_inputs"] == base["activations_norm_inputs"] // 8
    chunked = data_of(capsys, "memory --model llama-3-8b --loss-chunks 2")["components"]
    assert 2 * chunked["head_logits_fp32"] == base["head_logits_fp32"] == 4 * 2048 * 128256


def test_price_and_energy_of_training(capsys):
    """1,024 H100 for 143.94 days: 3.54 million hours, at 700 W each. Meta, model card of Llama 3.1:
    11,390 t for 39.3 million such hours.
    """
    line = "train --params 70e9 --tokens 15e12 --gpus 1024 --mfu 0.5 --price 2 --carbon 414"
    data = data_of(capsys, f"{line} --gpu h100-sxm")
    assert data["price"] == pytest.approx(2 * data["device_hours"])
    assert data["energy_j"] == pytest.approx(1024 * 700 * data["seconds"])
    assert data["co2_t"] / data["device_hours"] == pytest.approx(11_390 / 39.3e6, rel=1e-3)
    assert call(*line.split(), "--gpu", "tpu-v5e") == 2
    assert "the power of tpu-v5e is unknown" in capsys.readouterr().err


def test_tokens_of_a_number_of_days(capsys):
    """The lecture's run the other way round: 143.92659 days of 1,024 H100 are 15e12 tokens."""
    line = "train --params 70e9 --days 143.92659 --gpu h100-sxm --gpus 1024 --mfu 0.5"
    data = data_of(capsys, f"{line} --peak 989.5e12")
    assert data["tokens"] == pytest.approx(15e12, rel=1e-7)
    assert (
        text_of(capsys, f"{line} --peak 989.5e12").splitlines()[2].startswith("=> 15.00 T tokens")
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("2.5 MB", 2_500_000), ("4kib", 4096), ("1e3", 1000)],
)
def test_sizes_have_units(text, size):
    assert estimate.collective(gpu="h100-sxm", size=text).values["size_bytes"] == size


@pytest.mark.parametrize("text", ["80B", "GB", "0GB"])
def test_a_size_with_another_unit_names_the_units(capsys, text):
    assert call("context", "--model", "llama-3-8b", "--memory", text) == 2
    assert "80GB or 74.5GiB (units KB, MB, GB" in capsys.readouterr().err


def test_a_price_for_each_gpu(capsys):
    line = "generate --model llama-3-8b --gpu h100-sxm,l40s --dtype bf16 --price"
    rows = data_of(capsys, f"{line} 2.5,0.8")["rows"]
    for row, price in zip(rows, (2.5, 0.8), strict=True):
        assert row["price"] == pytest.approx(price * row["seconds"] / 3600)
    assert data_of(capsys, f"{line} 2.5")["rows"][1]["price"] > rows[1]["price"]
    assert call(*line.split(), "1,2,3") == 2
    assert "--price has 3 prices for 2 GPUs" in capsys.readouterr().err


def test_rows_with_different_keys_are_one_csv_table(capsys):
    """An A100 has no peak of fp8, so its row has a reason instead of times."""
    line = "matmul --shape 64 --gpu a100-sxm-80gb,h100-sxm --dtype fp8e4m3 --format csv"
    header, a100, h100 = text_of(capsys, line).splitlines()
    assert {"compute_s", "reason"} <= set(header.split(","))
    assert a100.startswith("a100-sxm-80gb,fp8e4m3")
    assert len(a100.split(",")) == len(h100.split(",")) == len(header.split(","))
