"""`python -m bench compare`: interleaves providers and prints which is faster, with a verdict."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from bench.harness.cli import main
from bench.harness.cli.arguments import Request, UsageError, chosen_ops
from bench.harness.op import Families, Option
from bench.harness.op_file import options_of
from bench.harness.settings import Argv, Settings
from results.show.options import WHAT, Parameter, add, given, margin, number, parameters
from results.show.terminal import ADVANCED, INTERRUPTED, USAGE, Parser, print_out, say
from results.stats.comparison import DEFAULT_MARGIN, MARGIN_HELP, MAX_ROUNDS, MIN_PAIRS

if TYPE_CHECKING:
    from bench.harness.run import Run

DESCRIPTION = """\
Compare providers. For each case (one op, shape and dtype), all providers are timed once per round,
in random order, for many rounds, so that drift in machine speed affects all providers alike. The
ratio of two times is taken within each round. Each provider is verified before and after the
timing.

verdicts, from the ratio of the candidate's time to the baseline's:
  FASTER, SLOWER   the whole 95% confidence interval is beyond the margin, and still is after Holm
                   correction
  SAME             the whole interval is within the margin
  UNSURE           anything else; the reason is printed

The verdicts of a case are checked after 20, 40, 80, ... rounds. A case ends when none of its
verdicts is UNSURE, after 10 s of rounds, or when --budget runs out. The interval is widened because
the check is repeated; with --rounds there is one check, and the interval is narrower.

Your own functions run in a separate process for each case. If one of them crashes, it is listed
with the reason, and everything else is still measured.
Name a provider twice to compare it with itself; the second is shown as NAME#2, and the verdict
should be SAME."""

EPILOG = """\
exit codes: 0 ok; 1 SLOWER (or UNSURE, see --fail-on), or a wrong result; 2 usage; 3 no such device, or a busy one; 130 interrupted

