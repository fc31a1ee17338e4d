"""How often `python -m bench compare` finds a difference where there is none, and how often it finds one of 5 %.

    python -m bench.validation.false_verdicts --output quiet.jsonl
    python -m bench.validation.false_verdicts --output busy.jsonl --busy 1 --rows 100

A row is a comparison of torch with itself, or with itself and 5 % more work, on one of twelve ops at one of five sizes,
by the same code and in the same process as the rows before it. Each finished row is appended to the file of `--output`;
the same command continues where it was interrupted, and a complete file is only printed again.

A verdict is false where it is FASTER or SLOWER for a row without a difference, by its own interval alone: the
correction for the number of rows of a table would hide some. A row whose provider was disturbed counts like any other.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bench.harness.cli.arguments import number
from bench.harness.cli.session import use_threads
from bench.harness.compare.case import InterleavingRunner
from bench.harness.compare.rounds import Rule
from bench.harness.device.device import detect
from bench.harness.measure.plan import Settings
from bench.harness.measure.plan import plan as planned_rows
from bench.harness.op import Case
from bench.harness.providers.registry import Provider
from results.compare.live import compare_live
from results.record import Environment
from results.show.export import markdown_text
from results.show.terminal import Parser, prepare_streams, say
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE
from results.stats.samples import half_width, median
from roofline.ceilings import Ceilings

OPS = ("copy", "add", "mul", "triad", "relu", "gelu", "silu", "swiglu", "sum", "dot", "softmax", "rmsnorm")
SHAPES = {64: (8, 8), 512: (8, 64), 4096: (64, 64), 65536: (256, 256), 1048576: (1024, 1024)}
"""Elements, and the shape of so many where an op takes a matrix."""

DTYPES = ("fp32", "bf16")
KINDS = ("same", "+5 %")
MORE_WORK = 0.05
MARGIN = 0.01
LEAST_PLANTED = 65536
LONG_LAUNCH_S = 20e-6
"""Launches above it are those whose planted difference must be found; most have so many elements or more."""

PROBED_CALLS = 12
"""Calls from which the time of a function is told: a comparison makes more of them before its rounds."""

BUSY = "while True: sum(range(10_000))"


def rows_of(count):
    """Return what is compared in each row: op after op, then the next size, then the next dtype, then again."""
    cells = [(op, size, dtype) for dtype in DTYPES for size in SHAPES for op in OPS]
    return [(place, *cells[place % len(cells)]) for place in range(count)]


def planted_rows(args):
    """Return the rows with more work: the larger half of the sizes, whose launches are long enough to show it."""
    return [row for row in rows_of(10**4) if row[2] >= LEAST_PLANTED][: args.planted]


class MoreWork:
    """Computes what a function does, and then a loop that takes 5 % of its time on inputs that are not in the cache."""

    def __init__(self, function):
        self._function, self._turns, self._times_s = function, None, []

    def __call__(self, *inputs, out):
        start = time.perf_counter()
        result = self._function(*inputs, out=out)
        if self._turns is None:  # the first calls go round the copies of the inputs, before the rounds begin
            self._times_s.append(time.perf_counter() - start)
            if len(self._times_s) == PROBED_CALLS:
                undisturbed_s = sorted(self._times_s)[PROBED_CALLS // 4]
                self._turns = round(MORE_WORK * undisturbed_s / turn_s())
        else:
            loop(self._turns)
        return result


def loop(turns):
    """Do nothing so many times."""
    for _ in range(turns):
        pass


def turn_s():
    """Return the seconds of one turn of the loop, the least of some."""
    times_s = []
    for _ in range(20):
        start = time.perf_counter()
        loop(10_000)
        times_s.append((time.perf_counter() - start) / 10_000)
    return min(times_s)


def load(name, op, family, device):
    """Return torch's provider, or the one that does 5 % more."""
    return Provider(name, op.eager if name == "torch" else MoreWork(op.eager), takes_out=True)


