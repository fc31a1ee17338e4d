"""`python -m roofline page`: saved runs, GPUs of the table, or both, as one HTML page that needs no network."""

from __future__ import annotations

import argparse
from pathlib import Path

from results.compare.selection import add_latest, latest_of
from results.show.terminal import USAGE, fail, one_line, print_out, say
from results.store.runfile import write_output
from roofline.commands.plot import REFUSALS, add_sources, default_dtypes, dtypes_of, load_sources
from roofline.picture.scene import PlotError

SUFFIXES = (".html", ".htm")

DESCRIPTION = """Write one page, in one file: the roofline of runs to zoom and to filter, a table that sorts, the
environment, and what each number and each flag means. It opens from the disk and loads nothing. Several runs are
compared, the first with each of the others."""

EXAMPLES = """examples:
  python -m roofline page latest -o report.html                       the newest run
  python -m roofline page main.jsonl branch.jsonl -o compared.html    two runs with their verdicts
  python -m roofline page latest --estimate infer.json -o report.html an estimate as a layer
  python -m roofline page --gpu h100-sxm,h200-sxm -o gpus.html        datasheet ceilings, no GPU needed
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command `page` to `python -m roofline`."""
    parser = subparsers.add_parser(
        "page",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    add_sources(parser, "dtypes whose roofs are shown at first")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PATH", help="the page: .html")
    text = "a layer: what roofline estimate matmul or infer wrote with --format json; may repeat"
    parser.add_argument("--estimate", action="append", type=Path, default=[], metavar="FILE", help=text)
    add_latest(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page that the arguments ask for; return the exit code, 2 for what cannot be shown, read or written."""
    from roofline.picture.page import MissingExtraError

    try:
        return _page(args)
    except (*REFUSALS, MissingExtraError) as error:
        return fail("python -m roofline page", error)


def _page(args: argparse.Namespace) -> int:
    """Write the page; return the exit code, 2 where a run has bad lines, though its good ones are shown."""
    from roofline.picture.page import check_extra, estimates_of, page_html, verdicts_of

    check_extra()
    if args.output.suffix.lower() not in SUFFIXES:
        shown = one_line(str(args.output), 200)
        raise PlotError(f"cannot tell the format of '{shown}' by its suffix; allowed: {', '.join(SUFFIXES)}")
    dtypes, chosen = dtypes_of(args.dtype), latest_of(args)
    sources = load_sources(args.runs, args.gpu, args.folder, chosen)
    scene = sources.scene(dtypes or default_dtypes(sources))
    verdicts = verdicts_of([run.path for run in sources.runs], chosen.wanted)
    html = page_html(scene, sources.measured, args.title, verdicts, estimates_of(args.estimate))
    write_output(args.output, html.encode("utf-8", "backslashreplace"))
    problems = [problem for run in sources.runs for problem in run.problems]
    for problem in problems:
        say(f"python -m roofline page: {problem}")
    print_out(f"{args.output}\n", kept=f"; the page is in {args.output}")
    return USAGE if problems else 0
