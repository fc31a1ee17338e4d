"""What a measurement from Python returns: records with their judged keys, which print as tables."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bench.harness.cli.arguments import UsageError
from results.record import Environment, Record

if TYPE_CHECKING:
    import pandas as pd

    from bench.harness.cli.terminal import Render
    from bench.harness.device.device import Device


@dataclass(frozen=True, kw_only=True, repr=False)
class JudgedRecord(Record):
    """A record of a measurement with what it means on its machine.

    Times are seconds per call: `median_s`, `ci95_s` (its 95 % interval), `samples_s`. `flags` names what speaks against
    it, each with its sentence in `flag_reasons`. What is judged is None where a count or a ceiling is not known.
    """

    environment: Environment
    """The machine and its ceilings."""
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
        return cls(**values, environment=environment, judged=judged, result=result)

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs per second."""
        return self._number("flops_per_s")

    @property
    def bytes_per_s(self) -> float | None:
        """Compulsory bytes per second, read and written together."""
        return self._number("bytes_per_s")

    @property
    def intensity(self) -> float | None:
        """FLOP per compulsory byte."""
        return self._number("intensity")

    @property
    def mfu(self) -> float | None:
        """Fraction of the dense peak of the dtype."""
        return self._number("mfu")

    @property
    def mbu(self) -> float | None:
        """Fraction of the memory bandwidth."""
        return self._number("mbu")

    @property
    def roofline_pct(self) -> float | None:
        """Percent of min(peak, intensity x bandwidth)."""
        return self._number("roofline_pct")

    @property
    def bound(self) -> str | None:
        """What limits at this intensity: `compute`, `memory`, `launch` or `mixed`."""
        found = self.judged.get("bound")
        return None if found is None else str(found)

    def _number(self, key: str) -> float | None:
        value = self.judged.get(key)
        return None if value is None else float(value)

    def __repr__(self) -> str:
        """Return the measurement in a few lines."""
        (_, title), *lines = rows_of(self)
        return "\n".join([title, *(f"  {name:<9} {text}" for name, text in lines)])

    def _repr_html_(self) -> str:
        """Return the same for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def rows_of(record: JudgedRecord) -> list[tuple[str, str]]:
    """Return what a person wants to know of a record: a name and a text each, the first one its title."""
    from results.show.table import format_time
    from results.show.terminal import printable

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
    from results.show.table import format_percent, format_rate

    found = [format_rate(record.flops_per_s, "FLOP/s") if record.flops else None]
    found.append(format_rate(record.bytes_per_s, "B/s") if record.bytes_read or record.bytes_written else None)
    rates = ", ".join(text for text in found if text)
    if record.roofline_pct is None:
        lacks = rates and not record.environment.hardware.get("entries")
        return rates + "; no ceiling is known: python -m bench calibrate measures this machine" * bool(lacks)
    return f"{rates}; {format_percent(record.roofline_pct)} of the roofline, bound by {record.bound}"


def _work(record: JudgedRecord) -> str:
    """Return what a call computes and moves, and who says so."""
    names = {"FLOP": record.flops, "bytes read": record.bytes_read, "bytes written": record.bytes_written}
    counts = ", ".join(f"{count:,} {name}" for name, count in names.items() if count is not None)
    said = str(record.extra.get("work", ""))
    return f"{counts} ({said})" if counts and said else counts or said


class Records(Sequence[JudgedRecord]):
    """The records of one run, in the order measured; it shows itself as the command's table."""

    def __init__(self, environment: Environment, records: Iterable[Record], render: Render | None = None) -> None:
        """Judge the records by the ceilings of their environment; `render` draws the table, else the usual one is."""
        from results.show.judge import judged

        found = list(records)
        self.environment = environment
        self._records = [
            one if isinstance(one, JudgedRecord) else JudgedRecord.of(one, environment, score)
            for one, score in zip(found, judged(environment, found), strict=True)
        ]
        self._render = render

    @overload
    def __getitem__(self, place: int) -> JudgedRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[JudgedRecord]: ...
    def __getitem__(self, place: int | slice) -> JudgedRecord | list[JudgedRecord]:
        """Return a record by its place, or several."""
        return self._records[place]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._records)

    def __iter__(self) -> Iterator[JudgedRecord]:
        """Yield them in the order measured."""
        return iter(self._records)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each record, with the columns of `results.load`."""
        from results.show.rows import to_frame
        from results.store.runfile import Run

        return to_frame(Run(Path(), self.environment, tuple(self._records)))

    def plot(self, path: Path | str, theme: str = "light") -> None:
        """Draw the records on the roofline of their machine, as .png, .svg or .pdf, `light`, `dark` or for `print`.

        Raises:
            PlotError: it cannot be drawn, or not be written there.
        """
        from roofline.plot.figure import plot_run

        plot_run(self.environment, list(self), Path(path), theme)

    def save(self, path: Path | str | None = None) -> Path:
        """Keep them as a run file, by default where all are kept, and return its path.

        Raises:
            StoreError: it cannot be written.
            UsageError: a record has no dtype, without which no run file can hold it.
        """
        from results.record import RecordError
        from results.store.runs import RunWriter

        op = self._records[0].op if self._records else "function"
        writer = RunWriter.create(self.environment, op, Path(path) if path is not None else None)
        try:
            for record in self._records:
                writer.append(record)
        except RecordError as error:
            raise UsageError(f"it cannot be kept: {error}; dtype= says what is computed in") from None
        finally:
            writer.close()
        return writer.path

    def __repr__(self) -> str:
        """Return the table."""
        from bench.harness.cli.terminal import run_text

        return run_text(self.environment, self._records, "table", render=self._render)

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


@functools.cache
def _environment(device: Device, command: str, hardware: str) -> Environment:
    from bench.harness.fixture.function import known_ceilings
    from bench.harness.measure.plan import Settings
    from bench.harness.run import stamp

    return stamp("bench", device, known_ceilings(device), Settings().to_dict(), (command,))


def environment_of(device: Device, command: str) -> Environment:
    """Return the environment of a new run in this process on a device; its ceilings are those known now."""
    import json

    from bench.harness.fixture.function import known_ceilings
    from results.store.runs import new_run_id

    known = _environment(device, command, json.dumps(known_ceilings(device).to_dict(), sort_keys=True))
    return replace(known, run_id=new_run_id(), started_at=datetime.now(UTC).isoformat(timespec="seconds"))


def called(name: str, call: Callable[[], Any]) -> Any:
    """Return what a call of a user's code returns.

    Raises:
        UsageError: it raised; the message is one line, and the error itself its cause.
        NoDeviceError: it needs a GPU, and there is none.
    """
    from bench.harness.device.device import NoDeviceError
    from bench.harness.measure.runner import one_line

    try:
        return call()
    except (UsageError, NoDeviceError):
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {one_line(error)}") from error


def name_of(function: Any) -> str:
    """Return what a function is called.

    Raises:
        UsageError: it cannot be called.
    """
    if not callable(function):
        raise UsageError(f"{function!r:.60} cannot be called; give a function or a module")
    return str(getattr(function, "__name__", type(function).__name__))
