"""Causes of slow devices, by the rules of `rules.toml`: names of facts with numeric limits, never code."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RELATIVE = {"power_cap", "thermal", "power_brake", "locked", "host_throttle", "memory_used_bytes", "utilization"}
"""Facts that count by how far they exceed the median of the peers."""

SEVERITIES = ("MONITOR", "RESET", "REBOOT", "ISOLATE")

DRIVER_ADVICE = {1: "RESET", 2: "REBOOT", 3: "ISOLATE", 4: "ISOLATE"}
"""Severity of the driver's recommended action. Source: nvml.h, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`: reset, reboot,
drain peer to peer, drain and reset."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A cause and the facts that show it."""

    cause: str
    fell: tuple[str, ...]
    """Ceilings that it explains, at least one of which fell."""
    above: dict[str, float]
    """Facts that all exceed their limits; the cause is one of the first fact's."""
    alone: bool = False
    """Whether the facts suffice without a statistically significant difference."""
    severity: str
    action: str

    def matches(self, facts: Mapping[str, float], fell: Collection[str]) -> bool:
        """Return whether all facts exceed their limits; without facts, no other ceiling may have fallen."""
        if not self.above:
            return set(fell) <= set(self.fell)
        exceeds = all(facts.get(name, 0.0) > limit for name, limit in self.above.items())
        return exceeds and not set(fell).isdisjoint(self.fell)


_DATA = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
RULES = tuple(Rule(**rule) for rule in _DATA["rule"])
"""All rules; the first that matches names the cause."""


def beyond_peers(facts: Mapping[str, float], peers: Mapping[str, float]) -> dict[str, float]:
    """Return facts, the `RELATIVE` ones minus the median of the peers."""
    return {name: value - peers.get(name, 0.0) for name, value in facts.items()}


def medians(facts: Sequence[Mapping[str, float]], only: Collection[str] | None = None) -> dict[str, float]:
    names = {name for known in facts for name in known if only is None or name in only}
    return {name: median([known[name] for known in facts if name in known]) for name in names}


def explain(facts: Mapping[str, float], fell: Collection[str], alone: bool = False) -> Rule | None:
    """Return the first rule that explains what fell; with `alone`, of those whose facts suffice."""
    return next((rule for rule in RULES if rule.matches(facts, fell) and (rule.alone or not alone)), None)


def evidence(facts: Mapping[str, float], fell: Collection[str]) -> list[str]:
    """Return a text for each fact of the matching rules."""
    names = dict.fromkeys(name for rule in RULES if rule.matches(facts, fell) for name in rule.above)
    return [_DATA["evidence"][name].format(facts[name]) for name in names]


def severity(rule: Rule, facts: Mapping[str, float]) -> str:
    """Return the severity of a rule, or that of the driver's recommended action if it is higher."""
    advised = DRIVER_ADVICE.get(int(facts.get("recommended_action", 0)), SEVERITIES[0])
    return max(rule.severity, advised, key=SEVERITIES.index)
