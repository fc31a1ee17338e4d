"""Compare each device with its peers, and with its own history."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_high, median_low
from typing import Any

from results.fleet.causes import DATA, SEVERITIES, Rule, evidence, matching
from results.fleet.devices import PHASES, Device, Earlier, Metric, Reading
from results.stats.comparison import benjamini_hochberg
from results.stats.spread import PeerSpread

OK = "ok"
WRONG = "wrong"
SLOW = "slow"
SUSPECT = "suspect"
UNSTABLE = "unstable"
UNMEASURED = "unmeasured"
VERDICTS = (OK, WRONG, SLOW, SUSPECT, UNSTABLE, UNMEASURED)
MIXED = "mixed"
"""Verdict on a fleet whose devices differ in what they should have in common."""
GROUP_PARTS = ("device", "memory_gib", "power_limit_w", "mig", "threads", "quick")
LIMITS = DATA["limits"]
DAY_S = 86_400
FLOORS = {name: math.log1p(-share) for name, share in DATA["smallest"].items()}
"""Logarithm of the smallest difference that counts, by ceiling."""


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
    mean: float
    """Deviation of the rate by the mean of the samples."""

    @property
    def per_clock(self) -> float | None:
        return None if self.clock is None else self.deviation - self.clock

    @property
    def floor(self) -> float:
        return FLOORS[self.metric.ceiling]

    @property
    def ends(self) -> tuple[float, float]:
        return self.deviation - self.below, self.deviation + self.above

    def subtract(self, node: Row) -> None:
        self.deviation -= node.deviation
        self.mean -= node.mean
        if self.clock is not None:
            self.clock -= node.clock or 0.0


Key = tuple[tuple[Any, ...], Metric, str]
"""Group of comparable devices, metric and phase."""

Tables = dict[Key, dict[Any, Row]]
"""The rows of each key, by index of the device or by name of the node."""


@dataclass
class Finding:
    """Verdict on a device, on a node, or on the fleet."""

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

    @property
    def is_of_node(self) -> bool:
        """Whether it is about a node that is slow as a whole."""
        return self.device is None and self.verdict == SLOW

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
        wrong = self.device.wrong if self.device else []
        others = sorted({metric.ceiling for metric in metrics})  # without peers
        self.fell = list(dict.fromkeys([*wrong, *worst, *others]))
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
    """Return the rows of devices relative to their peers; 0 without peers."""
    readings: dict[Key, dict[int, Reading]] = defaultdict(dict)
    for index, device in enumerate(devices):
        for (metric, phase), reading in device.readings.items():
            readings[device.group, metric, phase][index] = reading
    tables: Tables = {}
    for key, known in sorted(readings.items(), key=lambda item: str(item[0])):
        _, metric, phase = key
        rate = median_high(reading.rate for reading in known.values())
        mean = median_high(reading.mean for reading in known.values())
        clocks = [reading.clock for reading in known.values() if reading.clock is not None]
        clock = median_high(clocks) if clocks else 0.0
        rows: dict[Any, Row] = {}
        tables[key] = rows
        for index, reading in known.items():
            own = None if reading.clock is None else reading.clock - clock
            rows[index] = Row(
                metric,
                phase,
                reading.rate - rate,
                reading.below,
                reading.above,
                own,
                reading.mean - mean,
            )
    return tables


def _medians(facts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each fact over the devices that have it, the lower one of two."""
    known: dict[str, list[float]] = defaultdict(list)
    for own in facts:
        for name, value in own.items():
            known[name].append(value)
    return {name: median_low(values) for name, values in known.items()}


Found = dict[Any, set[Metric]]  # by index of a device, or name of a node


