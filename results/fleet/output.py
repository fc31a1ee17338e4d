"""Outputs of a fleet report: table, JSON and Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results.fleet.judge import OK, SLOW, VERDICTS, Finding
from results.record import Object
from results.show.grid import (
    Cell,
    Cells,
    Table,
    escaped,
    print_cells,
    print_lines,
    texts_of,
)
from results.show.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console


def _entry(finding: Finding) -> Object:
    device = finding.device
    rule = finding.rule
    row = finding.rows[0] if finding.rows else None
    return {
        "rank": device and device.fleet.rank,
        "node": finding.node,
        "device": device and device.group[0],
        "uuid": device and device.uuid,
        "verdict": finding.verdict,
        "fell": finding.fell,
        "deviation": row and _share(row.rate),
        "deviation_per_clock": row and _share(row.per_clock),
        "ci95": row and list(map(_share, row.ends)),
        "cause": rule and rule.cause,
        "evidence": finding.evidence,
        "severity": finding.severity,
        "action": rule and rule.action,
    }


def _share(log_ratio: float | None) -> float | None:
    if log_ratio is None or math.isinf(log_ratio):
        return None
    return round(math.expm1(log_ratio), 6)


def _cells(entry: Object) -> Cells:
    where = "fleet"
    if entry["node"]:
        where = f"node {entry['node']}"
    if entry["rank"] is not None:
        where = f"rank {entry['rank']} on {entry['node']}"
    evidence = filter(None, [*entry["evidence"], entry["action"]])
    return {
        "where": Cell(where),
        "device": Cell(str(entry["uuid"] or entry["device"] or ""), leaves=2),
        "verdict": Cell(entry["verdict"]),
        "deviation": Cell(_percent(entry["deviation"])),
        "95% CI": Cell(" to ".join(map(_percent, entry["ci95"] or ())), leaves=1),
        "cause": Cell(entry["cause"] or ""),
        "severity": Cell(entry["severity"] or ""),
        "evidence": Cell("; ".join(evidence)),
    }


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.1f} %"


def as_text(findings: Sequence[Finding], form: str, shows_all: bool = False) -> str:
    """Return the report as `table`, `json` or `md`; the table ends with the counts of verdicts."""
    rows = [_cells(_entry(finding)) for finding in findings if shows_all or finding.verdict != OK]
    counts = Counter(finding.verdict for finding in findings if finding.device)
    known = [f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict]]
    text = ", ".join(known) or "no device"

    def draw(console: Console) -> None:
        if rows:
            print_cells(console, rows, "evidence")
        print_lines(console, printable(text), indent="  ")

    table = Table(
        rows=lambda: texts_of(rows),
        document=lambda: document(findings),
        draw=draw,
        notes=lambda: f"\n{escaped(text)}\n",
    )
    return table.render(form)


def document(findings: Sequence[Finding]) -> Object:
    parts: dict[str, list[Object]] = {"devices": [], "nodes": [], "fleet": []}
    for finding in findings:
        part = "fleet"
        if finding.device:
            part = "devices"
        elif finding.verdict == SLOW:
            part = "nodes"
        parts[part].append(_entry(finding))
    return parts
