"""Compare each device with its peers, and with its own history."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from results.fleet.causes import RELATIVE, Rule, evidence, explain, medians, severity
from results.fleet.devices import PHASES, Device, Metric, Reading

OK, SLOW, SUSPECT, UNSTABLE, UNMEASURED = VERDICTS = ("ok", "slow", "suspect", "unstable", "unmeasured")

MIN_PEERS = 8
"""Smaller groups are widened."""

GROUP_PARTS = ("device", "memory", "MIG", "power limit", "driver", "VBIOS")
"""Parts of `Device.group`."""
WIDENED = 2
"""Number of last parts that a small group ignores, VBIOS first."""

LEVELS = ("rack", "node", "device")

MIN_UNIT = 3
"""Minimum number of devices of a node or rack, to compare it with others."""

FLOOR = math.log(0.98)
"""Smaller differences never count, however small the spread."""

FALSE_DISCOVERY_RATE = 0.01
"""Expected fraction of wrong ones among all findings."""

PRIOR_SPREAD, PRIOR_DEGREES = 0.01, 4.0
"""Spread assumed between devices, and its weight in degrees of freedom, which matters for fewer than 20 peers."""

MAD_EFFICIENCY = 0.37
"""Degrees of freedom per value of the median absolute deviation. Source: its efficiency for normal values, Rousseeuw
and Croux, Alternatives to the median absolute deviation, JASA 88 (1993) 1273."""

Z_95 = 1.645

UNSTABLE_HALF_WIDTH = 0.05
"""From this half width of the interval of its own repeats, as a fraction, a device is unstable."""

MIN_RUNS, SUSTAINED_RUNS = 4, 3
"""Runs needed for a drift, and how many of the last ones must be slower than the median of those before."""


class Row(NamedTuple):
    """One metric of a device in one phase: logarithms of the rate and clock relative to those of its peers."""

    metric: Metric
    phase: str
    deviation: float
    low: float
    high: float
    """Ends of the 95 % interval, from the device's own samples."""
    per_clock: float | None
    clock: float | None


@dataclass
class Group:
    """Devices compared with each other."""

    key: tuple[Any, ...]
    members: list[int]
    judged: set[int] = field(default_factory=set)
    """Members without a narrower group; the others are only peers."""
    widened: tuple[str, ...] = ()
    """Parts that differ between its members."""
    smallest_change: dict[str, float] = field(default_factory=dict)
    """Smallest slowdown of each ceiling, as a fraction, that would be found in 95 % of devices."""


@dataclass
class Finding:
    """Verdict on a device, or on a node or rack that is slow as a whole."""

    verdict: str
    device: Device | None = None
    node: str | None = None
    rack: str | None = None
    rows: list[Row] = field(default_factory=list)
    fell: list[str] = field(default_factory=list)
    shown: Row | None = None
    """The row that fell most."""
    drift: float | None = None
    """Logarithm of the rate relative to the device's own history, if it fell."""
    rule: Rule | None = None
    severity: str | None = None
    evidence: list[str] = field(default_factory=list)

    def conclude(self, verdict: str, metrics: Iterable[Metric], facts: Mapping[str, float]) -> None:
        """Set the verdict, what fell, and its cause."""
        self.verdict, chosen = verdict, set(metrics)
        rows = sorted((row for row in self.rows if row.metric in chosen), key=lambda row: row.deviation)
        self.fell, self.shown = list(dict.fromkeys(row.metric.ceiling for row in rows)), rows[0] if rows else None
        for ceiling in self.fell:
            worst = {row.phase: row for row in reversed(rows) if row.metric.ceiling == ceiling}
            texts = [f"{percent(worst[phase].deviation)} {phase}" for phase in PHASES if phase in worst]
            self.evidence.append(f"{ceiling} {', '.join(texts)}")
        self.rule = explain(facts, self.fell)
        if self.rule:
            self.severity = severity(self.rule, facts)
            self.evidence += evidence(facts, self.fell)


def percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"


