"""A comparison as text: the table for people, Markdown for a pull request, JSON and CSV for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from results.compare import Compared, Row
from results.compare_match import Unmatched
from results.compare_sides import METRICS
from results.comparison import FASTER, SAME, SLOWER, UNKNOWN, UNSURE, geometric_mean
from results.export import csv_text, json_text, markdown_text
from results.record import Environment
from results.table import ABSENT, format_percent, format_rate, format_time, printable, table_console

if TYPE_CHECKING:
    from rich.console import Console

VERDICTS = (SLOWER, UNSURE, FASTER, SAME)
"""In the order in which they matter."""

COLORS = {SLOWER: "red", FASTER: "green", UNSURE: "yellow", SAME: ""}

SHOWN_ROWS = 200
"""Rows of the table for people; of more, those that matter most are shown."""

SHOWN_UNMATCHED = 20

UNMATCHED = "UNMATCHED"
"""In the place of a verdict, in a table that has no other place for what could not be compared."""


def counts(compared: Compared) -> dict[str, int]:
    """Return how many rows have each verdict."""
    found = Counter(row.compared.verdict for row in compared.rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def exit_code(compared: Compared, fail_on: str) -> int:
    """Return 1 for a confirmed regression, a wrong or failed candidate, or, where asked for, an unsure row; else 0."""
    found = counts(compared)
    failing = found[SLOWER] + (found[UNSURE] if fail_on == "unsure" else 0)
    return int(bool(failing or any(one.is_broken for one in compared.unmatched)))


def summary(compared: Compared, fail_on: str) -> dict[str, Any]:
    """Return what holds for all rows together, as a JSON object."""
    results = [row.compared for row in compared.rows]
    in_metric = geometric_mean(results)
    in_time = _mean_time_ratio(compared)
    first, second = (_run(environment) for environment in compared.environments)
    return {
        "baseline": {"label": compared.baseline} | first,
        "candidate": {"label": compared.candidate} | second,
        "metric": compared.request.metric,
        "margin": compared.request.margin,
        "fail_on": fail_on,
        "rows": len(results),
        "counts": counts(compared),
        "geomean": in_time[0] if in_time else None,
        "geomean_ci95": list(in_time[1]) if in_time else None,
        "metric_geomean": _inverted(in_metric[0], compared) if in_metric else None,
        "metric_geomean_ci95": _inverted_ends(in_metric[1], compared) if in_metric else None,
        "geomean_rows": sum(result.ci95 != UNKNOWN for result in results),
        "unmatched": len(compared.unmatched),
        "broken": sum(one.is_broken for one in compared.unmatched),
        "notes": list(compared.notes),
        "exit_code": exit_code(compared, fail_on),
    }


def _mean_time_ratio(compared: Compared) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of the ratios of the times, which are those compared less the factors."""
    from results.stats import geometric_mean_of

    known = [row for row in compared.rows if row.compared.ci95 != UNKNOWN]
    mean = geometric_mean([row.compared for row in known])
    if mean is None:
        return None
    factor = geometric_mean_of([row.factor for row in known])
    return mean[0] / factor, (mean[1][0] / factor, mean[1][1] / factor)


def _run(environment: Environment) -> dict[str, Any]:
    known = {"run_id": environment.run_id, "started_at": environment.started_at, "git": environment.git}
    return known | {"device": environment.device["slug"]}


def _inverted(ratio: float, compared: Compared) -> float:
    """Return a ratio of the metric: of a rate, more is faster."""
    return ratio if compared.request.metric == "time" else 1 / ratio


def _inverted_ends(ends: tuple[float, float], compared: Compared) -> list[float]:
    low, high = ends
    return [low, high] if compared.request.metric == "time" else [1 / high, 1 / low]


def json_rows(compared: Compared) -> list[dict[str, Any]]:
    """Return the rows as JSON objects."""
    return [_json_row(row, compared) for row in compared.rows]


