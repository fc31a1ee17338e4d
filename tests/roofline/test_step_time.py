"""What a step on several devices waits for, and how far it scales, by papers, brute force and
measured files.
"""

from dataclasses import replace

import pytest
from plot_scenes import environment, saved

from results.record import Rank, Record
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.accounting.parameters import count_parameters
from roofline.accounting.presets import load_preset
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.step_memory import StepPlan
from roofline.estimate.layout import scaling
from roofline.estimate.options import uses_of
from roofline.estimate.step import BACKWARD, Layout, Network
from roofline.links import bus_factor

STEP = {"model": "llama-3-8b", "gpu": "h100-sxm", "batch": 64}


LINKS = Network(450e9, 50e9)


def layout_of(sharding, model="llama-3-8b", network=LINKS, **changes):
    config, recipe = load_preset(model), RECIPES["bf16-master"]
    values = {
        "config": config,
        "recipe": recipe,
        "optimizer": "adamw",
        "sequence": 2048,
        "batch": 8,
    }
    (use,), _ = uses_of({"gpu": ["h100-sxm"]})
    plan = StepPlan(**values | {"micro_batches": 8, "sharding": sharding} | changes)
    return Layout(plan, use._replace(mfu=0.5), network, bandwidth_bytes_per_s=3.352e12)


@pytest.mark.parametrize(
    ("op", "ranks", "stride", "bytes_per_s"),
    [
        ("all-reduce", 8, 1, 450e9),
        ("all-reduce", 2, 4, 450e9),  # two devices of one node
        ("all-reduce", 16, 1, 400e9),  # 8 network cards of a node
        ("all-reduce", 16, 8, 50e9),  # 8 such groups share them
        ("all-to-all", 16, 1, 50e9 * 15 / 8),  # half of it stays in the node
        ("send-recv", 2, 8, 50e9),
    ],
)
def test_groups_share_the_network_of_a_node(op, ranks, stride, bytes_per_s):
    seconds = LINKS.seconds(op, 1e9, ranks, stride)
    assert seconds == pytest.approx(1e9 * bus_factor(op, ranks) / bytes_per_s)


def test_interleaving_divides_the_published_bubble():
    """Narayanan et al. (2021), section 2.2.2: (p - 1) / (m v)."""
    layout = replace(layout_of(Sharding(pipeline_parallel=8)), interleave=4)
    assert layout.bubble == 7 / (8 * 4)
    ideal_s = sum(layout.parts[part] for part in ("compute", "tensor", "expert"))
    assert layout.parts["bubble"] == pytest.approx(ideal_s * layout.bubble)


def test_experts_send_each_token_to_them_and_back():
    """Lepikhin et al., GShard (2020): dispatch and combine, forward and backward, (n - 1) / n of k
    hidden states.
    """
    config = load_preset("mixtral-8x7b")
    layout = layout_of(Sharding(data_parallel=8, expert_parallel=8), model="mixtral-8x7b")
    hidden_bytes = 2048 * config.width * 2
    assert layout.traffic.sent["expert"] == 8 * config.layers * 4 * 2 * hidden_bytes * 7 // 8
    dense = config.layers * config.experts.count * 3 * config.width * config.mlp_width
    gradients = 2 * (count_parameters(config).total - dense)
    # No two devices have the same experts.
    assert layout.traffic.sent["data"] == pytest.approx(2 * gradients * 7 / 8)


def test_a_collective_is_that_of_nccl_tests():
    """NVIDIA, nccl-tests, doc/PERFORMANCE.md: the factor of an all-reduce is 2 (n - 1) / n. All
    devices of a node share its links to the network.
    """
    across = estimate.collective(gpu="h100-sxm", size=10**9, gpus=64).values
    assert across["seconds"] == pytest.approx(10**9 * 2 * 63 / 64 / 400e9)
    rack = estimate.collective(gpu="gb200", size=10**9, gpus=64, kind="all-to-all").values
    assert rack["seconds"] == pytest.approx(10**9 * 63 / 64 / 900e9)
    node = estimate.collective(gpu="gb200", size=10**9, gpus=64, kind="all-to-all", node=8).values
    assert node["seconds"] == pytest.approx(10**9 * 56 / 64 / 50e9)  # 8 of 64 are in the node
    given = estimate.collective(gpu="dgx-spark", size=10**9, gpus=2, network="25GB").values
    assert given["seconds"] == pytest.approx(10**9 / 25e9)
    exchange = estimate.collective(gpu="h100-sxm", size=10**9, gpus=64, kind="all-to-all")
    assert "all-to-all: factor (n - 1) / n" in exchange.formula
    with pytest.raises(ValueError, match="--gpus is 2 at least"):
        estimate.collective(gpu="h100-sxm", gpus=1)


