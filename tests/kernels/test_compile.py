"""Kernels compiled ahead of time for GPUs that need not be here, and read back as machine code.

Asserted for sm_80, sm_90 and sm_100, all from the tools in Triton's own wheel: a binary comes out, no register
is spilled, no stack is used, no fp64 arithmetic slips in, and the path of full blocks reads and writes 16
bytes at a time, although nothing is known of the number of elements.
"""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
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
