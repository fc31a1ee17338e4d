"""A user's own kernel: a provider written `path/to/file.py:function` or `package.module:function`.

What can be said without running the user's file is said at once, from its text: no such file, no such function, a
mistake in its syntax. The rest is found in a worker process, which imports the file and asks what the function takes.
A path with a comma or a second colon cannot be written: the comma parts providers, the colon the function.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.harness.op_file import import_file, line_in

if TYPE_CHECKING:
    from bench.harness.op import Op
    from results.record import Record

MOST_LISTED = 12
"""Names that a message lists at most."""


MORE_INPUTS = 2
"""Inputs beside the fixed ones that an op has in some dtypes: the two scales of an fp8 product."""


class UserKernelError(ValueError):
    """A user's kernel cannot be used; the message says why, in one line."""


@dataclass(frozen=True)
class Source:
    """Where a user's function is to be found."""

    name: str
    """The provider's word, as the user wrote it."""
    place: str
    """What stands before the colon: a path, or a module's name."""
    function: str
    file: Path | None
    """The file that is imported; None where a module is none of Python's text or built in, or where there is none."""
    problem: str | None = None
    """Why it cannot be imported, as far as that shows without running it."""

    @property
    def is_module(self) -> bool:
        """Whether it is written as a module's name instead of a path."""
        return is_module_name(self.place)

    def sha256(self) -> str | None:
        """Return the hash of the file, so that a record tells which text it measured."""
        try:
            return None if self.file is None else hashlib.sha256(self.file.read_bytes()).hexdigest()
        except OSError:
            return None


@dataclass(frozen=True)
class Loaded:
    """A user's function, imported into this process."""

    source: Source
    function: Callable[..., Any]
    takes_out: bool


def is_user_kernel(name: str) -> bool:
    """Return whether a provider's name is that of a user's function: no name of ours has a colon."""
    return ":" in name


def with_revision(record: Record) -> Record:
    """Return a record with the git revision of the user's file that it measured; one of another provider as it is.

    A text that has changed since it was measured is no longer the one that git sees: the revision is dirty.
    """
    if not is_user_kernel(record.provider):
        return record
    try:
        source = find(record.provider)
    except UserKernelError:  # the file is gone, or no Python any more
        return record
    return replace(record, source_git=_git_of_text(source, record.source_sha256))


@functools.cache
def _git_of_text(source: Source, sha256: str | None) -> dict[str, Any] | None:
    """Return the state of the repository as it was when a text was first seen: the same for all rows of a run."""
    from bench.harness.device.stamp import file_git_state

    git = None if source.file is None else file_git_state(source.file)
    return git | {"dirty": True} if git and source.sha256() != sha256 else git


def is_module_name(place: str) -> bool:
    """Return whether what stands before the colon names a module, `a.b`, and no file, `a/b` or `b.py`."""
    return not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))


def find(name: str) -> Source:
    """Return where a user's function is, without running anything of the user's.

    Args:
        name: `path/to/file.py:function` or `package.module:function`.

    Returns:
        Where it is, with the problem where there is no such file or function, or the text is no Python.

    Raises:
        UserKernelError: it is not written like that.
    """
    place, _, function = name.partition(":")
    if not place or not function.isidentifier():
        raise UserKernelError(f"provider '{name}' must be written path/to/file.py:function or package.module:function")
    source = Source(name, place, function, None)
    try:
        file = _module_file(name, place) if is_module_name(place) else _file(name, place)
        source = replace(source, file=file)
        if file is not None:
            _check_text(source, file)
    except UserKernelError as error:
        return replace(source, problem=str(error))
    return source


def problem_of_all(names: Sequence[str]) -> str | None:
    """Return what is wrong with the first provider where none of them can be measured."""
    problems = [find(name).problem if is_user_kernel(name) else None for name in names]
    return problems[0] if problems and all(problems) else None


def _file(name: str, place: str) -> Path:
    path = Path(place).expanduser()
    if path.is_dir():
        raise UserKernelError(f"provider '{name}': {place} is a folder; name a Python file in it")
    if not path.exists():
        raise UserKernelError(f"provider '{name}': there is no file {place} (from {Path.cwd()})")
    if path.suffix != ".py":
        raise UserKernelError(f"provider '{name}': {place} is no Python file; its name must end in .py")
    return path.resolve()


