"""Outputs of a fleet report: table, JSON, Markdown, JUnit, Prometheus, plot and exit code."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from results.fleet.devices import number
from results.fleet.judge import GROUP_PARTS, OK, SLOW, UNMEASURED, VERDICTS, Finding, Group, percent
from results.show.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


def exit_code(findings: Iterable[Finding], is_nagios: bool = False) -> int:
    verdicts = {finding.verdict for finding in findings} or {UNMEASURED}
    slow, other = (2, 1) if is_nagios else (1, 0)
    if SLOW in verdicts:
        return slow
    return 3 if UNMEASURED in verdicts else other * (verdicts != {OK})


def document(findings: Sequence[Finding], groups: Sequence[Group]) -> dict[str, Any]:
    largest = max(groups, key=lambda group: len(group.members) - len(group.only_peers), default=None)
    return {
        "devices": [_entry(finding) for finding in findings if finding.device],
        "nodes": [_entry(finding) for finding in findings if not finding.device],
        "groups": [
            dict(zip(GROUP_PARTS, group.key, strict=False))
            | {
                "devices": len(group.members) - len(group.only_peers),
                "peers": len(group.members),
                "differing": group.differing,
            }
            | {"smallest_change": group.smallest_change}
            for group in groups
        ],
        "smallest_change": max(largest.smallest_change.values(), default=None) if largest else None,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    device, rule = finding.device, finding.rule
    row = finding.rows[0] if finding.rows else None
    values = (row.deviation, row.per_clock, *row.ends) if row else (None,) * 4
    deviation, per_clock, low, high, drift = (
        None if value is None or math.isinf(value) else round(math.expm1(value), 6)
        for value in (*values, finding.drift)
    )
    return {
        "rank": device.fleet.rank if device else None,
        "node": finding.node,
        "rack": finding.rack,
        "device": device.group[0] if device else None,
        "uuid": device.uuid if device else None,
        "verdict": finding.verdict,
        "fell": finding.fell,
        "deviation": deviation,
        "deviation_per_clock": per_clock,
        "ci95": [low, high] if row else None,
        "drift": drift,
        "cause": rule.cause if rule else None,
        "evidence": finding.evidence,
        "severity": finding.severity,
        "action": rule.action if rule else None,
    }


def _cells(finding: Finding) -> dict[str, str]:
    row, rule = finding.rows[0] if finding.rows else None, finding.rule
    where = f"node {finding.node}" if finding.node else f"rack {finding.rack}"
    if finding.device:
        where = f"rank {finding.device.fleet.rank} on {finding.node or 'an unknown node'}"
    return {
        "where": where,
        "device": finding.device.uuid or finding.device.group[0] if finding.device else "",
        "verdict": finding.verdict,
        "fell": ", ".join(finding.fell),
        "deviation": percent(row.deviation) if row else "",
        "95% CI": " to ".join(map(percent, row.ends)) if row else "",
        "per clock": "" if row is None or row.per_clock is None else percent(row.per_clock),
        "cause": rule.cause if rule else "",
        "severity": finding.severity or "",
        "evidence": "; ".join([*finding.evidence, *([rule.action] if rule else [])]),
    }


def _counts(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings if finding.device)
    return ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict]) or "no device"


def summary(findings: Sequence[Finding], groups: Sequence[Group]) -> list[str]:
    """Return the counts of verdicts, the groups of peers, and the smallest slowdowns that would be found."""
    texts = [_counts(findings)]
    for group in groups:
        names = ", ".join(f"{name} {value}" for name, value in zip(GROUP_PARTS, group.key, strict=False) if value)
        wider = f", including others of different {' and '.join(group.differing)}" if group.differing else ""
        texts.append(
            f"{len(group.members) - len(group.only_peers):,} devices among {len(group.members):,} peers{wider}: {names}"
        )
        if group.smallest_change:
            found = ", ".join(
                f"{100 * change:.1f} % in {name}" for name, change in sorted(group.smallest_change.items())
            )
            texts.append(f"a device slower than its peers by this much would be found: {found}")
    return texts


def as_text(findings: Sequence[Finding], groups: Sequence[Group], form: str, shows_all: bool = False) -> str:
    """Return the report as `table`, `json`, `md`, `junit` or `prometheus`."""
    from results.show.grid import Column, Table, escaped, print_grid, print_lines

    if form in ("junit", "prometheus"):
        return junit(findings) if form == "junit" else prometheus(findings)
    cells = [_cells(finding) for finding in findings if shows_all or finding.verdict != OK]
    texts = summary(findings, groups)

    def draw(console: Console) -> None:
        if cells:
            leaves = {"95% CI": 1, "device": 2, "per clock": 3}
            *titles, notes = cells[0]
            columns = [Column(name, [row[name] for row in cells], leaves=leaves.get(name, 0)) for name in titles]
            print_grid(console, columns, [row[notes] for row in cells], notes, "--format json has all")
            print_lines(console, "")
        print_lines(console, *map(printable, texts), indent="  ")

    table = Table(
        rows=lambda: cells,
        document=lambda: document(findings, groups),
        draw=draw,
        notes=lambda: "".join(f"\n{escaped(text)}\n" for text in texts),
    )
    return table.render(form)


def junit(findings: Sequence[Finding]) -> str:
    """Return a JUnit file: `slow` is a failure, `unmeasured` an error; `suspect` and `unstable` are skipped."""
    suite = ElementTree.Element("testsuite", name="fleet", tests=str(len(findings)))
    for finding in findings:
        cells = {name: printable(text) for name, text in _cells(finding).items()}
        case = ElementTree.SubElement(suite, "testcase", classname="fleet", name=cells["where"])
        if finding.verdict != OK:
            kind = {SLOW: "failure", UNMEASURED: "error"}.get(finding.verdict, "skipped")
            message = ": ".join(filter(None, (cells[name] for name in ("fell", "deviation", "cause", "evidence"))))
            ElementTree.SubElement(case, kind, type=finding.verdict, message=message)
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def prometheus(findings: Sequence[Finding]) -> str:
    """Return a file for node_exporter's textfile collector, with the labels of dcgm-exporter."""
    from results.export.openmetrics import label_text

    metrics: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        if not (device := finding.device):
            continue
        rank, about = device.fleet, {"modelName": device.group[0], "Hostname": device.fleet.node}
        gpu = None if rank.local_rank is None else str(rank.local_rank)
        labels = {"gpu": gpu, "UUID": device.uuid, "pci_bus_id": rank.pci_bus_id} | about
        samples = [("verdict", {"verdict": name}, float(finding.verdict == name)) for name in VERDICTS]
        for row in finding.rows:
            own = {"op": row.metric.op, "dtype": row.metric.dtype, "case": row.metric.case, "phase": row.phase}
            samples.append(("deviation", own, math.expm1(row.deviation)))
        if limit_w := number((rank.health or {}).get("power_limit_w")):
            samples.append(("power_limit_watts", {}, limit_w))
        samples.append(("measured_timestamp_seconds", {}, device.started_s))
        for name, own, value in samples:
            texts = {key: text and printable(text) for key, text in (labels | own).items()}
            metrics[f"ridgepoint_fleet_{name}"].append(f"{{{label_text(texts)}}} {value!r}\n")
    parts = ((name, f"# TYPE {name} gauge\n", samples) for name, samples in metrics.items())
    return "".join(head + "".join(f"{name}{sample}" for sample in samples) for name, head, samples in parts)


