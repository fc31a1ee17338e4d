"""python -m results compare: whether one version is faster than another, from the samples that were kept."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from results.compare.selection import Selection, add_selection
from results.compare.sides import MODES, CompareError, CompareOptions
from results.compare.turns import rounds_of
from results.show.picture import add_picture
from results.show.terminal import ADVANCED, USAGE, Parser, add_format, add_margin, busy, margin, print_out, say
from results.stats.comparison import DEFAULT_MARGIN
from results.store.runfile import Run, StoreError, load_run

EPILOG = """Rows are refused, unless with --force, if the definition of their op changed between the two runs
(`op_sha256`, without comments): the time may have changed because the op did. Records of older versions are compared.

examples:
  python -m results compare 20261120T21 latest
  python -m results compare main.jsonl branch.jsonl --margin 2% --format md
  python -m results compare latest --by provider --baseline torch -o compare.png
"""


def finish(
    text: str, runs: Iterable[Run], notes: Iterable[str], exit_code: int = 0, picture: Path | None = None
) -> int:
    """Print a result, then what must be known of its files; with a line that cannot be used, the exit code is 2."""
    print_out(text)
    if picture is not None:
        say(f"saved: {picture}")
    for note in notes:
        say(f"note: {note}")
    problems = [problem for run in runs for problem in run.problems]
    for problem in problems:
        say(problem)
    return USAGE if problems else exit_code


def add_options(parser: Parser, run_help: str) -> None:
    parser.epilog = EPILOG
    parser.add_argument("baseline_run", metavar="A", help=f"run of the baseline: {run_help}")
    parser.add_argument("candidate_run", metavar="B", nargs="?", help="run of the candidate; without it, A alone")
    parser.add_argument("--by", choices=MODES, help="in what candidate and baseline differ (default: the run)")
    text = "with --by provider or version: what the others are compared with (default: torch, else the first)"
    parser.add_argument("--baseline", metavar="PROVIDER", help=text)
    add_selection(parser, "with `latest`: the newest run")
    add_margin(parser)
    parser.set_defaults(margin=None)  # a saved comparison has its own
    text = """how much two runs of the same code may differ, 0%% for not at all (default: learned from runs of the same
        code, these two and those beside them); rows of `bench compare` are interleaved and need none"""
    advanced = parser.group(ADVANCED)
    advanced.add_argument("--drift", type=margin, metavar="SHARE", help=text)
    text = "which verdict makes the exit code 1 (default: slower)"
    advanced.add_argument("--fail-on", choices=("slower", "unsure"), default="slower", help=text)
    text = "compare although machine, fill, cache or the op's definition (`op_sha256`) differ"
    advanced.add_argument("--force", action="store_true", help=text)
    add_format(parser)
    add_picture(parser)


def run(options: argparse.Namespace, directory: Path) -> int:
    """Compare what the options name, draw it if they name a file, and return the exit code."""
    from results.compare.comparison import compare
    from results.compare.earlier import runs_beside
    from results.compare.output import as_text, exit_code
    from results.compare.plot import draw
    from results.show.picture import check_picture, save_picture

    if options.output is not None:
        check_picture(options.output)
    chosen, names = Selection.of(options), (options.baseline_run, options.candidate_run)
    whole = [load_run(chosen.find(name, directory)) for name in names if name is not None]
    loaded = list(map(chosen.records_of, whole))
    for one in loaded:
        if not one.records:
            raise StoreError(chosen.nothing_in(one))
    second = loaded[1] if len(loaded) == 2 else None
    request = _request(options, loaded[0] if second is None else None)
    earlier = [*runs_beside(whole), *whole] if second and options.drift is None else []
    compared = compare(loaded[0], second, request, options.drift, earlier)
    if options.output is not None:
        with busy("drawing"):
            save_picture(draw(compared, options.theme), options.output)
    text = as_text(compared, options.format, options.fail_on)
    notes = [note for one in loaded for note in one.notes] + list(compared.notes)
    return finish(text, loaded, notes, exit_code(compared, options.fail_on), options.output)


def saved_request(run: Run) -> CompareOptions | None:
    """Return how a saved comparison was compared; None for another run."""
    names = next((one.interleaved["with"] for one in run.records if rounds_of(one)), [None])
    settings = run.environment.settings
    baseline = settings.get("baseline", names[0])
    if baseline is None:
        return None
    return CompareOptions("provider", str(baseline), float(settings.get("margin", DEFAULT_MARGIN)))


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
    saved = saved_request(alone) if alone and options.by in (None, "provider") else None
    saved = saved or CompareOptions(options.by)
    margin = saved.margin if options.margin is None else options.margin
    return CompareOptions(saved.by, options.baseline or saved.baseline, margin, options.force)
