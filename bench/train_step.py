"""A training step of a transformer, from the forward pass to zero_grad: estimated by
roofline.accounting, measured.

    x = embedding[ids]
    x = x + attention(norm(x)), x = x + mlp(norm(x))   L times
    loss = cross entropy(norm(x) head)

Blocks  GPT (LayerNorm, GELU) or Llama (RMSNorm, rotary positions, grouped heads, SwiGLU), depending
        on the model.
FLOPs   6 N_mm per token + 6 L a d s (s + 1) per sequence, where N_mm is the number of weights in
        matmuls: only matmuls, and only unmasked pairs of tokens (convention gemm-causal-exact). MFU
        uses these FLOPs. HFU adds recomputation: checkpointed layers, and the attention scores in
        the fused backward pass.
Bytes   Compulsory for the whole step: weights, optimizer state and tokens read once, weights and
        state written.
Phases  Forward and backward pass, clipping to a gradient norm of 1, optimizer, zero_grad, which
        keeps the gradients.
Memory  At the peak: weights, gradients, optimizer state, inputs, activations, logits and loss,
        temporaries. It is estimated by roofline.accounting and measured in a separate step.

Source  Chowdhery et al., PaLM (2022), appendix B, for MFU and HFU; Korthikanti et al., Reducing
        Activation Recomputation (2022), and Chen et al., Training Deep Nets with Sublinear Memory
        Cost (2016), for memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bench.api.family import run_of
from bench.harness.cli.arguments import UsageError, chosen, scenario_parser
from bench.harness.cli.main import check_places, device_of, guarded
from bench.harness.op import ShapeError, parse_batch_shape
from bench.harness.settings import Argv, Settings
from bench.model.layers import load_model, unsupported
from results.record import Environment, Record, Step
from results.show.grid import Column, print_grid, print_lines
from results.show.options import Names, given, number
from results.show.terminal import ADVANCED
from results.show.units import ABSENT, duration, quantity
from results.show.units import number as number_text
from roofline.accounting.activations import Kernels, checkpoint_group, torch_kernels
from roofline.accounting.config import ConfigError
from roofline.accounting.flops import FlopCount, train_flops
from roofline.accounting.state import RECIPES
from roofline.accounting.step_memory import COMPONENTS, StepPlan, step_memory

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.device.device import Device
    from bench.harness.loop import Measure
    from bench.harness.run import Run

EXAMPLES = (
    ("--recipe fp32,amp,bf16", "two small models in three precisions"),
    ("--model tiny-llama --layers 16 --checkpoint none,full,every-2,sqrt", "trade memory for time"),
    (
        "--model tiny-gpt --shape 8x128 --micro-batches 1,2,4",
        "smaller micro-batches need less memory",
    ),
    (
        "--model tiny-gpt --recipe fp32 --deterministic --save-checkpoint .",
        "reproducibility, and a checkpoint's cost",
    ),
    (
        "--model gpt2 --shape 8x1024 --recipe amp --provider torch,torch-compile --budget 600",
        "a known model on a GPU",
    ),
)

RECIPE_NAMES = ("fp32", "amp", "bf16")
"""Recipes of `roofline.accounting.state` that torch can run; the others need an optimizer that
torch lacks.
"""

OPTIMIZER_NAMES = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw")
PROVIDERS = ("torch", "torch-compile")
DEFAULT_MODELS = ("tiny-gpt", "tiny-llama")
DEFAULT_SHAPE = {"cpu": "4x128", "cuda": "8x512"}
MAX_BATCH = 2**20
MAX_LAYERS = 10_000

CONVENTION = "gemm-causal-exact"
"""Convention for the model's FLOPs: all matmuls, with the unmasked pairs of tokens."""

MEMORY_TITLE = (
    "memory at its peak, MB: as counted, with = if the estimate is equal, +1% if it is 1 % higher; "
    "est: estimated only"
)

MEMORY = {
    "kept by layers": "kept_by_layers",
    "peak": "total",
    **{name.replace("_", " "): name for name in (*COMPONENTS, "allocator_peak")},
}
"""Keys of `memory_bytes` by title."""

LISTED = (
    "bench.train_step",
    "train-step",
    "bxs",
    ", ".join(RECIPE_NAMES),
    ", ".join(PROVIDERS),
    "loss (); weights, state updated: forward, backward, optimizer of a transformer",
)
"""The row of `python -m bench list`."""

MODULES = ("bench.model.transformer", "bench.model.step")
"""Modules besides this one that define what is measured."""


def existing(text: str) -> Path:
    if not os.access(text, os.W_OK) or not Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"expected an existing directory that can be written to, got '{text}'"
        )
    return Path(text)


_count = number(1, MAX_LAYERS, f"an integer from 1 to {MAX_LAYERS}", int)
_SHAPES = f"{DEFAULT_SHAPE['cpu']} on a CPU, {DEFAULT_SHAPE['cuda']} on a GPU"


