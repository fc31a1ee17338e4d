"""Counts the work of a function, where its caller declared none, by the rules of the profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.profile.step import ProfiledStep
from results.record import DTYPES, Record

COUNTS = ("flops", "bytes_read", "bytes_written")

NAMED = 3
"""Operations that are named; the others are counted."""


@dataclass(frozen=True)
class Counted:
    """What the operations of one call compute and move; None where nobody knows."""

    flops: int | None
    matmul_flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    dtype: str | None
    """In which most FLOPs are computed."""
    operations: int
    words: str
    """How it is known, or why it is not."""


class AsGiven(ProfiledStep):
    """One call as its user makes it: gradients are followed where they are on."""

    def __call__(self) -> None:
        """Call it."""
        self.target()


def count_work(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Counted:
    """Return the work of one call, which is made once for that.

    The bytes are those that each torch operation of it moves: one that fuses several moves less than their sum. What
    torch does not see, such as a kernel that is launched without an operation of its own, is not in it.

    Args:
        function: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        Exception: whatever the function raises.
    """
    from bench.harness.profile.account import accounted
    from bench.harness.profile.report import main_dtype
    from bench.harness.profile.target import target_of

    operations = accounted(AsGiven(target_of("", function, args, dict(kwargs)), "forward")).operations
    working = [call for call in operations if call.flops or call.bytes_moved or not call.is_modelled]
    names = list(dict.fromkeys(call.op.removeprefix("aten.") for call in working))
    dtype = main_dtype(working) if working else None
    dtype = dtype if dtype in DTYPES else None
    if not working:
        return Counted(None, None, None, None, dtype, 0, "not known: no torch operation was seen; declare it")
    unknown = list(dict.fromkeys(call.op for call in working if not call.is_modelled))
    if unknown:
        text = (
            f"not known: {', '.join(unknown[:NAMED])} has no rule; declare it, or bench.declare_work for the operation"
        )
        return Counted(None, None, None, None, dtype, len(working), text)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return Counted(
        flops=sum(call.flops for call in working),
        matmul_flops=sum(call.matmul_flops for call in working),
        bytes_read=sum(call.bytes_read for call in working),
        bytes_written=sum(call.bytes_written for call in working),
        dtype=dtype,
        operations=len(working),
        words=f"counted by the profiler's rules: {', '.join(names[:NAMED])}{more}",
    )


def with_work(blank: Record, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Record:
    """Return the record of a function with the work that its caller did not declare, and who says what the work is.

    The function is called once more if anything must be counted; what nobody knows stays None.

    Raises:
        Exception: whatever the function raises.
    """
    from bench.harness.profile.account import shapes_text

    blank = replace(blank, case=shapes_text([*args, *kwargs.values()]) or "-", extra={"work": "as declared"})
    given = [name for name in COUNTS if getattr(blank, name) is not None]
    if len(given) == len(COUNTS) and blank.dtype:
        return blank
    counted = count_work(function, args, kwargs)
    blank = replace(blank, dtype=blank.dtype or counted.dtype or "")
    if len(given) == len(COUNTS):
        return blank
    extra: dict[str, Any] = {"work": counted.words + (f"; {', '.join(given)} as declared" if given else "")}
    if "flops" not in given and counted.matmul_flops is not None:
        extra |= {"matmul_flops": counted.matmul_flops, "count": counted.operations}
    return replace(blank, extra=extra, **{name: getattr(counted, name) for name in COUNTS if name not in given})
