"""Estimates as a layer of a page: FLOPs, bytes and time by `python -m roofline estimate ... --format json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.show.terminal import one_line
from results.store.runfile import StoreError, reason_of

PARTS = ("", "prefill_", "decode_")
"""What stands before `flops`, `bytes` and `seconds` in the rows of an estimate."""


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
