"""Which definition of an op was measured: a hash of the text that says what it computes.

The text is that of the files in which the functions of the op are written (inputs, formula, work, what torch calls),
whole, and of the modules that it names in `defined_in`; without comments, docstrings, blank lines and line endings, so
that a checkout or a better word in a comment is no other definition. Two ops of one file have one hash. What is not
covered shows elsewhere in a record: FLOPs and bytes, kernels by `source_sha256`, versions of the libraries.
"""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.harness import op as machinery
from bench.harness.op import Op

FUNCTIONS = (
    *("make_inputs", "output_shape", "output_dtype", "reference", "eager", "expression", "work", "terms", "magnitude"),
    *("check_result", "take_rows", "rows", "check"),
)
"""Fields of an op that define what is computed, and what counts as a right result."""

CALLED = re.compile(r"from bench\.harness\.api\.family import run_of$|run = run_of\(__file__\)$")
"""Lines that let a file be called from Python: they say nothing of what is computed."""

TEXT = re.compile(r"[rRuU]?[\"']")
"""The beginning of a string that can be a docstring."""


def op_sha256(op: Op) -> str | None:
    """Return the hash of an op's definition; None where its files cannot be read, or its functions have none."""
    files = {file for name in FUNCTIONS if (file := _file_of(getattr(op, name))) is not None}
    files.discard(machinery.__file__)
    return _sha256(tuple(sorted(files)), op.defined_in) if files else None


def modules_sha256(names: Iterable[str]) -> str | None:
    """Return the hash of the text of modules, by their names; None where one of them cannot be read."""
    return _sha256((), tuple(names))


def _file_of(function: Any) -> str | None:
    """Return the file in which a function is written; None for one of torch, or none of Python's text."""
    while isinstance(function, partial):
        function = function.func
    if str(getattr(function, "__module__", "")).partition(".")[0] == "torch":
        return None
    code = getattr(function, "__code__", None)
    return None if code is None else str(code.co_filename)


@cache
def _sha256(files: tuple[str, ...], modules: tuple[str, ...]) -> str | None:
    """Return the hash of the hashes of what files and modules say, wherever they lie.

    It is kept, as what was imported stays what it was when a file is edited during a run.
    """
    paths = [Path(file) for file in files]
    try:
        for name in modules:
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                return None
            paths.append(Path(spec.origin))
        digests = set()
        for path in paths:
            with tokenize.open(path) as file:
                digests.add(hashlib.sha256(code_of(file.read()).encode()).digest())
    except (OSError, ImportError, SyntaxError):
        return None
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def code_of(text: str) -> str:
    """Return a Python text without comments, docstrings, blank lines and spaces at the ends of lines.

    Only places are taken from the tokens, as their texts differ between versions of Python.
    """
    lines, layout = text.split("\n"), (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in layout]
    dropped = [one for one in tokens if one.type == tokenize.COMMENT]
    tokens = [one for one in tokens if one.type != tokenize.COMMENT]
    ends = [tokenize.NEWLINE, *(one.type for one in tokens)]
    for before, one, after in zip(ends, tokens, ends[2:], strict=False):
        is_alone = (before, one.type, after) == (tokenize.NEWLINE, tokenize.STRING, tokenize.NEWLINE)
        if is_alone and TEXT.match(one.string):
            dropped.append(one)
    for one in sorted(dropped, key=lambda one: one.start, reverse=True):
        (row, column), (end_row, end_column) = one.start, one.end
        lines[row - 1 : end_row] = [lines[row - 1][:column] + lines[end_row - 1][end_column:]]
    return "\n".join(line.rstrip() for line in lines if line.strip() and not CALLED.match(line.rstrip()))
