"""The roofs that one row is held against when its flags are set."""

from __future__ import annotations

from typing import Any

from roofline.ceilings import Ceiling, Ceilings
from roofline.hardware.gpu import PEAKS_OF_DTYPE, clock_limited_peak_flops_per_s, load_gpus
from roofline.work import Work


def roofs_of(ceilings: Ceilings | None, dtype: str, work: Work) -> dict[str, Any]:
    """Return the fields of a `Context` that hold the roofs of a row: those by which the model judges its record."""
    if ceilings is None:
        return {}
    roof = ceilings.bandwidth()
    return {
        "memory_roof_bytes_per_s": roof.value if roof else None,
        "peak": ceilings.peak(dtype),
        "highest_peak": highest_peak(ceilings, dtype),
        "bandwidth": ceilings.bandwidth_for(work.bytes_read, work.bytes_written),
        "measured_peak": ceilings.measured_peak(dtype),
        "mix": ceilings.mix(work.bytes_read, work.bytes_written),
    }


def highest_peak(ceilings: Ceilings, dtype: str) -> Ceiling | None:
    """Return the peak at the highest clock that the driver allows.

    None for a device that is not in the table, and for a function of which no dtype was told.
    """
    gpu = load_gpus().get(ceilings.slug) if dtype in PEAKS_OF_DTYPE else None
    value = clock_limited_peak_flops_per_s(gpu, dtype, gpu.max_clock_hz) if gpu and gpu.max_clock_hz else None
    if gpu is None or value is None:
        return None
    # Some products are sold with a peak above their own clock times their rate: then that one is the limit.
    value = max(value, gpu.peaks_flops_per_s.get(dtype, 0.0))
    source = f"roofline/gpus/{gpu.slug}.toml at its highest clock"
    return Ceiling("flops", dtype, value, "clock-limited", source, sm_clock_hz=gpu.max_clock_hz)
