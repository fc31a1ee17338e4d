"""A user's kernel: a provider `path/to/file.py:function` or `package.module:function`.

`find` reads the file without running it, to report errors before anything starts; `load` imports
it, in a worker. A path must not contain a comma, which separates providers.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.harness.op import UsageError
from bench.harness.op_file import error_text, import_file

if TYPE_CHECKING:
    from bench.harness.op import Op

MAX_LISTED = 12
"""Maximum number of functions in a message."""

MORE_INPUTS = 3
"""Additional inputs of an op in some dtypes, the two scales of an fp8 matmul, or of one with a
reference in C, such as torch.where.
"""


class UserKernelError(UsageError):
    """A user's kernel cannot be used; the message is one line without the provider's name."""


@dataclass(frozen=True)
class Source:
    """The location of a user's function."""

    location: str
    """Path or module name before the colon."""
    function: str
    file: Path | None = None
    """None if there is no such file, or if a module has no Python source."""
    problem: str | None = None
    """Reason that it cannot be imported, if known without running it."""

    def sha256(self) -> str | None:
        try:
            return None if self.file is None else hashlib.sha256(self.file.read_bytes()).hexdigest()
        except OSError:
            return None

    def module(self) -> ModuleType:
        if is_module_name(self.location):
            return importlib.import_module(self.location)
        return import_file(Path(self.file or ""))


def is_module_name(location: str) -> bool:
    """Return whether the text before the colon is a module, `a.b`, rather than a file, `a/b` or
    `b.py`.
    """
    return not location.endswith(".py") and all(part.isidentifier() for part in location.split("."))


def find(name: str) -> Source:
    """Locate a user's function without running the user's code; `#2` after it is not part of it."""
    location, _, function = re.sub(r"#[0-9]+$", "", name).rpartition(":")
    if not location or not function.isidentifier():
        raise UserKernelError(
            f"provider '{name}': expected path/to/file.py:function or package.module:function"
        )
    file = None
    try:
        file = _module_file(location) if is_module_name(location) else _file(location)
        if file is not None:
            _check_text(location, function, file)
    except UserKernelError as error:
        return Source(location, function, file, str(error))
    return Source(location, function, file)


def _file(location: str) -> Path:
    path = Path(location).expanduser()
    if not path.exists():
        raise UserKernelError(f"there is no file {location} (from {Path.cwd()})")
    if path.suffix != ".py":
        raise UserKernelError(f"{location} is not a Python file; its name must end in .py")
    return path.resolve()


def _module_file(location: str) -> Path | None:
    """Locate a module without importing its packages; None if it has no Python source."""
    search = None
    name = ""
    for part in location.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, search)
        if spec is None:
            raise UserKernelError(f"there is no module '{location}': '{part}' is not found")
        search = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _check_text(location: str, function: str, file: Path) -> None:
    try:
        tree = ast.parse(file.read_bytes())
    except OSError as error:
        raise UserKernelError(f"cannot read {location}: {error.strerror}") from None
    except SyntaxError as error:
        raise UserKernelError(
            f"{location} is not Python in line {error.lineno}: {error.msg}"
        ) from None
    except ValueError as error:
        raise UserKernelError(f"{location} is not Python: {error}") from None
    # Of imports, of definitions, of assignments.
    named = itertools.product(ast.walk(tree), ("asname", "name", "id"))
    names = {getattr(node, key, None) for node, key in named}
    if not names & {function, "*", "__getattr__"}:
        functions = [
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
        ]
        listed = ", ".join(functions[:MAX_LISTED]) or "no function at its top level"
        raise UserKernelError(f"{location} has no '{function}'; it has: {listed}")


def load(name: str, op: Op) -> tuple[Callable[..., Any], bool]:
    """Import a user's function; return it, and whether it has a parameter `out`."""
    source = find(name)
    if source.problem is not None:
        raise UserKernelError(source.problem)
    try:
        function = getattr(source.module(), source.function, None)
    except Exception as error:
        text = f"importing {source.location} failed: {error_text(error, source.file)}"
        raise UserKernelError(text[:300]) from error
    if not callable(function):
        raise UserKernelError(
            f"{source.location} has no function '{source.function}' once it is imported"
        )
    if type(function).__module__.startswith("triton.") and hasattr(function, "fn"):
        raise UserKernelError(
            f"'{source.function}' is a Triton kernel; name a function that launches it"
        )
    return function, takes_out(source.function, function, op)


def takes_out(name: str, function: Callable[..., Any], op: Op) -> bool:
    """Return whether a function has a parameter `out`; raise `UserKernelError` if it does not take
    the op's inputs.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # unknown for some functions in C
        return False
    has_out = "out" in signature.parameters
    parameters = _input_parameters(op)
    has_more = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    counts = [len(parameters)]
    if has_more:
        counts = list(range(len(parameters) - 1, len(parameters) + MORE_INPUTS))
    problems = []
    for count in counts:
        try:
            signature.bind(*range(count), **({"out": None} if has_out else {}))
        except TypeError as error:
            problems.append(str(error))
        else:
            return has_out
    inputs = (
        f"{len(parameters)} input{'s' if len(parameters) > 1 else ''} "
        f"({', '.join(input_names(op))})"
    )
    raise UserKernelError(
        f"{name}{signature} does not accept the arguments of {op.name}, {inputs} and optionally "
        f"out=: {problems[0]}; see --op {op.name} --signature"
    )


def input_names(op: Op) -> list[str]:
    return [parameter.name for parameter in _input_parameters(op)]


def _input_parameters(op: Op) -> list[inspect.Parameter]:
    """Return the parameters of an op's reference, without `out` if it is also its `eager`; some
    functions in C do not tell theirs.
    """
    try:
        parameters = inspect.signature(op.reference).parameters
    except ValueError:
        parameters = inspect.signature(lambda *inputs: None).parameters
    return [parameter for name, parameter in parameters.items() if name != "out"]


def left_by(error: SystemExit) -> str:
    return f"called sys.exit({'' if error.code is None else repr(error.code)[:100]})"


@functools.cache
def source_git_state(source: Source, sha256: str | None) -> dict[str, Any] | None:
    """Return the state of the repository; dirty if the file has changed since the measurement."""
    from bench.harness.device.device import file_git_state

    git = None if source.file is None else file_git_state(source.file)
    return git | {"dirty": True} if git and source.sha256() != sha256 else git
