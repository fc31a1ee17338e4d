"""`python -m bench explain TERM`: the meaning of a flag, column, verdict, bound or term, and what
to do about it.
"""

from __future__ import annotations

import argparse
import re
from itertools import chain
from typing import TYPE_CHECKING

from bench.harness.cli.arguments import UsageError
from results.show.grid import Cell, print_cells
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import Parser, as_typed, drawn, print_out
from results.show.words import BOUNDS, COLUMNS, FLAGS, ROWS, TERMS, VERDICTS, lines_about

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """\
Explain a flag, column, verdict, bound or term: its meaning, what to do about it, and where to read
on. For a bound, MFU or MBU with a percentage (memory 40%, MFU 40%), also say what to try."""

EPILOG = """\
examples:
  python -m bench explain                 # all terms, with their meanings
  python -m bench explain not-converged   # a flag
  python -m bench explain memory 40%      # a memory-bound row at 40 % of its ceiling
  python -m bench explain MFU 40%         # whether that is good, and what to try"""

KINDS = {
    "flags": FLAGS,
    "columns": COLUMNS,
    "rows": ROWS,
    "verdicts": VERDICTS,
    "bounds": BOUNDS,
    "terms": TERMS,
}
ALIASES = {
    "arithmetic intensity": "intensity",
    "ridge point": "ridge",
    "roof": "roofline",
    "memory side": "bound",
    "compute side": "bound",
    "cache side": "bound",
}
UTILIZATIONS = {"MFU": "compute", "MBU": "memory"}
"""Bound whose ceiling a utilization is a fraction of."""


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="flag, column, verdict, bound or term; or a bound, MFU or MBU and a percentage",
    )


def run(args: argparse.Namespace, *_: object) -> int:
    print_out(as_typed("\n".join(answer(" ".join(args.words))) + "\n"))
    return 0


def answer(text: str) -> list[str]:
    """Return the lines about a term, or about a bound with a fraction of its ceiling; the whole
    glossary if no text.
    """
    if not text:
        return drawn(glossary).splitlines()
    text = re.sub("[- ]bound| (?=%)", "", ALIASES.get(text.lower(), text))
    before, _, share = text.rpartition(" ")
    if before and share.rstrip("%").replace(".", "", 1).isdecimal():
        name = known_as(before.removesuffix(" at"), [*BOUNDS, *UTILIZATIONS])
        bound = UTILIZATIONS.get(name, name)
        share_pct = float(share.rstrip("%"))
        if bound not in BOUNDS or not share_pct > 0:
            raise UsageError(
                f"expected a bound ({', '.join(BOUNDS)}), MFU or MBU and a percentage above 0, "
                f"got '{text}'"
            )
        about = lines_about(bound, share_pct)
        return about if name == bound else [*answer(name), *about]
    matches = []
    for words in reversed(KINDS.values()):  # a term or bound before a column of that name
        if (name := known_as(text, words)) in words:
            matches.append(words[name])
    if not matches:
        known = list(chain.from_iterable(KINDS.values()))
        raise UsageError(
            f"unknown term '{text}'; "
            f"{did_you_mean(text, known) or '`python -m bench explain` lists all'}"
        )
    lines = []
    for word in matches:
        texts = {word.kind: word.meaning, "what to do": word.advice, "read on": word.source}
        lines += [f"{title}: {text}" for title, text in texts.items() if text]
    return lines


def glossary(console: Console) -> None:
    console.width = min(console.width, 100)
    for kind, words in KINDS.items():
        rows = [{kind: Cell(name), "meaning": Cell(word.meaning)} for name, word in words.items()]
        print_cells(console, rows, "meaning")
        console.print()
