"""One row of the audit: what is known of one kernel, version, architecture and dtype once it is compiled."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import triton

from kernels.audit import hot_path, limits, sass
from kernels.audit.catalog import Choice
from kernels.audit.compiling import ptxas_version
from kernels.audit.reading import Binary, accesses_a_pass
from kernels.launch import Variant

MIXED_SHARE = 0.1
"""Two limits that are nearer to each other than this share of the larger are both the bound."""


@dataclass(frozen=True)
class AuditRow:
    """What the compiler made of a variant. Counts are of one thread, bytes of one thread or one program."""

    kernel: str
    """Family and operation, `elementwise/gelu`; or `file.py:name`."""
    version: str | None
    arch: str
    dtype: str
    part: str
    shape_class: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    """Sum of the widths of all instructions that save registers to the stack or take them back."""
    shared_bytes: int
    """Of one program."""
    occupancy: float
    """Resident warps over the most there can be, by registers, shared memory and warps; see `limits.programs_by`."""
    obstacle: str | None
    """Why not one program fits on a multiprocessor, so that it does not launch; None where one does."""
    load_bits: sass.Width | None
    """Width of the loads from global memory that move most on the hot path, `tma` for whole tiles; None without any."""
    load_bits_min: sass.Width | None
    """The narrowest of them. A scalar, as a label or a scale, is one of them."""
    load_bits_max: sass.Width | None
    store_bits: sass.Width | None
    store_bits_min: sass.Width | None
    store_bits_max: sass.Width | None
    mma: str | None
    """Tensor-core instruction: HMMA, IMMA, HGMMA (wgmma), QGMMA (fp8), UTCHMMA and UTCQMMA (tcgen05)."""
    instructions: int
    """Of the whole kernel, without padding."""
    hot_instructions: int
    """Of one pass through the hot path; see `hot_path`."""
    hot_path: str
    """`loop` or `straight`."""
    instructions_per_element: float | None
    """Of one pass: instructions x threads / elements. None where the elements are unknown."""
    issue_budget_instructions_per_element: float | None
    bound: str | None
    """`memory`, `issue`, `mixed` within 10 %, `compute` with tensor cores; None where it is unknown."""
    fp_fusion: bool | None
    """Whether the compiler may contract a product and a sum into one rounding."""
    double_precision: int
    """Instructions in double precision."""
    gpu: str
    """Whose clock and bandwidth the bound is of."""
    triton: str
    ptxas: str
    target: str
    listing: tuple[str, ...] = field(default=(), repr=False)
    """The hot path, where it was asked for."""

    def public(self) -> dict[str, Any]:
        """Return the row for JSON and CSV."""
        values = asdict(self)
        del values["listing"]
        return values

    @property
    def key(self) -> str:
        """What the row is of: kernel, version, dtype, part, shapes, architecture."""
        return _joined(self.kernel, self.version, self.dtype, self.part, self.shape_class, self.arch)


def key_of(choice: Choice) -> str:
    """Return the key that the row of a shipped variant will have."""
    of = choice.variant
    return _joined(choice.kernel, choice.version.name, of.dtype, of.part, of.shape_class, f"sm_{choice.arch}")


def _joined(*words: str | None) -> str:
    return " | ".join(word for word in words if word)


def row(
    kernel: str,
    version: str | None,
    variant: Variant,
    binary: Binary,
    arch: int,
    gpu: limits.GpuLimits,
    with_listing: bool = False,
) -> AuditRow:
    """Return the row of a compiled kernel; without `variant.elements` nothing is counted by the element."""
    path = hot_path.find(binary.instructions)
    passes = _passes(path, binary.ptx)
    loads, stores = (sass.widths(path.instructions, kind) for kind in ("load", "store"))
    mma = sass.mma_kind(binary.instructions)
    elements = variant.elements
    issued = path.count * binary.threads / (passes * elements) if elements else None
    budget = gpu.issue_budget(variant.bytes / elements) if elements and variant.bytes is not None else None
    fitting = limits.programs_by(
        arch, binary.registers, binary.shared_bytes, binary.threads, binary.tensor_memory_columns
    )
    resident = limits.occupancy(fitting, arch, binary.threads)
    return AuditRow(
        kernel=kernel,
        version=version,
        arch=f"sm_{arch}",
        dtype=variant.dtype,
        part=variant.part,
        shape_class=variant.shape_class,
        registers=binary.registers,
        stack_bytes=binary.stack_bytes,
        spill_bytes=sum(item.spill_bytes for item in binary.instructions),
        shared_bytes=binary.shared_bytes,
        occupancy=round(resident, 4),
        obstacle=limits.obstacle(fitting, arch),
        load_bits=sass.main_width(loads),
        load_bits_min=min(loads, key=sass.rank, default=None),
        load_bits_max=max(loads, key=sass.rank, default=None),
        store_bits=sass.main_width(stores),
        store_bits_min=min(stores, key=sass.rank, default=None),
        store_bits_max=max(stores, key=sass.rank, default=None),
        mma=mma,
        instructions=sass.count(binary.instructions),
        hot_instructions=path.count,
        hot_path="loop" if path.is_loop else "straight",
        instructions_per_element=None if issued is None else round(issued, 4),
        issue_budget_instructions_per_element=None if budget is None else round(budget, 4),
        bound=bound(issued, budget, mma) if resident else None,
        fp_fusion=variant.options.get("enable_fp_fusion"),
        double_precision=sum(item.is_double for item in binary.instructions),
        gpu=gpu.slug,
        triton=triton.__version__,
        ptxas=ptxas_version(arch),
        target=binary.target,
        listing=tuple(map(str, path.instructions)) if with_listing else (),
    )


def bound(issued: float | None, budget: float | None, mma: str | None) -> str | None:
    """Return what limits a kernel that does `issued` instructions an element and has time for `budget`.

    Latency is not among the answers: nothing in the machine code tells it.
    """
    if mma:
        return "compute"
    if issued is None or budget is None:
        return None
    if abs(issued - budget) <= MIXED_SHARE * max(issued, budget):
        return "mixed"
    return "issue" if issued > budget else "memory"


def _passes(path: hot_path.HotPath, ptx: str) -> int:
    """Return how many passes of the loop as written one pass of the machine code is: the assembler unrolls loops."""
    if not path.is_loop:
        return 1
    written_mma, written_accesses = accesses_a_pass(ptx)
    found_accesses = sum(item.access is not None for item in path.instructions)
    if written_accesses and found_accesses:
        return max(1, round(found_accesses / written_accesses))
    found_mma = sum(item.base in sass.MMA for item in path.instructions)
    return max(1, round(found_mma / written_mma)) if written_mma else 1


def ordered(rows: Sequence[AuditRow]) -> list[AuditRow]:
    """Return rows by kernel, version, dtype, part and shapes, the architectures of each together."""

    def place(item: AuditRow) -> tuple[Any, ...]:
        number = int((item.version or "v0")[1:])
        return item.kernel, number, item.dtype, item.part, item.shape_class, int(item.arch[3:])

    return sorted(rows, key=place)