def grouped(devices: Sequence[Device]) -> list[Group]:
    """Return groups of comparable devices; those with fewer than `MIN_PEERS` ignore VBIOS, then the driver too."""
    keys = {
        index: [device.group[: len(GROUP_PARTS) - ignored] for ignored in range(WIDENED + 1)]
        for index, device in enumerate(devices)
        if device.readings
    }
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, own in keys.items():
        for key in own:
            members[key].append(index)
    groups: dict[tuple[Any, ...], Group] = {}
    for index, own in keys.items():
        key = next((key for key in own if len(members[key]) >= MIN_PEERS), own[-1])
        groups.setdefault(key, Group(key, members[key])).judged.add(index)
    for group in groups.values():
        differing = zip(GROUP_PARTS, *{devices[index].group for index in group.members}, strict=True)
        group.widened = tuple(name for name, *values in differing if len(set(values)) > 1)
    return list(groups.values())


@dataclass
class Series:
    """One metric of a group's devices in one phase."""

    group: Group
    metric: Metric
    phase: str
    readings: dict[int, Reading]

    def __post_init__(self) -> None:
        rates = _centered({index: reading.rate for index, reading in self.readings.items()})
        self.clocks = _centered({i: r.clock for i, r in self.readings.items() if r.clock is not None})
        self.deviations = {"raw": rates}
        """Logarithms relative to the median, as measured (`raw`) and, if clocks are known, per clock."""
        if self.clocks:
            self.deviations["per clock"] = _centered({i: rates[i] - clock for i, clock in self.clocks.items()})

    def row(self, part: Sequence[int]) -> Row:
        """Return the row of a device, or of the median device of a node or rack."""
        deviation = median(self.deviations["raw"][i] for i in part)
        per_clock, clock = (
            median(known) if (known := [values[i] for i in part if i in values]) else None
            for values in (self.deviations.get("per clock", {}), self.clocks)
        )
        below = median(self.readings[i].below for i in part)
        above = median(self.readings[i].above for i in part)
        return Row(self.metric, self.phase, deviation, deviation - below, deviation + above, per_clock, clock)

    def units(self, level: str, devices: Sequence[Device]) -> dict[Any, list[int]]:
        """Return the members of each device, node or rack that has enough of them."""
        if level == "device":
            return {index: [index] for index in self.readings}
        units: dict[Any, list[int]] = defaultdict(list)
        for index in self.readings:
            units[getattr(devices[index].fleet, level)].append(index)
        units.pop(None, None)
        if level == "rack":  # a rack of one node is that node
            units = {name: part for name, part in units.items() if len({devices[i].fleet.node for i in part}) > 1}
        return {name: part for name, part in units.items() if len(part) >= MIN_UNIT}


