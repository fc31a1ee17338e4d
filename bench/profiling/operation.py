"""What a profile knows of a step: its operations with their work and time, the rest of its time,
what could be fused.

A chain of operations could be fused if each reads what another has just written. A fused chain
keeps what passes between its operations in registers or shared memory. So the read is saved and, if
nothing outside of the chain reads it, the write. As `torch.compile` does, operations on single
elements, lookups and reductions share a kernel, and matmuls are calls of a library that share none.
What reads a reduction of columns or of everything has to wait for its kernel.

Checked with the kernels that inductor of torch 2.13 generates on a CPU for eleven graphs: matmuls
with ReLU, softmax, RMSNorm, LayerNorm, SwiGLU and GELU with a gradient of a bias, reductions of
rows, columns and everything, an embedding, and two norms in a row. On a CPU a kernel may have
several loops, so the rule on reductions of columns is that of GPUs: blocks of a kernel cannot wait
for each other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from results.record import Fusion, Record
from roofline.work import DTYPE_BITS, dtype_named

HOST_SYNC = "host-sync"
DATA_DEPENDENT = "data-dependent"
UNMODELLED = "unmodelled"
FLAGS = (HOST_SYNC, DATA_DEPENDENT, UNMODELLED)
"""Flags of an operation: the host reads its result, its shape depends on values, or there is no
rule for its work.
"""

NO_SHAPE = "no shape"
"""Shapes of an operation if a trace has none, or none that a tensor can have."""

STEP = "roofmark step"
MODULE = "roofmark module "
TAG = "roofmark op "
"""Names of the events of steps, modules and operations in a trace, or the beginnings of their
names.
"""


@dataclass
class Operation:
    """One operation of a step: its work and, once the step was timed, its time."""

    op: str
    """`aten.mm`."""
    shapes: str = ""
    dtypes: tuple[str, ...] = ()
    module: str = ""
    phase: str = ""
    flops: int = 0
    matmul_flops: int = 0
    """FLOPs of matmuls, convolutions and attention."""
    bytes_read: int = 0
    bytes_written: int = 0
    flags: tuple[str, ...] = ()
    time_ns: int = 0
    """Time in the recorded step."""
    kernels: dict[str, list[int]] = field(default_factory=dict)
    """Nanoseconds of each run of its GPU kernels, by name."""
    is_fusable: bool = False
    """Whether it can share a kernel: elementwise, a lookup or a reduction."""
    ends_kernel: bool = False
    """Whether it is a reduction of columns or of everything."""
    reads: Mapping[Any, int] = field(default_factory=dict)
    """Bytes read, by storage."""
    writes: Mapping[Any, int] = field(default_factory=dict)

    @property
    def is_modelled(self) -> bool:
        """False if there is no rule for its work; the counts then come from generic rules."""
        return UNMODELLED not in self.flags

    @property
    def dtype(self) -> str:
        """The dtype whose peak applies: that of the first floating-point operand, else of the first
        operand.
        """
        floats = [dtype for dtype in self.dtypes if "float" in dtype]
        name = dtype_named((floats or self.dtypes or ("float32",))[0])
        return name if name in DTYPE_BITS else "fp32"

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


def summed(operations: Iterable[Operation]) -> Operation:
    """Return the work, the time and the kernels of operations together."""
    total = Operation("sum")
    for operation in operations:
        total.flops += operation.flops
        total.matmul_flops += operation.matmul_flops
        total.bytes_read += operation.bytes_read
        total.bytes_written += operation.bytes_written
        total.time_ns += operation.time_ns
        for name, times_ns in operation.kernels.items():
            total.kernels.setdefault(name, []).extend(times_ns)
    return total


@dataclass
class Breakdown:
    """The operations of a step and, once the step was timed, where its time went."""

    operations: Sequence[Operation]
    eager_bytes: int | None = None
    """Bytes that a compiled step would move without fusion."""
    samples_s: Sequence[float] = ()
    """Times of the whole step without a profiler."""
    unattributed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Nanoseconds of each event outside of the counted operations, by operation or kernel."""
    gaps: Counter[str] = field(default_factory=Counter)
    """Nanoseconds without an operation, by module: Python, autograd, waiting for the host."""
    is_trace: bool = False
    """Whether it is a whole trace from a file, with all of its steps, instead of one step."""
    early_s: Sequence[float] = ()
    """Times of kernels that were launched before the recording of a trace began; they belong to no
    part of it.
    """
    steps_s: Sequence[float] = ()
    """Times of the steps of a trace on the host."""
    others_ns: int = 0
    """Nanoseconds in which only kernels of other steps ran."""
    communication_s: float = 0.0
    exposed_s: float = 0.0
    """Time in which kernels that communicate between GPUs ran, and in which nothing else ran."""

    @property
    def duration_ns(self) -> int:
        operations_ns = sum(operation.time_ns for operation in self.operations)
        others_ns = sum(map(sum, self.unattributed.values()))
        return operations_ns + others_ns + self.others_ns + self.gaps.total()


