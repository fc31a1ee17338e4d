"""Glossary of `bench explain`: every flag, column, row, verdict and bound of the tables, and terms
of the field.

The texts are in `words.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass

from results.show.facts import facts_beside
from roofline.limits import LIMITS


@dataclass(frozen=True)
class Word:
    """An entry of the glossary."""

    kind: str
    """`flag`, `column`, `row`, `verdict`, `bound` or `term`."""
    meaning: str
    advice: str = ""
    """What to do about it, or how to read it; may be empty."""
    source: str = ""
    """Where to read on."""
    tried: str = ""
    """Common remedies for a kernel far from the limit, of a bound."""


_TEXTS = facts_beside(__file__, "words.toml")


def _words(kind: str) -> dict[str, Word]:
    return {name: Word(kind, **texts) for name, texts in _TEXTS[kind].items()}


FLAGS = _words("flag")
COLUMNS = _words("column")
ROWS = _words("row")
VERDICTS = _words("verdict")
BOUNDS = {
    limit.name: Word("bound", limit.meaning, limit.advice, limit.source, limit.tried)
    for limit in LIMITS
} | _words("bound")
TERMS = _words("term")

TUNING = "NVIDIA, CUDA C++ Best Practices Guide; kernels/README.md"

NEAR_PCT = 80.0
"""Percent of the ceiling above which little can be gained."""
FAR_PCT = 30.0
"""Percent of the ceiling below which something else limits."""


def lines_about(bound: str, share_pct: float) -> list[str]:
    """Return the meaning of a percentage of the limiting ceiling, remedies and further reading."""
    tried = BOUNDS[bound].tried
    advice = f"what people try: {tried}."
    meaning = f"a better kernel can gain a factor of {100 / share_pct:.2g}."
    if share_pct > 100:
        meaning = FLAGS["above-roof"].meaning
        advice = f"what to do: {FLAGS['above-roof'].advice}"
    elif share_pct >= NEAR_PCT:
        left = f"at most a factor of {100 / share_pct:.3g}" if share_pct < 100 else "nothing"
        meaning = f"near the limit; a better kernel can gain {left}."
        advice = f"what to do: {BOUNDS[bound].advice}"
    elif share_pct < FAR_PCT:
        meaning = (
            "limited by latency, too few threads, instructions or the library, not by the ceiling."
        )
        advice = f"what people try: first a larger case, then {tried}."
    subject = f"{bound}-bound at {share_pct:.3g} % of its ceiling"
    return [f"{subject}: {meaning}", advice, f"read on: {BOUNDS['mixed'].source}; {TUNING}"]
