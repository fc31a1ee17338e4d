"""When each operation of the simulated device would end, and which buffers its L2 would hold."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

L2_BYTES = 2**20
"""Small, so that few copies of small inputs fill it."""
MEMORY_BYTES_PER_S = 3.0e12
L2_BYTES_PER_S = 6.0e12
LINK_BYTES_PER_S = 50e9
LAUNCH_S = 2e-6
"""The least that an operation takes."""
TICK_S = 0.5e-6
PAUSE_S = 5e-3
"""A shorter pause does not show in the device's power."""
GRAPH_LAUNCH_S = 10e-6
"""From the moment that the host launches a graph to its first operation, on a device that waits for it."""
SPIN_S = 5e-3
"""The host spins at the end of a wait, as the CUDA runtime does: a process that was put to sleep wakes up late."""
FLOPS_PER_S = {"float32": 50e12, "bfloat16": 700e12, "float16": 700e12, "float64": 50e12}
FASTEST_FLOPS_PER_S = 1400e12
"""Of dtypes of one byte."""


@dataclass
class Timeline:
    """One device on which operations run one after the other, whatever stream they are on."""

    now_s: float = 0.0
    """When the last operation ends, on the host's clock."""
    owed: list[Callable[[], None]] = field(default_factory=list)
    """What computes the values of work that is queued."""
    _l2: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _worked: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1000))
    """Begin and end of the latest stretches of work; pauses below `PAUSE_S` are left out."""

    def run(self, seconds: float, latency_s: float = 0.0) -> float:
        """Queue work behind what is there, beginning no sooner than `latency_s` from now, and return when it ends."""
        self.now_s = max(self.now_s, time.perf_counter() + latency_s)
        begin_s = self.now_s
        if self._worked and begin_s - self._worked[-1][1] < PAUSE_S:
            begin_s = self._worked.pop()[0]
        self.now_s += seconds
        self._worked.append((begin_s, self.now_s))
        return self.now_s

    def busy_s(self, begin_s: float, end_s: float) -> float:
        """Return for how long it worked between two moments, seconds."""
        return sum(max(0.0, min(end, end_s) - max(begin, begin_s)) for begin, end in self._worked)

    def wait(self) -> None:
        """Wait on the host until all work has ended."""
        while (left_s := self.now_s - time.perf_counter()) > 0:
            if left_s > SPIN_S:
                time.sleep(left_s - SPIN_S)
        self.catch_up()

    def catch_up(self) -> None:
        """Compute the values of what was queued: on the host that takes longer than the device's clock says."""
        while self.owed:
            self.owed.pop(0)()

    def operation_s(self, buffers: Iterable[tuple[int, int]], flops: int = 0, dtype: str = "") -> float:
        """Return the seconds of an operation that touches buffers, as pairs of address and bytes."""
        memory_s = sum(self._touch_s(address, size_bytes) for address, size_bytes in buffers)
        return max(LAUNCH_S, memory_s, flops / FLOPS_PER_S.get(dtype, FASTEST_FLOPS_PER_S))

    def _touch_s(self, address: int, size_bytes: int) -> float:
        """Return the seconds that moving a buffer takes; it is the newest of the L2 afterwards."""
        is_there = self._l2.pop(address, None) is not None
        self._l2[address] = size_bytes
        held = sum(self._l2.values())
        while held > L2_BYTES:
            held -= self._l2.popitem(last=False)[1]
        return size_bytes / (L2_BYTES_PER_S if is_there else MEMORY_BYTES_PER_S)


TIMELINE = Timeline()
