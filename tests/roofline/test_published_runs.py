"""The time of a training step compared with published runs."""

import tomllib
from pathlib import Path
from statistics import median

from roofline.accounting.activations import Kernels
from roofline.accounting.flops import train_flops
from roofline.accounting.presets import load_preset, read_config
from roofline.accounting.state import RECIPES, Sharding
from roofline.accounting.step_memory import StepPlan
from roofline.estimate.layout import published_runs
from roofline.estimate.options import uses_of
from roofline.estimate.step import Layout, matmul_share, network_of

RUNS = tomllib.loads(Path(__file__).with_name("published_runs.toml").read_text(encoding="utf-8"))
README = Path(__file__).parents[2] / "roofline" / "README.md"


def runs_of(group):
    shared = {"expert": 1, "dtype": "bf16"} | RUNS[group]
    return [shared | dict(zip(shared["columns"], run, strict=True)) for run in shared["runs"]]


def config_of(run):
    if "model" in run:
        return load_preset(run["model"])
    sizes = {
        "n_layer": run["layers"],
        "n_embd": run["width"],
        "n_head": run["heads"],
        "n_positions": run["sequence"],
    }
    return read_config(
        {"model_type": "gpt2", "vocab_size": run["vocabulary"], **sizes}, run["name"]
    )


def layout_of(run):
    """Megatron-LM of 2021 and 2022 stored attention scores and dropout masks; later runs have flash
    attention.
    """
    has_scores, is_split = run["gpu"].startswith("a100"), run["checkpoint"] != "full"
    (use,), _ = uses_of({"gpu": [run["gpu"]], "dtype": [run["dtype"]]})
    context = run.get("context", 1)
    sequences = run["batch"] * run["tensor"] * run["pipeline"] * context // run["gpus"]
    data = run["batch"] // sequences
    plan = StepPlan(
        config=config_of(run),
        recipe=RECIPES["bf16-master"],
        optimizer="adamw",
        sequence=run["sequence"],
        batch=sequences,
        micro_batches=sequences // run["micro_batch"],
        checkpoint=run["checkpoint"],
        kernels=Kernels(
            is_flash=not has_scores, has_dropout=has_scores, is_sequence_parallel=is_split
        ),
        sharding=Sharding(
            0 if has_scores else run.get("zero", 1),
            data,
            run["tensor"],
            run["pipeline"],
            run["expert"],
            context,
        ),
    )
    network = network_of(use.machine, {"network": run["network_bytes_per_s"]})
    bandwidth = use.machine.bandwidth().value
    return Layout(
        plan, use._replace(mfu=matmul_share(use)[0]), network, run["interleave"], bandwidth
    )


def published_seconds(run):
    if "seconds" in run:
        return run["seconds"]
    if "tokens_per_s" in run:
        return run["batch"] * run["sequence"] / run["gpus"] / run["tokens_per_s"]
    if "hours_per_token" in run:
        return run["hours_per_token"] * 3600 * run["batch"] * run["sequence"] / run["gpus"]
    # Narayanan et al., equation 3, counts all attention scores and the recomputation
    convention, checkpoint = (
        ("gemm-full", "full") if "layers" in run else ("gemm-causal-half", "none")
    )
    counts = train_flops(
        config_of(run), run["sequence"], run["batch"], convention, checkpoint, is_flash=False
    )
    return counts.hardware_flops / run["gpus"] / run["tflops"] / 1e12


def errors_of(group):
    return [layout_of(run).seconds / published_seconds(run) - 1 for run in runs_of(group)]


def table():
    for group in RUNS:
        for run in runs_of(group):
            published, predicted = published_seconds(run), layout_of(run).seconds
            seconds = (
                f"{published:.3g} s | {predicted:.3g} s | "
                f"{round(100 * (predicted / published - 1)):+d} %"
            )
            yield f"| {run['name']} | {run['gpus']:,} {run['gpu']} | {seconds} |"


def test_the_readme_has_the_error_of_each_published_run():
    rows = list(table())
    print("\n".join(rows))
    assert [
        line for line in README.read_text(encoding="utf-8").splitlines() if line in rows
    ] == rows


def test_an_estimate_has_the_range_of_the_published_runs_of_its_kind():
    ranges = {}
    for group in RUNS:
        for run, error in zip(runs_of(group), errors_of(group), strict=True):
            ranges.setdefault(published_runs(layout_of(run)), []).append(1 / (1 + error))
    assert len(ranges) == 5
    for kind, times in ranges.items():
        assert (round(min(times), 2), round(max(times), 2)) == (kind.least, kind.most)


def test_the_one_fitted_constant_has_no_bias_on_its_runs():
    assert abs(median(errors_of("narayanan"))) < 0.01
