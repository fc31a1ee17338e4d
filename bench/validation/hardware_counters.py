"""Bytes that a launch really moved, by Nsight Compute's counters: its command, what it prints, what that means."""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness.isolate.server import die_with
from roofline.work import Work

TOLERANCE = 0.02
"""Counted bytes within 2 % of the compulsory ones need no reason."""

READ, WRITTEN, L2 = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"
NEWER = {READ: "dram__bytes_op_read.sum", WRITTEN: "dram__bytes_op_write.sum"}
"""Names of the same counters on Blackwell and later GPUs, where the older ones are not listed."""

UNITS = {"": 1, "byte": 1, "kbyte": 10**3, "mbyte": 10**6, "gbyte": 10**9, "tbyte": 10**12}
"""Units of bytes in Nsight Compute's output, in lower case; powers of ten."""

TIMEOUT_S = 300


class CountersError(RuntimeError):
    """There are no counters; the message says why in one line."""


class ForbiddenError(CountersError):
    """This user may not count, whatever the case."""


@dataclass(frozen=True)
class Counted:
    """Bytes of one launch, all of its kernels together."""

    read: int
    written: int
    l2: int
    kernels: tuple[str, ...]


def metric_names(listing: str) -> tuple[str, str, str]:
    """Return the metrics to ask for, from what `ncu --query-metrics` lists; the older names where it lists nothing."""
    listed = {line.split()[0] for line in listing.splitlines() if line.split()}

    def name(metric: str) -> str:
        newer = NEWER.get(metric, metric)
        is_newer = metric.removesuffix(".sum") not in listed and newer.removesuffix(".sum") in listed
        return newer if is_newer else metric

    return name(READ), name(WRITTEN), name(L2)


def ncu_command(ncu: str, metrics: Sequence[str], launch: Sequence[str]) -> list[str]:
    """Return the command that counts one launch: caches emptied before each kernel, clocks left as they are."""
    asked = ["--metrics", ",".join(metrics), "--cache-control", "all", "--clock-control", "none"]
    return [ncu, "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off", *asked, *launch]


def count(command: Sequence[str], metrics: tuple[str, str, str], folder: Path) -> Counted:
    """Return the bytes of a launch, the command started in a folder.

    Raises:
        ForbiddenError: the driver does not let this user count.
        CountersError: the tool failed, took too long, or printed no counters.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, cwd=folder,
            preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CountersError(f"ncu took more than {TIMEOUT_S} s") from None
    except OSError as error:
        raise CountersError(f"ncu cannot be started: {error.strerror}") from None
    refused = refusal(done.stdout + done.stderr)
    if refused:
        raise ForbiddenError(refused)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise CountersError(f"ncu failed with {done.returncode}: {lines[-1][:160] if lines else 'it said nothing'}")
    return counted(parse_counters(done.stdout, metrics), metrics)


def refusal(text: str) -> str | None:
    """Return that counters are forbidden here, where the tool says so, else None.

    Source: NVIDIA, ERR_NVGPUCTRPERM: Permission issue with performance counters.
    """
    if "ERR_NVGPUCTRPERM" not in text:
        return None
    return "counters are forbidden for this user (ERR_NVGPUCTRPERM): an administrator can allow them"


def parse_counters(text: str, metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the kernels in what `ncu --csv` printed, each with its metrics in bytes.

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


def _by_columns(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
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
        counts = {metric: _bytes(row[metric], units.get(metric, ""), metric) for metric in metrics}
        kernels.append((row["Kernel Name"], counts))
    return kernels


def _by_lines(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the kernels of a table with a line for each metric."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for row in body:
        name = row["Metric Name"]
        if name in metrics:
            _, counts = found.setdefault(row["ID"], (row["Kernel Name"], {}))
            counts[name] = _bytes(row.get("Metric Value", ""), row.get("Metric Unit", ""), name)
    for kernel, counts in found.values():
        missing = [metric for metric in metrics if metric not in counts]
        if missing:
            raise CountersError(f"ncu's table has no {missing[0]} of {kernel[:60]}")
    return list(found.values())


def _bytes(text: str, unit: str, metric: str) -> int:
    """Return a value of the table in bytes.

    Raises:
        CountersError: it is no count, or its unit is none of bytes.
    """
    digits = text.strip().replace(",", "")
    scale = UNITS.get(unit.strip().lower())
    value = float(digits) if re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,30})?", digits) else math.nan
    if scale is None or not math.isfinite(value):
        raise CountersError(f"ncu gives {metric} as '{text.strip()[:30]}' '{unit.strip()[:30]}', no count of bytes")
    return round(value * scale)


def counted(kernels: Sequence[tuple[str, Mapping[str, int]]], metrics: tuple[str, str, str]) -> Counted:
    """Return the sum over the kernels of a launch.

    Raises:
        CountersError: there is none.
    """
    if not kernels:
        raise CountersError("ncu counted no kernel: a copy that the driver makes is none")
    read, written, l2 = (sum(counts[metric] for _, counts in kernels) for metric in metrics)
    return Counted(read, written, l2, tuple(name for name, _ in kernels))


def verdict(found: Counted, work: Work, l2_bytes: int) -> tuple[bool, str]:
    """Return whether the counted bytes are understood, and what they say about the compulsory ones.

    What was written last may still lie in the L2 cache when the kernel ends, so that up to its size is not counted.
    """
    said = [
        f"read {found.read / work.bytes_read:.3f}",
        f"written {found.written / work.bytes_written:.3f} of compulsory",
    ]
    is_understood = True
    if abs(found.written - work.bytes_written) > TOLERANCE * work.bytes_written:
        is_left = work.bytes_written - l2_bytes <= found.written <= work.bytes_written
        said.append("up to the size of the L2 is still in it" if is_left else "writes unexplained")
        is_understood = is_left
    if abs(found.read - work.bytes_read) > TOLERANCE * work.bytes_read:
        # More than once can only be read from memory what the cache does not hold.
        is_again = found.read > work.bytes_read > l2_bytes and found.l2 >= found.read
        said.append("operands are read again: they exceed the L2" if is_again else "reads unexplained")
        is_understood &= is_again
    return is_understood, ", ".join(said)
