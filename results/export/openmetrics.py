"""OpenMetrics text. Prometheus reads it too: `# UNIT` and `# EOF` are comments in its own text
format.

Source: https://github.com/prometheus/docs, docs/specs/om/open_metrics_spec.md: a unit is the suffix
of the name of its metric, and backslash, quote and newline are escaped in label values.
"""

from collections.abc import Callable, Mapping, Sequence

from results.export.rows import Row
from results.store.runfile import Run

GAUGES: Sequence[tuple[str, str, str, Callable[[Row], float | None]]] = (
    ("time", "seconds", "Median time of a launch.", lambda row: row.median_s),
    (
        "time_ci95_low",
        "seconds",
        "Low end of the 95% CI.",
        lambda row: row.record.ci95_s and row.record.ci95_s[0],
    ),
    (
        "time_ci95_high",
        "seconds",
        "High end of the 95% CI.",
        lambda row: row.record.ci95_s and row.record.ci95_s[1],
    ),
    ("roof", "seconds", "Minimum time of a launch by the roofline.", lambda row: row.roof_s),
    ("mfu", "ratio", "Fraction of the peak FLOP/s.", lambda row: row.mfu),
    ("time", "samples", "Number of samples of the median.", lambda row: len(row.record.samples_s)),
)
"""Name, unit, meaning and value of each metric; a value of None is left out."""


def render(run: Run, rows: Sequence[Row]) -> str:
    lines = []
    for title, unit, meaning, value_of in GAUGES:
        name = f"roofmark_{title}_{unit}"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"# UNIT {name} {unit}"]
        values = [(row, value_of(row)) for row in rows]
        lines += [
            f"{name}{{{label_text(row.labels)}}} {value}"
            for row, value in values
            if value is not None
        ]
    return "\n".join([*lines, "# EOF", ""])


def label_text(labels: Mapping[str, str | None]) -> str:
    escaped = (
        (label, text.replace("\\", r"\\").replace('"', r"\""))
        for label, text in labels.items()
        if text
    )
    return ",".join(f'{label}="{text}"' for label, text in escaped)
