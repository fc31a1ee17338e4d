"""`python -m bench profile`: every operation of a torch model or function on the roofline."""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from bench.harness.cli.arguments import Request, UsageError, chosen_ops
from bench.harness.device.device import Device
from bench.harness.op import Families, parse_batch_shape
from bench.harness.op_file import error_text, import_file
from bench.harness.providers.user_kernel import UserKernelError, find
from bench.harness.settings import MACHINE, SAVING, Argv, Settings
from bench.harness.timing import protocol
from bench.model.layers import load_model, unsupported
from bench.profiling.operation import CountedStep
from bench.profiling.target import (
    MODEL_DTYPES,
    SIGNATURE,
    Target,
    from_preset,
    guarded_call,
    made_by,
    target_of,
    user_function,
)
from results.record import Record, StepTotals
from results.show.options import WHAT, Names, Parameter, add, given, number, parameters, path
from results.show.terminal import ADVANCED, Parser, print_out, say
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.work import dtype_named

BY = ("op", "module", "phase", "shape", "kernel", "category")
"""Groups of `results.show.profile.groups_of`, which is slower to import."""

DEFAULT_SHAPE = "4x128"

OF_A_MODEL = (
    "target",
    "model",
    "op",
    "layers",
    "shape",
    "dtype",
    "backward",
    "train",
    "on",
    "compile",
    "signature",
    "replacing",
    "trace",
    "device",
    "budget_s",
    "seed",
)
"""Arguments that need a model to run; `--from` rejects them."""

OF_A_TRACE = ("trace_device", "step", "rules", "max_size")
"""Arguments that need `--from`."""

DESCRIPTION = """\
Profile a model or function: time, FLOPs, bytes and bound of each operation, and what fusing could
save.
FILE:FUNCTION is your function that returns the model to profile: a function without arguments, or a
tuple of a module or function and its arguments (a dict at the end holds keyword arguments). A
function with parameters, or a class of modules, is profiled itself, with the arguments that
`bench compare` gives it: those of --shape and --dtype, or of make_inputs() in the file. The file
runs in a separate process. --signature prints a file to start from.

  python -m bench profile mine.py:make --backward
  python -m bench profile mine.py:gelu --shape 64x4096 --dtype bf16
  python -m bench profile --op softmax --shape 4096x4096
  python -m bench profile --model llama-3.2-1b --layers 2 --shape 4x512 --dtype bf16
  python -m bench profile --model gpt2 --layers 2 --train --by module
  python -m bench profile --model llama-3-8b --on h100-sxm,a100-sxm-80gb --dtype bf16
  python -m bench profile mine.py:make --with aten.gelu=mine.py:gelu
  python -m bench profile --from trace.json.gz

FLOPs and compulsory bytes are counted call by call. The rows have the times of a step under
torch.profiler; the step is also timed without it. Time outside of operations is in the rows
unattributed, host-gap and profiler-overhead. Rows flagged unmodelled have no rule for their work.
Caches are warm, so small operations may exceed the memory roof. --from takes times and shapes from
a trace. The GPU of a trace need not be here: its datasheet is the roofline.

exit codes: 0 ok; 1 no time could be measured, the work is saved, or with --with as `bench compare`; 2 usage; 3 no such device; 130 interrupted"""  # noqa: E501


def replacing(text: str) -> tuple[str, str]:
    """Parse `OP=FILE:FUNCTION`."""
    op, _, function = text.partition("=")
    try:
        problem = find(function).problem
    except UserKernelError:
        problem = "expected OP=path/to/file.py:function, such as aten.gelu=mine.py:gelu"
    if problem or not op:
        raise argparse.ArgumentTypeError(f"{text}: {problem}")
    return op, function


