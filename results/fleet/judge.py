"""Compare each device with its peers, and with its own history."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from results.fleet.causes import DATA, Rule, evidence, explain, medians, severity
from results.fleet.devices import PHASES, Device, Earlier, Metric, Reading

OK = "ok"
SLOW = "slow"
SUSPECT = "suspect"
UNSTABLE = "unstable"
UNMEASURED = "unmeasured"
VERDICTS = (OK, SLOW, SUSPECT, UNSTABLE, UNMEASURED)
GROUP_PARTS = ("device", "memory_gib", "power_limit_w", "mig", "driver", "vbios")
KINDS = ("deviation", "per_clock")
LIMITS = DATA["limits"]
FLOOR = math.log1p(-LIMITS["floor"])
MAD_EFFICIENCY = 0.37
"""Efficiency of the median absolute deviation for normal values. Source: Rousseeuw and Croux,
Alternatives to the median absolute deviation, JASA 88 (1993) 1273."""


@dataclass
class Row:
    """One metric of a device in one phase: logarithms of rate and clock relative to the peers."""

    metric: Metric
    phase: str
    deviation: float
    below: float
    """Distance to the lower end of the 95 % interval, from the device's own samples."""
    above: float
    per_clock: float | None
    clock: float | None

    @property
    def ends(self) -> tuple[float, float]:
        return self.deviation - self.below, self.deviation + self.above


@dataclass
class Group:
    """Devices compared with each other."""

    key: tuple[Any, ...]
    members: list[int]
    only_peers: set[int]
    """Members that are judged in a narrower group."""
    ignored: tuple[str, ...]
    """Parts in which members may differ, because the group would be small."""
    smallest_change: dict[str, float] = field(default_factory=dict)
    """Smallest slowdown of each ceiling, as a fraction, that would be found in 95 % of devices."""


