"""Op files, and the hash of an op's definition.

A family is one op file: its name in `bench/`, such as `matmul`, or the absolute path of a user's
file.

The hash in a record covers the functions of the op (inputs, formula, work, torch calls), the names
that they use from their own file, and the modules in `defined_in`. It excludes comments,
docstrings, layout and other ops of the file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import tokenize
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from bench.harness import op as machinery
from bench.harness.op import PEAKS, Op, Option, UsageError

BENCH = Path(__file__).resolve().parents[1]


class OpFileError(UsageError):
    """An op file cannot be used; the message is one line with the reason."""


def family_of(file: str | Path) -> str:
    path = Path(file).resolve()
    return path.stem if path.parent == BENCH else str(path)


def is_own(family: str) -> bool:
    """Return whether a family is the path of a user's file."""
    return family.endswith(".py")


def command_of(family: str) -> str:
    if not is_own(family):
        return f"python -m bench.{family}"
    path = Path(family)
    return f"python {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"


def own_file(word: str) -> tuple[Path, str | None] | None:
    """Return path and op of a value of `--op` such as `path/mine_op.py` or `path/mine_op.py:name`,
    else None.
    """
    path, _, name = word.rpartition(":") if not word.endswith(".py") else (word, "", "")
    return (Path(path).resolve(), name or None) if path.endswith(".py") else None


def module_of(family: str) -> ModuleType:
    return (
        import_file(Path(family)) if is_own(family) else importlib.import_module(f"bench.{family}")
    )


def options_of(family: str) -> Sequence[Option]:
    options: Sequence[Option] = getattr(module_of(family), "OPTIONS", ())
    return options


def load_ops(family: str, others: Mapping[str, Sequence[Op]]) -> tuple[Op, ...]:
    """Return the ops of a family; raise `OpFileError` if it is invalid or conflicts with the
    `others`.
    """
    path = Path(family) if is_own(family) else BENCH / f"{family}.py"
    try:
        module = module_of(family)
    except (Exception, SystemExit) as error:
        raise OpFileError(error_text(error, path)) from None
    ops = getattr(module, "OPS", ())
    options = getattr(module, "OPTIONS", ())
    if not ops:
        raise OpFileError("it has no OPS and no LISTED")
    if not (isinstance(ops, tuple) and all(isinstance(op, Op) for op in ops)):
        raise OpFileError("its OPS must be a tuple of Op")
    if not all(isinstance(option, Option) for option in options):
        raise OpFileError("its OPTIONS must be a tuple of Option")
    if wrong := next((op for op in ops if op.units not in (None, *PEAKS)), None):
        raise OpFileError(
            f"units of '{wrong.name}' must be {' or '.join(PEAKS)}, got {wrong.units!r}"
        )
    known: dict[str, str] = {}
    for other, other_ops in others.items():
        known |= dict.fromkeys((op.name for op in other_ops), other)
    for op in ops:
        if op.name in known:
            other = known[op.name] if is_own(known[op.name]) else f"bench/{known[op.name]}.py"
            raise OpFileError(f"{other} also has an op '{op.name}'; rename it")
    return ops


def own_families(
    words: Iterable[str], others: Mapping[str, Sequence[Op]]
) -> dict[str, tuple[Op, ...]]:
    """Return the ops of the users' files in the values of `--op`, by family."""
    families: dict[str, tuple[Op, ...]] = {}
    for named in filter(None, map(own_file, words)):
        family = str(named[0])
        if family not in families:
            try:
                families[family] = load_ops(
                    family, {k: v for k, v in {**others, **families}.items() if k != family}
                )
            except OpFileError as error:
                raise OpFileError(f"{named[0].name} cannot be used: {error}") from None
    return families


@dataclass(frozen=True)
class Catalog:
    """The files in `bench/` by name."""

    families: Mapping[str, tuple[Op, ...]]
    commands: Mapping[str, ModuleType]
    """Modules whose rows are not ops, with `LISTED`, `build_parser`, `measure`, `render` and
    `main`.
    """
    problems: Sequence[str]
    """A line for each file that cannot be used."""


def read_catalog(
    reserved: Collection[str] = (), own: Sequence[str] = (), only_ops: bool = False
) -> Catalog:
    """Return each public file of `bench` that has `OPS` or `LISTED`.

    Args:
        reserved: option names of commands, which a family must not use.
        own: values of `--op`, whose files are families too; errors in them are reported when their
            ops are chosen.
        only_ops: whether to leave out files with `LISTED`, without importing them.
    """
    families: dict[str, tuple[Op, ...]] = {}
    commands: dict[str, ModuleType] = {}
    problems = []
    for path in sorted(BENCH.glob("[a-z]*.py")):
        if only_ops and "\nLISTED = " in path.read_text(encoding="utf-8"):
            continue
        with suppress(Exception, SystemExit):  # `load_ops` says what is wrong
            if hasattr(module := module_of(path.stem), "LISTED"):
                commands[path.stem] = module
                continue
        try:
            ops = load_ops(path.stem, families)
            names = [option.name for option in options_of(path.stem)]
            if taken := next(
                (name for name in names if name in reserved or names.count(name) > 1), None
            ):
                raise OpFileError(f"there is another option --{taken}; rename it")
        except OpFileError as error:
            problems.append(f"bench/{path.name} is left out: {error}")
        else:
            families[path.stem] = ops
    with suppress(OpFileError):
        families |= own_families(own, families)
    return Catalog(families, commands, problems)


