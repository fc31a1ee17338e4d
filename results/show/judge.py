"""The judged keys of a record: what its counts and times mean on its machine.

The formulas live in the floor above, in `roofline`, each of them once. This package must not import that one, because
imports only go down. So the judge is found by its name when a record is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pkgutil import resolve_name
from typing import Any

from results.record import Environment, Record

JUDGE = "roofline.model:judged_keys"
"""Takes a record and the `hardware` of its environment, returns the judged keys; raises ValueError where `hardware`
does not hold ceilings."""

JUDGED_KEYS = (
    "flops_per_s",
    "bytes_per_s",
    "intensity",
    "bound",
    "mfu",
    "mbu",
    "roofline_pct",
    "peak_units",
    "held_back_by",
    "peak_kind",
    "bandwidth_kind",
    "mix",
    "mix_pct",
    "measured_pct",
    "hfu",
    "tokens_per_s",
    "link_share",
    "hidden_share",
    "wait_share",
    "excess",
)
"""The keys that a record gets when it is read; none of them is stored."""

JUDGED_TEXTS = ("bound", "peak_units", "held_back_by", "peak_kind", "bandwidth_kind", "mix", "excess")
"""Those of them that are words; all others are numbers."""

Report = Callable[[str], None]
"""Is told, in one line, of what could not be judged."""


def judged(environment: Environment, records: Iterable[Record], report: Report | None = None) -> list[dict[str, Any]]:
    """Return the judged keys of each record, in order; null where nothing can be said.

    Args:
        environment: holds the ceilings of the machine.
        records: what was measured there.
        report: is told once of each reason for which a key is null though it should not be.
    """
    judge: Callable[[Record, dict[str, Any]], dict[str, Any]] = resolve_name(JUDGE)
    rows, reasons = [], dict[str, None]()
    for record in records:
        try:
            values = judge(record, environment.hardware)
        except ValueError as error:
            values = {}
            reasons[f"the ceilings of the run cannot be used, so nothing is judged by them: {error}"] = None
        rows.append({key: values.get(key) for key in JUDGED_KEYS})
    for reason in reasons if report else ():
        report(reason)  # type: ignore[misc]
    return rows
