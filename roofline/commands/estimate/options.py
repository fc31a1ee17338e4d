"""The options that several questions of `python -m roofline estimate` share: models, machines, recipes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from results.compare.selection import add_latest
from results.show.terminal import say
from roofline.accounting.answers import budget
from roofline.accounting.answers.answer import Answer, number
from roofline.accounting.budget import six_nd
from roofline.accounting.config.config import ConfigError
from roofline.accounting.flops import CONVENTIONS, FlopCount, train_flops
from roofline.accounting.state import OPTIMIZERS, RECIPES
from roofline.commands.estimate import arguments
from roofline.work import DTYPES


class Part(NamedTuple):
    """One question."""

    name: str
    help: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[argparse.Namespace], Answer]
    plot: str = argparse.SUPPRESS
    """Help of `--plot`, hidden if the answer has nothing to draw."""


def model_options(parser: argparse.ArgumentParser) -> None:
    """Add the ways to name a model: a preset, a file, or its dimensions."""
    parser.add_argument("--model", metavar="PRESET", help="a model by name, such as gpt2 or llama-3-8b")
    parser.add_argument("--config", metavar="PATH", help="config.json of Hugging Face transformers")
    group = parser.add_argument_group("a model by its dimensions, in place of --model")
    for name, help_text in arguments.DIMENSIONS.items():
        group.add_argument(f"--{name}", type=arguments.whole, metavar="N", help=help_text)
    group.add_argument("--tied", action="store_true", help="the head uses the embedding's weights")
    group.add_argument(
        "--style",
        choices=arguments.STYLES,
        default="llama",
        help="llama: RMSNorm, gated MLP, no biases; gpt2: LayerNorm, biases, learned positions; default: %(default)s",
    )


def machine_options(
    parser: argparse.ArgumentParser, has_dtype: bool = True, has_mfu: bool = False, has_memory: bool = False
) -> None:
    """Add GPUs of the table and measured runs, and figures to take in place of theirs."""
    add = parser.add_argument
    add("--gpu", action="append", type=arguments.names, metavar="SLUG[,SLUG]", help="GPU of the table; may repeat")
    add("--measured", metavar="RUN", help="a saved run: peaks and MFU as measured on its machine")
    if has_dtype:
        known = f"computing dtype: {', '.join(DTYPES)}; default: bf16"
        add("--dtype", action="append", type=arguments.dtype_list, metavar="DTYPE[,DTYPE]", help=known)
        add("--peak", type=arguments.positive, metavar="FLOP/S", help="dense peak in place of the known one")
        add("--bandwidth", type=arguments.positive, metavar="BYTES/S", help="of the memory, in place of the known one")
    if has_memory:
        add("--memory", type=arguments.positive, metavar="BYTES", help="of one device, in place of what it reports")
    if has_mfu:
        add("--mfu", type=arguments.share, help="share of the dense peak; default: as measured, else 0.5 is assumed")
    add_latest(parser)


def gpus_option(parser: argparse.ArgumentParser) -> None:
    """Add the number of devices."""
    parser.add_argument("--gpus", type=arguments.whole, default=1, metavar="N", help="devices; default: %(default)s")


def price_option(parser: argparse.ArgumentParser) -> None:
    """Add the price of a device."""
    parser.add_argument("--price", type=arguments.positive, metavar="PRICE", help="of one device for an hour")


def step_options(parser: argparse.ArgumentParser) -> None:
    """Add a model, or its parameters alone, and what a step of training it is."""
    params_option(parser)
    model_options(parser)
    parser.add_argument("--sequence", type=arguments.whole, default=2048, help="tokens; default: %(default)s")
    parser.add_argument("--batch", type=arguments.whole, default=1, help="sequences; default: %(default)s")


def params_option(parser: argparse.ArgumentParser) -> None:
    """Add a number of parameters in place of a model."""
    parser.add_argument("--params", type=arguments.positive, help="in place of a model, such as 70e9")


def flops_per_token(args: argparse.Namespace) -> tuple[FlopCount | None, float, str]:
    """Return the FLOPs of training on one token, and in words how they are reckoned.

    Raises:
        ConfigError: parameters and a model, or another convention than that of parameters alone, are asked for.
    """
    if args.params is None:
        found = train_flops(arguments.model_of(args), args.sequence, convention=args.convention)
        return found, found.per_token, number(found.per_token)
    arguments.refuse_model(args)
    if args.convention != "6nd":
        raise ConfigError("--params goes with 6 N D alone: leave --model, --config and --convention out")
    return None, six_nd(args.params, 1), f"6 x {number(args.params)}"


def uses_of(args: argparse.Namespace) -> tuple[list[budget.Use], list[str]]:
    """Return machines and the dtypes that they have a peak of, and a line for each that they have not."""
    return budget.usable(arguments.machines_of(args), arguments.joined(args.dtype) or ["bf16"])


def uses_for_training(args: argparse.Namespace) -> tuple[list[budget.Use], list[str]]:
    """Return machines and dtypes; where a measured run tells no MFU, a note on stderr says what is assumed instead."""
    uses, missing = uses_of(args)
    for machine, dtype in uses:
        if machine.run and args.mfu is None and dtype not in machine.mfu:
            say(f"note: {machine.mfu_of(dtype, None)[1]}")
    return uses, missing


def convention_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the convention by which FLOPs are counted."""
    parser.add_argument("--convention", choices=CONVENTIONS, default=default, help="default: %(default)s")


def state_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add what the state of training is kept in."""
    shown = "default: %(default)s" if default else "in place of --bytes-per-param"
    parser.add_argument("--recipe", choices=RECIPES, default=default, help=shown)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="default: %(default)s")
