"""A user's own kernel: the file imported, the kernel found, and its signature read.

    *bf16:16, *bf16:16, i32, 1024              in the order of the arguments, constants as numbers
    x_ptr=*bf16:16, out_ptr=*bf16:16, n=i32    by name

`:16` says that the value is known to be a multiple of 16, as Triton finds out of each argument of a launch; without it
nothing is known, which is what a launch has with an odd size. `:1` says that it is 1. This is the notation of
Triton's own ahead-of-time compiler, `triton/tools/compile.py`.

    BLOCK=1024, ROUND=True, EPS=1e-6, DTYPE=bf16, OP=gelu, MODE='bf16'

are constants: what Python writes as a literal; then a name of the file; then a dtype by Ridgepoint's name or Triton's,
with `tl.` before it or without; then the word as text. In quotes everything is text.
"""

import ast
import contextlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITFunction

from kernels.audit.compiling import TRITON_TYPES, Source
from kernels.audit.errors import AuditError, one_line

SCALARS = (
    *("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"),
    *("fp8e4nv", "fp8e5", "fp8e4b15", "fp8e4b8", "fp8e5b16", "fp16", "bf16", "fp32", "fp64"),
)
OWN_NAMES = {triton_name: name for name, triton_name in TRITON_TYPES.items() if name != "tf32"}
NAMED = re.compile(r"[A-Za-z_]\w*\s*=")
DTYPES = {name: kind for name, kind in vars(tl).items() if type(kind) is tl.dtype}
DTYPES |= {str(kind): kind for kind in DTYPES.values()}
DTYPES |= {name: DTYPES[triton_name] for triton_name, name in OWN_NAMES.items() if triton_name in DTYPES}
"""Triton's dtypes by Triton's short name, `fp8e4nv`, by that in `triton.language`, and by Ridgepoint's."""


def load(path_and_name: str) -> tuple[JITFunction, ModuleType]:
    """Import the file of `path/to/file.py:kernel` and return the kernel and its module.

    Raises:
        AuditError: The file is not there, cannot be read or imported, or has no such kernel.
    """
    text, colon, name = path_and_name.rpartition(":")
    if not colon:
        raise AuditError(f"{path_and_name}: name the kernel, {path_and_name}:KERNEL")
    module = _imported(Path(text))
    found = {key: kernel for key, value in vars(module).items() if (kernel := _unwrapped(value))}
    if name not in found:
        has = f"it has {', '.join(found)}" if found else "it has no triton.jit function"
        raise AuditError(f"{text}: no kernel '{name}'; {has}")
    if hasattr(vars(module)[name], "configs"):
        instead = "give constants by --constexpr and warps by --num-warps"
        print(f"note: {name} is autotuned; its configurations are not taken, {instead}", file=sys.stderr)
    return found[name], module


def _unwrapped(value: Any) -> JITFunction | None:
    """Return the kernel below decorators that tune or choose constants."""
    while value is not None and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None) if type(value).__module__.startswith("triton.") else None
    return value


def _imported(path: Path) -> ModuleType:
    if not path.exists():
        raise AuditError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise AuditError(f"{path}: is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python path/to/file.py` would
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except SyntaxError as error:
        raise AuditError(f"{path}:{error.lineno}: syntax error: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise AuditError(f"{path}: cannot be imported: {type(error).__name__}: {one_line(error)}") from None
    return module


def source(kernel: JITFunction, module: ModuleType, signature: str, constexpr: str) -> Source:
    """Return types, constants and known divisors of a kernel as the user gave them.

    Args:
        kernel: The kernel.
        module: Where the names of functions among the constants are looked up.
        signature: See above.
        constexpr: `BLOCK=1024,ROUND=True`.

    Raises:
        AuditError: An argument is missing, unknown, given twice or of an unknown type; the line names it.
    """
    parameters = {parameter.name: parameter for parameter in kernel.params}
    constants = {name: _constant(name, text, module) for name, text in _pairs(constexpr, "--constexpr").items()}
    given = _by_name(signature, [name for name in parameters if name not in constants])
    for option, names in (("--constexpr", constants), ("--signature", given)):
        for name in names:
            if name not in parameters:
                raise AuditError(f"{option}: the kernel has no argument '{name}'; it has {', '.join(parameters)}")
    types, divisible = {}, set()
    for name, text in given.items():
        kind, colon, divisor = text.partition(":")
        if _is_type(kind) and divisor != "1" and not parameters[name].is_constexpr:
            if colon and divisor != "16":
                raise AuditError(f"argument '{name}': '{text}' ends in ':{divisor}'; allowed are ':16' and ':1'")
            types[name] = kind
            divisible |= {name} if colon else set()
        else:
            constants[name] = 1 if divisor == "1" else _literal(name, text)
    for name, parameter in parameters.items():
        if name not in types and name not in constants:
            if not parameter.has_default:
                where = "--constexpr" if parameter.is_constexpr else "--signature"
                raise AuditError(f"argument '{name}' of {kernel.fn.__name__} is missing; add it to {where}")
            constants[name] = parameter.default
    return Source({name: types.get(name, "constexpr") for name in parameters}, constants, frozenset(divisible))


def dtype(found: Source) -> str:
    """Return the dtype of the row: that of the first pointer or descriptor."""
    for kind in found.signature.values():
        pointed = re.match(r"\*k?(\w+)|tensordesc<(\w+)\[", kind)
        if pointed:
            name = pointed[1] or pointed[2]
            return OWN_NAMES.get(name, name)
    return ""


def _by_name(signature: str, free: Sequence[str]) -> dict[str, str]:
    """Return the types of a signature by argument; without names they are those of the `free` arguments in order."""
    parts = _split(signature)
    if any(NAMED.match(part) for part in parts):
        return _pairs(signature, "--signature")
    if len(parts) > len(free):
        raise AuditError(f"--signature has {len(parts)} types, the kernel takes {len(free)}: {', '.join(free)}")
    return dict(zip(free, parts, strict=False))


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[<(]*[\]>)])", text) if part.strip()]


def _pairs(text: str, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in _split(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name.isidentifier() or not value:
            raise AuditError(f"{option}: '{part}' is not NAME=VALUE")
        if name in found:
            raise AuditError(f"{option}: argument '{name}' is given twice")
        found[name] = value
    return found


def _is_type(kind: str) -> bool:
    return kind.removeprefix("*") in SCALARS or bool(re.fullmatch(r"tensordesc<\w+\[[\d, ]+\].*>", kind))


def _literal(name: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        kinds = f"{', '.join(SCALARS)}, '*' in front for a pointer, or tensordesc<TYPE[SHAPE]>"
        raise AuditError(f"argument '{name}': unknown type '{text}'; allowed are {kinds}") from None


def _constant(name: str, text: str, module: ModuleType) -> Any:
    """Return a literal, a name of the file, a dtype, or the word as text."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    if hasattr(module, text):
        return getattr(module, text)
    kind = text.removeprefix("tl.")
    if kind in DTYPES:
        return DTYPES[kind]
    if text.isidentifier():
        return text
    raise AuditError(f"--constexpr: {name}={text} is no number, no dtype, no text and no name in the file")
