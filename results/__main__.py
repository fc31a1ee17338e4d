"""python -m results: list, show, export and compare saved runs."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from results.compare import command as compare_command
from results.show.grid import Table
from results.show.table import describe, render_runs, render_table, table_of_run
from results.show.terminal import (
    ADVANCED,
    INTERRUPTED,
    TABLE_FORMATS,
    OutputError,
    Parser,
    add_format,
    drawn,
    fail,
    prepare_streams,
    print_out,
    reason_of,
    say,
)
from results.store.runfile import Run, StoreError, load_run, runs_directory, write_output
from results.store.runs import NAMED, Selection, add_selection, list_runs

Command = Callable[[argparse.Namespace, Path, Selection], int]
"""Runs a command with its options, the directory of the runs, and those selected."""

SINKS = ("bmf", "github-benchmark", "junit", "openmetrics")
FORMATS = (*TABLE_FORMATS[1:], *SINKS)

LIST_COLUMNS = ("run_id", "started_at", "device_slug", "op", "records", "command", "path", "error")
COMMANDS = {
    "list": "list saved runs, newest first",
    "show": "print a run: its machine, and a row for each measurement",
    "export": "write a run as a table, or in the format of a tool that tracks benchmarks",
    "compare": "report whether one version is faster than another, with a verdict for each row",
    "history": "show how the time of a case changed from run to run",
}

RUN_HELP = "path, run id or its unique start, git revision, or `latest[~N][:OP]`"

EXAMPLES = """examples:
  python -m results list --op gelu --since 2d
  python -m results show latest --provider triton-v2 -v
  python -m results compare 20261120T21 latest --margin 2%
  python -m results history --op matmul --dtype bf16 --case 4096x4096x4096
  python -m results export latest --format csv -o run.csv
  python -m results export latest --format junit --baseline main.jsonl -o junit.xml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 invalid value or a file with bad lines,
    130 interrupted.
    """
    options = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    command: Command = options.command
    prog = f"python -m results {options.name}"
    try:
        directory = getattr(options, "runs", None)
        if directory is not None and not directory.is_dir():
            raise StoreError(f"--runs {directory}: no such directory")
        return command(options, directory or runs_directory(), Selection.of(vars(options)))
    except (StoreError, OutputError) as error:
        return fail(prog, error)
    except OSError as error:
        return fail(prog, f"cannot write the output: {reason_of(error)}")
    except KeyboardInterrupt:
        say(f"{prog}: interrupted")
        return INTERRUPTED


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of all commands, with the options of those that `words` name."""
    shared = Parser(add_help=False)
    text = (
        "directory of the runs (default: $ROOFMARK_RUNS; else results/runs of a clone, or the "
        "user's data directory)"
    )
    shared.group(ADVANCED).add_argument(
        "--runs", type=Path, metavar="DIR", default=argparse.SUPPRESS, help=text
    )
    description = "List, show, export and compare saved runs."
    parser = Parser(
        prog="python -m results", description=description, epilog=EXAMPLES, parents=[shared]
    )
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, parents=[shared], help=summary, description=f"{summary.capitalize()}."
        )
        if name in words:
            command.set_defaults(command=_add_options(name, command))
    return parser


def _add_options(name: str, parser: Parser) -> Command:
    """Add the options of a command, and return what runs it."""
    if name == "compare":
        compare_command.add_options(parser, RUN_HELP)
        return compare_command.run
    if name == "history":
        from results import history

        history.add_options(parser)
        return history.run
    if name == "list":
        add_selection(parser, "list only runs")
        add_format(parser)
        return _list
    if name == "show":
        text = "also print how each row was timed and why it is flagged, and all rows of a profile"
        parser.add_argument("-v", "--verbose", action="store_true", help=text)
        parser.add_argument("run", metavar="RUN", help=RUN_HELP)
        add_selection(parser, "with `latest`: the newest run")
        add_format(parser)
        return _show
    text = f"{RUN_HELP} (default: latest)"
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest", help=text)
    text = "run to compare with; with --format junit, SLOWER is a failure and UNSURE is skipped"
    parser.add_argument("--baseline", metavar="RUN", help=text)
    output = parser.group("output")
    output.add_argument(
        "--format", choices=FORMATS, help="output format (default: by the suffix of --output)"
    )
    text = "file to write; an existing file is replaced (default: stdout)"
    output.add_argument("-o", "--output", metavar="PATH", help=text)
    add_selection(parser, "with `latest`: the newest run")
    return _export


