"""Count false verdicts of `bench.compare` for equal functions, and detected differences of 5 %.

    python -m tests.validation.false_verdicts --output quiet.jsonl
    python -m tests.validation.false_verdicts --rows 100 --busy 1

A row compares a torch function with itself, or with itself plus 5 % more work. Its verdict is false
if it is FASTER or SLOWER without a difference, or FASTER with more work. Finished rows are appended
to --output. Rows already in the file with the same device, seed, load and budget are not measured
again.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional

import bench
from results.show.grid import markdown_text
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE

OPS = {
    "copy": (torch.clone, 1),
    "add": (torch.add, 2),
    "mul": (torch.mul, 2),
    "triad": (lambda a, b: torch.add(a, b, alpha=3), 2),
    "relu": (torch.relu, 1),
    "gelu": (functional.gelu, 1),
    "silu": (functional.silu, 1),
    "swiglu": (lambda a, b: functional.silu(a) * b, 2),
    "sum": (torch.sum, 1),
    "dot": (lambda a, b: torch.dot(a.view(-1), b.view(-1)), 2),
    "softmax": (lambda x: x.softmax(-1), 1),
    "rmsnorm": (lambda x: functional.rms_norm(x, x.shape[-1:]), 1),
}
"""Functions and their argument counts by name."""

SHAPES = ((8, 8), (8, 64), (64, 64), (256, 256), (1024, 1024))
PLANTED_SHAPES = SHAPES[-2:]
"""Shapes whose launches are long enough to detect 5 %."""

DTYPES = (torch.float32, torch.bfloat16)
SAME_WORK, MORE_WORK = "same", "+5 %"
EXTRA = 0.05
BUSY = "while True: sum(range(10_000))"


@dataclass(frozen=True)
class Row:
    index: int
    op: str
    shape: tuple[int, int]
    dtype: torch.dtype
    kind: str


def rows_of(kind, count, shapes):
    """Return `count` rows in turn: all ops of a shape, then the next shape, then the next dtype."""
    cells = [(op, shape, dtype) for dtype in DTYPES for shape in shapes for op in OPS]
    return [Row(index, *cells[index % len(cells)], kind) for index in range(count)]


def with_more_work(function, arguments):
    """Return a function that also loops on the host for 5 % of its time."""

    def loop(turns):
        for _ in range(turns):
            pass

    turn_s = bench.do_bench(lambda: loop(10_000), return_mode="min", rep=20) / 1e3 / 10_000
    turns = round(
        EXTRA * bench.do_bench(lambda: function(*arguments), return_mode="median") / 1e3 / turn_s
    )

    def more_work(*arguments):
        result = function(*arguments)
        loop(turns)
        return result

    return more_work


def measured(row, device, seed, budget_s):
    """Return the saved fields of one comparison."""
    function, count = OPS[row.op]
    torch.manual_seed(seed + row.index)
    arguments = [torch.rand(row.shape).to(device, row.dtype) for _ in range(count)]
    other = function if row.kind == SAME_WORK else with_more_work(function, arguments)
    began = time.perf_counter()
    verdicts = bench.compare(
        {"torch": function, "candidate": other},
        *arguments,
        budget_s=budget_s,
        seed=seed + row.index,
    )
    found = verdicts.rows["candidate"]
    return {
        "index": row.index,
        "op": row.op,
        "elements": math.prod(row.shape),
        "dtype": str(row.dtype),
        "kind": row.kind,
        "verdict": found.compared.verdict,
        "ratio": found.ratio,
        "ci95": found.ci95,
        "is_bound": bool(found.compared.bound),
        "reason": found.reason,
        "launch_s": verdicts.records[0].median_s,
        "seconds": time.perf_counter() - began,
    }


def table(rows):
    """Return the verdicts by kind and number of elements as Markdown."""
    lines = []
    for kind, right, wrong in ((SAME_WORK, SAME, (FASTER, SLOWER)), (MORE_WORK, SLOWER, (FASTER,))):
        of_kind = [row for row in rows if row["kind"] == kind]
        sizes = [math.prod(shape) for shape in SHAPES]
        groups = {
            f"{size:,}": [row for row in of_kind if row["elements"] == size] for size in sizes
        }
        for name, group in {**groups, "all": of_kind}.items():
            counts = Counter(row["verdict"] for row in group)
            if group:
                lines.append(
                    {
                        "difference": kind,
                        "elements": name,
                        "rows": len(group),
                        "right": counts[right],
                        "false": sum(counts[verdict] for verdict in wrong),
                        "UNSURE": counts[UNSURE],
                        "launch": f"{1e6 * median([row['launch_s'] for row in group]):.3g} us",
                        "seconds": f"{median([row['seconds'] for row in group]):.2g}",
                    }
                )
    return markdown_text(lines, ())


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=500, help="number of rows without a difference (default: 500)"
    )
    parser.add_argument(
        "--planted",
        type=int,
        default=60,
        help="number of rows with 5 %% more work, CPU only (default: 60)",
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="number of busy background processes (default: 0)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed for inputs and round order (default: 0)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=1.0,
        help="time limit for the rounds of a row, in seconds (default: 1)",
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="append rows to this JSON Lines file"
    )
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # GPU times do not include the extra work on the host.
    planted = 0 if device == "cuda" else args.planted
    wanted = [*rows_of(SAME_WORK, args.rows, SHAPES), *rows_of(MORE_WORK, planted, PLANTED_SHAPES)]
    setting = {"device": device, "seed": args.seed, "busy": args.busy, "budget_s": args.budget}
    lines = args.output.read_text().splitlines() if args.output and args.output.exists() else []
    rows = [row for row in map(json.loads, lines) if row.items() >= setting.items()]
    done = {(row["index"], row["kind"]) for row in rows}
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(args.busy)]
    try:
        for row in (row for row in wanted if (row.index, row.kind) not in done):
            rows.append(measured(row, device, args.seed, args.budget) | setting)
            if args.output:
                with args.output.open("a") as file:
                    print(json.dumps(rows[-1]), file=file)
    finally:
        for process in busy:
            process.kill()
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
