"""A row is visited several times during a run, among the other rows, and its record holds the samples of all visits.

Slow changes of the machine are then inside the samples, and the visits show how much they differ.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bench.harness.measure.evidence import not_converged
from bench.harness.timing.protocol import Limits, Samples
from results.record import Record
from results.stats.samples import half_width, median, median_ci95, outlier_count

VISITS = 3
"""Two visits cannot show which of them is unusual; more would cost more preparation than they add."""

NOT_CONVERGED = "not-converged"
"""The one flag that is decided again by the samples of all visits; the others are those of any visit."""


def limits_of_visit(limits: Limits, visits: int = VISITS) -> Limits:
    """Return when to stop one visit, so that all of them together reach `limits`."""
    return replace(
        limits,
        min_samples=math.ceil(limits.min_samples / visits),
        fewest_samples=math.ceil(limits.fewest_samples / visits),
        target_half_width=limits.target_half_width * math.sqrt(visits),
        min_time_s=limits.min_time_s / visits,
        cap_s=limits.cap_s / visits,
        visits=visits,
    )


def with_visit(record: Record | None, visit: Record, limits: Limits) -> Record:
    """Return a record with the samples of one more visit; a wrong or failed visit replaces it.

    Times that are not samples (host latency, warm time) and telemetry are those of the visit with the middle median.

    Args:
        record: of the visits so far; None before the first.
        visit: the record of the visit alone.
        limits: of the whole row.
    """
    if record is not None and visit.status == "skipped":  # no time was left for it
        return record
    if record is None or visit.status != "ok":
        return replace(visit, visits=(len(visit.samples_s),)) if visit.status == "ok" else visit
    samples_s = (*record.samples_s, *visit.samples_s)
    middle, interval = median(samples_s), median_ci95(samples_s)
    converged = half_width(interval, middle) <= limits.target_half_width
    typical = min((record, visit), key=lambda one: abs((one.median_s or 0.0) - middle))
    samples = Samples(samples_s, 1, visit.method or "", visit.cache or "", middle, interval, converged)
    flag = not_converged(samples, limits.target_half_width)
    reasons = {**record.flag_reasons, **visit.flag_reasons}
    reasons = {name: reason for name, reason in reasons.items() if name != NOT_CONVERGED}
    if flag:
        reasons[flag.name] = f"{flag.reason}; {flag.advice}"
    return replace(
        typical,
        samples_s=samples_s,
        visits=(*record.visits, len(visit.samples_s)),
        median_s=middle,
        ci95_s=interval,
        converged=converged,
        outliers=outlier_count(samples_s),
        first_call_s=record.first_call_s,
        verified=visit.verified,
        flags=tuple(reasons),
        flag_reasons=reasons,
    )
