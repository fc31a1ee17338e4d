"""`bench.measure`: one function, measured as the commands measure an operation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.harness.api.function import (
    arrays_in,
    as_arguments,
    called,
    check_options,
    declared,
    measure_function,
)
from bench.harness.api.records import JudgedRecord
from bench.harness.cli.arguments import UsageError
from roofline.work import dtype_named


def measure(
    fn: Callable[..., Any],
    /,
    *args: Any,
    inputs: Callable[[], Any] | None = None,
    flops: int | None = None,
    bytes_read: int | None = None,
    bytes_written: int | None = None,
    dtype: Any = None,
    cache: str = "cold",
    device: str | None = None,
    budget_s: float | None = None,
    **kwargs: Any,
) -> JudgedRecord:
    """Measure `fn(*args, **kwargs)` until its interval is narrow, and judge it by the ceilings of this machine.

    A call is a launch: on a GPU calls are captured in a graph where that can be, else timed by events; on a CPU by the
    host's clock. Work that is not declared is counted by the rules of `bench.profile`, and the record says so; what
    torch does not see, such as a Triton kernel without a torch operation of its own, must be declared. Nothing is
    verified: whoever passes the function holds its `result`.

    Args:
        fn: a function or a module.
        args: its positional arguments.
        inputs: makes the positional arguments in place of `args`, fresh ones at each call, a tuple or a single one.
        flops: floating-point operations of one call; a fused multiply-add counts as 2.
        bytes_read: compulsory bytes that one call reads: each input once.
        bytes_written: compulsory bytes that one call writes: each output once.
        dtype: dtype whose peak judges it, `bf16` or `torch.bfloat16`; by default the one in which most is computed.
        cache: `cold`: calls go round so many copies of the tensors among `args` that none finds its own in the cache
            (weights of a module, keyword arguments and what a function closes over are not copied); a call without
            a tensor among its arguments is measured warm, and flagged. `warm`: the same arguments again.
        device: `cpu`, `cuda` or `cuda:N`; by default where the tensors are.
        budget_s: seconds that sampling may take at most, beside the warm-up.
        kwargs: its keyword arguments.

    Raises:
        UsageError: an argument cannot be, there is no such device, or `fn` raised (its error is the cause).
    """
    blank = declared(fn, flops, bytes_read, bytes_written, None if dtype is None else dtype_named(str(dtype)))
    check_options(args, inputs, cache, device, budget_s)
    make_args = maker_of(args, inputs, cache)
    record: JudgedRecord = called(
        blank.op,
        lambda: measure_function(fn, args, kwargs, make_args, blank, cache, device, budget_s, is_counted=True),
    )
    return record


def maker_of(args: Sequence[Any], inputs: Callable[[], Any] | None, cache: str) -> Callable[[], tuple[Any, ...]] | None:
    """Return what makes fresh arguments at each call; None where there is nothing to copy, or no need to."""
    if inputs is not None:
        return lambda: _made_by(inputs)
    return (lambda: fresh(args)) if cache == "cold" and any(True for _ in arrays_in(args)) else None


def _made_by(inputs: Callable[[], Any]) -> tuple[Any, ...]:
    made = called("inputs", inputs)
    if made is None:
        raise UsageError(
            "inputs= returned nothing; it must return the arguments of one call, as a tuple or a single one"
        )
    return as_arguments(made)


def fresh(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments with copies of the tensors and arrays among them: those that share memory still do."""
    import torch

    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copy.deepcopy(value.detach(), memo).requires_grad_(value.requires_grad)
        if isinstance(value, Mapping):
            return {key: copied(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            parts = [copied(one) for one in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return copy.deepcopy(value, memo) if isinstance(getattr(value, "nbytes", None), int) else value

    return tuple(copied(one) for one in args)
