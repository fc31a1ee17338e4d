"""The part of a kernel that takes its time, found from the control flow of its machine code.

Where there is a loop that moves memory or feeds tensor cores, it is the body of the heaviest innermost one: most
tensor-core instructions, then most bits moved. A loop that does neither counts only where no other does, it is no wait
for a barrier, and it is more than half of the code on the way from entry to exit. Where there is no loop it is the way
from entry to exit with the widest accesses: with blocks split into full and partial ones that is the full, unmasked
block. Among ways of equal accesses it is the shortest, which leaves slow paths out.

Loops are found as natural loops of the control-flow graph. Source: Aho, Lam, Sethi and Ullman, "Compilers", 2nd ed.,
section 9.6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.audit.sass import MMA, TMA, Instruction, count

TERMINATORS = frozenset(("BRA", "JMP", "BRX", "JMX", "EXIT", "RET", "KILL", "BPT"))
WAITS = frozenset(("SYNCS", "NANOSLEEP", "DEPBAR", "UCGABAR_WAIT"))
RANKS = (TMA, 256, 128, 64, 32, 16, 8)  # widest access first
TILE_BITS = 2**20  # an access by TMA outweighs any number of others

Edges = dict[int, list[int]]
Score = tuple[int, ...]


@dataclass(frozen=True)
class HotPath:
    """The instructions of one pass, in order, and whether they repeat."""

    instructions: tuple[Instruction, ...]
    is_loop: bool

    @property
    def count(self) -> int:
        """Instructions that are issued; a NOP is none."""
        return count(self.instructions)


@dataclass(frozen=True)
class Graph:
    """Basic blocks in the order of their addresses, and which may follow which."""

    blocks: tuple[tuple[Instruction, ...], ...]
    successors: Edges


def control_flow(instructions: Sequence[Instruction]) -> Graph:
    """Cut instructions into basic blocks: at targets of branches, and behind branches and exits."""
    starts = {instructions[0].address} | {item.target for item in instructions if item.target is not None}
    blocks: list[list[Instruction]] = []
    ended = True
    for item in instructions:
        if ended or item.address in starts:
            blocks.append([])
        blocks[-1].append(item)
        ended = item.base in TERMINATORS
    numbers = {block[0].address: number for number, block in enumerate(blocks)}
    successors: Edges = {}
    for number, block in enumerate(blocks):
        last = block[-1]
        follows = last.base not in TERMINATORS or last.is_conditional
        next_ones = [number + 1] if follows and number + 1 < len(blocks) else []
        if last.target in numbers:
            next_ones.append(numbers[last.target])
        successors[number] = next_ones
    return Graph(tuple(map(tuple, blocks)), successors)


def back_edges(graph: Graph) -> set[tuple[int, int]]:
    """Return the edges that lead back to a block on the way to them, from the entry on."""
    found, done, on_way = set(), set(), [0]
    stack = [iter(graph.successors[0])]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            done.add(on_way.pop())
            stack.pop()
        elif step in on_way:
            found.add((on_way[-1], step))
        elif step not in done:
            on_way.append(step)
            stack.append(iter(graph.successors[step]))
    return found


def loops(graph: Graph, back: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return the blocks of each natural loop by its header."""
    before: Edges = {number: [] for number in graph.successors}
    for number, next_ones in graph.successors.items():
        for following in next_ones:
            before[following].append(number)
    found: dict[int, set[int]] = {}
    for latch, header in back:
        body = found.setdefault(header, {header})
        waiting = [latch]
        while waiting:
            number = waiting.pop()
            if number not in body:
                body.add(number)
                waiting += before[number]
    return found


def find(instructions: Sequence[Instruction]) -> HotPath:
    """Return the hot path of a kernel."""
    graph = control_flow(instructions)
    back = back_edges(graph)
    bodies = loops(graph, back)
    candidates = {
        header: _widest_way(graph, back, body, header, {latch for latch, to in back if to == header})
        for header, body in bodies.items()
    }
    working = {header: way for header, way in candidates.items() if any(_traffic(way))}
    innermost = [
        way
        for header, way in working.items()
        if not any(other != header and other in bodies[header] for other in working)
    ]
    if innermost:
        return HotPath(max(innermost, key=_traffic), True)
    ends = {number for number, block in enumerate(graph.blocks) if block[-1].base in TERMINATORS - {"BRA", "JMP"}}
    straight = _widest_way(graph, back, set(graph.successors), 0, ends)
    turning = [way for way in candidates.values() if not any(item.base in WAITS for item in way)]
    longest = max(turning, key=count, default=())
    # The straight way goes through the body of a loop once.
    return HotPath(longest, True) if 2 * count(longest) > count(straight) else HotPath(straight, False)


def _traffic(way: Iterable[Instruction]) -> tuple[int, int]:
    way = tuple(way)
    bits = sum(TILE_BITS if item.access[1] == TMA else item.access[1] for item in way if item.access)
    return sum(item.base in MMA for item in way), bits


def _score(block: Sequence[Instruction]) -> Score:
    found = [item.access[1] for item in block if item.access]
    return (sum(item.base in MMA for item in block), *(found.count(width) for width in RANKS), -count(block))


def _widest_way(
    graph: Graph, back: set[tuple[int, int]], inside: set[int], start: int, ends: set[int]
) -> tuple[Instruction, ...]:
    """Return the instructions on the best way from `start` to one of `ends`, without going back."""
    best: dict[int, tuple[Score, int | None]] = {}
    for number in _last_first(graph, back, inside, start):
        own = _score(graph.blocks[number])
        options: list[tuple[Score, int | None]] = [(own, None)] if number in ends else []
        for following in graph.successors[number]:
            if following in best and (number, following) not in back:
                score = tuple(a + b for a, b in zip(own, best[following][0], strict=True))
                options.append((score, following))
        if options:
            best[number] = max(options, key=lambda option: option[0])
    way: list[Instruction] = []
    at: int | None = start
    while at is not None and at in best:
        way += graph.blocks[at]
        at = best[at][1]
    return tuple(way)


def _last_first(graph: Graph, back: set[tuple[int, int]], inside: set[int], start: int) -> list[int]:
    """Return the blocks that can be reached from `start`, each behind all that follow it."""
    order: list[int] = []
    seen, stack = {start}, [(start, iter(graph.successors[start]))]
    while stack:
        number, rest = stack[-1]
        for following in rest:
            if following in inside and following not in seen and (number, following) not in back:
                seen.add(following)
                stack.append((following, iter(graph.successors[following])))
                break
        else:
            order.append(number)
            stack.pop()
    return order
