"""Machine code as `cuobjdump` from Triton's wheel lists it, and what each instruction does.

Names of instructions: CUDA Binary Utilities, "Instruction Set Reference", https://docs.nvidia.com/cuda/cuda-binary-utilities/.
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
"""Stands for the width of an access by the tensor memory accelerator, which moves a tile in one instruction."""

MMA = frozenset(
    (
        *("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA"),  # of a warp
        *("HGMMA", "IGMMA", "QGMMA", "BGMMA"),  # of a warpgroup, sm_90
        *("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),  # tcgen05, sm_100
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
    """One instruction, as listed."""

    address: int
    opcode: str
    """With its modifiers, `LDG.E.128`."""
    predicate: str = ""
    """The condition in front, `@!P0`, or nothing."""
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
        """Where a branch goes; None for what is no branch, or one to an address in a register."""
        found = TARGET.search(self.operands) if self.base in ("BRA", "JMP") else None
        return int(found[1], 16) if found else None

    @property
    def is_conditional(self) -> bool:
        """Whether the next instruction may follow although this one is a branch or an exit."""
        condition = re.search(r"!?\bU?[PR]\d", self.operands) or {"DIV", "CONV"} & set(self.modifiers)
        return bool(self.predicate and self.predicate not in ("@PT", "@UPT")) or bool(self.target and condition)

    @property
    def access(self) -> tuple[str, Width] | None:
        """`load` or `store` of global memory, and the bits one thread moves with it; None for anything else."""
        if self.base in TMA_LOADS:
            return ("store" if self.opcode.endswith(".G.S") else "load"), TMA
        if self.base in TMA_STORES:
            return "store", TMA
        if self.base in LOADS | STORES:
            return ("load" if self.base in LOADS else "store"), self._bits()
        return None

    @property
    def spill_bytes(self) -> int:
        """Bytes one thread moves to or from its stack."""
        return self._bits() // 8 if self.base in SPILLS else 0

    @property
    def is_double(self) -> bool:
        """Whether it computes in double precision, or converts to or from it."""
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
    """Return the instructions of a listing, without the padding and the branch to itself behind the last exit."""
    found = [
        Instruction(int(hit["address"], 16), hit["opcode"], (hit["predicate"] or "").strip(), hit["operands"].strip())
        for hit in INSTRUCTION.finditer(listing)
    ]
    while len(found) > 1 and (found[-1].is_padding or found[-1].target == found[-1].address):
        found.pop()
    return found


@dataclass(frozen=True)
class Binary:
    """A compiled kernel as read back."""

    instructions: tuple[Instruction, ...]
    registers: int
    """Of one thread."""
    stack_bytes: int
    """Of one thread."""
    shared_bytes: int
    """Static shared memory of one program."""


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
    """Return how many instructions there are; a NOP is none."""
    return sum(not instruction.is_padding for instruction in instructions)


def widths(instructions: Iterable[Instruction], kind: str) -> Counter[Width]:
    """Return how many accesses of each width there are, `load`s or `store`s."""
    return Counter(item.access[1] for item in instructions if item.access and item.access[0] == kind)


def rank(width: Width | None) -> float:
    """Return a number that orders widths: TMA counts as the widest, no access as the narrowest."""
    return float("inf") if width == TMA else width or 0


def main_width(found: Counter[Width]) -> Width | None:
    """Return the width that moves most bits; TMA before all others, None where there is no access."""
    return max(found, key=lambda width: (rank(width) * found[width], rank(width)), default=None)


def mma_kind(instructions: Sequence[Instruction]) -> str | None:
    """Return the tensor-core instruction that occurs most often; None where there is none."""
    found = Counter(item.base for item in instructions if item.base in MMA)
    return found.most_common(1)[0][0] if found else None
