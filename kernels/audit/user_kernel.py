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
from collections.abc import Mapping
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
LONG_NAMES = {name: kind for name, kind in vars(tl).items() if type(kind) is tl.dtype and kind != tl.void}
SHORT_NAMES = {str(kind): kind for kind in LONG_NAMES.values()}
DTYPES = {**SHORT_NAMES, **LONG_NAMES}
DTYPES |= {name: DTYPES[triton_name] for triton_name, name in OWN_NAMES.items() if triton_name in DTYPES}
"""Triton's dtypes by Triton's short name, `fp8e4nv`, by that in `triton.language`, and by Ridgepoint's."""
OTHER_CASE = {"true": "True", "false": "False", "none": "None"}


def load(path_and_name: str) -> tuple[JITFunction, ModuleType]:
    """Import the file of `path/to/file.py:kernel` and return the kernel and its module.

    Raises:
        AuditError: The file is not there, cannot be read or imported, or has no such kernel.
    """
    text, colon, name = path_and_name.rpartition(":")
    if not colon:
        text, name = path_and_name, ""
    module = _imported(Path(text))
    found = {key: kernel for key, value in vars(module).items() if (kernel := _unwrapped(value))}
    has = f"it has {', '.join(found)}" if found else "it has no triton.jit function"
    if not name:
        raise AuditError(f"{text}: name the kernel, {text}:KERNEL; {has}")
    if name in found and hasattr(vars(module)[name], "configs"):
        instead = "give constants by --constexpr and warps by --num-warps"
        print(f"note: {name} is autotuned; its configurations are not taken, {instead}", file=sys.stderr)
    if name not in found:
        what = f"'{name}' is no triton.jit function" if hasattr(module, name) else f"no kernel '{name}'"
        raise AuditError(f"{text}: {what}; {has}")
    return found[name], module


def _unwrapped(value: Any) -> JITFunction | None:
    """Return the kernel below decorators that tune or choose constants."""
    for _ in range(8):
        if isinstance(value, JITFunction):
            return value
        value = getattr(value, "fn", None)
    return None


def _imported(path: Path) -> ModuleType:
    if not path.exists():
        raise AuditError(f"{path}: no such file")
    try:
        ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise AuditError(f"{path}{f':{error.lineno}' if error.lineno else ''}: syntax error: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise AuditError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or one_line(error)}") from None
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise AuditError(f"{path}: is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python path/to/file.py` would
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
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
    _require_arguments("--constexpr", constants, parameters)
    types, divisible = {}, set()
    for name, text in _by_name(signature, parameters, constants).items():
        if name in constants:
            raise AuditError(f"argument '{name}' is in --signature and in --constexpr; give it once")
        kind, divisor = _split_divisor(name, text)
        if _is_type(kind) and not parameters[name].is_constexpr and divisor != 1:
            types[name] = kind
            divisible |= {name} if divisor else set()
        elif divisor == 1:
            constants[name] = 1
        else:
            constants[name] = _literal(name, kind, parameters[name].is_constexpr)
    for name, parameter in parameters.items():
        if name not in types and name not in constants:
            if not parameter.has_default:
                where = "--constexpr" if parameter.is_constexpr else "--signature"
                raise AuditError(f"argument '{name}' of {kernel.fn.__name__} is missing; add it to {where}")
            constants[name] = parameter.default
    return Source(
        {name: types.get(name, "constexpr") for name in parameters},
        {name: constants[name] for name in parameters if name in constants},
        frozenset(divisible),
    )


def dtype(found: Source) -> str:
    """Return the dtype of the row: that of the first pointer or descriptor."""
    for kind in found.signature.values():
        pointed = re.match(r"\*k?(\w+)|tensordesc<(\w+)\[", kind)
        if pointed:
            name = pointed[1] or pointed[2]
            return OWN_NAMES.get(name, name)
    return ""


def _by_name(signature: str, parameters: Mapping[str, Any], constants: Mapping[str, Any]) -> dict[str, str]:
    parts = _split(signature)
    named = [part for part in parts if re.match(r"\s*[A-Za-z_]\w*\s*=", part)]
    if named and len(named) < len(parts):
        other = next(part for part in parts if part not in named)
        raise AuditError(f"--signature: '{other}' has no name and others have; name all arguments or none")
    if named:
        found = _pairs(signature, "--signature")
        _require_arguments("--signature", found, parameters)
        return found
    # Constants given apart may be left out of the list, or the list is of all arguments.
    free = [name for name in parameters if name not in constants]
    if len(parts) > len(free):
        raise AuditError(f"--signature has {len(parts)} types, the kernel takes {len(free)}: {', '.join(free)}")
    return dict(zip(free, parts, strict=False))


def _require_arguments(option: str, given: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    for name in given:
        if name not in parameters:
            raise AuditError(f"{option}: the kernel has no argument '{name}'; it has {', '.join(parameters)}")


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[<(") - (letter in "]>)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


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


def _split_divisor(name: str, text: str) -> tuple[str, int | None]:
    kind, colon, divisor = text.rpartition(":")
    if not colon:
        return text, None
    if divisor.strip() not in ("16", "1"):
        raise AuditError(f"argument '{name}': '{text}' ends in ':{divisor}'; allowed are ':16' and ':1'")
    return kind.strip(), int(divisor)


def _is_type(kind: str) -> bool:
    return kind.removeprefix("*").removeprefix("k") in SCALARS or bool(
        re.fullmatch(r"tensordesc<\w+\[[\d, ]+\].*>", kind)
    )


def _literal(name: str, text: str, is_constexpr: bool) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if is_constexpr:
            raise AuditError(f"argument '{name}' is a constant; give its value with --constexpr {name}=VALUE") from None
        kinds = f"{', '.join(SCALARS)}, '*' in front for a pointer, or tensordesc<TYPE[SHAPE]>"
        raise AuditError(f"argument '{name}': unknown type '{text}'; allowed are {kinds}") from None


def _constant(name: str, text: str, module: ModuleType) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    if hasattr(module, text):
        return getattr(module, text)
    prefix, dot, kind = text.rpartition(".")
    if kind in DTYPES and prefix in ("", "tl", "triton.language"):
        return DTYPES[kind]
    if dot and prefix in ("tl", "triton.language", "torch"):
        raise AuditError(f"--constexpr: {name}={text} is no dtype of Triton; there are {', '.join(DTYPES)}")
    if text.lower() in OTHER_CASE:
        raise AuditError(f"--constexpr: {name}={text} is no constant of Python; write {OTHER_CASE[text.lower()]}")
    if re.fullmatch(r"[\w.+-]*", text):
        return text
    raise AuditError(f"--constexpr: {name}={text} is no number, no dtype, no text and no name in the file")
