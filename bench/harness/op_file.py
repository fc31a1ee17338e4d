"""Op files, and the hash of an op's definition.

A family is one op file: its name in `bench/`, such as `matmul`, or the absolute path of a user's
file.

The hash in a record covers the expression that makes the op (inputs, formula, work, torch calls),
the names that it uses from its own file, and the modules in `defined_in`. It excludes comments,
docstrings, layout, default shapes and other ops of the file.
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
from functools import cache
from pathlib import Path
from types import ModuleType

from bench.harness.op import PEAKS, Families, Op, Option, UsageError

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
    if not path.endswith(".py"):
        return None
    try:
        return Path(path).resolve(), name or None
    except RuntimeError:  # of Python 3.11 and 3.12
        raise OpFileError(f"{path} is a loop of links") from None


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
    path = (BENCH / family).with_suffix(".py")  # an absolute path replaces that of `bench`
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
    wrong = next((op for op in ops if op.units not in (None, *PEAKS)), None)
    if wrong:
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

    families: Families
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


DEFINING = (
    "name",
    "axes",
    "make_inputs",
    "output_shape",
    "output_dtype",
    "outputs",
    "reference",
    "eager",
    "expression",
    "work",
    "terms",
    "magnitude",
    "intermediate_roundings",
    "units",
    "check_result",
    "take_rows",
    "rows",
    "in_place",
    "result_in",
    "check",
)
"""Fields of an op that define it and the check of its result."""


@cache
def op_sha256(family: str, op: str, defined_in: tuple[str, ...] = ()) -> str | None:
    """Return the hash of the definition of an op; None if a file cannot be read.

    The definition is the expression in the file of the family that makes the op: a call with its
    name as first argument or as `name=`. If there is none, it is the whole file.
    """
    try:
        tree = _parsed(str((BENCH / family).with_suffix(".py")))
    except (OSError, SyntaxError):
        return None
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names = node.args[:1] + [word.value for word in node.keywords if word.arg == "name"]
            if any(isinstance(name, ast.Constant) and name.value == op for name in names):
                calls.append(node)
    texts = _texts_of(calls, tree) if calls else [op, ast.unparse(tree)]
    return modules_sha256(defined_in, texts)


def modules_sha256(names: Iterable[str], texts: Iterable[str] = ()) -> str | None:
    """Return the hash of named modules and other texts; None if a module cannot be read."""
    from results.record import DEFINITION_PREFIX

    all_texts = set(texts)
    try:
        for name in names:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                return None
            all_texts.add(ast.unparse(_parsed(spec.origin)))
    except (OSError, ImportError, SyntaxError):
        return None
    digests = sorted(hashlib.sha256(text.encode()).digest() for text in all_texts)
    return DEFINITION_PREFIX + hashlib.sha256(b"".join(digests)).hexdigest()


def _texts_of(calls: Sequence[ast.AST], tree: ast.Module) -> list[str]:
    """Return the text of calls, and of what they use of the file, directly or not.

    `ast.unparse` drops the layout as `ast.dump` does, but its text is that of every Python version.
    """
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
                defined |= dict.fromkeys(names, statement)
    waiting = list(calls)
    texts = []
    while waiting:
        node = waiting.pop()
        texts.append(ast.unparse(node))
        used = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
        waiting += [defined.pop(name) for name in used if name in defined]
    return texts


@cache
def _parsed(path: str) -> ast.Module:
    """Parse a file, without docstrings and without fields of ops that do not define them; cached,
    so that edits during a run have no effect.
    """
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Op"
        ):
            node.keywords = [word for word in node.keywords if word.arg in (None, *DEFINING)]
    return tree
