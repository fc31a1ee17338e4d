"""`bench.sweep`: several functions over shapes and dtypes, as a pandas frame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.harness.api.function import Function, detected, device_of, environment_of, measure, name_of
from bench.harness.api.records import Records
from bench.harness.cli.arguments import UsageError
from bench.harness.data.inputs import torch_dtype
from bench.harness.profile.target import TORCH_DTYPES
from results.record import Record
from roofline.work import dtype_named

if TYPE_CHECKING:
    import pandas as pd

Shape = int | str | Iterable[int]


def sweep(
    fn_by_name: Mapping[str, Callable[..., Any]],
    shapes: Iterable[Shape],
    dtypes: Any = ("fp32",),
    inputs: Callable[..., Any] | None = None,
    cache: str = "cold",
    device: str | None = None,
    budget_s: float | None = None,
) -> pd.DataFrame:
    """Measure each function at each shape in each dtype; a row for each, with the columns of `results.load`.

    `provider` is the name of the function, `case` the shape, `median_s` seconds per call, with `ci95_low_s`,
    `ci95_high_s`, `samples_s`, `flags`, the work and what is judged. A function that raises at one shape has a row with
    the status `failed` and its reason. Whether one is faster than another is a question for `bench.compare`.

    Args:
        fn_by_name: the functions, each taking what `inputs` makes.
        shapes: `4096`, `(4096, 1024)` or `"4096x1024"`, each a shape.
        dtypes: one of `fp64`, `fp32`, `bf16`, `fp16`, a torch dtype, or several of them.
        inputs: `inputs(shape, dtype, device)` returns fresh arguments of one call, as a tuple or a single one; it is
            given a tuple of extents, a torch dtype and the name of a torch device. By default one tensor of normally
            distributed numbers in that shape.
        cache: `cold` or `warm`, as of `bench.measure`.
        device: `cpu`, `cuda` or `cuda:N`; by default the first GPU, else the CPU.
        budget_s: seconds that sampling one row may take at most.

    Raises:
        UsageError: an argument cannot be, or every row failed.
        NoDeviceError: there is no such device.
    """
    import torch

    functions, sizes = functions_of(fn_by_name), [extents(shape) for shape in shapes]
    given = dtypes if isinstance(dtypes, list | tuple | set) else [dtypes]
    names = [dtype_named(str(dtype)) for dtype in given]
    if not names or not set(names) <= TORCH_DTYPES.keys():
        raise UsageError(f"dtypes={dtypes!r:.60} must be of {', '.join(TORCH_DTYPES)}")
    if not sizes:
        raise UsageError("shapes= is empty; give at least one")
    for fn in functions.values():
        Function(fn, (), {}, inputs, {}, None, cache, device)
    place = detected(device).torch_name
    make = inputs or (lambda shape, dtype, device: torch.randn(shape, device=device).to(dtype))

    def row(name: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> Record:
        axes = {f"d{axis}": extent for axis, extent in enumerate(shape)}
        row: dict[str, Any] = {"provider": name, "case": "x".join(map(str, shape)), "shape": axes, "dtype": dtype}
        arguments = functools.partial(make, shape, torch_dtype(dtype), place)
        try:
            record = measure(fn, inputs=arguments, dtype=dtype, cache=cache, device=place, budget_s=budget_s)
        except UsageError as error:
            return Record(op=name_of(fn), status="failed", reason=str(error), **row)
        return replace(record, **row)

    under_test = device_of(place, ())
    assert under_test is not None
    environment = environment_of(under_test, "sweep")
    records = [row(name, fn, shape, dtype) for shape in sizes for dtype in names for name, fn in functions.items()]
    if all(record.status == "failed" for record in records):
        raise UsageError(f"every row failed: {records[0].provider} at {records[0].case}: {records[0].reason}")
    return Records(environment, records).to_dataframe()


def functions_of(fn_by_name: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    if not isinstance(fn_by_name, Mapping) or not fn_by_name:
        raise UsageError('give functions by name, such as {"old": f, "new": g}')
    for name, fn in fn_by_name.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"{name!r:.60} must be a text: the name of a function")
        name_of(fn)
    return dict(fn_by_name)


def extents(shape: Shape) -> tuple[int, ...]:
    words = shape.split("x") if isinstance(shape, str) else [shape] if isinstance(shape, int) else shape
    try:
        found = tuple(int(word) for word in words)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 1 or isinstance(shape, bool):
        raise UsageError(f"{shape!r:.60} is no shape: write 4096, (4096, 1024) or '4096x1024'")
    return found
