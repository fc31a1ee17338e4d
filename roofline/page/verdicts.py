"""The verdicts of a page: the first run against each of the others, as `python -m results compare` judges them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.compare.comparison import compare
from results.compare.load import PROCESS, Wanted, load
from results.compare.output import describe, foremost, headline, json_rows
from results.compare.sides import CompareOptions
from results.record import Record
from results.store.runfile import StoreError
from roofline.plot.scene import Scene

MOST_ROWS = 500
"""Of a comparison; of more, those that matter most are shown."""


def verdicts_of(paths: Sequence[Path], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the comparison of the first run with each of the others as a JSON object.

    It has `headline`, `rows` with the keys of `results compare --format json`, `left_out` (how many rows are not among
    them), `unmatched` and `notes`; where the two cannot be compared, `headline` says why and there are no rows.
    """
    if len(paths) < 2:
        return []
    first, *others = (load(path, wanted) for path in paths)
    found = []
    for other in others:
        names = {"baseline": first.environment.run_id, "candidate": other.environment.run_id}
        try:
            compared = compare(first, other, CompareOptions())
        except StoreError as error:
            text = f"{names['baseline']} and {names['candidate']} are not compared: {error}"
            found.append(names | {"headline": text, "rows": [], "left_out": 0, "unmatched": [], "notes": []})
            continue
        rows = foremost(compared, MOST_ROWS)
        shown = {id(row) for row in rows}
        listed = [known for row, known in zip(compared.rows, json_rows(compared), strict=True) if id(row) in shown]
        found.append(
            names
            | {
                "headline": headline(compared),
                "rows": listed,
                "left_out": len(compared.rows) - len(listed),
                "unmatched": [describe(one) for one in compared.unmatched[:MOST_ROWS]],
                "notes": list(compared.notes),
            }
        )
    return found


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
        for row in one["rows"]:
            what = (row["op"], row["dtype"], row["case"], row["options"])
            candidate = first.get((one["candidate"], *what, row["provider_candidate"]))
            if candidate is not None:
                verdict[candidate] = f"{row['verdict']}, time ratio {row['ratio']:.3f} to {one['baseline']}"
                baseline[candidate] = first.get((one["baseline"], *what, row["provider_baseline"]))
    return {"verdict": verdict, "baseline": baseline}


def _key(record: Record) -> tuple[str, ...]:
    """Return what a row of a comparison names a record by."""
    options = " ".join(f"{name}={record.options[name]}" for name in sorted(record.options) if name != PROCESS)
    return record.op, record.dtype, record.case, options, record.provider
