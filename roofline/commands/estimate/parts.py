"""The questions of `python -m roofline estimate`: the options of each, and the call that answers it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from textwrap import fill

from roofline.accounting.activations import torch_kernels
from roofline.accounting.answers import model, tensor
from roofline.accounting.answers.answer import Answer
from roofline.accounting.config.file import preset_names
from roofline.accounting.flops import DEFAULT_CONVENTION, RECOMPUTE
from roofline.accounting.number_formats import FORMATS
from roofline.accounting.state import Sharding, recipe_of
from roofline.accounting.step_memory import StepPlan
from roofline.commands.estimate import arguments, options
from roofline.commands.estimate.budgets import BUDGET_PARTS
from roofline.commands.estimate.options import Part
from roofline.commands.estimate.serving import SERVING_PARTS
from roofline.work import DTYPES, dtype_named


def _tensor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", type=arguments.extents, required=True, help="such as 49152x12288")
    parser.add_argument("--dtype", type=dtype_named, choices=DTYPES, default="fp32", help="default: %(default)s")


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
    options.machine_options(parser)


def _matmul(args: argparse.Namespace) -> Answer:
    dtypes = arguments.joined(args.dtype) or ["bf16"]
    return tensor.matmul_answer(args.shape, arguments.machines_of(args), dtypes, args.batch)


def _params_options(parser: argparse.ArgumentParser) -> None:
    options.model_options(parser)
    parser.epilog = fill(f"presets: {', '.join(preset_names())}", 100, break_on_hyphens=False)


def _params(args: argparse.Namespace) -> Answer:
    return model.params_answer(arguments.model_of(args))


def _step_options(parser: argparse.ArgumentParser) -> None:
    options.step_options(parser)
    parser.add_argument("--attention", choices=("flash", "unfused"), default="flash", help="default: %(default)s")


def _flops_options(parser: argparse.ArgumentParser) -> None:
    _step_options(parser)
    options.convention_option(parser, DEFAULT_CONVENTION)
    parser.add_argument("--frozen", action="store_true", help="weights are not trained, as under adapters (LoRA)")
    parser.add_argument(
        "--document", type=arguments.whole, metavar="N", help="tokens of the documents packed into a sequence"
    )
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help="for HFU; default: %(default)s")


def _flops(args: argparse.Namespace) -> Answer:
    if args.params is not None:
        arguments.refuse_model(args)
        return model.flops_of_parameters(args.params, args.sequence, args.batch)
    config, is_flash = arguments.model_of(args), args.attention == "flash"
    counted = (args.convention, args.recompute, is_flash, args.frozen, args.document)
    return model.flops_answer(config, args.sequence, args.batch, *counted)


def _memory_options(parser: argparse.ArgumentParser) -> None:
    _step_options(parser)
    options.state_options(parser, "bf16-master")
    add = parser.add_argument
    kernels = "eager: those of transformers; cpu: those of torch on a CPU; default: %(default)s"
    add("--kernels", choices=("fused", "eager", "cpu"), default="fused", help=kernels)
    add("--checkpoint", default="none", help="none, selective, full, every-K or sqrt; default: %(default)s")
    add(
        "--accumulate", type=arguments.whole, default=1, help="micro-batches of --batch in a step; default: %(default)s"
    )
    add("--zero", type=int, choices=range(4), default=0, help="stage of ZeRO; default: %(default)s")
    add("--data-parallel", type=arguments.whole, default=1, metavar="N", help="devices of ZeRO; default: %(default)s")
    add("--tensor-parallel", type=arguments.whole, default=1, metavar="N", help="default: %(default)s")
    add("--pipeline-parallel", type=arguments.whole, default=1, metavar="N", help="default: %(default)s")
    add("--expert-parallel", type=arguments.whole, default=1, metavar="N", help="default: %(default)s")
    add("--sequence-parallel", action="store_true", help="tensor parallelism divides norms and inputs, too")
    add("--loss-chunks", type=arguments.whole, default=1, metavar="N", help="parts of the loss; default: %(default)s")
    add("--lora", type=arguments.whole, metavar="RANK", help="train adapters of this rank alone, on all linear layers")
    add("--dropout", action="store_true", help="with dropout masks")
    options.machine_options(parser, has_dtype=False, has_memory=True)


def answer_memory(args: argparse.Namespace) -> Answer:
    """Return the memory of training that the options ask for.

    Raises:
        ConfigError: as of `model.memory_answer`.
    """
    has_machine = args.gpu or args.measured is not None or args.memory is not None
    machines = arguments.machines_of(args) if has_machine else []
    if args.params is not None:
        arguments.refuse_model(args)
        state = (recipe_of(args.recipe), args.optimizer, args.zero, args.data_parallel)
        return model.state_of_parameters(args.params, *state, machines)
    config, recipe, is_eager = arguments.model_of(args), recipe_of(args.recipe), args.kernels == "eager"
    kernels = torch_kernels(config, recipe, "cpu" if args.kernels == "cpu" else "cuda", is_eager)
    plan = StepPlan(
        config=config,
        recipe=recipe,
        optimizer=args.optimizer,
        sequence=args.sequence,
        batch=args.batch * args.accumulate,
        micro_batches=args.accumulate,
        checkpoint=args.checkpoint,
        kernels=replace(kernels, is_flash=kernels.is_flash and args.attention == "flash", has_dropout=args.dropout),
        sharding=Sharding(
            args.zero, args.data_parallel, args.tensor_parallel, args.pipeline_parallel, args.expert_parallel
        ),
        is_sequence_parallel=args.sequence_parallel,
        loss_chunks=args.loss_chunks,
        lora_rank=args.lora,
    )
    return model.memory_answer(plan, machines, is_eager)


BAR_PLOT = "draw the parts"

PARTS = (
    Part(
        "tensor", "elements and bytes of a tensor", "Elements, bytes and strides of a tensor.", _tensor_options, _tensor
    ),
    Part("dtype", "ranges of number formats", "Ranges and steps of floating-point formats.", _dtype_options, _dtype),
    Part(
        "matmul", "least time of a matrix product", "Least time of a product by the roofline.", _matmul_options, _matmul
    ),
    Part("params", "parameters of a model", "Parameters of a model by component.", _params_options, _params, BAR_PLOT),
    Part(
        *("flops", "FLOPs of a training step", "FLOPs of a training step by component."),
        *(_flops_options, _flops, BAR_PLOT),
    ),
    Part(
        *("memory", "memory of training", "Memory of training on one device."),
        *(_memory_options, answer_memory, BAR_PLOT),
    ),
    *BUDGET_PARTS,
    *SERVING_PARTS,
)