def _module_file(name: str, place: str) -> Path | None:
    """Return the file of a module, None where it has no text; its packages are found, but not run."""
    search: list[str] | None = None
    spec = None
    for depth, part in enumerate(place.split("."), start=1):
        if depth == 1 and part in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(".".join(place.split(".")[:depth]), search)
        if spec is None:
            raise UserKernelError(f"provider '{name}': there is no module '{place}': '{part}' is not found")
        search = list(spec.submodule_search_locations or [])
    assert spec is not None
    if spec.loader is None or spec.origin is None:
        raise UserKernelError(f"provider '{name}': {place} is a folder; name a module in it, or ./path/to/file.py:...")
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def _check_text(source: Source, file: Path) -> None:
    """Refuse a text that is no Python, or that gives the function's name nowhere at its top level."""
    try:
        tree = ast.parse(file.read_bytes())
    except OSError as error:
        raise UserKernelError(f"provider '{source.name}': cannot read {source.place}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserKernelError(f"provider '{source.name}': {source.place} is not Python{line}: {what}") from None
    names = set(_top_level_names(tree.body))
    if source.function not in names and not names & {"*", "__getattr__"}:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        raise UserKernelError(f"provider '{source.name}': {source.place} has no '{source.function}'; {_has(functions)}")


def _has(functions: list[str]) -> str:
    if not functions:
        return "it has no function at its top level"
    more = ", ..." if len(functions) > MOST_LISTED else ""
    return f"it has: {', '.join(functions[:MOST_LISTED])}{more}"


def _top_level_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield every name that statements outside of functions and classes may give, `*` for a star import."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.alias):
                yield (inner.asname or inner.name).partition(".")[0]
            elif isinstance(inner, ast.FunctionDef):
                yield inner.name
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id


def load(name: str, op: Op) -> Loaded:
    """Import the user's file, or take it as it was imported before, and return the function.

    Raises:
        UserKernelError: it cannot be imported, has no such function, or the function does not take the op's inputs.
        BaseException: whatever else the file raises that is no `Exception`, such as `SystemExit`.
    """
    source = find(name)
    if source.problem is not None:
        raise UserKernelError(source.problem)
    try:
        module = _imported(source)
    except Exception as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        where = line_in(error, source.file)
        message = f"provider '{name}': importing {source.place} failed{where}: {type(error).__name__}: {text}"
        raise UserKernelError(message[:300]) from error
    function = getattr(module, source.function, None)
    if function is None:
        raise UserKernelError(f"provider '{name}': {source.place} has no '{source.function}' once it is imported")
    if not callable(function):
        kind = type(function).__name__
        raise UserKernelError(f"provider '{name}': '{source.function}' is {kind}, which cannot be called")
    if type(function).__module__.startswith("triton.") and hasattr(function, "fn"):
        raise UserKernelError(
            f"provider '{name}': '{source.function}' is a Triton kernel; name a function that launches it"
        )
    return Loaded(source, function, takes_out(source, function, op))


def takes_out(source: Source, function: Callable[..., Any], op: Op) -> bool:
    """Return whether a function takes `out=`, after making sure that it takes the op's inputs.

    Raises:
        UserKernelError: it takes more or fewer.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C it may not be known
        return False
    names = input_names(op)
    has_out = "out" in signature.parameters
    if has_out and signature.parameters["out"].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UserKernelError(f"provider '{source.name}': 'out' must be taken by name, not by position only")
    problem = next(iter(_misfits(signature, op, has_out)), None)
    if problem is not None:
        inputs = f"{len(names)} input{'s' if len(names) > 1 else ''} ({', '.join(names)})"
        raise UserKernelError(
            f"provider '{source.name}': {source.function}{signature} does not take what {op.name} gives, {inputs} and "
            f"out= where there is such a parameter: {problem}; --op {op.name} --signature shows what is expected"
        )
    return has_out


def _misfits(signature: inspect.Signature, op: Op, has_out: bool) -> list[str]:
    """Return why a call does not fit a signature; where an op has more inputs in some dtypes, one fit is enough."""
    out = {"out": None} if has_out else {}
    kinds = [parameter.kind for parameter in _input_parameters(op)]
    fewest = len(kinds) - (inspect.Parameter.VAR_POSITIONAL in kinds)
    problems = []
    for count in range(fewest, fewest + (MORE_INPUTS if fewest < len(kinds) else 0) + 1):
        try:
            signature.bind(*range(count), **out)
        except TypeError as error:
            problems.append(str(error))
        else:
            return []
    return problems


def input_names(op: Op) -> list[str]:
    """Return the names of an op's inputs: the parameters of its reference."""
    return [parameter.name for parameter in _input_parameters(op)]


def _input_parameters(op: Op) -> list[inspect.Parameter]:
    """Return the parameters of an op's reference without `out`, which one that serves as `eager` too has."""
    return [one for name, one in inspect.signature(op.reference).parameters.items() if name != "out"]


def _imported(source: Source) -> ModuleType:
    """Return the user's module."""
    if source.is_module:
        return importlib.import_module(source.place)
    assert source.file is not None
    return import_file(source.file)


def left_by(error: SystemExit) -> str:
    """Return in words how a user's code tried to end the process."""
    return f"called sys.exit({'' if error.code is None else repr(error.code)[:100]})"
