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

MAX_NAMES = 40
"""Maximum number of devices with a name in the plot."""


def exit_code(findings: Iterable[Finding], is_nagios: bool = False) -> int:
    verdicts = {finding.verdict for finding in findings} or {UNMEASURED}
    if SLOW in verdicts:
        return 2 if is_nagios else 1
    return 3 if UNMEASURED in verdicts else int(is_nagios and verdicts != {OK})


def document(findings: Sequence[Finding], groups: Sequence[Group]) -> dict[str, Any]:
    largest = max(groups, key=lambda group: len(group.members), default=None)
    return {
        "devices": [_entry(finding) for finding in findings if finding.device],
        "nodes": [_entry(finding) for finding in findings if not finding.device],
        "groups": [
            dict(zip(GROUP_PARTS, group.key, strict=False))
            | {
                "peers": len(group.members),
                "only_peers": len(group.only_peers),
                "ignored": group.ignored,
                "smallest_change": group.smallest_change,
            }
            for group in groups
        ],
        "smallest_change": max(largest.smallest_change.values(), default=None) if largest else None,
    }


def _entry(finding: Finding) -> dict[str, Any]:
    device = finding.device
    rule = finding.rule
    row = finding.rows[0] if finding.rows else None
    return {
        "rank": device.fleet.rank if device else None,
        "node": finding.node,
        "rack": finding.rack,
        "device": device.group[0] if device else None,
        "uuid": device.uuid if device else None,
        "verdict": finding.verdict,
        "fell": finding.fell,
        "deviation": _change(row.deviation) if row else None,
        "deviation_per_clock": _change(row.per_clock) if row else None,
        "ci95": list(map(_change, row.ends)) if row else None,
        "drift": _change(finding.drift),
        "cause": rule.cause if rule else None,
        "evidence": finding.evidence,
        "severity": finding.severity,
        "action": rule.action if rule else None,
    }


def _change(log_ratio: float | None) -> float | None:
    if log_ratio is None or math.isinf(log_ratio):
        return None
    return round(math.expm1(log_ratio), 6)


def _cells(finding: Finding) -> dict[str, str]:
    entry = _entry(finding)
    row = finding.rows[0] if finding.rows else None
    if finding.device:
        where = f"rank {entry['rank']} on {finding.node or 'an unknown node'}"
    else:
        where = f"node {finding.node}" if finding.node else f"rack {finding.rack}"
    return {
        "where": where,
        "device": entry["uuid"] or entry["device"] or "",
        "verdict": finding.verdict,
        "fell": ", ".join(finding.fell),
        "deviation": percent(row.deviation) if row else "",
        "95% CI": " to ".join(map(percent, row.ends)) if row else "",
        "per clock": "" if row is None or row.per_clock is None else percent(row.per_clock),
        "cause": entry["cause"] or "",
        "severity": finding.severity or "",
        "evidence": "; ".join([*finding.evidence, *filter(None, [entry["action"]])]),
    }


def summary(findings: Sequence[Finding], groups: Sequence[Group]) -> list[str]:
    """Return the counts of verdicts, the groups of peers, and the smallest slowdowns that would be
    found.
    """
    counts = Counter(finding.verdict for finding in findings if finding.device)
    texts = [
        ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if counts[verdict])
        or "no device"
    ]
    if wholes := sum(finding.device is None for finding in findings):
        texts[0] += f"; nodes or racks slow as a whole: {wholes:,}"
    for group in groups:
        names = ", ".join(
            f"{name} {value}" for name, value in zip(GROUP_PARTS, group.key, strict=False) if value
        )
        wider = f", any {' and '.join(group.ignored)}" if group.ignored else ""
        judged = len(group.members) - len(group.only_peers)
        texts.append(f"judged {judged:,} of {len(group.members):,} peers: {names}{wider}")
        if group.smallest_change:
            found = ", ".join(
                f"{100 * change:.1f} % in {name}"
                for name, change in sorted(group.smallest_change.items())
            )
            texts.append(f"a device slower than its peers by this much would be found: {found}")
    return texts


def as_text(
    findings: Sequence[Finding], groups: Sequence[Group], form: str, shows_all: bool = False
) -> str:
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
            columns = [
                Column(name, [row[name] for row in cells], leaves=leaves.get(name, 0))
                for name in titles
            ]
            print_grid(
                console, columns, [row[notes] for row in cells], notes, "--format json has all"
            )
        print_lines(console, *map(printable, texts), indent="  ")

    notes = "".join(f"\n{escaped(text)}\n" for text in texts)
    table = Table(
        rows=lambda: cells,
        document=lambda: document(findings, groups),
        draw=draw,
        notes=lambda: notes,
    )
    return table.render(form)


