"""Outputs of a fleet report: table, JSON, CSV and Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from results.fleet.judge import OK, SLOW, VERDICTS, Finding
from results.record import Object
from results.show.grid import (
    Cell,
    Cells,
    Table,
    flat,
)


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
        "ci95": row and [_share(row.rate - row.below), _share(row.rate + row.above)],
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
    """Return the report in one of `TABLE_FORMATS`; above the table are the counts of verdicts."""
    parts: dict[str, list[Object]] = {"devices": [], "nodes": [], "fleet": []}
    shown = []
    for finding in findings:
        part = "fleet"
        if finding.device:
            part = "devices"
        elif finding.verdict == SLOW:
            part = "nodes"
        entry = _entry(finding)
        parts[part].append(entry)
        if shows_all or finding.verdict != OK:
            shown.append(entry)
    counts = Counter(entry["verdict"] for entry in parts["devices"])
    known = [f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict]]
    table = Table(
        rows=lambda: list(map(flat, shown)),
        cells=lambda: list(map(_cells, shown)),
        notes_title="evidence",
        title=", ".join(known) or "no device",
        document=lambda: parts,
    )
    return table.render(form)
