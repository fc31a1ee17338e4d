"""The run of a command whose rows are not ops, such as training steps and copies: each row is measured once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.harness.cli.main import refuse_all
from bench.harness.device.device import Device
from bench.harness.measure.budget import Budget
from bench.harness.measure.measure_row import release
from bench.harness.measure.rows import DEVICE_LOST, Settings, is_out_of_memory, one_line, out_of_time
from bench.harness.op_file import modules_sha256
from bench.harness.run import Run
from results.record import Record
from results.show.table import describe

Measure = Callable[[Record, Run, int], Record]
"""Returns the finished record of a row: `measure(blank, run, rows)`, with the rows that share the time left.

What it raises makes the row `failed`, or `skipped` if memory ran out.
"""


def measure_once(
    args: argparse.Namespace,
    argv: Sequence[str] | None,
    name: str,
    device: Device,
    rows: Sequence[tuple[Record, Measure]],
    defined_in: Sequence[str],
) -> Run:
    """Measure all rows within the budget and return the run, not shown yet.

    Args:
        args: the options of the command.
        argv: its arguments; None stands for those of the process.
        name: the middle of the run file's name: `train-step`; the command is `bench.train_step`.
        device: the device under test.
        rows: the blank record of each row, `skipped` and with a reason if it cannot be measured here.
        defined_in: modules of this project that say what a row measures, besides the command's own.

    Raises:
        UsageError: no row can be measured.
    """
    refuse_all([f"{label_of(blank)}: {blank.reason}" if blank.reason else None for blank, _ in rows])
    command = f"bench.{name.replace('-', '_')}"
    sha256 = modules_sha256((command, *defined_in))
    settings = Settings(cache="warm", budget_s=args.budget, seed=args.seed)
    with Run(args, command, name, device, settings.to_dict(), argv) as run:
        run.start(tuple(dict.fromkeys(blank.dtype for blank, _ in rows if not blank.reason)))
        budget = Budget(device, settings, run.deadline, len(rows))
        run.progress.expect(len(rows), budget.left_s)
        for done, (row, measure) in enumerate(rows):
            blank = replace(row, op_sha256=sha256)
            if not (blank.reason or budget.has_time()):
                run.keep(replace(blank, reason=out_of_time(args.budget)))
                continue
            run.progress.say(label_of(blank))
            began = time.perf_counter()
            record = _measured(blank, measure, run, budget.sharing(done))
            budget.took(record, began)
            run.keep(record)
            run.progress.advance()
            for line in describe(record) if args.verbose else ():
                run.progress.note(line)
        run.note_time()
        run.judge_again()
    return run


def _measured(blank: Record, measure: Measure, run: Run, rows: int) -> Record:
    if blank.reason:
        return blank
    if not release(run.device):
        return replace(blank, status="failed", reason=DEVICE_LOST)
    try:
        return measure(blank, run, rows)
    except Exception as error:
        if is_out_of_memory(error):
            return replace(blank, reason="out of memory")
        return replace(blank, status="failed", reason=one_line(error))


def share_s(run: Run, rows: int) -> float | None:
    """Return the seconds of the budget that a row may still take if `rows` share it; None without a budget."""
    left_s = run.left_s()
    return None if left_s is None else max(0.0, left_s) / rows


def label_of(record: Record) -> str:
    """Return the op, case, dtype, provider and options of a record as text."""
    options = [str(value) for value in record.options.values()]
    return " ".join([record.op, record.case, record.dtype, record.provider, *options])
