"""`bench.measure`: one function, measured as the commands measure an operation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.api.counted import count_work, filled, with_declared, words_of
from bench.harness.api.records import JudgedRecord, called, environment_of, name_of
from bench.harness.cli.arguments import UsageError
from bench.harness.fixture.function import Question, arrays_in, as_arguments, measure_function
from results.record import Record
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
        UsageError: an argument cannot be, or `fn` raised (its error is the cause).
        NoDeviceError: there is no such device.
    """
    name = name_of(fn)
    question = question_of(flops, bytes_read, bytes_written, dtype, cache, device, budget_s)
    return measured(fn, name, args, kwargs, inputs, question)


def question_of(
    flops: int | None,
    bytes_read: int | None,
    bytes_written: int | None,
    dtype: Any,
    cache: str,
    device: str | None,
    budget_s: float | None,
) -> Question:
    """Return what is known of a function and how it is to be measured.

    Raises:
        UsageError: a value cannot be.
    """
    if cache is None:
        raise UsageError("cache=None must be 'cold' or 'warm'")
    name = None if dtype is None else dtype_named(str(dtype))
    counts = {"flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written}
    return Question(**counts, dtype=name, cache=cache, device=device, budget_s=budget_s)


def measured(
    fn: Callable[..., Any],
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Callable[[], Any] | None,
    question: Question,
) -> JudgedRecord:
    """Return the record of a function; arguments and errors as of `measure`."""
    check_inputs(args, inputs)
    make, asked = maker_of(args, inputs, question.cache), question.cache
    if make is None and asked == "cold":
        question = replace(question, cache="warm")
    known: list[Known] = []

    def complete(now: Question, first: tuple[Any, ...], result: Any) -> Question:
        known.append(known_of(fn, first, kwargs, now))
        return known[0].question

    given = () if make is not None else tuple(args)
    answer = called(name, lambda: measure_function(fn, given, kwargs, make, question, complete))
    record = with_work(answer.record, name, known[0])
    if make is None and asked == "cold":
        record = not_rotated(record)
    return JudgedRecord.of(record, environment_of(answer.device, "measure"), answer.judged, answer.result)


def check_inputs(args: Sequence[Any], inputs: Callable[[], Any] | None) -> None:
    """Reject `inputs` that is not a function, or given together with positional arguments.

    Raises:
        UsageError: with the value.
    """
    if inputs is not None and not callable(inputs):
        raise UsageError(f"inputs={inputs!r:.60} must be a function that makes the arguments")
    if inputs is not None and args:
        raise UsageError(f"inputs= makes the positional arguments, so that {len(args)} more have no place")


def maker_of(args: Sequence[Any], inputs: Callable[[], Any] | None, cache: str | None) -> Callable[[], Any] | None:
    """Return what makes fresh arguments at each call; None where there is nothing to copy, or no need to."""
    if inputs is not None:
        return lambda: made_by(inputs)
    if cache != "cold" or next(arrays_in(args), None) is None:
        return None
    return lambda: fresh(args)


def made_by(inputs: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the arguments that a user's function makes.

    Raises:
        UsageError: it raised, or returned nothing.
    """
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


@dataclass(frozen=True)
class Known:
    """What is known of a function once it was called: declared, or else counted."""

    question: Question
    words: str
    """Who says what the work is."""
    shapes: str
    """Of the tensors among its arguments, `64x32,32x8`."""
    extra: Mapping[str, Any]
    """What a record keeps of the count, by the keys of the profiler."""


def known_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], question: Question) -> Known:
    """Return what is known of a function; it is called once more where something of its work was not declared.

    Raises:
        Exception: whatever the function raises.
    """
    from bench.harness.profile.account import shapes_text

    shapes = shapes_text([*args, *kwargs.values()])
    if question.flops is not None and question.is_bytes_known and question.dtype is not None:
        return Known(question, "as declared", shapes, {})
    counted = count_work(fn, args, kwargs)
    is_counted = question.flops is None and counted.matmul_flops is not None
    extra = {"matmul_flops": counted.matmul_flops, "count": counted.operations} if is_counted else {}
    return Known(filled(question, counted), words_of(question, counted), shapes, extra)


def with_work(record: Record, name: str, known: Known) -> Record:
    """Return a record with its function's name, the shapes of the arguments, and who says what the work is."""
    extra = {**record.extra, "work": known.words, **known.extra}
    named = replace(record, op=name, shape={"calls": 1}, case=known.shapes or "-", extra=extra)
    return with_declared(named, known.question)


def not_rotated(record: Record) -> Record:
    """Return a record that was asked for cold but has nothing to go round, with the flag that says so."""
    reason = "no tensor is among the arguments, so that there is nothing to go round: it is warm"
    return replace(
        record, flags=("not-cold", *record.flags), flag_reasons={"not-cold": reason} | dict(record.flag_reasons)
    )
