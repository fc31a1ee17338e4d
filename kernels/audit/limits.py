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


def occupancy(arch: int, registers: int, shared_bytes: int, threads: int, tensor_memory_columns: int = 0) -> float:
    """Return the warps that can be resident on a multiprocessor, as a fraction of its most; 0 where no program fits.

        w        = ceil(threads / 32)
        programs = min(P,  W // w,  4 floor(R / 4 / up(32 registers, 256)) // w,  S // up(shared + 1024, 128))
        result   = programs w / W

    P, W, S are programs, warps and shared memory of the multiprocessor, R its 65,536 registers, up(a, b) the next
    multiple of b; on sm_100 also tensor memory, 512 columns. Warps of specialized kernels may trade registers at
    run time, which is not seen here.
    Source: CUDA Occupancy Calculator, as in `cuda_occupancy.h` of the CUDA Toolkit; tensor memory: PTX ISA, tcgen05.

    Args:
        arch: A key of `MULTIPROCESSORS`.
        registers: Of one thread.
        shared_bytes: Of one program, static and dynamic.
        threads: Of one program.
        tensor_memory_columns: Of one program.
    """
    warps = -(-threads // WARP_SIZE)
    programs = min(_programs(arch, registers, shared_bytes, threads, tensor_memory_columns))
    return programs * warps / MULTIPROCESSORS[arch].warps


def obstacle(arch: int, registers: int, shared_bytes: int, threads: int, tensor_memory_columns: int = 0) -> str | None:
    """Return why not one program fits on a multiprocessor, None where one does. Arguments as of `occupancy`."""
    machine = MULTIPROCESSORS[arch]
    most_threads = min(PROGRAM_THREADS, WARP_SIZE * machine.warps)
    most_shared = machine.shared_bytes - SHARED_RESERVED_BYTES
    reasons = (
        f"{threads:,} threads a program, sm_{arch} has {most_threads:,}",
        f"{registers} registers x {threads:,} threads, in units of {REGISTER_UNIT} a warp, sm_{arch} has {REGISTERS:,}",
        f"{shared_bytes:,} bytes of shared memory a program, sm_{arch} has {most_shared:,}",
        f"{tensor_memory_columns} columns of tensor memory a program, sm_{arch} has {TENSOR_MEMORY_COLUMNS}",
    )
    fitting = _programs(arch, registers, shared_bytes, threads, tensor_memory_columns)
    return "; ".join(reason for reason, programs in zip(reasons, fitting, strict=True) if not programs) or None


def _programs(
    arch: int, registers: int, shared_bytes: int, threads: int, tensor_memory_columns: int
) -> tuple[int, int, int, int]:
    """Return the programs that fit by their threads, registers, shared memory and tensor memory."""
    machine = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP_SIZE)
    warp_registers = _up(WARP_SIZE * max(registers, 1), REGISTER_UNIT)
    by_threads = min(machine.programs, machine.warps // warps) if threads <= PROGRAM_THREADS else 0
    by_registers = REGISTERS // WARP_UNIT // warp_registers * WARP_UNIT // warps
    by_shared = machine.shared_bytes // _up(shared_bytes + SHARED_RESERVED_BYTES, SHARED_UNIT_BYTES)
    by_tensor = TENSOR_MEMORY_COLUMNS // tensor_memory_columns if tensor_memory_columns else machine.programs
    return by_threads, by_registers, by_shared, by_tensor


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
    path = GPU_FILES / f"{slug}.toml"
    known = {file.stem for file in GPU_FILES.glob("*.toml")}
    if slug not in known:
        from difflib import get_close_matches

        close = get_close_matches(slug, sorted(known), 3, 0.4)
        hint = f"did you mean {', '.join(close)}?" if close else f"allowed are {', '.join(sorted(known))}"
        raise AuditError(f"unknown GPU '{slug}'; {hint}")
    facts = tomllib.loads(path.read_text(encoding="utf-8"))
    capability = str(facts.get("compute_capability", "")).replace(".", "")
    if facts["vendor"] != "nvidia" or not capability.isdigit() or int(capability) not in MULTIPROCESSORS:
        arches = ", ".join(f"sm_{arch}" for arch in MULTIPROCESSORS)
        raise AuditError(f"GPU '{slug}' is of another architecture than {arches}; nothing is compiled for it")
    return GpuLimits(
        slug, int(capability), facts["sm_count"], facts["boost_clock_hz"], facts["memory_bandwidth_bytes_per_s"]
    )
