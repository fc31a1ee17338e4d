"""From records that were measured in turns to the rows of a comparison: ratio, interval, verdict, reason.

Only the records are needed, so that what is printed can be computed again from a saved run. Rows, tables, JSON and
pictures are those of `python -m results compare`; what differs is the ratio, which is taken round by round here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bench.harness.compare.rounds import times_longer
from bench.harness.measure.plan import plain
from results.compare.comparison import Compared
from results.compare.flags import flags_of, with_flags
from results.compare.load import Measured
from results.compare.match import Key, Unmatched
from results.compare.row import Row
from results.compare.sides import Request
from results.record import Environment, Record
from results.show.judge import judged
from results.stats.comparison import FASTER, SLOWER, Comparison, combine, with_holm
from results.stats.samples import geometric_mean_of, median
from results.stats.verdict import judge_rounds

WRONG = ("invalid", "failed")

MORE = "more samples would tell"
"""What a reason says where it does not know how long a round takes; `results.stats.comparison` writes it."""

Sides = tuple[list[Record], list[Record]]
"""Records of the baseline and of the candidate, one of each from every process."""


class _Values(NamedTuple):
    """The values of a row, as `results.compare.row.Row` describes them."""

    key: Key
    baseline: str
    candidate: str
    provider_baseline: str
    provider_candidate: str
    compared: Comparison
    factor: float
    baseline_s: float
    candidate_s: float
    mfu_baseline: float | None
    mfu_candidate: float | None
    bytes_per_s_baseline: float | None
    bytes_per_s_candidate: float | None
    cycles_ratio: float | None
    windows: tuple[int, int]
    flags_baseline: tuple[str, ...]
    flags_candidate: tuple[str, ...]
    is_paired: bool = True


class LiveRow(_Values, Row):
    """A row of records that took turns."""

    __slots__ = ()


def compared(environment: Environment, records: Iterable[Record], baseline: str, margin: float) -> Compared:
    """Return the comparison that records hold, each verdict as it stands among all of them.

    Args:
        environment: holds the ceilings that MFU is judged by.
        records: as `compare_case` made them; of several processes, those of all.
        baseline: provider that the others are set against.
        margin: change of the time, as a fraction, that does not matter.
    """
    cases: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for record in records:
        cases.setdefault(_case_key(record), {}).setdefault(record.provider, []).append(record)
    rows: list[LiveRow] = []
    unmatched: list[Unmatched] = []
    for providers in cases.values():
        base = providers.pop(baseline, [])
        unmatched += _left_out("baseline", base)
        for found in providers.values():
            sides = _common(base, found)
            if sides:
                rows.append(_row(environment, sides, margin))
            else:
                unmatched += _left_out("candidate", found) or [_unmatched(found[0], _why_unpaired(base))]
    corrected = with_holm([row.compared for row in rows])
    rows = [row._replace(compared=result) for row, result in zip(rows, corrected, strict=True)]
    candidates = list(dict.fromkeys(row.candidate for row in rows))
    label = candidates[0] if len(candidates) == 1 else f"{len(candidates)} providers"
    request = Request(by="provider", baseline=baseline, margin=margin)
    return Compared(baseline, label, (environment, environment), request, tuple(rows), tuple(unmatched), ())


def _case_key(record: Record) -> tuple[Any, ...]:
    return record.op, record.dtype, record.case, _text(record.options), record.fill


def _text(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={values[name]}" for name in sorted(values))


def _common(baseline: Sequence[Record], candidate: Sequence[Record]) -> Sides | None:
    """Return the records of those processes in which both sides were measured; None where there is none.

    One wrong or failed result is enough: such a candidate is not compared at all.
    """
    if any(record.status in WRONG for record in (*baseline, *candidate)):
        return None
    by_process = {record.process: record for record in baseline if _is_interleaved(record)}
    found = [
        (by_process[record.process], record)
        for record in candidate
        if _is_interleaved(record) and record.process in by_process
    ]
    return ([pair[0] for pair in found], [pair[1] for pair in found]) if found else None


def _is_interleaved(record: Record) -> bool:
    return record.status == "ok" and bool(record.interleaved)


def _why(record: Record) -> str:
    return f"{record.status}: {record.reason}"


def _left_out(side: str, records: Sequence[Record]) -> list[Unmatched]:
    """Return why a provider is not compared in a case, once for each reason; nothing where all went well.

    A wrong or failed result is the reason where there is one; that other processes were right does not mend it.
    """
    wrong = [record for record in records if record.status in WRONG]
    found: dict[str, list[Record]] = {}
    for record in wrong or [record for record in records if record.status != "ok"]:
        found.setdefault(_why(record), []).append(record)
    return [
        Unmatched(side, measured_of(same[0]), reason + _how_often(len(same), len(records)), is_broken=bool(wrong))
        for reason, same in found.items()
    ]


def _how_often(count: int, processes: int) -> str:
    return f" (in {count} of {processes} processes)" if processes > 1 else ""


def _why_unpaired(baseline: Sequence[Record]) -> str:
    """Return why a candidate that went well could not be compared."""
    for record in baseline:
        if record.status != "ok":
            return f"the baseline {record.provider} is {_why(record)}"
    return "it was measured without the baseline"


def _unmatched(record: Record, reason: str) -> Unmatched:
    return Unmatched("candidate", measured_of(record), reason)


def measured_of(record: Record) -> Measured:
    """Return a record as comparisons name it; without its samples, which are compared round by round."""
    process = record.process
    return Measured(
        op=record.op,
        dtype=record.dtype,
        case=record.case,
        shape=_text(record.shape),
        options=_text(record.options),
        fill=record.fill,
        cache=record.cache,
        provider=record.provider,
        process=None if process is None else str(process),
        status=record.status,
        reason=record.reason,
        method=record.method,
        flops=record.flops,
        bytes_read=record.bytes_read,
        bytes_written=record.bytes_written,
        median_s=record.median_s,
        ci95_s=record.ci95_s,
        sm_clock_hz=record.telemetry.get("sm_clock_hz"),
        samples=b"",
        source_sha256=record.source_sha256,
        op_sha256=record.op_sha256,
        flags=record.flags,
    )


def _row(environment: Environment, sides: Sides, margin: float) -> LiveRow:
    """Return the row of records that lie beside each other, process by process."""
    baseline, candidate = sides
    result = _combined(sides, margin)
    cycles = None
    if all(clocks_hz(record) for side in sides for record in side):
        cycles = _combined(sides, margin, in_cycles=True)
    times_s = _middle_s(baseline), _middle_s(candidate)
    scored = [replace(side[0], median_s=time_s) for side, time_s in zip(sides, times_s, strict=True)]
    scores = judged(environment, scored)
    flags_baseline, flags_candidate = (flags_of([measured_of(record) for record in side]) for side in sides)
    result = replace(result, reason=_reason(result, cycles, candidate))
    return LiveRow(
        key=Key.of(measured_of(candidate[0]), with_provider=False),
        baseline=baseline[0].provider,
        candidate=candidate[0].provider,
        provider_baseline=baseline[0].provider,
        provider_candidate=candidate[0].provider,
        compared=with_flags(result, flags_baseline, flags_candidate, is_paired=True),
        factor=1.0,
        baseline_s=times_s[0],
        candidate_s=times_s[1],
        mfu_baseline=scores[0]["mfu"],
        mfu_candidate=scores[1]["mfu"],
        bytes_per_s_baseline=scores[0]["bytes_per_s"],
        bytes_per_s_candidate=scores[1]["bytes_per_s"],
        cycles_ratio=cycles.ratio if cycles else None,
        windows=(len(baseline), len(candidate)),
        flags_baseline=flags_baseline,
        flags_candidate=flags_candidate,
    )


def _combined(sides: Sides, margin: float, in_cycles: bool = False) -> Comparison:
    """Return the comparison of all processes together: their spread counts too."""
    results = []
    for baseline, candidate in zip(*sides, strict=True):
        is_fixed = bool(candidate.interleaved["is_fixed"])
        times = [round_times(record, in_cycles) for record in (baseline, candidate)]
        results.append(judge_rounds(times[0], times[1], margin, is_fixed))
    return combine(results)


def round_times(record: Record, in_cycles: bool = False) -> list[float]:
    """Return one time for each round: the median of its samples, in seconds or in clock cycles."""
    size = record.interleaved["samples_per_round"]
    times = [median(record.samples_s[start : start + size]) for start in range(0, len(record.samples_s), size)]
    if not in_cycles:
        return times
    return [time_s * clock for time_s, clock in zip(times, clocks_hz(record) or (), strict=True)]


def clocks_hz(record: Record) -> Sequence[float] | None:
    """Return the SM clock of each round of a record; None where it is not known."""
    clocks: Sequence[float] | None = record.interleaved.get("sm_clock_hz")
    return clocks


def _middle_s(records: Sequence[Record]) -> float:
    return geometric_mean_of([record.median_s for record in records if record.median_s is not None])


def _reason(result: Comparison, cycles: Comparison | None, candidate: Sequence[Record]) -> str:
    """Return the reason of a verdict with what would help, and with what the clock had to do with it."""
    longer = times_longer(result)
    text = result.reason
    if len(candidate) > 1:
        text = text.replace(MORE, "more --processes or a larger --budget would tell")
    elif longer is not None:
        seconds = longer * float(candidate[0].interleaved["seconds"])
        text = text.replace(MORE, f"about {plain(seconds, 2)} s of rounds would tell")
    if cycles is None or result.verdict not in (FASTER, SLOWER):
        return text
    survives = cycles.verdict == result.verdict
    return f"{text}; {'also' if survives else 'not'} in clock cycles ({100 * (cycles.ratio - 1):+.2f} %)"
