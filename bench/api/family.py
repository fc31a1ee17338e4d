"""`bench.matmul.run` and similar functions: the command of a file in `bench/` as a call that
returns records.

Op files and helps import this module, so a call imports the measuring code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.op_file import command_of, family_of, module_of, options_of

if TYPE_CHECKING:
    from bench.api.records import Records

NOT_HERE = ("format", "help", "no_save", "output", "plot", "signature")
"""Options for the output of a command, which a call lacks."""

DOC = """Measure what `{command}` measures, and return its records.

    The options are those of the command with underscores for dashes: `dtype="bf16"`, `shape=4096`,
    `provider=["torch", "triton"]`. A tuple is one shape, `shape=(4096, 4096, 1024)`; a list has
    several values; True sets a flag. `{command} --help` lists them. Unknown ceilings are measured
    first.

    Args:
        save: True saves the run with all others, a path saves it there; by default no run file is
            written.
        quiet: whether to suppress progress and notes on stderr.
        options: options of the command.

    Returns:
        All records, including skipped, invalid and failed ones; they print as the command's table.

    Raises:
        UsageError: invalid options, or nothing can be measured.
        NoDeviceError: the device is not available.
        StoreError: the run file cannot be written.
    """


def run_of(file: str) -> Callable[..., Records]:
    """Return the function that measures as the command of an op file, `__file__`, does:
    `bench.matmul.run`.
    """
    family = family_of(file)

    def run(*, save: bool | str | Path = False, quiet: bool = True, **options: Any) -> Records:
        return _run(family, save, quiet, options)

    run.__doc__ = DOC.format(command=command_of(family))
    return run


def _run(family: str, save: bool | str | Path, quiet: bool, options: dict[str, Any]) -> Records:
    import torch

    from bench.api.records import Records
    from bench.harness.cli.arguments import UsageError, build_parser
    from bench.harness.cli.main import measured
    from results.show.spelling import words_of

    refused = next((name for name in options if name in NOT_HERE), None)
    if refused is not None:
        raise UsageError(
            f"run() takes no {refused}=; use save= to save the records, Records.plot to plot them"
        )
    output = {
        "no_save": save is False,
        "quiet": quiet,
        "output": None if isinstance(save, bool) else save,
    }
    try:
        words = words_of({**options, **output})  # as in the environment line of a run
    except ValueError as error:
        raise UsageError(str(error)) from None
    module = module_of(family)
    is_scenario = hasattr(module, "LISTED")
    if is_scenario:
        parser = module.build_parser()
    else:
        parser = build_parser(family, "", (), module.OPS, options_of(family))
    parser.raises = UsageError
    args = parser.parse_args(words)
    threads = torch.get_num_threads()
    try:
        if is_scenario:
            run = module.measure(args, words)
            render = module.render
        else:
            run = measured(family, args, module.OPS, words)
            render = None
    finally:
        torch.set_num_threads(threads)
    run.raise_if_unsaved()
    if run.is_interrupted:
        raise KeyboardInterrupt
    return Records(run.environment, run.records, render)
