"""The hot path of a kernel, found from the branches in its machine code.

With loops that access memory or use tensor cores, it is one pass of the heaviest innermost loop:
the one with the most tensor-core instructions, then with the most bits moved. Another loop is the
hot path only if there is no such loop, it does not wait for a barrier, and it is more than half of
the code on the path from entry to exit. Without a loop, it is the path from entry to exit with the
widest accesses, for example the full, unmasked block of a kernel with full and partial blocks.
Among paths with equal accesses it is the shortest, which excludes slow paths.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.audit.sass import MMA, TMA, Instruction, count

ENDS = frozenset(("EXIT", "RET", "KILL", "BPT"))
WAITS = frozenset(("SYNCS", "NANOSLEEP", "DEPBAR", "UCGABAR_WAIT"))
RANKS = (TMA, 256, 128, 64, 32, 16, 8)  # widest access first
PTX_ACCESS = re.compile(
    r"\b(?:(?:ld|st)\.global|cp\.async\.c[ag]|cp\.async\.bulk\.(?:tensor|shared|global))\b"
)
PTX_MMA = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
TILE_BITS = 2**20  # an access by TMA outweighs any number of others


@dataclass(frozen=True)
class HotPath:
    """The instructions of one pass, in order."""

    instructions: tuple[Instruction, ...]
    is_loop: bool

    @property
    def count(self) -> int:
        return count(self.instructions)


def find(instructions: Sequence[Instruction]) -> HotPath:
    indices = {item.address: index for index, item in enumerate(instructions)}
    loops = []
    for end, item in enumerate(instructions):
        start = indices.get(item.target, end + 1)
        # A slow path behind the end of the kernel that branches back is not a loop.
        ends = [each for each in instructions[start:end] if each.base in ENDS]
        if start <= end and all(each.is_conditional for each in ends):
            loops.append((start, end))
    paths = {loop: _widest_path(instructions, indices, *loop) for loop in loops}
    working = [loop for loop in loops if any(_traffic(paths[loop]))]
    innermost = [
        paths[start, end]
        for start, end in working
        if not any(
            (start, end) != other and start <= other[0] and other[1] <= end for other in working
        )
    ]
    if innermost:
        return HotPath(max(innermost, key=_traffic), True)
    straight = _widest_path(instructions, indices, 0, len(instructions) - 1)
    turning = [path for path in paths.values() if not any(item.base in WAITS for item in path)]
    longest = max(turning, key=count, default=())
    # The straight path includes the body of a loop once.
    return (
        HotPath(longest, True) if 2 * count(longest) > count(straight) else HotPath(straight, False)
    )


def _traffic(path: Sequence[Instruction]) -> tuple[int, int]:
    bits = sum(
        TILE_BITS if item.access[1] == TMA else item.access[1] for item in path if item.access
    )
    return sum(item.base in MMA for item in path), bits


def _widest_path(
    instructions: Sequence[Instruction], indices: dict[int, int], start: int, end: int
) -> tuple[Instruction, ...]:
    """Return the path from `start` to `end` or an exit with the widest accesses, without backward
    branches.
    """
    best: dict[int, tuple[tuple[int, ...], int | None]] = {}
    for index in range(end, start - 1, -1):
        item = instructions[index]
        width = item.access[1] if item.access else None
        own = (
            int(item.base in MMA),
            *(int(width == rank) for rank in RANKS),
            -int(not item.is_padding),
        )
        following = (
            [] if item.base in ENDS | {"BRA", "JMP"} and not item.is_conditional else [index + 1]
        )
        following.append(indices.get(item.target, -1))
        options = [
            (tuple(a + b for a, b in zip(own, best[to][0], strict=True)), to)
            for to in following
            if to > index and to in best
        ]
        if index == end or item.base in ENDS:
            options.append((own, None))
        if options:
            best[index] = max(options, key=lambda option: option[0])
    path = []
    at = start if start in best else None
    while at is not None:
        path.append(instructions[at])
        at = best[at][1]
    return tuple(path)


def passes(path: HotPath, ptx: str) -> int:
    """Return the number of source loop passes per pass of the machine code, in which the assembler
    unrolls loops.
    """
    written_mma, written_accesses = accesses_per_pass(ptx) if path.is_loop else (0, 0)
    accesses = sum(item.access is not None for item in path.instructions)
    if written_accesses and accesses:
        return max(1, round(accesses / written_accesses))
    mma = sum(item.base in MMA for item in path.instructions)
    return max(1, round(mma / written_mma)) if written_mma else 1


def accesses_per_pass(ptx: str) -> tuple[int, int]:
    """Return tensor-core instructions and global accesses in the heaviest innermost loop of PTX;
    (0, 0) without one.

    The loops of PTX are not unrolled.
    """
    lines = ptx.splitlines()
    labels: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        label = re.match(r"\s*(\$L\w+):", line)
        if label:
            labels[label[1]] = number
        branch = re.search(r"\bbra(?:\.uni)?\s+(\$L\w+)", line)
        if branch and branch[1] in labels:
            spans.append((labels[branch[1]], number))
    counts = [(0, 0)]
    for start, end in spans:
        if not any(
            (start, end) != other and start <= other[0] and other[1] <= end for other in spans
        ):
            body = lines[start:end]
            counts.append(
                (
                    sum(map(bool, map(PTX_MMA.search, body))),
                    sum(map(bool, map(PTX_ACCESS.search, body))),
                )
            )
    return max(counts)
