"""Rows of the audit: kernels compiled ahead of time for GPUs that need not be present.

Kernels are compiled as for a launch. Pointers are aligned, integers that Triton may specialize are
multiples of 16, and nothing is known about the other integers.
"""

import contextlib
import functools
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import precompile
from kernels.audit import AuditError, hot_path, limits, sass
from kernels.audit.catalog import Choice
from kernels.launch import ALIGNMENT_BYTES, TRITON_TYPES, Variant

Row = dict[str, Any]
"""Properties of a compiled variant; see `row` for the keys."""

MIXED_MARGIN = 0.1
"""If two limits differ by at most this fraction of the larger, both are the bound."""

MAX_SERIAL_KERNELS = 6
"""Up to this many kernels are compiled in this process, which is faster than starting others."""

PTX_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
PTX_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")


def ast_source(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], divisible: Collection[str]
) -> ASTSource:
    """Return the source for `triton.compile`; `divisible` arguments are multiples of 16, pointers
    in bytes.
    """
    names = [parameter.name for parameter in kernel.params]
    signature = {name: types.get(name, "constexpr") for name in names}
    known = [["tt.divisibility", ALIGNMENT_BYTES]]
    attrs = {(index,): known for index, name in enumerate(names) if name in divisible}
    return ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=attrs)


def source_of(variant: Variant, integers: str = "i32", known_sizes: bool = True) -> ASTSource:
    """Return the source of a variant with the argument types of a launch.

    Args:
        variant: the variant.
        integers: Triton type of the integers that are not in `variant.types`.
        known_sizes: whether integers that Triton may specialize are multiples of 16.
    """
    types = {}
    divisible = set()
    for parameter in variant.kernel.params:
        name = parameter.name
        if name in variant.constants:
            continue
        own = (
            f"*{TRITON_TYPES.get(variant.dtype, variant.dtype)}"
            if name.endswith("_ptr")
            else integers
        )
        types[name] = variant.types.get(name, own)
        is_integer = re.fullmatch(r"[iu](32|64)", types[name])
        if types[name].startswith("*") or (
            is_integer and known_sizes and not parameter.do_not_specialize
        ):
            divisible.add(name)
    return ast_source(variant.kernel, types, variant.constants, divisible)


def compile_ahead(source: ASTSource, arch: int, options: Mapping[str, Any]) -> Any:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the output of `tl.static_print` is not data
            return triton.compile(
                source, target=GPUTarget("cuda", arch, limits.WARP_SIZE), options=dict(options)
            )
    except Exception as error:  # Triton's compiler errors have no common class
        message = getattr(error, "error_message", None) or str(error.__cause__ or error)
        lines = [text.strip() for text in message.splitlines() if text.strip()] or [
            type(error).__name__
        ]
        reason = next((text for text in lines if "error" in text.lower()), lines[0])[:300]
        raise AuditError(
            f"{source.fn.fn.__name__} does not compile for sm_{arch}: {reason}"
        ) from error


@functools.cache
def ptxas_version(arch: int) -> str:
    from triton.backends.nvidia.compiler import get_ptxas_version

    match = re.search(r"V([\d.]+)", get_ptxas_version(arch))
    return match[1] if match else "unknown"


