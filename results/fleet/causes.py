"""Facts and causes of slow devices. The rules in `rules.toml` are names of facts with limits, never
code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from results.show.facts import facts_beside

DATA = facts_beside(__file__, "rules.toml")
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
        if not rule.above:
            explained = explained if set(fell) <= set(rule.fell) else set()
        exceeds = all(facts.get(name, 0.0) > limit for name, limit in rule.above.items())
        if explained and exceeds:
            rules.append(rule)
    return rules


def evidence(rules: Iterable[Rule], facts: Mapping[str, float]) -> list[str]:
    """Return a text for each fact of the rules."""
    names: dict[str, None] = {}
    for rule in rules:
        names |= dict.fromkeys(rule.above)
    texts = {name: DATA["evidence"][name] for name in names}
    return [text.format(facts[name] * (100 if "%" in text else 1)) for name, text in texts.items()]
