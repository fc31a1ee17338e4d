"""Questions about generation: the least time of prefill and decode, and of a whole reply."""

from __future__ import annotations

import argparse

from roofline.accounting.answers import infer, reply
from roofline.accounting.answers.answer import Answer
from roofline.commands.estimate import arguments, options
from roofline.commands.estimate.options import Part
from roofline.work import DTYPES, dtype_named


def _infer_options(parser: argparse.ArgumentParser) -> None:
    options.params_option(parser)
    options.model_options(parser)
    add = parser.add_argument
    add("--prompt", type=arguments.whole, default=2048, help="tokens of a prompt; default: %(default)s")
    add("--batch", type=arguments.whole, default=1, help="sequences at once; default: %(default)s")
    add("--weight-dtype", type=dtype_named, choices=infer.STORED_BITS, help="of the weights; default: as computed")
    add("--kv-dtype", type=dtype_named, choices=DTYPES, default="bf16", help="of the cache; default: %(default)s")
    options.gpus_option(parser)
    options.machine_options(parser, has_memory=True)


def _model(args: argparse.Namespace) -> infer.Model:
    """Return the model, or the number of parameters in place of one.

    Raises:
        ConfigError: none or several are asked for.
    """
    if args.params is None:
        return arguments.model_of(args)
    arguments.refuse_model(args)
    params: float = args.params
    return params


def _infer(args: argparse.Namespace) -> Answer:
    model, (uses, missing) = _model(args), options.uses_of(args)
    dtypes = (args.weight_dtype, args.kv_dtype)
    return infer.infer_answer(model, uses, args.prompt, args.batch, *dtypes, args.gpus, missing)


def _generate_options(parser: argparse.ArgumentParser) -> None:
    _infer_options(parser)
    parser.add_argument("--output-tokens", type=arguments.whole, default=256, metavar="N", help="default: %(default)s")
    options.price_option(parser)


def _generate(args: argparse.Namespace) -> Answer:
    model, (uses, missing) = _model(args), options.uses_of(args)
    sizes, dtypes = (args.prompt, args.output_tokens, args.batch), (args.weight_dtype, args.kv_dtype)
    return reply.generate_answer(model, uses, *sizes, *dtypes, args.gpus, args.price, missing)


SERVING_PARTS = (
    Part(
        "generate",
        "time and price of a whole reply",
        "Least time of a reply, from the prompt to its last token, and its price.",
        _generate_options,
        _generate,
    ),
    Part("infer", "time of prefill and decode", "Least time of generation, and its cache.", _infer_options, _infer),
)
