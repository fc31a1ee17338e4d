"""`python -m bench compare definition.json --workload workload.jsonl solution.json`: solutions of a
problem of flashinfer-bench or SOL-ExecBench against its reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from bench.api.comparing import interleaved, ordered
from bench.api.function import Function, known_ceilings
from bench.commands.compare_functions import labels
from bench.comparing.interleave import without_culprits
from bench.comparing.problems import (
    Definition,
    Problem,
    Solution,
    Workload,
    read,
    read_workloads,
)
from bench.comparing.turns import ComparePolicy
from bench.harness import clock, worker
from bench.harness.cli import main
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device
from bench.harness.run import Run
from bench.harness.settings import Settings
from bench.harness.timing import protocol
from bench.profiling.projection import least_s, machine_named
from bench.profiling.target import guarded_call
from results.record import Record
from results.show.grid import Cell, Table, print_cells, texts_of
from results.show.terminal import print_out
from results.show.units import duration
from roofline.model import limits_s

if TYPE_CHECKING:
    from bench.commands.compare import Options


def problem_of(options: Options) -> tuple[Definition, list[Workload], dict[str, Any]]:
    """Return what the files have; the baseline is the first of the sides, None the reference."""
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
        solution = read(other, Solution)
        if solution.definition != definition.name:
            raise UsageError(f"{other} solves {solution.definition}, not {definition.name}")
        sides[label] = solution
    workloads = read_workloads(options.workload[0])
    if options.on is None:
        sides = ordered(sides, options.baseline)
    elif others:
        raise UsageError("--on measures nothing; remove the solutions")
    return definition, workloads, sides


def run_problem(options: Options, settings: Settings, argv: Sequence[str] | None) -> Run | None:
    """Measure the solutions of each workload, and return the run, not shown yet; with `--on` print
    the least times and return None.
    """
    definition, workloads, sides = problem_of(options)
    file = options.workload[0]
    main.check_places(settings)
    worker.start_server()
    if options.on is not None:
        machine = machine_named(options.on)
        rows = []
        for workload in workloads:
            try:
                record, _ = worker.call(
                    count_work, definition, workload, file, timeout_s=settings.timeout_s
                )
            except worker.WorkerError as error:
                raise UsageError(f"the reference {error}") from None
            limits = limits_s(record, machine.roofs) or {}
            rows.append(
                {
                    "machine": machine.slug,
                    "op": record.op,
                    "case": record.case,
                    "dtype": record.dtype,
                    "flops": record.flops,
                    "bytes_read": record.bytes_read,
                    "bytes_written": record.bytes_written,
                    "limit_s": least_s(record, machine),
                    "limit": max(limits, key=limits.__getitem__, default=None),
                }
            )
        print_out(table_of(rows).render(settings.format))
        return None
    device = main.device_of(settings)
    policy = ComparePolicy(
        options.margin,
        rounds=options.rounds,
        seed=settings.seed,
        rows=len(workloads) * (len(sides) - 1),
    )
    baseline = next(iter(sides))
    saved = policy.to_dict() | settings.to_dict() | {"baseline": baseline}
    with Run(settings, "bench", "compare", device, argv, saved) as run:
        run.ceilings = known_ceilings(device)
        run.start(None)
        run.progress.expect(len(workloads), run.share_s)
        for index, workload in enumerate(workloads):
            run.progress.say(f"{definition.name}, workload {index + 1}: {', '.join(sides)}")
            case_policy = policy.of_case(index, len(workloads), run.deadline, clock.now())
            problem = (definition, workload, file)
            measure = partial(measure_safely, sides, problem, settings, device, case_policy)
            blanks = [blank_of(definition, workload, name) for name in sides]
            for record in without_culprits(blanks, measure, run.progress.note):
                run.keep(record)
            run.progress.advance()
    return run


def measure_safely(
    sides: Mapping[str, Solution | None],
    problem: tuple[Definition, Workload, str],
    settings: Settings,
    device: Device,
    policy: ComparePolicy,
    names: Sequence[str],
) -> list[Record]:
    """Return the records of some of the sides, measured in a worker."""
    records, _ = worker.call(
        measure_workload,
        {name: sides[name] for name in names},
        problem,
        settings,
        device,
        policy,
        timeout_s=settings.timeout_s,
        deadline=policy.deadline,
    )
    return records


def blank_of(definition: Definition, workload: Workload, provider: str) -> Record:
    case = ", ".join(f"{name}={extent}" for name, extent in workload.axes.items()) or "-"
    options = {"workload": workload.uuid} if workload.uuid else {}
    return Record(
        op=definition.name,
        provider=provider,
        dtype="fp32",
        shape={"calls": 1},
        case=case,
        status="skipped",
        options=options,
    )


def measure_workload(
    sides: dict[str, Solution | None],
    problem: tuple[Definition, Workload, str],
    settings: Settings,
    device: Device,
    policy: ComparePolicy,
) -> list[Record]:
    """Run the sources of a workload's sides, the baseline first, and time them in turns."""
    import torch

    definition, workload, file = problem
    torch.manual_seed(settings.seed)
    with TemporaryDirectory() as directory:
        made = Problem(definition, workload, Path(file), Path(directory), device.torch_name)
        functions = {}
        for index, (name, solution) in enumerate(sides.items()):
            protocol.announce(index)
            try:
                with guarded_call(name):
                    functions[name] = made.function(solution, str(index))
            except UsageError as error:
                functions[name] = partial(refuse, str(error))
        protocol.announce(runs=False)
        subject = subject_of(made, next(iter(functions.values())), settings, device.torch_name)
        allowed = made.tolerance.allows if made.tolerance else None
        _, records = interleaved(
            functions,
            subject,
            policy,
            settings.tolerance,
            make_inputs=made.arguments,
            allowed=allowed,
        )
    blanks = [blank_of(definition, workload, name) for name in sides]
    return [
        replace(record, op=blank.op, case=blank.case, options=blank.options)
        for record, blank in zip(records, blanks, strict=True)
    ]


