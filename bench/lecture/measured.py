"""Measures the rows that statements name, as one run, and computes what each statement shows."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

from bench.harness.cli.arguments import Request, build_parser, chosen_ops
from bench.harness.cli.main import make_all_cases
from bench.harness.device.device import Device
from bench.harness.loop import Measure, measure_rows, measure_scenarios
from bench.harness.measure import rows as planning
from bench.harness.op_file import module_of, modules_sha256, options_of
from bench.harness.run import Run
from bench.harness.settings import Settings
from bench.lecture.figures import CODE, FIGURES
from results.record import Object, Record
from results.show.facts import facts_beside
from results.show.grid import Row
from results.show.options import given
from results.show.rows import document

_TABLES = facts_beside(__file__, "rows.toml")
ROWS: dict[str, str] = _TABLES["rows"]
SIZES: dict[str, Object] = _TABLES["sizes"]
QUICK: dict[str, Object] = _TABLES["quick"]
LEFT_OUT: list[str] = _TABLES["quick_leaves_out"]

Rows = Mapping[str, Any]
"""Measured rows by name, with the keys of records in `results show --format json`."""


def needed(claims: Iterable[str], is_quick: bool) -> list[str]:
    """Return the rows that the figures of claims need, in the order of measuring."""
    names = set(chain.from_iterable(FIGURES[claim][1] for claim in claims if claim in FIGURES))
    if is_quick:
        names -= set(LEFT_OUT)
    return [name for name in ROWS if name in names]


def measure(run: Run, names: Sequence[str], sizes: Row) -> Rows:
    """Measure rows, scenarios first, and return those that succeeded."""
    scenarios = {}
    ops = {}
    for name in names:
        family, *words = ROWS[name].format(**sizes).split()
        if hasattr(module_of(family), "LISTED"):
            scenarios[name] = scenario_of(family, words, run.device)
        else:
            ops[name] = op_row(family, words, run.device, run.settings)
    # bf16 takes long on a CPU.
    dtypes = tuple(dict.fromkeys((sizes["dtype"], "fp32")))
    with run:
        run.start(dtypes if names else None)
        measure_scenarios(run, list(scenarios.values()), len(ops))
        if ops:
            measure_rows(run, list(ops.values()))
        run.note_time()
        run.judge_again()
    records = document(run.environment, run.records)["records"]
    # After an interruption the last rows have no record.
    by_name = zip([*scenarios, *ops], records, strict=False)
    return {name: SimpleNamespace(**row) for name, row in by_name if row["status"] == "ok"}


def scenario_of(family: str, words: Sequence[str], device: Device) -> tuple[Record, Measure]:
    module = module_of(family)
    options = given(module.Options, module.build_parser().parse_args(words))
    blank, measure = module.rows_of(options, device)[-1]  # with --deterministic, the second
    sha256 = modules_sha256((f"bench.{family}", *module.MODULES))
    return replace(blank, op_sha256=sha256), measure


def op_row(family: str, words: Sequence[str], device: Device, settings: Settings) -> planning.Row:
    ops = module_of(family).OPS
    args = build_parser(family, "", (), ops, options_of(family)).parse_args(words)
    request = replace(given(Request, args), own=vars(args))
    ((_, op, case),) = make_all_cases(request, chosen_ops(request.op, {family: ops}), device.type)
    names = request.provider or ["torch"]
    (row,) = planning.rows_of_case(op, case, family, device, settings, names)
    return row


def statement(claim: Row, found: Rows, sizes: Row) -> Object:
    """Return a claim of the notes with what was measured for it, and the commands of both."""
    name = claim["claim"]
    commands = [claim["command"]] if "roofline" in claim["command"] else []
    figure, names = FIGURES.get(name, (None, ()))
    value = None
    if name in CODE:
        value = printed(CODE[name])
        commands.append(f"python -c {shlex.quote(CODE[name])}")
    elif figure and found.keys() >= set(names):
        with suppress(TypeError):  # the machine has no such ceiling, and a row no MFU
            value = figure(*[found[row] for row in names])
            value = 100 * value if claim["unit"].startswith("%") else value
    commands += [f"python -m bench.{ROWS[row].format(**sizes)}" for row in names]
    flags = [found[row].flags for row in names if row in found]
    return {
        "section": claim["subject"],
        "statement": name,
        "notes": f"{claim['theirs']} ({claim['notes']})",
        "right": claim["ours"],
        "verdict": claim["verdict"],
        "source": claim["formula"],
        "measured": value,
        "unit": claim["unit"],
        "flags": list(dict.fromkeys(chain.from_iterable(flags))),
        "command": "; ".join(commands),
        "remark": claim["remark"],
    }


def printed(code: str) -> bool | float | str:
    """Run code and return what it prints, or the name of the error that it raises."""
    values: list[bool | float | str] = []
    try:
        with warnings.catch_warnings(action="ignore"):  # code of the notes is deprecated
            exec(code, {"print": values.append})
    except Exception as error:
        return type(error).__name__
    (value,) = values
    return value if isinstance(value, bool | int | float) else str(value)


def synchronize_trap(run: Run, matmul: Any) -> list[Object]:
    """Return the times of a measured matmul with and without synchronizing; `possible` is MFU <= 1.

    Without, a timer reads the time to launch a kernel: that of an operation on one element, which
    each run measures. On a CPU a call returns when its result is finished.
    """
    launch_s = run.environment.preflight["host_launch_s"]
    if run.device.is_gpu:
        times_s = {
            "not synchronized": launch_s,
            "synchronized": matmul.host_latency_s,
            "device": matmul.median_s,
        }
    else:
        times_s = {"caller's overhead": launch_s, "call": matmul.median_s}
    rows = []
    for timing, seconds in times_s.items():
        mfu = None if matmul.mfu is None else matmul.mfu * matmul.median_s / seconds
        is_possible = mfu is None or mfu <= 1
        rows.append({"timing": timing, "seconds": seconds, "mfu": mfu, "possible": is_possible})
    return rows
