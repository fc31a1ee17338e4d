"""`python -m bench compare definition.json --workload workload.jsonl solution.json`: solutions of a
problem of flashinfer-bench or SOL-ExecBench against its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from bench.api.comparing import interleaved, ordered
from bench.api.function import Function, known_ceilings
from bench.commands.compare_functions import labels
from bench.comparing.interleave import without_culprits
from bench.comparing.problems import Definition, Problem, Solution, read, read_workloads
from bench.comparing.turns import ComparePolicy
from bench.harness import clock, worker
from bench.harness.cli import main
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device
from bench.harness.run import Run
from bench.harness.settings import Settings
from bench.harness.timing import protocol
from bench.profiling.projection import machine_named
from bench.profiling.target import guarded_call
from results.record import Record
from results.show.grid import Table, print_lines
from results.show.terminal import print_out
from results.show.units import duration
from roofline.model import limits_s

if TYPE_CHECKING:
    from bench.commands.compare import Options

Sides = dict[str, Solution | None]
"""Solutions by provider, the baseline first; None for the reference."""


def problems_of(options: Options) -> tuple[list[Problem], Sides]:
    """Return a problem for each workload, and the sides."""
    for option in ("op", "provider", "size", "shape", "dtype"):
        if getattr(options, option) is not None:
            raise UsageError(f"the workloads replace --{option}; remove it")
    if not options.workload:
        raise UsageError("a definition needs --workload workload.jsonl")
    file, *others = options.functions
    others += options.workload[1:]
    definition = read(file, Definition)
    sides: dict[str, Any] = {file: None}
    for other, label in zip(others, labels(others), strict=True):
        sides[label] = read(other, Solution)
        solved = sides[label].definition
        if solved != definition.name:
            raise UsageError(f"{other} solves {solved}, not {definition.name}")
    workloads = options.workload[0]
    problems = [Problem(definition, each, Path(workloads)) for each in read_workloads(workloads)]
    return problems, sides


def run_problems(options: Options, settings: Settings, argv: Sequence[str] | None) -> Run:
    """Measure the solutions of each workload, and return the run, not shown yet."""
    problems, sides = problems_of(options)
    sides = ordered(sides, options.baseline)
    main.check_places(settings)
    worker.start_server()
    device = main.device_of(settings)
    policy = ComparePolicy(
        options.margin,
        rounds=options.rounds,
        seed=settings.seed,
        rows=len(problems) * (len(sides) - 1),
    )
    saved = policy.to_dict() | settings.to_dict() | {"baseline": next(iter(sides))}
    with Run(settings, "bench", "compare", device, argv, saved) as run:
        run.ceilings = known_ceilings(device)
        run.start(None)
        run.progress.expect(len(problems), run.share_s)
        for index, problem in enumerate(problems):
            blanks = [problem.blank(name) for name in sides]
            run.progress.say(f"{blanks[0].op} {blanks[0].case}: {', '.join(sides)}")
            case_policy = policy.of_case(index, len(problems), run.deadline, clock.now())
            measure = partial(
                worker.call,
                measure_problem,
                problem,
                sides,
                settings,
                device,
                case_policy,
                timeout_s=settings.timeout_s,
                deadline=case_policy.deadline,
            )
            for record in without_culprits(blanks, measure, run.progress.note):
                run.keep(record)
            run.progress.advance()
    return run


def print_limits(options: Options, settings: Settings) -> None:
    """Print the least time of each workload on a GPU of the table."""
    problems, sides = problems_of(options)
    if len(sides) > 1:
        raise UsageError("--on measures nothing; remove the solutions")
    machine = machine_named(options.on or "")
    try:
        records, _ = worker.call(count_work, problems, timeout_s=settings.timeout_s)
    except worker.WorkerError as error:
        raise UsageError(f"the reference {error}") from None
    rows: list[dict[str, Any]] = []
    for record in records:
        limits = limits_s(record, machine.roofs) or {}
        limit = max(limits, key=limits.__getitem__, default=None)
        row = {name: getattr(record, name) for name in COUNTED}
        rows.append(row | {"on": machine.slug, "limit": limit, "limit_s": limits.get(limit or "")})
    lines = [
        f"{row['op']} {row['case']}: at least {duration(row['limit_s'])} on {row['on']}, "
        f"limit {row['limit']}"
        for row in rows
    ]
    table = Table(rows=lambda: rows, draw=lambda console: print_lines(console, *lines))
    print_out(table.render(settings.format))


COUNTED = ("op", "case", "dtype", "flops", "bytes_read", "bytes_written")


def measure_problem(
    problem: Problem,
    sides: Sides,
    settings: Settings,
    device: Device,
    policy: ComparePolicy,
    names: Sequence[str],
) -> list[Record]:
    """Run the sources of the named sides, the baseline first, and time them in turns."""
    import torch

    torch.manual_seed(settings.seed)
    with TemporaryDirectory() as directory:
        here = replace(problem, device=device.torch_name, directory=Path(directory))
        functions = {}
        for index, name in enumerate(names):
            protocol.announce(index)
            try:
                with guarded_call(name):
                    functions[name] = here.function(sides[name], str(index))
            except UsageError as error:
                functions[name] = partial(refuse, str(error))
        protocol.announce(runs=False)
        _, records = interleaved(
            functions,
            subject_of(here, functions[names[0]], settings),
            policy,
            settings.tolerance,
            make_inputs=here.arguments,
            allowed=here.tolerance.allows if here.tolerance else None,
        )
    blank = problem.blank("")
    return [
        replace(record, op=blank.op, case=blank.case, options=blank.options) for record in records
    ]


def count_work(problems: Sequence[Problem]) -> list[Record]:
    """Return a record with the work of each workload: bytes by the definition, FLOPs counted
    without values, or with them if the reference needs them.
    """
    records = []
    with TemporaryDirectory() as directory:
        for problem in problems:
            here = replace(problem, directory=Path(directory))
            try:
                records.append(counted(here))
            except UsageError:
                records.append(counted(replace(here, device="cpu")))
    return records


def counted(problem: Problem) -> Record:
    with guarded_call("the reference"):
        subject = subject_of(problem, problem.function(None, ""), Settings())
        record = subject.counted(subject.args)
    blank = problem.blank("")
    return replace(record, op=blank.op, case=blank.case, dtype=record.dtype or blank.dtype)


def subject_of(problem: Problem, function: Any, settings: Settings) -> Function:
    with guarded_call(f"workload {problem.workload.uuid}"):
        return Function(
            function,
            problem.arguments(),
            {},
            None,
            {
                "bytes_read": problem.bytes_of(problem.definition.inputs),
                "bytes_written": problem.bytes_of(problem.definition.outputs),
            },
            None,
            settings.cache,
            None,
            settings.in_place,
        )


def refuse(reason: str, *_: Any) -> NoReturn:
    raise UsageError(reason)
