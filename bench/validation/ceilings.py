"""A calibration held against what others have published of the same GPU: `records.toml` beside this file.

    python -m bench.validation.ceilings                              the newest calibration that is kept
    python -m bench.validation.ceilings results/published/h100-sxm/ceilings.json
    python -m bench.validation.ceilings results/runs/h100-sxm/20261122T101500Z-matmul-0123456789.jsonl

Reached is a goal by the value itself, which on a GPU is the median's; the interval stands beside it. Of what was missed
the calibration is asked for the reason: the clock, the power limit, a disturbance, an interval that stayed wide. A GPU
is judged by its own records alone, and one without any is told so.

exit codes: 0 all goals are reached, or there are none; 1 one is missed or was not measured; 2 usage
"""

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bench.harness.cli.arguments import FORMATS
from bench.harness.commands.calibrate import value_text
from bench.harness.measure.evidence import power_limited
from results.show.export import csv_text, json_text, markdown_text
from results.show.table import format_percent
from results.show.terminal import Parser, prepare_streams, print_out, printable, say
from results.stats.samples import half_width
from results.store.runfile import StoreError, load_run
from results.store.runs import runs_directory
from roofline.ceilings import QUANTITIES, CeilingError, Ceilings
from roofline.hardware.gpu import load_gpus

RECORDS = Path(__file__).with_name("records.toml")
MAX_BYTES = 64 * 2**20
"""Of a file of ceilings; more is none."""

FULL_CLOCK = 0.99
"""Share of the highest clock from which the clock explains nothing."""

COLUMNS = ("ceiling", "ours", "95% CI", "SM clock", "goal", "published", "ours/published", "verdict", "why")
REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"


class FileError(Exception):
    """A file is no calibration; the message is one line."""


@dataclass(frozen=True)
class Published:
    """A figure that others have published, SI base units."""

    gpus: tuple[str, ...]
    quantity: str
    name: str
    value: float
    unit: str
    protocol: str
    source: str
    goal: float = 0.0
    """What is to be reached; 0 stands for the value itself."""

    def __post_init__(self):
        if QUANTITIES.get(self.quantity) != self.unit:
            raise ValueError(f"{self.quantity} {self.name}: {self.unit} is not the unit of {self.quantity}")
        object.__setattr__(self, "gpus", tuple(self.gpus))
        object.__setattr__(self, "goal", self.goal or self.value)

    def is_reached_by(self, value):
        """Return whether a value is as good as the goal: a time is to be shorter, a rate higher."""
        return value <= self.goal if self.unit == "s" else value >= self.goal


@dataclass(frozen=True)
class Calibration:
    """Ceilings with the records of the run that measured them, as far as that lies beside them."""

    path: Path
    ceilings: Ceilings
    records: tuple = ()
    is_quick: bool = False

    def measured(self, quantity, name):
        """Return the measured ceiling of a quantity, or None."""
        found = [e for e in self.ceilings.entries if (e.quantity, e.name, e.kind) == (quantity, name, "measured")]
        return found[0] if found else None

    def record_of(self, quantity, name):
        """Return the record behind a ceiling, or None: of the matmul, of the mix, of the dtype."""
        op = {"flops": "matmul", "fma": "fma", "cache": "cache"}.get(quantity, name)
        dtype = name if quantity in ("flops", "fma") else None
        return next((r for r in self.records if r.op == f"calibrate-{op}" and dtype in (None, r.dtype)), None)


def load_records(path=RECORDS):
    """Return all published figures."""
    return [Published(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["record"]]


# ---- the file ------------------------------------------------------------------------------------------------------


def newest(directory):
    """Return the ceilings that were kept last.

    Raises:
        FileError: there are none.
    """
    kept = sorted(directory.rglob("ceilings-*.json"), key=lambda path: path.stat().st_mtime)
    if not kept:
        raise FileError(f"there are no ceilings in {directory}: python -m bench calibrate measures them")
    return kept[-1]


def load(path):
    """Return the calibration that a file of ceilings holds, or a run file, or the ceilings beside the latter.

    Raises:
        FileError: it holds none.
    """
    ceilings = _ceilings_of_run(path) if path.suffix == ".jsonl" else _ceilings_of_json(path)
    if not any(entry.kind == "measured" for entry in ceilings.entries):
        raise FileError(f"{path}: it holds no measured ceiling")
    runs = [run for run in map(_run, sorted(path.parent.glob("*-calibrate-*.jsonl"), reverse=True)) if run is not None]
    # A quick one beside a full one explains nothing of it.
    run = next((run for run in runs if not run.environment.settings.get("is_quick")), runs[0] if runs else None)
    if run is None:
        return Calibration(path, ceilings)
    return Calibration(path, ceilings, run.records, bool(run.environment.settings.get("is_quick")))


def _ceilings_of_run(path):
    """Return the ceilings that a run was judged by; the run of a calibration has them beside it."""
    run = _run(path)
    if run is None:
        raise FileError(f"{path}: it is no run file that can be read")
    try:
        ceilings = Ceilings.from_dict(run.environment.hardware)
    except CeilingError as error:
        raise FileError(f"{path}: {error}") from None
    beside = sorted(path.parent.glob("ceilings*.json"), key=lambda other: other.stat().st_mtime)
    is_calibration = any(record.op.startswith("calibrate-") for record in run.records)
    return _ceilings_of_json(beside[-1]) if is_calibration and beside else ceilings


def _ceilings_of_json(path):
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(f"{path}: it is too large for ceilings")
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise FileError(f"{path}: it is no object of ceilings")
        return Ceilings.from_dict(data)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"{path}: it holds no ceilings: {reason}") from None


