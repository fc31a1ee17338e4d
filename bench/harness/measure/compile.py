"""Compiles the Triton kernels of rows in advance, on all cores, so that no row spends its time on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bench.harness.data.inputs import Filler
from bench.harness.device.device import Device
from bench.harness.measure.rows import Row
from bench.harness.providers.registry import AUTOTUNE, has_triton, kernel_versions, numerics

MIN_KERNELS = 8
"""Minimum number of kernels to compile in other processes: each process takes some seconds to load torch and Triton."""


def compile_rows(rows: Iterable[Row], device: Device) -> dict[str, str]:
    """Compile the kernels of the rows if there are many; return the errors by row."""
    if device.type != "cuda" or not has_triton():
        return {}
    from kernels.launch import INTERPRETED
    from kernels.precompile import precompile

    launches = launches_of(rows)
    return {} if INTERPRETED or len(launches) < MIN_KERNELS else precompile(launches)


def launches_of(rows: Iterable[Row]) -> dict[str, Callable[[], object]]:
    """Return the launches of rows with a Triton version, on tensors without memory, by name."""
    launches: dict[str, Callable[[], object]] = {}
    for row in rows:
        op, case, version = row.op, row.case, kernel_versions(row.family).get(row.provider)
        if version is None or row.refused or row.provider.endswith(AUTOTUNE):
            continue
        absent = Filler("zeros", case.dtype, None)
        inputs, out = op.make_inputs(case, absent), absent(*op.output_shape(case), dtype=op.output_dtype(case.dtype))
        launch = partial(launch_in, case.dtype, version, op.name, *inputs, out=out)
        launches[f"{op.name} {case.dtype} {case.name}, {row.provider}"] = launch
    return launches


def launch_in(dtype: str, module: str, op: str, *inputs: Any, out: Any) -> None:
    """Launch a kernel version with the settings of a dtype: tf32 and fp32 differ only in a setting of torch."""
    from kernels.precompile import launch_version

    with numerics(dtype):
        launch_version(module, op, *inputs, out=out)