def pattern(module: str) -> str:
    """Return the path of a module with `*` for the number of a layer; a path of numbers alone
    stays.
    """
    if module.replace(".", "").isdigit():
        return module
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


class CountedStep(NamedTuple):
    """The work of a step: a record without a time for each row, and what could be fused."""

    name: str
    mode: str
    records: list[Record]
    fusions: list[Fusion]
    assumed: list[str]
    """Operations whose results depend on values that are not known."""


def fusions_of(operations: Sequence[Operation]) -> list[Fusion]:
    """Return what could be fused in a step, what saves most first."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for chain, saved_bytes in chains_of(operations):
        names = tuple(operation.op.removeprefix("aten.") for operation in chain)
        groups.setdefault((pattern(chain[0].module), names), []).append(saved_bytes)
    fusions = [
        Fusion(module=module, operations=names, count=len(saved), saved_bytes=sum(saved))
        for (module, names), saved in groups.items()
    ]
    return sorted(fusions, key=lambda fusion: -fusion.saved_bytes)


@dataclass
class Version:
    """The contents of a storage between two writes."""

    writer: int
    written_bytes: int
    readers: dict[int, int] = field(default_factory=dict)
    """Bytes read, by the index of the operation."""


def chains_of(operations: Sequence[Operation]) -> list[tuple[list[Operation], int]]:
    """Return the operations of each chain of a step, with the bytes that its fused kernel neither
    reads nor writes.
    """
    versions = []
    current: dict[Any, Version] = {}
    first_of: list[int] = []
    """Index of the first operation of the chain that each operation belongs to."""
    chains: dict[int, list[Operation]] = {}
    starts: dict[int, int] = {}
    """Index of the operation before which the kernel of each chain runs."""
    read_elsewhere = set()
    """Chains whose results another chain reads."""
    for index, operation in enumerate(operations):
        inputs = [current[storage] for storage in operation.reads if storage in current]
        first = index
        for version in sorted(inputs, key=lambda each: -each.writer):
            chain = first_of[version.writer]
            before = operations[version.writer]
            others = [first_of[each.writer] for each in inputs if first_of[each.writer] != chain]
            is_ready = all(starts[other] < starts[chain] for other in others)
            if (
                operation.is_fusable
                and before.is_fusable
                and not before.ends_kernel
                and before.phase == operation.phase
                and (is_ready or chain not in read_elsewhere)
            ):
                # A kernel whose results nobody has read yet can wait for the other inputs, as that
                # of SiLU for the second product of SwiGLU.
                first = chain
                starts[chain] = starts[chain] if is_ready else index
                break
        starts.setdefault(first, index)
        read_elsewhere.update({first_of[each.writer] for each in inputs} - {first})
        first_of.append(first)
        chains.setdefault(first, []).append(operation)
        for storage, read_bytes in operation.reads.items():
            if storage in current:
                current[storage].readers[index] = read_bytes
        for storage, written_bytes in operation.writes.items():
            current[storage] = Version(index, written_bytes)
            versions.append(current[storage])
    saved: Counter[int] = Counter()
    for version in versions:
        first = first_of[version.writer]
        inside = [index for index in version.readers if first_of[index] == first]
        saved[first] += sum(version.readers[index] for index in inside)
        if inside and len(inside) == len(version.readers):
            saved[first] += version.written_bytes
    return [(chain, saved[first]) for first, chain in chains.items() if saved[first]]
