"""The table of the README's first screen, from run files: how the newest Triton version stands against torch.

    python -m bench.validation.first_screen results/published/h100-sxm
    python -m bench.validation.first_screen latest --op matmul,gelu --dtype bf16 --all-cases

Of each op and dtype the case with the most work is shown, by torch, torch-compile and the newest Triton version that
was measured; of rows that stand in several runs the newest. `python -m results show RUN --format md` shows one run as
it is; here are several runs, chosen rows, and the SM clock.
"""

import re
import sys
from pathlib import Path

from bench.__main__ import families
from bench.harness.cli.arguments import add_list
from results.show.export import markdown_text
from results.show.rows import flat_rows
from results.show.table import format_number, format_percent, format_time
from results.show.terminal import Parser, prepare_streams, print_out, say
from results.stats.samples import half_width
from results.store.runfile import StoreError, load_run
from results.store.runs import find_run, runs_directory

COLUMNS = (
    *("op", "dtype", "case", "provider", "median", "95% CI", "TFLOP/s", "GB/s", "MFU", "MBU", "% measured roof"),
    *("bound", "SM clock", "flags"),
)
LIBRARY = ("torch", "torch-compile")
TRITON = re.compile(r"triton-v(\d+)(-autotune)?")


def run_paths(names):
    """Return the run files that are named, those of a folder one by one; other names as `python -m results` has them.

    Raises:
        StoreError: there is no such run.
    """
    found = []
    for name in names:
        path = Path(name)
        found += sorted(path.rglob("*.jsonl")) if path.is_dir() else [find_run(name, runs_directory())]
    return found


def measured_rows(paths, note):
    """Return the rows of ops that have a time, of all runs, newest last; what cannot be read is noted."""
    runs = []
    for path in paths:
        try:
            runs.append(load_run(path))
        except StoreError as error:
            note(str(error))
    runs.sort(key=lambda run: run.environment.started_at)
    rows = [row for run in runs for row in flat_rows(run.environment, run.records, note)]
    ops = {op.name for family in families().values() for op in family}
    timed = [row for row in rows if row["op"] in ops and row["status"] == "ok" and row["median_s"]]
    return [row | {"case": _case(row)} for row in timed]


def _case(row):
    """Return the case, with what else tells two rows of the same extents apart: the layout, the batch."""
    layout, batch = row.get("option_layout"), row.get("option_batch")
    also = [*([layout] if layout not in (None, "nn") else []), *([f"batch {batch}"] if batch not in (None, 1) else [])]
    return " ".join([row["case"], *map(str, also)])


def chosen(rows, ops=None, dtypes=None, all_cases=False):
    """Return the rows to show: of each op and dtype the case with the most providers, then work, each provider once.

    Args:
        rows: newest last.
        ops: only these.
        dtypes: only these.
        all_cases: every case instead.
    """
    wanted = [r for r in rows if r["op"] in (ops or [r["op"]]) and r["dtype"] in (dtypes or [r["dtype"]])]
    newest = {(r["op"], r["dtype"], r["case"], r["cache"], r["fill"], r["provider"]): r for r in wanted}
    found = []
    for op, dtype in dict.fromkeys((r["op"], r["dtype"]) for r in newest.values()):
        of_op = [r for r in newest.values() if (r["op"], r["dtype"]) == (op, dtype)]
        # A case that a comparison measured with all of them tells more than a larger one with torch alone.
        cases = dict.fromkeys(r["case"] for r in of_op)
        sized = sorted(cases, key=lambda case: (-_providers_of(of_op, case), -_work(of_op, case)))
        for case in sized if all_cases else sized[:1]:
            found += _providers([r for r in of_op if r["case"] == case])
    return found


def _providers_of(rows, case):
    """Return how many of the providers to show have measured a case."""
    return len({r["provider"] for r in _providers([r for r in rows if r["case"] == case])})


def _work(rows, case):
    """Return how much a case does: its bytes and FLOPs together grow with every extent."""
    counts = ("flops", "bytes_read", "bytes_written")
    return max(sum(r[count] or 0 for count in counts) for r in rows if r["case"] == case)


def _providers(rows):
    """Return the rows of torch, of torch-compile, and of the newest Triton version."""
    versions = [int(match[1]) for r in rows if (match := TRITON.fullmatch(r["provider"]))]
    newest = {f"triton-v{max(versions)}", f"triton-v{max(versions)}-autotune"} if versions else set()
    shown = [r for r in rows if r["provider"] in {*LIBRARY, *newest}]
    return sorted(shown, key=lambda r: (*LIBRARY, r["provider"]).index(r["provider"]))


def cells(row):
    """Return a row as texts for people; an empty one is not known."""
    low_s, high_s, clock_hz = row["ci95_low_s"], row["ci95_high_s"], row.get("telemetry_sm_clock_hz")
    spread = None if low_s is None else 100 * half_width((low_s, high_s), row["median_s"])
    # Where nothing was published, the roof itself is the measured one.
    share = row["roofline_pct"] if row["peak_kind"] == row["bandwidth_kind"] == "measured" else row["measured_pct"]
    texts = {
        **{name: row[name] for name in ("op", "dtype", "case", "provider")},
        "median": format_time(row["median_s"]),
        "95% CI": None if spread is None else f"±{format_number(spread, 2)}%",
        "TFLOP/s": _scaled(row["flops_per_s"], 1e12),
        "GB/s": _scaled(row["bytes_per_s"], 1e9),
        "MFU": _percent(row["mfu"], 100),
        "MBU": _percent(row["mbu"], 100),
        "% measured roof": _percent(share, 1),
        "bound": row["bound"],
        "SM clock": None if not clock_hz else f"{clock_hz / 1e6:.0f} MHz",
        "flags": row["flags"],
    }
    return {name: text or "" for name, text in texts.items()}


def _scaled(value, scale):
    return None if value is None else format_number(value / scale)


def _percent(value, scale):
    return None if value is None else format_percent(scale * value)


def main(argv=None):
    """Print the table and return the exit code: 0; 2 where there is no such run, or nothing to show."""
    prepare_streams()
    parser = Parser(prog="python -m bench.validation.first_screen", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run files, folders of them, or run ids")
    add_list(parser, "--op", "only these operations")
    add_list(parser, "--dtype", "only these dtypes")
    parser.add_argument("--all-cases", action="store_true", help="every case, not the largest of each op alone")
    args = parser.parse_args(argv)
    try:
        rows = chosen(measured_rows(run_paths(args.runs), say), args.op, args.dtype, args.all_cases)
        if not rows:
            say("python -m bench.validation.first_screen: error: no row with a time is in these runs")
            return 2
        print_out(markdown_text([cells(row) for row in rows], COLUMNS))
    except (StoreError, OSError) as error:
        say(f"python -m bench.validation.first_screen: error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
