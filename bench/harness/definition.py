"""Which definition of an op was measured: a hash of the code that says what it computes.

Hashed are the functions of the op (inputs, formula, work, what torch calls), what they name in their own file, and the
modules that the op lists in `defined_in`, whole. Comments, docstrings and layout are left out, and so are other ops of
the same file. What is not covered shows elsewhere in a record: FLOPs and bytes, kernels by `source_sha256`, versions of
the libraries.
"""

from __future__ import annotations

import ast
import hashlib
import tokenize
from collections.abc import Iterable
from functools import cache, partial
from importlib.util import find_spec
from types import CodeType
from typing import Any

from bench.harness import op as machinery
from bench.harness.op import Op
from results.record import DEFINITION_PREFIX

FUNCTIONS = (
    *("make_inputs", "output_shape", "output_dtype", "reference", "eager", "expression", "work", "terms", "magnitude"),
    *("check_result", "take_rows", "rows", "check"),
)
"""Fields of an op that define what is computed, and what counts as a right result."""

VALUES = ("axes", "intermediate_roundings", "outputs", "units")
"""Fields that define it beside the functions."""


def op_sha256(op: Op) -> str | None:
    """Return the hash of an op's definition; None if a file cannot be read, or if no function has source code."""
    texts: set[str] = set()
    try:
        for name in FUNCTIONS:
            _add_function(getattr(op, name), texts)
        if not texts:
            return None
        texts |= {f"{name} = {getattr(op, name)!r}" for name in VALUES}
        texts |= {_module_text(name) for name in op.defined_in}
    except (OSError, ImportError, SyntaxError):
        return None
    return _digest(texts)


def modules_sha256(names: Iterable[str]) -> str | None:
    """Return the hash of modules by their names; None if one of them cannot be read."""
    try:
        return _digest(_module_text(name) for name in names)
    except (OSError, ImportError, SyntaxError):
        return None


def _digest(texts: Iterable[str]) -> str:
    digests = sorted(hashlib.sha256(text.encode()).digest() for text in texts)
    return DEFINITION_PREFIX + hashlib.sha256(b"".join(digests)).hexdigest()


def _add_function(function: Any, texts: set[str]) -> None:
    """Add the source of a function, of what it names in its own file, and the values that it closes over."""
    while isinstance(function, partial):
        texts.add(f"{function.args!r} {sorted(function.keywords.items())!r}")
        function = function.func
    code = getattr(function, "__code__", None)
    is_torch = str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
    if code is None or is_torch or code.co_filename == machinery.__file__:
        return
    texts |= _reached(code.co_filename, _node_of(code))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if callable(cell.cell_contents):
            _add_function(cell.cell_contents, texts)
        else:
            texts.add(f"{name} = {cell.cell_contents!r}")


def _node_of(code: CodeType) -> ast.AST:
    """Return the function or lambda in the source file that `code` was compiled from.

    Raises:
        ImportError: the file was changed since it was imported.
    """
    # The instructions that begin and end a function have an empty range.
    used = [(line, column) for line, _, column, end_column in code.co_positions() if end_column]
    lambdas = []
    for node in ast.walk(_parsed(code.co_filename)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            if min([node.lineno, *(one.lineno for one in node.decorator_list)]) == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno and code.co_name == "<lambda>":
            start, end = _span(node.body)  # several lambdas may begin in one line
            if all(start <= place < end for place in used):
                lambdas.append((end, node))
    if not lambdas:
        raise ImportError(f"{code.co_filename} was changed after it was imported")
    return min(lambdas, key=lambda one: one[0])[1]  # the innermost one ends first


def _span(node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _reached(path: str, start: ast.AST) -> set[str]:
    """Return the text of a node, and of all top-level definitions of its file that it names, directly or not."""
    defined = _definitions(path)
    texts, names = {ast.unparse(start)}, _names_in(start)
    done: set[str] = set()
    while names := (names & defined.keys()) - done:
        name = names.pop()
        done.add(name)
        texts.add(ast.unparse(defined[name]))
        names |= _names_in(defined[name])
    return texts


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


@cache
def _definitions(path: str) -> dict[str, ast.stmt]:
    """Return the functions, classes and constants of a file by name."""
    found: dict[str, ast.stmt] = {}
    for statement in _parsed(path).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {name: statement for target in targets for name in _names_in(target)}
    return found


def _module_text(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(name)
    return ast.unparse(_parsed(spec.origin))


@cache
def _parsed(path: str) -> ast.Module:
    """Return the tree of a file without docstrings.

    It is kept: what was imported stays what it was if a file is edited during a run.
    """
    with tokenize.open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            body = [part for part in node.body if not _is_text(part)]
            node.body = body or [ast.Pass()]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
