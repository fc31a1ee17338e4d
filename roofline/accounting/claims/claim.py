"""A claim of the study notes, held against what this package computes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NOTES = {
    "S0": "summary of CS336 (2026) lecture 2",
    "S1": "second summary of CS336 (2026) lecture 2",
    "S2": "lesson with calculators on CS336 (2025) lecture 2",
    "S3": "study guide to CS336 (2025) lecture 2",
    "S4": "blog post on CS336 (2025) lecture 2",
}
"""The five notes that the table is about."""

COURSE = "https://stanford-cs336.github.io"
"""Home of the course, as S4 gives it; its lecture 2 is what all five are about."""


@dataclass(frozen=True)
class Claim:
    """One row of the table."""

    notes: str
    """Keys of `NOTES`."""
    claim: str
    theirs: str
    ours: str
    formula: str
    verdict: str
    """`holds`, `wrong`, or `depends on ...`."""
    remark: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return asdict(self)


def holds_to(theirs: float, ours: float, digits: int) -> bool:
    """Return whether two values agree in so many significant digits: those that the notes print."""
    return f"{theirs:.{digits - 1}e}" == f"{ours:.{digits - 1}e}"


def compared(
    notes: str,
    claim: str,
    theirs: tuple[float, str],
    ours: tuple[float, str],
    formula: str,
    digits: int,
    remark: str = "",
    depends: str = "",
) -> Claim:
    """Return a claim whose verdict follows from the numbers.

    Args:
        notes: which notes say it.
        claim: what they say, in few words.
        theirs: their value, and as they print it.
        ours: ours in the same unit, and with it.
        formula: by which it is computed.
        digits: significant digits that they print.
        remark: what else there is to know.
        depends: what it depends on, where neither value is the only right one; given, it is the verdict.
    """
    verdict = "holds" if holds_to(theirs[0], ours[0], digits) else "wrong"
    if depends:
        verdict = f"depends on {depends}"
    return Claim(notes, claim, theirs[1], ours[1], formula, verdict, remark)
