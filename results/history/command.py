"""python -m results history: one case over all runs, by date and revision, each compared with the run before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from results.compare.command import Output, add_margin, add_output
from results.compare.selection import add_records, add_runs, wanted_of
from results.history.segments import METRICS, history
from results.store.runfile import StoreError
from results.store.runs import list_runs

EPILOG = """A run is marked if the definition of its op changed since the previous run (`op_sha256`, without
comments): the time may have changed because the op did.

examples:
  python -m results history --op gelu --dtype bf16 --case 67108864 --provider triton-v2
  python -m results history --op matmul --dtype bf16 --case 4096x4096x4096 --metric mfu -o history.png
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `history`."""
    parser.epilog = EPILOG
    add_records(parser)
    add_runs(parser, "only runs")
    parser.add_argument("--metric", choices=tuple(METRICS), default="time", help="what is shown (default: time)")
    add_margin(parser)
    add_output(parser)


def run(options: argparse.Namespace, directory: Path, stdout: TextIO) -> Output:
    """Show the history that the options name, and draw it where they ask for it.

    Raises:
        StoreError: nothing fits or too much does, a folder cannot be read, or the picture cannot be written.
    """
    from results.history.output import as_text
    from results.history.plot import draw
    from results.show.picture import check_picture, save_picture

    if options.output is not None:
        check_picture(options.output)
    runs = [run for run in list_runs(directory, counts_records=False) if run.started_s >= (options.since or 0.0)]
    if not runs:
        since = "" if options.since is None else " since then"
        raise StoreError(f"there is no run in {directory}{since}: python -m bench.matmul makes one")
    series = history(runs, wanted_of(options), options.metric, options.margin, options.gpu)
    if options.output is not None:
        save_picture(draw(series, options.theme), options.output)
    notes = tuple(dict.fromkeys(note for one in series for note in one.notes))
    return Output(as_text(series, options.format, stdout), notes, 0, options.output, series[0].problems)
