"""The GPUs of the table as rows for programs: JSON objects, and flat rows of CSV, in SI units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from results.show.terminal import printable
from roofline.hardware.gpu import Gpu
from roofline.model import ridge_intensity
from roofline.work import DTYPES


def ridges(gpu: Gpu) -> dict[str, float | None]:
    """Return the ridge point of every dtype in FLOP/byte; None where peak or bandwidth is not known."""
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    peaks = {dtype: gpu.peaks_flops_per_s.get(dtype) for dtype in DTYPES}
    return {
        dtype: None if peak is None or bandwidth is None else ridge_intensity(peak, bandwidth)
        for dtype, peak in peaks.items()
    }


def headline_ridge(gpu: Gpu) -> tuple[str, float] | None:
    """Return the dtype and ridge point that stand for a GPU: bf16, or fp16 where it has no bf16; None without."""
    points = ridges(gpu)
    for dtype in ("bf16", "fp16"):
        point = points[dtype]
        if point is not None:
            return dtype, point
    return None


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """Return everything known of a GPU as a JSON object in SI units; None where a value is not known."""
    row = asdict(gpu)
    row["peaks_flops_per_s"] = {dtype: gpu.peaks_flops_per_s.get(dtype) for dtype in DTYPES}
    row["ridge"] = ridges(gpu)
    return row


def csv_text(gpus: Sequence[Gpu]) -> str:
    """Return the GPUs as CSV with a header."""
    from results.show import export

    rows = [_flat_row(gpu) for gpu in gpus]
    return export.csv_text(rows, list(rows[0]))


def _flat_row(gpu: Gpu) -> dict[str, Any]:
    """Return `gpu_row` without nesting: one column per dtype, texts of a list joined by semicolons."""
    row = gpu_row(gpu)
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key == "peaks_flops_per_s":
            flat |= {f"peak_{dtype}_flops_per_s": peak for dtype, peak in value.items()}
        elif key == "ridge":
            flat |= {f"ridge_{dtype}_flops_per_byte": point for dtype, point in value.items()}
        elif isinstance(value, list | tuple):
            flat[key] = printable("; ".join(value))
        elif not isinstance(value, dict):
            flat[key] = printable(value) if isinstance(value, str) else value
    return flat
