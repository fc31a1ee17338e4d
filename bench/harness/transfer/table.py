"""The table of copies and loops: what each column says, and the lines below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.scenarios.scenario import Column, percent_of, spread
from bench.harness.shapes import size_text
from results.record import Record
from results.show.table import format_number, format_percent, format_time
from roofline.hardware.links import hidden_share, wait_share

NOTES = """\
columns:
  median      seconds of a copy; of copy and compute together; of a step
  GB/s        bytes moved per second, in 10^9
  % link      of what the PCI Express link of this GPU carries one way
  host kept   seconds that the call keeps the host
  hidden      share of the shorter of copy and compute that hides behind the other
  work        seconds of a step's own work, alone; all rows of a run do the same
  waits       share of the steps' time that they wait for their batch
  tokens/s    tokens of a batch over the median of a step"""


def moved(record: Record, _: Mapping[str, Any]) -> str | None:
    """Return the GB/s of a copy."""
    if record.op == "load" or not record.median_s:
        return None
    return format_number(((record.bytes_read or 0) + (record.bytes_written or 0)) / record.median_s / 1e9)


def of_link(record: Record, _: Mapping[str, Any]) -> str | None:
    """Return the share of the link that a copy reaches."""
    link = record.link_bytes_per_s
    return format_percent(100 * record.shape["bytes"] / record.median_s / link) if link and record.median_s else None


def hidden(record: Record) -> float | None:
    """Return how much of the shorter of copy and compute hides, of a record of `overlap`."""
    from results.stats.samples import median

    if record.op != "overlap" or record.median_s is None:
        return None
    return hidden_share(median(record.copy_s), median(record.compute_s), record.median_s)


def waiting(record: Record) -> float | None:
    """Return the share of the time of all steps that they waited, of a record of `load`."""
    return wait_share(record.waits_s, record.samples_s) if record.op == "load" and record.samples_s else None


def tokens(record: Record, _: Mapping[str, Any]) -> str | None:
    """Return the tokens per second of a loop."""
    if record.op != "load" or not record.median_s:
        return None
    return format_number(record.shape["b"] * record.shape["s"] / record.median_s)


def median_of(samples_s: Sequence[float]) -> float | None:
    """Return the median of samples, None where there are none."""
    from results.stats.samples import median

    return median(samples_s) if samples_s else None


def moved_alone(record: Record) -> bool:
    """Return whether a record is one of a copy and nothing beside it."""
    return record.host_launch_s is not None


COLUMNS = (
    Column("op", lambda record, _: record.op, is_text=True),
    Column("bytes", lambda record, _: size_text(record.shape["bytes"]) if "bytes" in record.shape else None),
    Column("batch", lambda record, _: record.case if record.op == "load" else None),
    Column("memory", lambda record, _: record.options.get("memory"), is_text=True),
    Column("transfer", lambda record, _: record.options.get("transfer"), is_text=True),
    Column("prefetch", lambda record, _: str(record.options["prefetch"]) if record.op == "load" else None),
    Column("median", lambda record, _: format_time(record.median_s)),
    Column("95% CI", lambda record, _: spread(record), goes_below=2),
    Column("GB/s", moved),
    Column("% link", of_link),
    Column("host kept", lambda record, _: format_time(record.host_launch_s) if moved_alone(record) else None),
    Column("hidden", lambda record, _: percent_of(hidden(record))),
    Column("work", lambda record, _: format_time(median_of(record.compute_s)) if record.op == "load" else None),
    Column("waits", lambda record, _: percent_of(waiting(record))),
    Column("tokens/s", tokens),
    Column("n", lambda record, _: str(len(record.samples_s)), goes_below=1),
)


def footer(records: Sequence[Record]) -> list[str]:
    """Return what the rows say beside each other."""
    lines = []
    if any(record.bytes_read and record.bytes_written for record in records):
        lines.append("no GPU here: copies are within the host's memory, which is read and written")
    loops = {record.options["prefetch"]: waiting(record) for record in records if record.op == "load"}
    if loops.get(0) is not None and loops.get(1) is not None:
        lines.append(
            f"a step waits {percent_of(loops[0])} of its time for a batch made on the spot, "
            f"{percent_of(loops[1])} for one made ahead"
        )
    return lines