def _found(
    tables: Tables, least: int = 3, prior: float = LIMITS["prior_spread"]
) -> tuple[Found, Found]:
    """Return what is slow in all measured phases, and what is in at least one.

    For the first, the upper end of the own interval counts, for the second the deviation. Each is
    tested as measured and per clock; false discoveries are controlled over all tests.
    Of fewer than `least` devices, either may be the exception; a node has several.
    """
    in_all: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    in_one: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for (group, metric, _), rows in tables.items():
        raw = {name: row.deviation for name, row in rows.items()}
        per_clock = {name: row.per_clock for name, row in rows.items() if row.per_clock is not None}
        for kind, values in (("raw", raw), ("per clock", per_clock)):
            if len(values) < 2:
                continue
            spread = PeerSpread.of(values.values(), prior, LIMITS["prior_degrees"])
            for name, value in values.items():
                row = rows[name]
                p_value = _p_value(spread, value, row, row.above)
                if len(values) < least:
                    p_value = 1.0
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
    is_within = max(value - spread.center, row.deviation) + above > row.floor
    return 1.0 if is_within else spread.p_value(value + above)


def judge(
    devices: Sequence[Device], earlier: Earlier
) -> tuple[list[Finding], dict[tuple[Any, ...], list[int]]]:
    """Return a finding for what is mixed, each slow node and each device, and the comparable
    devices by their `GROUP_PARTS`.

    Devices are compared relative to a slow node.
    """
    findings = [Finding(device, device.fleet.node) for device in devices]
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, device in enumerate(devices):
        if device.readings:
            groups[device.group].append(index)
    _add_facts(findings, devices, groups)
    tables = _tables(devices)
    nodes = list(_slow_nodes(tables, findings))
    slow_nodes = {finding.node for finding in nodes}
    slow, suspect = _found(tables)
    drifts = _drifts(devices, earlier)
    drifting, _ = _found(drifts, prior=LIMITS["run_spread"])
    for (group, metric, phase), table in tables.items():
        if len(table) > 1:
            for index, row in table.items():
                findings[index].rows.append(row)
        if 2 * len(table) >= len(groups[group]):
            for index in set(groups[group]) - table.keys():
                findings[index].lost.append(f"{metric.op} {phase}")
    for index, device in enumerate(devices):
        finding = findings[index]
        if finding.lost and not device.failures:
            lost = ", ".join(dict.fromkeys(finding.lost))
            device.failures.append(f"not measured, unlike peers: {lost}")
        finding.add_clocks()
        for (_, metric, _), table in drifts.items():
            if metric in drifting[index]:
                finding.drift = min(table[index].deviation, finding.drift or 0.0)
        _judge_device(finding, device, slow[index], suspect[index], drifting[index])
        if finding.node in slow_nodes:
            finding.evidence.append(f"{finding.node} is slow as a whole")
    return [*_mixed(devices), *nodes, *findings], groups


def _add_facts(
    findings: Sequence[Finding],
    devices: Sequence[Device],
    groups: Mapping[tuple[Any, ...], Sequence[int]],
) -> None:
    """Add the facts of each device, relative to its peers if `rules.toml` says so."""
    for members in groups.values():
        versions: Counter[tuple[str, str]] = Counter()
        for index in members:
            versions.update(devices[index].software.items())
        peers = _medians(devices[index].facts for index in members)
        for index in members:
            own = findings[index].facts
            counts = [versions[version] for version in devices[index].software.items()]
            if 2 * min(counts, default=len(members)) <= len(members):
                own["other_software"] = 1.0
            for name, value in devices[index].facts.items():
                is_relative = name in DATA["facts"]["relative"]
                own[name] = value - peers[name] if is_relative else value


def _mixed(devices: Sequence[Device]) -> Iterator[Finding]:
    """Yield a finding for each version, model or setting in which devices differ."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for device in devices:
        if device.readings:
            parts = zip(GROUP_PARTS, device.group, strict=True)
            for name, value in [*parts, *device.software.items()]:
                values[name][str(value)] += 1
    for name, counts in values.items():
        if len(counts) > 1:
            texts = [f"{value} on {count:,}" for value, count in counts.most_common()]
            yield Finding(None, "", verdict=MIXED, evidence=[f"{name}: {', '.join(texts)} devices"])


def missing(
    devices: Sequence[Device], earlier: Earlier, expected: int, hosts: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding for each host without a device, and one if there are fewer devices than
    expected.
    """
    counts = Counter(device.fleet.node for device in devices if device.readings)
    for host in hosts:
        if not counts[host]:
            yield Finding(None, host, verdict=UNMEASURED, evidence=["no device of this host"])
    number = counts.total()
    if number < expected:
        texts = [f"{count} on {node}" for node, count in sorted(counts.items())]
        evidence = [f"{expected:,} devices expected, {number:,} measured: {', '.join(texts)}"]
        known = {device.identity for device in devices}
        for runs in earlier.values():
            run = runs[-1]
            if run.identity not in known:
                rank = run.fleet
                evidence.append(f"not measured again: rank {rank.rank} on {rank.node}, {run.uuid}")
        yield Finding(None, "", verdict=UNMEASURED, evidence=evidence)


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
    found, _ = _found(of_nodes, 2)
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
        mean=median(row.mean for row in rows),
    )