@dataclass(frozen=True)
class Options:
    """What is profiled, and what is shown of it."""

    target: Annotated[
        str | None,
        Parameter(
            "function that returns the model to profile, or function or class to profile",
            metavar="FILE:FUNCTION",
            flags=("target",),
            told={"nargs": "?"},
        ),
    ] = None
    model: Annotated[
        str | None, "a preset of `python -m roofline estimate params --help`", str, WHAT, "NAME"
    ] = None
    op: Annotated[str | None, "an operation of `python -m bench list`", str, WHAT, "NAME"] = None
    source: Annotated[
        Path | None,
        Parameter(
            "Chrome trace of torch.profiler(record_shapes=True), .json or .json.gz, instead of a "
            "model",
            path,
            metavar="TRACE",
            flags=("--from",),
        ),
    ] = None
    layers: Annotated[
        int | None,
        "number of layers, instead of the model's",
        number(1, 10_000, "an integer from 1 to 10000", int),
        ADVANCED,
    ] = None
    shape: Annotated[
        str | None,
        f"sequences x tokens of --model (default: {DEFAULT_SHAPE}); the shape of --op; one shape "
        "for all parameters of a function (8x256), or one for each (8x256,256x64)",
        str,
        WHAT,
    ] = None
    dtype: Annotated[
        str | None,
        f"{', '.join(MODEL_DTYPES)} (default: the target's; fp32 for --model and for arguments "
        "of --shape; bf16 for --op, which has the dtypes of its own command)",
        dtype_named,
        WHAT,
        "NAME",
    ] = None
    backward: Annotated[bool, "add the backward pass"] = False
    train: Annotated[bool, "add the backward pass and an AdamW step with a learning rate of 0"] = (
        False
    )
    on: Annotated[
        Names,
        "print the minimum time on other machines, instead of measuring: GPU slugs, or saved runs",
    ] = None
    compile: Annotated[bool, "use torch.compile; each fused region is a row", bool, ADVANCED] = (
        False
    )
    signature: Annotated[bool, "print a file to start from, and exit", bool, ADVANCED] = False
    replacing: Annotated[
        tuple[str, str] | None,
        Parameter(
            "measure the operation and the step with a function of yours in place of the "
            "operation, against both as they are: aten.gelu=mine.py:gelu",
            replacing,
            metavar="OP=FILE:FUNCTION",
            flags=("--with",),
        ),
    ] = None
    by: Annotated[str | None, "group the rows (default: one row per signature)", BY, ADVANCED] = (
        None
    )
    trace: Annotated[
        Path | None, "save the Chrome trace, for Perfetto or speedscope", path, ADVANCED, "PATH"
    ] = None
    trace_device: Annotated[
        int | None,
        "number of the GPU whose kernels are read, if a trace has several",
        number(0, 1023, "the number of a GPU", int),
        ADVANCED,
        "N",
    ] = None
    step: Annotated[
        int | None,
        "number of the step that is read, if a trace has several: N of `ProfilerStep#N`",
        number(0, 10**9, "the number of a step", int),
        ADVANCED,
        "N",
    ] = None
    rules: Annotated[
        Path | None,
        "Python file, run in a separate process, that declares the work of operations in a trace "
        "by `bench.declare_work`",
        path,
        ADVANCED,
        "FILE",
    ] = None
    max_size: Annotated[
        float,
        "GB of the largest trace that is read, after decompression (default: 2)",
        number(0.001, 1000, "a number of GB from 0.001 to 1000", float),
        ADVANCED,
        "GB",
    ] = 2.0
    top: Annotated[
        int,
        "number of rows shown (default: 20)",
        number(1, 100_000, "an integer from 1 to 100000", int),
        ADVANCED,
        "N",
    ] = 20

    row: Any = None
    """The `Row` of `--op`."""

    @property
    def mode(self) -> str:
        if self.train:
            return "train"
        return "backward" if self.backward else "forward"

    @property
    def name(self) -> str:
        return self.target or self.op or str(self.source or model_of(self).name)


def model_of(options: Options) -> ModelConfig:
    """Return the model of `--model`, with the number of layers of `--layers`."""
    try:
        model = load_model(options.model or "")
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return replace(model, layers=options.layers or model.layers)