class Measuring:
    """Measures rows in this process, one after the other."""

    def __init__(self, device, seed, budget_s, rounds=None):
        from bench.__main__ import families
        from bench.harness.measure import plan, runner

        runner.load = load
        plan.unavailable = lambda name, device: None  # not every name here is one of a provider
        self._ops = {op.name: (family, op) for family, ops in families().items() for op in ops}
        self._device, self._seed, self._budget_s, self._rounds = device, seed, budget_s, rounds

    def row(self, place, name, elements, dtype, kind):
        """Return what one comparison found."""
        family, op = self._ops[name]
        extents = SHAPES[elements] if len(op.axes) == 2 else (elements,)
        case = Case(name, dtype, dict(zip(op.axes, extents, strict=True)), {})
        settings = Settings(seed=self._seed + place)
        runner = InterleavingRunner(
            family, self._device, settings, None, None, Ceilings(self._device.slug, self._device.name, [])
        )
        other = "torch" if kind == KINDS[0] else "more-work"
        rows = planned_rows([(op, case)], ["torch", other], self._device, settings)
        began = time.perf_counter()
        rule = Rule(MARGIN, budget_s=self._budget_s, seed=settings.seed, rounds=self._rounds)
        records = runner.measure_case(rows, ["torch", "candidate"], rule)
        environment = Environment(run_id="r", started_at="2026-01-01", argv=(), device=self._device.to_dict())
        found = compare_live(environment, records, "torch", MARGIN)
        if not found.rows:
            raise RuntimeError(f"{name} {elements} {dtype}: {[record.reason for record in records]}")
        compared = found.rows[0].compared
        return {
            "place": place, "op": name, "elements": elements, "dtype": dtype, "kind": kind,
            "verdict": compared.verdict, "ratio": compared.ratio, "ci95": list(compared.ci95),
            "rounds": compared.pairs, "launch_s": records[0].median_s, "reason": compared.reason,
            "launches": [record.launches_per_sample for record in records],
            "flags": sorted({flag for record in records for flag in record.flags}),
            "seconds": time.perf_counter() - began,
        }, records  # fmt: skip


