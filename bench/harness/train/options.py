"""What a training step can be asked for: the options, read and checked, and the cases that they make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.cli.arguments import UsageError, add_list, chosen, number, path, shape_words
from bench.harness.model.known import load_model, unsupported
from bench.harness.shapes import ShapeError, parse_batch_shape
from roofline.accounting.activations import checkpoint_group
from roofline.accounting.config.config import ConfigError, ModelConfig
from roofline.accounting.config.file import load_config
from roofline.accounting.state import RECIPES

RECIPE_NAMES = ("fp32", "amp", "bf16")
"""Recipes of `roofline.accounting.state` that plain torch runs; the others need an optimizer that torch lacks."""

OPTIMIZER_NAMES = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw")
PROVIDERS = ("torch", "torch-compile")

DEFAULT_MODELS = ("tiny-gpt", "tiny-llama")
DEFAULT_SHAPE = {"cpu": "4x128", "cuda": "8x512"}

MAX_CASES = 1000
MAX_BATCH = 2**20
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class TrainingCase:
    """One training step: a model at a shape, how it is computed, and by whom."""

    config: ModelConfig
    batch: int
    """Sequences of a step."""
    sequence: int
    recipe: str
    checkpoint: str
    micro_batches: int
    optimizer: str
    provider: str

    @property
    def options(self) -> dict[str, Any]:
        """What tells it from other cases of its shape and dtype."""
        return {
            "model": self.config.name,
            "layers": self.config.layers,
            "recipe": self.recipe,
            "checkpoint": self.checkpoint,
            "micro_batches": self.micro_batches,
            "optimizer": self.optimizer,
        }

    @property
    def label(self) -> str:
        """The case in a few words, for progress and messages."""
        words = [self.config.name, f"{self.batch}x{self.sequence}", self.recipe]
        words += [] if self.checkpoint == "none" else [f"checkpoint {self.checkpoint}"]
        words += [] if self.micro_batches == 1 else [f"{self.micro_batches} micro-batches"]
        return " ".join([*words, self.optimizer, self.provider])


def add_options(group: Any) -> None:
    """Add the options that say what is trained, and how."""
    defaults = ",".join(DEFAULT_MODELS)
    add_list(group, "--model", f"presets, those of `python -m roofline estimate params --help` (default: {defaults})")
    group.add_argument("--config", metavar="PATH", type=path, help="a config.json instead of a preset")
    group.add_argument(
        "--layers",
        type=number(1, MAX_LAYERS, f"a whole number from 1 to {MAX_LAYERS}", int),
        help="so many layers in place of the model's own",
    )
    shapes = f"{DEFAULT_SHAPE['cpu']} on a CPU, {DEFAULT_SHAPE['cuda']} on a GPU"
    add_list(group, "--shape", f"sequences of a step x tokens of a sequence, BxS (default: {shapes})", shape_words)
    add_list(group, "--recipe", f"precision of weights and products: {', '.join(RECIPE_NAMES)} (default: fp32,bf16)")
    add_list(
        group, "--checkpoint", "recomputed are: none, full (every layer), every-K or K (layers), sqrt (default: none)"
    )
    add_list(group, "--micro-batches", "parts that a step's sequences are computed in (default: 1)")
    add_list(group, "--optimizer", f"{', '.join(OPTIMIZER_NAMES)} (default: adamw)")
    add_list(group, "--provider", f"who computes: {', '.join(PROVIDERS)} (default: torch)")


def check(args: argparse.Namespace) -> None:
    """Find what cannot be, before torch is loaded.

    Raises:
        UsageError: with the value and what is allowed.
    """
    cases_of(args, "cpu")
    cases_of(args, "cuda")


def cases_of(args: argparse.Namespace, device_type: str) -> list[TrainingCase]:
    """Return the cases that the arguments ask for.

    Raises:
        UsageError: a value that cannot be, or two that exclude each other.
    """
    default_shape = DEFAULT_SHAPE["cpu" if device_type == "cpu" else "cuda"]
    found = [
        TrainingCase(config, *shape, recipe, checkpoint, micro_batches, optimizer, provider)
        for config in _models(args)
        for shape in dict.fromkeys(map(_shape, args.shape or [default_shape]))
        for recipe in _recipes(args.recipe)
        for checkpoint in dict.fromkeys(map(_checkpoint, args.checkpoint or ["none"]))
        for micro_batches in dict.fromkeys(map(_micro_batches, args.micro_batches or ["1"]))
        for optimizer in chosen("optimizer", args.optimizer, OPTIMIZER_NAMES, ["adamw"])
        for provider in chosen("provider", args.provider, PROVIDERS, ["torch"])
    ]
    if len(found) > MAX_CASES:
        raise UsageError(f"more than {MAX_CASES} cases are asked for; name fewer values")
    for case in found:
        _check_case(case)
    return found


def _check_case(case: TrainingCase) -> None:
    """Refuse values that exclude each other."""
    if case.batch % case.micro_batches:
        raise UsageError(
            f"{case.batch} sequences cannot be shared evenly by {case.micro_batches} micro-batches; "
            f"--micro-batches must divide the first number of --shape"
        )
    try:
        checkpoint_group(case.checkpoint, case.config.layers)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if problem := unsupported(case.config, case.sequence):
        raise UsageError(problem)


def _recipes(given: Sequence[str] | None) -> list[str]:
    for word in given or ():
        if word in RECIPES and word not in RECIPE_NAMES:
            hint = "estimated by `python -m roofline estimate memory`, not run"
            raise UsageError(f"recipe '{word}' is {hint}; there are: {', '.join(RECIPE_NAMES)}")
    return chosen("recipe", given, RECIPE_NAMES, ["fp32", "bf16"])


def _models(args: argparse.Namespace) -> list[ModelConfig]:
    if args.config is not None and args.model is not None:
        raise UsageError("--model and --config exclude each other; give one of them")
    try:
        if args.config is not None:
            configs = [load_config(args.config)]
        else:
            configs = [load_model(name) for name in args.model or DEFAULT_MODELS]
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return [replace(config, layers=args.layers) for config in configs] if args.layers else configs


def _shape(word: str) -> tuple[int, int]:
    try:
        return parse_batch_shape(word, MAX_BATCH)
    except ShapeError as error:
        raise UsageError(str(error)) from None


def _checkpoint(word: str) -> str:
    if word == "selective":
        raise UsageError("--checkpoint selective is estimated, not run: fused attention keeps no scores")
    return f"every-{word}" if word.isascii() and word.isdecimal() else word


def _micro_batches(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", word) or int(word) == 0:
        raise UsageError(f"--micro-batches '{word}' must be a whole number of 1 or more")
    return int(word)