def count_work(definition: Definition, workload: Workload, file: str) -> Record:
    """Return a record with the work of a workload: bytes by the definition, FLOPs counted without
    values, or with them if the reference needs them.
    """
    with TemporaryDirectory() as directory:
        for device in ("meta", "cpu"):
            made = Problem(definition, workload, Path(file), Path(directory), device)
            try:
                with guarded_call(file):
                    subject = subject_of(made, made.function(None, "0"), Settings(), "cpu")
                    record = subject.counted(subject.args)
                    break
            except UsageError:
                if device == "cpu":
                    raise
    blank = blank_of(definition, workload, "")
    return replace(record, op=blank.op, case=blank.case, dtype=record.dtype or "fp32")


def subject_of(problem: Problem, function: Any, settings: Settings, device: str) -> Function:
    work = {"bytes_read": problem.bytes_read, "bytes_written": problem.bytes_written}
    with guarded_call("the inputs"):
        arguments = problem.arguments()
    return Function(
        function,
        arguments,
        {},
        None,
        work,
        None,
        settings.cache,
        device,
        settings.in_place,
    )


def refuse(reason: str, *_: Any) -> NoReturn:
    raise UsageError(reason)


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the least times as a table; they are in seconds."""
    cells = []
    for row in rows:
        cells.append(
            {
                "op": Cell(row["op"]),
                "case": Cell(row["case"]),
                f"least time on {row['machine']}": Cell(duration(row["limit_s"]), "right"),
                "bound": Cell(row["limit"] or "unknown peak or work"),
            }
        )
    return Table(
        rows=lambda: rows,
        shown=lambda: texts_of(cells),
        draw=lambda console: print_cells(console, cells, "bound"),
    )
