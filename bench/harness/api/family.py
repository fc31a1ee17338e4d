"""`bench.matmul.run` and its like: what the command of a file in `bench/` measures, as a call that returns records.

Every op file imports this one, and so does each --help: what measures is imported by the call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.op_file import command_of, family_of, module_of, options_of

if TYPE_CHECKING:
    from bench.harness.api.records import Records

NOT_HERE = ("format", "help", "no_save", "output", "plot", "signature")
"""Options that say what a command does with its records; a call returns them."""

DOC = """Measure what `{command}` measures, and return its records.

    The options are those of the command, read and checked by the command itself, with underscores for dashes:
    `dtype="bf16"`, `shape=4096`, `provider=["torch", "triton"]`. A tuple is one shape, `shape=(4096, 4096, 1024)`, a
    list holds several values, True switches on. `{command} --help` lists them. Ceilings that are not known are measured
    first, as the command does.

    Args:
        save: True keeps the run where all are kept, a path keeps it there; by default no run file is written.
        quiet: whether progress and notes stay unsaid; else they go to stderr.
        options: those of the command.

    Returns:
        The records, skipped, invalid and failed ones too; they show themselves as the command's table.

    Raises:
        UsageError: a value cannot be, or nothing can be measured.
        NoDeviceError: the device asked for is not there.
        StoreError: the run file cannot be written.
    """


def run_of(file: str) -> Callable[..., Records]:
    """Return the function that measures what the command of an op file, `__file__`, measures: `bench.matmul.run`."""
    family = family_of(file)

    def run(*, save: bool | str | Path = False, quiet: bool = True, **options: Any) -> Records:
        return _run(family, save, quiet, options)

    run.__doc__ = DOC.format(command=command_of(family))
    return run


def _run(family: str, save: bool | str | Path, quiet: bool, options: dict[str, Any]) -> Records:
    import torch

    from bench.harness.api.records import Records
    from bench.harness.cli.arguments import UsageError, build_parser
    from bench.harness.cli.main import measured
    from results.show.spelling import as_typed, words_of

    refused = next((name for name in options if name in NOT_HERE), None)
    if refused is not None:
        raise UsageError(f"run() takes no {refused}=: save= keeps the records, Records.plot draws them")
    output = {"no_save": save is False, "quiet": quiet, "output": None if isinstance(save, bool) else save}
    try:
        words = words_of(as_typed({**options, **output}))  # the environment line of a run holds them so
    except ValueError as error:
        raise UsageError(str(error)) from None
    module = module_of(family)
    is_scenario = hasattr(module, "LISTED")
    parser = module.build_parser() if is_scenario else build_parser(family, "", (), module.OPS, options_of(family))
    parser.raises = UsageError
    args, threads = parser.parse_args(words), torch.get_num_threads()
    try:
        if is_scenario:
            run, render = module.measure(args, words), module.render
        else:
            run, render = measured(family, args, module.OPS, options_of(family), words), None
    finally:
        torch.set_num_threads(threads)
    run.raise_if_unsaved()
    if run.is_interrupted:
        raise KeyboardInterrupt
    assert run.environment is not None
    return Records(run.environment, run.records, render)
