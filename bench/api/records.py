"""Results of measurements from Python: records with their judged keys, which print as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bench.harness.cli.arguments import UsageError
from results.record import Environment, Record
from results.show.grid import html_of, print_lines
from results.show.rows import to_frame
from results.show.table import render_table, table_of_run
from results.show.terminal import printable
from results.show.units import duration, percent, quantity
from results.store.runfile import Run, RunWriter
from roofline.model import JUDGED_KEYS, judge
from roofline.picture.figure import plot_run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from results.show.table import Render


@dataclass(frozen=True, kw_only=True, repr=False)
class JudgedRecord(Record):
    """A record of a measurement, evaluated against the ceilings of its machine.

    Times are seconds per call: `median_s`, `ci95_s` (its 95 % interval), `samples_s`. `flags` are
    data-quality flags, with their reasons in `flag_reasons`. The judged keys are attributes too,
    None if a count or a ceiling is unknown: `flops_per_s`; `bytes_per_s`, compulsory bytes read and
    written; `intensity`, FLOP per compulsory byte; `mfu` and `mbu`, fractions of the dense peak of
    the dtype and of the memory bandwidth; `roofline_pct`, percent of min(peak, intensity x
    bandwidth); `bound`, which is `mixed` or the name of a limit: `compute`, `memory`, `cache`,
    `link` or `launch`.
    """

    environment: Environment
    """The machine and its ceilings."""
    judged: Mapping[str, Any] = field(default_factory=dict)
    """All judged keys, as in `python -m results show --format json`."""
    result: Any = field(default=None, compare=False)
    """Result of the first call."""

    @classmethod
    def of(cls, record: Record, environment: Environment, result: Any = None) -> JudgedRecord:
        if isinstance(record, cls):
            return record
        values = {each.name: getattr(record, each.name) for each in fields(Record)}
        return cls(
            **values,
            environment=environment,
            judged=vars(judge(record, environment.machine)),
            result=result,
        )

    def __getattr__(self, name: str) -> Any:
        if name in JUDGED_KEYS:
            return self.judged.get(name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        words = (self.op, self.case.strip("-"), self.dtype, self.provider.replace("function", ""))
        lines = [f"  {name:<9} {text}" for name, text in self._facts()]
        return "\n".join(map(printable, [" ".join(filter(None, words)), *lines]))

    def _repr_html_(self) -> str:
        return html_of(lambda page: print_lines(page, *repr(self).splitlines()))

    def _facts(self) -> list[tuple[str, str]]:
        facts = []
        if self.median_s is not None and self.ci95_s is not None:
            low, high = map(duration, self.ci95_s)
            launches = self.launches_per_sample
            calls = "call" if launches == 1 else "calls"
            copies = f" ({self.copies} copies of the inputs)" if (self.copies or 1) > 1 else ""
            facts += [
                ("median", f"{duration(self.median_s)} (95 % CI {low} to {high})"),
                (
                    "samples",
                    f"{len(self.samples_s)} of {launches} {calls} each, by {self.method}",
                ),
                ("cache", f"{self.cache}{copies}"),
                ("reached", self._reached()),
                ("work", self._work()),
            ]
        if self.status != "ok":
            facts.append((self.status, self.reason or ""))
        facts += [("flag", f"{flag}: {self.flag_reasons.get(flag, '')}") for flag in self.flags]
        return [(name, text) for name, text in facts if text]

    def _reached(self) -> str:
        shown = []
        if self.flops:
            shown.append(quantity(self.flops_per_s, "FLOP/s"))
        if self.bytes_read or self.bytes_written:
            shown.append(quantity(self.bytes_per_s, "B/s"))
        rates = ", ".join(filter(None, shown))
        if self.roofline_pct is not None:
            return (
                f"{rates}; {percent(self.roofline_pct, 100)} of the roofline, bound by {self.bound}"
            )
        if not rates or self.environment.machine.bandwidth():
            return rates
        return f"{rates}; no memory bandwidth is known; run python -m bench calibrate"

    def _work(self) -> str:
        names = {
            "FLOP": self.flops,
            "bytes read": self.bytes_read,
            "bytes written": self.bytes_written,
        }
        counts = ", ".join(
            f"{count:,} {name}" for name, count in names.items() if count is not None
        )
        source = self.work or ""
        return f"{counts} ({source})" if counts and source else counts or source


class Records(tuple[JudgedRecord, ...]):
    """The records of one run, in the order measured; they print as the command's table."""

    environment: Environment
    """The machine and its ceilings."""
    op = ""
    """Op in the name of the run file; empty: that of the first record."""
    _render: Render | None

    def __new__(
        cls, environment: Environment, records: Iterable[Record], render: Render | None = None
    ) -> Self:
        """Evaluate the records against the ceilings of their environment; `render` prints another
        table.
        """
        new = super().__new__(cls, (JudgedRecord.of(record, environment) for record in records))
        new.environment = environment
        new._render = render
        return new

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each record, with the columns of `results.load`."""
        return to_frame([Run(Path(), self.environment, self)])

    def plot(self, path: Path | str | None = None, theme: str = "light") -> Figure:
        """Plot the records on the roofline of their machine, `light` or `dark`; a notebook shows
        what is returned.

        Raises:
            PlotError: the plot cannot be drawn, or not written to `path`, which ends in .png, .svg
                or .pdf.
        """
        return plot_run(self.environment, list(self), None if path is None else Path(path), theme)

    def save(self, path: Path | str | None = None) -> Path:
        """Save the records as a run file, by default with all other runs, and return its path; text
        that ends with a slash is a folder.

        Raises:
            StoreError: the file cannot be written.
            UsageError: a record has no dtype, which run files require.
        """
        if not all(record.dtype for record in self):
            raise UsageError(
                "a record has no dtype, as with complex numbers; set dtype= to save it"
            )
        op = self.op or (self[0].op if self else "function")
        with RunWriter.create(self.environment, op, path) as writer:
            for record in self:
                writer.append(record)
        return writer.path

    def __repr__(self) -> str:
        return table_of_run(self.environment, self, self._render).render("table")

    def _repr_html_(self) -> str:
        return html_of(lambda page: (self._render or render_table)(self.environment, self, page))
