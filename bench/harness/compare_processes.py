"""The same comparison in a new process: memory, libraries and code lie elsewhere, which can change a time by itself."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.harness.arguments import UsageError
from bench.harness.interrupt import INTERRUPTED
from results.record import Record
from results.store import StoreError, load_run

LISTS = ("op", "dtype", "shape", "size", "layout", "batch", "provider")
VALUES = ("baseline", "device", "gpu", "fill", "cache", "margin", "rounds")
SEED_STEP = 1_000_003
"""Between the seeds of two processes: far more than a run has cases, each of which takes a seed of its own."""

ROOT = Path(__file__).resolve().parents[2]
GOOD = (0, 1)
"""Exit codes of a process that measured: with or without a regression."""


def child_arguments(args: argparse.Namespace, process: int, left_s: float | None, output: Path) -> list[str]:
    """Return the arguments of one process, with a seed and a run file of its own.

    Args:
        args: those of the whole comparison.
        process: number of the process, from 0.
        left_s: time that it may take; None without a budget.
        output: its run file.
    """
    words = ["compare", "--quiet", "--format", "json", "--output", str(output)]
    words += ["--seed", str((args.seed + process * SEED_STEP) % 2**63)]
    if left_s is not None:
        words += ["--budget", f"{max(left_s, 1e-3):.3f}"]
    for name in LISTS:
        if getattr(args, name, None):
            words += [f"--{name}", ",".join(getattr(args, name))]
    for name in VALUES:
        if getattr(args, name, None) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    return words


def records_of_process(args: argparse.Namespace, process: int, left_s: float | None) -> list[Record]:
    """Measure once in a new process and return its records, each with the number of the process.

    Raises:
        UsageError: the process could not measure; with its own message.
        KeyboardInterrupt: it was interrupted.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.jsonl"
        command = [sys.executable, "-m", "bench", *child_arguments(args, process, left_s, output)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        records = _records(output)
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode not in GOOD and not records:
        raise UsageError(f"process {process + 1}: {last_line(done.stderr) or f'ended with {done.returncode}'}")
    return [replace(record, extra=record.extra | {"process": process}) for record in records]


def _records(output: Path) -> Sequence[Record]:
    try:
        return load_run(output).records
    except StoreError:
        return ()


def last_line(text: str) -> str:
    """Return the last line of a message that is not empty, without the name of the program before it."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].split("error: ", 1)[-1] if lines else ""
