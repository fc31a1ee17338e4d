"""Compiles the Triton kernels of rows beforehand, on all cores at once, so that none is compiled in a row's time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from bench.harness.data.inputs import Filler
from bench.harness.device.device import Device
from bench.harness.measure.rows import Row
from bench.harness.providers.registry import AUTOTUNE, has_triton, kernel_versions, numerics

FEWEST = 8
"""Kernels that are worth processes of their own: each of these takes some seconds to load torch and Triton."""


def compile_rows(rows: Iterable[Row], device: Device) -> dict[str, str]:
    """Compile what the rows launch, if that is many kernels; time nothing meanwhile.

    Returns:
        What does not compile, by row, with the reason in a line. The row itself will say so too.
    """
    if device.type != "cuda" or not has_triton():
        return {}
    from kernels.launch import INTERPRETED
    from kernels.precompile import precompile

    launches = launches_of(rows)
    return {} if INTERPRETED or len(launches) < FEWEST else precompile(launches)


def launches_of(rows: Iterable[Row]) -> dict[str, Callable[[], object]]:
    """Return the launches of those rows that a Triton version computes, on tensors without memory, by their names."""
    found: dict[str, Callable[[], object]] = {}
    for row in rows:
        op, case, version = row.op, row.case, kernel_versions(row.family).get(row.provider)
        if version is None or row.refused or row.provider.endswith(AUTOTUNE):
            continue
        absent = Filler("zeros", case.dtype, None)
        inputs, out = op.make_inputs(case, absent), absent(*op.output_shape(case), dtype=op.output_dtype(case.dtype))
        launch = partial(launch_in, case.dtype, version, op.name, *inputs, out=out)
        found[f"{op.name} {case.dtype} {case.name}, {row.provider}"] = launch
    return found


def launch_in(dtype: str, module: str, op: str, *inputs: Any, out: Any) -> None:
    """Launch a version of a kernel as rows of a dtype do: tf32 and fp32 differ in a switch of torch alone."""
    from kernels.precompile import launch_version

    with numerics(dtype):
        launch_version(module, op, *inputs, out=out)
