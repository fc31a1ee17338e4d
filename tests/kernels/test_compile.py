"""Kernels compiled ahead of time for GPUs that need not be here, and read back as machine code.

Asserted for sm_80, sm_90 and sm_100, all from the tools in Triton's own wheel: a binary comes out, no register
is spilled, no stack is used, no fp64 arithmetic slips in, and the path of full blocks reads and writes 16
bytes at a time, although nothing is known of the number of elements.
"""

import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED
from kernels.matvec import v1_rows

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
VARIANTS = v1_rows.VARIANTS
ARCHES = [80, 90, 100]
WIDE_LOAD = r"\b(?:LDG|LDGSTS)\.E\S*\.128\b"  # straight to registers, or through shared memory in a pipelined loop
WIDE_STORE = r"\bSTG\.E\S*\.128\b"


def compile_ahead(variant, dtype, arch, integers="i32", aligned_sizes=True):
    """Compile as a launch would: aligned pointers, and sizes known to be multiples of 16 only if specialized."""
    signature, attrs = {}, {}
    for index, parameter in enumerate(variant.kernel.params):
        is_pointer = parameter.name.endswith("_ptr")
        if parameter.name in variant.constants:
            signature[parameter.name] = "constexpr"
            continue
        default = f"*{DTYPES[dtype]}" if is_pointer else integers
        signature[parameter.name] = variant.types.get(parameter.name, default)
        if is_pointer or (aligned_sizes and not parameter.do_not_specialize):
            attrs[(index,)] = [["tt.divisibility", ALIGNMENT_BYTES]]
    source = ASTSource(fn=variant.kernel, signature=signature, constexprs=dict(variant.constants), attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(variant.options))


def disassemble(compiled, folder):
    """Return the resource usage and the instructions of a compiled kernel."""
    cubin = folder / "kernel.cubin"
    assert compiled.asm["cubin"]
    cubin.write_bytes(compiled.asm["cubin"])
    done = subprocess.run([CUOBJDUMP, "-res-usage", "-sass", cubin], capture_output=True, text=True, check=True)
    return done.stdout


def assert_lean(listing):
    """No spill, no stack, no fp64 arithmetic."""
    usage = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", listing)
    assert len(usage) == 1, listing[:2000]
    registers, stack, local = map(int, usage[0])
    assert registers > 0
    assert (stack, local) == (0, 0)
    assert "EXIT" in listing
    assert not re.search(r"\b(?:LDL|STL|DADD|DMUL|DFMA|DSETP)\b", listing)


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize(("op", "dtype"), VARIANTS, ids=str)
def test_lean_and_wide(op, dtype, arch, tmp_path):
    variant = VARIANTS[op, dtype]
    listing = disassemble(compile_ahead(variant, dtype, arch), tmp_path)
    assert_lean(listing)
    a_bytes_a_step = v1_rows.ROWS * v1_rows.BLOCK_ROW_BYTES
    loads_a_step = a_bytes_a_step // (32 * variant.options["num_warps"] * ALIGNMENT_BYTES)
    assert len(re.findall(WIDE_LOAD, listing)) >= loads_a_step


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["matvec"])
def test_odd_row_lengths_stay_lean(op, dtype, arch, tmp_path):
    listing = disassemble(compile_ahead(VARIANTS[op, dtype], dtype, arch, aligned_sizes=False), tmp_path)
    assert_lean(listing)


@pytest.mark.parametrize(("op", "dtype"), [key for key in VARIANTS if key[1] is torch.bfloat16], ids=str)
def test_sizes_beyond_32_bits(op, dtype, tmp_path):
    variant = VARIANTS[op, dtype]
    listing = disassemble(compile_ahead(variant, dtype, 90, integers="i64"), tmp_path)
    assert_lean(listing)
    assert re.search(WIDE_LOAD, listing)


@pytest.mark.parametrize(("op", "dtype"), [key for key in VARIANTS if key[1] is torch.bfloat16], ids=str)
def test_program_number_is_widened_before_any_arithmetic(op, dtype):
    ir = compile_ahead(VARIANTS[op, dtype], dtype, 90).asm["ttir"]
    [program] = re.findall(r"(%\w+) = tt\.get_program_id x", ir)
    uses = [line for line in ir.splitlines() if re.search(rf"= .*{program}\b(?!\s*=)", line)]
    assert uses
    assert all(f"arith.extsi {program} : i32 to i64" in line for line in uses), uses


def test_matvec_loop_is_pipelined():
    stages = VARIANTS["matvec", torch.bfloat16].constants["STAGES"]
    ir = compile_ahead(VARIANTS["matvec", torch.bfloat16], torch.bfloat16, 90).asm["ttgir"]
    assert f"memdesc<{stages - 1}x{v1_rows.ROWS}x" in ir  # one buffer for each step loaded ahead of its use