def _json_row(row: Row, compared: Compared) -> dict[str, Any]:
    ends = None if row.compared.ci95 == UNKNOWN else _inverted_ends(row.compared.ci95, compared)
    return {
        "op": row.key.op,
        "dtype": row.key.dtype,
        "case": row.key.case,
        "options": row.key.options,
        "fill": row.key.fill,
        "cache": row.key.cache,
        "baseline": row.baseline,
        "candidate": row.candidate,
        "provider_baseline": row.provider_baseline,
        "provider_candidate": row.provider_candidate,
        "ratio": row.ratio,
        "ci95": list(row.ci95) if row.ci95 else None,
        "metric": compared.request.metric,
        "metric_ratio": _inverted(row.compared.ratio, compared),
        "metric_ci95": ends,
        "verdict": row.compared.verdict,
        "reason": row.compared.reason,
        "baseline_s": row.baseline_s,
        "candidate_s": row.candidate_s,
        "mfu_baseline": row.mfu_baseline,
        "mfu_candidate": row.mfu_candidate,
        "bytes_per_s_baseline": row.bytes_per_s_baseline,
        "bytes_per_s_candidate": row.bytes_per_s_candidate,
        "cycles_ratio": row.cycles_ratio,
        "cycles_verdict": row.cycles_verdict,
        "windows_baseline": row.windows[0],
        "windows_candidate": row.windows[1],
    }


def _json_unmatched(one: Unmatched) -> dict[str, Any]:
    names = ("op", "dtype", "case", "options", "provider", "fill", "cache", "status")
    known = {name: getattr(one.measured, name) for name in names}
    return {"side": one.side} | known | {"reason": one.reason, "broken": one.is_broken}


def as_json(compared: Compared, fail_on: str) -> str:
    """Return the comparison as one JSON document."""
    return json_text(
        {
            "summary": summary(compared, fail_on),
            "rows": json_rows(compared),
            "unmatched": [_json_unmatched(one) for one in compared.unmatched],
        }
    )


def as_csv(compared: Compared) -> str:
    """Return a row for each comparison, and one with the verdict `UNMATCHED` for each record that has none."""
    rows = []
    for row in json_rows(compared):
        low, high = row.pop("ci95") or (None, None)
        metric_low, metric_high = row.pop("metric_ci95") or (None, None)
        ends = {"ci95_low": low, "ci95_high": high, "metric_ci95_low": metric_low, "metric_ci95_high": metric_high}
        rows.append(row | ends)
    empty = dict.fromkeys(rows[0])
    for one in compared.unmatched:
        known = {name: getattr(one.measured, name) for name in ("op", "dtype", "case", "options", "fill", "cache")}
        provider = {f"provider_{one.side}": one.measured.provider}
        rows.append(empty | known | provider | {"verdict": UNMATCHED, "reason": f"{one.side}: {one.reason}"})
    return csv_text(rows, list(rows[0]))


def as_markdown(compared: Compared) -> str:
    """Return a summary in one line, the table, and what was not compared: made to be pasted into a pull request."""
    lines = [f"**{headline(compared)}**", ""]
    cells = [_cells(row, compared) for row in compared.rows]
    text = "\n".join(lines) + "\n" + markdown_text(_without_constant(cells), list(cells[0]))
    if compared.unmatched:
        listed = [f"- {printable(describe(one))}" for one in compared.unmatched]
        inside = "\n".join(line.replace("<", "&lt;") for line in listed)
        text += f"\n<details><summary>{len(compared.unmatched)} not compared</summary>\n\n{inside}\n\n</details>\n"
    return text + "".join(f"\n{printable(note)}\n" for note in compared.notes)


def headline(compared: Compared) -> str:
    """Return the comparison in one line."""
    found = counts(compared)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in found.items() if count)
    rows = len(compared.rows)
    text = f"{compared.baseline} -> {compared.candidate}: {verdicts} of {rows:,} row{'s' * (rows != 1)}"
    mean = geometric_mean([row.compared for row in compared.rows])
    if mean is not None:
        low, high = _inverted_ends(mean[1], compared)
        what = f"{_inverted(mean[0], compared):.4f}x the {METRICS[compared.request.metric]}"
        text += f"; geometric mean {what} (95 % CI {low:.4f} to {high:.4f})"
    broken = sum(one.is_broken for one in compared.unmatched)
    return printable(text + (f"; {broken} wrong or failed" if broken else ""))


