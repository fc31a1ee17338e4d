"""A run as pytest-benchmark writes it, so that `pytest-benchmark compare` shows it beside tests of that plug-in."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.record import Environment, Record
from results.show.judge import JUDGED_KEYS, Report, judged
from results.show.terminal import printable

LAYOUT_VERSION = "5.0.0"
"""The release of pytest-benchmark whose layout this is; 5.3.1 reads it too.

Source: https://github.com/ionelmc/pytest-benchmark, `Metadata.as_dict` and `Stats.fields`.
"""


def benchmark_document(
    environment: Environment, records: Iterable[Record], report: Report | None = None
) -> dict[str, Any]:
    """Return the JSON document of pytest-benchmark, with the time of one launch as the time of one iteration.

    Args:
        environment: where the records were taken.
        records: what was measured; only those with samples appear, because the layout knows no other.
        report: is told, in one line, of what could not be judged, and of how many records do not appear.
    """
    records = list(records)
    scores = judged(environment, records, report)
    benchmarks = [
        _benchmark(environment, record, score)
        for record, score in zip(records, scores, strict=True)
        if record.status == "ok" and record.samples_s
    ]
    git = environment.git
    return {
        "machine_info": _machine_info(environment),
        "commit_info": {
            "id": git.get("sha") or "unknown",
            "time": None,
            "author_time": None,
            "dirty": bool(git.get("dirty")),
            "project": "ridgepoint",
            "branch": "(unknown)",
        },
        "benchmarks": benchmarks,
        "datetime": environment.started_at,
        "version": LAYOUT_VERSION,
    }


def _machine_info(environment: Environment) -> dict[str, Any]:
    host, versions = environment.host, environment.versions
    return {
        "node": host.get("name"),
        "processor": host.get("cpu"),
        "machine": None,
        "python_implementation": None,
        "python_version": versions.get("python"),
        "system": None,
        "release": host.get("kernel"),
        "cpu": {"brand_raw": host.get("cpu"), "count": host.get("cores")},
        "device": environment.device,
        "versions": versions,
    }


def _benchmark(environment: Environment, record: Record, score: Mapping[str, Any]) -> dict[str, Any]:
    """Return one entry of `benchmarks`; providers of one case share a group, so that they are compared."""
    param = "-".join(printable(word) for word in (record.case, record.dtype, record.provider))
    name = f"{printable(record.op)}[{param}]"
    extra = {
        "op": record.op,
        "case": record.case,
        "dtype": record.dtype,
        "provider": record.provider,
        "device_slug": environment.device["slug"],
        "run_id": environment.run_id,
        "method": record.method,
        "cache": record.cache,
        "flops": record.flops,
        "bytes_read": record.bytes_read,
        "bytes_written": record.bytes_written,
        "ci95_s": record.ci95_s,
        "first_call_s": record.first_call_s,
        "flags": list(record.flags),
    }
    return {
        "group": f"{printable(record.op)} {printable(record.case)} {printable(record.dtype)}",
        "name": name,
        "fullname": name,
        "params": {**record.shape, **record.options, "dtype": record.dtype, "provider": record.provider},
        "param": param,
        "extra_info": extra | {key: score[key] for key in JUDGED_KEYS},
        "options": {},
        "stats": sample_stats(record.samples_s, record.launches_per_sample or 1),
    }


def sample_stats(samples_s: Sequence[float], iterations: int) -> dict[str, Any]:
    """Return the `stats` of one benchmark, times in seconds for one iteration.

    Args:
        samples_s: at least one.
        iterations: launches that each sample is the mean of.
    """
    data = sorted(samples_s)
    mean = statistics.fmean(data)
    deviation = statistics.stdev(data) if len(data) > 1 else 0.0
    first, third = _quartiles(data)
    spread = third - first
    low, high = first - 1.5 * spread, third + 1.5 * spread
    far = sum(abs(value - mean) > deviation for value in data)
    outside = sum(value < low or value > high for value in data)
    return {
        "min": data[0],
        "max": data[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": statistics.median(data),
        "iqr": spread,
        "q1": first,
        "q3": third,
        "iqr_outliers": outside,
        "stddev_outliers": far,
        "outliers": f"{far};{outside}",
        "ld15iqr": data[bisect_left(data, low)],
        "hd15iqr": data[bisect_right(data, high) - 1],
        "ops": len(data) / sum(data),
        "total": sum(data),
        "data": list(samples_s),
        "iterations": iterations,
    }


def _quartiles(data: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile as pytest-benchmark defines them.

    Source: https://en.wikipedia.org/wiki/Quartile, method 2 for an even number of values, method 3 for an odd one.
    """
    count = len(data)
    if count == 1:
        return data[0], data[0]
    if count % 2 == 0:
        return statistics.median(data[: count // 2]), statistics.median(data[count // 2 :])
    quarter, rest = divmod(count, 4)
    if rest == 1:
        first = 0.25 * data[quarter - 1] + 0.75 * data[quarter]
        return first, 0.75 * data[3 * quarter] + 0.25 * data[3 * quarter + 1]
    first = 0.75 * data[quarter] + 0.25 * data[quarter + 1]
    return first, 0.25 * data[3 * quarter + 1] + 0.75 * data[3 * quarter + 2]
