"""How far the medians of fresh processes lie apart, and whether a cold copy of 1 MB stays below the copy roof.

    python -m bench.validation.repeated_processes --runs 3
    python -m bench.validation.repeated_processes --case matmul/bf16/4096,gelu/bf16/4194304 --output spread

The cases of one op and dtype are measured by one command, `python -m bench.<family> ... --provider torch --no-save`,
in a process of its own; all commands have run once before any of them runs again. The spread of a case is the
largest median over the least one, minus 1. Above 20 us it should be below 0.5 % on a settled GPU; a row at or above is
flagged. Nothing of that is asserted: other processes on the machine can give any spread. A 1 MB copy that a GPU makes
cold and more than 2 % above its copy roof is wrong, and the exit code is 1, as where a process measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import add_list, device_name, number
from bench.harness.cli.interrupt import INTERRUPTED, raise_when_interrupted
from bench.harness.cli.main import guarded
from bench.harness.isolate.ending import die_with
from bench.harness.measure.evidence import ROOF_MARGIN
from results.show.export import json_text, write_output
from results.show.table import format_rate, format_time
from results.show.terminal import Parser, print_out, say
from results.stats.samples import median
from roofline.ceilings import CeilingError, Ceilings

OK, WRONG_RESULT = 0, 1
RUNS = 3
GPU_CASES = (*(f"matmul/bf16/{size}" for size in (1536, 2048, 4096, 8192)), "softmax/bf16/4096x8192")
CPU_CASES = ("matmul/bf16/256", "matmul/bf16/512", "softmax/fp32/128x8192")
MOST_SPREAD = 0.005
"""Spread of medians below which a row repeats."""

LONG_ENOUGH_S = 20e-6
"""Shorter medians are not held to it: a tick of an event is a part of them that shows."""

COPY = "copy/bf16/500000"
"""1 MB read, 1 MB written."""

TIMEOUT_S = 600
ROOT = Path(__file__).resolve().parents[2]


class ProcessError(RuntimeError):
    """A process measured nothing; the message says why in one line."""


@dataclass
class Repeated:
    """One case, measured in several processes."""

    case: str
    medians_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    flags: list[list[str]] = field(default_factory=list)
    """Of each process's row, as the bench command sets them."""
    roof_shares: list[float] = field(default_factory=list)
    """Of a cold copy: bytes per second over the copy roof, in each process."""

    @property
    def spread(self) -> float | None:
        """Largest median over the least one, minus 1; None with fewer than two."""
        return spread(self.medians_s)

    @property
    def is_wide(self) -> bool:
        """Whether the spread is one that should not be."""
        found = self.spread
        return found is not None and found >= MOST_SPREAD and median(self.medians_s) > LONG_ENOUGH_S


def spread(values: Sequence[float]) -> float | None:
    """Return the largest of some times over the least one, minus 1; None where fewer than two can be times."""
    times = [value for value in values if math.isfinite(value) and value > 0]
    return max(times) / min(times) - 1 if len(times) > 1 else None


def grouped(cases: Iterable[Any]) -> list[list[Any]]:
    """Return the cases that one command can measure together, in the order in which they were named."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in cases:
        groups.setdefault((one.case.op, one.case.dtype), []).append(one)
    return list(groups.values())


def command_of(group: Sequence[Any], device: str | None) -> list[str]:
    """Return the bench command that measures some cases of one op and dtype."""
    first = group[0]
    shapes = ",".join("x".join(str(one.case.shape[axis]) for axis in first.op.axes) for one in group)
    asked = ["--op", first.op.name, "--dtype", first.case.dtype, "--shape", shapes, "--provider", "torch"]
    asked += ["--device", device] if device else []
    return [sys.executable, "-m", f"bench.{first.family}", *asked, "--format", "json", "--no-save", "--quiet"]


def measured(command: Sequence[str]) -> dict[str, Any]:
    """Return the document that a bench command prints.

    Raises:
        ProcessError: it failed, took too long, or printed something else.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, cwd=ROOT,
            preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProcessError(f"took more than {TIMEOUT_S} s") from None
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ProcessError(f"exit code {done.returncode}: {lines[-1][:160] if lines else 'no output'}") from None
    if not isinstance(document, dict):
        raise ProcessError("printed no document")
    return document


