"""Bencher Metric Format, version 0, for `bencher run --adapter json --file FILE`.

Source: Bencher, Bencher Metric Format, https://bencher.dev/docs/reference/bencher-metric-format;
units of the built-in measures: https://bencher.dev/docs/how-to/track-custom-benchmarks.
"""

import json
from collections.abc import Sequence

from results.export.rows import Row
from results.store.runfile import Run

OTHER_END = {"value": "value", "lower_value": "upper_value", "upper_value": "lower_value"}
"""The upper end of a time is the lower end of a rate."""


def render(run: Run, rows: Sequence[Row]) -> str:
    """Return `latency` in ns, `throughput` in launches/s and `mfu` as a fraction of each row, each
    with its 95 % interval.
    """
    document = {}
    for row in rows:
        times_s = {"value": row.median_s}
        if row.record.ci95_s:
            times_s |= dict(zip(("lower_value", "upper_value"), row.record.ci95_s, strict=True))
        measures = {"latency": {end: 1e9 * time_s for end, time_s in times_s.items()}}
        for name, launch in (("throughput", 1), ("mfu", row.mfu and row.mfu * row.median_s)):
            if launch is not None:
                measures[name] = {
                    OTHER_END[end]: launch / time_s for end, time_s in times_s.items()
                }
        document[row.name] = measures
    return json.dumps(document, indent=2) + "\n"
