"""A training step of a transformer: forward, backward, optimizer. Predicted by roofline.accounting, then measured.

    x = embedding[ids]; L times x = x + attention(norm(x)), x = x + mlp(norm(x)); loss = cross entropy(norm(x) head)

GPT blocks (LayerNorm, GELU) and Llama blocks (RMSNorm, rotary, grouped heads, SwiGLU), by the shape of the model.

FLOPs   6 N_mm tokens + 6 L a d s (s + 1) a sequence: matrix products, and exactly the pairs of tokens that a causal
        mask lets through (convention gemm-causal-exact). MFU is taken over these. HFU adds what is executed again:
        the layers under checkpointing, and the scores of attention in the fused backward pass.
Bytes   Compulsory for a step as a whole: weights, optimizer state and tokens read once, weights and state written.
Memory  At the moment when most is held: weights, gradients, optimizer state, inputs; what the layers keep; logits and
        loss; temporaries. Estimated by roofline.accounting; the peak is counted in a step of its own.

Source  Chowdhery et al., PaLM (2022), appendix B, for MFU and HFU; Korthikanti et al., Reducing Activation
        Recomputation (2022), and Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), for memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bench.harness.api.family import run_of
from bench.harness.cli.arguments import MACHINE, OUTPUT, add, command_parser
from bench.harness.cli.main import check_places, device_of, guarded
from bench.harness.train.plan import PROVIDERS, RECIPE_NAMES, add_options, checking_bytes, flops_of, plans_of
from results.record import Environment, Record
from results.show.grid import Column, print_grid
from results.show.judge import judged
from results.show.table import ABSENT, format_number, format_time, render_table
from results.show.terminal import Parser
from roofline.accounting.step_memory import COMPONENTS, StepPlan, step_memory

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.device.device import Device
    from bench.harness.run import Run

EXAMPLES = (
    ("--recipe fp32,amp,bf16", "two small models in three precisions"),
    ("--model tiny-llama --layers 16 --checkpoint none,full,every-2,sqrt", "memory against time"),
    ("--model tiny-gpt --shape 8x128 --micro-batches 1,2,4", "a smaller micro-batch keeps less"),
    ("--model gpt2 --shape 8x1024 --recipe amp --provider torch,torch-compile --budget 600", "a known model on a GPU"),
)

TIME_TITLE = "time of a step, all micro-batches together; MFU by what the model needs, HFU by what is executed"

RATES = ("mfu", "hfu")

MEMORY = {"kept by layers": "kept_by_layers", "peak": "total", **{name.replace("_", " "): name for name in COMPONENTS}}
"""Keys of `memory_bytes` by title."""

MEMORY_TITLE = "memory when most is held, MB; = is counted as predicted, +1% predicted 1 % above, est estimated alone"

FLOPS = {
    "model": "flops",
    "executed": "hardware_flops",
    "counted": "counted_flops",
    "predicted": "counted_flops_estimated",
}
"""Fields of a record by title."""

FLOPS_TITLE = "10^9 FLOPs of a step: needed and executed, causal; counted by torch and predicted, all pairs of tokens"

LISTED = (
    *("bench.train_step", "train-step", "bxs", ", ".join(RECIPE_NAMES), ", ".join(PROVIDERS)),
    "loss (); weights, state updated: forward, backward, optimizer of a transformer",
)
"""The row of `python -m bench list`."""

MODULES = ("bench.harness.model.transformer", "bench.harness.train.step")
"""What says, besides this file, what is measured."""


def build_parser() -> Parser:
    parser = command_parser("python -m bench.train_step", "[options]", __doc__ or "", EXAMPLES)
    add_options(parser.add_argument_group("what to measure"))
    add(parser.add_argument_group("how to measure"), *MACHINE)
    add(parser.add_argument_group("what to do with it"), *OUTPUT)
    return parser


def measure(args: argparse.Namespace, argv: Sequence[str] | None = None) -> Run:
    """Measure what the options request.

    Raises:
        UsageError, NoDeviceError, PlotError: it cannot be measured.
    """
    for device_type in ("cpu", "cuda"):
        plans_of(args, device_type)  # a bad value is found before torch is loaded
    check_places(args)
    device = device_of(args)
    from bench.harness.cli.once import measure_once
    from bench.harness.train.measure import measure_step

    rows = [
        (blank_record(plan, provider, device), partial(measure_step, plan))
        for plan, provider in plans_of(args, device.type)
    ]
    return measure_once(args, argv, "train-step", device, rows, MODULES)


def blank_record(plan: StepPlan, provider: str, device: Device) -> Record:
    """Return what a step is, with its work and its estimates; with a reason if it needs more memory than there is."""
    memory, flops, free_bytes = step_memory(plan), flops_of(plan), device.free_bytes()
    needed, parts = max(memory.total, checking_bytes(plan, device.type)), memory.components()
    state = parts["parameters"] + parts["optimizer_state"]
    reason = f"needs an estimated {_mb(needed)} MB, the device has {_mb(free_bytes)} MB free"
    return Record(
        op="train-step",
        provider=provider,
        dtype=plan.recipe.compute_dtype,
        shape={"b": plan.batch, "s": plan.sequence},
        case=f"{plan.batch}x{plan.sequence}",
        options={
            "model": plan.config.name,
            "layers": plan.config.layers,
            "recipe": plan.recipe.name,
            "checkpoint": plan.checkpoint,
            "micro_batches": plan.micro_batches,
            "optimizer": plan.optimizer,
        },
        status="skipped",
        reason=reason if needed > free_bytes else None,
        flops=flops.model_flops,
        bytes_read=state + memory.inputs,
        bytes_written=state,
        fill="uniform",
        flops_convention=flops.convention.name,
        hardware_flops=flops.hardware_flops,
        tokens_per_step=flops.tokens,
        memory_bytes={"estimated": memory.sizes() | {"moment": memory.moment.name}},
    )


def _mb(size_bytes: float) -> str:
    return format_number(size_bytes / 1e6)


def render(environment: Environment, records: Sequence[Record], console: Console) -> None:
    """Print the table of a run, then its memory and its FLOPs as predicted and as counted."""
    render_table(environment, records, console)
    measured = [record for record in records if record.status == "ok"]
    if not measured:
        return
    scores = judged(environment, measured)
    times = {name: [format_time(record.phases_s[name]) for record in measured] for name in measured[0].phases_s}
    times |= {key.upper(): [ABSENT if score[key] is None else f"{score[key]:.1%}" for score in scores] for key in RATES}
    _print_cells(
        TIME_TITLE, measured, {"step": [format_time(record.median_s) for record in measured], **times}, console
    )
    of_gpu = {"allocator peak": [_size(record.memory_bytes["measured"]["allocator_peak"]) for record in measured]}
    memory = {title: [_against_estimate(record, key) for record in measured] for title, key in MEMORY.items()}
    _print_cells(MEMORY_TITLE, measured, memory | of_gpu, console)
    counts = {title: [getattr(record, name) for record in measured] for title, name in FLOPS.items()}
    flops = {title: [format_number(count / 1e9, 6) for count in column] for title, column in counts.items()}
    pairs = zip(counts["predicted"], counts["counted"], strict=True)
    flops["off by"] = [str(predicted - counted) for predicted, counted in pairs]
    _print_cells(FLOPS_TITLE, measured, flops, console)
    for note in dict.fromkeys(note for record in measured for note in record.notes):
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)


def _size(size_bytes: int | None) -> str:
    return ABSENT if size_bytes is None else _mb(size_bytes)


def _against_estimate(record: Record, name: str) -> str:
    """Return a component as measured, with the error of the estimate, or as estimated."""
    report = record.memory_bytes
    estimated, measured, error = (report[key].get(name) for key in ("estimated", "measured", "error_pct"))
    if not (measured or estimated):
        return ABSENT
    if measured is None:
        return f"{_mb(estimated)} est"
    return f"{_mb(measured)} {'=' if estimated == measured else 'new' if error is None else f'{error:+.2g}%'}"


def _print_cells(title: str, records: Sequence[Record], cells: dict[str, list[str]], console: Console) -> None:
    """Print a further table of the same rows; a column that says nothing is left out."""
    what = {"case": [record.case for record in records]}
    for name in ("model", "recipe", "checkpoint", "micro_batches", "optimizer"):
        what[name.replace("_", " ")] = [str(record.options[name]) for record in records]
    what["provider"] = [record.provider for record in records]
    columns = [Column(name, texts) for name, texts in what.items() if name == "case" or len(set(texts)) > 1]
    shown = {name: texts for name, texts in cells.items() if {*texts} != {ABSENT}}
    columns += [Column(name, texts, "right", leaves=len(shown) - at) for at, (name, texts) in enumerate(shown.items())]
    console.print(f"\n{title}", markup=False, highlight=False, soft_wrap=True)
    print_grid(console, columns)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; `argv` None stands for the process's arguments."""
    return guarded(build_parser(), lambda args: measure(args, argv).conclude(render), argv)


run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main())
