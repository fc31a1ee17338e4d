"""The verdicts of a page: run against run or provider against provider, as `python -m results compare` has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.compare.comparison import compare
from results.compare.earlier import runs_beside
from results.compare.output import describe, foremost, headline, json_rows
from results.compare.selection import Wanted, load
from results.compare.sides import CompareOptions, text_of
from results.record import Record
from results.store.runfile import Run, StoreError
from roofline.plot.scene import Scene

MOST_ROWS = 500
"""Of a comparison; of more, those that matter most are shown."""


def verdicts_of(paths: Sequence[Path], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the comparison of the first run with each of the others, or of the providers of the only one.

    Each is a JSON object with `runs` (ids of the baseline's and the candidate's run), `headline`, `rows` with the keys
    of `results compare --format json`, `left_out` (how many rows are not among them), `unmatched` and `notes`. Where
    the two cannot be compared, `headline` says why and there are no rows.
    """
    whole = [load(path) for path in paths]
    runs = [wanted.of(run) for run in whole]
    if len(runs) == 1 and len({one.provider for one in runs[0].records if one.status == "ok"}) > 1:
        return [_compared(runs[0], None)]
    earlier = [*runs_beside(whole), *whole] if len(runs) > 1 else []
    return [_compared(runs[0], other, earlier) for other in runs[1:]]


def _compared(first: Run, other: Run | None, earlier: Sequence[Run] = ()) -> dict[str, Any]:
    known = {"runs": [run.environment.run_id for run in (first, other or first)]}
    try:
        compared = compare(first, other, CompareOptions(by=None if other else "provider"), earlier=earlier)
    except StoreError as error:
        names = " and ".join(dict.fromkeys(known["runs"]))
        none: dict[str, Any] = {"rows": [], "left_out": 0, "unmatched": [], "notes": []}
        return known | none | {"headline": f"{names}: no comparison, because {error}"}
    chosen = {id(row) for row in foremost(compared, MOST_ROWS)}
    rows = [found for row, found in zip(compared.rows, json_rows(compared), strict=True) if id(row) in chosen]
    return known | {
        "headline": headline(compared),
        "rows": rows,
        "left_out": len(compared.rows) - len(rows),
        "unmatched": [describe(one) for one in compared.unmatched[:MOST_ROWS]],
        "notes": list(compared.notes),
    }


def told_rows(scene: Scene, verdicts: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return two columns of the rows of a scene: the verdict on each in words, and the row of its baseline, or None."""
    keys = [
        (machine.environments[machine.run_of(number)].run_id if machine.environments else "", *_key(record))
        for machine in scene.machines
        for number, record in enumerate(machine.records)
    ]
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    verdict: list[str | None] = [None] * len(keys)
    baseline: list[int | None] = [None] * len(keys)
    for one in verdicts:
        before, after = one["runs"]
        for row in one["rows"]:
            what = (row["op"], row["dtype"], row["case"], row["options"])
            candidate = first.get((after, *what, row["provider_candidate"]))
            if candidate is not None:
                verdict[candidate] = f"{row['verdict']}, time ratio {row['ratio']:.3f} to {row['baseline']}"
                baseline[candidate] = first.get((before, *what, row["provider_baseline"]))
    return {"verdict": verdict, "baseline": baseline}


def _key(record: Record) -> tuple[str, ...]:
    return record.op, record.dtype, record.case, text_of(record.options), record.provider
