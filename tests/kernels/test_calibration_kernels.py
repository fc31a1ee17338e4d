"""Calibration kernels as machine code: instructions counted, accesses 16 bytes wide, launches that fit.

What a ceiling kernel is said to do in a launch is checked against what the GPU would execute, for GPUs that need
not be here. Their results are checked in `interpreted/check_calibration.py`.
"""

import re

import pytest
import test_compile
import torch
from test_compile import ARCHES, WIDE_LOAD, WIDE_STORE, assert_lean, compile_ahead, disassemble
from test_launch import launches  # noqa: F401  the fixture: launches up to the driver, nothing is executed
from triton.backends.compiler import GPUTarget

from kernels.bandwidth import v1_tiles
from kernels.fma import v1_chains
from kernels.launch import INTERPRETED
from kernels.launch_floor import v1_empty

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

SM_COUNT = 132
NAMES = {torch.int32: "i32", **v1_chains.NAMES}
FMA_LANES = {"FFMA": 1, "DFMA": 1, "HFMA2": 2, "FFMA2": 2}
"""Fused multiply-adds of one instruction in one thread. Source: PTX ISA, fma.f32x2 and fma.f16x2."""
TILE_SHAPES = {(config.warps, config.accesses, config.policy): config for config in v1_tiles.configs(SM_COUNT)}
LARGEST_SHAPE, HINTED_SHAPE = (8, 8, "default"), (8, 4, "streaming")
FEWEST_CHAINS, MOST_CHAINS = (pick(config.chains for config in v1_chains.CONFIGS) for pick in (min, max))
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)\S*([^;]*);", re.MULTILINE)


@pytest.fixture(autouse=True)
def more_dtypes(monkeypatch):
    monkeypatch.setattr(test_compile, "DTYPES", NAMES)


def loops(listing):
    """The instructions of every loop, from the target of a backward branch to the branch."""
    instructions = [(int(address, 16), opcode, operands) for address, opcode, operands in INSTRUCTION.findall(listing)]
    found = []
    for address, opcode, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands)
        if opcode == "BRA" and target and int(target[1], 16) < address:  # the last BRA of all only jumps to itself
            found.append([name for at, name, _ in instructions if int(target[1], 16) <= at <= address])
    return found


def fma_count(opcodes):
    return sum(FMA_LANES.get(opcode, 0) for opcode in opcodes)


@pytest.mark.parametrize(
    ("dtype", "arch", "chains"),
    [
        *((dtype, arch, FEWEST_CHAINS) for dtype in v1_chains.NAMES for arch in ARCHES),
        (torch.float64, 90, MOST_CHAINS),  # needs most registers
    ],
    ids=str,
)
def test_declared_flops_are_those_of_the_machine_code(chains, dtype, arch, tmp_path):
    config = v1_chains.Config(8, chains, 1024)
    listing = disassemble(compile_ahead(v1_chains.variant(config), dtype, arch), tmp_path)
    assert_lean(re.sub(r"\bDFMA\b", "FMA64", listing))  # fp64 arithmetic is the point here
    [loop] = loops(listing)
    flops_per_thread = v1_chains.flops(config.block, iterations=1) / (32 * config.warps)
    assert 2 * fma_count(loop) == flops_per_thread
    assert fma_count(opcode for _, opcode, _ in INSTRUCTION.findall(listing)) == fma_count(loop)
    others = [opcode for opcode in loop if opcode not in FMA_LANES]
    assert len(others) <= 0.06 * len(loop), others
    assert len(loop) - len(others) >= 8 * v1_chains.UNROLL  # eight chains are left where one instruction takes two
    wide = chains * dtype.itemsize // 16
    assert (len(re.findall(WIDE_LOAD, listing)), len(re.findall(WIDE_STORE, listing))) == (wide, wide)


@pytest.mark.parametrize("dtype", v1_chains.NAMES, ids=str)
def test_chains_stay_small_and_never_settle(dtype):
    a, b = (value.double() for value in v1_chains.coefficients(dtype, "cpu"))
    assert (a.item(), b.item()) == v1_chains.COEFFICIENTS[dtype]  # exact in the dtype
    assert abs(a) < 1
    x = torch.rand(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype).double()
    for _ in range(5000):
        before, x = x, (a * x + b).to(dtype).double()
    assert x.abs().max() < 2
    assert ((x - before).abs() > 0.05).float().mean() > 0.8


