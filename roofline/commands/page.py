"""`python -m roofline page`: saved runs, GPUs or both as one self-contained HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from results.show.terminal import Parser, busy, print_out
from results.store.runfile import write_output
from results.store.runs import LATEST, Selection, add_selection
from roofline.commands.plot import add_sources, default_dtypes, dtypes_of, load_sources
from roofline.picture.build import build_scene
from roofline.picture.scene import PlotError

DESCRIPTION = """Write a self-contained HTML report: a roofline to zoom and filter, a table to sort,
the environment, and the meaning of each number and flag. The first of several runs is compared with
each of the others."""

EXAMPLES = """examples:
  python -m roofline page latest -o report.html                       # the newest run
  python -m roofline page main.jsonl branch.jsonl -o compared.html    # two runs and their verdicts
  python -m roofline page --gpu h100-sxm,h200-sxm -o gpus.html        # datasheet ceilings, no GPU needed
"""  # noqa: E501


def add_options(parser: Parser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add_sources(parser, "dtypes to show")
    parser.group("output").add_argument(
        "-o", "--output", type=Path, required=True, metavar="PATH", help="HTML file"
    )
    add_selection(parser, "with `latest`: the newest run", LATEST)


def run(args: argparse.Namespace) -> int:
    from roofline.picture.page import check_extra, page_html, verdicts_of

    check_extra()
    if args.output.suffix != ".html":
        raise PlotError("the name of a page must end in .html")
    dtypes = dtypes_of(args.dtype)
    chosen = Selection.of(vars(args), LATEST)
    sources = load_sources(args.runs, args.gpu, args.folder, chosen)
    scene = build_scene(sources.measured, sources.gpus, dtypes or default_dtypes(sources))
    verdicts = verdicts_of([run.path for run in sources.runs], chosen)
    with busy("drawing"):
        html = page_html(scene, sources.measured, args.title, verdicts)
    write_output(args.output, html.encode("utf-8", "backslashreplace"))
    print_out(f"{args.output}\n", kept=f"; the page is in {args.output}")
    return sources.exit_code