examples:
  python -m bench compare --op gelu --provider torch,torch-compile --size 64MiB
  python -m bench compare --op matmul --dtype bf16 --shape 512,1024 --provider torch,torch   # with itself
  python -m bench compare --op gelu --provider triton-v1,triton-v3 --baseline torch --format md
  python -m bench compare --op softmax --provider torch,torch-compile --fail-on unsure --confirm
  python -m bench compare old.py:attention new.py:attention --shape 8x1024x64 --dtype fp32"""  # noqa: E501


@dataclass(frozen=True)
class Options(Request):
    """What is compared, and how."""

    functions: Annotated[
        tuple[str, ...],
        Parameter(
            "your own functions, instead of --op. If a file defines make_inputs(), all functions "
            "are called with the arguments that it returns; otherwise each parameter gets a tensor "
            "of --shape and --dtype. Also: classes of modules as in KernelBench, or the "
            "definition.json of a problem and its solutions, with --workload",
            metavar="FILE:FUNCTION",
            flags=("functions",),
            told={"nargs": "*"},
        ),
    ] = ()
    workload: Annotated[
        tuple[str, ...],
        Parameter(
            "file of the workloads of a definition.json, one JSON line each; solutions may follow",
            group=ADVANCED,
            metavar="FILE",
            told={"nargs": "+"},
        ),
    ] = ()
    on: Annotated[
        str | None,
        "print the minimum time of each --workload on this GPU instead of measuring; `python -m "
        "roofline gpus` lists all",
        str,
        ADVANCED,
        "SLUG",
    ] = None
    baseline: Annotated[
        str | None,
        "provider to compare with, added if --provider lacks it (default: the first)",
        str,
        WHAT,
        "NAME",
    ] = None
    margin: Annotated[float, MARGIN_HELP, margin, ADVANCED, "FRACTION"] = DEFAULT_MARGIN
    rounds: Annotated[
        int | None,
        "run exactly N rounds, and check the verdicts once at the end",
        number(MIN_PAIRS, MAX_ROUNDS, f"a whole number from {MIN_PAIRS} to {MAX_ROUNDS}", int),
        ADVANCED,
        "N",
    ] = None
    fail_on: Annotated[
        str,
        "exit with 1 for SLOWER only, or for UNSURE too (default: slower)",
        ("slower", "unsure"),
        ADVANCED,
    ] = "slower"
    confirm: Annotated[
        bool,
        "measure a case with a SLOWER row once more before it fails; the second result counts",
        bool,
        ADVANCED,
    ] = False


def add_options(parser: Parser, families: Iterable[str]) -> None:
    own = {}
    for name, by_family in merged_options(families).items():
        texts = [f"{family}: {option.help}" for family, option in by_family.items()]
        own[name] = Parameter("; ".join(texts), is_list=True, key=name)
    names = (
        "torch, torch-compile, triton, triton-vN, path/to/file.py:function, package.module:function"
    )
    add(
        parser,
        parameters(Options) | own,
        ["functions", "workload", "op", "dtype", "size", "shape", *own, "provider", "baseline"],
        op="operations of `python -m bench list`, or files that define some; `--op NAME --help` "
        "lists the options of NAME",
        dtype="data types (default: bf16; fp32 for FILE:FUNCTION)",
        shape="shapes, written as in `python -m bench.FAMILY` (default: the op's own); for "
        "FILE:FUNCTION one shape for all parameters (8x256x64), or one for each (8x256x64,64x64)",
        provider=f"implementations to compare, at least two: {names}",
    )
    known = parameters(Settings)
    add(
        parser,
        known,
        [key for key in known if key != "peak_memory"],
        plot="save a plot of ratios and MFU: .png, .svg or .pdf",
    )
    add(parser, parameters(Options), ["on", "margin", "rounds", "fail_on", "confirm"])


def merged_options(families: Iterable[str]) -> dict[str, dict[str, Option]]:
    """Return the families' own options, by name and then by family."""
    merged: dict[str, dict[str, Option]] = {}
    for family in families:
        for option in options_of(family):
            merged.setdefault(option.name, {})[family] = option
    return merged


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.commands.compare_functions import run_comparison, run_functions
    from bench.comparing.interleave import interleave_safely
    from bench.harness.calibrate.calibration import mixes_for
    from bench.harness.measure.budget import Budget
    from bench.harness.measure.rows import plan
    from bench.harness.providers.registry import is_user_kernel, named_providers
    from bench.harness.run import Run, refused_all
    from bench.harness.worker import start_server

    options = given(Options, args)
    settings = given(Settings, args)
    for name in merged_options(families):
        if options.functions and vars(args)[name] is not None:
            raise UsageError(f"--{name} is an option of an op, not of functions; remove it")
    if options.functions and options.functions[0].endswith(".json"):
        from bench.commands.compare_problems import run_problems  # it loads torch

        problems_run = run_problems(options, settings, argv)
        return show(problems_run, options.fail_on) if problems_run else 0
    if options.workload or options.on is not None:
        raise UsageError("--workload and --on need a definition.json and its solutions")
    if options.functions:
        return show(run_functions(options, settings, argv), options.fail_on)
    options = replace(options, own=vars(args))
    if not options.op:
        raise UsageError("expected --op, or functions; python -m bench list shows all ops")
    ops = chosen_ops(options.op, families)
    for name, by_family in merged_options(families).items():
        is_given = options.own[name] is not None
        other = next((op for family, op in ops if family not in by_family), None)
        if is_given and other is not None:
            raise UsageError(f"--{name} does not apply to {other.name}; remove it")
    providers = chosen_providers(options, [family for family, _ in ops])
    main.make_all_cases(options, ops, "cpu")  # reports errors before torch is loaded
    main.check_places(settings)
    if any(map(is_user_kernel, providers)) and hasattr(os, "fork"):
        start_server()  # it loads torch while this process loads it
    device = main.device_of(settings)
    planned = main.make_all_cases(options, ops, device.type)
    named = {
        family: [next(iter(named_providers([name], family, device))) for name in providers]
        for family, _ in ops
    }
    baseline, *others = {names[0] for names in named.values()}
    if others:
        raise UsageError(
            f"baseline {providers[0]} is another version in each family; compare one family at a "
            f"time, or name another --baseline"
        )
    cases = [
        plan(op, case, named[family], device, settings, family=family)
        for family, op, case in planned
    ]
    if all(rows[0].refused for rows in cases):
        raise refused_all(rows[0].refused for rows in cases if rows[0].refused)
    run = Run(settings, "bench", "compare", device, argv)
    budget = Budget(device, settings)
    measures = [partial(interleave_safely, rows, budget) for rows in cases]
    baselines = [rows[0] for rows in cases if not rows[0].refused]
    dtypes = dict.fromkeys(row.case.dtype for row in baselines)
    mixes = mixes_for(row.op.work(row.case) for row in baselines)
    names = [baseline, *providers[1:]]
    run_comparison(run, options, names, measures, tuple(dtypes), mixes)
    return show(run, options.fail_on)


def chosen_providers(options: Options, families: Sequence[str]) -> list[str]:
    """Return the providers, the baseline first; one may be listed twice."""
    names = list(options.provider or [])
    if options.baseline in names:
        names.remove(options.baseline)
    names[:0] = [] if options.baseline is None else [options.baseline]
    main.check_providers(names, families)
    if len(names) < 2:
        given = f"only {names[0]}" if names else "none"
        raise UsageError(
            f"expected at least two providers, got {given}; use --provider torch,torch-compile, "
            f"or repeat one"
        )
    return names


def show(run: Run, fail_on: str) -> int:
    from bench.harness.run import print_path
    from results.compare.comparison import compare_live
    from results.compare.output import as_text, describe, exit_code
    from results.compare.plot import draw
    from results.show.picture import save_picture

    settings = run.settings
    how = run.environment.settings
    compared = compare_live(run.environment, run.records, how["baseline"], how["margin"])
    if run.problem:
        code = USAGE
    elif run.is_interrupted:
        code = INTERRUPTED
    else:
        code = exit_code(compared, fail_on)
    if not compared.rows and not code:
        raise UsageError(f"nothing could be compared: {describe(compared.unmatched[0])}")
    if compared.rows or settings.format == "json":
        print_out(as_text(compared, settings.format, fail_on, exit_code=code))
    if run.writer is not None:
        print_path("saved", run.writer.path, settings.format)
    if not compared.rows:
        reason = "" if run.is_interrupted else f": {describe(compared.unmatched[-1])}"
        say(f"nothing was compared{reason}")
    elif settings.plot is not None:
        save_picture(draw(compared), settings.plot)
        print_path("plot", settings.plot, settings.format)
    run.raise_if_unsaved()
    return code
