"""Machine code as listed by `cuobjdump` from Triton's wheel, and the properties of each
instruction.

Instruction names: CUDA Binary Utilities, "Instruction Set Reference",
https://docs.nvidia.com/cuda/cuda-binary-utilities/.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import triton

from kernels.audit import AuditError

TMA = "tma"
"""Replaces the width of an access by the tensor memory accelerator, which moves a tile in one
instruction.
"""

MMA = frozenset(
    (
        # of a warp
        "HMMA",
        "IMMA",
        "DMMA",
        "BMMA",
        "QMMA",
        "OMMA",
        # of a warpgroup, sm_90
        "HGMMA",
        "IGMMA",
        "QGMMA",
        "BGMMA",
        # tcgen05, sm_100
        "UTCHMMA",
        "UTCIMMA",
        "UTCQMMA",
        "UTCOMMA",
    )
)
LOADS = frozenset(("LDG", "LDGSTS"))
STORES = frozenset(("STG",))
TMA_LOADS = frozenset(("UTMALDG", "UBLKCP"))
TMA_STORES = frozenset(("UTMASTG", "UTMAREDG"))
SPILLS = frozenset(("LDL", "STL"))
DOUBLE = frozenset(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "DMMA"))
NARROW = {"U8": 8, "S8": 8, "U16": 16, "S16": 16}

INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+"
    r"(?P<predicate>@!?U?P[T\d]\w*\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);",
    re.MULTILINE,
)
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
TARGET = re.compile(r"\b0x([0-9a-f]+)\s*$")

Width = int | Literal["tma"]


@dataclass(frozen=True)
class Instruction:
    """One instruction of the listing."""

    address: int
    opcode: str
    """Opcode with modifiers, `LDG.E.128`."""
    predicate: str = ""
    """Condition, such as `@!P0`, or empty."""
    operands: str = ""

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> list[str]:
        return self.opcode.split(".")[1:]

    @property
    def is_padding(self) -> bool:
        return self.base == "NOP"

    @property
    def target(self) -> int | None:
        """Address that a branch goes to; None for other instructions and for addresses in
        registers.
        """
        match = TARGET.search(self.operands) if self.base in ("BRA", "JMP") else None
        return int(match[1], 16) if match else None

    @property
    def is_conditional(self) -> bool:
        """Whether execution may continue with the next instruction after this branch or exit."""
        condition = re.search(r"!?\bU?[PR]\d", self.operands) or {"DIV", "CONV"} & set(
            self.modifiers
        )
        return bool(self.predicate and self.predicate not in ("@PT", "@UPT")) or bool(
            self.target and condition
        )

    @property
    def access(self) -> tuple[str, Width] | None:
        """`load` or `store` of global memory, and bits per thread; None for other instructions."""
        if self.base in TMA_LOADS:
            return ("store" if self.opcode.endswith(".G.S") else "load"), TMA
        if self.base in TMA_STORES:
            return "store", TMA
        if self.base in LOADS | STORES:
            return ("load" if self.base in LOADS else "store"), self._bits()
        return None

    @property
    def spill_bytes(self) -> int:
        """Bytes per thread moved to or from the stack."""
        return self._bits() // 8 if self.base in SPILLS else 0

    @property
    def is_double(self) -> bool:
        return self.base in DOUBLE or bool({"F64", "RCP64H", "RSQ64H"} & set(self.modifiers))

    def _bits(self) -> int:
        for modifier in self.modifiers:
            if modifier in ("64", "128", "256"):
                return int(modifier)
            if modifier in NARROW:
                return NARROW[modifier]
        return 32

    def __str__(self) -> str:
        return f"/*{self.address:04x}*/  {self.predicate:5} {self.opcode} {self.operands}".rstrip()


def parse(listing: str) -> list[Instruction]:
    """Return the instructions of a listing, without padding and the branch to itself after the last
    exit.
    """
    listed = [
        Instruction(
            int(hit["address"], 16),
            hit["opcode"],
            (hit["predicate"] or "").strip(),
            hit["operands"].strip(),
        )
        for hit in INSTRUCTION.finditer(listing)
    ]
    while len(listed) > 1 and (listed[-1].is_padding or listed[-1].target == listed[-1].address):
        listed.pop()
    return listed


@dataclass(frozen=True)
class Binary:
    """A disassembled kernel: registers and stack per thread, static shared memory per program."""

    instructions: tuple[Instruction, ...]
    registers: int
    stack_bytes: int
    shared_bytes: int


def read_back(cubin: bytes) -> Binary:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-sass", "-res-usage", file.name]
        try:
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise AuditError(f"cannot read the compiled kernel: {error}") from error
    registers, stack, shared = map(int, USAGE.search(listing).groups())
    return Binary(tuple(parse(listing)), registers, stack, shared)


def count(instructions: Iterable[Instruction]) -> int:
    """Return the number of instructions other than NOP."""
    return sum(not instruction.is_padding for instruction in instructions)


def widths(instructions: Iterable[Instruction], kind: str) -> Counter[Width]:
    return Counter(
        item.access[1] for item in instructions if item.access and item.access[0] == kind
    )


def rank(width: Width | None) -> float:
    """Return a sort key: TMA is the widest, no access the narrowest."""
    return float("inf") if width == TMA else width or 0


def main_width(counts: Counter[Width]) -> Width | None:
    """Return the width that moves the most bits, TMA if there is any, None without accesses."""
    return max(counts, key=lambda width: (rank(width) * counts[width], rank(width)), default=None)


def mma_kind(instructions: Sequence[Instruction]) -> str | None:
    """Return the most frequent tensor-core instruction; None if there is none."""
    counts = Counter(item.base for item in instructions if item.base in MMA)
    return counts.most_common(1)[0][0] if counts else None
