"""The part of a kernel that takes its time, found from the branches in its machine code.

Where there is a loop that moves memory or feeds tensor cores, it is one pass of the heaviest innermost one: most
tensor-core instructions, then most bits moved. A loop that does neither counts only where no other does, it is no wait
for a barrier, and it is more than half of the code on the way from entry to exit. Where there is no loop it is the way
from entry to exit with the widest accesses: with blocks split into full and partial ones that is the full, unmasked
block. Among ways of equal accesses it is the shortest, which leaves slow paths out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.audit.sass import MMA, TMA, Instruction, count

ENDS = frozenset(("EXIT", "RET", "KILL", "BPT"))
WAITS = frozenset(("SYNCS", "NANOSLEEP", "DEPBAR", "UCGABAR_WAIT"))
RANKS = (TMA, 256, 128, 64, 32, 16, 8)  # widest access first
PTX_ACCESS = re.compile(r"\b(?:(?:ld|st)\.global|cp\.async\.c[ag]|cp\.async\.bulk\.(?:tensor|shared|global))\b")
PTX_MMA = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
TILE_BITS = 2**20  # an access by TMA outweighs any number of others


@dataclass(frozen=True)
class HotPath:
    """The instructions of one pass, in order, and whether they repeat."""

    instructions: tuple[Instruction, ...]
    is_loop: bool

    @property
    def count(self) -> int:
        """Instructions that are issued; a NOP is none."""
        return count(self.instructions)


def find(instructions: Sequence[Instruction]) -> HotPath:
    places = {item.address: place for place, item in enumerate(instructions)}
    loops = []
    for end, item in enumerate(instructions):
        start = places.get(item.target, end + 1)
        # A slow path behind the end of the kernel that leads back into it is no loop.
        if start <= end and not any(_is_end(between) for between in instructions[start:end]):
            loops.append((start, end))
    ways = {loop: _widest_way(instructions, places, *loop) for loop in loops}
    working = [loop for loop in loops if any(_traffic(ways[loop]))]
    innermost = [
        ways[start, end]
        for start, end in working
        if not any((start, end) != other and start <= other[0] and other[1] <= end for other in working)
    ]
    if innermost:
        return HotPath(max(innermost, key=_traffic), True)
    straight = _widest_way(instructions, places, 0, len(instructions) - 1)
    turning = [way for way in ways.values() if not any(item.base in WAITS for item in way)]
    longest = max(turning, key=count, default=())
    # The straight way goes through the body of a loop once.
    return HotPath(longest, True) if 2 * count(longest) > count(straight) else HotPath(straight, False)


def _is_end(item: Instruction) -> bool:
    return item.base in ENDS and not item.is_conditional


def _traffic(way: Sequence[Instruction]) -> tuple[int, int]:
    bits = sum(TILE_BITS if item.access[1] == TMA else item.access[1] for item in way if item.access)
    return sum(item.base in MMA for item in way), bits


def _widest_way(
    instructions: Sequence[Instruction], places: dict[int, int], start: int, end: int
) -> tuple[Instruction, ...]:
    """Return the instructions on the best way from `start` to `end` or to an exit, without going back."""
    best: dict[int, tuple[tuple[int, ...], int | None]] = {}
    for place in range(end, start - 1, -1):
        item = instructions[place]
        width = item.access[1] if item.access else None
        own = (int(item.base in MMA), *(int(width == one) for one in RANKS), -int(not item.is_padding))
        following = [] if item.base in ENDS | {"BRA", "JMP"} and not item.is_conditional else [place + 1]
        following.append(places.get(item.target, -1))
        options = [
            (tuple(a + b for a, b in zip(own, best[to][0], strict=True)), to)
            for to in following
            if to > place and to in best
        ]
        if place == end or item.base in ENDS:
            options.append((own, None))
        if options:
            best[place] = max(options, key=lambda option: option[0])
    way, at = [], start if start in best else None
    while at is not None:
        way.append(instructions[at])
        at = best[at][1]
    return tuple(way)


def passes(path: HotPath, ptx: str) -> int:
    """Return how many passes of the loop as written one pass of the machine code is: the assembler unrolls loops."""
    written_mma, written_accesses = accesses_a_pass(ptx) if path.is_loop else (0, 0)
    found_accesses = sum(item.access is not None for item in path.instructions)
    if written_accesses and found_accesses:
        return max(1, round(found_accesses / written_accesses))
    found_mma = sum(item.base in MMA for item in path.instructions)
    return max(1, round(found_mma / written_mma)) if written_mma else 1


def accesses_a_pass(ptx: str) -> tuple[int, int]:
    """Return tensor-core instructions and global accesses in the heaviest innermost loop of PTX; (0, 0) without one.

    PTX still has the loop as it was written.
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
    found = [(0, 0)]
    for start, end in spans:
        if not any((start, end) != other and start <= other[0] and other[1] <= end for other in spans):
            body = lines[start:end]
            found.append((sum(map(bool, map(PTX_MMA.search, body))), sum(map(bool, map(PTX_ACCESS.search, body)))))
    return max(found)
