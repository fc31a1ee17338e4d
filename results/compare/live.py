"""A comparison that has just been measured: all providers of a case were interleaved with one baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from results.compare.comparison import Compared, compared_of
from results.compare.load import turns_of
from results.compare.match import WRONG
from results.compare.sides import CompareOptions
from results.record import Environment, Record
from results.stats.comparison import DEFAULT_MARGIN
from results.store.runfile import Run


def compare_live(environment: Environment, records: Iterable[Record], baseline: str, margin: float) -> Compared:
    """Return the comparison of the providers of a run; any wrong or failed result counts as broken.

    Args:
        environment: of the run, with the ceilings.
        records: as they were measured.
        baseline: provider with which the others are compared.
        margin: change of the time, as a fraction, that does not matter.
    """
    run = Run(Path(), environment, tuple(records))
    found = compared_of(run, None, CompareOptions(by="provider", baseline=baseline, margin=margin), 0.0)
    unmatched = tuple(
        replace(one, is_broken=one.record.status in WRONG)
        for one in found.unmatched
        if one.side == "candidate" or one.record.status != "ok"
    )
    return replace(found, unmatched=unmatched)


def saved_request(run: Run) -> CompareOptions | None:
    """Return how a saved comparison was compared; None for a run whose rows were not interleaved."""
    names = next((one.interleaved["with"] for one in run.records if turns_of(one)), None)
    if not names:
        return None
    settings = {"baseline": names[0], "margin": DEFAULT_MARGIN} | run.environment.settings
    return CompareOptions("provider", str(settings["baseline"]), float(settings["margin"]))