@pytest.mark.parametrize(
    ("name", "shape", "arch"),
    [
        (name, shape, arch)
        for name in ("read", "write", "copy", "triad")
        for shape in TILE_SHAPES
        for arch in ARCHES
        # A compile costs time; triad and many accesses in flight need most registers.
        if shape == LARGEST_SHAPE or (arch == 90 and (name == "triad" or shape == HINTED_SHAPE))
    ],
    ids=str,
)
def test_every_access_of_a_tile_is_wide(name, shape, arch, tmp_path):
    config = TILE_SHAPES[shape]
    listing = disassemble(compile_ahead(v1_tiles.variant(name, config), torch.int32, arch), tmp_path)
    assert_lean(listing)
    loads, stores = {"read": (1, 0), "write": (0, 1), "copy": (1, 1), "triad": (2, 1)}[name]
    check_accesses(listing, config.accesses * loads, config.accesses * stores, narrow_stores=name == "read")
    if config.policy != "default":
        assert not re.search(r"(?:LDG|STG)\.E\.128", listing)  # each carries the hint
        assert re.search(r"(?:LDG|STG)\.E\.\w+\.128", listing)


def check_accesses(listing, loads, stores, narrow_stores):
    """Wide accesses alone; the compiler may have unrolled the loop, but has left out none."""
    found = {kind: re.findall(rf"\b{kind}\.\S+", listing) for kind in ("LDG", "STG")}
    wide = {kind: [access for access in found[kind] if ".128" in access] for kind in found}
    assert len(found["LDG"]) == len(wide["LDG"])
    assert len(found["STG"]) == len(wide["STG"]) + narrow_stores  # the one sum of a program
    for kind, count in (("LDG", loads), ("STG", stores)):
        assert len(wide[kind]) >= count
        assert not count or len(wide[kind]) % count == 0
        assert bool(wide[kind]) == bool(count)


@pytest.mark.parametrize(("arch", "accesses"), [(80, 8), (90, 8), (100, 8), (90, 4)], ids=str)
def test_cache_reads_pass_by_l1(accesses, arch, tmp_path):
    config = v1_tiles.Config(8, accesses, SM_COUNT)
    listing = disassemble(compile_ahead(v1_tiles.variant("cache-read", config), torch.int32, arch), tmp_path)
    assert_lean(listing)
    check_accesses(listing, accesses, 0, narrow_stores=True)
    assert all(".STRONG.GPU" in load for load in re.findall(r"\bLDG\.\S+", listing))  # how `.cg` is encoded


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
def test_the_empty_kernel_is_empty(arch, tmp_path):
    listing = disassemble(compile_ahead(v1_empty.VARIANT, torch.float32, arch), tmp_path)
    assert_lean(listing)
    opcodes = {opcode for _, opcode, _ in INSTRUCTION.findall(listing)}
    assert opcodes <= {"EXIT", "BRA", "NOP", "LDC", "IMAD", "MOV"}, opcodes  # one of the last three sets the stack up


def test_launches_pass_what_the_kernels_take(launches):  # noqa: F811
    config = v1_tiles.Config(8, 4, 3)
    x, y, out = (torch.zeros(7 * 3 * config.block, dtype=torch.int32) for _ in range(3))
    v1_tiles.read(x, out=out, config=config)
    v1_tiles.write(out=out, config=config)
    v1_tiles.copy(x, out=out, config=config)
    v1_tiles.triad(x, y, out=out, config=config)
    v1_tiles.cache_read(x, 1000, out=out, config=config)
    chains = v1_chains.Config(4, 16, 512)
    start = torch.zeros(5 * chains.block, dtype=torch.float64)
    v1_chains.launch(v1_chains.coefficients(torch.float64, "cpu"), start, 9, out=start, config=chains)
    v1_empty.launch(torch.zeros(1))
    assert [grid for grid, _ in launches] == [(3,)] * 5 + [(5,), (1,)]
    assert [compiled.metadata.num_warps for _, compiled in launches] == [8] * 5 + [4, 1]
    for _, compiled in launches:
        assert compiled.metadata.target == GPUTarget("cuda", 90, 32)
        pointers = [name for name in compiled.src.fn.arg_names if name.endswith("_ptr")]
        aligned = {compiled.src.fn.arg_names[path[0]] for path, known in compiled.src.attrs.items() if known}
        assert aligned >= set(pointers), compiled.src.fn.arg_names
    strided = [compiled.src.signature for _, compiled in launches[:5]]
    assert all(signature.get("steps") == "i32" for signature in strided)


