"""What is known of each GPU: dense peaks, clocks, memory, each with its source. One TOML file per GPU.

A GPU is chosen by its slug or by the exact name that its driver reports. Parts of names are never compared: "H200"
is inside "GH200", "L4" inside "L40S", "A10" inside "A100", and cards of one compute capability differ up to fourfold.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from results.show.spelling import did_you_mean
from roofline.work import DTYPES

GPU_FOLDER = Path(__file__).parents[1] / "gpus"
RATES_FILE = Path(__file__).parents[1] / "rates.toml"

PEAKS_OF_DTYPE = {
    "fp64": ("fp64_tensor", "fp64"),
    "fp32": ("fp32_tensor", "fp32"),  # only AMD multiplies fp32 matrices without rounding the inputs
    "tf32": ("tf32_tensor",),
    "fp16": ("fp16_tensor", "fp16_vector"),  # P100 has no tensor cores, but packed fp16
    "bf16": ("bf16_tensor",),
    "fp8e4m3": ("fp8_tensor",),  # both fp8 formats share one multiplier
    "fp8e5m2": ("fp8_tensor",),
    "int8": ("int8_tensor",),
    "nvfp4": ("fp4_tensor",),  # not on AMD, see `peak_key`
}
"""The stated peaks that count for a dtype, best first.

The peak of a dtype is the best dense one whose sums are kept in fp32, because that is what matrix products do by
default; fp16 accumulation is faster on GeForce cards and never counts here.
"""

VECTOR_PEAK_OF_DTYPE = {"fp64": "fp64", "fp32": "fp32", "fp16": "fp16_vector"}

REPORTED_OF_MARKETED = (0.88, 1.02)
"""Memory that the driver reports, as a share of the marketed size, for two to count as the same.

Devices in the table report 0.919 (A10G, with ECC in GDDR6) to 1.000 of it. 0.88 leaves room for reserved memory
and still keeps 80 GB apart from 94 GB (0.85).
"""

INTEGRATED_CAPABILITIES = ("5.3", "6.2", "7.2", "8.7", "11.0")
"""Compute capabilities of Jetson modules, whose device properties misstate the memory bus.

