"""A comparison that has just been measured: all providers of a case took turns with one baseline.

Only the records are needed, so that what is printed can be computed again from a saved run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from results.compare.comparison import Compared
from results.compare.flags import with_flags
from results.compare.load import LoadedRun, Measured, measured_of
from results.compare.match import WRONG, RowKey, Unmatched
from results.compare.row import ComparedRow, Side
from results.compare.sides import CompareOptions
from results.compare.turns import Pairs, compare_cycles, compare_turns, side_by_side
from results.record import Environment, Record
from results.stats.comparison import FASTER, MORE_SAMPLES, SLOWER, Comparison, with_holm
from results.stats.verdict import times_longer


def compare_live(environment: Environment, records: Iterable[Record], baseline: str, margin: float) -> Compared:
    """Return the comparison that records hold, each verdict as it stands among all of them.

    Args:
        environment: holds the ceilings that MFU is judged by.
        records: as they were measured; of several processes, those of all.
        baseline: provider that the others are set against.
        margin: change of the time, as a fraction, that does not matter.
    """
    run = LoadedRun(Path(), environment, [measured_of(record) for record in records])
    cases: dict[tuple[str | None, ...], dict[str, list[Measured]]] = {}
    for one in run.measured:
        case = one.op, one.dtype, one.case, one.options, one.fill
        cases.setdefault(case, {}).setdefault(one.provider, []).append(one)
    rows: list[ComparedRow] = []
    unmatched: list[Unmatched] = []
    for providers in cases.values():
        base = providers.pop(baseline, [])
        unmatched += _left_out("baseline", base)
        for found in providers.values():
            # One wrong or failed result is enough: such a candidate is not compared at all.
            is_wrong = any(one.status in WRONG for one in (*base, *found))
            if not is_wrong and (turns := side_by_side(base, found)):
                rows.append(_row(run, turns, margin))
            else:
                unmatched += _left_out("candidate", found) or [Unmatched("candidate", found[0], _why_unpaired(base))]
    corrected = with_holm([row.compared for row in rows])
    rows = [replace(row, compared=one, cause=one.reason) for row, one in zip(rows, corrected, strict=True)]
    candidates = list(dict.fromkeys(row.candidate.label for row in rows))
    label = candidates[0] if len(candidates) == 1 else f"{len(candidates)} providers"
    request = CompareOptions(by="provider", baseline=baseline, margin=margin)
    return Compared(baseline, label, (environment, environment), request, tuple(rows), tuple(unmatched), ())


def _left_out(side: str, measured: Sequence[Measured]) -> list[Unmatched]:
    """Return why a provider is not compared in a case, once for each reason; nothing where all went well.

    A wrong or failed result is the reason where there is one; that other processes were right does not mend it.
    """
    wrong = [one for one in measured if one.status in WRONG]
    found: dict[str, list[Measured]] = {}
    for one in wrong or [one for one in measured if one.status != "ok"]:
        found.setdefault(_why(one), []).append(one)
    count = len(measured)
    return [
        Unmatched(side, same[0], reason + (f" (in {len(same)} of {count} processes)" if count > 1 else ""), bool(wrong))
        for reason, same in found.items()
    ]


def _why(one: Measured) -> str:
    return f"{one.status}: {one.reason}"


def _why_unpaired(baseline: Sequence[Measured]) -> str:
    """Return why a candidate that went well could not be compared."""
    for one in baseline:
        if one.status != "ok":
            return f"the baseline {one.provider} is {_why(one)}"
    return "it was measured without the baseline"


def _row(run: LoadedRun, turns: Pairs, margin: float) -> ComparedRow:
    """Return the row of records that took turns, by itself."""
    before, after = [one for one, _ in turns], [one for _, one in turns]
    result, cycles = compare_turns(turns, margin), compare_cycles(turns, margin)
    result = replace(result, reason=_reason(result, cycles, after))
    return ComparedRow(
        key=RowKey.of(after[0], with_provider=False),
        baseline=Side(before[0].provider, before, run),
        candidate=Side(after[0].provider, after, run),
        compared=with_flags(result, before, after, is_paired=True),
        is_paired=True,
        cycles_ratio=cycles.ratio if cycles else None,
        cause=result.reason,
    )


def _reason(result: Comparison, cycles: Comparison | None, candidate: Sequence[Measured]) -> str:
    """Return the reason of a verdict with what would help, and with what the clock had to do with it."""
    text, longer, turns = result.reason, times_longer(result), candidate[0].turns
    if len(candidate) > 1:
        text = text.replace(MORE_SAMPLES, "more --processes or a larger --budget would tell")
    elif longer is not None and turns is not None and turns.seconds is not None:
        seconds = longer * turns.seconds
        shown = f"{seconds:.2g}" if seconds < 99.5 else f"{seconds:,.0f}"
        text = text.replace(MORE_SAMPLES, f"about {shown} s of rounds would tell")
    if cycles is None or result.verdict not in (FASTER, SLOWER):
        return text
    is_alike = cycles.verdict == result.verdict
    told = f"{cycles.verdict} as well" if is_alike else f"{cycles.verdict}, so that the clock frequency changed"
    return f"{text}; counted in clock cycles it is {told} ({100 * (cycles.ratio - 1):+.2f} %)"
