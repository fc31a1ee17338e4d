"""The GPU table: one TOML file per GPU in `roofline/gpus`, with peaks, clocks, memory and sources.

A GPU is selected by its slug, by whole words of it that no other slug has, or by its exact driver
name. Substrings are ambiguous: "H200" is in "GH200", "L4" in "L40S".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from results.show.facts import facts_of
from results.show.spelling import did_you_mean
from roofline.gpu_file import GpuFileError, read_gpu_file
from roofline.gpu_file import UnknownGpuError as UnknownGpuError
from roofline.machine import Ceiling, Machine
from roofline.work import DTYPES

GPU_FOLDER = Path(__file__).parent / "gpus"
RATES_FILE = Path(__file__).parent / "rates.toml"

PEAKS_OF_DTYPE = {
    "fp64": ("fp64_tensor", "fp64"),
    "fp32": ("fp32_tensor", "fp32"),  # only AMD has fp32 matmuls without rounded inputs
    "tf32": ("tf32_tensor",),
    "fp16": ("fp16_tensor", "fp16_vector"),  # P100 has no tensor cores, but packed fp16
    "bf16": ("bf16_tensor",),
    "fp8e4m3": ("fp8_tensor",),  # both fp8 formats share one multiplier
    "fp8e5m2": ("fp8_tensor",),
    "int8": ("int8_tensor",),
    "nvfp4": ("fp4_tensor",),  # not on AMD, see `peak_key`
}
"""Keys of the peak of a dtype, best first: dense, with fp32 accumulation, the default of matmuls.

fp16 accumulation, which is faster on GeForce cards, does not count.
"""

PEAK_KEYS = {
    *chain.from_iterable(PEAKS_OF_DTYPE.values()),
    "int4_tensor",
    "fp6_tensor",
    "fp16_tensor_fp16acc",
    "fp8_tensor_fp16acc",
}
"""Keys that the peaks of a file may have; some are no default of a dtype."""

VECTOR_PEAK_OF_DTYPE = {"fp64": "fp64", "fp32": "fp32", "fp16": "fp16_vector"}

REPORTED_OF_MARKETED = (0.88, 1.02)
"""Range of reported over marketed memory: 0.919 (A10G, with ECC in GDDR6) to 1.000 in the table.
0.88 allows for reserved memory and distinguishes 80 GB from 94 GB (0.85)."""

INTEGRATED_CAPABILITIES = ("5.3", "6.2", "7.2", "8.7", "11.0")
"""Compute capabilities of Jetson modules, whose device properties misstate the memory bus.

Source: developer.nvidia.com/cuda-gpus. Jetson AGX Orin reports 128 bit at 1.3 GHz (41.6 GB/s)
instead of 204.8 GB/s.
"""

PCIE_BITS_PER_S = {
    3: 8e9 * 128 / 130,
    4: 16e9 * 128 / 130,
    5: 32e9 * 128 / 130,
    6: 64e9 * 242 / 256,
}
"""Bits per second and lane of a PCI Express generation, one direction, without packet headers.