Source: developer.nvidia.com/cuda-gpus. Jetson AGX Orin reports 128 bit at 1.3 GHz, hence 41.6 GB/s; it has 204.8.
"""


class UnknownGpuError(ValueError):
    """No GPU of the table has this slug."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Facts of one GPU in SI units; None, or a missing key, where a value is not known. Every peak is dense."""

    slug: str
    name: str
    driver_names: tuple[str, ...] = ()
    """The exact names by which a driver calls this GPU."""
    vendor: str | None = None
    architecture: str | None = None
    chip: str | None = None
    compute_capability: str | None = None
    """Such as "9.0", or "gfx942" on AMD."""
    rate_class: str | None = None
    """The entry of rates.toml with its FLOPs per clock per SM."""
    sm_count: int | None = None
    """Streaming multiprocessors; compute units on AMD."""
    tensor_clock_hz: float | None = None
    """The clock at which the tensor peaks hold."""
    boost_clock_hz: float | None = None
    """The clock at which the vector and the fp64 peaks hold."""
    max_clock_hz: float | None = None
    """The highest SM clock that the driver allows."""
    memory_type: str | None = None
    memory_bytes: int | None = None
    """As marketed, with GB read as GiB: an H100 80GB reports 85.0e9 bytes, more than 80 GB."""
    memory_reported_bytes: int | None = None
    """As the driver reports it: less than marketed."""
    memory_bandwidth_bytes_per_s: float | None = None
    bandwidth_kind: str = "datasheet"
    """`datasheet`, or `derived` from the memory clock and bus width that the device reports."""
    bandwidth_from_device_clock_bytes_per_s: float | None = None
    """Where the device's own memory clock gives another bandwidth than the datasheet."""
    l2_bytes: int | None = None
    llc_bytes: int | None = None
    """The cache behind L2: AMD's Infinity Cache."""
    tdp_w: float | None = None
    link_bytes_per_s: float | None = None
    """NVLink, or Infinity Fabric on AMD, both directions together; 0 where there is none."""
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    peaks_flops_per_s: dict[str, float] = field(default_factory=dict)
    """By dtype, as `PEAKS_OF_DTYPE` chooses them; integer operations for int8."""
    vector_peaks_flops_per_s: dict[str, float] = field(default_factory=dict)
    """By dtype, without tensor cores: the ceiling of elementwise operations."""
    stated_peaks_flops_per_s: dict[str, float] = field(default_factory=dict)
    """By the keys of the file, which tell tensor, vector and accumulation apart."""
    unsupported: tuple[str, ...] = ()
    """Keys of peaks for which there is no hardware path."""
    capped: tuple[str, ...] = ()
    """Keys of peaks that the product holds below SMs x rate x clock."""
    confidence: str | None = None
    """`high`, `medium` or `low`; None for a GPU that is not in the table."""
    sources: tuple[str, ...] = ()
    """Each opens with a word that says how far to trust it, see `tests/roofline/test_gpu_files.py`."""
    notes: tuple[str, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)
    """Of single values, where they are not simply stated by a source: "derived: from the datasheet bf16 peak"."""

    def kind_of(self, key: str) -> str:
        """Return how the value of a field or of a stated peak is known; "stated" where a source says it."""
        return self.kinds.get(key, "stated")

    def lacks(self, dtype: str) -> bool:
        """Return whether `dtype` is known to have no hardware path here; False where that is only unknown.

        Raises:
            ValueError: the dtype is unknown.
        """
        keys = _peaks_of(dtype)
        if dtype in self.peaks_flops_per_s:
            return False
        return any(key in self.unsupported or key in self.stated_peaks_flops_per_s for key in keys)


@dataclass(frozen=True)
class Match:
    """The GPU that a driver name stands for, or why there is none."""

    gpu: Gpu | None
    ambiguous: tuple[Gpu, ...] = ()
    """The candidates, where the name and the memory size fit several."""
    reason: str = ""
    """One line for the user, where `gpu` is None."""


@cache
def load_gpus() -> dict[str, Gpu]:
    """Return the GPUs of the table by slug, which is the stem of the file, sorted."""
    return {path.stem: _gpu(path.stem, _read(path)) for path in sorted(GPU_FOLDER.glob("*.toml"))}


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _gpu(slug: str, data: Mapping[str, Any]) -> Gpu:
    stated: dict[str, float] = data["peaks_flops_per_s"]
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    values["stated_peaks_flops_per_s"] = stated
    values["peaks_flops_per_s"] = {
        dtype: stated[key] for dtype in DTYPES if (key := peak_key(stated, dtype, data["vendor"]))
    }
    values["vector_peaks_flops_per_s"] = {
        dtype: stated[key] for dtype, key in VECTOR_PEAK_OF_DTYPE.items() if key in stated
    }
    return Gpu(slug=slug, **values)


@cache
def load_rates() -> dict[str, dict[str, int]]:
    """Return the dense FLOPs per clock per SM (CU on AMD) of each family of GPUs: by its name, by key of a peak."""
    return {name: entry["flops_per_clock_per_sm"] for name, entry in _read(RATES_FILE)["classes"].items()}


