"""How many programs fit on a multiprocessor, and how many instructions it issues while memory moves an element.

GPU facts come from the data files in `roofline/gpus`, read as data: `kernels` imports nothing of `roofline`.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

GPU_FILES = Path(__file__).resolve().parents[2] / "roofline" / "gpus"

LANES_A_CLOCK = 128
"""Threads a multiprocessor issues an instruction for in one clock: four schedulers, a warp of 32 each, from sm_80 to
sm_120. Source: CUDA C++ Programming Guide, "Compute Capabilities", Architecture."""

WARP_SIZE = 32
PROGRAM_THREADS = 1024  # the most of one program
REGISTERS = 2**16  # of a multiprocessor
REGISTER_UNIT = 256  # registers are given to a warp in units of this size
WARP_UNIT = 4  # warps are spread evenly over the four schedulers, each with a quarter of the registers
SHARED_UNIT_BYTES = 128
SHARED_RESERVED_BYTES = 1024  # of each program, for the system
TENSOR_MEMORY_COLUMNS = 512


@dataclass(frozen=True)
class Multiprocessor:
    """What programs share. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    gpu: str
    """Slug of the GPU whose clock and bandwidth stand for the architecture."""
    warps: int
    programs: int
    shared_bytes: int
    """Of all programs together."""


MULTIPROCESSORS = {
    80: Multiprocessor("a100-sxm-80gb", 64, 32, 164 * 1024),
    86: Multiprocessor("rtx-a6000", 48, 16, 100 * 1024),
    89: Multiprocessor("l40s", 48, 24, 100 * 1024),
    90: Multiprocessor("h100-sxm", 64, 32, 228 * 1024),
    100: Multiprocessor("b200-sxm", 64, 32, 228 * 1024),
    120: Multiprocessor("rtx-5090", 48, 24, 100 * 1024),
}
"""By architecture, 90 for sm_90."""


def programs_by(arch: int, registers: int, shared_bytes: int, threads: int, columns: int = 0) -> dict[str, int]:
    """Return the programs that fit on a multiprocessor by each of its resources.

        threads          min(P, W // w) for w = ceil(threads / 32)
        registers        4 floor(R / 4 / up(32 registers, 256)) // w
        shared memory    S // up(shared + 1024, 128)
        tensor memory    512 // columns, on sm_100

    P, W, S are programs, warps and shared memory of the multiprocessor, R its 65,536 registers, up(a, b) the next
    multiple of b. Warps of specialized kernels may trade registers at run time, which is not seen here.
    Source: CUDA Occupancy Calculator, as in `cuda_occupancy.h` of the CUDA Toolkit; tensor memory: PTX ISA, tcgen05.

    Registers are those of a thread; shared memory, threads and columns of tensor memory those of a program.
    """
    machine = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP_SIZE)
    warp_registers = _up(WARP_SIZE * max(registers, 1), REGISTER_UNIT)
    return {
        "threads": min(machine.programs, machine.warps // warps) if threads <= PROGRAM_THREADS else 0,
        "registers": REGISTERS // WARP_UNIT // warp_registers * WARP_UNIT // warps,
        "shared memory": machine.shared_bytes // _up(shared_bytes + SHARED_RESERVED_BYTES, SHARED_UNIT_BYTES),
        "tensor memory": TENSOR_MEMORY_COLUMNS // columns if columns else machine.programs,
    }


def occupancy(fitting: dict[str, int], arch: int, threads: int) -> float:
    """Return the warps that can be resident on a multiprocessor, as a fraction of its most; 0 if no program fits."""
    return min(fitting.values()) * -(-threads // WARP_SIZE) / MULTIPROCESSORS[arch].warps


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@functools.cache
def _facts(slug: str) -> dict[str, float]:
    return tomllib.loads((GPU_FILES / f"{slug}.toml").read_text(encoding="utf-8"))


def issue_budget(arch: int, bytes_an_element: float) -> float:
    """Return the instructions per element that can be issued while memory moves the element.

        sm_count x 128 x boost clock / (bandwidth / bytes_an_element)

    With the datasheet's clock and bandwidth; at 3.0 TB/s, what the best copies reach on an H100, it is 12 % more.
    """
    gpu = _facts(MULTIPROCESSORS[arch].gpu)
    issued_per_s = gpu["sm_count"] * LANES_A_CLOCK * gpu["boost_clock_hz"]
    return issued_per_s * bytes_an_element / gpu["memory_bandwidth_bytes_per_s"]
