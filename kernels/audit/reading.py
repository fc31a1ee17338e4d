"""Compiled kernels read back with the tools in Triton's own wheel.

The disassembler takes a fifth of a second to start and a hundredth for a kernel, so the code of many kernels is laid
end to end and read at once.
"""

import functools
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from kernels.audit import sass
from kernels.audit.errors import AuditError

WARP_SIZE = 32
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
PTX_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
PTX_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")
PTX_ACCESS = re.compile(r"\b(?:(?:ld|st)\.global|cp\.async\.c[ag]|cp\.async\.bulk\.(?:tensor|shared|global))\b")
PTX_MMA = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel as read back."""

    instructions: tuple[sass.Instruction, ...]
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    """Static and dynamic shared memory of one program."""
    threads: int
    """Threads of one program; more than 32 times `num_warps` where warps are specialized."""
    tensor_memory_columns: int
    target: str
    """What the code is for, `sm_90a`."""
    ptx: str


@functools.cache
def tool(name: str) -> Path:
    """Return the path of a tool in Triton's wheel.

    Raises:
        AuditError: It is not there.
    """
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise AuditError(f"Triton {triton.__version__} has no {name} in {path.parent}; install the wheel from PyPI")
    return path


def read_back(kernels: Sequence[Any]) -> list[Binary]:
    """Return what is in compiled kernels, in their order.

    Raises:
        AuditError: The tools cannot read one.
    """
    found: dict[int, Binary] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in {_target(compiled) for compiled in kernels}:
            numbers = [number for number, compiled in enumerate(kernels) if _target(compiled) == target]
            codes = [code_section(kernels[number].asm["cubin"]) for number in numbers]
            for number, listed in zip(numbers, _disassemble(codes, target, Path(folder)), strict=True):
                found[number] = _binary(kernels[number], listed, Path(folder))
    return [found[number] for number in range(len(kernels))]


def _target(compiled: Any) -> str:
    return PTX_TARGET.search(compiled.asm["ptx"])[1]


def _binary(compiled: Any, listed: Sequence[sass.Instruction], folder: Path) -> Binary:
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    usage = USAGE.search(_run("cuobjdump", "-res-usage", str(path)))
    if not usage:
        raise AuditError(f"cuobjdump lists no registers or shared memory for {compiled.metadata.name}")
    registers, stack, static_shared, local = map(int, usage.groups())
    threads = PTX_THREADS.search(compiled.asm["ptx"])
    return Binary(
        instructions=tuple(listed),
        registers=registers,
        stack_bytes=stack,
        local_bytes=local,
        shared_bytes=compiled.metadata.shared + static_shared,
        threads=int(threads[1]) if threads else WARP_SIZE * compiled.metadata.num_warps,
        tensor_memory_columns=getattr(compiled.metadata, "tmem_size", 0) or 0,
        target=_target(compiled),
        ptx=compiled.asm["ptx"],
    )


def _disassemble(codes: Sequence[bytes], target: str, folder: Path) -> list[list[sass.Instruction]]:
    path = folder / "code.bin"
    path.write_bytes(b"".join(codes))
    # Without a search for targets of indirect branches, which Triton's kernels do not have and raw code cannot tell.
    listed = sass.parse(_run("nvdisasm", "--no-dataflow", "--binary", target.replace("sm_", "SM"), str(path)))
    found, start = [], 0
    for code in codes:
        end = start + len(code)
        own = [item.moved(-start) for item in listed if start <= item.address < end]
        found.append(sass.without_padding(own))
        start = end
    return found


def _run(name: str, *arguments: str) -> str:
    done = subprocess.run([tool(name), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise AuditError(f"{name} {' '.join(arguments[:-1])} failed: {' '.join(done.stderr.split())[:200]}")
    return done.stdout


def code_section(cubin: bytes) -> bytes:
    """Return the machine code of the kernel in a cubin, an ELF file with one section `.text.<kernel>`.

    Source of the layout: Tool Interface Standard, "Executable and Linking Format", 64-bit headers.

    Raises:
        AuditError: There is no such section.
    """
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + number * size) for number in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if cubin[start : cubin.index(b"\0", start)].startswith(b".text."):
            return cubin[offset : offset + length]
    raise AuditError("the compiled kernel has no code")


def accesses_a_pass(ptx: str) -> tuple[int, int]:
    """Return tensor-core instructions and global accesses in the heaviest innermost loop of PTX; (0, 0) without one.

    PTX still has the loop as it was written, where the assembler may have unrolled it: the two together tell how often.
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
