"""Compare each device with its peers, and with its own history, and name the cause.

The rules of causes in `rules.toml` are names of facts with limits, never code.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from statistics import median, median_low
from typing import Any

from results.fleet.devices import DATA, DAY_S, FLOORS, Device, Earlier, Metric, Reading, middle_of
from results.stats.comparison import PeerSpread, benjamini_hochberg

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

Key = tuple[tuple[Any, ...], Metric, str]
"""Group of comparable devices, metric and phase."""

Tables = dict[Key, dict[Any, Reading]]
"""Readings relative to the peers, by index of the device or by name of the node."""


SEVERITIES = ("MONITOR", "RESET", "REBOOT", "ISOLATE")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A cause and the facts that show it."""

    cause: str
    fell: tuple[str, ...]
    """Ceilings that it explains."""
    above: dict[str, float]
    """Facts and the limits that they exceed."""
    alone: bool = False
    """Whether the facts suffice without a significant difference."""
    severity: str
    action: str


RULES = tuple(Rule(**rule) for rule in DATA["rule"])


def matching(facts: Mapping[str, float], fell: Collection[str]) -> list[Rule]:
    """Return the rules that explain what fell, the most specific first."""
    rules = []
    for rule in RULES:
        explained = set(fell) & set(rule.fell)
        has_reason = rule.above or set(fell) <= set(rule.fell)
        exceeds = all(facts.get(name, 0.0) > limit for name, limit in rule.above.items())
        if explained and has_reason and exceeds:
            rules.append(rule)
    return rules


@dataclass
class Finding:
    """Verdict on a device, on a node, or on the fleet."""

    device: Device | None
    node: str
    rows: list[Reading] = field(default_factory=list)
    """Relative to the peers. Those that fell come first, then the slowest."""
    facts: dict[str, float] = field(default_factory=dict)
    """Those of the device, or relative to its peers, see `rules.toml`."""
    verdict: str = OK
    fell: list[str] = field(default_factory=list)
    """Ceilings, the slowest first."""
    rule: Rule | None = None
    severity: str | None = None
    """That of the rule, or of the driver's recommended action if it is higher."""
    evidence: list[str] = field(default_factory=list)

    def add_clocks(self) -> None:
        """Add how far the clocks, and the memory's rate per clock, of the slowest rows are below
        the peers.
        """
        self.rows.sort(key=lambda row: row.rate)
        for row in reversed(self.rows):
            if row.clock is None or row.per_clock is None:
                continue
            lost = -math.expm1(row.clock)
            if row.metric.ceiling == "memory":
                self.facts["memory_clock_lost"] = lost
                self.facts["memory_per_clock_lost"] = -math.expm1(row.per_clock)
            else:
                self.facts["sm_clock_lost"] = lost
                self.facts["sm_clock_share"] = row.clock / min(row.rate, -1e-9)

    def conclude(self, verdict: str, metrics: Collection[Metric]) -> None:
        self.verdict = verdict
        self.rows.sort(key=lambda row: row.metric not in metrics)
        worst: dict[tuple[str, str], float] = {}
        for row in self.rows:
            if row.metric in metrics:
                worst.setdefault((row.metric.ceiling, row.phase), row.rate)
        wrong = self.device.wrong if self.device else []
        others = sorted({metric.ceiling for metric in metrics})  # without peers
        self.fell = list(dict.fromkeys([*wrong, *(ceiling for ceiling, _ in worst), *others]))
        for (ceiling, phase), rate in worst.items():
            self.evidence.append(f"{ceiling} {phase} {100 * math.expm1(rate):+.1f} %")
        rules = matching(self.facts, self.fell)
        names = dict.fromkeys(chain.from_iterable(rule.above for rule in rules))
        for name in names:
            text = DATA["evidence"][name]
            self.evidence.append(text.format(self.facts[name] * (100 if "%" in text else 1)))
        if rules:
            self.rule = rules[0]
            advised = f"{self.facts.get('recommended_action', 0):.0f}"
            of_driver = DATA["recommended_action"].get(advised, SEVERITIES[0])
            self.severity = max(self.rule.severity, of_driver, key=SEVERITIES.index)


