"""How a live comparison is shown: as `python -m results compare` shows a kept one, with a mean for each candidate."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.interrupt import INTERRUPTED
from bench.harness.cli.session import USAGE, Session
from bench.harness.cli.terminal import print_path
from bench.harness.compare.plan import ComparePlan
from results.compare.comparison import Compared
from results.compare.live import compare_live
from results.compare.output import as_csv, as_json, as_markdown, describe, exit_code, print_table
from results.record import Environment
from results.show.terminal import OutputError, print_out, printable, say
from results.stats.comparison import geometric_mean


def show(plan: ComparePlan, environment: Environment, kept: Session, interrupted: bool) -> int:
    """Print the comparison, draw it where that was asked for, say where it is kept, and return the exit code.

    Args:
        plan: what was to be compared, and how it is to be shown.
        environment: of the run.
        kept: its records and its file.
        interrupted: whether Ctrl-C ended it early.

    Raises:
        UsageError: nothing could be compared.
        OutputError: stdout cannot be written.
        StoreError: the picture cannot be written, or the run file could not be to its end.
    """
    from results.compare.plot import draw
    from results.show.picture import save_picture

    request = plan.request
    found = compare_live(environment, kept.records, plan.names[0], plan.margin)
    code = USAGE if kept.problem else INTERRUPTED if interrupted else exit_code(found, plan.fail_on)
    if not found.rows and not code:
        raise UsageError(f"nothing could be compared: {describe(found.unmatched[0])}")
    try:
        print_out(text_of(found, request.format, plan.fail_on, code))
    except OSError as error:
        raise OutputError(f"cannot write the output: {error.strerror}") from None
    if kept.writer is not None:
        print_path("saved", kept.writer.path, request.format)
    if request.plot is not None and found.rows:
        save_picture(draw(found, request.theme), request.plot)
        print_path("plot", request.plot, request.format)
    if not found.rows:
        say("nothing was compared" if interrupted else f"nothing was compared: {describe(found.unmatched[-1])}")
    kept.raise_if_unsaved()
    return code


def text_of(found: Compared, form: str, fail_on: str, code: int) -> str:
    """Return the comparison in the format asked for; where there is no row, only JSON can say so."""
    if form == "json":
        document = json.loads(as_json(found, fail_on))
        document["summary"] |= {"exit_code": code, "geomean_by_candidate": geomeans(found)}
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    if not found.rows:
        return ""
    if form == "csv":
        return as_csv(found)
    text = as_markdown(found) if form == "md" else print_table(found, sys.stdout)
    return text + "".join(f"{line}\n" for line in geomean_lines(found))


def geomeans(found: Compared) -> dict[str, dict[str, Any]]:
    """Return for each candidate the geometric mean of its ratios over all cases, with its interval."""
    means = {}
    for name in dict.fromkeys(row.candidate.label for row in found.rows):
        results = [row.compared for row in found.rows if row.candidate.label == name]
        mean = geometric_mean(results)
        if mean is not None:
            means[name] = {"ratio": mean[0], "ci95": list(mean[1]), "rows": len(results)}
    return means


def geomean_lines(found: Compared) -> list[str]:
    """Return a line for each of several candidates: the headline's mean is that of all of them together."""
    means = geomeans(found)
    if len(means) < 2:
        return []
    return [
        printable(
            f"{name}: geometric mean {mean['ratio']:.4f}x the time of {found.baseline} "
            f"(95 % CI {mean['ci95'][0]:.4f} to {mean['ci95'][1]:.4f}), {mean['rows']} row{'s' * (mean['rows'] > 1)}"
        )
        for name, mean in means.items()
    ]