def row_of(document: Mapping[str, Any], shape: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the record of one shape, which holds a time.

    Raises:
        ProcessError: there is no such record, or it is not `ok`.
    """
    records = document.get("records")
    found = [one for one in records if isinstance(one, dict)] if isinstance(records, list) else []
    record = next((one for one in found if one.get("shape") == shape), None)
    if record is None:
        raise ProcessError("printed no record of the case")
    if record.get("status") != "ok":
        raise ProcessError(f"{record.get('status')}: {record.get('reason')}")
    time_s = record.get("median_s")
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not (math.isfinite(time_s) and time_s > 0):
        raise ProcessError("the record has no time")
    return record


def roof_share(document: Mapping[str, Any], record: Mapping[str, Any]) -> float | None:
    """Return the bytes per second of a cold row over the copy roof; None for a warm row, or without a roof.

    The roof is the bandwidth measured with the mix of a copy, else that of the datasheet.
    """
    if record.get("cache") != "cold":
        return None
    try:
        ceilings = Ceilings.from_dict(document["environment"]["hardware"])
        read, written = int(record["bytes_read"]), int(record["bytes_written"])
    except (AttributeError, KeyError, TypeError, ValueError, CeilingError):
        return None
    roof = ceilings.mix(read, written) or ceilings.bandwidth()
    return (read + written) / record["median_s"] / roof.value if roof is not None else None


def take(found: Mapping[str, Repeated], group: Sequence[Any], command: Sequence[str]) -> None:
    """Measure the cases of a group once more, in a process of their own."""
    try:
        document = measured(command)
    except ProcessError as error:
        for one in group:
            found[one.name].failures.append(str(error))
        return
    for one in group:
        repeated = found[one.name]
        try:
            record = row_of(document, one.case.shape)
        except ProcessError as error:
            repeated.failures.append(str(error))
            continue
        repeated.medians_s.append(record["median_s"])
        repeated.flags.append(list(record.get("flags") or ()))
        share = roof_share(document, record) if one.name == COPY else None
        if share is not None:
            repeated.roof_shares.append(share)


# ---- what is shown ------------------------------------------------------------------------------------------------


def line_of(repeated: Repeated) -> str:
    """Return a case as a line for people."""
    shown = ", ".join(format_time(value) for value in repeated.medians_s) or "no time"
    parts = [f"{repeated.case}: {shown}"]
    if repeated.spread is not None:
        wide = f" WIDE: {MOST_SPREAD:.1%} or more above 20 us" if repeated.is_wide else ""
        parts.append(f"spread {repeated.spread:.2%}{wide}")
    flags = sorted({flag for row in repeated.flags for flag in row})
    if flags:
        parts.append(f"flags: {', '.join(flags)}")
    parts += [f"failed: {failure}" for failure in repeated.failures]
    return "; ".join(parts)


def copy_line(copy: Repeated, bytes_moved: int, is_gpu: bool) -> tuple[bool, str]:
    """Return whether the cold copy is possible as far as is known, and that as a line.

    The roof of a CPU is no gate: it was measured too, and other processes may have held it down.
    """
    if not copy.roof_shares:
        return True, "1 MB copy, cold: not known, there is no cold row with a roof"
    fastest = format_rate(bytes_moved / min(copy.medians_s), "B/s")
    highest = max(copy.roof_shares)
    said = f"1 MB copy, cold: {fastest} at most, {highest:.1%} of the copy roof"
    if highest <= ROOF_MARGIN:
        return True, f"{said}: not above it"
    if is_gpu:
        return False, f"{said}: ABOVE it, so that it was not cold, or the roof is wrong"
    return True, f"{said}: ABOVE it; measure the roof again on a quiet machine with `python -m bench calibrate`"


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog="python -m bench.validation.repeated_processes",
        description=__doc__,
    )
    parser.add_argument("--runs", type=number(2, 1000, "a whole number from 2 to 1000", int), default=RUNS)
    add_list(parser, "--case", "cases op/dtype/shape, such as matmul/bf16/4096")
    parser.add_argument("--device", type=device_name, help="cpu, cuda or cuda:N (default: the first GPU, else the CPU)")
    parser.add_argument("--output", metavar="DIR", type=Path, default=None, help="folder for repeated_processes.json")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure all cases in turns and return the exit code.

    Raises:
        UsageError: a case that does not exist.
        NoDeviceError: the device is not there.
        StoreError: the folder cannot be written.
    """
    from bench.harness.device.device import detect
    from bench.validation.listed_cases import chosen_cases, parse_case

    device = detect(args.device)
    raise_when_interrupted()
    cases = chosen_cases(args.case, GPU_CASES if device.is_gpu else CPU_CASES)
    listed = {one.name: one for one in [*cases, parse_case(COPY)]}
    found = {name: Repeated(name) for name in listed}
    is_interrupted = False
    try:
        for turn in range(args.runs):
            for group in grouped(listed.values()):
                say(f"[{turn + 1}/{args.runs}] {', '.join(one.name for one in group)}")
                take(found, group, command_of(group, args.device))
    except KeyboardInterrupt:
        is_interrupted = True
        say("interrupted: what was finished is kept")
    print_out("".join(f"{line_of(one)}\n" for one in found.values()))
    copied = listed[COPY]
    is_below, line = copy_line(found[COPY], copied.op.work(copied.case).bytes, device.is_gpu)
    wide = [name for name, one in found.items() if one.is_wide]
    print_out(f"{line}\n{len(wide)} of {len(found)} rows above 20 us spread by {MOST_SPREAD:.1%} or more\n")
    if args.output is not None:
        rows = [asdict(one) | {"spread": one.spread, "is_wide": one.is_wide} for one in found.values()]
        path = args.output / "repeated_processes.json"
        write_output(path, json_text({"schema": 1, "device": device.to_dict(), "rows": rows}).encode())
        print_out(f"saved: {path}\n")
    if is_interrupted:
        return INTERRUPTED
    return WRONG_RESULT if not is_below or any(one.failures for one in found.values()) else OK


if __name__ == "__main__":
    raise SystemExit(guarded(build_parser(), run, None))
