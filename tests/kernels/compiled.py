"""Kernels compiled ahead of time, for the tests that read what the compiler made of them."""

import functools

from kernels.audit import catalog, compiling, limits, reading, work
from kernels.audit.rows import Row

ARCHES = catalog.ARCHES


def compile_ahead(variant, arch, integers="i32", known_sizes=True):
    """Compile as a launch would: aligned pointers, and sizes known to be multiples of 16 only if specialized."""
    source = compiling.source_of(variant, integers, known_sizes)
    return compiling.compile_ahead(variant.kernel, source, arch, variant.options)


def read_back(compiled):
    """Return resources and instructions of one compiled kernel."""
    [binary] = reading.read_back([compiled])
    return binary


def assert_lean(binary, allow_double=False):
    """No spill, no stack, no fp64 arithmetic."""
    assert binary.registers > 0
    assert (binary.stack_bytes, binary.local_bytes) == (0, 0)
    assert not [item for item in binary.instructions if item.spill_bytes]
    assert any(item.base == "EXIT" for item in binary.instructions)
    assert allow_double or not [str(item) for item in binary.instructions if item.is_double]


@functools.cache
def shipped_rows(known_sizes: bool = True) -> tuple[Row, ...]:
    """Return the audit of every shipped kernel, compiled once for all tests of a run."""
    jobs = [
        work.Job(choice, limits.DEFAULT_GPUS[choice.arch], known_sizes)
        for choice in (catalog.choices() if known_sizes else newest_choices(90))
        if known_sizes or choice.variant.dtype == "bf16"
    ]
    return tuple(work.audit_all(jobs))


def newest_choices(*arches: int) -> list[catalog.Choice]:
    """Return the variants of the newest version of each family."""
    newest = catalog.newest()
    return [choice for choice in catalog.choices(arches) if choice.version in newest]