def _tables(devices: Mapping[int, Device]) -> Tables:
    """Return the readings of devices relative to their peers; 0 without peers."""
    readings: Tables = defaultdict(dict)
    for index, device in devices.items():
        for (metric, phase), reading in device.readings.items():
            readings[device.group, metric, phase][index] = reading
    tables = {}
    for key in sorted(readings, key=str):
        known = readings[key]
        middle = middle_of(list(known.values()))
        tables[key] = {index: reading.relative_to(middle) for index, reading in known.items()}
    return tables


def _medians(facts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each fact over the devices that have it, the lower one of two."""
    known = defaultdict(list)
    for own in facts:
        for name, value in own.items():
            known[name].append(value)
    return {name: median_low(values) for name, values in known.items()}


Found = dict[Any, set[Metric]]  # by index of a device, or name of a node


def _found(
    tables: Tables, least: int = 3, prior: float = LIMITS["prior_spread"]
) -> tuple[Found, Found]:
    """Return what is slow in all measured phases, and what is in at least one.

    Each metric is tested as measured and per clock, by the upper end of its own interval in the
    phase that shows it best; false discoveries are controlled over all tests. It is slow in a phase
    if the upper end is below the floor. Of fewer than `least` devices, either may be the exception;
    a node has several.
    """
    p_values = defaultdict(list)
    peers = {}
    for (group, metric, _), rows in tables.items():
        raw = {name: row.rate for name, row in rows.items()}
        per_clock = {name: row.per_clock for name, row in rows.items() if row.per_clock is not None}
        for kind, values in (("raw", raw), ("per clock", per_clock)):
            if len(values) < 2:
                continue
            spread = PeerSpread.of(values.values(), prior, LIMITS["prior_degrees"])
            for name, value in values.items():
                row = rows[name]
                p_value = 1.0
                if max(value - spread.center, row.rate) + row.above <= FLOORS[metric.ceiling]:
                    p_value = spread.p_value(value + row.above)
                test = (group, metric, kind, name)
                p_values[test].append(p_value)
                peers[test] = len(values)
    in_one = [min(1.0, len(values) * min(values)) for values in p_values.values()]
    slow = defaultdict(set)
    suspect = defaultdict(set)
    rejected = benjamini_hochberg(in_one, LIMITS["false_discovery_rate"])
    for test in compress(p_values, rejected):
        _, metric, _, name = test
        suspect[name].add(metric)
        if max(p_values[test]) < 1.0 and peers[test] >= least:
            slow[name].add(metric)
    return slow, suspect


def judge(devices: Sequence[Device], earlier: Earlier) -> list[Finding]:
    """Return a finding for what is mixed, each slow node and each device.

    Devices are compared relative to a slow node.
    """
    findings = [Finding(device, device.fleet.node) for device in devices]
    groups = defaultdict(list)
    for index, device in enumerate(devices):
        if device.readings:
            groups[device.group].append(index)
    for members in groups.values():
        _add_facts(findings, devices, members)
    tables = _tables(dict(enumerate(devices)))
    nodes = list(_slow_nodes(tables, findings))
    slow_nodes = {finding.node for finding in nodes}
    slow, suspect = _found(tables)
    drifts = _drifts(devices, earlier) if earlier else {}
    drifting, _ = _found(drifts, prior=LIMITS["run_spread"])
    for table in tables.values():
        if len(table) > 1:
            for index, row in table.items():
                findings[index].rows.append(row)
    for index, device in enumerate(devices):
        finding = findings[index]
        finding.add_clocks()
        for (_, metric, _), table in drifts.items():
            if metric in drifting[index]:
                finding.rows.append(table[index])
        _judge_device(finding, device, slow[index], suspect[index], drifting[index])
        if finding.node in slow_nodes:
            finding.evidence.append(f"{finding.node} is slow as a whole")
    return [*_mixed(devices), *nodes, *findings]


def _add_facts(
    findings: Sequence[Finding], devices: Sequence[Device], members: Collection[int]
) -> None:
    """Add the facts of comparable devices, relative to their peers if `rules.toml` says so. Rows
    that half of them have are failures of those without.
    """
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
    rows: Counter[tuple[Metric, str]] = Counter()
    for index in members:
        rows.update(devices[index].readings.keys())
    common = [key for key in sorted(rows, key=str) if 2 * rows[key] >= len(members)]
    for index in members:
        device = devices[index]
        lost = dict.fromkeys(
            f"{metric.op} {phase}"
            for metric, phase in common
            if (metric, phase) not in device.readings
        )
        if lost and not device.failures:
            device.failures.append(f"not measured, unlike peers: {', '.join(lost)}")


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


def missing(devices: Sequence[Device], expected: int, hosts: Sequence[str]) -> Iterator[Finding]:
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
        yield Finding(None, "", verdict=UNMEASURED, evidence=evidence)


def _slow_nodes(tables: Tables, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the slow nodes, and make the rows of their devices relative to the node."""
    members: dict[str, dict[int, Finding]] = defaultdict(dict)
    for index, finding in enumerate(findings):
        if finding.device and finding.device.readings:
            members[finding.node][index] = finding
    of_nodes: Tables = defaultdict(dict)
    for key, rows in tables.items():
        for name, inside in members.items():
            part = [rows[index] for index in inside if index in rows]
            if len(part) >= LIMITS["min_unit"]:
                of_nodes[key][name] = middle_of(part)
    found, _ = _found(of_nodes, 2)
    for name, metrics in sorted(found.items()):
        inside = members[name]
        node = Finding(None, name, facts=_medians(each.facts for each in inside.values()))
        for key, middles in of_nodes.items():
            if name in middles and key[1] in metrics:
                node.rows.append(middles[name])
                for index in inside.keys() & tables[key].keys():
                    tables[key][index] = tables[key][index].relative_to(middles[name])
        node.add_clocks()
        node.evidence.append(f"{len(inside)} devices")
        node.conclude(SLOW, metrics)
        yield node


def _below(rows: Sequence[Reading]) -> tuple[set[Metric], set[Metric]]:
    """Return the metrics that facts may explain: slow in one phase, or by the mean in all and not
    wide, and faster in none; and those whose interval is wide.
    """
    faster = set()
    steady = set()
    low = set()
    wide = set()
    for row in rows:
        floor = FLOORS[row.metric.ceiling]
        if row.rate - row.below >= -floor:
            faster.add(row.metric)
        if row.mean > floor:
            steady.add(row.metric)
        if row.rate + row.above <= floor:
            low.add(row.metric)
        if (row.below + row.above) / 2 > LIMITS["unstable_half_width"]:
            wide.add(row.metric)
    low |= {row.metric for row in rows} - steady - wide
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
    elif device.failures or not finding.rows:
        finding.verdict = UNMEASURED
    elif wide:
        finding.verdict = UNSTABLE
        names = ", ".join(sorted({metric.op for metric in wide}))
        finding.evidence.append(f"samples vary too much: {names}; measure again on a calm node")
    if not finding.rows and not device.failures:
        finding.evidence.append("no peers" if device.readings else "no measured row")
    finding.evidence += device.failures


def _drifts(devices: Sequence[Device], earlier: Earlier) -> Tables:
    """Return how the last runs of each device differ from its runs before, relative to the same
    difference of its peers.

    Rates of a day are relative to the devices that were measured on that day; the last run of a
    device on a day counts.
    """
    days: dict[float, dict[int, Device]] = defaultdict(dict)
    for index, device in enumerate(devices):
        for run in [*earlier.get(device.identity, ()), device]:
            days[run.started_s // DAY_S][index] = run
    series: dict[Key, dict[int, list[float]]] = defaultdict(dict)
    for day in sorted(days):
        for key, of_day in _tables(days[day]).items():
            for index, row in of_day.items():
                series[key].setdefault(index, []).append(row.rate)
    last = LIMITS["drift_runs"]
    tables: Tables = defaultdict(dict)
    for key, of_devices in series.items():
        _, metric, phase = key
        against = f"{phase} against earlier runs"
        for index, rates in of_devices.items():
            if len(rates) >= 2 * last:
                fall = median(rates[-last:]) - median(rates[:-last])
                above = max(rates[-last:]) - median(rates[-last:])
                tables[key][index] = Reading(metric, against, fall, 0.0, above, None, fall)
    return tables
