"""Occupancy of a multiprocessor, and the instructions that it can issue per element of memory
traffic.

GPU data come from the TOML files in `roofline/gpus`; `kernels` imports nothing from `roofline`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from results.show.facts import facts_of

GPU_FILES = Path(__file__).resolve().parents[2] / "roofline" / "gpus"

LANES_PER_CLOCK = 128
"""Threads for which a multiprocessor issues an instruction per clock: four schedulers with a warp
of 32, from sm_80 to sm_120. Source: CUDA C++ Programming Guide, "Compute Capabilities",
Architecture."""

WARP_SIZE = 32
MAX_PROGRAM_THREADS = 1024
REGISTERS = 2**16  # per multiprocessor
REGISTER_UNIT = 256  # registers are allocated to a warp in units of this size
WARP_UNIT = (
    4  # warps are spread evenly over the four schedulers, each with a quarter of the registers
)
SHARED_UNIT_BYTES = 128
SHARED_RESERVED_BYTES = 1024  # per program, for the system
TENSOR_MEMORY_COLUMNS = 512


@dataclass(frozen=True)
class Multiprocessor:
    """Shared resources. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute
    Capability".
    """

    gpu: str
    """Slug of the GPU whose clock and bandwidth represent the architecture."""
    warps: int
    programs: int
    shared_bytes: int


MULTIPROCESSORS = {
    80: Multiprocessor("a100-sxm-80gb", 64, 32, 164 * 1024),
    86: Multiprocessor("rtx-a6000", 48, 16, 100 * 1024),
    89: Multiprocessor("l40s", 48, 24, 100 * 1024),
    90: Multiprocessor("h100-sxm", 64, 32, 228 * 1024),
    100: Multiprocessor("b200-sxm", 64, 32, 228 * 1024),
    120: Multiprocessor("rtx-5090", 48, 24, 100 * 1024),
}
"""Multiprocessors by architecture, 90 for sm_90."""


def programs_by(
    arch: int, registers: int, shared_bytes: int, threads: int, columns: int = 0
) -> dict[str, int]:
    """Return the number of programs that fit on a multiprocessor, by resource.

        threads          min(P, W // w) for w = ceil(threads / 32)
        registers        4 floor(R / 4 / up(32 registers, 256)) // w
        shared memory    S // up(shared + 1024, 128)
        tensor memory    512 // columns, on sm_100

    P, W, S are programs, warps and shared memory of the multiprocessor, R its 65,536 registers,
    up(a, b) the next multiple of b. Warp-specialized kernels may reallocate registers at run time,
    which is not modeled.
    Source: CUDA Occupancy Calculator, as in `cuda_occupancy.h` of the CUDA Toolkit; tensor memory:
    PTX ISA, tcgen05.

    Registers are those of a thread; shared memory, threads and columns of tensor memory those of a
    program.
    """
    machine = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP_SIZE)
    warp_registers = _up(WARP_SIZE * max(registers, 1), REGISTER_UNIT)
    return {
        "threads": min(machine.programs, machine.warps // warps)
        if threads <= MAX_PROGRAM_THREADS
        else 0,
        "registers": REGISTERS // WARP_UNIT // warp_registers * WARP_UNIT // warps,
        "shared memory": machine.shared_bytes
        // _up(shared_bytes + SHARED_RESERVED_BYTES, SHARED_UNIT_BYTES),
        "tensor memory": TENSOR_MEMORY_COLUMNS // columns if columns else machine.programs,
    }


def occupancy(fitting: dict[str, int], arch: int, threads: int) -> float:
    """Return the warps that can be resident on a multiprocessor, as a fraction of the maximum; 0 if
    no program fits.
    """
    return min(fitting.values()) * -(-threads // WARP_SIZE) / MULTIPROCESSORS[arch].warps


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@functools.cache
def _facts(slug: str) -> dict[str, float]:
    return facts_of(GPU_FILES / f"{slug}.toml")


def issue_budget(arch: int, bytes_an_element: float) -> float:
    """Return the instructions per element that can be issued in the time of its memory traffic.

        sm_count x 128 x boost clock / (bandwidth / bytes_an_element)

    Clock and bandwidth are those of the datasheet. At 3.0 TB/s, which the best copies reach on an
    H100, the budget is 12 % larger.
    """
    gpu = _facts(MULTIPROCESSORS[arch].gpu)
    issued_per_s = gpu["sm_count"] * LANES_PER_CLOCK * gpu["boost_clock_hz"]
    return issued_per_s * bytes_an_element / gpu["memory_bandwidth_bytes_per_s"]