@pytest.mark.parametrize(
    ("gpu", "gpus", "bytes_per_s"),
    [
        ("a100-pcie-80gb", 2, 300e9),
        ("h200-nvl", 4, 450e9),
        ("rtx-4090", 8, 16 * 16e9 / 8 * 128 / 130),
    ],
)
def test_cards_beyond_a_bridge_use_pci_express(gpu, gpus, bytes_per_s):
    """NVIDIA, A100 PCIe and H100 NVL product briefs: bridges join two cards, those of an H200 NVL
    up to four.
    """
    seconds = estimate.collective(gpu=gpu, size=10**9, gpus=gpus).values["seconds"]
    assert seconds == pytest.approx(10**9 * bus_factor("all-reduce", gpus) / bytes_per_s)


def test_context_parallelism_splits_sequences_and_gathers_keys_and_values():
    """Liu et al., Ring Attention (2023): each device has a part of the queries, and needs all keys
    and values.
    """
    whole = layout_of(Sharding(tensor_parallel=2))
    split = layout_of(Sharding(tensor_parallel=2, context_parallel=4))
    assert split.devices == 4 * whole.devices
    assert split.parts["compute"] == pytest.approx(whole.parts["compute"] / 4)
    config = load_preset("llama-3-8b")
    gathered = 2 * config.kv_heads // 2 * config.head_dim * 2 * 2048 * config.layers
    # Twice gathered, once scattered.
    assert split.traffic.sent["context"] == 8 * 3 * gathered * 3 // 4
    assert split.traffic.sent["tensor"] == whole.traffic.sent["tensor"] // 4
    # The weights are the same on these devices, so gradients are reduced over them.
    assert (whole.traffic.sent["data"], split.traffic.sent["data"] > 0) == (0, True)
    given = {"model": "llama-3-8b", "zero": "3", "recipe": "bf16-master"}
    long = estimate.memory(**given, sequence=32768, context_parallel=8).values
    short = estimate.memory(**given, sequence=4096, data_parallel=8).values
    assert long["total_bytes"] == pytest.approx(short["total_bytes"], rel=1e-3)
    fitting = estimate.memory(**given, sequence=32768, context_parallel=8, gpu="h100-sxm")
    assert fitting.rows[0]["gpus_needed"] % 8 == 0
    with pytest.raises(ValueError, match="--sequence 4097 is not a multiple of --context-parallel"):
        estimate.memory(**given, sequence=4097, context_parallel=8)
    with pytest.raises(ValueError, match="--context-parallel needs flash attention"):
        estimate.memory(**given, attention="unfused", context_parallel=2)


def test_recomputation_repeats_the_collectives_of_the_forward_pass():
    none, full = (
        layout_of(Sharding(tensor_parallel=8), checkpoint=name).traffic.sent["tensor"]
        for name in ("none", "full")
    )
    assert full == none * 6 / 4


@pytest.mark.parametrize("network_bytes_per_s", [1e9, 1e12])
def test_the_backward_pass_hides_all_gradients_but_the_last_layer(network_bytes_per_s):
    layout = layout_of(Sharding(data_parallel=1024), network=Network(450e9, network_bytes_per_s))
    sending_s, micro_batch_s = layout.traffic.sending["data"], layout.parts["compute"] / 8
    longer_s = sending_s - BACKWARD * micro_batch_s
    assert layout.parts["data"] == pytest.approx(max(longer_s, sending_s / 32))
    assert (longer_s > sending_s / 32) == (network_bytes_per_s == 1e9)


def test_a_pipeline_waits_only_for_the_sends_that_fill_and_drain_it():
    layout = layout_of(Sharding(tensor_parallel=8, pipeline_parallel=4))
    send_s = 2048 * 4096 * 2 / 50e9
    assert layout.traffic.sending["pipeline"] == pytest.approx(2 * 8 * send_s)
    assert layout.parts["pipeline"] == pytest.approx(2 * 3 * send_s)


def test_the_largest_number_of_devices_is_that_of_brute_force():
    options = STEP | {"tensor_parallel": 8, "batch": 96}
    found = estimate.train(**options, gpus=8).values["largest_gpus"]
    counts = [8 * data for data in range(1, 97) if 96 % data == 0]
    seconds = {
        count: estimate.train(**options, gpus=count).values["step_seconds"] for count in counts
    }
    assert found == max(
        count for count in counts if seconds[8] * 8 / (seconds[count] * count) >= 0.9
    )
    assert 8 < found < 8 * 96
    layout = layout_of(
        Sharding(data_parallel=2, expert_parallel=2), model="mixtral-8x7b", batch=6, micro_batches=6
    )
    assert list(scaling(layout)) == [2, 4, 6, 12]  # divisors of 12 sequences that hold all experts


def test_tokens_give_the_days_of_a_run():
    answer = estimate.train(**STEP, tensor_parallel=8, gpus=64, tokens=1e12, price=2)
    assert "price from " in answer.main_texts()[-1]
    values = answer.values
    assert values["days"] == pytest.approx(1e12 / values["tokens_per_s"] / 86400)
    assert values["price"] == pytest.approx(2 * values["device_hours"])
    assert values["tokens_per_s"] == pytest.approx(64 * 2048 / values["step_seconds"])


