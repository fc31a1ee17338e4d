"""`python -m bench compare definition.json --workload workload.jsonl solution.json`: solutions of a
problem of flashinfer-bench or SOL-ExecBench against its reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.api.comparing import ordered
from bench.commands.compare_functions import known_of, run_cases, subject_of
from bench.comparing.problems import Definition, Problem, Solution, read, read_workloads
from bench.harness import worker
from bench.harness.cli.arguments import UsageError
from bench.harness.measure.rows import labels
from bench.harness.run import Run
from bench.harness.settings import Argv, Settings
from bench.profiling.projection import machine_named
from bench.profiling.target import guarded_call
from results.record import Record
from results.show.grid import Table, print_lines
from results.show.terminal import print_out
from results.show.units import duration
from roofline.limits import ROOFS
from roofline.model import limits_s

if TYPE_CHECKING:
    from bench.commands.compare import Options

COUNTED = ("op", "case", "dtype", "flops", "bytes_read", "bytes_written")


def run_problems(options: Options, settings: Settings, argv: Argv) -> Run | None:
    """Measure the solutions of each workload, and return the run, not shown yet. With `--on`, print
    the least times instead, and return None.
    """
    for option in ("op", "provider", "size", "shape", "dtype"):
        if getattr(options, option) is not None:
            raise UsageError(f"the workloads replace --{option}; remove it")
    if settings.fill != Settings.fill:
        raise UsageError("the workloads replace --fill; remove it")
    if not options.workload:
        raise UsageError("a definition needs --workload workload.jsonl")
    file, *others = options.functions
    workloads, *more = options.workload
    others += more
    definition = read(file, Definition)
    sides: dict[str, Solution | None] = {file: None}
    for other, label in zip(others, labels(others), strict=True):
        solution = read(other, Solution)
        if solution.definition != definition.name:
            raise UsageError(f"{other} solves {solution.definition}, not {definition.name}")
        sides[label] = solution
    with TemporaryDirectory() as directory:
        problems = []
        for workload in read_workloads(workloads):
            axes = [f"{name}={extent}" for name, extent in workload.axes.items()]
            problem = Problem(
                settings=settings,
                dtype="fp32",
                known={
                    "op": definition.name,
                    "case": ", ".join(axes) or "-",
                    "options": {"workload": workload.uuid},
                },
                definition=definition,
                workload=workload,
                sides=sides,
                file=Path(workloads),
                directory=Path(directory),
            )
            problems.append(problem)
        if options.on is None:
            return run_cases(
                problems, list(ordered(sides, options.baseline)), options, settings, argv
            )
        if others:
            raise UsageError("--on measures nothing; remove the solutions")
        print_limits(problems, options.on, settings)
    return None


def print_limits(problems: Sequence[Problem], gpu: str, settings: Settings) -> None:
    """Print the least time of each workload on a GPU of the table."""
    machine = machine_named(gpu)
    try:
        records, _ = worker.call(count_work, problems, timeout_s=settings.timeout_s)
    except worker.WorkerError as error:
        raise UsageError(f"the reference {error}") from None
    rows = []
    lines = []
    for record in records:
        limits = limits_s(record, machine, ROOFS) or {}
        limit = max(limits, key=limits.__getitem__, default=None)
        limit_s = limits.get(limit or "")
        row = {name: getattr(record, name) for name in COUNTED}
        rows.append(row | {"on": machine.slug, "limit": limit, "limit_s": limit_s})
        least = f"at least {duration(limit_s)} on {machine.slug}, limit {limit}"
        lines.append(f"{record.op} {record.case}: {least}")
    table = Table(rows=lambda: rows, draw=lambda console: print_lines(console, *lines))
    print_out(table.render(settings.format))


def count_work(problems: Sequence[Problem]) -> list[Record]:
    """Return a record with the work of each workload: bytes by the definition, FLOPs counted
    without values, or with them if the reference needs them.
    """
    records = []
    for problem in problems:
        try:
            records.append(counted(problem))
        except UsageError:
            records.append(counted(replace(problem, device="cpu")))
    return records


def counted(problem: Problem) -> Record:
    name = next(iter(problem.sides))
    subject = subject_of(problem, problem.functions([name])[name])
    with guarded_call(name):
        return known_of(problem, subject.counted(subject.args))
