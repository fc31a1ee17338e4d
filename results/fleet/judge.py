"""Compare each device with its peers, and with its own history."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from results.fleet.causes import DATA, SEVERITIES, Rule, evidence, matching
from results.fleet.devices import PHASES, Device, Earlier, Metric, Reading
from results.stats.comparison import benjamini_hochberg
from results.stats.spread import PeerSpread

OK = "ok"
SLOW = "slow"
SUSPECT = "suspect"
UNSTABLE = "unstable"
UNMEASURED = "unmeasured"
VERDICTS = (OK, SLOW, SUSPECT, UNSTABLE, UNMEASURED)
GROUP_PARTS = ("device", "memory_gib", "power_limit_w", "mig")
LIMITS = DATA["limits"]
FLOOR = math.log1p(-LIMITS["floor"])


@dataclass
class Row:
    """One metric of a device in one phase: logarithms of rate and clock relative to the peers."""

    metric: Metric
    phase: str
    deviation: float
    below: float
    """Distance to the lower end of the 95 % interval, from the device's own samples."""
    above: float
    clock: float | None

    @property
    def per_clock(self) -> float | None:
        return None if self.clock is None else self.deviation - self.clock

    @property
    def ends(self) -> tuple[float, float]:
        return self.deviation - self.below, self.deviation + self.above

    def subtract(self, node: Row) -> None:
        self.deviation -= node.deviation
        if self.clock is not None:
            self.clock -= node.clock or 0.0


Key = tuple[tuple[Any, ...], Metric, str]
"""Group of comparable devices, metric and phase."""

Tables = dict[Key, dict[Any, Row]]
"""The rows of each key, by index of the device or by name of the node."""


@dataclass
class Finding:
    """Verdict on a device, or on a node that is slow as a whole."""

    device: Device | None
    node: str
    rows: list[Row] = field(default_factory=list)
    """Those that fell come first, then the slowest."""
    facts: dict[str, float] = field(default_factory=dict)
    """Those of the device, or relative to its peers, see `rules.toml`."""
    lost: list[str] = field(default_factory=list)
    """Rows that most peers have and the device has not."""
    verdict: str = OK
    fell: list[str] = field(default_factory=list)
    """Ceilings, the slowest first."""
    rule: Rule | None = None
    severity: str | None = None
    """That of the rule, or of the driver's recommended action if it is higher."""
    drift: float | None = None
    """Logarithm of the rate relative to the device's own history, if it fell."""
    evidence: list[str] = field(default_factory=list)

    def add_clocks(self) -> None:
        """Add how far the clocks, and the memory's rate per clock, of the slowest rows are below
        the peers.
        """
        self.rows.sort(key=lambda row: row.deviation)
        for row in reversed(self.rows):
            if row.clock is None or row.per_clock is None:
                continue
            lost = -math.expm1(row.clock)
            if row.metric.ceiling == "memory":
                self.facts["memory_clock_lost"] = lost
                self.facts["memory_per_clock_lost"] = -math.expm1(row.per_clock)
            else:
                self.facts["sm_clock_lost"] = lost
                self.facts["sm_clock_share"] = row.clock / min(row.deviation, -1e-9)

    def conclude(self, verdict: str, metrics: Collection[Metric]) -> None:
        self.verdict = verdict
        self.rows.sort(key=lambda row: row.metric not in metrics)
        worst: dict[str, dict[str, float]] = {}
        for row in self.rows:
            if row.metric in metrics:
                by_phase = worst.setdefault(row.metric.ceiling, {})
                by_phase.setdefault(row.phase, row.deviation)
        self.fell = list(worst)
        for ceiling, by_phase in worst.items():
            texts = [f"{change(by_phase[phase])} {phase}" for phase in PHASES if phase in by_phase]
            self.evidence.append(f"{ceiling} {', '.join(texts)}")
        rules = matching(self.facts, self.fell)
        self.evidence += evidence(rules, self.facts)
        if rules:
            self.rule = rules[0]
            advised = f"{self.facts.get('recommended_action', 0):.0f}"
            of_driver = DATA["recommended_action"].get(advised, SEVERITIES[0])
            self.severity = max(self.rule.severity, of_driver, key=SEVERITIES.index)