@dataclass
class Finding:
    """Verdict on a device, or on a node or rack that is slow as a whole."""

    device: Device | None
    node: str | None
    rack: str | None
    rows: list[Row]
    """Those that fell come first, then the slowest."""
    facts: dict[str, float]
    verdict: str = OK
    fell: list[str] = field(default_factory=list)
    """Ceilings, the slowest first."""
    rule: Rule | None = None
    severity: str | None = None
    drift: float | None = None
    """Logarithm of the rate relative to the device's own history, if it fell."""
    evidence: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Add how far the clocks, and the memory's rate per clock, of the slowest rows are below
        the peers.
        """
        self.rows.sort(key=lambda row: row.deviation)
        for row in reversed(self.rows):
            if row.clock is not None and row.per_clock is not None:
                lost = -math.expm1(row.clock)
                if row.metric.ceiling == "memory":
                    self.facts |= {
                        "memory_clock_lost": lost,
                        "memory_per_clock_lost": -math.expm1(row.per_clock),
                    }
                else:
                    self.facts |= {
                        "sm_clock_lost": lost,
                        "sm_clock_share": row.clock / min(row.deviation, -1e-9),
                    }

    def conclude(self, verdict: str, metrics: Collection[Metric]) -> None:
        self.verdict = verdict
        self.rows.sort(key=lambda row: row.metric not in metrics)
        fallen = [row for row in self.rows if row.metric in metrics]
        self.fell = list(dict.fromkeys(row.metric.ceiling for row in fallen))
        for ceiling in self.fell:
            worst = {
                row.phase: row.deviation
                for row in reversed(fallen)
                if row.metric.ceiling == ceiling
            }
            texts = [f"{percent(worst[phase])} {phase}" for phase in PHASES if phase in worst]
            self.evidence.append(f"{ceiling} {', '.join(texts)}")
        self.rule = explain(self.facts, self.fell)
        if self.rule:
            self.severity = severity(self.rule, self.facts)
            self.evidence += evidence(self.facts, self.fell)


def percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def grouped(devices: Sequence[Device]) -> list[Group]:
    """Return groups of comparable devices; small ones ignore the VBIOS, then the driver too."""
    keys = {
        index: [device.group[: len(GROUP_PARTS) - ignored] for ignored in range(3)]
        for index, device in enumerate(devices)
        if device.readings
    }
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, own in keys.items():
        for key in own:
            members[key].append(index)
    groups: dict[tuple[Any, ...], Group] = {}
    for index, own in keys.items():
        key = next((key for key in own if len(members[key]) >= LIMITS["min_peers"]), own[-1])
        group = groups.setdefault(
            key, Group(key, members[key], {*members[key]}, GROUP_PARTS[len(key) :])
        )
        group.only_peers.remove(index)
    return list(groups.values())


class Spread(NamedTuple):
    """Center and scale of what should be equal, as logarithms."""

    center: float
    scale: float
    degrees: float

    @classmethod
    def of(cls, values: Collection[float]) -> Spread:
        """Return the median and the scaled median absolute deviation, moderated by a prior for few
        values.

        Source: the factor n / (n - 0.8), Croux and Rousseeuw, Time-efficient algorithms for two
        highly robust estimators of scale (1992); moderated variances, Smyth, Statistical
        Applications in Genetics and Molecular Biology 3 (2004) article 3.
        """
        center = median(values)
        count = len(values)
        mad = 1.4826 * median(abs(value - center) for value in values) * count / (count - 0.8)
        prior = LIMITS["prior_degrees"]
        assumed = LIMITS["prior_spread"]
        # Two deviate alike, whatever the spread.
        own = MAD_EFFICIENCY * (count - 1) if count > 2 else 0.0
        degrees = prior + own
        return cls(center, math.sqrt((prior * assumed**2 + own * mad**2) / degrees), degrees)

    def tail(self, value: float, raw: float) -> float:
        """Return the p value of a slowdown; 1 if it or the raw deviation is within the floor."""
        if max(value - self.center, raw) > FLOOR:
            return 1.0
        from scipy.special import stdtr

        return float(stdtr(self.degrees, (value - self.center) / self.scale))


def _tables(group: Group, devices: Sequence[Device]) -> list[dict[int, Row]]:
    """Return the rows of each metric and phase by index of the device; a single one has no
    peers.
    """
    readings: dict[tuple[Metric, str], dict[int, Reading]] = defaultdict(dict)
    for index in group.members:
        for key, reading in devices[index].readings.items():
            readings[key][index] = reading
    tables = []
    for (metric, phase), known in sorted(readings.items(), key=lambda item: str(item[0])):
        if len(known) < 2:
            continue
        rate = _median(reading.rate for reading in known.values())
        clock = _median(reading.clock for reading in known.values())
        table = {}
        for index, reading in known.items():
            deviation = reading.rate - rate
            own = None if reading.clock is None else reading.clock - clock
            per_clock = None if own is None else deviation - own
            table[index] = Row(
                metric, phase, deviation, reading.below, reading.above, per_clock, own
            )
        tables.append(table)
    return tables


def _median(values: Iterable[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _units(
    table: Mapping[int, Row], level: str, devices: Sequence[Device]
) -> dict[Any, dict[int, Row]]:
    """Return the rows of each rack or node that has enough devices; a rack of one node is that
    node.
    """
    units: dict[Any, dict[int, Row]] = defaultdict(dict)
    for index, row in table.items():
        units[getattr(devices[index].fleet, level)][index] = row
    units.pop(None, None)
    least = {"rack": 2, "node": 1}[level]
    nodes = {name: {devices[index].fleet.node for index in part} for name, part in units.items()}
    return {
        name: part
        for name, part in units.items()
        if len(part) >= LIMITS["min_unit"] and len(nodes[name]) >= least
    }


def _median_row(rows: Sequence[Row]) -> Row:
    return Row(
        metric=rows[0].metric,
        phase=rows[0].phase,
        deviation=_median(row.deviation for row in rows),
        below=_median(row.below for row in rows),
        above=_median(row.above for row in rows),
        per_clock=_median(row.per_clock for row in rows),
        clock=_median(row.clock for row in rows),
    )


Found = dict[Any, set[Metric]]  # by index of a device, or name of a node or rack
Facts = dict[int, dict[str, float]]  # by index of a device


def _found(tables: Iterable[tuple[Group, Mapping[Any, Row]]]) -> tuple[Found, Found]:
    """Return the units that are slow in all measured phases, and those that are in at least one.

    For the first, the upper end of the own interval counts, for the second the deviation. Each is
    tested as measured and per clock; false discoveries are controlled over all tests.
    """
    tails: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for group, table in tables:
        for kind in KINDS:
            own = {
                name: value
                for name, row in table.items()
                if (value := getattr(row, kind)) is not None
            }
            if len(own) < 2:
                continue
            spread = Spread.of(own.values())
            is_pair = len(own) == 2  # either may be the exception
            for name in own.keys() - group.only_peers:
                row = table[name]
                value = own[name]
                slow = spread.tail(value + row.above, row.deviation + row.above)
                suspect = spread.tail(value, row.deviation)
                tails[id(group), row.metric, kind, name].append((1.0 if is_pair else slow, suspect))
    in_all = {key: max(p for p, _ in pairs) for key, pairs in tails.items()}
    in_one = {key: min(1.0, len(pairs) * min(p for _, p in pairs)) for key, pairs in tails.items()}
    return _discoveries(in_all), _discoveries(in_one)


def _discoveries(p_values: Mapping[tuple[Any, ...], float]) -> Found:
    """Source: Benjamini and Hochberg, Controlling the false discovery rate, J. R. Stat. Soc. B 57
    (1995) 289.
    """
    found: Found = defaultdict(set)
    small = sorted(p for p in p_values.values() if p < LIMITS["false_discovery_rate"])
    share = LIMITS["false_discovery_rate"] / max(1, len(p_values))
    limit = max((p for count, p in enumerate(small, start=1) if p <= share * count), default=-1.0)
    for (_, metric, _, name), p in p_values.items():
        if p <= limit:
            found[name].add(metric)
    return found


def _set_smallest_changes(tables: Sequence[tuple[Group, Mapping[int, Row]]]) -> None:
    """Set the slowdowns that 95 % of devices would be found with, by the better of raw and per
    clock.
    """
    from scipy.special import stdtrit

    tests = len(KINDS) * sum(len(table) for _, table in tables)
    share = LIMITS["false_discovery_rate"] * len(PHASES) / max(1, tests)
    for group, table in tables:
        half = median(row.above for row in table.values())
        changes = []
        for kind in KINDS:
            values = [value for row in table.values() if (value := getattr(row, kind)) is not None]
            if len(values) > 2:
                spread = Spread.of(values)
                limit = max(-FLOOR, -spread.scale * float(stdtrit(spread.degrees, share)))
                changes.append(-math.expm1(-limit - half - 1.645 * spread.scale))
        ceiling = next(iter(table.values())).metric.ceiling
        if changes:
            group.smallest_change[ceiling] = max(
                min(changes), group.smallest_change.get(ceiling, 0.0)
            )


def judge(devices: Sequence[Device], earlier: Earlier) -> tuple[list[Finding], list[Group]]:
    """Return a finding for each slow rack, each slow node and each device, and the groups of peers.

    Nodes are compared relative to a slow rack, and devices relative to a slow node.
    """
    groups = grouped(devices)
    tables = []
    for group in groups:
        tables += [(group, table) for table in _tables(group, devices)]
    _set_smallest_changes(tables)
    facts: Facts = defaultdict(dict)
    for group in groups:
        peers = medians(
            [devices[index].facts for index in group.members], DATA["facts"]["relative"]
        )
        for index in set(group.members) - group.only_peers:
            facts[index] = {
                name: value - peers.get(name, 0.0) for name, value in devices[index].facts.items()
            }
    findings: list[Finding] = []
    for level in ("rack", "node"):
        parts = [_units(table, level, devices) for _, table in tables]
        medians_of = [
            {name: _median_row([*part.values()]) for name, part in units.items()} for units in parts
        ]
        found, _ = _found(
            [(group, rows) for (group, _), rows in zip(tables, medians_of, strict=True)]
        )
        for name, metrics in sorted(found.items()):
            pairs = [
                (rows[name], units[name])
                for rows, units in zip(medians_of, parts, strict=True)
                if name in rows
            ]
            fallen = [(row, part) for row, part in pairs if row.metric in metrics]
            findings.append(_unit_finding(level, name, fallen, facts))
    slow, suspect = _found(tables)
    rows: dict[int, list[Row]] = defaultdict(list)
    lost: dict[int, list[str]] = defaultdict(list)
    for group, table in tables:
        for index in table.keys() - group.only_peers:
            rows[index].append(table[index])
        if 2 * len(table) > len(group.members):
            row = next(iter(table.values()))
            for index in set(group.members) - table.keys():
                lost[index].append(f"{row.metric.op} {row.phase}")
    slow_units = {finding.rack or finding.node for finding in findings}
    for index, device in enumerate(devices):
        finding = Finding(device, device.fleet.node, device.fleet.rack, rows[index], facts[index])
        if lost[index] and not device.failures:
            device.failures.append(
                f"not measured, unlike peers: {', '.join(dict.fromkeys(lost[index]))}"
            )
        drift = drift_of(device, earlier.get(device.identity, ()))
        _judge_device(finding, device, slow[index], suspect[index], drift)
        finding.evidence += [
            f"{name} is slow as a whole"
            for name in (finding.rack, finding.node)
            if name in slow_units
        ]
        findings.append(finding)
    return findings, groups


def _unit_finding(
    level: str, name: str, fallen: Sequence[tuple[Row, Mapping[int, Row]]], facts: Facts
) -> Finding:
    """Return a slow rack or node, and subtract its deviation from that of its devices."""
    members = set[int]().union(*(part for _, part in fallen))
    for unit, part in fallen:
        for row in part.values():
            row.deviation -= unit.deviation
            row.per_clock = (
                None if row.per_clock is None else row.per_clock - (unit.per_clock or 0.0)
            )
            row.clock = None if row.clock is None else row.clock - (unit.clock or 0.0)
    of_members = [facts[index] for index in members]
    finding = Finding(
        device=None,
        node=name if level == "node" else None,
        rack=name if level == "rack" else None,
        rows=[row for row, _ in fallen],
        facts=medians(of_members, set[str]().union(*of_members)),
    )
    finding.evidence.append(f"{len(members)} devices")
    finding.conclude(SLOW, {row.metric for row, _ in fallen})
    return finding


def _judge_device(
    finding: Finding,
    device: Device,
    slow: set[Metric],
    suspect: set[Metric],
    drift: tuple[Metric, float] | None,
) -> None:
    # In one phase faster than its peers.
    disturbed = {row.metric for row in finding.rows if row.ends[0] >= -FLOOR}
    below = {row.metric for row in finding.rows if row.ends[1] <= FLOOR} - disturbed
    wide = {
        row.metric
        for row in finding.rows
        if (row.below + row.above) / 2 > LIMITS["unstable_half_width"]
    }
    alone = explain(finding.facts, {metric.ceiling for metric in below}, alone=True)
    if drift:
        finding.drift = drift[1]
        finding.evidence.append(
            f"{percent(drift[1])} compared with its own history, last {LIMITS['drift_runs']} runs"
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
