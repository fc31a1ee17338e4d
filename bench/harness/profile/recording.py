"""Reads what torch.profiler recorded: nested events of each thread, and the kernels that a GPU ran for them.

The form is that of `export_chrome_trace`: JSON with times in microseconds. Times are kept as whole nanoseconds, so that
the parts of a step sum to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.harness.profile.step import STEP
from bench.harness.timing.launched import Kernel, kernels_of, span_of

ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")


@dataclass
class Event:
    """Something that a thread of the host did, with what happened within it."""

    name: str
    category: str
    begin: int
    """Nanoseconds, as `end`."""
    end: int
    operands: tuple[tuple[Any, str], ...] = ()
    """Shape and dtype of each tensor with a dimension."""
    correlation: int | None = None
    """Of a launch, with the kernel that it launched."""
    thread: Any = None
    children: list[Event] = field(default_factory=list)

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.begin


@dataclass
class Trace:
    """A recording."""

    roots: list[Event]
    """Of all threads, each with what is nested in it, by their beginnings."""
    kernels: list[Kernel]

    def steps(self) -> list[Event]:
        """Return the marked steps in order."""
        found: list[Event] = []
        pending = list(self.roots)
        while pending:
            event = pending.pop()
            if event.name == STEP:
                found.append(event)
            else:
                pending += event.children
        return sorted(found, key=lambda event: event.begin)

    def beside(self, step: Event) -> list[Event]:
        """Return what other threads did during a step, such as the backward pass of a GPU."""
        return [
            root
            for root in self.roots
            if root.thread != step.thread and step.begin <= root.begin and root.end <= step.end
        ]


def read_trace(document: Mapping[str, Any]) -> Trace:
    """Return the events of a Chrome trace, nested."""
    events = [one for one in document["traceEvents"] if one.get("ph") == "X"]
    hosts = [_event(one) for one in events if one.get("cat") in ON_HOST]
    return Trace(nested(hosts), kernels_of(document))


def nested(events: Iterable[Event]) -> list[Event]:
    """Return the outermost events; the others become children of the one that they happened in."""
    roots: list[Event] = []
    open_events: dict[Any, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        stack = open_events.setdefault(event.thread, [])
        while stack and stack[-1].end <= event.begin:
            stack.pop()
        if stack:
            event.end = min(event.end, stack[-1].end)  # clocks are rounded: a child never outlasts its parent
            stack[-1].children.append(event)
        else:
            roots.append(event)
        stack.append(event)
    return roots


def busy(kernels: Iterable[Kernel]) -> Iterator[tuple[Kernel, int]]:
    """Yield each kernel with the nanoseconds in which it ran and none that began before it did.

    The sum is the time in which the GPU did anything: what overlaps counts once.
    """
    reached = 0
    for kernel in kernels:
        yield kernel, max(0, kernel.end - max(kernel.begin, reached))
        reached = max(reached, kernel.end)


def _event(event: Mapping[str, Any]) -> Event:
    details = event.get("args", {})
    begin, end = span_of(event)
    pairs = zip(details.get("Input Dims", ()), details.get("Input type", ()), strict=False)
    operands = tuple((_shape(shape), dtype) for shape, dtype in pairs if shape)
    thread = event.get("pid"), event.get("tid")
    return Event(event["name"], event["cat"], begin, end, operands, details.get("correlation"), thread)


def _shape(shape: Any) -> Any:
    return tuple(map(_shape, shape)) if isinstance(shape, list) else shape