def _list(options: argparse.Namespace, directory: Path, chosen: Selection) -> int:
    runs = list_runs(directory)
    if not runs:
        say(f"no run in {directory} yet: python -m bench.matmul makes one")
    elif not chosen.is_everything:
        runs = [run for run in runs if run.error is None and chosen.fits(run)]
        if not runs:
            say(f"no run in {directory} matches {NAMED}, --machine and --since")
    rows = []
    for run in runs:
        rows.append({name: getattr(run, name) for name in LIST_COLUMNS} | {"path": str(run.path)})
    draw = partial(render_runs, runs) if runs else None
    print_out(Table(rows=lambda: rows, columns=LIST_COLUMNS, draw=draw).render(options.format))
    return 0


def _show(options: argparse.Namespace, directory: Path, chosen: Selection) -> int:
    run = chosen.load(options.run, directory)
    if options.format != "table":
        return _finish(table_of_run(run.environment, run.records).render(options.format), run)
    # A sentence about the step needs all its rows.
    is_profile = run.environment.profile is not None and not chosen.has_names
    draw = render_table
    if is_profile:
        from results.show.profile import render

        draw = partial(render, is_whole=options.verbose)
    print_out(drawn(lambda console: draw(run.environment, run.records, console)))
    print_out(compare_command.saved_verdicts(run))
    if options.verbose and not is_profile:
        for record in run.records:
            for line in describe(record):
                say(line)
    return _finish("", run)


def _export(options: argparse.Namespace, directory: Path, chosen: Selection) -> int:
    if options.output == "":
        raise StoreError("--output is empty; name a file")
    is_file = options.output not in (None, "-")
    form = options.format or Path(options.output or "").suffix[1:]
    if form not in FORMATS:
        raise StoreError(f"expected --format, or --output with a suffix, of {', '.join(FORMATS)}")
    if is_file and options.output.endswith(os.sep):
        raise StoreError(f"--output {options.output} names a directory; name a file in it")
    if options.baseline is not None and form != "junit":
        raise StoreError("--baseline requires --format junit")
    run = chosen.load(options.run, directory)
    baseline = None
    if options.baseline is not None:
        baseline = load_run(chosen.find(options.baseline, directory))
        run = replace(run, problems=(*run.problems, *baseline.problems))
    if form == "junit":
        from results.export import junit

        text = junit.render(run, baseline, chosen)
    elif form in SINKS:
        text = _for_tracker(form, run)
    else:
        text = table_of_run(run.environment, run.records).render(form)
    if is_file:
        write_output(Path(options.output), text.encode("utf-8"))
        say(f"saved: {options.output}: {len(run.records)} records of run {run.environment.run_id}")
    return _finish("" if is_file else text, run)


def _for_tracker(form: str, run: Run) -> str:
    from results.export import bmf, github_benchmark, openmetrics
    from results.export.rows import rows_of

    trackers = {
        "bmf": bmf.render,
        "github-benchmark": github_benchmark.render,
        "openmetrics": openmetrics.render,
    }
    rows = rows_of(run)
    measured = [row for row in rows if row.record.status == "ok"]
    count = len(rows) - len(measured)
    if count:
        say(f"note: {count:,} of {len(rows):,} rows have no time and are left out")
    return trackers[form](run, measured)


def _finish(text: str, run: Run) -> int:
    empty = [] if run.records or run.problems else [f"{run.path} has no record"]
    return compare_command.finish(text, [run], [*empty, *run.notes])


if __name__ == "__main__":
    prepare_streams()
    # A search for cycles among thousands of records takes a tenth of the time, and there are none.
    gc.disable()
    sys.exit(main())