def find_gpu(slug: str, gpus: Mapping[str, Gpu] | None = None) -> Gpu:
    """Return the GPU of a slug.

    Raises:
        UnknownGpuError: no GPU has it; the message names the closest ones.
    """
    gpus = load_gpus() if gpus is None else gpus
    if slug in gpus:
        return gpus[slug]
    wanted = "-".join(re.findall(r"[a-z0-9]+", slug.lower()[:80]))
    close = [gpu.slug for gpu in gpus.values() if wanted == gpu.slug or slug in (*gpu.driver_names, gpu.name)]
    longer = sorted(known for known in gpus if wanted and set(wanted.split("-")) <= set(known.split("-")))
    if not close and len(longer) > 1:
        raise UnknownGpuError(f"{wanted} is ambiguous: {', '.join(longer)}")
    hint = f"did you mean {' or '.join(close or longer)}?" if close or longer else did_you_mean(wanted, gpus)
    hint = hint or "`python -m roofline gpus` lists those it knows"
    raise UnknownGpuError(f"unknown GPU {slug[:80]!r}: {hint}")


def match_driver_name(
    driver_name: str,
    memory_bytes: int | None = None,
    gpus: Mapping[str, Gpu] | None = None,
    sm_count: int | None = None,
) -> Match:
    """Return the GPU whose driver name is exactly `driver_name`.

    What the device reports must agree with the table: a slice of a GPU (MIG, vGPU) or another module of the same
    name (all Jetson Orin call themselves `Orin`) must not get the peaks of the whole.

    Args:
        driver_name: as `nvidia-smi` or `torch.cuda.get_device_name` gives it.
        memory_bytes: as the device reports it; compared within `REPORTED_OF_MARKETED`. None: not compared.
        gpus: the table; None: `load_gpus()`.
        sm_count: as the device reports it; compared exactly. None: not compared.
    """
    gpus = load_gpus() if gpus is None else gpus
    named = [gpu for gpu in gpus.values() if driver_name in gpu.driver_names]
    if not named:
        return Match(None, reason=f"no GPU of the table has the driver name {driver_name!r}")
    fitting = [
        gpu
        for gpu in named
        if _fits_memory(gpu, memory_bytes) and (sm_count is None or gpu.sm_count in (None, sm_count))
    ]
    if len(fitting) == 1:
        return Match(fitting[0])
    slugs = ", ".join(gpu.slug for gpu in fitting or named)
    if fitting:
        return Match(None, tuple(fitting), f"the driver name {driver_name!r} is ambiguous: {slugs}")
    seen = [f"{memory_bytes / 2**30:.1f} GiB"] if memory_bytes is not None else []
    seen += [f"{sm_count} SMs"] if sm_count is not None else []
    return Match(None, reason=f"{driver_name!r} is the name of {slugs}, but {' and '.join(seen)} do not fit it")


def _fits_memory(gpu: Gpu, reported_bytes: int | None) -> bool:
    if reported_bytes is None or gpu.memory_bytes is None:
        return True
    low, high = REPORTED_OF_MARKETED
    return low <= reported_bytes / gpu.memory_bytes <= high


def derived_bandwidth_bytes_per_s(memory_clock_hz: float, bus_width_bits: int) -> float:
    """Return the memory bandwidth that a bus allows: 2 x clock x bits / 8, bytes/s.

    The 2 is the double data rate, for the clock that drivers report, GDDR6 and GDDR7 included. Not for integrated
    GPUs: see `INTEGRATED_CAPABILITIES`.

    Args:
        memory_clock_hz: as the driver reports it (NVML in MHz, torch in kHz).
        bus_width_bits: width of the memory bus.

    Source: H100 SXM, 5120 bit x 2619 MHz, published 3.35 TB/s; T4, 256 bit x 5001 MHz, published 320 GB/s.
    """
    return 2 * memory_clock_hz * bus_width_bits / 8