def add_options(parser: Parser) -> None:
    known = parameters(Options)
    add(parser, known, [key for key in known if key != "row"])
    add(
        parser,
        parameters(Settings),
        (*MACHINE, "timeout_s", *SAVING),
        verbose="show all rows, and a tree of the modules",
    )


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.harness.cli.main import check_places, device_of
    from bench.harness.run import Progress, Run
    from bench.profiling.records import product_dtypes
    from results.show.profile import table_of

    options = given(Options, args)
    settings = replace(given(Settings, args), cache="warm")
    if options.source is not None:
        message = "--from reads a recorded trace and runs no model; leave {} out"
        refuse(options, settings, OF_A_MODEL, message)
        if options.rules is None:
            refuse(options, settings, ["timeout_s"], "{} limits your own code; it requires --rules")
    elif options.signature:
        print_out(SIGNATURE)
        return 0
    else:
        check(options, settings)
    if options.op is not None:
        options = replace(options, row=row_of(options, settings, families))
    check_places(settings)
    if options.on:
        return project(options, settings)
    if options.replacing:
        return replace_operation(options, settings, argv)
    is_here = True
    if options.source is not None:
        records, totals, gpu, host = answer_of(options, settings, records_of_trace)
        is_here = gpu is None and host == platform.node()
        if gpu is None and settings.gpu is not None:
            raise UsageError(
                f"'{options.source}' has no kernels of a GPU, so --gpu has no effect; remove it"
            )
        device = gpu or Device("cpu", "cpu", "unknown-cpu", "unknown CPU", 0, 0)
        if is_here:
            device = device_of(replace(settings, device="cpu"))
    else:
        device = device_of(settings)
        with closing(Progress(settings.quiet)) as progress:
            progress.say(f"profiling {options.name}")
            records, totals = answer_of(options, settings, records_of, device)
    with Run(settings, "bench", "profile", device, argv) as run:
        run.start(product_dtypes(records) if is_here else None, is_here, profile=totals)
        if not (is_here or device.is_gpu):
            run.progress.note(
                "the trace has no kernels and was not recorded on this machine: its roofs are "
                "unknown"
            )
        for record in records:
            run.keep(record)
        if options.source is None:
            run.judge_again()
    return run.conclude(
        partial(table_of, by=options.by, top=options.top, is_whole=settings.verbose)
    )


def project(options: Options, settings: Settings) -> int:
    from bench.harness.run import Progress
    from bench.profiling.projection import Projection, machine_named

    with closing(Progress(settings.quiet)) as progress:
        progress.say(f"counting {options.name}")
        machines = list(map(machine_named, options.on or ()))
        step = answer_of(options, settings, counted_step)
    print_out(Projection(step, machines).table(options.top).render(settings.format))
    return 0


def replace_operation(options: Options, settings: Settings, argv: Argv) -> int:
    """Compare an operation with a function in its place, alone and in the step, and print what the
    time of the operation lets expect.
    """
    from bench.commands import compare
    from bench.commands.compare_functions import run_cases
    from bench.comparing.replaced import Replacement
    from bench.harness.cli.main import device_of
    from bench.harness.run import Progress
    from results.compare.comparison import compare_live
    from results.show.profile import op_of

    assert options.replacing is not None
    name, new = options.replacing
    with closing(Progress(settings.quiet)) as progress:
        progress.say(f"profiling {options.name}")
        records, totals = answer_of(options, settings, records_of, device_of(settings))
    if totals is None:
        raise UsageError(f"{options.name}: {records[0].reason}")
    spent_s = [row.median_s for row in records if row.op == name]
    if not spent_s:
        called = {row.op for row in records if op_of(row).phase}
        raise UsageError(
            f"{options.name} does not call {name}; it calls {', '.join(sorted(called))}"
        )
    step = Replacement(
        settings=settings,
        dtype=options.dtype or "fp32",
        known={"op": options.name, "case": f"{options.mode} step"},
        hashes={new: find(new).sha256()},
        target=partial(chosen_target, options, settings),
        mode=options.mode,
        is_whole=True,
    )
    in_place = replace(settings, in_place=name.endswith("_"))
    known = {"op": name, "case": "largest call"}
    alone = replace(step, settings=in_place, known=known, is_whole=False)
    how = compare.Options()
    run = run_cases([step, alone], [name, new], how, settings, argv)
    code = compare.show(run, how.fail_on)
    compared = compare_live(run.environment, run.records, name, how.margin)
    share = sum(spent_s) / totals.time_s
    for row in compared.rows:
        if row.key.op == name:
            ratio = 1 + share * (row.ratio - 1)
            say(f"{name} takes {share:.1%} of the step, so {ratio:.3f}x is expected for the step")
    return code


