"""A comparison as a table, Markdown, JSON or CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from results.compare.comparison import Compared, ComparedRow
from results.compare.sides import Unmatched
from results.record import Object, text_of
from results.show.grid import (
    Cell,
    Cells,
    Table,
    drop_silent,
    flat,
    print_cells,
    print_lines,
)
from results.show.terminal import printable
from results.show.units import ABSENT, count, duration, format_half_width, percent, uncertainty
from results.stats.comparison import (
    FASTER,
    SAME,
    SLOWER,
    TOO_NOISY,
    UNSURE,
    geometric_mean,
)
from results.stats.samples import widest
from results.store.runs import revision_text

if TYPE_CHECKING:
    from rich.console import Console

VERDICTS = (SLOWER, UNSURE, FASTER, SAME)
"""The most important first."""

COLORS = {SLOWER: "red", FASTER: "green", UNSURE: "yellow", SAME: ""}

ALWAYS = {
    "verdict",
    "op",
    "case",
    "dtype",
    "provider",
    "reason",
}
"""Columns that are shown even if all their cells are equal."""

KEY = ("op", "dtype", "case", "options", "fill", "cache")
"""Fields of a record by which rows are matched, in JSON and CSV, and that a history has once."""

UNMATCHED = "UNMATCHED"
"""Verdict in CSV of a record that was not compared."""


def counts(compared: Compared) -> dict[str, int]:
    verdicts = Counter(row.compared.verdict for row in compared.rows)
    return {verdict: verdicts[verdict] for verdict in VERDICTS}


def foremost(compared: Compared, most: int) -> Sequence[ComparedRow]:
    """Return all rows in their order if there are at most `most`, else the most important ones."""
    if len(compared.rows) <= most:
        return compared.rows
    return sorted(compared.rows, key=lambda row: VERDICTS.index(row.compared.verdict))[:most]


def exit_code(compared: Compared, fail_on: str) -> int:
    """Return 1 for a SLOWER row, a wrong or failed candidate, or with `fail_on` "unsure" an UNSURE
    row; else 0.
    """
    failing = {SLOWER, fail_on.upper()}
    is_failing = any(row.compared.verdict in failing for row in compared.rows)
    return int(is_failing or any(row.is_broken for row in compared.unmatched))


def summary(compared: Compared, fail_on: str) -> Object:
    means = geomeans(compared)
    only = means[0] if len(means) == 1 else {"ratio": None, "ci95": None}
    drift = None
    spread = widest(row.spread for row in compared.rows)
    if spread:
        drift = {"share": spread.share, "source": spread.source}
    elif not all(row.is_paired for row in compared.rows):
        unknown = "unknown: no measurement of the same code was repeated"
        drift = {"share": None, "source": unknown}
    sides = {}
    names = {"baseline": compared.baseline, "candidate": compared.candidate}
    for (side, name), environment in zip(names.items(), compared.environments, strict=True):
        sides[side] = {
            "label": name,
            "run_id": environment.run_id,
            "started_at": environment.started_at,
            "git": environment.git,
            "device": environment.device["slug"],
        }
    return sides | {
        "margin": compared.margin,
        "fail_on": fail_on,
        "drift": drift,
        "rows": len(compared.rows),
        "counts": counts(compared),
        "geomean": only["ratio"],
        "geomean_ci95": only["ci95"],
        "geomean_rows": sum(mean["rows"] for mean in means),
        "geomeans": means,
        "unmatched": len(compared.unmatched),
        "broken": sum(row.is_broken for row in compared.unmatched),
        "notes": compared.notes,
        "exit_code": exit_code(compared, fail_on),
    }


def geomeans(compared: Compared) -> list[Object]:
    """Return the geometric mean of the ratios of each kind of rows, as JSON has it, in the order of
    the rows.

    A kind is one op, one baseline and one candidate: a mean of several kinds tells nothing. `rows`
    is how many have an interval, no others count; `provider` is None if it is what differs.
    """
    kinds: dict[tuple[str, str, str], list[ComparedRow]] = {}
    for row in compared.rows:
        kind = (row.key.op, row.baseline.provider, row.candidate.provider)
        kinds.setdefault(kind, []).append(row)
    means = []
    for rows in kinds.values():
        mean = geometric_mean([row.compared for row in rows])
        if mean is None:
            continue
        first = rows[0]
        means.append(
            {
                "op": first.key.op,
                "provider": first.key.provider,
                "baseline": first.baseline.label,
                "candidate": first.candidate.label,
                "ratio": mean[0],
                "ci95": mean[1],
                "rows": sum(row.ci95 is not None for row in rows),
            }
        )
    return means


def json_row(row: ComparedRow) -> Object:
    before = row.baseline
    share, limit = before.of_ceiling or (None, None)
    known = {name: getattr(row.key, name) for name in KEY}
    known |= {
        "baseline": before.label,
        "candidate": row.candidate.label,
        "ratio": row.ratio,
        "ci95": row.ci95,
        "is_bound": bool(row.compared.bound),
        "verdict": row.compared.verdict,
        "reason": row.reason,
        "paired": row.is_paired,
        "drift": math.expm1(row.compared.drift),
        "limit": limit,
        "limit_s": share and share * before.time_s,
        "gap_closed": row.gap_closed,
        "decided_after_s": row.decided_after_s,
        "cycles_ratio": row.cycles_ratio,
        "cycles_verdict": row.cycles_verdict,
    }
    for name, side in (("baseline", before), ("candidate", row.candidate)):
        known |= {
            f"provider_{name}": side.provider,
            f"{name}_s": side.time_s,
            f"mfu_{name}": side.mfu,
            f"mfu_ci95_{name}": side.mfu_ci95,
            f"bytes_per_s_{name}": side.bytes_per_s,
            f"flags_{name}": side.flags,
            f"windows_{name}": len(side.records),
        }
    return known


def json_unmatched(row: Unmatched) -> Object:
    known = {name: getattr(row.record, name) for name in (*KEY, "provider", "status")}
    known["options"] = text_of(row.record.options)
    return {"side": row.side} | known | {"reason": row.reason, "broken": row.is_broken}


def as_text(compared: Compared, form: str, fail_on: str, **of_summary: Any) -> str:
    """Return the comparison in one of `TABLE_FORMATS`; `of_summary` replaces values of the summary
    in JSON.
    """
    table = Table(
        draw=lambda console: print_table(compared, console),
        rows=lambda: flat_rows(compared),
        cells=lambda: _rows(compared),
        document=lambda: {
            "summary": summary(compared, fail_on) | of_summary,
            "rows": list(map(json_row, compared.rows)),
            "unmatched": list(map(json_unmatched, compared.unmatched)),
        },
        title=headlines(compared)[0],
        notes=lambda: _below(compared),
    )
    return table.render(form)


def flat_rows(compared: Compared) -> list[Object]:
    """Return a row for each comparison, and a row with the verdict `UNMATCHED` for each record
    without one.
    """
    rows = [flat(json_row(row)) for row in compared.rows]
    for unmatched in compared.unmatched:
        known = json_unmatched(unmatched)
        known |= {
            f"provider_{unmatched.side}": unmatched.record.provider,
            "verdict": UNMATCHED,
            "reason": f"{unmatched.side}: {unmatched.reason}",
        }
        names = rows[0] if rows else known
        rows.append({name: known.get(name) for name in names})
    return rows


def _below(compared: Compared) -> str:
    text = "\n" + _listed(_run_lines(compared))
    if compared.unmatched:
        inside = _listed(printable(describe(row)) for row in compared.unmatched)
        count_text = f"{len(compared.unmatched)} not compared"
        text += f"\n<details><summary>{count_text}</summary>\n\n{inside}\n</details>\n"
    text += "".join(f"\n{printable(note)}\n" for note in compared.notes)
    means = headlines(compared)[1:]
    if means:
        text += f"\nGeometric means:\n\n{_listed(means)}"
    return text


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines).replace("<", "&lt;")


def headlines(compared: Compared) -> list[str]:
    """Return a line with the counts of the verdicts and the geometric mean; of several means, each
    has a line of its own.
    """
    said = "nothing compared"
    if compared.rows:
        verdicts = [f"{rows} {verdict}" for verdict, rows in counts(compared).items() if rows]
        said = f"{', '.join(verdicts)} of {count(len(compared.rows), 'row')}"
    text = f"{compared.baseline} -> {compared.candidate}: {said}"
    lines = []
    means = geomeans(compared)
    for mean in means:
        low, high = mean["ci95"]
        value = "too noisy"
        if high <= TOO_NOISY * low:
            value = f"{mean['ratio']:.4f}x the time (95 % CI {low:.4f} to {high:.4f})"
        if len(means) == 1:
            text += f"; geometric mean {value}"
        else:
            kind = " ".join(filter(None, (mean["op"], mean["provider"])))
            sides = f"{mean['baseline']} -> {mean['candidate']}"
            lines.append(f"{kind}, {sides}: geometric mean {value}, {count(mean['rows'], 'row')}")
    broken = sum(row.is_broken for row in compared.unmatched)
    if broken:
        text += f"; {broken} wrong or failed"
    return list(map(printable, [text, *lines]))


def _rows(compared: Compared) -> list[Cells]:
    """Return the cells of each row, without the columns that say nothing."""
    rows = [_cells(row, compared) for row in compared.rows]
    drop_silent(rows, ALWAYS)
    return rows


def provider_text(row: ComparedRow, compared: Compared) -> str:
    """Return the providers of a row; a single baseline is named in the headline."""
    names = [row.candidate.provider]
    if not row.key.provider and len(compared.baselines) > 1:
        names.insert(0, row.baseline.provider)
    return " -> ".join(names)


def _cells(row: ComparedRow, compared: Compared) -> Cells:
    before = row.baseline
    after = row.candidate
    verdict = row.compared.verdict
    ratio = f"{row.compared.bound}{row.ratio:.3f}x"
    half_width = ABSENT
    closed = percent(row.gap_closed) if verdict == FASTER else ABSENT
    if row.ci95:
        low, high = row.ci95
        half_width = uncertainty(math.sqrt(high / low) - 1)
        if high > TOO_NOISY * low:
            ratio = ABSENT
            closed = ABSENT
    mfus = []
    for side in (before, after):
        half = format_half_width(side.mfu_ci95, side.mfu)
        mfus.append(f"{percent(side.mfu)} {half}".removesuffix(f" {ABSENT}"))
    of_ceiling = ABSENT
    if before.of_ceiling and after.of_ceiling:
        bounds = dict.fromkeys((before.of_ceiling[1], after.of_ceiling[1]))
        shares = f"{percent(before.of_ceiling[0])} -> {percent(after.of_ceiling[0])}"
        of_ceiling = f"{shares} {' -> '.join(bounds)}"
    return {
        "verdict": Cell(verdict, style=COLORS[verdict]),
        "time ratio": Cell(ratio, "right"),
        "95% CI": Cell(half_width, "right"),
        "op": Cell(row.key.op),
        "case": Cell(row.key.case),
        "dtype": Cell(row.key.dtype),
        "provider": Cell(provider_text(row, compared), leaves=4),
        "options": Cell(row.key.options, leaves=3),
        "baseline": Cell(duration(before.time_s), "right", leaves=5),
        "candidate": Cell(duration(after.time_s), "right", leaves=5),
        "MFU baseline": Cell(mfus[0], "right", leaves=2),
        "MFU candidate": Cell(mfus[1], "right", leaves=2),
        "gap closed": Cell(closed, "right", leaves=1),
        "% of ceiling": Cell(of_ceiling, "right", leaves=1),
        "reason": Cell(row.reason),
    }


def describe(row: Unmatched) -> str:
    return f"{row.side}: {row.name}: {row.reason}"


def print_table(compared: Compared, console: Console) -> None:
    print_lines(console, *_run_lines(compared))
    if compared.rows:
        console.print()
        print_cells(console, _rows(compared), "reason", ("op", "dtype", "provider"))
    if compared.unmatched:
        listed = (f"  {printable(describe(row))}" for row in compared.unmatched)
        print_lines(console, "\nnot compared:", *listed, indent="    ")
    print_lines(console, "", *headlines(compared))


def _run_lines(compared: Compared) -> list[str]:
    lines = []
    names = {"baseline": compared.baseline, "candidate": compared.candidate}
    for (side, name), environment in zip(names.items(), compared.environments, strict=True):
        facts = [environment.device["name"], environment.run_id, environment.started_at]
        code = revision_text(environment.git)
        if code and code != name:
            facts.append(f"measured with code at {code}")
        lines.append(printable(f"{side}: {name} ({', '.join(filter(None, facts))})"))
    return lines
