"""Outputs of a fleet report: table, JSON, Markdown and Prometheus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.fleet.devices import finite
from results.fleet.judge import GROUP_PARTS, OK, VERDICTS, Finding, change
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

Groups = Mapping[tuple[Any, ...], Sequence[int]]
"""Comparable devices by their `GROUP_PARTS`."""


def document(findings: Sequence[Finding], groups: Groups) -> Object:
    parts = []
    for group, members in groups.items():
        parts.append(dict(zip(GROUP_PARTS, group, strict=True)) | {"peers": len(members)})
    return {
        "devices": [_entry(finding) for finding in findings if finding.device],
        "nodes": [_entry(finding) for finding in findings if finding.is_of_node],
        "fleet": [
            {"node": finding.node, "verdict": finding.verdict, "evidence": finding.evidence}
            for finding in findings
            if not finding.device and not finding.is_of_node
        ],
        "groups": parts,
    }


def _entry(finding: Finding) -> Object:
    device = finding.device
    rule = finding.rule
    entry: Object = {
        "rank": None,
        "node": finding.node,
        "device": None,
        "uuid": None,
        "verdict": finding.verdict,
        "fell": finding.fell,
        "deviation": None,
        "deviation_per_clock": None,
        "ci95": None,
        "drift": _share(finding.drift),
        "cause": None,
        "evidence": finding.evidence,
        "severity": finding.severity,
        "action": None,
    }
    if device:
        entry |= {"rank": device.fleet.rank, "device": device.group[0], "uuid": device.uuid}
    if finding.rows:
        row = finding.rows[0]
        entry["deviation"] = _share(row.deviation)
        entry["deviation_per_clock"] = _share(row.per_clock)
        entry["ci95"] = list(map(_share, row.ends))
    if rule:
        entry |= {"cause": rule.cause, "action": rule.action}
    return entry


def _share(log_ratio: float | None) -> float | None:
    if log_ratio is None or math.isinf(log_ratio):
        return None
    return round(math.expm1(log_ratio), 6)


def _cells(finding: Finding) -> Cells:
    device = finding.device
    rule = finding.rule
    cells = {
        "where": Cell(f"node {finding.node}" if finding.node else "fleet"),
        "device": Cell("", leaves=2),
        "verdict": Cell(finding.verdict),
        "fell": Cell(", ".join(finding.fell)),
        "deviation": Cell(""),
        "95% CI": Cell("", leaves=1),
        "per clock": Cell("", leaves=3),
        "cause": Cell(""),
        "severity": Cell(finding.severity or ""),
        "evidence": Cell("; ".join(finding.evidence)),
    }
    if device:
        cells["where"] = Cell(f"rank {device.fleet.rank} on {finding.node}")
        cells["device"] = Cell(str(device.uuid or device.group[0]), leaves=2)
    if finding.rows:
        row = finding.rows[0]
        cells["deviation"] = Cell(change(row.deviation))
        cells["95% CI"] = Cell(" to ".join(map(change, row.ends)), leaves=1)
        if row.per_clock is not None:
            cells["per clock"] = Cell(change(row.per_clock), leaves=3)
    if rule:
        cells["cause"] = Cell(rule.cause)
        cells["evidence"] = Cell("; ".join([*finding.evidence, rule.action]))
    return cells


def summary(findings: Sequence[Finding], groups: Groups) -> list[str]:
    """Return the counts of verdicts, and the groups of peers."""
    counts = Counter(finding.verdict for finding in findings if finding.device)
    known = [f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict]]
    texts = [", ".join(known) or "no device"]
    slow_nodes = sum(finding.is_of_node for finding in findings)
    if slow_nodes:
        texts[0] += f"; nodes slow as a whole: {slow_nodes:,}"
    for group, members in groups.items():
        parts = zip(GROUP_PARTS, group, strict=True)
        shared = ", ".join(f"{name} {value}" for name, value in parts if value)
        texts.append(f"{len(members):,} peers: {shared}")
    return texts


def as_text(findings: Sequence[Finding], groups: Groups, form: str, shows_all: bool = False) -> str:
    """Return the report as `table`, `json`, `md` or `prometheus`."""
    if form == "prometheus":
        return prometheus(findings)
    rows = [_cells(finding) for finding in findings if shows_all or finding.verdict != OK]
    texts = summary(findings, groups)

    def draw(console: Console) -> None:
        if rows:
            print_cells(console, rows, "evidence", "--format json has all")
        print_lines(console, *map(printable, texts), indent="  ")

    table = Table(
        rows=lambda: texts_of(rows),
        document=lambda: document(findings, groups),
        draw=draw,
        notes=lambda: "".join(f"\n{escaped(text)}\n" for text in texts),
    )
    return table.render(form)


def prometheus(findings: Iterable[Finding]) -> str:
    """Return a file for node_exporter's textfile collector, with the labels of dcgm-exporter."""
    from results.export.openmetrics import Gauge, metrics_text

    verdicts = Gauge("roofmark_fleet_verdict", "1 for the verdict on the device.")
    deviations = Gauge("roofmark_fleet_deviation", "Rate relative to the peers, as a fraction.")
    limits = Gauge("roofmark_fleet_power_limit_watts", "Enforced power limit.", "watts")
    for finding in findings:
        device = finding.device
        if device is None:
            continue
        rank = device.fleet
        labels = {
            "gpu": "" if rank.local_rank is None else str(rank.local_rank),
            "UUID": device.uuid or "",
            "pci_bus_id": rank.pci_bus_id or "",
            "modelName": device.group[0],
            "Hostname": rank.node,
        }
        for verdict in VERDICTS:
            verdicts.add(labels | {"verdict": verdict}, float(finding.verdict == verdict))
        for row in finding.rows:
            metric = row.metric
            own = {"op": metric.op, "dtype": metric.dtype, "case": metric.case, "phase": row.phase}
            deviations.add(labels | own, math.expm1(row.deviation))
        limits.add(labels, finite((rank.health or {}).get("power_limit_w")))
    return metrics_text([verdicts, deviations, limits])
