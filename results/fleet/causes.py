"""Facts and causes of slow devices. The rules in `rules.toml` are names of facts with limits, never
code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

DATA = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
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

    def matches(self, facts: Mapping[str, float], fell: Collection[str]) -> bool:
        if not all(facts.get(name, 0.0) > limit for name, limit in self.above.items()):
            return False
        if self.above:
            return not set(fell).isdisjoint(self.fell)
        return bool(fell) and set(fell) <= set(self.fell)


RULES = tuple(Rule(**rule) for rule in DATA["rule"])


def explain(facts: Mapping[str, float], fell: Collection[str], alone: bool = False) -> Rule | None:
    """Return the first rule that explains what fell; with `alone`, of those whose facts suffice."""
    return next(
        (rule for rule in RULES if rule.matches(facts, fell) and (rule.alone or not alone)), None
    )


def evidence(facts: Mapping[str, float], fell: Collection[str]) -> list[str]:
    """Return a text for each fact of all matching rules."""
    names: dict[str, None] = {}
    for rule in RULES:
        if rule.matches(facts, fell):
            names |= dict.fromkeys(rule.above)
    texts = {name: DATA["evidence"][name] for name in names}
    return [text.format(facts[name] * (100 if "%" in text else 1)) for name, text in texts.items()]


def severity(rule: Rule, facts: Mapping[str, float]) -> str:
    """Return the severity of a rule, or that of the driver's recommended action if it is higher."""
    advised: str = DATA["recommended_action"].get(
        f"{facts.get('recommended_action', 0):.0f}", SEVERITIES[0]
    )
    return max(rule.severity, advised, key=SEVERITIES.index)


def medians(facts: Collection[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """Return the median of each named fact over the devices that have it."""
    result = {}
    for name in names:
        known = [each[name] for each in facts if name in each]
        if known:
            result[name] = median(known)
    return result
