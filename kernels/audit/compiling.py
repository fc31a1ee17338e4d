"""Kernels compiled ahead of time for a GPU that need not be here.

Everything is compiled as a launch would: pointers are known to be aligned, a whole number that the kernel lets Triton
specialize is known to be a multiple of 16, and one that it does not is not known at all.
"""

import contextlib
import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.audit.errors import AuditError
from kernels.launch import ALIGNMENT_BYTES, Variant

WARP_SIZE = 32
TRITON_TYPES = {
    "tf32": "fp32",
    "fp8e4m3": "fp8e4nv",
    "fp8e5m2": "fp8e5",
    "int8": "i8",
    "int32": "i32",
}
"""Triton's name of a dtype where it has another than Ridgepoint."""

DIVISIBLE = [["tt.divisibility", ALIGNMENT_BYTES]]


@dataclass(frozen=True)
class Source:
    """What Triton is given besides the kernel: types and known divisors by argument."""

    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: frozenset[str]
    """Arguments known to be multiples of 16, in bytes for a pointer."""


def source_of(variant: Variant, integers: str = "i32", known_sizes: bool = True) -> Source:
    """Return the types a launch of a variant would have.

    Args:
        variant: As launched.
        integers: Triton type of whole numbers that `variant.types` does not name.
        known_sizes: Whether whole numbers that Triton may specialize are multiples of 16.
    """
    signature, divisible = {}, set()
    for parameter in variant.kernel.params:
        name = parameter.name
        if name in variant.constants:
            signature[name] = "constexpr"
            continue
        is_pointer = name.endswith("_ptr")
        own = f"*{TRITON_TYPES.get(variant.dtype, variant.dtype)}" if is_pointer else integers
        signature[name] = variant.types.get(name, own)
        is_integer = re.fullmatch(r"[iu](32|64)", signature[name])
        if signature[name].startswith("*") or (is_integer and known_sizes and not parameter.do_not_specialize):
            divisible.add(name)
    return Source(signature, dict(variant.constants), frozenset(divisible))


def compile_ahead(kernel: Any, source: Source, arch: int, options: Mapping[str, Any]) -> Any:
    """Return what Triton compiles a kernel to for `sm_<arch>`.

    Raises:
        AuditError: It does not compile; the line is the compiler's own.
    """
    names = [parameter.name for parameter in kernel.params]
    attrs = {(index,): DIVISIBLE for index, name in enumerate(names) if name in source.divisible}
    ast_source = ASTSource(fn=kernel, signature=dict(source.signature), constexprs=dict(source.constants), attrs=attrs)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # `tl.static_print` would stand in front of the data
            return triton.compile(ast_source, target=GPUTarget("cuda", arch, WARP_SIZE), options=dict(options))
    except Exception as error:  # Triton has no common class for what goes wrong in a compiler
        raise AuditError(f"{kernel.fn.__name__} does not compile for sm_{arch}: {_complaint(error)}") from error


def _complaint(error: BaseException) -> str:
    """Return the line of a compiler's message that says what is wrong, and where."""
    while error.__cause__ is not None and type(error.__cause__).__name__ == type(error).__name__:
        error = error.__cause__
    message = getattr(error, "error_message", None) or str(error.__cause__ or error)
    line = getattr(getattr(error, "node", None), "lineno", None)
    lines = [text.strip() for text in message.splitlines() if text.strip()] or [type(error).__name__]
    telling = next((text for text in lines if "error" in text.lower()), lines[0])
    return telling[:300] + (f" (line {line} of the kernel)" if line else "")


@functools.cache
def ptxas_version(arch: int) -> str:
    """Return the version of the assembler Triton uses for an architecture, such as `12.9.86`."""
    from triton.backends.nvidia.compiler import get_ptxas_version

    found = re.search(r"V([\d.]+)", get_ptxas_version(arch))
    return found[1] if found else "unknown"
