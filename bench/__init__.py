"""Benchmarks: each public file is a family of operations and a command, `python -m bench.<file>`.

From Python, `measure`, `compare`, `sweep`, `do_bench` and `profile` take your own functions,
`Meter` your training loop, and
`bench.<file>.run(...)` runs the command of a file. They are imported on first use.

A package on PyPI is also called `kernels`. If it comes first on the path, this import fails with
one line.
"""

import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.api.comparing import Verdicts as Verdicts
    from bench.api.comparing import compare as compare
    from bench.api.do_bench import do_bench as do_bench
    from bench.api.function import measure as measure
    from bench.api.function import sweep as sweep
    from bench.api.meter import Meter as Meter
    from bench.api.profiling import profile as profile
    from bench.api.records import JudgedRecord as JudgedRecord
    from bench.api.records import Records as Records
    from bench.harness.cli.arguments import UsageError as UsageError
    from bench.harness.device.device import NoDeviceError as NoDeviceError
    from bench.profiling.counts import declare_work as declare_work

__version__ = "0.2.0.dev0"
"""The version of the project: the build reads it here, and every run file records it."""

SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signals that end a command, with Python's default handlers; other handlers are not replaced."""


def leave_when_interrupted() -> None:
    """Make Ctrl-C and SIGTERM end the process immediately, with one line and exit code 130.

    Used while a command loads: during an import, a `KeyboardInterrupt` ends in a traceback or is
    lost, because torch and numpy catch it and continue without a part of themselves.
    """
    for number, usual in SIGNALS.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, leave)


def leave(number: int, frame: FrameType | None) -> None:
    # The signal may have interrupted a print.
    os.write(2, b"interrupted before anything was measured\n")
    os._exit(130)


IS_COMMAND = sys.argv[:1] == ["-m"]
"""Whether this is `python -m bench.x`: Python has not found the module's file yet."""

if IS_COMMAND:
    leave_when_interrupted()


_spec = importlib.util.find_spec("kernels")
_found = "nowhere" if _spec is None else str(_spec.origin)
if Path(_found).resolve() != Path(__file__).resolve().parent.parent / "kernels" / "__init__.py":
    _message = (
        f"bench: 'kernels' would be imported from {_found}, which is not Roofmark's; "
        "uninstall the other package, or remove its directory from the path"
    )
    if IS_COMMAND:  # print no traceback
        print(_message, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_message)


LATE = {
    "JudgedRecord": "bench.api.records",
    "Meter": "bench.api.meter",
    "NoDeviceError": "bench.harness.device.device",
    "Records": "bench.api.records",
    "UsageError": "bench.harness.cli.arguments",
    "Verdicts": "bench.api.comparing",
    "compare": "bench.api.comparing",
    "declare_work": "bench.profiling.counts",
    "do_bench": "bench.api.do_bench",
    "measure": "bench.api.function",
    "profile": "bench.api.profiling",
    "sweep": "bench.api.function",
}
"""Modules of the public names, which are imported on first use."""

FAMILIES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))
"""The op files; each has a `run` like its command: `bench.matmul.run(dtype="bf16")`; not those of
several processes.
"""


def __getattr__(name: str) -> Any:
    if name in LATE:
        return getattr(importlib.import_module(LATE[name]), name)
    if name in FAMILIES:
        return importlib.import_module(f"bench.{name}")
    raise AttributeError(f"module 'bench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE, *FAMILIES})
