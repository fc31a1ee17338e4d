"""OpenMetrics text. Prometheus reads it too: `# UNIT` and `# EOF` are comments in its own text
format.

Source: https://github.com/prometheus/docs, docs/specs/om/open_metrics_spec.md: a unit is the suffix
of the name of its metric, and backslash, quote and newline are escaped in label values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from results.export.rows import Row
from results.show.terminal import printable
from results.store.runfile import Run


@dataclass
class Gauge:
    """A metric and its samples."""

    name: str
    meaning: str
    unit: str = ""
    """The suffix of the name, if it is a unit."""
    samples: list[str] = field(default_factory=list)

    def add(self, labels: Mapping[str, str], value: float | None) -> None:
        """Add a sample; empty labels and a value of None are left out."""
        if value is None:
            return
        texts = []
        for label, text in labels.items():
            escaped = printable(text).replace("\\", r"\\").replace('"', r"\"")
            if text:
                texts.append(f'{label}="{escaped}"')
        self.samples.append(f"{self.name}{{{','.join(texts)}}} {value}")


def metrics_text(gauges: Iterable[Gauge]) -> str:
    lines = []
    for gauge in gauges:
        lines += [f"# HELP {gauge.name} {gauge.meaning}", f"# TYPE {gauge.name} gauge"]
        if gauge.unit:
            lines.append(f"# UNIT {gauge.name} {gauge.unit}")
        lines += gauge.samples
    return "\n".join([*lines, "# EOF", ""])


def render(run: Run, rows: Sequence[Row]) -> str:
    time = Gauge("roofmark_time_seconds", "Median time of a launch.", "seconds")
    low = Gauge("roofmark_time_ci95_low_seconds", "Low end of the 95% CI.", "seconds")
    high = Gauge("roofmark_time_ci95_high_seconds", "High end of the 95% CI.", "seconds")
    roof_text = "Minimum time of a launch by the roofline."
    roof = Gauge("roofmark_roof_seconds", roof_text, "seconds")
    mfu = Gauge("roofmark_mfu_ratio", "Fraction of the peak FLOP/s.", "ratio")
    samples = Gauge("roofmark_time_samples", "Number of samples of the median.", "samples")
    for row in rows:
        low_s, high_s = row.record.ci95_s or (None, None)
        time.add(row.labels, row.median_s)
        low.add(row.labels, low_s)
        high.add(row.labels, high_s)
        roof.add(row.labels, row.roof_s)
        mfu.add(row.labels, row.mfu)
        samples.add(row.labels, len(row.record.samples_s))
    return metrics_text([time, low, high, roof, mfu, samples])