def row_of(op, rate, phase, **work):
    shape = {"m": 8192, "n": 8192, "k": 8192} if op == "matmul" else {"n": 2**30}
    amount = work.get("flops") or work["bytes_read"] + work["bytes_written"]
    how = {
        "op": op,
        "provider": "torch",
        "dtype": "bf16",
        "case": "1",
        "status": "ok",
        "shape": shape,
    }
    return Record(
        **how, **work, samples_s=(amount / rate,), median_s=amount / rate, options={"phase": phase}
    )


@pytest.fixture
def fleet(tmp_path):
    """Two ranks of an H100, the second 10 % slower while both are busy, and collectives on 8
    ranks.
    """
    for rank, together in enumerate((700e12, 630e12)):
        rows = [row_of("matmul", rate, "solo", flops=2 * 8192**3) for rate in (400e12, 720e12)]
        rows += [row_of("matmul", together, "together", flops=2 * 8192**3)]
        rows += [row_of("copy", 2.5e12 + rank, "together", bytes_read=2**31, bytes_written=2**31)]
        if rank == 0:
            for power in range(10, 31, 4):
                case = {
                    "op": "all-reduce",
                    "provider": "nccl",
                    "dtype": "fp32",
                    "case": str(2**power),
                    "status": "ok",
                }
                seconds = 20e-6 + 2**power * bus_factor("all-reduce", 8) / 300e9
                options = {"ranks": 8, "backend": "nccl"}
                row = {
                    "shape": {"bytes": 2**power},
                    "samples_s": (seconds,),
                    "median_s": seconds,
                    "options": options,
                }
                rows.append(Record(**case, **row))
        device = {
            "slug": "h100-sxm",
            "name": "NVIDIA H100",
            "type": "cuda",
            "memory_bytes": 85 * 10**9,
        }
        stamp = environment(device=device, fleet=Rank(rank=rank, node="a"))
        saved(tmp_path / f"rank-{rank}.jsonl", rows, stamp)
    return tmp_path


def test_a_measured_fleet_counts_with_its_slowest_rank_and_its_links(fleet):
    options = {"model": "llama-3-8b", "batch": 64, "tensor_parallel": 8, "gpus": 8}
    answer = estimate.train(**options, measured=str(fleet))
    given = estimate.train(**options, gpu="h100-sxm", peak=630e12, bandwidth=2.5e12, mfu=0.7)
    rounds = 64 * 32 * 4
    latency_s = 20e-6 + 2048 * 4096 * 2 * 7 / 4 / 300e9
    assert answer.values["tensor_seconds"] == pytest.approx(rounds * latency_s, rel=1e-3)
    # Activations move at 2.5 TB/s.
    assert answer.values["compute_seconds"] > given.values["compute_seconds"]
    assert answer.values["memory_bytes"] == 85 * 10**9
    assert "matmuls at 0.7 of the peak: 0.7 of the fastest, 1 (measured)" in answer.assumptions
    assert "all-reduce measured on 8 ranks" in answer.source
    assert f"measured by the slowest of 2 files in {fleet}" in answer.source
    memory = estimate.memory(model="llama-3-8b", measured=str(fleet))
    assert [row["memory_bytes"] for row in memory.rows] == [85 * 10**9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"params": 8e9, "model": None, "tensor_parallel": 8, "tokens": 1e12},
            "a step needs layers",
        ),
        (
            {"gpus": 64, "tensor_parallel": 3},
            "21 data x 3 tensor x 1 pipeline x 1 context are 63 devices, not 64",
        ),
        (
            {"gpus": 64, "batch": 100},
            "--batch 100 is not a multiple of 64 data-parallel devices x 1",
        ),
        (
            {"expert_parallel": 8, "gpus": 1},
            "--expert-parallel 8 does not divide 0 experts",
        ),
        ({"carbon": 414, "tokens": 1e12}, "remove --convention, --days or --carbon"),
        ({"gpu": "tpu-v4", "gpus": 8}, "tpu-v4 has no known link between devices"),
    ],
)
def test_layouts_that_do_not_match_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        estimate.train(**STEP | options)


def test_the_utilization_given_for_a_step_is_that_of_executed_flops():
    """Recomputation is a third more than the model's FLOPs: the option is HFU, not MFU."""
    options = {"model": "llama-3-8b", "gpu": "gb200", "gpus": 8, "zero": 3, "mfu": 0.4}
    answer = estimate.train(**options, checkpoint="full")
    values = answer.values
    assert values["hfu"] == pytest.approx(0.4 * values["compute_seconds"] / values["step_seconds"])
    assert values["hfu"] > values["mfu"]
    assert any(note.startswith("HFU of 0.4") for note in answer.assumptions)
