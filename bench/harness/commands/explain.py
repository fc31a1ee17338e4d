"""`python -m bench explain WORD`: what a flag, a column, a verdict or a bound means, and what to do about it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.cli.arguments import UsageError
from bench.harness.op import Op
from results.show.spelling import did_you_mean, known_as
from results.show.terminal import print_out
from results.show.words import BOUNDS, COLUMNS, FLAGS, ROWS, VERDICTS, Word, lines_about

EPILOG = """\
examples:
  python -m bench explain                 all words
  python -m bench explain not-converged   a flag
  python -m bench explain memory 40%      a row that is memory-bound and reaches 40 % of its ceiling"""


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser = commands.add_parser(
        "explain",
        description="Say what a word of the tables means, what to do about it, and where to read on.\nA bound with the "
        "share of the ceiling that a row reaches (memory 40%) says what\npeople try for such a row.",
        epilog=EPILOG,
    )
    parser.add_argument("words", metavar="WORD", nargs="*", help="a flag, a column, a verdict, or a bound and a share")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Print what the words mean and return the exit code.

    Raises:
        UsageError: there is no such word.
    """
    print_out("\n".join(answer(" ".join(args.words))) + "\n")
    return 0


def answer(asked: str) -> list[str]:
    """Return the lines about a word, or about a bound with a share; all words where nothing is asked for.

    Raises:
        UsageError: there is no such word; the message names the nearest.
    """
    if not asked:
        kinds = {"flags": FLAGS, "columns": COLUMNS, "rows": ROWS, "verdicts": VERDICTS, "bounds": BOUNDS}
        return [f"{kind}: {', '.join(words)}" for kind, words in kinds.items()]
    place, _, share = asked.rpartition(" ")
    if place and share.rstrip("%").replace(".", "", 1).isdecimal():
        bound = known_as(place.removesuffix(" at").removesuffix("-bound"), BOUNDS)
        share_pct = float(share.rstrip("%"))
        if bound not in BOUNDS or not share_pct > 0:
            raise UsageError(f"'{asked}' is no bound with a share above 0; write {' or '.join(BOUNDS)}, as memory 40%")
        return lines_about(bound, share_pct)
    found: list[Word] = [COLUMNS["bound"], BOUNDS[place]] if share == "side" and place in BOUNDS else []
    for words in (FLAGS, COLUMNS, ROWS, VERDICTS, BOUNDS):
        name = known_as(asked.removesuffix("-bound"), words)
        if name in words:
            found.append(words[name])
    if not found:
        hint = (
            did_you_mean(asked, [*FLAGS, *COLUMNS, *ROWS, *VERDICTS, *BOUNDS]) or "`python -m bench explain` lists all"
        )
        raise UsageError(f"unknown word '{asked}'; {hint}")
    return [line for word in found for line in lines_of(word)]


def lines_of(word: Word) -> list[str]:
    """Return an entry, a line for each part that it has."""
    parts = ((f"{word.kind}: ", word.meaning), ("what to do: ", word.advice), ("read on: ", word.source))
    return [f"{title}{text}" for title, text in parts if text]
