"""MEASURE: one public file is one family of operations and one command, `python -m bench.<file>`.

The package stands on `kernels`, a name that a package on PyPI also has. If that one is in front, every Triton
provider would be somebody else's, so the import stops here with one line.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from bench.harness.cli.interrupt import leave_when_interrupted

IS_COMMAND = sys.argv[:1] == ["-m"]
"""Whether this is the start of `python -m bench.x`: Python has not found the module's file yet."""

if IS_COMMAND:
    leave_when_interrupted()


def _foreign_kernels() -> str | None:
    """Return where a `kernels` that is not ours would be imported from, or None."""
    spec = importlib.util.find_spec("kernels")
    ours = Path(__file__).resolve().parent.parent / "kernels" / "__init__.py"
    if spec is not None and spec.origin and Path(spec.origin).resolve() == ours:
        return None
    return str(spec.origin) if spec is not None else "nowhere"


_found = _foreign_kernels()
if _found is not None:
    _message = (
        f"bench: 'kernels' would be imported from {_found}, which is not Ridgepoint's; "
        "run from the root of the repository, or uninstall the other package"
    )
    if IS_COMMAND:  # the person at the terminal needs the line, not the traceback
        print(_message, file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(_message)


def __getattr__(name: str) -> Any:
    """Return the functions of the package, imported when they are first asked for."""
    if name == "profile":
        from bench.harness.profile.profiling import profile

        return profile
    if name == "declare_work":
        from bench.harness.profile.counts import declare_work

        return declare_work
    raise AttributeError(f"module 'bench' has no attribute '{name}'")
