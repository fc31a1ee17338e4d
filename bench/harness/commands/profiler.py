"""`python -m bench profile`: every operation of a torch model or function on the roofline."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from bench.harness.cli.arguments import MACHINE, OPTIONS, OUTPUT, UsageError, add, number, path
from bench.harness.device.device import Device
from bench.harness.model.layers import load_model, unsupported
from bench.harness.op import Op, parse_batch_shape
from bench.harness.profile.operation import CountedStep
from bench.harness.profile.target import MODEL_DTYPES, SIGNATURE, Target, from_file, from_preset
from bench.harness.timing import protocol
from results.record import Record, StepTotals
from results.show.terminal import ADVANCED, Parser, print_out, say
from roofline.accounting.config import ConfigError

BY = ("op", "module", "phase", "shape", "kernel")
"""Groups of `results.show.profile.group_of`, which is slower to import."""

DEFAULT_SHAPE = "4x128"

OF_A_MODEL = (
    "target",
    "model",
    "layers",
    "shape",
    "dtype",
    "backward",
    "train",
    "on",
    "compile",
    "signature",
    "trace",
    "device",
    "budget",
    "seed",
    "timeout",
)
"""Arguments that need a model to run; `--from` rejects them."""

DESCRIPTION = """\
Profile a model or function: time, FLOPs, bytes and bound of each operation, and what fusing could
save.
FILE:FUNCTION is your function that returns the model to profile: a function without arguments, or a
tuple of a module or function and its arguments (a dict at the end holds keyword arguments). It runs
in a separate process. --signature prints a file to start from.

  python -m bench profile mine.py:make --backward
  python -m bench profile --model llama-3.2-1b --layers 2 --shape 4x512 --dtype bf16
  python -m bench profile --model gpt2 --layers 2 --train --by module
  python -m bench profile --model llama-3-8b --on h100-sxm,a100-sxm-80gb --dtype bf16
  python -m bench profile --from trace.json.gz

FLOPs and compulsory bytes are counted call by call. Times are those of a step under torch.profiler;
the step is timed without it too. The remaining time is in the rows unattributed, host-gap and
profiler-overhead. Rows flagged unmodelled have no rule for their work. Caches are warm, so small
operations may exceed the memory roof. --from takes times and shapes from a trace. The GPU of a
trace need not be here: its datasheet is the roofline.

