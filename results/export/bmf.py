"""Bencher Metric Format, version 0, for `bencher run --adapter json --file FILE`.

Source: Bencher, Bencher Metric Format, https://bencher.dev/docs/reference/bencher-metric-format;
units of the built-in measures: https://bencher.dev/docs/how-to/track-custom-benchmarks.
"""

import json
from collections.abc import Sequence

from results.export.rows import Row
from results.store.runfile import Run


def render(run: Run, rows: Sequence[Row]) -> str:
    return json.dumps({row.name: _measures(row) for row in rows}, indent=2) + "\n"


def _measures(row: Row) -> dict[str, dict[str, float]]:
    """Return `latency` in ns, `throughput` in launches/s and `mfu` as a fraction, each with its 95
    % interval.
    """
    times_s = {"value": row.median_s}
    if row.record.ci95_s:
        times_s |= dict(zip(("lower_value", "upper_value"), row.record.ci95_s, strict=True))
    measures = {"latency": {end: 1e9 * time_s for end, time_s in times_s.items()}}
    other_end = {"value": "value", "lower_value": "upper_value", "upper_value": "lower_value"}
    for name, launch in (("throughput", 1), ("mfu", row.mfu and row.mfu * row.median_s)):
        if launch is not None:
            measures[name] = {other_end[end]: launch / time_s for end, time_s in times_s.items()}
    return measures