def _below(rows: Sequence[Row]) -> tuple[set[Metric], set[Metric]]:
    """Return the metrics that facts may explain: slow in one phase, or by the mean in all, and
    faster in none; and those whose interval is wide.
    """
    faster = set()
    steady = set()
    low = set()
    wide = set()
    for row in rows:
        if row.ends[0] >= -row.floor:
            faster.add(row.metric)
        if row.mean > row.floor:
            steady.add(row.metric)
        if row.ends[1] <= row.floor:
            low.add(row.metric)
        if (row.below + row.above) / 2 > LIMITS["unstable_half_width"]:
            wide.add(row.metric)
    low |= {row.metric for row in rows} - steady
    return low - faster, wide


def _judge_device(
    finding: Finding,
    device: Device,
    slow: set[Metric],
    suspect: set[Metric],
    drifting: set[Metric],
) -> None:
    below, wide = _below(finding.rows)
    too_slow = {
        metric for metric, _ in device.readings if f"{metric.ceiling}_below_floor" in finding.facts
    }
    explaining = matching(finding.facts, {metric.ceiling for metric in below})
    alone = next((rule for rule in explaining if rule.alone), None)
    if finding.drift is not None:
        finding.evidence.append(
            f"{change(finding.drift)} compared with its own history and that of its peers, last "
            f"{LIMITS['drift_runs']} runs"
        )
    if device.wrong:
        finding.conclude(WRONG, slow)
    elif slow:
        finding.conclude(SLOW, slow | too_slow)
    elif alone:
        finding.conclude(SLOW, {metric for metric in below if metric.ceiling in alone.fell})
    elif too_slow or drifting:
        finding.conclude(SLOW, too_slow | drifting)
    elif suspect - wide:
        finding.conclude(SUSPECT, suspect)
    elif wide:
        finding.verdict = UNSTABLE
        names = ", ".join(sorted({metric.op for metric in wide}))
        finding.evidence.append(f"samples vary too much: {names}; measure again on a calm node")
    elif device.failures or not finding.rows:
        finding.verdict = UNMEASURED
    if not finding.rows and not device.failures:
        finding.evidence.append("no peers" if device.readings else "no measured row")
    finding.evidence += device.failures


def _drifts(devices: Sequence[Device], earlier: Earlier) -> Tables:
    """Return how the last runs of each device differ from its runs before, relative to the same
    difference of its peers.

    Rates of a day are relative to the devices that were measured on that day.
    """
    days: dict[tuple[Key, int], list[float]] = defaultdict(list)
    series: dict[Key, dict[int, list[tuple[int, float]]]] = defaultdict(dict)
    for index, device in enumerate(devices):
        for run in [*earlier.get(device.identity, ()), device]:
            day = int(run.started_s // DAY_S)
            for (metric, phase), reading in run.readings.items():
                key = (device.group, metric, phase)
                days[key, day].append(reading.rate)
                series[key].setdefault(index, []).append((day, reading.rate))
    last = LIMITS["drift_runs"]
    tables: Tables = {}
    for key, of_devices in series.items():
        rows: dict[Any, Row] = {}
        for index, runs in of_devices.items():
            rates = [rate - median_high(days[key, day]) for day, rate in runs]
            if len(rates) < 2 * last:
                continue
            fall = median(rates[-last:]) - median(rates[:-last])
            above = max(rates[-last:]) - median(rates[-last:])
            rows[index] = Row(key[1], key[2], fall, 0.0, above, None, fall)
        tables[key] = rows
    return tables