exit codes: 0 ok; 1 no time could be measured, the work is saved; 2 usage; 3 no such device; 130 interrupted"""  # noqa: E501


def add_parser(commands: Any) -> None:
    parser: Parser = commands.add_parser("profile", description=DESCRIPTION)
    what = parser.group("what to measure")
    advanced = parser.group(ADVANCED)
    what.add_argument(
        "target",
        metavar="FILE:FUNCTION",
        nargs="?",
        help="function that returns the model to profile",
    )
    what.add_argument(
        "--model", metavar="NAME", help="a preset of `python -m roofline estimate params --help`"
    )
    source = (
        "Chrome trace of torch.profiler(record_shapes=True), .json or .json.gz, instead of a model"
    )
    what.add_argument("--from", metavar="TRACE", dest="source", type=path, help=source)
    advanced.add_argument(
        "--layers",
        type=number(1, 10_000, "an integer from 1 to 10000", int),
        help="number of layers, instead of the model's",
    )
    shape = f"sequences x tokens (default: {DEFAULT_SHAPE})"
    what.add_argument("--shape", metavar="BxS", help=shape)
    dtypes = f"{', '.join(MODEL_DTYPES)} (default: the target's; fp32 for --model)"
    add(parser, "--dtype", metavar="NAME", nargs=None, help=dtypes)
    what.add_argument("--backward", action="store_true", help="add the backward pass")
    what.add_argument(
        "--train",
        action="store_true",
        help="add the backward pass and an AdamW step with a learning rate of 0",
    )
    on = "print the minimum time on other machines, instead of measuring: GPU slugs, or saved runs"
    add(parser, "--on", help=on)
    advanced.add_argument(
        "--compile", action="store_true", help="use torch.compile; each fused region is a row"
    )
    add(parser, "--signature", help="print a file to start from, and exit")
    add(parser, *MACHINE, "--timeout", *OUTPUT[:-1])
    add(parser, "--verbose", help="show all rows, and a tree of the modules")
    by = "group the rows (default: one row per signature)"
    advanced.add_argument("--by", choices=BY, help=by)
    trace = "save the Chrome trace, for Perfetto or speedscope"
    advanced.add_argument("--trace", metavar="PATH", type=path, help=trace)
    rows = number(1, 100_000, "an integer from 1 to 100000", int)
    advanced.add_argument(
        "--top", metavar="N", type=rows, default=20, help="number of rows shown (default: 20)"
    )
    parser.set_defaults(run=run)


def run(
    args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None
) -> int:
    from bench.harness.cli.main import check_places, device_of
    from bench.harness.measure.rows import Settings
    from bench.harness.profile import records as rows
    from bench.harness.run import Progress, Run
    from results.show.profile import document_of, render

    if args.source is not None:
        check_trace(args)
    elif args.signature:
        print_out(SIGNATURE)
        return 0
    else:
        check(args)
    check_places(args)
    if args.on:
        return project(args)
    is_here = True
    host = ""
    if args.source is not None:
        from bench.harness.profile.trace_file import from_trace

        breakdown, gpu, host = from_trace(args.source)
        args.device = "cpu"
        device = gpu or device_of(args)
        is_here = gpu is None
        records = rows.records_of(breakdown)
        totals = rows.step_of(breakdown)
    else:
        device = device_of(args)
        with closing(Progress(args.quiet)) as progress:
            progress.say(f"profiling {args.target or args.model.name}")
            records, totals = answer_of(args, records_of, device)
    settings = Settings(cache="warm", budget_s=args.budget, seed=args.seed)
    with Run(args, "bench", "profile", device, settings.to_dict(), argv) as run:
        run.start(rows.product_dtypes(records) if is_here else None, is_here, profile=totals)
        if is_here and host not in ("", platform.node()):
            run.progress.note(
                f"the trace was recorded on '{host}'; the roofs are those of this machine"
            )
        for record in records:
            run.keep(record)
        if args.source is None:
            run.judge_again()
    return run.conclude(
        partial(render, top=args.top, by=args.by, is_whole=args.verbose), document_of
    )


def project(args: argparse.Namespace) -> int:
    from bench.harness.profile.projection import Projection, machine_named
    from bench.harness.run import Progress

    with closing(Progress(args.quiet)) as progress:
        progress.say(f"counting {args.target or args.model.name}")
        machines = [machine_named(name) for name in args.on]
        step = answer_of(args, counted_step)
    print_out(Projection(step, machines).table(args.top).render(args.format))
    return 0


def answer_of(
    args: argparse.Namespace, function: Callable[..., Any], device: Device | None = None
) -> Any:
    """Return `function(args, device)`; without a device nothing is measured.

    A worker runs a user's code, and the profiler of a GPU: it stays attached to its process and
    would slow down the launches of the calibration.
    """
    from bench.harness import worker

    is_on_gpu = device is not None and device.is_gpu
    if args.target is None and not is_on_gpu:
        return function(args, device)
    timeout_s = worker.OWN_TIMEOUT_S if args.target is None else args.timeout
    try:
        answer, output = worker.call(
            function, args, device, timeout_s=timeout_s, step="a call, or the import,"
        )
    except worker.WorkerError as error:
        raise UsageError(f"{args.target or args.model.name}: {error}") from None
    for line in dict.fromkeys(output.splitlines()):  # each of the many steps prints the same
        say(line)
    return answer


def records_of(args: argparse.Namespace, device: Device) -> tuple[list[Record], StepTotals | None]:
    from bench.harness.profile.tracing import profiled

    device.use()
    protocol.announce()
    target = target_from(args, device.torch_name)
    protocol.announce(runs=False)
    return profiled(target, args.mode, device, args.budget, args.trace, args.compile)


def counted_step(args: argparse.Namespace, _: None) -> CountedStep:
    from bench.harness.profile.projection import counted

    return counted(lambda: target_from(args, "meta"), args.mode)


def check_trace(args: argparse.Namespace) -> None:
    defaults = (None, False, *(OPTIONS[name]["default"] for name in ("--seed", "--timeout")))
    for name in OF_A_MODEL:
        if getattr(args, name) not in defaults:
            given = "FILE:FUNCTION" if name == "target" else f"--{name}"
            raise UsageError(f"--from reads a recorded trace and runs no model; leave {given} out")


def check(args: argparse.Namespace) -> None:
    if (args.target is None) == (args.model is None):
        raise UsageError("expected one of FILE:FUNCTION, --model NAME and --from TRACE")
    if args.dtype is not None and (len(args.dtype) != 1 or args.dtype[0] not in MODEL_DTYPES):
        raise UsageError(
            f"--dtype expects one of {', '.join(MODEL_DTYPES)}, got {','.join(args.dtype)}"
        )
    if args.target is not None and args.layers is not None:
        raise UsageError("--layers requires --model; your own function builds its model")
    if args.trace is not None and not args.trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {args.trace}: no such directory")
    if args.on:
        for option in ("compile", "trace", "by", "plot", "output"):
            if getattr(args, option):
                raise UsageError(f"--on measures nothing and saves nothing; remove --{option}")
    args.mode = "backward" if args.backward else "forward"
    if args.train:
        args.mode = "train"
    args.shape = parse_batch_shape(args.shape or DEFAULT_SHAPE)
    if args.model is not None:
        try:
            args.model = load_model(args.model)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if args.layers is not None:
            args.model = replace(args.model, layers=args.layers)
        if problem := unsupported(args.model, args.shape[1]):
            raise UsageError(problem)


def target_from(args: argparse.Namespace, device: str) -> Target:
    dtype = args.dtype[0] if args.dtype else None
    if args.target is not None:
        return from_file(args.target, dtype, device)
    return from_preset(args.model, args.shape, dtype or "fp32", device)
