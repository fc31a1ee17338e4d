"""Gives each counted call its time in each recorded step, and names the remainders.

A call and an event belong together by operation, shapes and dtypes, the first to the first, the second to the second,
never by the order of all calls: watching a program for its work changes it a little (`add_` becomes `add`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness.profile.counts import base_name
from bench.harness.profile.recording import Event, Trace, busy
from bench.harness.profile.step import MODULE

if TYPE_CHECKING:
    from bench.harness.profile.account import Call


COMPILED = "compiled::"
"""Beginning of the names of events of fused regions."""

REGION = "compiled."
"""Beginning of the names of calls of fused regions."""

IN_PLACE = {"aten::_index_put_impl": "aten::index_put"}
"""What autograd calls where it adds into a new tensor, and its name while its work is counted."""

UNSEEN = "## Call CompiledFxGraph"
"""Beginning of the names of events of regions that torch compiled before the profiler was started."""


@dataclass
class StepTimes:
    """Where the time of one recorded step went; the parts sum to it exactly. Nanoseconds."""

    step: int
    calls: dict[int, int] = field(default_factory=dict)
    """By the place of the call in the account."""
    kernels: dict[int, list[str]] = field(default_factory=dict)
    """Names of the kernels that a GPU ran for a call."""
    unattributed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By operation or kernel, of what belongs to no counted call."""
    gaps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By module, when no operation ran: Python, autograd, waiting for the host."""

    def parts(self) -> int:
        """Return the sum of all parts."""
        return sum(self.calls.values()) + sum(self.unattributed.values()) + sum(self.gaps.values())


class Matcher:
    """The calls of an account that still wait for an event, by what they are."""

    def __init__(self, calls: Sequence[Call]) -> None:
        """Take the calls in their order."""
        self._exact: dict[Any, deque[int]] = defaultdict(deque)
        self._alike: dict[Any, deque[int]] = defaultdict(deque)
        self._taken: set[int] = set()
        for place, call in enumerate(calls):
            namespace, _, name = call.op.partition(".")
            self._exact[f"{namespace}::{name}", call.operands].append(place)
            self._alike[_alike(f"{namespace}::{name}", call.operands)].append(place)

    def take(self, event: Event) -> int | None:
        """Return the place of the call that an event is, or None."""
        if event.category != "cpu_op" and not event.name.startswith(COMPILED):
            return None
        for waiting in (
            self._exact.get((event.name, event.operands)),
            self._alike.get(_alike(event.name, event.operands)),
        ):
            while waiting:
                place = waiting.popleft()
                if place not in self._taken:
                    self._taken.add(place)
                    return place
        return None


def _alike(name: str, operands: tuple[tuple[Any, str], ...]) -> Any:
    base = base_name(name)
    return IN_PLACE.get(base, base), tuple(shape for shape, _ in operands)


def joined(calls: Sequence[Call], trace: Trace) -> list[StepTimes]:
    """Return the times of each recorded step."""
    on_gpu = bool(trace.kernels)
    return [_gpu_step(calls, trace, step) if on_gpu else _cpu_step(calls, step) for step in trace.steps()]


def _cpu_step(calls: Sequence[Call], step: Event) -> StepTimes:
    times, seen = StepTimes(step.duration), _seen(calls, step)
    first: list[int | None] = [None] * len(seen)
    for number in reversed(range(len(seen))):  # what is nested in an event comes after it
        event, above, module, place = seen[number]
        if place is not None:
            times.calls[place] = times.calls.get(place, 0) + event.duration
            first[number] = place
        else:
            inner, own = first[number], event.duration - sum(child.duration for child in event.children)
            if not _is_operation(event):
                # What autograd does for a node belongs to the module of the node.
                is_node = event.category == "cpu_op" and inner is not None
                times.gaps[calls[inner].module if is_node and inner is not None else module] += own
            elif inner is None or event.name.startswith(UNSEEN):
                times.unattributed[event.name] += own
            else:
                times.calls[inner] = times.calls.get(inner, 0) + own  # `aten::linear` on its way to `aten::addmm`
        if above is not None and first[number] is not None:
            first[above] = first[number]
    return times


def _is_operation(event: Event) -> bool:
    if event.name.startswith(UNSEEN):
        return True
    return event.category == "cpu_op" and "::" in event.name and not event.name.startswith(("autograd::", "torch::"))


def _seen(calls: Sequence[Call], step: Event) -> list[tuple[Event, int | None, str, int | None]]:
    """Return the events of a step in their order, each with the number of that around it, its module and its call.

    What is nested in the event of a call belongs to it and is left out.
    """
    matcher = Matcher(calls)
    found: list[tuple[Event, int | None, str, int | None]] = []
    pending: list[tuple[Event, int | None, str]] = [(step, None, "")]
    while pending:
        event, above, module = pending.pop()
        module = event.name.removeprefix(MODULE) if event.name.startswith(MODULE) else module
        place = matcher.take(event)
        found.append((event, above, module, place))
        if place is None:
            pending += [(child, len(found) - 1, module) for child in reversed(event.children)]
    return found


def _gpu_step(calls: Sequence[Call], trace: Trace, step: Event) -> StepTimes:
    """Return the times of a step by the kernels that it launched; the rest of it the GPU stood still."""
    times = StepTimes(step.duration)
    owners = launches(Matcher(calls), [step, *trace.beside(step)])
    within = [kernel for kernel in trace.kernels if step.begin <= kernel.begin and kernel.end <= step.end]
    for kernel, spent in busy(within):
        place = owners.get(kernel.correlation) if kernel.correlation is not None else None
        if place is None:
            times.unattributed[kernel.name] += spent
        else:
            times.kernels.setdefault(place, []).append(kernel.name)
            times.calls[place] = times.calls.get(place, 0) + spent
    times.gaps[""] = step.duration - times.parts()
    return times


def launches(matcher: Matcher, roots: Sequence[Event]) -> Mapping[int, int | None]:
    """Return by the correlation of each launch the index of the call in which it happened; None if in no call."""
    owners: dict[int, int | None] = {}
    pending: list[tuple[Event, int | None]] = [(root, None) for root in sorted(roots, key=lambda e: -e.begin)]
    while pending:
        event, place = pending.pop()
        place = matcher.take(event) if place is None else place
        if event.correlation is not None:
            owners[event.correlation] = place
        pending += [(child, place) for child in reversed(event.children)]
    return owners
