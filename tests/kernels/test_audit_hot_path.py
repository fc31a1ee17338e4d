"""Where a kernel spends its time, found in pieces of machine code as the disassembler lists them."""

import pytest

from kernels.audit import hot_path, sass


def listed(text):
    """Instructions of a piece of machine code, 16 bytes each from address 0; a line may begin with a label."""
    lines = [line.strip() for line in text.strip().splitlines()]
    labels = {line.partition(":")[0]: f"{16 * at:#x}" for at, line in enumerate(lines) if ":" in line}
    rows = []
    for at, line in enumerate(lines):
        for label, address in labels.items():
            line = line.replace(f"{label}:", "").replace(label, address)
        rows.append(f"        /*{16 * at:04x}*/         {line.strip()} ;     /* 0x000fe200078e00ff */")
    return sass.parse("\n".join(rows))


SPLIT_TAIL = """
    S2R R0, SR_TID.X
    ISETP.GT.AND P0, PT, R4, UR6, PT
    @!P0 BRA FULL
    @P1 LDG.E.U16 R1, desc[UR4][R2.64]
    @P2 LDG.E.U16 R2, desc[UR4][R2.64+0x2]
    @P1 STG.E.U16 desc[UR4][R4.64], R1
    @!P2 EXIT
    STG.E.U16 desc[UR4][R4.64+0x2], R2
    EXIT
    FULL: LDG.E.128 R8, desc[UR4][R2.64]
    NOP
    STG.E.128 desc[UR4][R4.64], R8
    EXIT
    TRAP: BRA TRAP
    NOP
"""

LOOP = """
    S2R R0, SR_TID.X
    WAIT: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
    @!P0 BRA WAIT
    LDG.E.128 R40, desc[UR4][R2.64]
    LDG.E.128 R44, desc[UR4][R2.64]
    OUTER: LDG.E R60, desc[UR4][R2.64]
    INNER: LDGSTS.E.BYPASS.128 [R37], desc[UR14][R2.64], P3
    LDGSTS.E.BYPASS.LTC128B.64 [R37], desc[UR14][R2.64], P3
    @P3 BRA SLOW
    BACK: FADD R0, R1, R2
    BRA.U !UP0, INNER
    @P1 BRA OUTER
    STG.E desc[UR4][R4.64], R8
    EXIT
    SLOW: FMUL R0, R1, R2
    FMUL R0, R1, R2
    BRA BACK
"""

SPIN_IN_LOOP = """
    OUTER: UTMALDG.2D [UR8], [UR4]
    WAIT: SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
    @!P0 BRA WAIT
    HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24
    @P1 BRA OUTER
    UTMASTG.2D [UR8], [UR4]
    EXIT
"""

ARITHMETIC = """
    LDG.E.128 R8, desc[UR4][R2.64]
    TOP: FFMA R1, R1, R2, R3
    FFMA R1, R1, R2, R3
    FFMA R1, R1, R2, R3
    FFMA R1, R1, R2, R3
    @P0 BRA TOP
    STG.E.128 desc[UR4][R4.64], R8
    EXIT
"""


def opcodes(path):
    return [item.opcode for item in path.instructions]


def test_a_split_tail_leaves_the_full_block():
    path = hot_path.find(listed(SPLIT_TAIL))
    assert not path.is_loop
    assert opcodes(path) == ["S2R", "ISETP.GT.AND", "BRA", "LDG.E.128", "NOP", "STG.E.128", "EXIT"]
    assert path.count == 6  # without the NOP
    assert sass.count(listed(SPLIT_TAIL)) == 12  # without padding and the trap behind the end


def test_the_innermost_loop_with_traffic_wins_and_a_slow_path_is_left_out():
    path = hot_path.find(listed(LOOP))
    assert path.is_loop
    assert [item.base for item in path.instructions] == ["LDGSTS", "LDGSTS", "BRA", "FADD", "BRA"]
    assert sass.widths(path.instructions, "load") == {128: 1, 64: 1}
    assert sass.main_width(sass.widths(path.instructions, "load")) == 128


def test_a_wait_inside_a_loop_is_not_the_loop():
    path = hot_path.find(listed(SPIN_IN_LOOP))
    assert path.is_loop
    assert [item.base for item in path.instructions] == ["UTMALDG", "SYNCS", "BRA", "HGMMA", "BRA"]
    assert sass.mma_kind(path.instructions) == "HGMMA"
    assert sass.main_width(sass.widths(path.instructions, "load")) == sass.TMA
    assert sass.widths(listed(SPIN_IN_LOOP), "store") == {sass.TMA: 1}


def test_a_loop_of_arithmetic_counts_where_nothing_else_loops():
    path = hot_path.find(listed(ARITHMETIC))
    assert path.is_loop
    assert opcodes(path) == ["FFMA"] * 4 + ["BRA"]


@pytest.mark.parametrize(
    ("text", "access"),
    [
        ("LDG.E.128 R8, desc[UR4][R2.64]", ("load", 128)),
        ("@P0 LDG.E.EF.64 R8, desc[UR4][R2.64]", ("load", 64)),
        ("LDG.E.U16.CONSTANT R8, desc[UR4][R2.64]", ("load", 16)),
        ("LDG.E.U8 R8, desc[UR4][R2.64]", ("load", 8)),
        ("LDG.E R8, desc[UR4][R2.64]", ("load", 32)),
        ("LDG.E.ENL2.256 R8, R12, desc[UR4][R2.64]", ("load", 256)),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R1], [R2.64]", ("load", 128)),
        ("UBLKCP.S.G [UR8], [UR4], UR6", ("load", "tma")),
        ("STG.E.64 desc[UR4][R2.64], R8", ("store", 64)),
        ("LDS.128 R8, [R2]", None),
        ("STL.64 [R1], R8", None),
    ],
)
def test_widths_of_accesses(text, access):
    [item] = listed(text)
    assert item.access == access


def test_spills_and_double_precision_are_seen():
    items = listed(
        "STL.64 [R1], R8\nLDL R8, [R1]\nDADD R2, R2, R4\nF2F.F64.F32 R2, R4\nMUFU.RCP64H R3, R5\nFADD R2, R2, R4"
    )
    assert [item.spill_bytes for item in items] == [8, 4, 0, 0, 0, 0]
    assert [item.is_double for item in items] == [False, False, True, True, True, False]


PTX = """
$L__BB0_1:
    ld.global.b32 { %r1 }, [ %rd1 + 0 ];
$L__BB0_2:
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10;
    cp.async.commit_group;
    cp.async.bulk.wait_group.read 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [ %r1 ], [ %rd1, {%r2, %r3} ], [ %r4 ];
    @%p2 bra $L__BB0_2;
    @%p3 bra $L__BB0_1;
    st.global.b32 [ %rd1 + 0 ], { %r1 };
"""


def test_accesses_of_the_loop_as_written():
    assert hot_path.accesses_a_pass(PTX) == (0, 3)
    assert hot_path.accesses_a_pass("ld.global.b32 { %r1 }, [ %rd1 + 0 ];") == (0, 0)
    loop = "$L__BB0_1:\n wgmma.mma_async.sync.aligned.m64n8k16 x;\n @%p1 bra $L__BB0_1;"
    assert hot_path.accesses_a_pass(loop) == (1, 0)
