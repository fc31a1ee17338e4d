"""What a profile knows of a step: its operations with their work and time, and the rest of its time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from results.record import DTYPES
from roofline.work import dtype_named

HOST_SYNC, DATA_DEPENDENT, UNMODELLED = "host-sync", "data-dependent", "unmodelled"
FLAGS = (HOST_SYNC, DATA_DEPENDENT, UNMODELLED)
"""Flags of an operation: the host reads its result, its shape depends on values, or there is no rule for its work."""

NO_SHAPE = "no shape"
"""Shapes of an operation if a trace has none."""

STEP, MODULE, TAG = "ridgepoint step", "ridgepoint module ", "ridgepoint op "
"""Names of the events of steps, modules and operations in a trace, or the beginnings of their names."""


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
    kernels: set[str] = field(default_factory=set)
    """Names of its GPU kernels."""
    is_fusable: bool = False
    """Whether it can be part of the kernel of the operation before it: elementwise, or a reduction over rows."""
    reads: dict[int, int] = field(default_factory=dict)
    """Bytes read, by the number of the storage."""
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def is_modelled(self) -> bool:
        """False if there is no rule for its work; the counts then come from generic rules."""
        return UNMODELLED not in self.flags

    @property
    def dtype(self) -> str:
        """The dtype whose peak applies: that of the first floating-point operand, else of the first operand."""
        floats = [dtype for dtype in self.dtypes if "float" in dtype]
        name = dtype_named((floats or self.dtypes or ("float32",))[0])
        return name if name in DTYPES else "fp32"

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass
class Breakdown:
    """The operations of a step and, once the step was timed, where its time went."""

    operations: Sequence[Operation]
    unique_bytes: int | None = 0
    """Bytes of all storages that the step uses, each counted once; None if unknown."""
    eager_bytes: int | None = None
    """Bytes that a compiled step would move without fusion."""
    samples_s: Sequence[float] = ()
    """Times of the whole step without a profiler."""
    unattributed: Counter[str] = field(default_factory=Counter)
    """Nanoseconds outside of the counted operations, by operation or kernel."""
    gaps: Counter[str] = field(default_factory=Counter)
    """Nanoseconds without an operation, by module: Python, autograd, waiting for the host."""
    is_trace: bool = False
    """Whether it is a whole trace from a file, with all of its steps, instead of one step."""

    @property
    def duration_ns(self) -> int:
        operations_ns = sum(operation.time_ns for operation in self.operations)
        return operations_ns + sum(self.unattributed.values()) + sum(self.gaps.values())


def pattern(module: str) -> str:
    """Return the path of a module with `*` for the number of a layer; a path of numbers alone stays."""
    return module if module.replace(".", "").isdigit() else re.sub(r"(?<![^.])\d+(?![^.])", "*", module)
