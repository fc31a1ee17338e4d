"""Kernels compiled ahead of time for a GPU that need not be present.

Everything is compiled as a launch would: pointers are known to be aligned, a whole number that the kernel lets Triton
specialize is known to be a multiple of 16, and one that it does not is not known at all.
"""

import contextlib
import functools
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.audit import AuditError
from kernels.launch import ALIGNMENT_BYTES, Variant

WARP_SIZE = 32
TRITON_TYPES = {
    "tf32": "fp32",
    "fp8e4m3": "fp8e4nv",
    "fp8e5m2": "fp8e5",
    "int8": "i8",
    "int32": "i32",
}
"""Triton's name of a dtype where it differs from Ridgepoint's."""


def ast_source(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], divisible: Collection[str]
) -> ASTSource:
    """Return what Triton compiles.

    Args:
        kernel: A `triton.jit` function.
        types: Triton type of each runtime argument by name.
        constants: All other arguments by name.
        divisible: Arguments known to be multiples of 16, in bytes for a pointer.
    """
    names = [parameter.name for parameter in kernel.params]
    signature = {name: types.get(name, "constexpr") for name in names}
    known = [["tt.divisibility", ALIGNMENT_BYTES]]
    attrs = {(index,): known for index, name in enumerate(names) if name in divisible}
    return ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=attrs)


def source_of(variant: Variant, integers: str = "i32", known_sizes: bool = True) -> ASTSource:
    """Return the source of a variant with the types that a launch would have.

    Args:
        variant: As launched.
        integers: Triton type of whole numbers that `variant.types` does not name.
        known_sizes: Whether whole numbers that Triton may specialize are multiples of 16.
    """
    types, divisible = {}, set()
    for parameter in variant.kernel.params:
        name = parameter.name
        if name in variant.constants:
            continue
        own = f"*{TRITON_TYPES.get(variant.dtype, variant.dtype)}" if name.endswith("_ptr") else integers
        types[name] = variant.types.get(name, own)
        is_integer = re.fullmatch(r"[iu](32|64)", types[name])
        if types[name].startswith("*") or (is_integer and known_sizes and not parameter.do_not_specialize):
            divisible.add(name)
    return ast_source(variant.kernel, types, variant.constants, divisible)


def compile_ahead(source: ASTSource, arch: int, options: Mapping[str, Any]) -> Any:
    """Return what Triton compiles a source to for `sm_<arch>`.

    Raises:
        AuditError: It does not compile; the line is the compiler's own.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what `tl.static_print` prints is not part of the output
            return triton.compile(source, target=GPUTarget("cuda", arch, WARP_SIZE), options=dict(options))
    except Exception as error:  # Triton has no common class for what goes wrong in a compiler
        message = getattr(error, "error_message", None) or str(error.__cause__ or error)
        lines = [text.strip() for text in message.splitlines() if text.strip()] or [type(error).__name__]
        reason = next((text for text in lines if "error" in text.lower()), lines[0])[:300]
        raise AuditError(f"{source.fn.fn.__name__} does not compile for sm_{arch}: {reason}") from error


@functools.cache
def ptxas_version(arch: int) -> str:
    """Return the version of the assembler Triton uses for an architecture, such as `12.9.86`."""
    from triton.backends.nvidia.compiler import get_ptxas_version

    found = re.search(r"V([\d.]+)", get_ptxas_version(arch))
    return found[1] if found else "unknown"