def answer_of(
    options: Options,
    settings: Settings,
    function: Callable[..., Any],
    device: Device | None = None,
) -> Any:
    """Return `function(options, settings, device)`; without a device nothing is measured.

    A worker runs a user's code, and the profiler of a GPU: it stays attached to its process and
    would slow down the launches of the calibration.
    """
    is_own = options.target is not None or options.rules is not None
    if not is_own and not (device and device.is_gpu):
        return function(options, settings, device)
    from bench.harness import worker

    timeout_s = settings.timeout_s if is_own else worker.OWN_TIMEOUT_S
    step = "a call, or the import,"
    try:
        answer, output = worker.call(
            function, options, settings, device, timeout_s=timeout_s, step=step
        )
    except worker.WorkerError as error:
        raise UsageError(f"{options.name}: {error}") from None
    for line in dict.fromkeys(output.splitlines()):  # each of the many steps prints the same
        say(line)
    return answer


def records_of(
    options: Options, settings: Settings, device: Device
) -> tuple[list[Record], StepTotals | None]:
    """Return the records of a step, the longest first, and its totals: None, with all records
    `failed`, if it could not be timed.
    """
    from bench.profiling import records as rows
    from bench.profiling.step import ProfiledStep, account
    from bench.profiling.tracing import timed

    device.use()
    protocol.announce()
    target = chosen_target(options, settings, device.torch_name)
    protocol.announce(runs=False)
    step = ProfiledStep(target, options.mode)
    breakdown = account(step)
    left_s = settings.budget_s or math.inf
    try:
        breakdown = timed(step, breakdown, device, left_s, options.trace, options.compile)
    except UsageError as error:
        failed = [
            replace(record, status="failed", reason=str(error))
            for record in rows.work_records(breakdown)
        ]
        return failed, None
    return rows.records_of(breakdown), rows.step_of(breakdown)


def records_of_trace(
    options: Options, *_: object
) -> tuple[list[Record], StepTotals, Device | None, str]:
    """Return the records and totals of a trace, its GPU if any, and its host."""
    from bench.profiling import records as rows
    from bench.profiling.trace_file import from_trace

    assert options.source is not None
    try:
        if options.rules is not None:
            protocol.announce()
            import_file(options.rules)
            protocol.announce(runs=False)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--rules {error_text(error, options.rules)}") from None
    breakdown, gpu, host = from_trace(
        options.source, int(options.max_size * 1e9), options.trace_device, options.step
    )
    return rows.records_of(breakdown), rows.step_of(breakdown), gpu, host


def counted_step(options: Options, settings: Settings, _: object) -> CountedStep:
    from bench.profiling.projection import counted

    return counted(lambda _: chosen_target(options, settings, "cpu"), options.mode)


