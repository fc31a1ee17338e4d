"""Runs Nsight Compute's `ncu` on a command, and reads the table that it prints.

It has not run on a GPU yet: what is read was written by hand from the documented form.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.isolate.ending import die_with

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
NEWER = {READ: "dram__bytes_op_read.sum", WRITTEN: "dram__bytes_op_write.sum"}
"""Names of the same counters on Blackwell and later GPUs, where the older ones are not listed."""

NO_UNIT = {"": 1.0}
BYTES = NO_UNIT | {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}
UNITS = {
    "bytes": BYTES,
    "sectors": NO_UNIT | {"sector": 1.0, "ksector": 1e3, "msector": 1e6, "gsector": 1e9},
    "time": {"nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9},
    "pct": NO_UNIT | {"%": 1.0},
}
"""By a word in the name of a metric: its units in Nsight Compute's output, in lower case, and what they are worth in
the first of them. Scales are powers of ten."""

TIMEOUT_S = 300
NVTX = "Push/Pop_Range"
"""In the title of the column that holds the ranges around a kernel, where `--nvtx` asks for them."""


class CountersError(RuntimeError):
    """There are no counters; the message says why in one line."""


class ForbiddenError(CountersError):
    """This user may not count, whatever is counted."""


@dataclass(frozen=True)
class CountedKernel:
    """What was counted of one launch of a kernel."""

    name: str
    values: Mapping[str, float]
    """By metric: bytes, sectors, nanoseconds or per cent."""
    ranges: str = ""
    """The NVTX ranges that it was launched in, as the tool writes them."""


def found() -> str:
    """Return the path of the tool.

    Raises:
        CountersError: there is none.
    """
    path = shutil.which("ncu")
    if path is None:
        raise CountersError("there is no ncu on the path")
    return path


def listed_metrics(ncu: str) -> set[str]:
    """Return the metrics that this GPU has, as the tool lists them; none where it does not."""
    try:
        done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return set()
    return {line.split()[0] for line in done.stdout.splitlines() if line.split()}


def metric_name(metric: str, listed: set[str]) -> str:
    """Return the name of a metric on this GPU; the older one where nothing is listed."""
    newer = NEWER.get(metric, metric)
    return newer if not is_listed(metric, listed) and is_listed(newer, listed) else metric


def is_listed(metric: str, listed: set[str]) -> bool:
    """Return whether a metric is among those that the tool lists, which have no suffix there."""
    return metric.partition(".")[0] in listed


def ncu_command(ncu: str, metrics: Sequence[str], launch: Sequence[str], has_ranges: bool = False) -> list[str]:
    """Return the command that counts: caches emptied before each kernel, clocks left as they are.

    Args:
        ncu: the tool.
        metrics: what is asked for.
        launch: a command; what it launches between the start and the stop of the CUDA profiler counts.
        has_ranges: whether each kernel is told with its NVTX ranges.
    """
    asked = ["--metrics", ",".join(metrics), "--cache-control", "all", "--clock-control", "none"]
    nvtx = ["--nvtx"] if has_ranges else []
    form = ["--csv", "--page", "raw", "--print-units", "base"]
    return [ncu, *form, "--profile-from-start", "off", *nvtx, *asked, *launch]


def counted_by(command: Sequence[str], metrics: Sequence[str], folder: Path) -> list[CountedKernel]:
    """Return the kernels that a command of `ncu_command` counts, started in a folder.

    Raises:
        ForbiddenError: the driver does not let this user count.
        CountersError: the tool failed, took too long, or printed no counters.
    """
    code, out, err = _finished(command, folder)
    refused = refusal_in(out + err)
    if refused:
        raise ForbiddenError(refused)
    if code:
        lines = [line.strip() for line in (err + "\n" + out).splitlines() if line.strip()]
        # The tool's own error only tells that the program under it failed, where that one said why.
        telling = [line for sign in ("error: ", "==ERROR==") for line in lines if sign in line]
        said = (telling or lines[-1:] or ["it said nothing"])[0]
        raise CountersError(f"ncu failed with {code}: {said[:160]}")
    return parse_counters(out, metrics)


def _finished(command: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Return the exit code of a command and what it printed; what it started ends with it, however it ends."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", cwd=folder, start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
    except OSError as error:
        raise CountersError(f"ncu cannot be started: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CountersError(f"ncu took more than {TIMEOUT_S} s") from None
    finally:
        with suppress(OSError):  # the program that the tool launched would stay
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, out, err


def refusal_in(text: str) -> str | None:
    """Return that counters are forbidden here, where the tool says so, else None.

    Source: NVIDIA, ERR_NVGPUCTRPERM: Permission issue with performance counters.
    """
    if "ERR_NVGPUCTRPERM" not in text:
        return None
    return "counters are forbidden for this user (ERR_NVGPUCTRPERM): an administrator can allow them"


def parse_counters(text: str, metrics: Sequence[str]) -> list[CountedKernel]:
    """Return the kernels in what `ncu --csv` printed, each with its metrics.

    Both forms are read: a column for each metric (`--page raw`, with a line of units below the header), and a line for
    each metric. Lines of the tool and of the program around the table are passed over.

    Raises:
        CountersError: there is no table, it is torn, or a value is missing or no count.
    """
    lines = text.replace("\0", "").splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and "Kernel Name" in line), None)
    if head is None:
        raise CountersError("ncu printed no table: no kernel was counted")
    table = [line for line in lines[head:] if line.startswith('"')]
    try:
        columns, *rows = csv.reader(table, strict=True)
    except csv.Error as error:
        raise CountersError(f"ncu's table cannot be read: {error}") from None
    if any(len(row) != len(columns) for row in rows):
        raise CountersError("ncu's table is torn: a line has not as many columns as its header")
    body = [dict(zip(columns, row, strict=True)) for row in rows]
    if "Metric Name" in columns:
        return _by_lines(body, metrics)
    return _by_columns(body, metrics)


def _by_columns(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[CountedKernel]:
    """Return the kernels of a table with a column for each metric; its first line holds the units."""
    units: Mapping[str, str] = {}
    kernels = []
    for row in body:
        if not row["ID"].strip():
            units = row
            continue
        missing = [metric for metric in metrics if metric not in row]
        if missing:
            raise CountersError(f"ncu's table has no {missing[0]}")
        values = {metric: _value(row[metric], units.get(metric, ""), metric) for metric in metrics}
        kernels.append(CountedKernel(row["Kernel Name"], values, _ranges(row)))
    return kernels


def _by_lines(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[CountedKernel]:
    """Return the kernels of a table with a line for each metric."""
    rows: dict[str, tuple[Mapping[str, str], dict[str, float]]] = {}
    for row in body:
        name = row["Metric Name"]
        if name in metrics:
            _, values = rows.setdefault(row["ID"], (row, {}))
            values[name] = _value(row.get("Metric Value", ""), row.get("Metric Unit", ""), name)
    for row, values in rows.values():
        missing = [metric for metric in metrics if metric not in values]
        if missing:
            raise CountersError(f"ncu's table has no {missing[0]} of {row['Kernel Name'][:60]}")
    return [CountedKernel(row["Kernel Name"], values, _ranges(row)) for row, values in rows.values()]


def _ranges(row: Mapping[str, str]) -> str:
    return next((value for title, value in row.items() if NVTX in title), "")


def _value(text: str, unit: str, metric: str) -> float:
    """Return a value of the table in the first of its units.

    Raises:
        CountersError: it is no count, or its unit is none of the metric's.
    """
    digits = text.strip().replace(",", "")
    kind = next(kind for kind in UNITS if kind in metric)
    scale = UNITS[kind].get(unit.strip().lower())
    value = float(digits) if re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,30})?", digits) else math.nan
    if scale is None or not math.isfinite(value):
        raise CountersError(f"ncu gives {metric} as '{text.strip()[:30]}' '{unit.strip()[:30]}', no count of {kind}")
    return value * scale
