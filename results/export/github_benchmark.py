"""Input of github-action-benchmark with `tool: customSmallerIsBetter`.

The action reads the number after `±` in `range`, and shows `extra` as the tooltip of a point.

Source: https://github.com/benchmark-action/github-action-benchmark, README and src/extract.ts,
src/extractRangeInfo.ts.
"""

import json
import shlex
from collections.abc import Sequence

from results.export.rows import Row
from results.store.runfile import Run


def render(run: Run, rows: Sequence[Row]) -> str:
    source = f"run: {run.environment.run_id}\ncommand: {shlex.join(run.environment.argv)}"
    entries = []
    for row in rows:
        entry = {"name": row.name, "unit": "ns", "value": 1e9 * row.median_s}
        lines = [f"samples: {len(row.record.samples_s)}"]
        if row.record.ci95_s:
            low_ns, high_ns = (1e9 * end_s for end_s in row.record.ci95_s)
            entry["range"] = f"± {(high_ns - low_ns) / 2:.6g}"
            lines.append(f"95% CI: {low_ns:.6g} to {high_ns:.6g} ns")
        if row.roof_s is not None:
            lines.append(f"roof: {1e9 * row.roof_s:.6g} ns")
        entry["extra"] = "\n".join([*lines, source])
        entries.append(entry)
    return json.dumps(entries, indent=2) + "\n"
