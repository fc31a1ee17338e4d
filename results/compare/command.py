"""python -m results compare: whether one version is faster than another, from the samples that were kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.compare.selection import add_records, add_runs, load, nothing_in, wanted_of
from results.compare.sides import MODES, CompareError, CompareOptions
from results.compare.turns import turns_of
from results.show.picture import add_theme
from results.show.terminal import TABLE_FORMATS, margin
from results.stats.comparison import DEFAULT_MARGIN
from results.store.runfile import StoreError

if TYPE_CHECKING:
    from results.store.runfile import Run

EPILOG = """Rows are refused, unless with --force, if the definition of their op changed between the two runs
(`op_sha256`, without comments): the time may have changed because the op did. Records of older versions are compared.

examples:
  python -m results compare 20261120T21 latest
  python -m results compare main.jsonl branch.jsonl --margin 2% --format md
  python -m results compare latest --by provider --baseline torch -o compare.png
"""


@dataclass(frozen=True)
class Output:
    """What a command prints, and what it says beside it."""

    text: str
    notes: tuple[str, ...]
    exit_code: int
    saved: Path | None = None
    """The picture that was written."""
    problems: tuple[str, ...] = ()
    """Lines of the files that could not be used: with any, the exit code is that of a file that cannot be read."""


def add_margin(parser: argparse.ArgumentParser) -> None:
    what = "largest change that does not matter (default: 1%%)"
    parser.add_argument("--margin", type=margin, default=DEFAULT_MARGIN, metavar="SHARE", help=what)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the format of the text and the file of the picture, the one file that these commands write."""
    parser.add_argument("--format", choices=TABLE_FORMATS, default="table", help="(default: table)")
    parser.add_argument("-o", "--output", "--plot", metavar="PICTURE", type=Path, help="draw it: .png, .svg or .pdf")
    add_theme(parser)


def add_options(parser: argparse.ArgumentParser, run_help: str) -> None:
    parser.epilog = EPILOG
    parser.add_argument("baseline_run", metavar="A", help=f"run of the baseline: {run_help}")
    parser.add_argument("candidate_run", metavar="B", nargs="?", help="run of the candidate; without it, A alone")
    parser.add_argument("--by", choices=MODES, help="in what candidate and baseline differ (default: the run)")
    parser.add_argument(
        "--baseline",
        metavar="PROVIDER",
        help="with --by provider or version: what the others are compared with (default: torch, else the first)",
    )
    add_records(parser)
    add_runs(parser, "with `latest`: the newest run")
    add_margin(parser)
    parser.set_defaults(margin=None)  # a saved comparison has its own
    parser.add_argument(
        "--drift",
        type=margin,
        metavar="SHARE",
        help="how much two runs of the same code may differ, 0%% for not at all (default: learned from runs of the "
        "same code, these two and those beside them); rows of `bench compare` are interleaved and need none",
    )
    parser.add_argument(
        "--fail-on",
        choices=("slower", "unsure"),
        default="slower",
        help="which verdict makes the exit code 1 (default: slower)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare although machine, fill, cache or the op's definition (`op_sha256`) differ",
    )
    add_output(parser)


def run(options: argparse.Namespace, find: Callable[[str], Path]) -> Output:
    """Compare what the options name, and draw it where they ask for it."""
    from results.compare.comparison import compare
    from results.compare.earlier import runs_beside
    from results.compare.output import as_text, exit_code
    from results.compare.plot import draw
    from results.show.picture import check_picture, save_picture

    if options.output is not None:
        check_picture(options.output)
    wanted = wanted_of(options)
    paths = [find(name) for name in (options.baseline_run, options.candidate_run) if name is not None]
    whole = [load(path) for path in paths]
    loaded = [wanted.of(run) for run in whole]
    for one in loaded:
        if not one.records:
            raise StoreError(nothing_in(one, wanted))
    second = loaded[1] if len(loaded) == 2 else None
    request = _request(options, loaded[0] if second is None else None)
    earlier = [*runs_beside(whole), *whole] if second and options.drift is None else []
    compared = compare(loaded[0], second, request, options.drift, earlier)
    if options.output is not None:
        save_picture(draw(compared, options.theme), options.output)
    text = as_text(compared, options.format, options.fail_on)
    notes = [note for one in loaded for note in one.notes] + list(compared.notes)
    problems = tuple(problem for one in loaded for problem in one.problems)
    return Output(text, tuple(notes), exit_code(compared, options.fail_on), options.output, problems)


def saved_request(run: Run) -> CompareOptions | None:
    """Return how a saved comparison was compared; None for a run whose rows were not interleaved."""
    names = next((one.interleaved["with"] for one in run.records if turns_of(one)), None)
    if not names:
        return None
    settings = {"baseline": names[0], "margin": DEFAULT_MARGIN} | run.environment.settings
    return CompareOptions("provider", str(settings["baseline"]), float(settings["margin"]))


def saved_verdicts(run: Run) -> str:
    """Return the table of a saved comparison; nothing for a run that is none, or has nothing to compare."""
    from results.compare.comparison import compared_of
    from results.compare.output import as_text

    request = saved_request(run)
    try:
        found = compared_of(run, None, request, None) if request else None
    except CompareError:  # the records that were selected have no baseline
        return ""
    return "\n" + as_text(found, "table", "slower") if found and found.rows else ""


def _request(options: argparse.Namespace, alone: Run | None) -> CompareOptions:
    """Return how to compare: a saved comparison that is compared again has its own baseline and margin as defaults."""
    saved = saved_request(alone) if alone and options.by in (None, "provider") else None
    saved = saved or CompareOptions(options.by)
    margin = saved.margin if options.margin is None else options.margin
    return CompareOptions(saved.by, options.baseline or saved.baseline, margin, options.force)
