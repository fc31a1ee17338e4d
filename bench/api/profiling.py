"""The profiler from Python: `bench.profile`, and counted work of functions."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.api.records import Records
from bench.harness.calibrate.calibration import MeasuredCeilings, ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import detect
from bench.harness.run import saved_options, stamp
from bench.harness.settings import Settings
from bench.profiling.counts import shapes_text
from bench.profiling.operation import summed
from bench.profiling.records import main_dtype, product_dtypes, records_of, step_of
from bench.profiling.step import ProfiledStep, account, counted
from bench.profiling.target import target_of
from bench.profiling.tracing import timed
from results.record import Object, Record
from results.show.profile import render, totals_of
from results.store.runfile import runs_directory

if TYPE_CHECKING:
    from bench.profiling.projection import Projection

COUNTS = ("flops", "bytes_read", "bytes_written")
MAX_TEXT = 60
"""Maximum characters of the list of counted operations."""


class Profile(Records):
    """The time of a step by operation: a record for each signature and each remainder, the longest
    first.
    """

    op = "profile"

    @property
    def totals(self) -> Object:
        """Totals of the step, see `results.show.profile.Totals`; empty if nothing was timed."""
        totals = totals_of(self.environment, self)
        return totals.to_dict() if totals else {}


def profile(
    function: Any,
    *args: Any,
    backward: bool = False,
    train: bool = False,
    compile: bool = False,
    on: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Profile | Projection:
    """Profile a call of a function or a module.

    It is called once before counting. Gradients, buffers and random generators are left unchanged.

    Args:
        function: a function or a module.
        args: its positional arguments.
        backward: whether to include the backward pass, from `loss` of the result, else from its
            first tensor.
        train: whether to include an AdamW step with a learning rate of 0.
        compile: whether to use `torch.compile`; each fused region is then a row.
        on: GPUs of the table, such as "h100-sxm", or saved runs: nothing is measured, and the
            minimum times of the operations on these machines are returned. The module is copied
            without its memory.
        kwargs: its keyword arguments.

    Raises:
        UsageError: it is not callable, or it raised.
    """
    target = target_of(
        getattr(function, "__name__", type(function).__name__), function, args, kwargs
    )
    mode = "forward"
    if train:
        mode = "train"
    elif backward:
        mode = "backward"
    if on is not None:
        from bench.profiling import projection
        from bench.profiling.fake import without_memory

        if compile:
            raise UsageError("on= runs no compiler; remove compile=")
        names = [on] if isinstance(on, str) else on
        work = projection.counted(lambda fake: without_memory(target, fake), mode)
        return projection.Projection(work, list(map(projection.machine_named, names)))
    device = detect(target.device)
    measured = MeasuredCeilings(device, runs_directory(), lambda _: None, lambda _: None)
    if device.is_gpu:  # the profiler stays attached to this process and slows down launches
        measured.complete(ceilings_of(device, None), ())
    step = ProfiledStep(target, mode)
    breakdown = timed(step, account(step), device, is_compiled=compile)
    records = records_of(breakdown)
    ceilings = measured.complete(ceilings_of(device, None), product_dtypes(records))
    environment = stamp(
        "bench", device, ceilings, saved_options(Settings(cache="warm")), ("profile",)
    )
    return Profile(replace(environment, profile=step_of(breakdown)), records, render)


def with_work(
    blank: Record, function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Record:
    """Return the record of a function with undeclared work counted; its `work` is the source.

    The function is called once more to count; unknown counts stay None. Bytes are the sum over
    torch operations; an operation that fuses several moves less. Kernels launched outside torch
    operations are not counted.
    """
    args = tuple(args)
    blank = replace(blank, case=shapes_text([*args, *kwargs.values()]) or "-", work="as declared")
    missing = [name for name in COUNTS if getattr(blank, name) is None]
    if not missing and blank.dtype:
        return blank
    step = ProfiledStep(target_of("", function, args, dict(kwargs)), "plain")
    working = [
        call
        for call in counted(step).operations
        if call.flops or call.bytes_moved or not call.is_modelled
    ]
    if working and not blank.dtype:
        blank = replace(blank, dtype=main_dtype(working))
    if not missing:
        return blank
    unknown = ", ".join(dict.fromkeys(call.op for call in working if not call.is_modelled))
    names = ", ".join(dict.fromkeys(call.op.removeprefix("aten.") for call in working))
    if not working:
        source = "unknown: there was no torch operation; declare it"
    elif unknown:
        source = (
            f"unknown: {unknown} has no rule; declare it, or use bench.declare_work for the "
            f"operation"
        )
    else:
        source = (
            f"counted by the profiler's rules: "
            f"{textwrap.shorten(names, MAX_TEXT, placeholder=' ...')}"
        )
    declared = ", ".join(name for name in COUNTS if name not in missing)
    blank = replace(blank, work=f"{source}; {declared} as declared" if declared else source)
    if unknown or not working:
        return blank
    total = summed(working)
    if "flops" in missing:
        units = "matrix" if total.matmul_flops else "vector"
        blank = replace(blank, units=units, count=len(working))
    return replace(blank, **{name: getattr(total, name) for name in missing})