def import_file(file: Path) -> ModuleType:
    """Import a user's file; as for a script, it can import modules in the same directory."""
    name = f"user_file_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    directory = str(file.parent)
    sys.modules[name] = module
    sys.path.insert(0, directory)
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        # Last, so that later imports of this project are not resolved in the user's directory.
        if directory in sys.path:
            sys.path.remove(directory)
        sys.path.append(directory)
    return module


def error_text(error: BaseException, file: Path | None) -> str:
    """Return class and first line of an error, with the line number in the user's file."""
    return f"{type(error).__name__}: {lines_of(error)[0]}{line_in(error, file)}"


def lines_of(error: BaseException) -> list[str]:
    """Return the lines of an error's text, at least one; an empty one if its own code raises."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return [line.strip() for line in text.splitlines() if line.strip()] or [""]


def line_in(error: BaseException, file: Path | None) -> str:
    """Return ` (line N)`, the last line of the user's file in the traceback, or an empty text."""
    line = ""
    trace = error.__traceback__
    while trace is not None:
        if file is not None and Path(trace.tb_frame.f_code.co_filename) == file:
            line = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return line


FUNCTIONS = (
    "make_inputs",
    "output_shape",
    "output_dtype",
    "reference",
    "eager",
    "expression",
    "work",
    "terms",
    "magnitude",
    "check_result",
    "take_rows",
    "rows",
    "check",
)
"""Functions of an op that define it and the check of its result."""

VALUES = ("axes", "intermediate_roundings", "outputs", "units")
"""Other fields that define it."""


def op_sha256(op: Op) -> str | None:
    """Return the hash of an op's definition; None if a file cannot be read or no function has
    source code.
    """
    texts: set[str] = set()
    try:
        for name in FUNCTIONS:
            _add_function(getattr(op, name), texts)
    except (OSError, ImportError, SyntaxError):
        return None
    texts |= {f"{name} = {getattr(op, name)!r}" for name in VALUES if texts}
    return modules_sha256(op.defined_in, texts) if texts else None


def modules_sha256(names: Iterable[str], texts: Iterable[str] = ()) -> str | None:
    """Return the hash of named modules and other texts; None if a module cannot be read."""
    from results.record import DEFINITION_PREFIX

    try:
        all_texts = {*texts, *map(_module_text, names)}
    except (OSError, ImportError, SyntaxError):
        return None
    digests = sorted(hashlib.sha256(text.encode()).digest() for text in all_texts)
    return DEFINITION_PREFIX + hashlib.sha256(b"".join(digests)).hexdigest()


def _add_function(function: Any, texts: set[str]) -> None:
    """Add the source of a function, of the names that it uses from its own file, and the values in
    its closure.
    """
    while isinstance(function, partial):
        texts.add(f"{function.args!r} {sorted(function.keywords.items())!r}")
        function = function.func
    code = getattr(function, "__code__", None)
    is_torch = str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
    if code is None or is_torch or code.co_filename == machinery.__file__:
        return
    defined = _parsed(code.co_filename).defined
    waiting = [_node_of(code)]
    done: set[str] = set()
    while waiting:
        node = waiting.pop()
        texts.add(ast.unparse(node))
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names = used & defined.keys() - done
        done |= names
        waiting += [defined[name] for name in names]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if callable(cell.cell_contents):
            _add_function(cell.cell_contents, texts)
        else:
            texts.add(f"{name} = {cell.cell_contents!r}")


def _node_of(code: CodeType) -> ast.AST:
    # The instructions that begin and end a function have an empty range.
    used = [(line, column) for line, _, column, end_column in code.co_positions() if end_column]
    lambdas = []
    for node in ast.walk(_parsed(code.co_filename).tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            if (
                min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                == code.co_firstlineno
            ):
                return node
        elif (
            isinstance(node, ast.Lambda)
            and node.lineno == code.co_firstlineno
            and code.co_name == "<lambda>"
        ):
            body = node.body  # a line may have several lambdas
            start = (body.lineno, body.col_offset)
            end = (body.end_lineno or 0, body.end_col_offset or 0)
            if all(start <= position < end for position in used):
                lambdas.append((end, node))
    if not lambdas:
        raise ImportError(f"{code.co_filename} was changed after it was imported")
    return min(lambdas, key=lambda entry: entry[0])[1]  # the innermost ends first


def _module_text(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(name)
    return ast.unparse(_parsed(spec.origin).tree)


class _Source(NamedTuple):
    """A file without docstrings."""

    tree: ast.Module
    defined: dict[str, ast.stmt]
    """Its functions, classes and constants by name."""


@cache
def _parsed(path: str) -> _Source:
    """Parse a file; cached, so that edits after the import have no effect."""
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            is_text = [
                isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
                for part in node.body
            ]
            body = [part for part, text in zip(node.body, is_text, strict=True) if not text]
            node.body = body or [ast.Pass()]
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
                defined |= dict.fromkeys(names, statement)
    return _Source(tree, defined)