@dataclass
class Spread:
    """Center and scale of units that should be equal, as logarithms."""

    center: float
    scale: float
    degrees: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the median and the scaled median absolute deviation, moderated by a prior for few values.

        Source: the factor n / (n - 0.8), Croux and Rousseeuw, Time-efficient algorithms for two highly robust
            estimators of scale (1992); moderated variances, Smyth, Statistical Applications in Genetics and Molecular
            Biology 3 (2004) article 3.
        """
        center, count = median(values), len(values)
        mad = 1.4826 * median(abs(value - center) for value in values) * count / (count - 0.8)
        degrees = MAD_EFFICIENCY * (count - 1) if count > 2 else 0.0  # of two, each deviates by half
        square = PRIOR_DEGREES * PRIOR_SPREAD**2 + degrees * mad**2
        degrees += PRIOR_DEGREES
        return cls(center, math.sqrt(square / degrees), degrees)

    def tail(self, value: float, raw: float) -> float:
        """Return the p value of a slowdown; 1 if it or the raw deviation is within the floor."""
        if max(value - self.center, raw) > FLOOR:
            return 1.0
        from scipy.special import stdtr

        return float(stdtr(self.degrees, (value - self.center) / self.scale))


def _centered(values: Mapping[int, float]) -> dict[int, float]:
    center = median(values.values()) if values else 0.0
    return {index: value - center for index, value in values.items()}


def _series_of(group: Group, devices: Sequence[Device]) -> list[Series]:
    readings: dict[tuple[Metric, str], dict[int, Reading]] = defaultdict(dict)
    for index in group.members:
        for key, reading in devices[index].readings.items():
            readings[key][index] = reading
    ordered = sorted(readings.items(), key=lambda item: str(item[0]))
    return [Series(group, *key, known) for key, known in ordered if len(known) > 1]


Found = dict[Any, set[Metric]]
"""What fell by unit: an index of a device, or the name of a node or rack."""


def _found(series: Iterable[Series], level: str, devices: Sequence[Device]) -> tuple[Found, Found]:
    """Return the units that are slow in all measured phases, and those that are in at least one.

    For the first, the upper end of the own interval counts, for the second the deviation. Each is tested as measured
    and per clock; false discoveries are controlled over all tests.
    """
    tails: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in series:
        parts = one.units(level, devices)
        rows = {name: one.row(part) for name, part in parts.items()}
        for kind, values in one.deviations.items():
            known = {name: [values[i] for i in part if i in values] for name, part in parts.items()}
            own = {name: median(part) for name, part in known.items() if part}
            spread = Spread.of(list(own.values() or [0.0]))
            for name, value in own.items() if len(own) > 1 else ():
                if one.group.judged.isdisjoint(parts[name]):
                    continue
                ends = rows[name].high - rows[name].deviation, 0.0
                slow, suspect = (spread.tail(value + end, rows[name].deviation + end) for end in ends)
                is_pair = len(own) == 2  # either may be the exception
                tails[id(one.group), one.metric, kind, name].append((1.0 if is_pair else slow, suspect))
    found: tuple[Found, Found] = defaultdict(set), defaultdict(set)
    in_all = {key: max(p for p, _ in pairs) for key, pairs in tails.items()}
    in_one = {key: min(1.0, len(pairs) * min(p for _, p in pairs)) for key, pairs in tails.items()}
    for units, p_values in zip(found, (in_all, in_one), strict=True):
        limit = _discovery_limit(list(p_values.values()))
        for (_, metric, _, name), p in p_values.items():
            if p <= limit:
                units[name].add(metric)
    return found


def _discovery_limit(p_values: Sequence[float]) -> float:
    """Return the largest p value that is a discovery; -1 if none is.

    Source: Benjamini and Hochberg, Controlling the false discovery rate, J. Royal Statistical Society B 57 (1995) 289.
    """
    small = sorted(p for p in p_values if p < FALSE_DISCOVERY_RATE)
    limits = (p for rank, p in enumerate(small, start=1) if p <= FALSE_DISCOVERY_RATE * rank / len(p_values))
    return max(limits, default=-1.0)


def _set_smallest_changes(series: Sequence[Series]) -> None:
    """Set the slowdowns that would be found as the only ones of the fleet, by the better of raw and per clock."""
    from scipy.special import stdtrit

    tests = sum(len(values) for one in series for values in one.deviations.values()) / len(PHASES)
    for one in series:
        half = median(reading.above for reading in one.readings.values())
        changes = []
        for values in one.deviations.values():
            if len(values) > 2:
                spread = Spread.of(list(values.values()))
                limit = max(-FLOOR, -spread.scale * float(stdtrit(spread.degrees, FALSE_DISCOVERY_RATE / tests)))
                changes.append(-math.expm1(-limit - half - Z_95 * spread.scale))
        if changes:
            known, ceiling = one.group.smallest_change, one.metric.ceiling
            known[ceiling] = max(min(changes), known.get(ceiling, 0.0))


def judge(devices: Sequence[Device], earlier: Mapping[Any, Sequence[Device]]) -> tuple[list[Finding], list[Group]]:
    """Return a finding for each slow rack, slow node and device, and the groups of peers.

    Nodes are compared within their rack if it is slow as a whole, and devices within their node. `earlier` has the
    older measurements of a device by its identity.
    """
    groups = grouped(devices)
    series = [one for group in groups for one in _series_of(group, devices)]
    _set_smallest_changes(series)
    facts: dict[int, dict[str, float]] = {}
    for group in groups:
        peers = medians([devices[index].facts for index in group.members], RELATIVE)
        for index in group.judged:
            facts[index] = {name: v - peers.get(name, 0.0) for name, v in devices[index].facts.items()}
    findings = []
    for level in LEVELS[:-1]:
        for name, metrics in _found(series, level, devices)[0].items():
            findings.append(_unit_finding(level, name, [s for s in series if s.metric in metrics], devices, facts))
    slow, suspect = _found(series, LEVELS[-1], devices)
    rows: dict[int, list[Row]] = defaultdict(list)
    for one in series:
        for index in one.group.judged & one.readings.keys():
            rows[index].append(one.row([index]))
    for index, device in enumerate(devices):
        finding = Finding(OK, device, device.fleet.node, device.fleet.rack, rows[index])
        drift = drift_of(device, earlier.get(device.identity, ()))
        _judge_device(finding, facts.get(index, {}), slow[index], suspect[index], drift)
        whole = [
            f"{unit.rack or unit.node} is slow as a whole"
            for unit in findings
            if unit.device is None and (unit.rack or unit.node) in (device.fleet.rack, device.fleet.node)
        ]
        finding.evidence += whole
        findings.append(finding)
    return findings, groups


def _unit_finding(
    level: str, name: str, fallen: Sequence[Series], devices: Sequence[Device], facts: Mapping[int, Mapping[str, float]]
) -> Finding:
    """Return a slow rack or node, and judge its devices relative to it from now on."""
    members: set[int] = set()
    finding = Finding(SLOW, rack=name if level == "rack" else None, node=name if level == "node" else None)
    for one in fallen:
        if part := one.units(level, devices).get(name):
            members |= set(part)
            finding.rows.append(one.row(part))
            for values in one.deviations.values():
                center = median(values[i] for i in part if i in values)
                values |= {i: values[i] - center for i in part if i in values}
    common = medians([facts[index] for index in members])
    finding.conclude(SLOW, {row.metric for row in finding.rows}, common | _clock_facts(finding.rows))
    finding.evidence.insert(0, f"{len(members)} devices")
    return finding


def _clock_facts(rows: Iterable[Row]) -> dict[str, float]:
    """Return by how much clocks, and the memory's rate per clock, are below those of the peers."""
    facts: dict[str, float] = {}
    for row in rows:
        is_memory, is_known = row.metric.ceiling == "memory", row.clock is not None and row.per_clock is not None
        lost = -math.expm1(row.clock or 0.0)
        if is_memory:
            # Without a clock the cause may be the clock.
            values = {"memory_clock_lost": lost, "memory_per_clock_lost": -math.expm1(row.per_clock or 0.0)}
        else:
            values = {"sm_clock_lost": lost, "sm_clock_share": (row.clock or 0.0) / min(row.deviation, -1e-9)}
        if is_known and (row.deviation < facts.get(f"worst_{is_memory}", 0.0)):
            facts |= values | {f"worst_{is_memory}": row.deviation}
    return facts


