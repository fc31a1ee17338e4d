"""`python -m bench explain WORD`: what a flag, a column, a verdict or a bound means, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.cli.arguments import UsageError
from bench.harness.op import Op
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import print_out
from results.show.words import BOUNDS, COLUMNS, FLAGS, ROWS, VERDICTS, lines_about

DESCRIPTION = """\
Say what a word of the tables means, what to do about it, and where to read on.
A bound with the share of the ceiling that a row reaches (memory 40%) says what
people try for such a row."""

EPILOG = """\
examples:
  python -m bench explain                 all words
  python -m bench explain not-converged   a flag
  python -m bench explain memory 40%      a row that is memory-bound and reaches 40 % of its ceiling"""

KINDS = {"flags": FLAGS, "columns": COLUMNS, "rows": ROWS, "verdicts": VERDICTS, "bounds": BOUNDS}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("explain", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("words", metavar="WORD", nargs="*", help="a flag, a column, a verdict, or a bound and a share")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    print_out("\n".join(answer(" ".join(args.words))) + "\n")
    return 0


def answer(text: str) -> list[str]:
    """Return the lines about a word, or about a bound with a share; all words if there is no text."""
    if not text:
        return [f"{kind}: {', '.join(words)}" for kind, words in KINDS.items()]
    before, _, share = text.rpartition(" ")
    if before and share.rstrip("%").replace(".", "", 1).isdecimal():
        bound = known_as(before.removesuffix(" at").removesuffix("-bound"), BOUNDS)
        share_pct = float(share.rstrip("%"))
        if bound not in BOUNDS or not share_pct > 0:
            raise UsageError(f"'{text}' is no bound with a share above 0; write {' or '.join(BOUNDS)}, as memory 40%")
        return lines_about(bound, share_pct)
    found = [COLUMNS["bound"], BOUNDS[before]] if share == "side" and before in BOUNDS else []
    for words in KINDS.values():
        if (name := known_as(text.removesuffix("-bound"), words)) in words:
            found.append(words[name])
    if not found:
        known = [word for words in KINDS.values() for word in words]
        raise UsageError(f"unknown word '{text}'; {did_you_mean(text, known) or '`python -m bench explain` lists all'}")
    parts = [
        part
        for word in found
        for part in ((f"{word.kind}: ", word.meaning), ("what to do: ", word.advice), ("read on: ", word.source))
    ]
    return [f"{title}{text}" for title, text in parts if text]