def chosen_target(options: Options, settings: Settings, device: str) -> Target:
    """Return what is profiled; ops and functions with parameters get the inputs that `bench
    compare` gives them.
    """
    if options.row is not None:
        from bench.harness.data.inputs import Filler, make_sets
        from bench.harness.device.device import detect

        op, case = options.row.op, options.row.case
        there = detect(device)
        filler = Filler(settings.fill, case.dtype, there, settings.seed)
        [given] = make_sets(op, case, filler, there, copies=1)
        return target_of(op.name, partial(op.eager, out=given.out), given.inputs)
    if options.target is None:
        shape = parse_batch_shape(options.shape or DEFAULT_SHAPE)
        return from_preset(model_of(options), shape, options.dtype or "fp32", device)
    from bench.api.function import extents
    from bench.comparing.files import FileCase, required_of

    word = options.target
    function = user_function(word)
    with guarded_call(word):
        is_maker = not isinstance(function, type) and not required_of(function)
    if is_maker and options.shape is not None:
        raise UsageError(f"{word} has no parameters; remove --shape")
    if is_maker:
        return made_by(function, word, options.dtype, device)
    case = FileCase(
        settings=settings,
        dtype=options.dtype or "fp32",
        device=device,
        shapes=[extents(text) for text in (options.shape or "").split(",") if text],
        given=[f"--{name}" for name in ("shape", "dtype") if getattr(options, name)],
    )
    function = case.functions([word])[word]
    with guarded_call("the inputs"):
        return target_of(word, function, case.arguments())


def row_of(options: Options, settings: Settings, families: Families) -> Any:
    """Return the row of `--op` that `--provider torch` has in `bench compare`.

    Raises:
        UsageError: it is not one case, or cannot run on the device.
    """
    from bench.harness.cli.main import device_of, make_all_cases
    from bench.harness.measure.rows import Row, refusal

    request = Request(
        dtype=[options.dtype] if options.dtype else None,
        shape=options.shape.split(",") if options.shape else None,
    )
    ops = chosen_ops([options.op or ""], families)
    device = device_of(settings)
    cases = make_all_cases(request, ops, "cuda" if options.on else device.type)
    if len(ops) > 1 or (options.shape is not None and len(cases) > 1):
        raise UsageError(f"--op profiles one case, got {len(cases)}; name one op and one --shape")
    family, op, case = cases[0]  # of the default shapes the first
    reason = None if options.on else refusal(op, case, device)
    if reason is not None:
        raise UsageError(f"{op.name}: {reason}")
    return Row(op, case, "torch", family=family, settings=settings)


def refuse(options: Options, settings: Settings, keys: Sequence[str], message: str) -> None:
    """Raise a UsageError if one of the arguments is given; `{}` in the message is its name."""
    known = parameters(Options) | parameters(Settings)
    values = vars(options) | vars(settings)
    for key in keys:
        if values[key] != known[key].default:
            name = "FILE:FUNCTION" if key == "target" else known[key].spellings[-1]
            raise UsageError(message.format(name))


def check(options: Options, settings: Settings) -> None:
    refuse(options, settings, OF_A_TRACE, "{} requires --from")
    if [options.target, options.model, options.op].count(None) != 2:
        raise UsageError("expected one of FILE:FUNCTION, --model NAME, --op NAME and --from TRACE")
    if options.op is None and options.dtype not in (None, *MODEL_DTYPES):
        raise UsageError(f"--dtype expects one of {', '.join(MODEL_DTYPES)}, got {options.dtype}")
    if options.model is None and options.layers is not None:
        raise UsageError("--layers requires --model")
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise UsageError(f"--trace {options.trace}: no such directory")
    if options.replacing is not None:
        message = "--with compares steps as they are; remove {}"
        refuse(options, settings, ("on", "compile", "trace", "by", "top"), message)
    if options.on:
        message = "--on measures nothing and saves nothing; remove {}"
        refuse(options, settings, ("compile", "trace", "by", "plot", "output"), message)
    if options.model is not None:
        _, tokens = parse_batch_shape(options.shape or DEFAULT_SHAPE)
        problem = unsupported(model_of(options), tokens)
        if problem:
            raise UsageError(problem)
