"""Limits of a GPU other than its memory: how many programs fit on a multiprocessor, and how many instructions it
issues.

GPU facts come from the data files in `roofline/gpus`, read as data: `kernels` stands below `roofline` and imports
nothing of it.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from kernels.audit.errors import AuditError
from results.show.spelling import did_you_mean

GPU_FILES = Path(__file__).resolve().parents[2] / "roofline" / "gpus"
DEFAULT_GPUS = {
    80: "a100-sxm-80gb",
    86: "rtx-a6000",
    89: "l40s",
    90: "h100-sxm",
    100: "b200-sxm",
    120: "rtx-5090",
}
"""The GPU that stands for an architecture."""

LANES_A_CLOCK = 128
"""Threads a multiprocessor issues an instruction for in one clock: four schedulers, a warp of 32 each, from sm_80 to
sm_120. Source: CUDA C++ Programming Guide, "Compute Capabilities", Architecture."""

WARP_SIZE = 32
PROGRAM_THREADS = 1024  # the most of one program
REGISTERS = 2**16  # of a multiprocessor
REGISTER_UNIT = 256  # registers are given to a warp in units of so many
WARP_UNIT = 4  # warps are spread evenly over the four schedulers, each with a quarter of the registers
SHARED_UNIT_BYTES = 128
SHARED_RESERVED_BYTES = 1024  # of each program, for the system
TENSOR_MEMORY_COLUMNS = 512


@dataclass(frozen=True)
class Multiprocessor:
    """What programs share. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    warps: int
    programs: int
    shared_bytes: int
    """Of all programs together."""


MULTIPROCESSORS = {
    80: Multiprocessor(64, 32, 164 * 1024),
    86: Multiprocessor(48, 16, 100 * 1024),
    89: Multiprocessor(48, 24, 100 * 1024),
    90: Multiprocessor(64, 32, 228 * 1024),
    100: Multiprocessor(64, 32, 228 * 1024),
    120: Multiprocessor(48, 24, 100 * 1024),
}


def programs_by(
    arch: int, registers: int, shared_bytes: int, threads: int, tensor_memory_columns: int = 0
) -> dict[str, int]:
    """Return the programs that fit on a multiprocessor by each of its resources.

        by threads           min(P, W // w) for w = ceil(threads / 32)
        by registers         4 floor(R / 4 / up(32 registers, 256)) // w
        by shared memory     S // up(shared + 1024, 128)
        by tensor memory     512 // columns, on sm_100

    P, W, S are programs, warps and shared memory of the multiprocessor, R its 65,536 registers, up(a, b) the next
    multiple of b. Warps of specialized kernels may trade registers at run time, which is not seen here.
    Source: CUDA Occupancy Calculator, as in `cuda_occupancy.h` of the CUDA Toolkit; tensor memory: PTX ISA, tcgen05.

    Args:
        arch: A key of `MULTIPROCESSORS`.
        registers: Of one thread.
        shared_bytes: Of one program, static and dynamic.
        threads: Of one program.
        tensor_memory_columns: Of one program.
    """
    machine = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP_SIZE)
    warp_registers = _up(WARP_SIZE * max(registers, 1), REGISTER_UNIT)
    by_threads = min(machine.programs, machine.warps // warps) if threads <= PROGRAM_THREADS else 0
    by_tensor = TENSOR_MEMORY_COLUMNS // tensor_memory_columns if tensor_memory_columns else machine.programs
    return {
        f"{threads:,} threads": by_threads,
        f"{registers} registers x {threads:,} threads": REGISTERS // WARP_UNIT // warp_registers * WARP_UNIT // warps,
        f"{shared_bytes:,} bytes of shared memory": machine.shared_bytes
        // _up(shared_bytes + SHARED_RESERVED_BYTES, SHARED_UNIT_BYTES),
        f"{tensor_memory_columns} columns of tensor memory": by_tensor,
    }


def occupancy(fitting: dict[str, int], arch: int, threads: int) -> float:
    """Return the warps that can be resident on a multiprocessor, as a fraction of its most; 0 where no program fits."""
    return min(fitting.values()) * -(-threads // WARP_SIZE) / MULTIPROCESSORS[arch].warps


def obstacle(fitting: dict[str, int], arch: int) -> str | None:
    """Return why not one program fits on a multiprocessor, None where one does."""
    needs = [need for need, programs in fitting.items() if not programs]
    return f"a program needs {' and '.join(needs)}, more than sm_{arch} has" if needs else None


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class GpuLimits:
    """What the issue budget needs of a GPU."""

    slug: str
    arch: int
    sm_count: int
    clock_hz: int
    """Boost clock of the datasheet."""
    bandwidth_bytes_per_s: int

    def issue_budget(self, bytes_an_element: float) -> float:
        """Return the instructions per element that can be issued while memory moves the element.

            sm_count x 128 x clock / (bandwidth / bytes_an_element)

        With the datasheet's clock and bandwidth; at 3.0 TB/s, what the best copies reach on an H100, it is 12 % more.
        """
        return self.sm_count * LANES_A_CLOCK * self.clock_hz * bytes_an_element / self.bandwidth_bytes_per_s


@functools.cache
def gpu(slug: str) -> GpuLimits:
    """Return a GPU of the table by its slug.

    Raises:
        AuditError: There is none of that name, or no kernel here can be compiled for it.
    """
    known = sorted(file.stem for file in GPU_FILES.glob("*.toml"))
    if slug not in known:
        hint = did_you_mean(slug, known) or f"allowed are {', '.join(known)}"
        raise AuditError(f"unknown GPU '{slug}'; {hint}")
    facts = tomllib.loads((GPU_FILES / f"{slug}.toml").read_text(encoding="utf-8"))
    capability = str(facts.get("compute_capability", "")).replace(".", "")
    if facts["vendor"] != "nvidia" or not capability.isdigit() or int(capability) not in MULTIPROCESSORS:
        arches = ", ".join(f"sm_{arch}" for arch in MULTIPROCESSORS)
        raise AuditError(f"GPU '{slug}' is of another architecture than {arches}; nothing is compiled for it")
    return GpuLimits(
        slug, int(capability), facts["sm_count"], facts["boost_clock_hz"], facts["memory_bandwidth_bytes_per_s"]
    )
