"""The audit of a user's own kernel: importing its file and parsing its signature.

    *bf16:16, *bf16:16, i32, 1024              in the order of the arguments, constants as numbers
    x_ptr=*bf16:16, out_ptr=*bf16:16, n=i32    by name

`:16` marks a multiple of 16, which Triton detects for each argument of a launch. Without it nothing
is known about the value, as in a launch with an odd size. `:1` marks the value 1. This is the
notation of Triton's own ahead-of-time compiler, `triton/tools/compile.py`.

    BLOCK=1024, ROUND=True, EPS=1e-6, DTYPE=bf16, OP=gelu, MODE='bf16'

are constants: a Python literal, else a name in the file, else a dtype by Roofmark's or Triton's
name, with or without `tl.`, else text. Anything in quotes is text.
"""

import ast
import contextlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kernels.audit import AuditError, OwnKernel
from kernels.audit.rows import ast_source
from kernels.launch import TRITON_TYPES, Variant

SCALARS = (
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "fp8e4nv",
    "fp8e5",
    "fp8e4b15",
    "fp8e4b8",
    "fp8e5b16",
    "fp16",
    "bf16",
    "fp32",
    "fp64",
)
POINTER = re.compile(r"\*(\w+)|tensordesc<(\w+)\[")
OWN_NAMES = {triton_name: name for name, triton_name in TRITON_TYPES.items() if name != "tf32"}
DTYPES = {name: kind for name, kind in vars(tl).items() if type(kind) is tl.dtype}
DTYPES |= {str(kind): kind for kind in DTYPES.values()}
DTYPES |= {
    name: DTYPES[triton_name] for triton_name, name in OWN_NAMES.items() if triton_name in DTYPES
}
"""Triton's dtypes by short name, such as `fp8e4nv`, by name in `triton.language`, and by Roofmark's
name.
"""


def load(path_and_name: str) -> tuple[JITFunction, ModuleType]:
    """Import the file of `path/to/file.py:kernel` and return the kernel and its module."""
    path, _, name = path_and_name.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file():
        raise AuditError(f"{path_and_name}: expected path/to/file.py:kernel of an existing file")
    module = _imported(Path(path).resolve())
    kernels = {key: kernel for key, value in vars(module).items() if (kernel := _unwrapped(value))}
    if name not in kernels:
        raise AuditError(
            f"{path}: no kernel '{name}'; it has {', '.join(kernels) or 'no triton.jit function'}"
        )
    if hasattr(vars(module)[name], "configs"):
        instead = "set constants with --constexpr and warps with --num-warps"
        print(
            f"note: {name} is autotuned; its configurations are ignored, {instead}", file=sys.stderr
        )
    return kernels[name], module


def _unwrapped(value: Any) -> JITFunction | None:
    """Return the kernel inside decorators such as `triton.autotune`."""
    while value is not None and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None) if type(value).__module__.startswith("triton.") else None
    return value


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))  # as `python path/to/file.py` would
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = str(error).partition("\n")[0]
        raise AuditError(f"{path}: import failed: {type(error).__name__}: {reason}") from None
    return module


def variant(kernel: JITFunction, module: ModuleType, own: OwnKernel) -> tuple[Variant, ASTSource]:
    """Return a kernel with the types, constants and options of `own`, and the source that Triton
    compiles. `module` has the functions that constants name.

    Raises:
        AuditError: invalid arguments.
    """
    parameters = {parameter.name: parameter for parameter in kernel.params}
    constants = {name: constant(text, module) for name, text in _by_name(own.constexpr, ()).items()}
    types = {}
    divisible = set()
    for name, text in _by_name(
        own.signature, [name for name in parameters if name not in constants]
    ).items():
        kind, _, divisor = text.partition(":")
        if (
            divisor == "1"
            or kind[:1].isdigit()
            or (name in parameters and parameters[name].is_constexpr)
        ):
            constants[name] = 1 if divisor == "1" else constant(kind, module)
            continue
        is_type = kind.removeprefix("*") in SCALARS or kind.startswith("tensordesc<")
        if not is_type or divisor not in ("", "16"):
            known = f"{', '.join(SCALARS)}, '*' in front of a pointer, ':16' or ':1' behind"
            raise AuditError(f"argument '{name}': unknown type '{text}' (choose from {known})")
        types[name] = kind
        divisible |= {name} if divisor else set()
    for name in (types | constants).keys() - parameters.keys():
        raise AuditError(f"unknown argument '{name}' (choose from {', '.join(parameters)})")
    for name, parameter in parameters.items():
        if name not in types and name not in constants:
            if not parameter.has_default:
                option = "--constexpr" if parameter.is_constexpr else "--signature"
                raise AuditError(
                    f"argument '{name}' of {kernel.fn.__name__} is missing; add it to {option}"
                )
            constants[name] = parameter.default
    pointed = next(filter(None, map(POINTER.match, types.values())), None)
    dtype = pointed[1] or pointed[2] if pointed else ""
    found = Variant(
        kernel,
        constants,
        own.num_warps or 4,
        dtype=OWN_NAMES.get(dtype, dtype),
        elements=own.elements,
        bytes=own.bytes,
        stages=own.num_stages or 3,
    )
    return found, ast_source(kernel, types, constants, divisible)


def _by_name(text: str, in_order: list[str] | tuple[()]) -> dict[str, str]:
    """Parse `NAME=VALUE`, separated by commas outside brackets; values without names have the names
    `in_order`.
    """
    parts = [part.strip() for part in re.split(r",(?![^\[<(]*[\]>)])", text) if part.strip()]
    pairs = [re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*(.+)", part) for part in parts]
    if all(pairs):
        return {pair[1]: pair[2] for pair in pairs}
    if any(pairs) or not in_order:
        raise AuditError(f"expected NAME=VALUE, got '{parts[pairs.index(None)]}'")
    if len(parts) > len(in_order):
        raise AuditError(
            f"--signature has {len(parts)} types, expected {len(in_order)}: {', '.join(in_order)}"
        )
    return dict(zip(in_order, parts, strict=False))


def constant(text: str, module: ModuleType) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return getattr(module, text, DTYPES.get(text.removeprefix("tl."), text))
