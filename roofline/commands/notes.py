"""`python -m roofline notes`: claims of the study notes on CS336 lecture 2, each beside the value computed here."""

from __future__ import annotations

import argparse
import json

from results.show.terminal import OutputError, fail, print_out

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
    from roofline.accounting.claims.checks import all_claims
    from roofline.accounting.claims.claim import NOTES
    from roofline.commands.estimate_text import columns_text

    found = all_claims()
    lines = [*(f"{key}  {text}" for key, text in NOTES.items()), ""]
    for subject, claims in found:
        rows = [[c.notes, c.claim, c.theirs, c.ours, c.formula, c.verdict] for c in claims]
        lines += columns_text([["notes", subject, "theirs", "ours", "formula", "verdict"], *rows], left=6)
        lines += [f"  {claim.claim}: {claim.remark}" for claim in claims if claim.remark]
        lines.append("")
    verdicts = [claim.verdict.split()[0] for _, claims in found for claim in claims]
    counts = [f"{verdicts.count(word)} {word}" for word in ("holds", "wrong", "depends")]
    lines.append(f"{len(verdicts)} claims: {', '.join(counts)}.")
    return "".join(f"{line}\n" for line in lines)