def draw(findings: Sequence[Finding], theme: str = "light") -> Figure:
    """Return a plot of the largest slowdown of each device, a column for each node, with names at those not ok."""
    from results.show.picture import (
        AXIS_PT,
        LABEL_PT,
        LEGEND_PT,
        MUTED,
        frame,
        new_figure,
        own_style,
        plain,
        tone,
        write_head,
    )

    measured = [finding for finding in findings if finding.device and finding.rows]
    nodes = {node: index for index, node in enumerate(dict.fromkeys(finding.node for finding in measured))}
    with own_style(theme):
        figure = new_figure(11, 5)
        top = write_head(figure, _counts(findings), "largest deviation of each device from its peers, by node", 4.6)
        axes = figure.add_axes((0.08, 0.13, 0.89, top - 0.16))
        frame(axes, "y")
        for verdict, color in zip(VERDICTS, (MUTED, "#D55E00", "#E69F00", "#CC79A7"), strict=False):
            chosen = [finding for finding in measured if finding.verdict == verdict]
            points = [(nodes[finding.node], 100 * math.expm1(finding.rows[0].deviation)) for finding in chosen]
            if points:
                marker, size = ("o", 12) if verdict == OK else ("v", 40)
                xs, ys = zip(*points, strict=True)
                axes.scatter(xs, ys, size, color=tone(color), marker=marker, label=verdict)
            for finding, point in zip(chosen if verdict != OK else (), points, strict=False):
                cells = _cells(finding)
                axes.annotate(plain(f"  {cells['where']}  {cells['cause']}"), point, fontsize=LABEL_PT, va="center")
        axes.set_xticks([])
        axes.set_xlabel(f"{len(nodes):,} nodes", fontsize=AXIS_PT)
        axes.set_ylabel("deviation of the rate (%)", fontsize=AXIS_PT)
        axes.legend(fontsize=LEGEND_PT, frameon=False, loc="lower left")
    return figure