def row(kernel: str, version: str | None, variant: Variant, compiled: Any, arch: int) -> Row:
    """Return the row of a compiled kernel. Values per element are None if `variant.elements` is 0.

    kernel                      family and operation, `elementwise/gelu`; or `file.py:name`
    registers, stack_bytes      of one thread
    spill_bytes                 widths of all instructions that save registers to the stack or take
                                them back
    shared_bytes                of one program, static and dynamic
    occupancy                   resident warps over the most there can be, see `limits.programs_by`
    obstacle                    resources of which a program needs more than there are, so that it
                                cannot launch
    load_bits, store_bits       width of the accesses to global memory that move most on the hot
                                path, `tma` for whole tiles, None without any; `_min` and `_max` are
                                the narrowest and the widest
    mma                         tensor-core instruction: HMMA, IMMA, HGMMA (wgmma), QGMMA (fp8),
                                UTCHMMA and UTCQMMA (tcgen05)
    instructions                of the whole kernel, without padding
    hot_instructions, hot_path  of one pass through the hot path, which is a `loop` or `straight`
    instructions_per_element    of one pass: instructions x threads / elements
    issue_budget_instructions_per_element
                                instructions that can be issued while memory moves the element
    bound                       see `bound`
    fp_fusion                   whether the compiler may contract a product and a sum into one
                                rounding
    double_precision            instructions in double precision
    gpu                         whose clock and bandwidth the bound is of
    listing                     the instructions of the hot path
    """
    binary = sass.read_back(compiled.asm["cubin"])
    path = hot_path.find(binary.instructions)
    ptx = compiled.asm["ptx"]
    # With warp specialization there are more than 32 `num_warps` threads.
    thread_count = PTX_THREADS.search(ptx)
    threads = (
        int(thread_count[1]) if thread_count else limits.WARP_SIZE * compiled.metadata.num_warps
    )
    shared_bytes = binary.shared_bytes + compiled.metadata.shared
    columns = getattr(compiled.metadata, "tmem_size", 0) or 0
    fitting = limits.programs_by(arch, binary.registers, shared_bytes, threads, columns)
    widths = {kind: sass.widths(path.instructions, kind) for kind in ("load", "store")}
    mma = sass.mma_kind(binary.instructions)
    issued = budget = None
    if variant.elements:
        issued = round(path.count * threads / (hot_path.passes(path, ptx) * variant.elements), 4)
        if variant.bytes is not None:
            budget = round(limits.issue_budget(arch, variant.bytes / variant.elements), 4)
    return {
        "kernel": kernel,
        "version": version,
        "arch": f"sm_{arch}",
        "dtype": variant.dtype,
        "part": variant.part,
        "shape_class": variant.shape_class,
        "registers": binary.registers,
        "stack_bytes": binary.stack_bytes,
        "spill_bytes": sum(item.spill_bytes for item in binary.instructions),
        "shared_bytes": shared_bytes,
        "occupancy": round(limits.occupancy(fitting, arch, threads), 4),
        "obstacle": ", ".join(need for need, programs in fitting.items() if not programs) or None,
        **{f"{kind}_bits": sass.main_width(counts) for kind, counts in widths.items()},
        **{
            f"{kind}_bits_min": min(counts, key=sass.rank, default=None)
            for kind, counts in widths.items()
        },
        **{
            f"{kind}_bits_max": max(counts, key=sass.rank, default=None)
            for kind, counts in widths.items()
        },
        "mma": mma,
        "instructions": sass.count(binary.instructions),
        "hot_instructions": path.count,
        "hot_path": "loop" if path.is_loop else "straight",
        "instructions_per_element": issued,
        "issue_budget_instructions_per_element": budget,
        "bound": bound(issued, budget, mma) if all(fitting.values()) else None,
        "fp_fusion": variant.options["enable_fp_fusion"],
        "double_precision": sum(item.is_double for item in binary.instructions),
        "gpu": limits.MULTIPROCESSORS[arch].gpu,
        "triton": triton.__version__,
        "ptxas": ptxas_version(arch),
        "target": PTX_TARGET.search(ptx)[1],
        "listing": list(map(str, path.instructions)),
    }


def bound(issued: float | None, budget: float | None, mma: str | None) -> str | None:
    """Return the bound of a kernel with `issued` instructions per element and a budget of `budget`.

    It is `compute` with tensor cores, else `memory`, `issue`, or `mixed` if both differ by 10 % or
    less, or None if one is unknown. Latency is not considered, because the machine code does not
    show it.
    """
    if mma:
        return "compute"
    if issued is None or budget is None:
        return None
    if abs(issued - budget) <= MIXED_MARGIN * max(issued, budget):
        return "mixed"
    return "issue" if issued > budget else "memory"


def key_of(item: Row) -> str:
    parts = (item[key] for key in ("kernel", "version", "dtype", "part", "shape_class", "arch"))
    return " | ".join(filter(None, parts))


def audit(choice: Choice) -> Row:
    compiled = compile_ahead(source_of(choice.variant), choice.arch, choice.variant.options)
    return row(choice.kernel, choice.version.name, choice.variant, compiled, choice.arch)


def audit_all(choices: Sequence[Choice]) -> list[Row]:
    """Compile shipped variants on all cores and return their rows in the order of kernels; progress
    goes to stderr.
    """
    if len(choices) <= MAX_SERIAL_KERNELS:
        with precompile.report_if_slow(f"compiling {len(choices)} kernels"):
            return sorted(map(audit, choices), key=_sort_key)
    try:
        return sorted(precompile.in_processes(audit, choices), key=_sort_key)
    except BrokenProcessPool as error:
        raise AuditError(precompile.KILLED) from error


def _sort_key(item: Row) -> tuple[Any, ...]:
    number = int(item["version"][1:])
    return (
        item["kernel"],
        number,
        item["dtype"],
        item["part"],
        item["shape_class"],
        int(item["arch"][3:]),
    )
