"""The training steps that a command line requests, and what the accounting predicts of them. Does not import torch."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from typing import Any

from bench.harness.cli.arguments import UsageError, add, add_list, chosen, number, path, words
from bench.harness.model.known import load_model, unsupported
from bench.harness.op import ShapeError, parse_batch_shape
from roofline.accounting.activations import Kernels, checkpoint_group, torch_kernels
from roofline.accounting.config.config import ConfigError
from roofline.accounting.config.file import load_config
from roofline.accounting.flops import FlopCount, train_flops
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import RECIPES
from roofline.accounting.step_memory import StepPlan, step_memory

RECIPE_NAMES = ("fp32", "amp", "bf16")
"""Recipes of `roofline.accounting.state` that plain torch runs; the others need an optimizer that torch lacks."""

OPTIMIZER_NAMES = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw")
PROVIDERS = ("torch", "torch-compile")
DEFAULT_MODELS = ("tiny-gpt", "tiny-llama")
DEFAULT_SHAPE = {"cpu": "4x128", "cuda": "8x512"}
MAX_BATCH, MAX_LAYERS, MAX_CASES = 2**20, 10_000, 1000

CONVENTION = "gemm-causal-exact"
"""How the model's FLOPs are counted: every matmul, and the pairs of tokens that a causal mask lets through."""


def add_options(group: Any) -> None:
    """Add the options that say what is trained, and how."""
    count = number(1, MAX_LAYERS, f"a whole number from 1 to {MAX_LAYERS}", int)
    defaults = ",".join(DEFAULT_MODELS)
    add_list(group, "--model", f"presets, those of `python -m roofline estimate params --help` (default: {defaults})")
    group.add_argument("--config", metavar="PATH", type=path, help="a config.json instead of a preset")
    group.add_argument("--layers", type=count, help="number of layers instead of the model's own")
    shapes = f"{DEFAULT_SHAPE['cpu']} on a CPU, {DEFAULT_SHAPE['cuda']} on a GPU"
    add(group, "--shape", help=f"sequences of a step x tokens of a sequence, BxS (default: {shapes})")
    add_list(group, "--recipe", f"precision of weights and matmuls: {', '.join(RECIPE_NAMES)} (default: fp32,bf16)")
    add_list(group, "--checkpoint", "recomputed layers: none, full, every-K or K (layers), sqrt (default: none)")
    text = "parts that a step's sequences are computed in (default: 1)"
    add_list(group, "--micro-batches", text, type=lambda text: [count(word) for word in words(text)])
    add_list(group, "--optimizer", f"{', '.join(OPTIMIZER_NAMES)} (default: adamw)")
    add(group, "--provider", help=f"implementations to measure: {', '.join(PROVIDERS)} (default: torch)")


def plans_of(args: argparse.Namespace, device_type: str) -> list[tuple[StepPlan, str]]:
    """Return the requested steps, each with its provider.

    Raises:
        UsageError: a value is not allowed, or two exclude each other.
    """
    if args.config is not None and args.model is not None:
        raise UsageError("--model and --config exclude each other; give one of them")
    default = DEFAULT_SHAPE["cpu" if device_type == "cpu" else "cuda"]
    try:
        configs = [load_config(args.config)] if args.config else map(load_model, args.model or DEFAULT_MODELS)
        cases = itertools.product(
            [replace(config, layers=args.layers or config.layers) for config in configs],
            dict.fromkeys(parse_batch_shape(word, MAX_BATCH) for word in args.shape or [default]),
            [RECIPES[name] for name in chosen("recipe", args.recipe, RECIPE_NAMES, ["fp32", "bf16"])],
            dict.fromkeys(map(_checkpoint, args.checkpoint or ["none"])),
            dict.fromkeys(args.micro_batches or [1]),
            chosen("optimizer", args.optimizer, OPTIMIZER_NAMES, ["adamw"]),
            chosen("provider", args.provider, PROVIDERS, ["torch"]),
        )
        plans = []
        for config, (batch, sequence), recipe, checkpoint, micro_batches, optimizer, provider in cases:
            kernels = torch_kernels(config, recipe, device_type)
            plan = StepPlan(config, recipe, optimizer, sequence, batch, micro_batches, checkpoint, kernels)
            _check(plan)
            plans.append((plan, provider))
    except (ConfigError, ShapeError) as error:
        raise UsageError(str(error)) from None
    if len(plans) > MAX_CASES:
        raise UsageError(f"more than {MAX_CASES} cases are requested; name fewer values")
    return plans


def _checkpoint(word: str) -> str:
    if word == "selective":
        raise UsageError("--checkpoint selective is estimated, not run: fused attention keeps no scores")
    return f"every-{word}" if word.isascii() and word.isdecimal() else word


def _check(plan: StepPlan) -> None:
    if plan.batch % plan.micro_batches:
        raise UsageError(
            f"{plan.batch} sequences cannot be shared evenly by {plan.micro_batches} micro-batches; "
            f"--micro-batches must divide the first number of --shape"
        )
    checkpoint_group(plan.checkpoint, plan.config.layers)
    if problem := unsupported(plan.config, plan.sequence):
        raise UsageError(problem)


def flops_of(plan: StepPlan, convention: str = CONVENTION, is_flash: bool = True) -> FlopCount:
    """Return the FLOPs that the model needs for a step, and those executed with recomputation."""
    recompute = "none" if plan.checkpoint == "none" else "full"
    return train_flops(plan.config, plan.sequence, plan.batch, convention, recompute, is_flash=is_flash)


def countable_flops(plan: StepPlan) -> int:
    """Return what torch's counter should count in a step: every pair of tokens, attention as two matmuls."""
    return flops_of(plan, "gemm-full", is_flash=False).hardware_flops


def checking_bytes(plan: StepPlan, device_type: str) -> int:
    """Return about the memory that verification needs: the plain model and its gradients besides the step's.

    The plain step is in fp64 for a step in fp32, where a GPU has no fused attention and keeps the scores; else in
    fp32. The model is copied in the dtype of the weights first, and gradients are compared in fp64.
    """
    is_gpu, is_fp64 = device_type != "cpu", plan.recipe.compute_dtype == "fp32"
    wide = 8 if is_fp64 else 4
    recipe = replace(plan.recipe, activation_bytes=wide, weight_bytes=wide, gradient_bytes=wide, cast_bytes=0)
    kernels = Kernels(wide, is_norm_fused=False, is_flash=not (is_gpu and is_fp64), is_key_expanded=is_gpu)
    stateless = replace(plan, optimizer="sgd")
    plain = replace(stateless, recipe=recipe, batch=1, micro_batches=1, checkpoint="none", kernels=kernels)
    own = step_memory(stateless).components()
    copied = (plan.recipe.weight_bytes + plan.recipe.gradient_bytes) * count_parameters(plan.config).total
    compared = 3 * 8 * plan.config.vocabulary * plan.config.width
    return own["parameters"] + own["gradients"] + own["inputs"] + copied + step_memory(plain).total + compared
