"""How a live comparison is shown: as `python -m results compare` shows a saved one."""

from __future__ import annotations

import sys

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.interrupt import INTERRUPTED
from bench.harness.cli.session import USAGE, Session
from bench.harness.cli.terminal import print_path
from bench.harness.compare.plan import ComparePlan
from results.compare.live import compare_live
from results.compare.output import as_text, describe, exit_code
from results.record import Environment
from results.show.terminal import OutputError, print_out, say


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
        if found.rows or request.format == "json":
            print_out(as_text(found, request.format, plan.fail_on, sys.stdout, exit_code=code))
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
