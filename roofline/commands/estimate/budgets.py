"""Questions about budgets: training time, utilization, devices needed, largest and compute-optimal models."""

from __future__ import annotations

import argparse
from typing import Any

from results.store.runs import Run
from roofline.accounting.answers import budget, fleet
from roofline.accounting.answers.answer import Answer, number
from roofline.accounting.budget import SECONDS_PER_DAY, TOKENS_PER_PARAM, six_nd
from roofline.accounting.config.config import ConfigError
from roofline.accounting.flops import CONVENTIONS, RECOMPUTE, train_flops
from roofline.accounting.machines import TRAINING
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import bytes_per_param, recipe_of
from roofline.ceilings import Ceilings
from roofline.commands.estimate import arguments, options
from roofline.commands.estimate.options import Part
from roofline.model import judge


def _train_options(parser: argparse.ArgumentParser) -> None:
    options.params_option(parser)
    parser.add_argument("--tokens", type=arguments.positive, required=True, help="such as 15e12 or 15T")
    options.model_options(parser)
    parser.add_argument("--sequence", type=arguments.whole, default=2048, help="of a model; default: %(default)s")
    options.convention_option(parser, "6nd")
    options.gpus_option(parser)
    options.price_option(parser)
    options.machine_options(parser, has_mfu=True)


def _train(args: argparse.Namespace) -> Answer:
    uses, missing = options.uses_for_training(args)
    flops, reckoned, notes = _run_flops(args)
    params = args.params if args.params is not None else count_parameters(arguments.model_of(args)).active
    size = (params, args.tokens)
    return budget.train_answer(flops, reckoned, uses, args.gpus, args.mfu, args.price, [*notes, *missing], size)


def _run_flops(args: argparse.Namespace) -> tuple[float, str, list[str]]:
    """Return the FLOPs of a training run, in words how they are reckoned, and notes."""
    found, per_token, words = options.flops_per_token(args)
    if found is None:
        notes = ["6 N D leaves out attention's own products; N are the parameters that a token meets"]
        return six_nd(args.params, args.tokens), f"{words} x {number(args.tokens)}", notes
    notes = [f"convention '{args.convention}': {found.convention.formula}; sequences of {args.sequence} tokens"]
    notes += arguments.model_of(args).notes_on(args.sequence)
    return per_token * args.tokens, f"{words} per token x {number(args.tokens)}", notes


def _mfu_options(parser: argparse.ArgumentParser) -> None:
    options.step_options(parser)
    add = parser.add_argument
    add("--tokens-per-s", type=arguments.positive, metavar="N", help="on all devices")
    add("--seconds-per-step", type=arguments.positive, metavar="S", help="of --batch sequences on all devices")
    add("--tokens", type=arguments.positive, help="of a whole run, with --days")
    add("--days", type=arguments.positive, help="that the run took")
    add("--recompute", choices=RECOMPUTE, default="none", help="for HFU; default: %(default)s")
    options.convention_option(parser, "palm")
    options.gpus_option(parser)
    options.machine_options(parser)


def _mfu(args: argparse.Namespace) -> Answer:
    if args.measured is not None and args.tokens_per_s is args.seconds_per_step is args.days is None:
        run = arguments.run_of(args)
        return fleet.measured_mfu_answer(step_rows(run), f"run {run.environment.run_id}: its records and its peaks")
    tokens_per_s, reckoned = _tokens_per_s(args)
    uses, missing = options.uses_of(args)
    counted, asked, notes = _counted(args)
    return fleet.mfu_answer(counted, asked, tokens_per_s, reckoned, uses, args.gpus, [*notes, *missing])


def _tokens_per_s(args: argparse.Namespace) -> tuple[float, str]:
    """Return the tokens of a second on all devices, by the one way that was given, and in words.

    Raises:
        ConfigError: none or several ways are given.
    """
    ways = [args.tokens_per_s is not None, args.seconds_per_step is not None, args.days is not None]
    if ways.count(True) != 1:
        raise ConfigError(
            "give one of --tokens-per-s; --seconds-per-step with --batch and --sequence; --days with --tokens; or "
            "--measured RUN alone"
        )
    if args.tokens_per_s is not None:
        return float(args.tokens_per_s), "as given"
    if args.seconds_per_step is not None:
        words = f"{args.batch} x {args.sequence} / {number(args.seconds_per_step)} s"
        return args.batch * args.sequence / args.seconds_per_step, words
    if args.tokens is None:
        raise ConfigError("--days needs --tokens, too")
    return args.tokens / (args.days * SECONDS_PER_DAY), f"{number(args.tokens)} / ({args.days:g} x 86,400)"


def _counted(args: argparse.Namespace) -> tuple[dict[str, tuple[float, float]], str, list[str]]:
    """Return needed and executed FLOPs of a token by convention, the convention asked for, and notes."""
    if args.params is not None:
        arguments.refuse_model(args)
        if args.recompute == "selective" or args.convention != "palm":
            raise ConfigError("--params goes with 6 N alone: give a model for --convention or --recompute selective")
        executed = (8 if args.recompute == "full" else 6) * args.params
        return {"6nd": (six_nd(args.params, 1), executed)}, "6nd", ["6 N leaves out attention's own products"]
    config, counted = arguments.model_of(args), {}
    for name in CONVENTIONS:
        if args.recompute == "selective" and name in ("6nd", "6nd-no-embedding") and name != args.convention:
            continue
        found = train_flops(config, args.sequence, 1, name, args.recompute)
        counted[name] = (found.per_token, found.hardware_flops / found.tokens)
    notes = ["executed: flash attention computes its scores twice", f"sequences of {args.sequence} tokens"]
    return counted, args.convention, [*notes, *config.notes_on(args.sequence)]