def derive_unknown_gpu(
    driver_name: str,
    memory_clock_hz: float | None = None,
    bus_width_bits: int | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
    compute_capability: str | None = None,
) -> Gpu:
    """Return what a GPU that is not in the table tells about itself: bandwidth marked `derived`, and no peak.

    Its compute capability does not fix a peak, so there is none, and MFU stays blank. A value that is None, zero or
    not finite counts as not reported.
    """
    clock, bus = _reported(memory_clock_hz), _reported(bus_width_bits)
    is_integrated = compute_capability in INTEGRATED_CAPABILITIES
    bandwidth, sources, kinds = None, ["device: as the driver reports it"], {}
    if clock is not None and bus is not None and not is_integrated:
        bandwidth = derived_bandwidth_bytes_per_s(clock, int(bus))
        sources.append(f"derived: bandwidth from {bus:.0f} bit x {clock / 1e6:.0f} MHz x 2 / 8")
        kinds["memory_bandwidth_bytes_per_s"] = sources[-1]
    known_bytes, known_sms = _reported(memory_bytes), _reported(sm_count)
    if known_bytes is not None:
        kinds["memory_bytes"] = "device: as the driver reports it"
    return Gpu(
        slug="-".join(["unknown", *re.findall(r"[a-z0-9]+", driver_name.lower())])[:80].rstrip("-"),
        name=driver_name,
        vendor="amd" if (compute_capability or "").startswith("gfx") else None,
        compute_capability=compute_capability,
        sm_count=None if known_sms is None else int(known_sms),
        memory_bytes=None if known_bytes is None else int(known_bytes),
        memory_reported_bytes=None if known_bytes is None else int(known_bytes),
        memory_bandwidth_bytes_per_s=bandwidth,
        bandwidth_kind="derived",
        sources=tuple(sources),
        notes=("Not in the table: peaks are unknown.",),
        kinds=kinds,
    )


def _reported(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None


def peak_key(keys: Mapping[str, object], dtype: str, vendor: str | None) -> str | None:
    """Return which of `keys` is the peak of a dtype by `PEAKS_OF_DTYPE`, or None.

    The fp4 of AMD has the OCP microscaling format (blocks of 32 with power-of-two scales), so it is no nvfp4.

    Raises:
        ValueError: the dtype is unknown.
    """
    if dtype == "nvfp4" and vendor == "amd":
        return None
    return next((key for key in _peaks_of(dtype) if key in keys), None)


def _peaks_of(dtype: str) -> tuple[str, ...]:
    if dtype not in PEAKS_OF_DTYPE:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(PEAKS_OF_DTYPE)}")
    return PEAKS_OF_DTYPE[dtype]


def clock_limited_peak_flops_per_s(gpu: Gpu, dtype: str, clock_hz: float) -> float | None:
    """Return the dense peak at an SM clock: SMs x FLOPs per clock per SM x clock, FLOP/s.

    None where the rate is not known, or where the product is capped below its rate (fp64 of H800 and H20). It may
    exceed the datasheet peak, which holds at a lower clock on Hopper and Blackwell.

    Raises:
        ValueError: the dtype is unknown.

    Source: the rates and their sources in rates.toml; H100 SXM, 132 x 4096 x 1.83 GHz = 989.4 TFLOP/s of bf16.
    """
    return _at_clock(gpu, peak_key(gpu.stated_peaks_flops_per_s, dtype, gpu.vendor), clock_hz)


def clock_limited_vector_flops_per_s(gpu: Gpu, dtype: str, clock_hz: float) -> float | None:
    """Return the same without tensor cores: the rate of fused multiply-adds of the CUDA cores, FLOP/s, or None.

    Source: the rates and their sources in rates.toml; H100 SXM, 132 x 256 x 1.98 GHz = 66.9 TFLOP/s of fp32.
    """
    return _at_clock(gpu, VECTOR_PEAK_OF_DTYPE.get(dtype), clock_hz)


def _at_clock(gpu: Gpu, key: str | None, clock_hz: float) -> float | None:
    """Return SMs x FLOPs per clock per SM of a key of the rate table x clock, or None where a part is not known."""
    if key is None or key in gpu.capped or gpu.rate_class is None or gpu.sm_count is None:
        return None
    rate = load_rates()[gpu.rate_class].get(key)
    return None if rate is None else gpu.sm_count * rate * clock_hz