def change(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def _tables(devices: Sequence[Device]) -> Tables:
    """Return the rows of devices that have peers."""
    readings: dict[Key, dict[int, Reading]] = defaultdict(dict)
    for index, device in enumerate(devices):
        for (metric, phase), reading in device.readings.items():
            readings[device.group, metric, phase][index] = reading
    tables: Tables = {}
    for key, known in sorted(readings.items(), key=lambda item: str(item[0])):
        if len(known) < 2:
            continue
        _, metric, phase = key
        rate = median(reading.rate for reading in known.values())
        clocks = [reading.clock for reading in known.values() if reading.clock is not None]
        clock = median(clocks) if clocks else 0.0
        rows: dict[Any, Row] = {}
        tables[key] = rows
        for index, reading in known.items():
            own = None if reading.clock is None else reading.clock - clock
            deviation = reading.rate - rate
            rows[index] = Row(metric, phase, deviation, reading.below, reading.above, own)
    return tables


def _medians(facts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each fact over the devices that have it."""
    known: dict[str, list[float]] = defaultdict(list)
    for own in facts:
        for name, value in own.items():
            known[name].append(value)
    return {name: median(values) for name, values in known.items()}


Found = dict[Any, set[Metric]]  # by index of a device, or name of a node


def _found(tables: Tables) -> tuple[Found, Found]:
    """Return what is slow in all measured phases, and what is in at least one.

    For the first, the upper end of the own interval counts, for the second the deviation. Each is
    tested as measured and per clock; false discoveries are controlled over all tests.
    """
    in_all: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    in_one: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for (group, metric, _), rows in tables.items():
        raw = {name: row.deviation for name, row in rows.items()}
        per_clock = {name: row.per_clock for name, row in rows.items() if row.per_clock is not None}
        for kind, values in (("raw", raw), ("per clock", per_clock)):
            if len(values) < 2:
                continue
            spread = PeerSpread.of(values.values(), LIMITS["prior_spread"], LIMITS["prior_degrees"])
            for name, value in values.items():
                row = rows[name]
                # Of two, either may be the exception.
                p_value = 1.0 if len(values) == 2 else _p_value(spread, value, row, row.above)
                test = (group, metric, kind, name)
                in_all[test].append(p_value)
                in_one[test].append(_p_value(spread, value, row, 0.0))
    slow = _rejected({test: max(p_values) for test, p_values in in_all.items()})
    suspect = _rejected(
        {test: min(1.0, len(p_values) * min(p_values)) for test, p_values in in_one.items()}
    )
    return slow, suspect


def _rejected(p_values: Mapping[tuple[Any, ...], float]) -> Found:
    found: Found = defaultdict(set)
    rejected = benjamini_hochberg(list(p_values.values()), LIMITS["false_discovery_rate"])
    for (_, metric, _, name), is_found in zip(p_values, rejected, strict=True):
        if is_found:
            found[name].add(metric)
    return found


def _p_value(spread: PeerSpread, value: float, row: Row, above: float) -> float:
    """Return the p value of a slowdown; 1 if it or the raw deviation is within the floor."""
    is_within = max(value - spread.center, row.deviation) + above > FLOOR
    return 1.0 if is_within else spread.p_value(value + above)


def judge(
    devices: Sequence[Device], earlier: Earlier
) -> tuple[list[Finding], dict[tuple[Any, ...], list[int]]]:
    """Return a finding for each slow node and each device, and the comparable devices by their
    `GROUP_PARTS`.

    Devices are compared relative to a slow node.
    """
    findings = [Finding(device, device.fleet.node) for device in devices]
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, device in enumerate(devices):
        if device.readings:
            groups[device.group].append(index)
    for members in groups.values():
        peers = _medians(devices[index].facts for index in members)
        for index in members:
            own = findings[index].facts
            for name, value in devices[index].facts.items():
                is_relative = name in DATA["facts"]["relative"]
                own[name] = value - peers[name] if is_relative else value
    tables = _tables(devices)
    nodes = list(_slow_nodes(tables, findings))
    slow_nodes = {finding.node for finding in nodes}
    slow, suspect = _found(tables)
    for (group, metric, phase), table in tables.items():
        for index, row in table.items():
            findings[index].rows.append(row)
        if 2 * len(table) > len(groups[group]):
            for index in set(groups[group]) - table.keys():
                findings[index].lost.append(f"{metric.op} {phase}")
    for index, device in enumerate(devices):
        finding = findings[index]
        if finding.lost and not device.failures:
            lost = ", ".join(dict.fromkeys(finding.lost))
            device.failures.append(f"not measured, unlike peers: {lost}")
        finding.add_clocks()
        drift = drift_of(device, earlier.get(device.identity, ()))
        _judge_device(finding, device, slow[index], suspect[index], drift)
        if finding.node in slow_nodes:
            finding.evidence.append(f"{finding.node} is slow as a whole")
    return [*nodes, *findings], groups


def _slow_nodes(tables: Tables, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the slow nodes, and make the rows of their devices relative to the node."""
    members: dict[str, dict[int, Finding]] = defaultdict(dict)
    for index, finding in enumerate(findings):
        if finding.device and finding.device.readings:
            members[finding.node][index] = finding
    of_nodes: Tables = {}
    for key, rows in tables.items():
        medians: dict[Any, Row] = {}
        of_nodes[key] = medians
        for name, inside in members.items():
            part = [rows[index] for index in inside if index in rows]
            if len(part) >= LIMITS["min_unit"]:
                medians[name] = _median_row(part)
    found, _ = _found(of_nodes)
    for name, metrics in sorted(found.items()):
        inside = members[name]
        node = Finding(None, name, facts=_medians(each.facts for each in inside.values()))
        for key, medians in of_nodes.items():
            if name in medians and key[1] in metrics:
                node.rows.append(medians[name])
                for index in inside.keys() & tables[key].keys():
                    tables[key][index].subtract(medians[name])
        node.add_clocks()
        node.evidence.append(f"{len(inside)} devices")
        node.conclude(SLOW, metrics)
        yield node


def _median_row(rows: Sequence[Row]) -> Row:
    clocks = [row.clock for row in rows if row.clock is not None]
    return Row(
        metric=rows[0].metric,
        phase=rows[0].phase,
        deviation=median(row.deviation for row in rows),
        below=median(row.below for row in rows),
        above=median(row.above for row in rows),
        clock=median(clocks) if clocks else None,
    )


def _judge_device(
    finding: Finding,
    device: Device,
    slow: set[Metric],
    suspect: set[Metric],
    drift: tuple[Metric, float] | None,
) -> None:
    disturbed = set()  # in one phase faster than its peers
    below = set()
    wide = set()
    for row in finding.rows:
        if row.ends[0] >= -FLOOR:
            disturbed.add(row.metric)
        if row.ends[1] <= FLOOR:
            below.add(row.metric)
        if (row.below + row.above) / 2 > LIMITS["unstable_half_width"]:
            wide.add(row.metric)
    below -= disturbed
    explaining = matching(finding.facts, {metric.ceiling for metric in below})
    alone = next((rule for rule in explaining if rule.alone), None)
    if drift:
        finding.drift = drift[1]
        finding.evidence.append(
            f"{change(drift[1])} compared with its own history, last {LIMITS['drift_runs']} runs"
        )
    if slow:
        finding.conclude(SLOW, slow)
    elif alone:
        finding.conclude(SLOW, {metric for metric in below if metric.ceiling in alone.fell})
    elif drift:
        finding.conclude(SLOW, {drift[0]})
    elif suspect - wide or "wrong_results" in finding.facts:
        finding.conclude(SUSPECT, suspect or {row.metric for row in finding.rows})
    elif wide:
        finding.conclude(UNSTABLE, wide)
    elif device.failures or not finding.rows:
        finding.verdict = UNMEASURED
    if not finding.rows and not device.failures:
        finding.evidence.append("no peers" if device.readings else "no measured row")
    finding.evidence += device.failures


def drift_of(device: Device, earlier: Iterable[Device]) -> tuple[Metric, float] | None:
    """Return the metric that fell furthest below the device's own history in each of the last runs,
    and by how much.
    """
    changes: dict[Metric, float] = {}
    for key, reading in device.readings.items():
        rates = [*(old.readings[key].rate for old in earlier if key in old.readings), reading.rate]
        if len(rates) > LIMITS["drift_runs"]:
            before = median(rates[: -LIMITS["drift_runs"]])
            last = rates[-LIMITS["drift_runs"] :]
            if max(last) - before <= FLOOR:
                changes[key[0]] = min(median(last) - before, changes.get(key[0], 0.0))
    return min(changes.items(), key=lambda item: item[1], default=None)
