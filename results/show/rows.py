"""Records with their judged keys as plain data: one JSON document, flat rows, a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.store.runfile import Run
from roofline.model import JUDGED_KEYS, JUDGED_TEXTS, judged

if TYPE_CHECKING:
    import pandas as pd

Report = Callable[[str], None]
"""Is called with one line on what could not be judged."""

RUN_COLUMNS = ("run_id", "started_at", "device_slug")
WHOLE_COLUMNS = ("flops", "bytes_read", "bytes_written", "launches_per_sample", "samples", "copies", "outliers")
TIME_COLUMNS = ("median_s", "ci95_low_s", "ci95_high_s", "warm_median_s", "host_latency_s", "first_call_s")
COLUMNS = (
    *RUN_COLUMNS,
    *("op", "case", "dtype", "provider", "status", "reason"),
    *("median_s", "ci95_low_s", "ci95_high_s", "samples", "outliers", "warm_median_s"),
    *JUDGED_KEYS,
    *("flops", "bytes_read", "bytes_written", "launches_per_sample", "method", "cache", "copies", "fill"),
    *("converged", "settled", "host_latency_s", "first_call_s", "flags", "flag_reasons", "source_sha256", "source_git"),
    *("op_sha256", "units"),
)
"""The columns that every row has, in this order. After them come `shape_<axis>`, `option_<name>`, `telemetry_<name>`
and `verified_<name>`, as far as the records have them."""

TELEMETRY_NUMBERS = (
    *("window_s", "sm_clock_hz", "sm_clock_start_hz", "memory_clock_hz", "temperature_c", "power_w", "energy_j"),
    *("flops_per_j", "throttle_resolution", "involuntary_switches_per_s", "voluntary_switches_per_s", "load_average"),
)
"""Keys of the telemetry whose columns are floats, even if no record has a value."""

DTYPES = {
    **dict.fromkeys(COLUMNS, "string"),
    **dict.fromkeys((*TIME_COLUMNS, *(key for key in JUDGED_KEYS if key not in JUDGED_TEXTS)), "float64"),
    **dict.fromkeys((f"telemetry_{name}" for name in TELEMETRY_NUMBERS), "float64"),
    **dict.fromkeys((*WHOLE_COLUMNS, "telemetry_cgroup_throttled_periods"), "Int64"),
    **dict.fromkeys(("converged", "settled"), "boolean"),
    "samples_s": "object",
}
"""Dtypes of the columns of a frame, the same whatever a run happens to hold."""

ONLY_IN_JSON = ("telemetry_errors",)
"""Columns that no row has: texts that are the same in row after row, about a machine and not about a measurement."""


def document(environment: Environment, records: Iterable[Record], report: Report | None = None) -> dict[str, Any]:
    """Return a run as one JSON object, `{"environment": ..., "records": [...]}`, each record with its judged keys.

    Args:
        environment: where the records were taken.
        records: as they were stored.
        report: is told, in one line, of what could not be judged.
    """
    records = list(records)
    scores = judged(environment, records, report)
    return {
        "environment": environment.to_dict(),
        "records": [
            record.to_dict() | {"units": record.units} | score for record, score in zip(records, scores, strict=True)
        ],
    }


def flat_rows(
    environment: Environment, records: Iterable[Record], report: Report | None = None
) -> list[dict[str, Any]]:
    """Return one row of plain values for each record; all rows have the same columns, in the order of `COLUMNS`.

    Values are numbers in SI base units, texts, truth values or None. Arguments as of `document`.
    """
    records = list(records)
    rows = [
        _row(environment, record, score)
        for record, score in zip(records, judged(environment, records, report), strict=True)
    ]
    return _with_all_columns(rows)


def to_frame(runs: Run | Iterable[Run], report: Report | None = None) -> pd.DataFrame:
    """Return runs as a pandas frame: a row for each record, the columns of `flat_rows`, and `samples_s` as lists.

    Counts are nullable integers.
    """
    import pandas as pd

    runs = [runs] if isinstance(runs, Run) else list(runs)
    rows = [
        row | {"samples_s": list(record.samples_s)}
        for run in runs
        for row, record in zip(flat_rows(run.environment, run.records, report), run.records, strict=True)
    ]
    rows = _with_all_columns(rows)
    names = list(rows[0]) if rows else [*COLUMNS, "samples_s"]
    return pd.DataFrame({name: _series(name, [row[name] for row in rows]) for name in names})


def _row(environment: Environment, record: Record, score: dict[str, Any]) -> dict[str, Any]:
    low, high = record.ci95_s or (None, None)
    known = record.to_dict() | score
    known |= {
        "units": record.units,
        "run_id": environment.run_id,
        "started_at": environment.started_at,
        "device_slug": environment.device["slug"],
        "ci95_low_s": low,
        "ci95_high_s": high,
        "samples": len(record.samples_s),
        "flags": ",".join(record.flags),
        "flag_reasons": _plain(record.flag_reasons) if record.flag_reasons else None,
        "source_git": _plain(record.source_git),
    }
    row = {name: known[name] for name in COLUMNS}
    groups = {
        "shape": record.shape,
        "option": record.options,
        "telemetry": record.telemetry,
        "verified": record.verified,
    }
    cells = {f"{group}_{name}": _plain(value) for group, values in groups.items() for name, value in values.items()}
    return row | {name: value for name, value in cells.items() if name not in ONLY_IN_JSON}


def _plain(value: Any) -> Any:
    """Return a value that fits one cell: lists and objects become JSON text."""
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value


def _with_all_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, each with the columns of all: the fixed ones first, then the groups, each in order of sight."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    order = ("shape_", "option_", "telemetry_", "verified_")
    fixed = [name for name in names if name in COLUMNS]
    grouped = [name for prefix in order for name in names if name.startswith(prefix) and name not in COLUMNS]
    ordered = [*fixed, *grouped, *(name for name in names if name == "samples_s")]
    return [{name: row.get(name) for name in ordered} for row in rows]


def _series(name: str, values: list[Any]) -> pd.Series[Any]:
    """Return a column of the dtype of its name; of other names of the dtype that fits its values."""
    import pandas as pd

    kind = DTYPES.get(name) or ("Int64" if name.startswith("shape_") else None)
    if kind is None:
        found = str(pd.Series(values, dtype="object").convert_dtypes().dtype)
        kind = {"object": "string", "Float64": "float64"}.get(found, found)
    if kind == "string":
        values = [None if value is None else str(value) for value in values]
    return pd.Series(values, dtype=kind)
