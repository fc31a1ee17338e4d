"""Counts the work of a function, where its caller declared none, by the rules of the profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.harness.profile.report import main_dtype
from bench.harness.profile.step import Operation, ProfiledStep
from bench.harness.profile.target import target_of
from results.record import DTYPES, Record

COUNTS = ("flops", "bytes_read", "bytes_written")

NAMED = 3
"""Operations that are named; the others are counted."""


class AsGiven(ProfiledStep):
    """One call as its user makes it: gradients are followed where they are on."""

    def __call__(self) -> None:
        """Call it."""
        self.target()


def with_work(blank: Record, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Record:
    """Return the record of a function with the work that its caller did not declare, and who says what the work is.

    The function is called once more if anything must be counted; what nobody knows stays None. The bytes are those that
    each torch operation moves: one that fuses several moves less than their sum. What torch does not see, such as a
    kernel that is launched without an operation of its own, is not in it.

    Raises:
        Exception: whatever the function raises.
    """
    from bench.harness.profile.account import accounted, shapes_text

    blank = replace(blank, case=shapes_text([*args, *kwargs.values()]) or "-", extra={"work": "as declared"})
    given = [name for name in COUNTS if getattr(blank, name) is not None]
    if len(given) == len(COUNTS) and blank.dtype:
        return blank
    operations = accounted(AsGiven(target_of("", function, args, dict(kwargs)), "forward")).operations
    working = [call for call in operations if call.flops or call.bytes_moved or not call.is_modelled]
    if working and not blank.dtype and (dtype := main_dtype(working)) in DTYPES:
        blank = replace(blank, dtype=dtype)
    if len(given) == len(COUNTS):
        return blank
    words, is_known = _words(working)
    extra: dict[str, Any] = {"work": words + (f"; {', '.join(given)} as declared" if given else "")}
    if not is_known:
        return replace(blank, extra=extra)
    if "flops" not in given:
        extra |= {"matmul_flops": sum(call.matmul_flops for call in working), "count": len(working)}
    counts = {name: sum(getattr(call, name) for call in working) for name in COUNTS if name not in given}
    return replace(blank, extra=extra, **counts)


def _words(working: Sequence[Operation]) -> tuple[str, bool]:
    """Return how the work of operations is known, or why it is not, and whether it is."""
    if not working:
        return "not known: no torch operation was seen; declare it", False
    unknown = ", ".join(list(dict.fromkeys(call.op for call in working if not call.is_modelled))[:NAMED])
    if unknown:
        return f"not known: {unknown} has no rule; declare it, or bench.declare_work for the operation", False
    names = list(dict.fromkeys(call.op.removeprefix("aten.") for call in working))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"counted by the profiler's rules: {', '.join(names[:NAMED])}{more}", True
