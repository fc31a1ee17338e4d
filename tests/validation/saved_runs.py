"""Count false verdicts between saved runs of identical code, and check that a slowdown of 25 % is
detected.

    python -m tests.validation.saved_runs --output DIR
    python -m tests.validation.saved_runs --output DIR --busy 1 --planted 0

Each run is a separate process. All pairs of runs of identical code are compared by
`results compare`, and by its statistics alone as if the code differed: with the other runs as
history; without history; one row at a time without history, where the other rows show the drift of
the machine; and in groups of three runs. For the slowdown, a function computes a quarter of the
matmul twice; each function has three runs.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

from results.compare import comparison
from results.compare.sides import CompareOptions
from results.show.grid import markdown_text
from results.stats.comparison import FASTER, SLOWER
from results.store.runfile import load_run

ROWS = ("bench.matmul", "--dtype", "bf16,fp32", "--shape", "256,512,1024")
BUSY = "while True: sum(range(10_000))"
PLANTED_RUNS = 3

FUNCTIONS = {
    "before": "import torch\ndef matmul(a, b, out):\n    torch.matmul(a, b, out=out)\n",
    "after": "import torch\ndef matmul(a, b, out):\n    a[: len(a) // 4] @ b\n    torch.matmul(a, "
    "b, out=out)\n",
}
"""`after` does 25 % more work."""


def measure(path, *options):
    """Return a run; measure and save it if its file does not exist."""
    if not path.exists():
        command = [
            sys.executable,
            "-m",
            *ROWS,
            "-q",
            "--format",
            "json",
            "--output",
            str(path),
            *options,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_run(path)


def as_other_code(run, name, rows=None):
    """Return the run as if its records, or those at the indices `rows`, had measured other code."""
    records = enumerate(run.records)
    changed = (
        replace(record, source_sha256=name) if rows is None or index in rows else record
        for index, record in records
    )
    return replace(run, records=tuple(changed))


def verdicts(first, second, earlier, rows=slice(None)):
    """Count the verdicts of all rows, or of a slice of them, with the spread of these runs."""
    with patch.object(comparison, "runs_beside", lambda runs: [*runs, *earlier]):
        compared = comparison.compare(first, second, CompareOptions())
    return Counter(row.compared.verdict for row in compared.rows[rows])


def count_pairs(runs):
    """Count the verdicts of all pairs of runs of identical code, for each way to compare."""
    ways = (
        "results compare",
        "statistics, with history",
        "statistics, no history",
        "statistics, other rows",
        "statistics, three runs a side",
    )
    found = {way: Counter() for way in ways}
    for first, second in combinations(runs, 2):
        others = [run for run in runs if run is not first and run is not second]
        pretended = as_other_code(first, "one"), as_other_code(second, "other")
        found["results compare"] += verdicts(first, second, others)
        found["statistics, with history"] += verdicts(*pretended, others)
        found["statistics, no history"] += verdicts(*pretended, [])
        for at in range(len(first.records)):
            pretended = as_other_code(first, "one", {at}), as_other_code(second, "other", {at})
            found["statistics, other rows"] += verdicts(*pretended, [], slice(at, at + 1))
    groups = [
        runs[at : at + PLANTED_RUNS] for at in range(0, len(runs) - PLANTED_RUNS + 1, PLANTED_RUNS)
    ]
    for sides in combinations(groups, 2):
        (*before, first), (*after, second) = (
            [as_other_code(run, name) for run in side]
            for side, name in zip(sides, ("one", "other"), strict=True)
        )
        found["statistics, three runs a side"] += verdicts(first, second, [*before, *after])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="directory for the runs"
    )
    parser.add_argument(
        "--runs", type=int, default=20, help="number of runs of identical code (default: 20)"
    )
    parser.add_argument(
        "--planted",
        type=int,
        default=PLANTED_RUNS,
        help="number of runs of each of the two functions (default: 3)",
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="number of busy background processes (default: 0)"
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.busy)]
    began = time.perf_counter()
    try:
        runs = [
            measure(options.output / f"same{number:02d}.jsonl") for number in range(options.runs)
        ]
        sides = {}
        for number in range(options.planted):
            for name, text in FUNCTIONS.items():
                file = options.output / name / "mine.py"
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
                path = options.output / f"{name}{number}.jsonl"
                sides.setdefault(name, []).append(measure(path, "--provider", f"{file}:matmul"))
    finally:
        for process in busy:
            process.kill()
    rows = []
    for way, counts in count_pairs(runs).items():
        total, false = counts.total(), counts[FASTER] + counts[SLOWER]
        rows.append(
            {
                "code": "identical",
                "by": way,
                "rows": total,
                **counts,
                "false": f"{100 * false / max(total, 1):.2f} %",
            }
        )
    if sides:
        # The path of the file is part of the provider's name, so both sides take the name of the
        # first.
        before, after = (
            [
                replace(
                    run, records=tuple(replace(record, provider="mine") for record in run.records)
                )
                for run in side
            ]
            for side in sides.values()
        )
        counts = verdicts(before[-1], after[-1], [*before[:-1], *after[:-1]])
        rows.append(
            {"code": "25 % more work", "by": "results compare", "rows": counts.total(), **counts}
        )
    columns = ("code", "by", "rows", "SAME", "UNSURE", "FASTER", "SLOWER", "false")
    print(markdown_text([{name: row.get(name, 0) for name in columns} for row in rows], columns))
    print(f"{len(runs)} runs, {options.busy} busy processes, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