def _judge_device(
    finding: Finding,
    facts: dict[str, float],
    slow: set[Metric],
    suspect: set[Metric],
    drift: tuple[Metric, float] | None,
) -> None:
    device, rows = finding.device, finding.rows
    assert device is not None
    facts = facts | _clock_facts(rows)
    below = {row.metric for row in rows if row.high <= FLOOR}
    alone = explain(facts, {metric.ceiling for metric in below}, alone=True) if below else None
    wide = {row.metric for row in rows if (row.high - row.low) / 2 > UNSTABLE_HALF_WIDTH}
    finding.drift = drift[1] if drift else None
    if drift:
        finding.evidence.append(f"{percent(drift[1])} of its own history over {SUSTAINED_RUNS} runs")
    if slow:
        finding.conclude(SLOW, slow, facts)
    elif alone:
        finding.conclude(SLOW, {metric for metric in below if metric.ceiling in alone.fell}, facts)
    elif drift:
        finding.conclude(SLOW, {drift[0]}, facts)
    elif not rows:
        finding.verdict = UNMEASURED
        finding.evidence.append("no peers" if device.readings else "no measured row")
    elif suspect or "wrong_results" in facts:
        finding.conclude(SUSPECT, suspect or {row.metric for row in rows}, facts)
    elif wide:
        finding.conclude(UNSTABLE, wide, {})
        finding.rule = finding.severity = None
    elif device.failures:
        finding.verdict = UNMEASURED
    finding.evidence += device.failures


def drift_of(device: Device, earlier: Sequence[Device]) -> tuple[Metric, float] | None:
    """Return the metric that fell furthest below the device's own history in each of the last runs, and by how much."""
    found: tuple[Metric, float] | None = None
    for key, reading in device.readings.items():
        rates = [*(old.readings[key].rate for old in earlier if key in old.readings), reading.rate]
        if len(rates) < MIN_RUNS:
            continue
        before, last = median(rates[:-SUSTAINED_RUNS]), rates[-SUSTAINED_RUNS:]
        change = median(last) - before
        if max(last) - before <= FLOOR and (found is None or change < found[1]):
            found = key[0], change
    return found