def finished_rows(path, head):
    """Return the rows that a file holds, in the order of their places.

    Raises:
        ValueError: the file is of another seed, machine or version of the code.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    if lines and (kept := json.loads(lines[0])) != json.loads(json.dumps(head)):
        raise ValueError(f"{path} was measured with {kept}, and this is {head}; name another --output")
    rows = []
    for line in lines[1:]:
        try:
            rows.append(json.loads(line))
        except ValueError:  # the line that was being written when the process was killed
            continue
    return rows


def table(rows):
    """Return the verdicts by kind and size in Markdown, with all sizes together last."""
    lines = []
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        groups = [(f"{size:,}", [row for row in of_kind if row["elements"] == size]) for size in SHAPES]
        long = [row for row in of_kind if row["launch_s"] > LONG_LAUNCH_S]
        for name, group in [*groups, ("all", of_kind), ("launch above 20 us", long)]:
            if group:
                lines.append({"difference": kind, "elements": name} | summary(kind, group))
    return markdown_text(lines, tuple(lines[0])) if lines else "no row is finished\n"


def summary(kind, rows):
    """Return the counts of some rows as texts."""
    counts = Counter(row["verdict"] for row in rows)
    right = SAME if kind == KINDS[0] else SLOWER
    false = [FASTER, SLOWER] if kind == KINDS[0] else [FASTER]
    wrong = sum(counts[verdict] for verdict in false)
    widths = [100 * half_width(row["ci95"], row["ratio"]) for row in rows if row["ci95"][1] < math.inf]
    return {
        "rows": str(len(rows)),
        "false": f"{wrong} ({100 * wrong / len(rows):.1f} %)",
        **{verdict: str(counts[verdict]) for verdict in (FASTER, SAME, SLOWER, UNSURE)},
        "found": f"{100 * counts[right] / len(rows):.0f} %",
        "half width": f"±{median(widths):.2g} %" if widths else "",
        "launch": f"{1e6 * median([row['launch_s'] for row in rows]):.3g} us",
        "rounds": f"{median([row['rounds'] for row in rows]):.0f}",
        "seconds": f"{median([row['seconds'] for row in rows]):.2g}",
    }


def parser():
    """Return the parser of the command line."""
    made = Parser(prog="python -m bench.validation.false_verdicts", description=__doc__)
    whole = number(0, 10**6, "a whole number from 0", int)
    made.add_argument("--rows", type=whole, default=500, help="rows without a difference (default: 500)")
    made.add_argument("--planted", type=whole, default=60, help="rows with 5 %% more work (default: 60)")
    made.add_argument("--busy", type=whole, default=0, help="processes that compute all the time beside it")
    made.add_argument("--seed", type=whole, default=0)
    made.add_argument("--budget", type=number(0.01, 1e3, "seconds", float), default=1.0, help="of a row (default: 1)")
    made.add_argument("--minutes", type=number(0, 1e4, "minutes", float), default=1e4, help="stop after so many")
    made.add_argument("--output", metavar="FILE", type=Path, help="keeps each row, and continues what it holds")
    return made


def main(argv=None):
    """Measure what is missing, print the table, and return 0; 130 where it was interrupted."""
    prepare_streams()
    args = parser().parse_args(argv)
    device = detect(None)
    use_threads(device)
    head = {"device": device.name, "seed": args.seed, "budget_s": args.budget, "busy": args.busy}
    try:
        rows = finished_rows(args.output, head)
    except ValueError as error:
        say(f"python -m bench.validation.false_verdicts: error: {error}")
        return 2
    done = {(row["place"], row["kind"]) for row in rows}
    if device.is_gpu and args.planted:
        say("no planted rows: their 5 % more work is the host's, and the times on a GPU are the device's")
        args.planted = 0
    wanted = [(*cell, KINDS[0]) for cell in rows_of(args.rows)] + [(*cell, KINDS[1]) for cell in planted_rows(args)]
    left = [one for one in wanted if (one[0], one[-1]) not in done]
    code, until = 0, time.monotonic() + 60 * args.minutes
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(args.busy if left else 0)]
    try:
        rows += measure(left, args, head, device, until)
    except KeyboardInterrupt:
        code = 130
        rows = finished_rows(args.output, head)
    finally:
        for process in busy:
            process.kill()
    threads = f", {device.threads} threads" if device.threads else ""
    print(f"{device.name}{threads}, seed {args.seed}, {args.busy} busy processes beside it, ", end="")
    print(f"margin {100 * MARGIN:g} %, at most {args.budget:g} s a row\n\n{table(rows)}")
    for row in rows:
        if row["kind"] == KINDS[0] and row["verdict"] in (FASTER, SLOWER):
            print(f"false: {row['op']} {row['elements']} {row['dtype']} {row['verdict']} {row['ratio']:.4f}: ", end="")
            print(f"{row['reason']} ({row['rounds']} rounds; seed {args.seed + row['place']})")
    return code


def measure(left, args, head, device, until):
    """Measure rows until a reading of `time.monotonic`, and return them; each is on disk at once."""
    measuring, found = Measuring(device, args.seed, args.budget), []
    with (args.output or Path(os.devnull)).open("a", encoding="utf-8") as file:
        # A process that was killed may have left half a line.
        print("" if file.tell() else json.dumps(head), file=file, flush=True)
        for count, one in enumerate(left):
            if time.monotonic() > until:
                break
            row, _ = measuring.row(*one)
            found.append(row)
            print(json.dumps(row), file=file, flush=True)
            if count % 20 == 19:
                say(f"{count + 1} of {len(left)} rows")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
