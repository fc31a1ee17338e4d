"""Records with MFU, bound and other computed keys as JSON, flat rows or a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, get_type_hints

from results.record import KINDS, TELEMETRY_NUMBERS, Environment, Object, Record
from results.store.runfile import Run
from roofline.model import JUDGED_KEYS, JUDGED_TEXTS, judged

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "Int64"
NUMBER = "float64"
TEXT = "string"
TRUTH = "boolean"

COLUMNS = {
    **dict.fromkeys(("run_id", "started_at", "device_slug"), TEXT),
    **dict.fromkeys(("op", "case", "dtype", "provider", "status", "reason"), TEXT),
    **dict.fromkeys(("median_s", "ci95_low_s", "ci95_high_s"), NUMBER),
    **dict.fromkeys(("samples", "outliers"), WHOLE),
    "warm_median_s": NUMBER,
    **{key: TEXT if key in JUDGED_TEXTS else NUMBER for key in JUDGED_KEYS},
    **dict.fromkeys(("flops", "bytes_read", "bytes_written", "launches_per_sample"), WHOLE),
    "method": TEXT,
    "cache": TEXT,
    "copies": WHOLE,
    "fill": TEXT,
    **dict.fromkeys(("converged", "settled"), TRUTH),
    **dict.fromkeys(("host_latency_s", "first_call_s"), NUMBER),
    "peak_memory_bytes": WHOLE,
    **dict.fromkeys(
        ("flags", "flag_reasons", "source_sha256", "source_git", "op_sha256", "units"), TEXT
    ),
}
"""Columns of every row, in order, with their dtypes in a frame. They are followed by
`shape_<axis>`, `option_<name>`, `telemetry_<name>`, `verified_<name>` and `details_<name>` if the
records have them."""

GROUPS = {
    "shape": "shape",
    "option": "options",
    "telemetry": "telemetry",
    "verified": "verified",
    "details": "details",
}
"""Keys of a record whose objects are columns, by the start of their names."""

DTYPES = {
    **COLUMNS,
    **{f"telemetry_{name}": NUMBER for name in TELEMETRY_NUMBERS},
    "telemetry_cgroup_throttled_periods": WHOLE,
}
DTYPE_OF = {int: WHOLE, int | None: WHOLE, float: NUMBER, float | None: NUMBER}
"""Dtype of the numbers of details, by their annotation."""

ONLY_IN_JSON = "telemetry_errors"
"""Not a column: texts about the machine that repeat in each row."""


def document(environment: Environment, records: Iterable[Record]) -> Object:
    """Return a run as a JSON object, `{"environment": ..., "records": [...]}`, each record with its
    computed keys.
    """
    return {
        "environment": environment.to_dict(),
        "records": [
            record.to_json() | {"units": record.units} | score
            for record, score in judged(environment, records)
        ],
    }


def flat_rows(environment: Environment, records: Iterable[Record]) -> list[Object]:
    """Return a row of numbers in SI base units, texts, booleans or None for each record; see
    `COLUMNS`.
    """
    return _aligned(
        [_row(environment, record, score) for record, score in judged(environment, records)]
    )


def to_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """Return runs as a pandas frame with the columns of `flat_rows` and `samples_s` as lists;
    counts are nullable.
    """
    import pandas as pd

    known: dict[str, str | None] = dict(DTYPES)
    for kind in KINDS.values():
        for name, hint in get_type_hints(kind).items():
            known[f"details_{name}"] = DTYPE_OF.get(hint)
    rows = []
    samples_s = []
    for run in runs:
        rows += flat_rows(run.environment, run.records)
        samples_s += [list(record.samples_s) for record in run.records]
    rows = _aligned(rows)
    names = rows[0] if rows else COLUMNS
    columns = {}
    for name in names:
        values = [_encodable(row[name]) for row in rows]
        dtype = known.get(name) or (WHOLE if name.startswith("shape_") else None)
        if dtype is None:
            inferred = str(pd.Series(values, dtype="object").convert_dtypes().dtype)
            dtype = {"object": TEXT, "Float64": NUMBER}.get(inferred, inferred)
        if dtype == TEXT:
            values = [None if value is None else str(value) for value in values]
        columns[_encodable(name)] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(columns | {"samples_s": pd.Series(samples_s, dtype="object")})


def _row(environment: Environment, record: Record, score: Object) -> Object:
    low, high = record.ci95_s or (None, None)
    known = record.to_dict() | score
    known |= {
        "run_id": environment.run_id,
        "started_at": environment.started_at,
        "device_slug": environment.device["slug"],
        "ci95_low_s": low,
        "ci95_high_s": high,
        "samples": len(record.samples_s),
        "flags": ",".join(record.flags),
        "flag_reasons": record.flag_reasons or None,
    }
    row = {name: _plain(known.get(name)) for name in COLUMNS}
    for group, key in GROUPS.items():
        values = known.get(key, {})
        row |= {f"{group}_{name}": _plain(value) for name, value in values.items()}
    row.pop(ONLY_IN_JSON, None)
    return row


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value


def _aligned(rows: Sequence[Object]) -> list[Object]:
    names = dict.fromkeys(chain.from_iterable(rows))
    ordered = list(COLUMNS)
    for group in GROUPS:
        ordered += [name for name in names if name.startswith(f"{group}_")]
    return [{name: row.get(name) for name in ordered} for row in rows]


def _encodable(value: object) -> object:
    """Return a text with lone surrogates escaped, which pandas and parquet cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