def _cells(row: Row, compared: Compared) -> dict[str, str]:
    """Return a row in units for people."""
    provider = row.provider_candidate if row.key.provider else f"{row.provider_baseline} -> {row.provider_candidate}"
    ends = None if row.compared.ci95 == UNKNOWN else _inverted_ends(row.compared.ci95, compared)
    quantity = METRICS[compared.request.metric]
    return {
        "op": row.key.op,
        "case": row.key.case,
        "dtype": row.key.dtype,
        "provider": provider,
        "options": row.key.options,
        "baseline": format_time(row.baseline_s),
        "candidate": format_time(row.candidate_s),
        f"{quantity} ratio": f"{_inverted(row.compared.ratio, compared):.4f}",
        "95% CI": f"{ends[0]:.4f} to {ends[1]:.4f}" if ends else ABSENT,
        **_utilization(row),
        "verdict": row.compared.verdict,
        "reason": row.compared.reason,
    }


def _utilization(row: Row) -> dict[str, str]:
    """Return MFU of both, or bytes per second where there is none."""
    if row.mfu_baseline is not None and row.mfu_candidate is not None:
        both = [format_percent(100 * value) for value in (row.mfu_baseline, row.mfu_candidate)]
    else:
        both = [format_rate(value, "B/s") for value in (row.bytes_per_s_baseline, row.bytes_per_s_candidate)]
    return {"MFU or B/s": " -> ".join(both)}


def _without_constant(cells: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows without options that are the same in all."""
    if len({row["options"] for row in cells}) == 1:
        return [{title: text for title, text in row.items() if title != "options"} for row in cells]
    return cells


def describe(one: Unmatched) -> str:
    """Return a record that was not compared in one line."""
    measured = one.measured
    words = [measured.op, measured.case, measured.dtype, measured.provider, measured.fill, measured.cache]
    return f"{one.side}: {' '.join(word for word in words if word)}: {one.reason}"


def print_table(compared: Compared, file: TextIO) -> str:
    """Return the table for people, as wide as `file` can show it."""
    console = table_console(file)
    with console.capture() as text:
        for side, environment in zip(("baseline", "candidate"), compared.environments, strict=True):
            console.print(_run_line(side, environment, compared), markup=False, highlight=False, soft_wrap=True)
        ranked = sorted(compared.rows, key=lambda row: VERDICTS.index(row.compared.verdict))
        shown = compared.rows if len(compared.rows) <= SHOWN_ROWS else ranked[:SHOWN_ROWS]
        _print_rows(shown, compared, console)
        _print_rest(len(compared.rows) - len(shown), "rows", console)
        if compared.unmatched:
            console.print("\nnot compared:", markup=False, highlight=False)
        for one in compared.unmatched[:SHOWN_UNMATCHED]:
            console.print(f"  {printable(describe(one))}", markup=False, highlight=False, soft_wrap=True)
        _print_rest(len(compared.unmatched) - SHOWN_UNMATCHED, "records", console)
        console.print(f"\n{headline(compared)}", markup=False, highlight=False, soft_wrap=True)
    return text.get()


def _run_line(side: str, environment: Environment, compared: Compared) -> str:
    from results.compare_sides import revision

    name = compared.baseline if side == "baseline" else compared.candidate
    facts = (environment.device["name"], environment.run_id, environment.started_at, revision(environment))
    return printable(f"{side}: {name} ({', '.join(dict.fromkeys(fact for fact in facts if fact))})")


def _print_rows(rows: Sequence[Row], compared: Compared, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = _without_constant([_cells(row, compared) for row in rows])
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    words = {"op", "case", "dtype", "provider", "options", "verdict", "reason"}
    for title in cells[0]:
        table.add_column(
            title, justify="left" if title in words else "right", overflow="fold", no_wrap=title != "reason"
        )
    for row in cells:
        style = COLORS[row["verdict"]]
        table.add_row(*(Text(printable(text), style if title == "verdict" else "") for title, text in row.items()))
    console.print()
    console.print(table, crop=False)


def _print_rest(count: int, what: str, console: Console) -> None:
    if count > 0:
        text = f"... and {count:,} more {what}: --format csv and --format json have all"
        console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