def step_rows(run: Run) -> list[dict[str, Any]]:
    """Return the utilization of each training step of a run, where its peak is known."""
    ceilings = Ceilings.from_dict(run.environment.hardware)
    rows = []
    for record in run.records:
        judged = judge(record, ceilings) if record.op == TRAINING else None
        if judged and judged.mfu is not None:
            row: dict[str, Any] = {"case": record.case, "provider": record.provider, "dtype": record.dtype}
            row |= {"mfu": judged.mfu, "hfu": judged.hfu, "flops_per_s": judged.flops_per_s}
            rows.append(row | {"tokens_per_s": judged.tokens_per_s, "peak_kind": judged.peak_kind})
    return rows


def _gpus_options(parser: argparse.ArgumentParser) -> None:
    options.params_option(parser)
    options.model_options(parser)
    add = parser.add_argument
    add("--bytes-per-param", type=arguments.positive, metavar="BYTES", help="of the state; default: by the recipe, 16")
    options.state_options(parser, None)
    add("--tokens", type=arguments.positive, help="to train on")
    add("--days", type=arguments.positive, help="that training may take; default: as memory has it")
    add("--sequence", type=arguments.whole, default=2048, help="of a model; default: %(default)s")
    options.convention_option(parser, "6nd")
    options.machine_options(parser, has_mfu=True, has_memory=True)


def _gpus(args: argparse.Namespace) -> Answer:
    if args.days is not None and args.tokens is None:
        raise ConfigError("--days needs --tokens, too")
    uses, missing = options.uses_for_training(args) if args.tokens is not None else options.uses_of(args)
    per_param, reckoned = _bytes_per_param(args)
    notes: list[str] = []
    params = args.params
    if params is None:
        params = count_parameters(arguments.model_of(args)).total
    else:
        arguments.refuse_model(args)
    flops = None
    if args.tokens is not None:
        flops, _, notes = _run_flops(args)
    held, words = params * per_param, f"{number(params)} x {per_param:g} bytes, {reckoned}"
    return fleet.gpus_answer(uses, held, words, flops, args.days, args.mfu, [*notes, *missing])


def _fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes-per-param", type=arguments.positive, metavar="BYTES", help="default: 16")
    options.state_options(parser, None)
    options.gpus_option(parser)
    options.machine_options(parser, has_dtype=False, has_memory=True)


def _fit(args: argparse.Namespace) -> Answer:
    return budget.fit_answer(arguments.machines_of(args), args.gpus, *_bytes_per_param(args))


def _bytes_per_param(args: argparse.Namespace) -> tuple[float, str]:
    """Return the bytes that stay for each parameter, and in words how they are reckoned.

    Raises:
        ConfigError: given and by a recipe, or not known without a model.
    """
    if args.bytes_per_param is not None and args.recipe is not None:
        raise ConfigError("give --bytes-per-param or --recipe, not both")
    if args.bytes_per_param is not None:
        return args.bytes_per_param, "as given"
    recipe = recipe_of(args.recipe or "fp32")
    return bytes_per_param(recipe, args.optimizer), f"{recipe.name}, {args.optimizer}: {recipe.source}"


def _chinchilla_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flops", type=arguments.positive, help="in place of machines and days, such as 1e23")
    parser.add_argument("--days", type=arguments.positive, help="such as 14")
    parser.add_argument(
        "--tokens-per-param",
        type=arguments.positive,
        default=TOKENS_PER_PARAM,
        metavar="R",
        help="default: %(default)s",
    )
    options.gpus_option(parser)
    options.machine_options(parser, has_mfu=True)


def _chinchilla(args: argparse.Namespace) -> Answer:
    if args.flops is not None:
        if args.days is not None or args.gpu or args.measured is not None:
            raise ConfigError("give --flops, or a machine and --days, not both")
        return budget.compute_answer(args.flops, args.tokens_per_param)
    if args.days is None:
        raise ConfigError("give a budget: --gpu SLUG --gpus N --days DAYS, or --flops FLOPS")
    uses, missing = options.uses_for_training(args)
    return budget.chinchilla_answer(uses, args.gpus, args.days, args.mfu, args.tokens_per_param, missing)


CURVE_PLOT = "draw parameters against tokens for the same compute"

BUDGET_PARTS = (
    Part("mfu", "utilization of a training run", "MFU and HFU by every convention.", _mfu_options, _mfu),
    Part("gpus", "devices that a plan takes", "Devices to hold a model or to finish in time.", _gpus_options, _gpus),
    Part("train", "time of a training run", "Days that a training run takes.", _train_options, _train, CURVE_PLOT),
    Part("fit", "largest model that fits", "Largest model whose state fits in memory.", _fit_options, _fit),
    Part(
        *("chinchilla", "compute-optimal size", "Compute-optimal model of a budget."),
        *(_chinchilla_options, _chinchilla, CURVE_PLOT),
    ),
)