def _run(path):
    try:
        return load_run(path)
    except StoreError:
        return None


# ---- the judgment --------------------------------------------------------------------------------------------------


def judged(calibration, records):
    """Return a row of texts for each record of the GPU, in the order of the file."""
    slug = calibration.ceilings.slug
    return [_row(calibration, record) for record in records if slug in record.gpus]


def _row(calibration, record):
    entry = calibration.measured(record.quantity, record.name)
    row = dict.fromkeys(COLUMNS, "") | {"ceiling": f"{record.quantity} {record.name}", "verdict": NOT_MEASURED}
    row |= {"protocol": record.protocol, "source": record.source}
    if entry is None:
        return row | {"goal": _number(record, record.goal), "published": _number(record, record.value)}
    is_reached = record.is_reached_by(entry.value)
    return row | {
        "ours": value_text(entry),
        "95% CI": " to ".join(value_text(entry, end) for end in entry.ci95 or () if end),
        "SM clock": f"{entry.sm_clock_hz / 1e6:.0f} MHz" if entry.sm_clock_hz else "",
        "goal": value_text(entry, record.goal),
        "published": value_text(entry, record.value),
        "ours/published": f"{entry.value / record.value:.3f}",
        "verdict": REACHED if is_reached else MISSED,
        "why": "" if is_reached else "; ".join(reasons(calibration, entry)) or "the calibration knows of nothing",
    }


def _number(record, value):
    return f"{value:g} {record.unit}"


def reasons(calibration, entry):
    """Return what the calibration itself knows that holds a ceiling down, a line each."""
    record = calibration.record_of(entry.quantity, entry.name)
    found = [_clock(calibration, entry), _spread(entry, record)]
    if entry.disturbed:
        found.append(f"disturbed: {entry.disturbed}")
    if record is not None:
        limited = power_limited(record.telemetry)
        found += [limited.reason if limited else None, *record.flag_reasons.values()]
    if calibration.is_quick:
        found.append("a quick calibration: a quarter of the time, and square matmuls only")
    if entry.config is None:
        found.append("the short calibration of another command, not `python -m bench calibrate`")
    for quantity in ("burst", "sustained") if entry.quantity == "flops" else ():
        other = calibration.measured(quantity, entry.name)
        found.append(f"{quantity} {value_text(other)}" if other else None)
    return [printable(reason) for reason in found if reason]


def _clock(calibration, entry):
    gpu = load_gpus().get(calibration.ceilings.slug)
    most_hz = gpu.max_clock_hz if gpu else None
    if not most_hz:
        return None
    if not entry.sm_clock_hz:
        return "the SM clock is not known"
    if entry.sm_clock_hz >= FULL_CLOCK * most_hz:
        return None
    return f"SM clock {entry.sm_clock_hz / 1e6:.0f} of {most_hz / 1e6:.0f} MHz"


def _spread(entry, record):
    """Return that the interval stayed wide, where it did."""
    if record is None or record.converged is not False or entry.ci95 is None:
        return None
    return f"not converged: ±{format_percent(100 * half_width(entry.ci95, entry.value))}"


# ---- the command ---------------------------------------------------------------------------------------------------


def main(argv=None):
    """Print the table and return the exit code."""
    prepare_streams()
    parser = Parser(prog="python -m bench.validation.ceilings", description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="ceilings or a run (default: the newest)")
    parser.add_argument("--format", choices=[f for f in FORMATS if f != "table"], default="md", help="(default: md)")
    args = parser.parse_args(argv)
    try:
        calibration = load(args.file or newest(runs_directory()))
        rows = judged(calibration, load_records())
        say(f"{calibration.path}: {printable(calibration.ceilings.name)} ({printable(calibration.ceilings.slug)})")
        if not rows:
            say(f"no published record of {printable(calibration.ceilings.slug)} is known")
            return 0
        print_out(text_of(rows, args.format))
    except (FileError, OSError) as error:
        say(f"python -m bench.validation.ceilings: error: {error}")
        return 2
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in (REACHED, MISSED, NOT_MEASURED)}
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    return 0 if counts[REACHED] == len(rows) else 1


def text_of(rows, output_format):
    """Return the rows in the format asked for."""
    if output_format == "json":
        return json_text(rows)
    return (csv_text if output_format == "csv" else markdown_text)(rows, COLUMNS)


if __name__ == "__main__":
    sys.exit(main())
