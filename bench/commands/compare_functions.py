"""`python -m bench compare a.py:f b.py:f`: functions of files on the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.api.comparing import interleaved, ordered
from bench.api.function import Function, extents, known_ceilings
from bench.comparing.case import Case
from bench.comparing.files import FileCase
from bench.comparing.interleave import without_culprits
from bench.comparing.problems import Problem
from bench.comparing.turns import ComparePolicy, completed
from bench.harness import clock, worker
from bench.harness.calibrate.calibration import MIXES
from bench.harness.cli import main
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device
from bench.harness.measure.rows import labels
from bench.harness.providers.user_kernel import UserKernelError, find
from bench.harness.run import Run, saved_options
from bench.harness.settings import Argv, Settings
from bench.profiling.target import guarded_call
from results.compare.comparison import compare_live
from results.record import Record
from results.show.table import describe
from results.stats.comparison import SLOWER

if TYPE_CHECKING:
    from bench.commands.compare import Options


def run_functions(options: Options, settings: Settings, argv: Argv) -> Run:
    """Measure the functions that the options name, and return the run, not shown yet."""
    for option in ("op", "provider", "size"):
        if getattr(options, option) is not None:
            raise UsageError(f"functions are compared without --{option}; remove it")
    for name in options.functions:  # what shows without running a file
        try:
            problem = find(name).problem
        except UserKernelError:
            problem = "must be written path/to/file.py:function"
            if name.endswith(".jsonl"):
                problem = "is a saved run; use python -m results compare"
        if problem:
            raise UsageError(f"'{name}': {problem}")
    names = list(ordered(dict.fromkeys(labels(options.functions)), options.baseline))
    given = [f"--{name}" for name in ("shape", "dtype") if getattr(options, name)]
    if settings.fill != Settings.fill:
        given.append("--fill")
    dtypes = options.dtype or ["fp32"]
    if len(dtypes) > 1:
        raise UsageError("functions are compared in one --dtype")
    case = FileCase(
        settings=settings,
        dtype=dtypes[0],
        hashes={name: find(name).sha256() for name in names},
        shapes=[extents(text) for text in options.shape or ()],
        given=given,
    )
    return run_cases([case], names, options, settings, argv)


def run_cases(
    cases: Sequence[Case],
    names: Sequence[str],
    options: Options,
    settings: Settings,
    argv: Argv,
) -> Run:
    """Measure the functions of each case, the baseline first, and return the run, not shown yet."""
    main.check_places(settings)
    worker.start_server()
    device = main.device_of(settings)
    run = Run(settings, "bench", "compare", device, argv)
    if settings.gpu is None:
        run.ceilings = known_ceilings(device)
    measures = [partial(measured, case, names) for case in cases]
    run_comparison(run, options, names, measures, None)
    return run


def run_comparison(
    run: Run,
    options: Options,
    names: Sequence[str],
    measures: Sequence[Callable[[Run, ComparePolicy], list[Record]]],
    dtypes: Sequence[str] | None,
    mixes: Sequence[str] = MIXES,
) -> None:
    """Measure case by case, the baseline of `names` first; the records of a case are saved when all
    of them are verified again.

    `dtypes` and `mixes` are those of `Run.start`.
    """
    settings = run.settings
    progress = run.progress
    policy = ComparePolicy(
        options.margin,
        rounds=options.rounds,
        seed=settings.seed,
        rows=len(measures) * (len(names) - 1),
    )
    run.saved = policy.to_dict() | saved_options(settings) | {"baseline": names[0]}
    with run:
        run.start(dtypes, mixes=mixes)
        progress.expect(len(measures), run.deadline)
        tries = 1 + options.confirm
        for index, measure in enumerate(measures):
            records: list[Record] = []
            for turn in range(tries):
                place = tries * index + turn
                share = replace(policy, seed=policy.seed + place)
                share_s = run.share_s(tries * len(measures) - place)
                if share_s < math.inf:
                    share = replace(share, budget_s=math.inf, deadline=clock.now() + share_s)
                again = measure(run, share)
                if not records or all(record.status != "skipped" for record in again):
                    records = again
                found = compare_live(run.environment, records, names[0], options.margin).rows
                if all(row.compared.verdict != SLOWER for row in found):
                    break
            for record in records:
                run.keep(record)
                if settings.verbose:
                    for line in describe(record):
                        progress.note(line)
            progress.advance()
        if dtypes is not None:
            run.judge_again()


def measured(case: Case, names: Sequence[str], run: Run, policy: ComparePolicy) -> list[Record]:
    """Return the records of a case, measured in a worker."""
    unknown = Record(
        op="function",
        provider="",
        dtype=case.dtype,
        shape={"calls": 1},
        case="-",
        status="skipped",
    )
    blanks = [known_of(case, replace(unknown, provider=name)) for name in names]
    run.progress.say(f"{blanks[0].op} {blanks[0].case}: {', '.join(names)}")
    measure = partial(
        worker.call,
        measure_in_worker,
        case,
        run.device,
        policy,
        timeout_s=run.settings.timeout_s,
        deadline=policy.deadline,
    )
    try:
        return case.judged(without_culprits(blanks, measure, run.progress.note), run.records)
    except UsageError as error:
        if not isinstance(case, Problem):
            raise
        failed = replace(blanks[0], status="failed", reason=str(error))
        return completed(blanks, [failed, *(None for _ in names[1:])])


def measure_in_worker(
    case: Case, device: Device, policy: ComparePolicy, names: Sequence[str]
) -> list[Record]:
    """Load the named functions, the baseline first, make their arguments and time them in turns."""
    device.use()
    case.device = device.torch_name
    functions = case.functions(names)
    _, records = interleaved(
        functions,
        subject_of(case, functions[names[0]]),
        policy,
        case.settings.tolerance,
        make_inputs=case.make,
        flags=case.flags,
        within=case.within,
    )
    return [known_of(case, record) for record in records]


def subject_of(case: Case, function: Callable[..., Any]) -> Function:
    """Return a function of a case with new arguments."""
    import torch

    settings = case.settings
    torch.manual_seed(settings.seed)
    with guarded_call("the inputs"):
        arguments = case.arguments()
    with guarded_call("FLOPS or BYTES"):
        work = case.work(arguments)
    return Function(
        function, arguments, {}, None, work, None, settings.cache, None, settings.in_place
    )


def known_of(case: Case, record: Record) -> Record:
    """Return a record with what is known of its case without measuring."""
    return replace(
        record,
        dtype=record.dtype or case.dtype,
        source_sha256=case.hashes.get(record.provider),
        **case.known,
    )
