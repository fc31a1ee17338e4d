"""The hot path of machine code written by hand."""

import pytest

from kernels.audit.hot_path import find
from kernels.audit.sass import Instruction


def code(before, loop, after, body="FADD", padding=0):
    """Return a kernel with a loop of `loop` instructions, of which the last one branches back."""
    opcodes = ["IADD3"] * before + [body] * (loop - 1) + ["BRA"] + ["IADD3"] * (after - 1)
    instructions = [
        Instruction(16 * index, opcode, "@P0" if opcode == "BRA" else "", "")
        for index, opcode in enumerate([*opcodes, "EXIT", *["NOP"] * padding])
    ]
    branch = before + loop - 1
    instructions[branch] = Instruction(16 * branch, "BRA", "@P0", f" {16 * before:#x}")
    return instructions


@pytest.mark.parametrize(
    ("before", "loop", "after", "is_loop"),
    [(2, 5, 3, False), (2, 6, 3, True), (0, 4, 5, False)],
)
def test_a_loop_without_accesses_is_hot_above_half(before, loop, after, is_loop):
    path = find(code(before, loop, after))
    assert path.is_loop is is_loop
    assert path.count == (loop if is_loop else before + loop + after)


def test_a_loop_with_accesses_is_hot_however_short():
    path = find(code(20, 2, 20, body="LDG.E.128"))
    assert (path.is_loop, [item.base for item in path.instructions]) == (True, ["LDG", "BRA"])


def test_a_loop_that_waits_is_not_hot():
    assert not find(code(1, 9, 1, body="NANOSLEEP")).is_loop