Source: PCI-SIG, PCI Express Base Specification, revisions 3.0 to 6.0: 8, 16, 32 and 64 GT/s, with
128b/130b encoding, and 242 of 256 bytes per FLIT in generation 6."""


def gpu_files() -> dict[str, Path]:
    """Return the files by slug, sorted; one of the user takes the place of one of the table.

    The user's are in the folder ROOFMARK_GPUS, else in one beside the user's runs.
    """
    from platformdirs import user_data_path

    own = Path(os.environ.get("ROOFMARK_GPUS") or user_data_path("roofmark") / "gpus")
    paths = [*GPU_FOLDER.glob("*.toml"), *own.glob("*.toml")]
    found = {path.stem: path for path in paths}
    return dict(sorted(found.items()))


@cache
def load_gpus() -> dict[str, Machine]:
    """Return the GPUs by slug (the stem of the file), sorted, without those of wrong files."""
    found = {}
    for slug, path in gpu_files().items():
        with suppress(GpuFileError):
            found[slug] = read_gpu(path)
    return found


def wrong_files() -> list[str]:
    """Return what is wrong with files of the user, in a line each."""
    problems = []
    for path in gpu_files().values():
        try:
            read_gpu(path)
        except GpuFileError as error:
            problems.append(str(error))
    return problems


def read_gpu(path: Path) -> Machine:
    """Return the GPU of a file; its slug is the stem. Raises GpuFileError."""
    data = read_gpu_file(path, PEAK_KEYS, set(load_rates()))
    slug = path.stem
    stated: dict[str, float] = data.pop("peaks_flops_per_s")
    file = f"roofline/gpus/{slug}.toml" if path.parent == GPU_FOLDER else str(path)
    keys = [("flops", dtype, peak_key(stated, dtype, data["vendor"])) for dtype in DTYPES]
    keys += [("fma", dtype, key) for dtype, key in VECTOR_PEAK_OF_DTYPE.items()]
    entries = [
        Ceiling(quantity, dtype, stated[key], "datasheet", file)
        for quantity, dtype, key in keys
        if key in stated
    ]
    entries.append(
        Ceiling("bandwidth", "memory", data["memory_bandwidth_bytes_per_s"], "datasheet", file)
    )
    facts: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    return Machine(
        slug=slug,
        entries=tuple(entries),
        source=f"dense peak and bandwidth of {file}",
        stated_peaks_flops_per_s=stated,
        **facts,
    )


@cache
def load_rates() -> dict[str, dict[str, int]]:
    """Return dense FLOPs per clock per SM (AMD: CU) by rate class and key of a peak."""
    rates = facts_of(RATES_FILE)
    return {name: entry["flops_per_clock_per_sm"] for name, entry in rates["classes"].items()}


def find_gpu(slug: str) -> Machine:
    """Return the GPU of a slug, of a file (`my-gpu.toml`), of a driver name, or of words that only
    one slug has (`4090`).

    Raises:
        UnknownGpuError: there is none or there are several, or something is wrong with the file.
    """
    gpus = load_gpus()
    if slug in gpus:
        return gpus[slug]
    path = Path(slug) if slug.endswith(".toml") else gpu_files().get(slug)
    if path is not None:
        return read_gpu(path)
    wanted = "-".join(re.findall(r"[a-z0-9]+", slug.lower()[:80]))
    words = set(wanted.split("-"))
    meant = [gpu for gpu in gpus.values() if slug in (*gpu.driver_names, gpu.name)]
    if wanted and not meant:
        meant = [gpu for gpu in gpus.values() if words <= set(gpu.slug.split("-"))]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UnknownGpuError(f"{wanted} is ambiguous: {', '.join(gpu.slug for gpu in meant)}")
    hint = did_you_mean(wanted, gpus) or "list GPUs with `python -m roofline gpus`"
    instead = "estimates take --peak, --bandwidth and --memory instead"
    raise UnknownGpuError(f"unknown GPU {slug[:80]!r}; {hint}; {instead}")


def gpus_named(
    driver_name: str, memory_bytes: int | None = None, sm_count: int | None = None
) -> list[Machine]:
    """Return the GPUs with exactly this driver name; several if it is ambiguous.

    Reported memory and SMs must match the table, to exclude slices of a GPU (MIG, vGPU) and other
    modules of the same name (all Jetson Orin are called `Orin`).
    """
    matches = []
    for gpu in load_gpus().values():
        has_sms = sm_count is None or gpu.sm_count in (None, sm_count)
        if driver_name in gpu.driver_names and has_memory(gpu, memory_bytes) and has_sms:
            matches.append(gpu)
    return matches


def has_memory(gpu: Machine, reported_bytes: int | None) -> bool:
    """Whether a driver could report this memory of a GPU; also if either is unknown."""
    if reported_bytes is None or not gpu.memory_bytes:
        return True
    low, high = REPORTED_OF_MARKETED
    return low <= reported_bytes / gpu.memory_bytes <= high


def gpus_alike(memory_bytes: int | None, sm_count: int | None) -> list[str]:
    """Return the slugs of the GPUs with this memory and number of SMs; none if one is unknown."""
    if not memory_bytes or not sm_count:
        return []
    alike = []
    for gpu in load_gpus().values():
        if gpu.memory_bytes and gpu.sm_count == sm_count and has_memory(gpu, memory_bytes):
            alike.append(gpu.slug)
    return alike


def unknown_gpu(
    driver_name: str,
    memory_clock_hz: float | None = None,
    bus_width_bits: int | None = None,
    compute_capability: str | None = None,
) -> Machine:
    """Return a GPU that is not in the table, with a `derived` bandwidth and no peak.

    The bandwidth is 2 (double data rate) x clock x bits / 8 bytes/s, also for GDDR6 and GDDR7.
    Integrated GPUs have none, see `INTEGRATED_CAPABILITIES`.

    Source: H100 SXM, 5120 bit x 2619 MHz, published 3.35 TB/s; T4, 256 bit x 5001 MHz, published
    320 GB/s.
    """
    slug = "-".join(["unknown", *re.findall(r"[a-z0-9]+", driver_name.lower())])[:80].rstrip("-")
    if not memory_clock_hz or not bus_width_bits or compute_capability in INTEGRATED_CAPABILITIES:
        return Machine(slug, driver_name)
    figures = f"{bus_width_bits} bit x {memory_clock_hz / 1e6:.0f} MHz x 2 / 8"
    source = f"device: as the driver reports it; derived: bandwidth from {figures}"
    bytes_per_s = 2 * memory_clock_hz * bus_width_bits / 8
    bandwidth = Ceiling("bandwidth", "memory", bytes_per_s, "derived", source)
    return Machine(slug, driver_name, (bandwidth,), memory_bandwidth_bytes_per_s=bytes_per_s)


def peak_key(keys: Mapping[str, object], dtype: str, vendor: str | None) -> str | None:
    """Return the key of the peak of a dtype, or None.

    The fp4 of AMD has OCP microscaling (blocks of 32 with power-of-two scales), and is not nvfp4.
    """
    if dtype == "nvfp4" and vendor == "amd":
        return None
    return next((key for key in PEAKS_OF_DTYPE.get(dtype, ()) if key in keys), None)


def lacks(gpu: Machine, dtype: str) -> bool:
    """Return whether `dtype` is known to have no hardware path."""
    keys = PEAKS_OF_DTYPE.get(dtype, ())
    is_known = any(key in gpu.unsupported or key in gpu.stated_peaks_flops_per_s for key in keys)
    return is_known and gpu.peak(dtype) is None


def clock_limited_flops_per_s(
    gpu: Machine, dtype: str, clock_hz: float, is_vector: bool = False
) -> float | None:
    """Return the dense peak at an SM clock: SMs x FLOPs per clock per SM x clock, FLOP/s.

    None if the rate is unknown or capped (fp64 of H800 and H20). It may exceed the datasheet peak,
    which is for a lower clock on Hopper and Blackwell.

    Source: the rates and their sources in rates.toml; H100 SXM, 132 x 4096 x 1.83 GHz = 989.4
    TFLOP/s of bf16.
    """
    key = peak_key(gpu.stated_peaks_flops_per_s, dtype, gpu.vendor)
    if is_vector:
        key = VECTOR_PEAK_OF_DTYPE.get(dtype)
    if key is None or key in gpu.capped or gpu.rate_class is None or gpu.sm_count is None:
        return None
    rate = load_rates()[gpu.rate_class].get(key)
    return None if rate is None else gpu.sm_count * rate * clock_hz


def pcie_bytes_per_s(gpu: Machine) -> float | None:
    """Return the one-way bandwidth of the PCI Express link of a GPU, bytes/s; None if unknown."""
    if gpu.pcie_gen is None or gpu.pcie_lanes is None:
        return None
    return PCIE_BITS_PER_S[gpu.pcie_gen] * gpu.pcie_lanes / 8
