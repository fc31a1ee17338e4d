"""Outputs of a fleet report: table, JSON, Markdown, JUnit, Prometheus, plot and exit code."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from results.fleet.judge import GROUP_PARTS, OK, SLOW, UNMEASURED, VERDICTS, Finding, Group, percent
from results.show.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

FORMATS = ("table", "json", "md", "junit", "prometheus")

NAGIOS = {OK: 0, SLOW: 2, UNMEASURED: 3}
"""Exit codes of Nagios plugins; other verdicts are a warning, 1. A slow device goes before an unmeasured one."""


def exit_code(findings: Iterable[Finding], is_nagios: bool = False) -> int:
    verdicts = {finding.verdict for finding in findings} or {UNMEASURED}
    codes = {NAGIOS.get(verdict, 1) for verdict in verdicts}
    if is_nagios:
        return max(codes, key=(0, 1, 3, 2).index)
    return 1 if SLOW in verdicts else 3 if UNMEASURED in verdicts else 0


def document(findings: Sequence[Finding], groups: Sequence[Group]) -> dict[str, Any]:
    largest = max(groups, key=lambda group: len(group.judged), default=None)
    return {
        "devices": [_entry(finding) for finding in findings if finding.device],
        "nodes": [_entry(finding) for finding in findings if not finding.device],
        "groups": [
            dict(zip(GROUP_PARTS, group.key, strict=False))
            | {"devices": len(group.judged), "peers": len(group.members), "widened": group.widened}
            | {"smallest_change": group.smallest_change}
            for group in groups
        ],
        "smallest_change": max(largest.smallest_change.values(), default=None) if largest else None,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    device, row, rule = finding.device, finding.shown, finding.rule
    where = (
        {"rank": device.fleet.rank, "node": finding.node, "device": device.name, "uuid": device.uuid} if device else {}
    )
    return (where or {"node": finding.node, "rack": finding.rack}) | {
        "verdict": finding.verdict,
        "fell": finding.fell,
        "deviation": _ratio(row.deviation if row else None),
        "deviation_per_clock": _ratio(row.per_clock if row else None),
        "ci95": [_ratio(row.low), _ratio(row.high)] if row else None,
        "drift": _ratio(finding.drift),
        "cause": rule.cause if rule else None,
        "evidence": finding.evidence,
        "severity": finding.severity,
        "action": rule.action if rule else None,
        "rows": [
            {"op": r.metric.op, "dtype": r.metric.dtype, "case": r.metric.case, "phase": r.phase}
            | {"deviation": _ratio(r.deviation), "deviation_per_clock": _ratio(r.per_clock)}
            for r in finding.rows
        ],
    }


def _ratio(log_ratio: float | None) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else round(math.expm1(log_ratio), 6)


def lines(findings: Sequence[Finding], groups: Sequence[Group]) -> list[str]:
    """Return the counts of verdicts, the groups, and the smallest change that would be found."""
    counts = Counter(finding.verdict for finding in findings if finding.device)
    texts = [", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict])]
    for group in groups:
        names = ", ".join(f"{name} {value}" for name, value in zip(GROUP_PARTS, group.key, strict=False) if value)
        wider = f", also of another {' and '.join(group.widened)}" if group.widened else ""
        texts.append(f"{len(group.judged):,} devices and {len(group.members) - 1:,} peers each{wider}: {names}")
        if group.smallest_change:
            found = ", ".join(
                f"{100 * change:.1f} % ({name})" for name, change in sorted(group.smallest_change.items())
            )
            texts.append(f"  a device slower than its peers by this much would be found: {found}")
    return texts


def _subject(finding: Finding) -> str:
    if finding.device:
        return f"rank {finding.device.fleet.rank} on {finding.node or 'an unknown node'}"
    return f"rack {finding.rack}" if finding.rack else f"node {finding.node}"


def _cells(finding: Finding) -> dict[str, str]:
    row, rule = finding.shown, finding.rule
    action = f"; {rule.action}" if rule else ""
    return {
        "where": _subject(finding),
        "device": (finding.device.uuid or finding.device.name) if finding.device else "",
        "verdict": finding.verdict,
        "fell": ", ".join(finding.fell),
        "deviation": percent(row.deviation) if row else "",
        "95% CI": f"{percent(row.low)} to {percent(row.high)}" if row else "",
        "per clock": "" if row is None or row.per_clock is None else percent(row.per_clock),
        "cause": rule.cause if rule else "",
        "severity": finding.severity or "",
        "evidence": "; ".join(finding.evidence) + action,
    }


def as_text(findings: Sequence[Finding], groups: Sequence[Group], form: str, shows_all: bool = False) -> str:
    """Return the report in one of `FORMATS`."""
    from results.show.grid import Column, Table, escaped, print_grid, print_lines

    if form in ("junit", "prometheus"):
        return junit(findings) if form == "junit" else prometheus(findings)
    shown = [finding for finding in findings if shows_all or finding.verdict != OK]
    cells = [_cells(finding) for finding in shown]

    def draw(console: Console) -> None:
        if cells:
            sides = {"deviation": "right", "95% CI": "right", "per clock": "right"}
            leaves = {"device": 2, "95% CI": 1, "per clock": 3}
            *titles, notes = cells[0]
            columns = [
                Column(title, [row[title] for row in cells], sides.get(title, "left"), leaves.get(title, 0))  # type: ignore[arg-type]
                for title in titles
            ]
            print_grid(console, columns, [row[notes] for row in cells], notes, "--format json has all")
            print_lines(console, "")
        print_lines(console, *map(printable, lines(findings, groups)), indent="  ")

    columns = list(cells[0]) if cells else ["where", "verdict"]
    table = Table(
        rows=lambda: cells,
        columns=columns,
        document=lambda: document(findings, groups),
        draw=draw,
        notes=lambda: "".join(f"\n{escaped(line)}\n" for line in lines(findings, groups)),
    )
    return table.render(form)


def junit(findings: Sequence[Finding]) -> str:
    """Return a JUnit file: `slow` is a failure, `unmeasured` an error, `suspect` and `unstable` are skipped."""
    elements = {SLOW: "failure", UNMEASURED: "error"}
    counts = Counter(elements.get(finding.verdict, "skipped") for finding in findings if finding.verdict != OK)
    totals = {"failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
    suite = ElementTree.Element("testsuite", name="fleet", tests=str(len(findings)))
    suite.attrib |= {name: str(count) for name, count in totals.items()}
    for finding in findings:
        case = ElementTree.SubElement(
            suite, "testcase", classname=printable(finding.node or ""), name=printable(_subject(finding))
        )
        if finding.verdict != OK:
            cells = _cells(finding)
            texts = [finding.verdict, *(cells[name] for name in ("fell", "deviation", "cause", "evidence"))]
            message = printable(": ".join(filter(None, texts)))
            ElementTree.SubElement(case, elements.get(finding.verdict, "skipped"), message=message)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def prometheus(findings: Sequence[Finding]) -> str:
    """Return a text file for the textfile collector, with the labels of dcgm-exporter."""
    metrics: dict[tuple[str, str], list[str]] = defaultdict(list)
    for finding in findings:
        if not (device := finding.device):
            continue
        rank = device.fleet
        own = {"gpu": rank.local_rank, "UUID": device.uuid, "pci_bus_id": rank.pci_bus_id}
        own |= {"modelName": device.name, "Hostname": rank.node}

        def add(name: str, text: str, value: float, own: Any = own, **labels: Any) -> None:
            pairs = [f'{key}="{_label(value)}"' for key, value in (own | labels).items()]
            metrics[f"ridgepoint_fleet_{name}", text].append(f"{{{','.join(pairs)}}} {value!r}")

        for verdict in VERDICTS:
            add("verdict", "1 for the verdict of the device", float(finding.verdict == verdict), verdict=verdict)
        for row in finding.rows:
            text = "Rate relative to the peers: -0.1 is 10 % slower"
            labels: dict[str, Any] = {
                "op": row.metric.op,
                "dtype": row.metric.dtype,
                "case": row.metric.case,
                "phase": row.phase,
            }
            add("deviation", text, math.expm1(row.deviation), **labels)
        limit = (rank.health or {}).get("power_limit_w")
        if isinstance(limit, int | float):
            add("power_limit_watts", "Enforced power limit", float(limit))
        add("measured_timestamp_seconds", "Start of the measurement", device.started_s)
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n" + "".join(f"{name}{sample}\n" for sample in samples)
        for (name, text), samples in metrics.items()
    )


def _label(value: object) -> str:
    text = "" if value is None else str(value)
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def draw(findings: Sequence[Finding], theme: str = "light") -> Figure:
    """Return a plot of each device's largest slowdown, a column for each node, with names at those not ok."""
    from results.show.picture import AXIS_PT, LABEL_PT, MUTED, frame, new_figure, own_style, plain, tone, write_head

    worst = [(f, f.shown or min(f.rows, key=lambda row: row.deviation)) for f in findings if f.device and f.rows]
    nodes = {node: place for place, node in enumerate(dict.fromkeys(f.node for f, _ in worst))}
    counts = Counter(finding.verdict for finding in findings if finding.device)
    title = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict])
    colors = {OK: MUTED, SLOW: "#D55E00"}
    with own_style(theme):
        figure = new_figure(11, 5)
        top = write_head(figure, plain(title, 200), "largest deviation of each device from its peers, by node", 4.6)
        axes = figure.add_axes((0.08, 0.13, 0.89, top - 0.16))
        frame(axes, "y")
        for verdict in VERDICTS:
            points = [(nodes[f.node], 100 * math.expm1(row.deviation)) for f, row in worst if f.verdict == verdict]
            if points:
                style: dict[str, Any] = {
                    "s": 12 if verdict == OK else 36,
                    "color": tone(colors.get(verdict, "#E69F00")),
                }
                axes.scatter(*zip(*points, strict=True), label=verdict, marker="o" if verdict == OK else "v", **style)
        for finding, row in worst:
            if finding.verdict != OK:
                cause = f", {finding.rule.cause}" if finding.rule else ""
                at = (nodes[finding.node], 100 * math.expm1(row.deviation))
                axes.annotate(plain(f" {_subject(finding)}{cause}"), at, fontsize=LABEL_PT, va="center")
        if len(nodes) <= 16:
            axes.set_xticks(range(len(nodes)), [plain(node or "?", 16) for node in nodes])
        axes.set_xlabel("node", fontsize=AXIS_PT)
        axes.set_ylabel("deviation of the rate (%)", fontsize=AXIS_PT)
    return figure
