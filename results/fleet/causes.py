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
        exceeds = all(facts.get(name, 0.0) > limit for name, limit in self.above.items())
        return (
            exceeds
            and bool({*fell} & {*self.fell})
            and (bool(self.above) or {*fell} <= {*self.fell})
        )


RULES = tuple(Rule(**rule) for rule in DATA["rule"])


def explain(facts: Mapping[str, float], fell: Collection[str], alone: bool = False) -> Rule | None:
    """Return the first rule that explains what fell; with `alone`, of those whose facts suffice."""
    return next(
        (rule for rule in RULES if rule.matches(facts, fell) and (rule.alone or not alone)), None
    )


def evidence(facts: Mapping[str, float], fell: Collection[str]) -> list[str]:
    """Return a text for each fact of all matching rules."""
    names = dict.fromkeys(
        name for rule in RULES if rule.matches(facts, fell) for name in rule.above
    )
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
    return {
        name: median(known)
        for name in names
        if (known := [each[name] for each in facts if name in each])
    }
