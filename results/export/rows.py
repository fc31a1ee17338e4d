"""Rows of a run under the stable names that trackers use as keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from results.record import Record, text_of
from results.show.terminal import printable
from results.store.runfile import Run
from roofline.model import judge

USUAL = {"layout": "nn", "batch": 1, "fill": "uniform", "cache": "cold"}
"""Settings that a name leaves out. All others are part of the name, so a name never mixes two
series.
"""


@dataclass(frozen=True)
class Row:
    """A record with its name and its limits."""

    name: str
    """`op/case/dtype/provider@device`, then settings that are not `USUAL`, such as `[layout=nt]`. A
    repeated row of the run has a number, such as `[#2]`. Only printable characters."""
    labels: Mapping[str, str]
    """The parts of the name; `options` is empty if all settings are usual."""
    record: Record
    median_s: float
    """0 if it was not measured."""
    roof_s: float | None
    """Minimum seconds of a launch by the roofline; None if unknown."""
    mfu: float | None


def rows_of(run: Run) -> list[Row]:
    counts = Counter[str]()
    rows = []
    for record in run.records:
        labels = {
            "op": record.op,
            "case": record.case,
            "dtype": record.dtype,
            "provider": record.provider,
            "device": run.environment.device["slug"],
        }
        settings = record.options | {
            "fill": record.fill,
            "cache": run.environment.settings.get("cache"),
        }
        options = text_of(
            {key: value for key, value in settings.items() if value not in (None, USUAL.get(key))}
        )
        name = "{op}/{case}/{dtype}/{provider}@{device}".format(**labels)
        counts[name + options] += 1
        count = counts[name + options]
        if count > 1:
            options = f"{options} #{count}".strip()
        labels["options"] = options
        median_s = record.median_s or 0.0
        score = judge(record, run.environment.machine)
        roof_s = None if score.roofline_pct is None else median_s * score.roofline_pct / 100
        labels = {label: printable(text) for label, text in labels.items()}
        name = printable(f"{name}[{options}]" if options else name)
        rows.append(Row(name, labels, record, median_s, roof_s, score.mfu))
    return rows
