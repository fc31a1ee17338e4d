"""How a live comparison is shown: as `python -m results compare` shows a saved one."""

from __future__ import annotations

import sys

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.interrupt import INTERRUPTED, USAGE
from bench.harness.cli.terminal import print_path
from bench.harness.compare.plan import ComparePlan
from bench.harness.run import Run
from results.compare.live import compare_live
from results.compare.output import as_text, describe, exit_code
from results.show.terminal import OutputError, print_out, say


def show(plan: ComparePlan, run: Run) -> int:
    """Print the comparison, draw it where that was asked for, say where it is kept, and return the exit code.

    Args:
        plan: what was to be compared, and how it is to be shown.
        run: its records and its file.

    Raises:
        UsageError: nothing could be compared.
        OutputError: stdout cannot be written.
        StoreError: the picture cannot be written, or the run file could not be to its end.
    """
    from results.compare.plot import draw
    from results.show.picture import save_picture

    args, interrupted = run.args, run.is_interrupted
    assert run.environment is not None
    found = compare_live(run.environment, run.records, plan.names[0], plan.margin)
    code = USAGE if run.problem else INTERRUPTED if interrupted else exit_code(found, plan.fail_on)
    if not found.rows and not code:
        raise UsageError(f"nothing could be compared: {describe(found.unmatched[0])}")
    try:
        if found.rows or args.format == "json":
            print_out(as_text(found, args.format, plan.fail_on, sys.stdout, exit_code=code))
    except OSError as error:
        raise OutputError(f"cannot write the output: {error.strerror}") from None
    if run.writer is not None:
        print_path("saved", run.writer.path, args.format)
    if args.plot is not None and found.rows:
        save_picture(draw(found), args.plot)
        print_path("plot", args.plot, args.format)
    if not found.rows:
        say("nothing was compared" if interrupted else f"nothing was compared: {describe(found.unmatched[-1])}")
    run.raise_if_unsaved()
    return code
