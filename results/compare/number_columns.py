"""Numbers of many records, looked at all together: a tenth of the time that looking at each record takes.

What is asked of them is what `results.record.checked_fields` asks of each. Where one is wrong, every record is to be
looked at by itself, to tell which.
"""

from __future__ import annotations

from operator import le
from typing import Any

from results.record import MAX_COUNT, MAX_TIME_S, MIN_TIME_S

FLOATS = {float}


class Numbers:
    """Counts, extents and intervals of records, gathered to be looked at all together."""

    def __init__(self) -> None:
        self._counts: list[Any] = []
        self._extents: list[Any] = []
        self._ends_s: list[Any] = []

    def take(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return the values of a finished record by field; None where one is not of the usual kind."""
        get = data.get
        samples, shape, interval, flags = get("samples_s"), get("shape"), get("ci95_s"), get("flags")
        options, telemetry, median_s, case = get("options"), get("telemetry"), get("median_s"), get("case")
        if (
            not (type(samples) is type(interval) is type(flags) is list and len(interval) == 2 and not flags)
            or not (type(shape) is type(options) is type(telemetry) is dict and shape)
            or not (
                type(case) is str
                and type(median_s) is float
                and get("source_git") is None
                and set(map(type, samples)) == FLOATS
            )
        ):
            return None
        counts = get("flops"), get("bytes_read"), get("bytes_written")
        self._counts += counts
        self._extents += shape.values()
        self._ends_s += interval
        flops, bytes_read, bytes_written = counts
        return {
            "shape": shape,
            "case": case,
            "options": options,
            "flops": flops,
            "bytes_read": bytes_read,
            "bytes_written": bytes_written,
            "samples_s": samples,
            "median_s": median_s,
            "ci95_s": tuple(interval),
            "telemetry": telemetry,
        }

    def are_right(self) -> bool:
        """Return whether all of them can be counts, extents and times."""
        if not self._extents:
            return True
        counts = [count for count in self._counts if count is not None]
        is_whole = {*map(type, counts), *map(type, self._extents)} == {int} and set(map(type, self._ends_s)) == FLOATS
        return (
            is_whole
            and min(counts, default=0) >= 0
            and min(self._extents) >= 1
            and max(max(counts, default=0), max(self._extents)) <= MAX_COUNT
            and min(self._ends_s) >= MIN_TIME_S
            and max(self._ends_s) <= MAX_TIME_S
            and all(map(le, self._ends_s[::2], self._ends_s[1::2]))
        )