@dataclass(frozen=True)
class Options:
    """The steps to measure, and how."""

    model: Annotated[
        Names,
        f"presets of `python -m roofline estimate params --help`, or paths of a config.json "
        f"(default: {','.join(DEFAULT_MODELS)})",
    ] = None
    layers: Annotated[int | None, "number of layers (default: the model's)", _count] = None
    shape: Annotated[
        Names, f"sequences per step x tokens per sequence, BxS (default: {_SHAPES})"
    ] = None
    recipe: Annotated[
        Names, f"precision of weights and matmuls: {', '.join(RECIPE_NAMES)} (default: fp32,bf16)"
    ] = None
    checkpoint: Annotated[
        Names, "recomputed layers: none, full, every-K or K (layers), sqrt (default: none)"
    ] = None
    micro_batches: Annotated[
        list[int] | None,
        "number of parts that the sequences of a step are split into (default: 1)",
        _count,
        ADVANCED,
    ] = None
    optimizer: Annotated[
        Names, f"optimizers: {', '.join(OPTIMIZER_NAMES)} (default: adamw)", str, ADVANCED
    ] = None
    provider: Annotated[
        Names, f"implementations to measure: {', '.join(PROVIDERS)} (default: torch)"
    ] = None
    deterministic: Annotated[
        bool,
        "also measure with torch.use_deterministic_algorithms, in a row of its own",
        bool,
        ADVANCED,
    ] = False
    save_checkpoint: Annotated[
        Path | None,
        "write and read a checkpoint in DIR, and verify that training resumes bit by bit",
        existing,
        ADVANCED,
        "DIR",
    ] = None


build_parser = partial(scenario_parser, "python -m bench.train_step", __doc__, EXAMPLES, Options)


def measure(args: argparse.Namespace, argv: Argv = None) -> Run:
    options = given(Options, args)
    settings = given(Settings, args)
    plans_of(options, "cpu")  # rejects bad values before torch is loaded
    check_places(settings)
    device = device_of(settings)
    from bench.harness.loop import measure_once

    return measure_once(settings, argv, "train-step", device, rows_of(options, device), MODULES)


def rows_of(options: Options, device: Device) -> list[tuple[Record, Measure]]:
    from bench.model.step import DETERMINISTIC, measure_step

    rows: list[tuple[Record, Measure]] = []
    for plan, provider in plans_of(options, device.type):
        blank = blank_record(plan, provider, device)
        blanks = (
            [blank, replace(blank, options=blank.options | DETERMINISTIC)]
            if options.deterministic
            else [blank]
        )
        rows += [
            (each, partial(measure_step, plan, directory=options.save_checkpoint))
            for each in blanks
        ]
    return rows


def plans_of(options: Options, device_type: str) -> list[tuple[StepPlan, str]]:
    shapes = options.shape or [DEFAULT_SHAPE["cpu" if device_type == "cpu" else "cuda"]]
    try:
        models = map(load_model, options.model or DEFAULT_MODELS)
        configs = [replace(model, layers=options.layers or model.layers) for model in models]
        cases = itertools.product(
            configs,
            dict.fromkeys(parse_batch_shape(word, MAX_BATCH) for word in shapes),
            [
                RECIPES[name]
                for name in chosen("recipe", options.recipe, RECIPE_NAMES, ["fp32", "bf16"])
            ],
            dict.fromkeys(
                f"every-{k}" if k.isdecimal() else k for k in options.checkpoint or ["none"]
            ),
            dict.fromkeys(options.micro_batches or [1]),
            chosen("optimizer", options.optimizer, OPTIMIZER_NAMES, ["adamw"]),
            chosen("provider", options.provider, PROVIDERS, ["torch"]),
        )
        plans = []
        for config, (
            batch,
            sequence,
        ), recipe, checkpoint, micro_batches, optimizer, provider in cases:
            kernels = torch_kernels(config, recipe, device_type)
            plan = StepPlan(
                config, recipe, optimizer, sequence, batch, micro_batches, checkpoint, kernels
            )
            if batch % micro_batches:
                raise UsageError(
                    f"{batch} sequences cannot be shared evenly by {micro_batches} micro-batches; "
                    "--micro-batches must divide the first number of --shape"
                )
            if checkpoint == "selective":
                raise UsageError(
                    "--checkpoint selective is estimated, not run: fused attention keeps no scores"
                )
            checkpoint_group(checkpoint, config.layers)  # rejects other words
            problem = unsupported(config, sequence)
            if problem:
                raise UsageError(problem)
            plans.append((plan, provider))
    except (ConfigError, ShapeError) as error:
        raise UsageError(str(error)) from None
    return plans


