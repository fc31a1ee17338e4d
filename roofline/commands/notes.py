"""`python -m roofline notes`: claims of the study notes on CS336 lecture 2, each beside the value computed here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from results.show.grid import Column, print_grid
from results.show.terminal import OutputError, drawn, fail, print_out

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("text", "md", "json")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command `notes` to `python -m roofline`."""
    parser = subparsers.add_parser(
        "notes",
        description="Claims of five study notes on CS336 lecture 2: their value, ours, the formula, the verdict.",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; return the exit code, 2 where it cannot be printed."""
    from roofline.hardware.files import GpuFileError

    try:
        print_out({"text": _text, "md": _markdown, "json": _json}[args.format]())
    except (GpuFileError, OutputError) as error:
        return fail("python -m roofline notes", error)
    return 0


def _json() -> str:
    from roofline.accounting.claims.checks import all_claims
    from roofline.accounting.claims.claim import NOTES

    rows = [{"subject": subject} | claim.to_dict() for subject, claims in all_claims() for claim in claims]
    return json.dumps({"notes": NOTES, "claims": rows}, indent=2) + "\n"


def _markdown() -> str:
    from roofline.accounting.claims.checks import all_claims

    lines = ["| notes | claim | theirs | ours | formula | verdict | remark |", "|" + " --- |" * 7]
    for _, claims in all_claims():
        for claim in claims:
            cells = (claim.notes, claim.claim, claim.theirs, claim.ours, claim.formula, claim.verdict, claim.remark)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "".join(f"{line}\n" for line in lines)


def _text() -> str:
    return drawn(_print_tables)


def _print_tables(console: Console) -> None:
    from roofline.accounting.claims.checks import all_claims
    from roofline.accounting.claims.claim import COURSE, NOTES

    def line(text: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    found = all_claims()
    for key, text in NOTES.items():
        line(f"{key}  {text}")
    line(f"the course, CS336, Language Modeling from Scratch, is at {COURSE}")
    for subject, claims in found:
        line()
        columns = [
            Column("notes", [claim.notes for claim in claims], goes_below=4),
            Column(subject, [claim.claim for claim in claims]),
            Column("theirs", [claim.theirs for claim in claims], goes_below=2),
            Column("ours", [claim.ours for claim in claims], goes_below=3),
            Column("formula", [claim.formula for claim in claims], goes_below=1),
            Column("verdict", [claim.verdict for claim in claims]),
        ]
        print_grid(console, columns, [claim.remark for claim in claims], "remark")
    verdicts = [claim.verdict.split()[0] for _, claims in found for claim in claims]
    counts = [f"{verdicts.count(word)} {word}" for word in ("holds", "wrong", "depends")]
    line()
    line(f"{len(verdicts)} claims: {', '.join(counts)}.")