def junit(findings: Sequence[Finding]) -> str:
    """Return a JUnit file: `slow` is a failure, `unmeasured` an error; `suspect` and `unstable` are
    skipped.
    """
    suite = ElementTree.Element("testsuite", name="fleet", tests=str(len(findings)))
    for finding in findings:
        cells = {name: printable(text) for name, text in _cells(finding).items()}
        case = ElementTree.SubElement(suite, "testcase", classname="fleet", name=cells["where"])
        if finding.verdict != OK:
            kind = {SLOW: "failure", UNMEASURED: "error"}.get(finding.verdict, "skipped")
            message = ": ".join(
                filter(None, (cells[name] for name in ("fell", "deviation", "cause", "evidence")))
            )
            ElementTree.SubElement(case, kind, type=finding.verdict, message=message)
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def prometheus(findings: Sequence[Finding]) -> str:
    """Return a file for node_exporter's textfile collector, with the labels of dcgm-exporter."""
    from results.export.openmetrics import label_text

    metrics: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        device = finding.device
        if device is None:
            continue
        rank = device.fleet
        gpu = "" if rank.local_rank is None else str(rank.local_rank)
        labels = {
            "gpu": gpu,
            "UUID": device.uuid,
            "pci_bus_id": rank.pci_bus_id,
            "modelName": device.group[0],
            "Hostname": rank.node,
        }
        samples = [
            ("verdict", {"verdict": name}, float(finding.verdict == name)) for name in VERDICTS
        ]
        for row in finding.rows:
            own = {
                "op": row.metric.op,
                "dtype": row.metric.dtype,
                "case": row.metric.case,
                "phase": row.phase,
            }
            samples.append(("deviation", own, math.expm1(row.deviation)))
        if limit_w := number((rank.health or {}).get("power_limit_w")):
            samples.append(("power_limit_watts", {}, limit_w))
        for name, own, value in samples:
            texts = {key: text and printable(text) for key, text in (labels | own).items()}
            metrics[name].append(f"roofmark_fleet_{name}{{{label_text(texts)}}} {value!r}\n")
    return "".join(
        f"# TYPE roofmark_fleet_{name} gauge\n{''.join(rows)}" for name, rows in metrics.items()
    )


def draw(findings: Sequence[Finding], theme: str = "light") -> Figure:
    """Return a plot of the largest slowdown of each node and device, by node, with names at those
    not ok.
    """
    from textalloc import allocate

    from results.show import picture

    measured = [finding for finding in findings if finding.node and finding.rows]
    nodes = {
        node: index
        for index, node in enumerate(dict.fromkeys(f.node for f in measured if f.device))
    }
    with picture.own_style(theme):
        figure = picture.new_figure(11, 5)
        about = (
            "largest deviation of each device from its peers, by node; relative to its node "
            "if that is slow"
        )
        top = picture.write_head(figure, summary(findings, ())[0], about, 4.6)
        axes = figure.add_axes((0.08, 0.08, 0.89, top - 0.1))
        picture.frame(axes, "y")
        points = [
            (nodes[finding.node], 100 * math.expm1(finding.rows[0].deviation))
            for finding in measured
        ]
        for verdict, color in zip(
            VERDICTS, (picture.MUTED, "#D55E00", "#E69F00", "#CC79A7"), strict=False
        ):
            chosen = [
                point
                for finding, point in zip(measured, points, strict=True)
                if finding.verdict == verdict
            ]
            if chosen:
                axes.scatter(
                    [x for x, _ in chosen],
                    [y for _, y in chosen],
                    12 if verdict == OK else 40,
                    color=picture.tone(color),
                    marker="o" if verdict == OK else "v",
                    label=verdict,
                )
        named = [
            (x, y, _cells(f)) for f, (x, y) in zip(measured, points, strict=True) if f.verdict != OK
        ]
        named.sort(key=lambda entry: entry[1])
        if named:
            xs, ys, cells = map(list, zip(*named[:MAX_NAMES], strict=True))
            texts = [picture.plain(f"{cell['where']} {cell['cause']}") for cell in cells]
            style: dict[str, Any] = {
                "textcolor": picture.tone(picture.INK),
                "linecolor": picture.tone(picture.SPINE),
            }
            style |= {"x_scatter": [x for x, _ in points], "y_scatter": [y for _, y in points]}
            allocate(axes, xs, ys, texts, textsize=picture.POINT_PT, **style)
        axes.set_xticks([])
        axes.set_xlabel(f"{len(nodes):,} nodes", fontsize=picture.AXIS_PT)
        axes.set_ylabel("deviation of the rate (%)", fontsize=picture.AXIS_PT)
        if points:
            axes.legend(
                fontsize=picture.LEGEND_PT,
                frameon=False,
                loc="lower right",
                bbox_to_anchor=(1, 1),
                ncols=4,
            )
    return figure
