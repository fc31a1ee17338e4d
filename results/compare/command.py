"""python -m results compare: report whether one version is faster than another, from saved
samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from results.compare import profiles
from results.compare.sides import MODES, CompareError, CompareOptions, revisions
from results.compare.turns import rounds_of
from results.record import unix_time
from results.show.options import margin
from results.show.terminal import (
    ADVANCED,
    USAGE,
    Parser,
    add_format,
    add_picture,
    busy,
    print_out,
    say,
)
from results.stats.comparison import DEFAULT_MARGIN, MARGIN_HELP
from results.store.runfile import Run, StoreError, load_run
from results.store.runs import Selection, add_selection, list_runs

EPILOG = """Two runs are rejected if the definition of an op changed between them (`op_sha256`,
which ignores comments): the time may have changed because the op did. --force compares them anyway.
Records of older versions of Roofmark are compared without this check.

examples:
  python -m results compare 20261120T21 latest
  python -m results compare main.jsonl branch.jsonl --margin 2% --format md
  python -m results compare --by git --op matmul
  python -m results compare latest --by provider --baseline torch -o compare.png
  python -m results compare before.jsonl after.jsonl --by category   # of two profiles
"""


def finish(
    text: str,
    runs: Iterable[Run],
    notes: Iterable[str],
    exit_code: int = 0,
    picture: Path | None = None,
) -> int:
    """Print a result, then the notes and problems of its runs; return the exit code, 2 if a run has
    a problem.
    """
    print_out(text)
    if picture is not None:
        say(f"saved: {picture}")
    for note in notes:
        say(f"note: {note}")
    problems = dict.fromkeys(chain.from_iterable(run.problems for run in runs))
    for problem in problems:
        say(problem)
    return USAGE if problems else exit_code


def with_problem(error: CompareError, runs: Iterable[Run]) -> CompareError:
    """Return the error with the first invalid line of the runs, which may be the cause."""
    problems = chain.from_iterable(run.problems for run in runs)
    return CompareError("; ".join([str(error), *problems][:2]))


def add_options(parser: Parser, run_help: str) -> None:
    parser.epilog = EPILOG
    text = f"baseline run: {run_help} (default: latest)"
    parser.add_argument("baseline_run", metavar="A", nargs="?", default="latest", help=text)
    parser.add_argument(
        "candidate_run",
        metavar="B",
        nargs="?",
        help="candidate run; if missing, --by provider or version compares rows of A, and --by git "
        "compares the newest run of the previous revision with A",
    )
    parser.add_argument(
        "--by",
        choices=(*MODES, *profiles.BY),
        help="what distinguishes candidate and baseline (default: the run); of two profiles: the "
        "groups of rows (default: op)",
    )
    text = "baseline for --by provider or version (default: torch, else the first)"
    parser.add_argument("--baseline", metavar="PROVIDER", help=text)
    add_selection(parser, "with `latest`: the newest run")
    text = MARGIN_HELP.replace("%", "%%")
    parser.add_argument("--margin", metavar="FRACTION", type=margin, help=text)
    advanced = parser.group(ADVANCED)
    text = """assumed difference between two runs of the same code (default: estimated from the runs
        of the same code in the same directories); not used for rows that `bench compare`
        interleaved"""
    advanced.add_argument("--drift", type=margin, metavar="SHARE", help=text)
    text = "exit with 1 for SLOWER only, or for UNSURE too (default: slower)"
    advanced.add_argument("--fail-on", choices=("slower", "unsure"), default="slower", help=text)
    text = "compare even if the machine or the definition of the op differs"
    advanced.add_argument("--force", action="store_true", help=text)
    add_format(parser)
    add_picture(parser)


def run(options: argparse.Namespace, directory: Path, chosen: Selection) -> int:
    from results.compare.comparison import compare, nothing_common
    from results.compare.output import as_text, exit_code
    from results.compare.plot import draw
    from results.show.picture import save_picture

    names = (options.baseline_run, options.candidate_run)
    whole = [load_run(chosen.find(name, directory)) for name in names if name is not None]
    if options.by == "git" and options.candidate_run is None:
        whole.insert(0, run_before(whole[0], chosen, directory))
    loaded = list(map(chosen.records_of, whole))
    for each in loaded:
        if not each.records:
            raise StoreError(chosen.nothing_in(each))
    second = loaded[1] if len(loaded) == 2 else None
    if second and (options.by in profiles.BY or loaded[0].environment.profile):
        return compare_profiles(options, loaded[0], second)
    saved = None
    if second is None and options.by in (None, "provider"):
        saved = saved_request(loaded[0])
    saved = saved or CompareOptions(options.by)
    margin = saved.margin if options.margin is None else options.margin
    baseline = options.baseline or saved.baseline
    request = CompareOptions(saved.by, baseline, margin, options.force)
    try:
        compared = compare(loaded[0], second, request, options.drift)
        if not compared.rows:
            raise CompareError(nothing_common(compared.unmatched))
    except CompareError as error:
        raise with_problem(error, loaded) from None
    if options.output is not None:
        with busy("drawing"):
            save_picture(draw(compared, options.theme), options.output)
    text = as_text(compared, options.format, options.fail_on)
    notes = [*chain.from_iterable(each.notes for each in loaded), *compared.notes]
    return finish(text, loaded, notes, exit_code(compared, options.fail_on), options.output)


def run_before(run: Run, chosen: Selection, directory: Path) -> Run:
    """Return the newest earlier run of another revision that has a row of this one.

    Raises:
        CompareError: there is none.
    """
    rows = {record.row for record in chosen.records_of(run).records}
    start = unix_time(run.environment.started_at)
    slug = run.environment.device["slug"]
    for summary in list_runs(directory, counts_records=False):
        if summary.device_slug == slug and summary.started_s < start and chosen.fits(summary):
            earlier = load_run(summary.path)
            found = revisions(earlier, run)
            is_other = found and found[0] != found[1]
            if is_other and not rows.isdisjoint(record.row for record in earlier.records):
                return earlier
    raise CompareError(f"--by git: no earlier run of another revision has rows of {run.path}")


def compare_profiles(options: argparse.Namespace, baseline: Run, candidate: Run) -> int:
    """Print two profiles side by side."""
    for name in ("baseline", "margin", "drift", "output", "force"):
        if getattr(options, name) not in (None, False):
            raise CompareError(f"--{name} has no effect on two profiles: they have no verdict")
    by = options.by or "op"
    if by not in profiles.BY:
        raise CompareError(f"--by {by} has no effect on two profiles; use {', '.join(profiles.BY)}")
    table = profiles.table_of(baseline, candidate, by)
    loaded = (baseline, candidate)
    notes = list(chain.from_iterable(run.notes for run in loaded))
    machines = dict.fromkeys(run.environment.machine.name for run in loaded)
    if len(machines) > 1:
        notes.append(f"the profiles are of two machines: {', '.join(machines)}")
    return finish(table.render(options.format), loaded, notes)


def saved_request(run: Run) -> CompareOptions | None:
    settings = run.environment.settings
    rounds = next(filter(None, map(rounds_of, run.records)), None)
    baseline = settings.get("baseline", rounds and rounds.names[0])
    if baseline is None:
        return None
    return CompareOptions("provider", str(baseline), float(settings.get("margin", DEFAULT_MARGIN)))


def saved_verdicts(run: Run) -> str:
    """Return the table of a saved comparison; empty if the run is not one or has no compared
    rows.
    """
    from results.compare.comparison import compare
    from results.compare.output import as_text

    request = saved_request(run)
    if request is None:
        return ""
    try:
        compared = compare(run, None, request)
    except CompareError:  # the selected records have no baseline
        return ""
    return "\n" + as_text(compared, "table", "slower") if compared.rows else ""
