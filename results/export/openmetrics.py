"""OpenMetrics text. Prometheus reads it too: `# UNIT` and `# EOF` are comments in its own text
format.

Source: https://github.com/prometheus/docs, docs/specs/om/open_metrics_spec.md: a unit is the suffix
of the name of its metric, and backslash, quote and newline are escaped in label values.
"""

from collections.abc import Sequence

from results.export.rows import Row
from results.store.runfile import Run

GAUGES = {
    "time_seconds": "Median time of a launch.",
    "time_ci95_low_seconds": "Low end of the 95% CI.",
    "time_ci95_high_seconds": "High end of the 95% CI.",
    "roof_seconds": "Minimum time of a launch by the roofline.",
    "mfu_ratio": "Fraction of the peak FLOP/s.",
    "time_samples": "Number of samples of the median.",
}
"""Meaning of each metric; its unit is the last word of its name."""


def render(run: Run, rows: Sequence[Row]) -> str:
    series = []
    for row in rows:
        labels = []
        for label, text in row.labels.items():
            escaped = text.replace("\\", r"\\").replace('"', r"\"")
            if text:
                labels.append(f'{label}="{escaped}"')
        low_s, high_s = row.record.ci95_s or (None, None)
        values = (row.median_s, low_s, high_s, row.roof_s, row.mfu, len(row.record.samples_s))
        series.append((",".join(labels), dict(zip(GAUGES, values, strict=True))))
    lines = []
    for gauge, meaning in GAUGES.items():
        name = f"roofmark_{gauge}"
        unit = gauge.rpartition("_")[2]
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"# UNIT {name} {unit}"]
        for known, values_of in series:
            if values_of[gauge] is not None:
                lines.append(f"{name}{{{known}}} {values_of[gauge]}")
    return "\n".join([*lines, "# EOF", ""])
