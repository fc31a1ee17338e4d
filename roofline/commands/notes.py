"""`python -m roofline notes`: claims of study notes on CS336 lecture 2, compared with the values
computed here.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from results.record import Object
from results.show.facts import facts_of
from results.show.grid import Cell, Row, Table, print_cells, print_lines
from results.show.options import add_format
from results.show.terminal import OK, Parser, print_out

if TYPE_CHECKING:
    from rich.console import Console

FILE = Path(__file__).parents[1] / "accounting" / "notes.toml"
SECTIONS = ("Memory", "Compute", "Roofline", "Training", "State", "Parallel work")
"""Subjects of the claims, in the order of the lecture."""
VERDICTS = ("holds", "wrong", "depends")
"""First word of each verdict."""
KEYS = ("subject", "notes", "claim", "theirs", "ours", "formula", "verdict", "remark", "command")

COLUMNS = {
    "notes": 5,
    "claim": 0,
    "theirs": 3,
    "ours": 4,
    "formula": 2,
    "verdict": 0,
    "command": 1,
}
"""Columns of the table, with the turn in which each leaves a narrow terminal; 0: never."""


def add_options(parser: Parser) -> None:
    parser.description = (
        "Compare claims of five study notes on CS336 lecture 2 with the values computed here."
    )
    add_format(parser)


def run(args: argparse.Namespace) -> int:
    document = load_notes()
    claims = document["claims"]

    def draw(console: Console) -> None:
        print_lines(console, *(f"{key}  {text}" for key, text in document["notes"].items()))
        print_lines(console, f"CS336, Language Modeling from Scratch: {document['course']}")
        print_by_subject(console, claims, "subject", COLUMNS, "claim")
        print_lines(console, f"{len(claims)} claims: {verdict_counts(claims)}.")

    table = Table(
        rows=lambda: claims,
        cells=lambda: [{key: Cell(claim[key]) for key in KEYS[1:]} for claim in claims],
        document=lambda: {"notes": document["notes"], "claims": claims},
        draw=draw,
    )
    print_out(table.render(args.format))
    return OK


def load_notes() -> Object:
    """Return `course` (URL), `notes` (titles by key) and `claims`.

    A claim has `KEYS`, and the `unit` of what `python -m bench lecture` measures.
    """
    document = facts_of(FILE)
    claims = []
    for index, subject in enumerate(SECTIONS, 1):
        for claim in document.pop(subject):
            commands = [f"python -m roofline {command}" for command in claim["commands"]]
            commands = commands or [f"python -m bench lecture --section {index}"]
            claim |= {"subject": subject, "command": "; ".join(commands)}
            claims.append({key: claim.get(key, "") for key in (*KEYS, "unit")})
    return document | {"claims": claims}


def print_by_subject(
    console: Console,
    rows: Sequence[Row],
    key: str,
    columns: Mapping[str, int],
    titled: str,
) -> None:
    """Print a table for each value of `key`, which is the title of the column `titled`."""
    print_lines(console, "")
    for subject in dict.fromkeys(row[key] for row in rows):
        cells = []
        for row in rows:
            if row[key] == subject:
                shown = {
                    subject if name == titled else name: Cell(row[name], leaves=turn)
                    for name, turn in columns.items()
                }
                cells.append(shown | {"remark": Cell(row["remark"])})
        print_cells(console, cells, "remark")
        print_lines(console, "")


def verdict_counts(claims: Sequence[Row]) -> str:
    """Return such as "56 holds, 30 wrong, 1 depends"."""
    counts = Counter(claim["verdict"].split()[0] for claim in claims)
    return ", ".join(f"{counts[word]} {word}" for word in VERDICTS)