def test_one_binary_serves_every_size(launches):  # noqa: F811
    config = v1_tiles.Config(4, 1)
    for tiles in (1, 16, 33):
        words = torch.zeros(tiles * config.block, dtype=torch.int32)
        v1_tiles.write(out=words, factor=tiles, config=config)
        v1_tiles.cache_read(words, tiles, out=words, config=v1_tiles.Config(4, 1, 16))
    assert len({compiled.hash for _, compiled in launches}) == 2


def test_words_in_host_memory_are_refused():
    words = torch.zeros(4096, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^write v1: out is on cpu; Triton needs a GPU, device 'cuda'$"):
        v1_tiles.write(out=words, config=v1_tiles.Config(4, 1))
    with pytest.raises(ValueError, match=r"^launch floor v1: x is on cpu"):
        v1_empty.launch(torch.zeros(1))


@pytest.mark.parametrize("words", [2**14, 2**20 + 3, 10**7])
@pytest.mark.parametrize("config", v1_tiles.configs(SM_COUNT), ids=lambda config: config.words)
def test_a_grid_covers_nearly_all_words_in_equal_shares(config, words):
    if words < config.block:
        with pytest.raises(ValueError, match=rf"{words} words; a tile of "):
            v1_tiles.grid(config, words)
        return
    programs, steps = v1_tiles.grid(config, words)
    covered = v1_tiles.covered(config, words)
    assert covered == programs * steps * config.block <= words
    assert words - covered < programs * config.block
    assert config.programs is None or programs <= config.programs


def test_the_chains_of_a_launch_fill_the_gpu_evenly():
    for config in v1_chains.CONFIGS:
        programs, rest = divmod(config.elements(SM_COUNT), config.block)
        assert rest == 0
        assert programs % SM_COUNT == 0
        assert programs * config.warps * 32 == SM_COUNT * config.threads_per_sm
        assert config.threads_per_sm <= 2048  # CUDA C++ Programming Guide: resident threads of an sm_80 or sm_90 SM


@pytest.mark.gpu
@pytest.mark.parametrize("config", v1_tiles.configs(SM_COUNT), ids=lambda config: config.words)
def test_tiles_on_a_gpu(config):
    count = v1_tiles.covered(config, 2**24 + 12345)
    x, y = (torch.randint(-(2**31), 2**31, (count,), device="cuda").to(torch.int32) for _ in range(2))
    out = torch.zeros_like(x)
    v1_tiles.copy(x, out=out, config=config)
    assert torch.equal(out, x)
    v1_tiles.triad(x, y, out=out, factor=3, config=config)
    assert torch.equal(out, x + 3 * y)
    v1_tiles.write(out=out, factor=7, config=config)
    assert torch.equal(out, 7 * torch.arange(count, device="cuda", dtype=torch.int32))
    sums = torch.zeros_like(x)
    v1_tiles.read(x, out=sums, config=config)
    assert (int(sums.long().sum()) - int(x.long().sum())) % 2**32 == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", v1_chains.NAMES, ids=str)
def test_chains_on_a_gpu(dtype):
    config = v1_chains.Config(8, 16, 1024)
    x = torch.arange(config.elements(2), device="cuda").remainder(8).to(dtype)
    out = torch.zeros_like(x)
    v1_chains.launch(torch.ones(2, dtype=dtype, device="cuda"), x, 2, out=out, config=config)
    assert torch.equal(out, x + 2 * v1_chains.UNROLL)  # at most 71, exact in every dtype
