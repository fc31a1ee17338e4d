"""What a measurement from Python returns: records with their judged keys, which print as tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.terminal import run_text
from results.record import Environment, Record, RecordError
from results.show.judge import judged as judged_keys
from results.show.rows import to_frame
from results.show.table import format_percent, format_rate, format_time
from results.show.terminal import printable
from results.store.runfile import Run
from results.store.runs import RunWriter
from roofline.plot.figure import plot_run

if TYPE_CHECKING:
    import pandas as pd

    from bench.harness.cli.terminal import Render


@dataclass(frozen=True, kw_only=True, repr=False)
class JudgedRecord(Record):
    """A record of a measurement with what it means on its machine.

    Times are seconds per call: `median_s`, `ci95_s` (its 95 % interval), `samples_s`. `flags` names what speaks against
    it, each with its sentence in `flag_reasons`. What is judged is None where a count or a ceiling is not known.
    """

    environment: Environment
    """The machine and its ceilings."""
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    """Compulsory bytes per second, read and written together."""
    intensity: float | None = None
    """FLOP per compulsory byte."""
    mfu: float | None = None
    """Fraction of the dense peak of the dtype."""
    mbu: float | None = None
    """Fraction of the memory bandwidth."""
    roofline_pct: float | None = None
    """Percent of min(peak, intensity x bandwidth)."""
    bound: str | None = None
    """What limits at this intensity: `compute`, `memory`, `launch` or `mixed`."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """All judged keys, as `python -m results show --format json` has them."""
    result: Any = field(default=None, compare=False)
    """What the first call returned."""

    @classmethod
    def of(
        cls, record: Record, environment: Environment, judged: Mapping[str, Any], result: Any = None
    ) -> JudgedRecord:
        """Return a record with what it means."""
        values = {one.name: getattr(record, one.name) for one in fields(Record)}
        shown = {one.name: judged[one.name] for one in fields(cls) if one.name in judged}
        return cls(**values, **shown, environment=environment, judged=judged, result=result)

    def __repr__(self) -> str:
        """Return the measurement in a few lines."""
        (_, title), *lines = rows_of(self)
        return "\n".join([title, *(f"  {name:<9} {text}" for name, text in lines)])

    def _repr_html_(self) -> str:
        """Return the same for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def rows_of(record: JudgedRecord) -> list[tuple[str, str]]:
    """Return what a person wants to know of a record: a name and a text each, the first one its title."""
    words = (record.op, record.case.strip("-"), record.dtype, record.provider.replace("function", ""))
    rows = [("", " ".join(word for word in words if word))]
    if record.median_s is None or record.ci95_s is None:
        return [*rows, (record.status, printable(record.reason or ""))]
    low, high = map(format_time, record.ci95_s)
    copies = f" ({record.copies} copies of the inputs)" if (record.copies or 1) > 1 else ""
    count, launches = len(record.samples_s), record.launches_per_sample
    rows += [
        ("median", f"{format_time(record.median_s)} (95 % CI {low} to {high})"),
        ("samples", f"{count} of {launches} call{'s' * (launches != 1)} each, by {record.method}"),
        ("cache", f"{record.cache}{copies}"),
        ("reached", _reached(record)),
        ("work", _work(record)),
    ]
    if record.status != "ok":
        rows.append((record.status, record.reason or ""))
    rows += [("flag", f"{flag}: {record.flag_reasons.get(flag, '')}") for flag in record.flags]
    return [(name, printable(text)) for name, text in rows if text]


def _reached(record: JudgedRecord) -> str:
    """Return the rates, and what share of the ceiling that binds they are."""
    shown = [format_rate(record.flops_per_s, "FLOP/s") if record.flops else None]
    shown.append(format_rate(record.bytes_per_s, "B/s") if record.bytes_read or record.bytes_written else None)
    rates = ", ".join(text for text in shown if text)
    if record.roofline_pct is not None:
        return f"{rates}; {format_percent(record.roofline_pct)} of the roofline, bound by {record.bound}"
    if not rates or record.environment.hardware.get("entries"):
        return rates
    return f"{rates}; no ceiling is known: python -m bench calibrate measures this machine"


def _work(record: JudgedRecord) -> str:
    """Return what a call computes and moves, and who says so."""
    names = {"FLOP": record.flops, "bytes read": record.bytes_read, "bytes written": record.bytes_written}
    counts = ", ".join(f"{count:,} {name}" for name, count in names.items() if count is not None)
    said = str(record.extra.get("work", ""))
    return f"{counts} ({said})" if counts and said else counts or said


class Records(tuple[JudgedRecord, ...]):
    """The records of one run, in the order measured; it shows itself as the command's table."""

    environment: Environment
    """The machine and its ceilings, by which the records are judged."""
    _render: Render | None

    def __new__(cls, environment: Environment, records: Iterable[Record], render: Render | None = None) -> Self:
        """Judge the records by the ceilings of their environment; `render` draws the table, else the usual one is."""
        given = list(records)
        new = super().__new__(
            cls,
            (
                record if isinstance(record, JudgedRecord) else JudgedRecord.of(record, environment, keys)
                for record, keys in zip(given, judged_keys(environment, given), strict=True)
            ),
        )
        new.environment, new._render = environment, render
        return new

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each record, with the columns of `results.load`."""
        return to_frame(Run(Path(), self.environment, self))

    def plot(self, path: Path | str, theme: str = "light") -> None:
        """Draw the records on the roofline of their machine, as .png, .svg or .pdf, `light` or `dark`.

        Raises:
            PlotError: it cannot be drawn, or not be written there.
        """
        plot_run(self.environment, list(self), Path(path), theme)

    def save(self, path: Path | str | None = None) -> Path:
        """Keep them as a run file, by default where all are kept, and return its path.

        Raises:
            StoreError: it cannot be written.
            UsageError: a record has no dtype, without which no run file can hold it.
        """
        op = self[0].op if self else "function"
        writer = RunWriter.create(self.environment, op, Path(path) if path is not None else None)
        try:
            for record in self:
                writer.append(record)
        except RecordError as error:
            raise UsageError(f"it cannot be kept: {error}; dtype= says what is computed in") from None
        finally:
            writer.close()
        return writer.path

    def __repr__(self) -> str:
        """Return the table."""
        return run_text(self.environment, self, "table", render=self._render)

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"
