"""What a page shows besides rows: verdicts as `python -m results compare` has them, and estimates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.compare.comparison import compare
from results.compare.earlier import runs_beside
from results.compare.output import describe, foremost, headline, json_rows
from results.compare.selection import Wanted, load
from results.compare.sides import CompareOptions
from results.show.terminal import one_line
from results.store.runfile import Run, StoreError, reason_of

MOST_ROWS = 500
"""Of a comparison; of more, those that matter most are shown."""
PARTS = ("", "prefill_", "decode_")
"""What stands before `flops`, `bytes` and `seconds` in the rows of an estimate."""


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


def estimates_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return each row of the estimates that has FLOPs, bytes and seconds, as a JSON object with its rates.

    Raises:
        StoreError: a file cannot be read, or has no such row.
    """
    return [estimate for path in paths for estimate in _read(path)]


def _read(path: Path) -> Sequence[dict[str, Any]]:
    shown = one_line(str(path), 200)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"--estimate {shown}: {reason_of(error)}") from None
    except (ValueError, RecursionError):
        raise StoreError(f"--estimate {shown} is no JSON: write it with roofline estimate ... --format json") from None
    rows = document.get("rows") or [document] if isinstance(document, dict) else []
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    found = [one for row in known for part in PARTS if (one := _estimate(path.stem, row, part))]
    if not found:
        raise StoreError(f"--estimate {shown} has no FLOPs, bytes and seconds: those of matmul and infer have")
    return found


def _estimate(name: str, row: Mapping[str, Any], part: str) -> dict[str, Any] | None:
    """Return one part of a row, None where one of its three numbers is missing."""
    flops, moved, seconds = (_positive(row.get(f"{part}{key}")) for key in ("flops", "bytes", "seconds"))
    if flops is None or moved is None or seconds is None:
        return None
    words = [name, part.rstrip("_"), *(str(row[key]) for key in ("gpu", "dtype") if row.get(key))]
    words += ["does not fit in memory"] if row.get("fits") is False else []
    return {
        "name": one_line(" ".join(filter(None, words)), 60),
        "flops": flops,
        "bytes": moved,
        "seconds": seconds,
        "intensity": flops / moved,
        "flops_per_s": flops / seconds,
        "bound": one_line(str(row.get(f"{part}bound", ""))),
    }


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 < value < 1e300 and math.isfinite(value) else None