def flops_of(plan: StepPlan) -> FlopCount:
    return train_flops(plan.config, plan.sequence, plan.batch, CONVENTION, plan.checkpoint)


def countable_flops(plan: StepPlan) -> int:
    """Return the FLOPs that torch's counter should report: all pairs of tokens, attention as two
    matmuls.
    """
    count = train_flops(
        plan.config, plan.sequence, plan.batch, "gemm-full", plan.checkpoint, is_flash=False
    )
    return count.hardware_flops


def checking_bytes(plan: StepPlan, device_type: str) -> int:
    """Return an estimate of the memory of the verification: weights, gradients, and the plain step
    in a wider dtype.

    On a GPU torch has no fused attention in fp64, and saves the scores. For 24 steps of two models
    on a CPU, the estimates are 0.98 to 1.28 times the measured peak.
    """
    is_gpu = device_type != "cpu"
    is_fp64 = plan.recipe.compute_dtype == "fp32"
    wide = 8 if is_fp64 else 4
    recipe = replace(
        plan.recipe, activation_bytes=wide, weight_bytes=wide, gradient_bytes=wide, cast_bytes=0
    )
    kernels = Kernels(
        wide, is_norm_fused=False, is_flash=not (is_gpu and is_fp64), is_key_expanded=is_gpu
    )
    plain = replace(
        plan,
        optimizer="sgd",
        batch=1,
        micro_batches=1,
        checkpoint="none",
        recipe=recipe,
        kernels=kernels,
    )
    own = step_memory(plan).components()
    return own["parameters"] + own["gradients"] + own["inputs"] + step_memory(plain).total


def blank_record(plan: StepPlan, provider: str, device: Device) -> Record:
    """Return a record with the work and the estimates of a step, and a reason if it does not fit in
    memory.
    """
    memory = step_memory(plan)
    flops = flops_of(plan)
    free_bytes = device.free_bytes()
    needed = max(memory.total, checking_bytes(plan, device.type))
    parts = memory.components()
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
        bytes_read=state + parts["inputs"],
        bytes_written=state,
        fill="uniform",
        details=Step(
            flops_convention=flops.convention.name,
            hardware_flops=flops.hardware_flops,
            counted_flops_estimated=countable_flops(plan),
            tokens_per_step=flops.tokens,
            memory_bytes={"estimated": memory.sizes() | {"moment": memory.moment}},
        ),
    )


def of_step(record: Record) -> Step:
    return record.details_as(Step) or Step()


def _mb(size_bytes: Any) -> str:
    return number_text(size_bytes / 1e6)


def render(environment: Environment, records: Sequence[Record], console: Console) -> None:
    from results.show.table import render_table

    render_table(environment, records, console)
    measured = [record for record in records if record.status == "ok"]
    if not measured:
        return
    sizes = {
        title: [_against_estimate(record, key) for record in measured]
        for title, key in MEMORY.items()
    }
    shown = {title: cells for title, cells in sizes.items() if {*cells} != {ABSENT}}
    # The last column leaves a narrow terminal first.
    columns = [
        Column(title, cells, "right", len(shown) - index)
        for index, (title, cells) in enumerate(shown.items())
    ]
    print_lines(console, f"\n{MEMORY_TITLE}")
    print_grid(console, [Column("step", list(map(_label, measured))), *columns])
    print_lines(
        console, *[_checkpoint(record) for record in measured if of_step(record).checkpoint_file]
    )


def _label(record: Record) -> str:
    return " ".join([record.case, record.provider, *map(str, record.options.values())])


def _checkpoint(record: Record) -> str:
    file = of_step(record).checkpoint_file
    times = (
        f"{word} in {duration(file[key])} ({quantity(file['bytes'] / file[key], 'B/s')})"
        for word, key in (("written", "write_s"), ("read", "read_s"))
    )
    size = f"{_mb(file['bytes'])} MB, estimated {_mb(file['estimated_bytes'])} MB"
    return (
        f"{_label(record)}: checkpoint of {size}, {', '.join(times)}; the resumed step is bit-exact"
    )


def _against_estimate(record: Record, name: str) -> str:
    """Return the measured size with the error of the estimate, or the estimated size."""
    report = of_step(record).memory_bytes
    estimated = report["estimated"].get(name)
    measured = report["measured"].get(name)
    error = report["error_pct"].get(name)
    if not (measured or estimated):
        return ABSENT
    if measured is None:
        return f"{_mb(estimated)} est"
    if error is None:  # there is no estimate
        return _mb(measured)
    change = "=" if estimated == measured else f"{error:+.2g}%"
    return f"{_mb(measured)} {change}"


def main(argv: Argv = None) -> int:
    def body(args: argparse.Namespace) -> int:
        from results.show.table import table_of_run

        return measure(args, argv).conclude(partial(table_of_run, render=render))

    return guarded(build_parser(), body, argv)


run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main())
