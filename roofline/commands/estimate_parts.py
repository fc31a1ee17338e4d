"""The questions of `python -m roofline estimate`: the options of each, and the call that answers it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from results.show.terminal import say
from roofline.accounting.answers import budget, infer, model, tensor
from roofline.accounting.answers.answer import Answer, number
from roofline.accounting.budget import TOKENS_PER_PARAM, six_nd
from roofline.accounting.config.config import ConfigError
from roofline.accounting.config.file import preset_names
from roofline.accounting.flops import CONVENTIONS, DEFAULT_CONVENTION, RECOMPUTE, train_flops
from roofline.accounting.number_formats import FORMATS
from roofline.accounting.state import OPTIMIZERS, RECIPES, Sharding, bytes_per_param, recipe_of
from roofline.commands import estimate_arguments as arguments
from roofline.work import DTYPES


class Part(NamedTuple):
    """One question."""

    name: str
    help: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[argparse.Namespace], Answer]


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PRESET", help="a model by name, such as gpt2 or llama-3-8b")
    parser.add_argument("--config", metavar="PATH", help="config.json of Hugging Face transformers")


def _machine_options(
    parser: argparse.ArgumentParser, has_dtype: bool = True, has_mfu: bool = False, has_memory: bool = False
) -> None:
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


def _gpus_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=arguments.whole, default=1, metavar="N", help="devices; default: %(default)s")


def _uses(args: argparse.Namespace) -> tuple[list[budget.Use], list[str]]:
    return budget.usable(arguments.machines_of(args), arguments.joined(args.dtype) or ["bf16"])


def _uses_for_training(args: argparse.Namespace) -> tuple[list[budget.Use], list[str]]:
    """Return machines and dtypes; where a measured run tells no MFU, a note on stderr says what is assumed instead."""
    uses, missing = _uses(args)
    for machine, dtype in uses:
        if machine.run and args.mfu is None and dtype not in machine.mfu:
            say(f"note: {machine.mfu_of(dtype, None)[1]}")
    return uses, missing


def _tensor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", type=arguments.extents, required=True, help="such as 49152x12288")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="default: %(default)s")


def _tensor(args: argparse.Namespace) -> Answer:
    return tensor.tensor_answer(args.shape, args.dtype)


def _dtype_options(parser: argparse.ArgumentParser) -> None:
    known = arguments.words_of(tuple(FORMATS))
    parser.add_argument("--dtype", action="append", type=known, metavar="DTYPE[,DTYPE]", help="default: all")
    parser.add_argument("--value", type=arguments.exact, help="a number, to see what it becomes in each; --value=-1e-8")


def _dtype(args: argparse.Namespace) -> Answer:
    return tensor.dtype_answer(arguments.joined(args.dtype) or tuple(FORMATS), args.value)


def _matmul_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", type=arguments.product_shape, required=True, metavar="MxNxK", help="or one number")
    parser.add_argument("--batch", type=arguments.whole, default=1, help="products of that shape; default: %(default)s")
    _machine_options(parser)


def _matmul(args: argparse.Namespace) -> Answer:
    dtypes = arguments.joined(args.dtype) or ["bf16"]
    return tensor.matmul_answer(args.shape, arguments.machines_of(args), dtypes, args.batch)


def _params_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser)
    parser.epilog = f"presets: {', '.join(preset_names())}"


def _params(args: argparse.Namespace) -> Answer:
    return model.params_answer(arguments.model_of(args))


def _step_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser)
    parser.add_argument("--sequence", type=arguments.whole, default=2048, help="tokens; default: %(default)s")
    parser.add_argument("--batch", type=arguments.whole, default=1, help="sequences; default: %(default)s")
    parser.add_argument("--attention", choices=("flash", "unfused"), default="flash", help="default: %(default)s")


def _convention_option(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--convention", choices=CONVENTIONS, default=default, help="default: %(default)s")


def _flops_options(parser: argparse.ArgumentParser) -> None:
    _step_options(parser)
    _convention_option(parser, DEFAULT_CONVENTION)
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help="for HFU; default: %(default)s")


def _flops(args: argparse.Namespace) -> Answer:
    config, is_flash = arguments.model_of(args), args.attention == "flash"
    return model.flops_answer(config, args.sequence, args.batch, args.convention, args.recompute, is_flash)


def _state_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    shown = "default: %(default)s" if default else "in place of --bytes-per-param"
    parser.add_argument("--recipe", choices=RECIPES, default=default, help=shown)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="default: %(default)s")


def _memory_options(parser: argparse.ArgumentParser) -> None:
    _step_options(parser)
    _state_options(parser, "bf16-master")
    add = parser.add_argument
    add("--checkpoint", default="none", help="none, selective, full, every-K or sqrt; default: %(default)s")
    add(
        "--accumulate", type=arguments.whole, default=1, help="micro-batches of --batch in a step; default: %(default)s"
    )
    add("--zero", type=int, choices=range(4), default=0, help="stage of ZeRO; default: %(default)s")
    add("--data-parallel", type=arguments.whole, default=1, metavar="N", help="devices of ZeRO; default: %(default)s")
    add("--tensor-parallel", type=arguments.whole, default=1, metavar="N", help="default: %(default)s")
    add("--dropout", action="store_true", help="with dropout masks")
    _machine_options(parser, has_dtype=False, has_memory=True)


def _memory(args: argparse.Namespace) -> Answer:
    machines = arguments.machines_of(args) if args.gpu or args.measured is not None else []
    plan = model.TrainingPlan(
        recipe=recipe_of(args.recipe),
        optimizer=args.optimizer,
        sequence=args.sequence,
        batch=args.batch,
        accumulate=args.accumulate,
        checkpoint=args.checkpoint,
        sharding=Sharding(args.zero, args.data_parallel, args.tensor_parallel),
        is_flash=args.attention == "flash",
        has_dropout=args.dropout,
    )
    return model.memory_answer(arguments.model_of(args), plan, machines)


def _train_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--params", type=arguments.positive, help="in place of a model, such as 70e9")
    parser.add_argument("--tokens", type=arguments.positive, required=True, help="such as 15e12 or 15T")
    _model_options(parser)
    parser.add_argument("--sequence", type=arguments.whole, default=2048, help="of a model; default: %(default)s")
    _convention_option(parser, "6nd")
    _gpus_option(parser)
    _machine_options(parser, has_mfu=True)


def _train(args: argparse.Namespace) -> Answer:
    uses, missing = _uses_for_training(args)
    if args.params is not None:
        if args.model or args.config or args.convention != "6nd":
            raise ConfigError("--params goes with 6 N D alone: leave --model, --config and --convention out")
        flops, reckoned = six_nd(args.params, args.tokens), f"6 x {number(args.params)} x {number(args.tokens)}"
        notes = ["6 N D leaves out attention's own products; N are the parameters that a token meets"]
    else:
        config = arguments.model_of(args)
        found = train_flops(config, args.sequence, convention=args.convention)
        flops = found.per_token * args.tokens
        reckoned = f"{number(found.per_token)} per token x {number(args.tokens)}"
        notes = [f"convention '{args.convention}': {found.convention.formula}; sequences of {args.sequence} tokens"]
        notes += config.notes_on(args.sequence)
    return budget.train_answer(flops, reckoned, uses, args.gpus, args.mfu, [*notes, *missing])


def _fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes-per-param", type=arguments.positive, metavar="BYTES", help="default: 16")
    _state_options(parser, None)
    _gpus_option(parser)
    _machine_options(parser, has_dtype=False, has_memory=True)


def _fit(args: argparse.Namespace) -> Answer:
    if args.bytes_per_param is not None and args.recipe is not None:
        raise ConfigError("give --bytes-per-param or --recipe, not both")
    if args.bytes_per_param is not None:
        per_param, reckoned = args.bytes_per_param, "as given"
    else:
        recipe = recipe_of(args.recipe or "fp32")
        per_param = bytes_per_param(recipe, args.optimizer)
        reckoned = f"{recipe.name}, {args.optimizer}: {recipe.source}"
    return budget.fit_answer(arguments.machines_of(args), args.gpus, per_param, reckoned)


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
    _gpus_option(parser)
    _machine_options(parser, has_mfu=True)


def _chinchilla(args: argparse.Namespace) -> Answer:
    if args.flops is not None:
        if args.days is not None or args.gpu or args.measured is not None:
            raise ConfigError("give --flops, or a machine and --days, not both")
        return budget.compute_answer(args.flops, args.tokens_per_param)
    if args.days is None:
        raise ConfigError("give a budget: --gpu SLUG --gpus N --days DAYS, or --flops FLOPS")
    uses, missing = _uses_for_training(args)
    return budget.chinchilla_answer(uses, args.gpus, args.days, args.mfu, args.tokens_per_param, missing)


def _infer_options(parser: argparse.ArgumentParser) -> None:
    _model_options(parser)
    add = parser.add_argument
    add("--prompt", type=arguments.whole, default=2048, help="tokens of a prompt; default: %(default)s")
    add("--batch", type=arguments.whole, default=1, help="sequences at once; default: %(default)s")
    add("--weight-dtype", choices=DTYPES, help="of the weights; default: as computed")
    add("--kv-dtype", choices=DTYPES, default="bf16", help="of the cache; default: %(default)s")
    _gpus_option(parser)
    _machine_options(parser, has_memory=True)


def _infer(args: argparse.Namespace) -> Answer:
    config = arguments.model_of(args)
    uses, missing = _uses(args)
    dtypes = (args.weight_dtype, args.kv_dtype)
    return infer.infer_answer(config, uses, args.prompt, args.batch, *dtypes, args.gpus, missing)


PARTS = (
    Part(
        "tensor", "elements and bytes of a tensor", "Elements, bytes and strides of a tensor.", _tensor_options, _tensor
    ),
    Part("dtype", "ranges of number formats", "Ranges and steps of floating-point formats.", _dtype_options, _dtype),
    Part(
        "matmul", "least time of a matrix product", "Least time of a product by the roofline.", _matmul_options, _matmul
    ),
    Part("params", "parameters of a model", "Parameters of a model by component.", _params_options, _params),
    Part("flops", "FLOPs of a training step", "FLOPs of a training step by component.", _flops_options, _flops),
    Part("memory", "memory of training", "Memory of training on one device.", _memory_options, _memory),
    Part("train", "time of a training run", "Days that a training run takes.", _train_options, _train),
    Part("fit", "largest model that fits", "Largest model whose state fits in memory.", _fit_options, _fit),
    Part("chinchilla", "compute-optimal size", "Compute-optimal model of a budget.", _chinchilla_options, _chinchilla),
    Part("infer", "time of prefill and decode", "Least time of generation, and its cache.", _infer_options, _infer),
)
