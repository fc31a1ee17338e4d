"""Estimates the time of a case before it is run, from smaller cases, so that no command hangs.

On one machine a dtype may be a thousand times slower than another (fp16 matmul on a CPU without fp16 arithmetic).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from bench.harness.data.inputs import Filler, make_sets
from bench.harness.device.device import Device
from bench.harness.op import Case, Op, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from roofline.work import Work

SMALL_WORK = 2**22
"""FLOPs plus bytes below which a case needs no estimate: at the slowest rate seen, 1 GFLOP/s, it takes 4 ms."""

LONG_ENOUGH_S = 0.05
"""A pilot that takes this long can be scaled up: launches, caches and the 4 to 16 ms that a busy machine's scheduler
adds to a call of several threads are small beside it."""

PILOT_CALLS = 5
LEAST_PILOT_CALLS = 3
PILOT_CAP_S = 0.05
"""A pilot is called `PILOT_CALLS` times, or fewer where the calls together take this long, but three times in any case:
a busy machine may delay a single call of a small pilot by 50 ms, and the estimate of a large case multiplies that."""

LEAST_BUSY = 0.1
"""A pilot on a CPU that computes for less than this share of its time is waiting, and not held up by other
processes."""

CALLS_PER_CASE = 15
"""Calls that even the shortest measurement makes: ten (first, estimate, settling, five samples, warm, last check),
times 1.5, because a case that is larger than its pilot no longer fits into the caches that the pilot fitted into."""


@dataclass(frozen=True)
class Pilot:
    """A smaller case of the same op and dtype, and what a call of it took."""

    size: int
    seconds: float


def total(work: Work) -> int:
    """Return FLOPs plus bytes: grows as fast as the time does, whichever of the two binds."""
    return work.flops + work.bytes


class CostEstimator:
    """Estimates the time of a call by eager torch from the largest smaller case seen."""

    def __init__(self, device: Device, fill: str, seed: int) -> None:
        """Start with no case seen."""
        self._device, self._fill, self._seed = device, fill, seed
        self._pilots: dict[tuple[str, str], Pilot] = {}

    def call_s(self, op: Op, case: Case) -> float | None:
        """Return the estimated seconds of one call, or None where the case is too small to need it."""
        size = total(op.work(case))
        if size <= SMALL_WORK:
            return None
        key = (op.name, case.dtype)
        pilot = self._pilots.get(key) or Pilot(0, 0.0)
        for smaller in smaller_cases(op, case):
            if pilot.seconds >= LONG_ENOUGH_S:
                break
            if total(op.work(smaller)) > pilot.size and self._can_run(op, smaller):
                pilot = Pilot(total(op.work(smaller)), self._time(op, smaller))
        self._pilots[key] = pilot
        return pilot.seconds * size / pilot.size if pilot.size else None

    def case_s(self, op: Op, case: Case) -> float:
        """Return the seconds that the shortest measurement of a case takes on the device, as estimated."""
        return (self.call_s(op, case) or 0.0) * CALLS_PER_CASE

    def learn(self, op: Op, case: Case, seconds: float) -> None:
        """Take a real measurement as the pilot of larger cases."""
        size, key = total(op.work(case)), (op.name, case.dtype)
        if key not in self._pilots or size > self._pilots[key].size:
            self._pilots[key] = Pilot(size, seconds)

    def _can_run(self, op: Op, case: Case) -> bool:
        """Return whether the op has this case: some dtypes have a least extent, and halving may fall below it."""
        try:
            op.check(case, self._device.type)
        except UnsupportedCaseError:
            return False
        return True

    def _time(self, op: Op, case: Case) -> float:
        """Return the seconds of a call of a small case: the fastest of a few after the first, which loads libraries.

        The fastest, because on a busy machine a short call that is interrupted takes a hundred times as long, and
        the estimate is scaled up from it.
        """
        filler = Filler(self._fill, case.dtype, self._device, self._seed)
        call = load("torch", op, "", self._device).call(make_sets(op, case, filler, self._device, 1)[0])
        seconds: list[float] = []
        with numerics(case.dtype):
            call()
            while len(seconds) < LEAST_PILOT_CALLS or (len(seconds) < PILOT_CALLS and sum(seconds) < PILOT_CAP_S):
                self._device.synchronize()
                start, cpu_start = time.perf_counter(), time.process_time()
                call()
                self._device.synchronize()
                took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
                # Elapsed time exceeds CPU time where others hold the cores; a call that sleeps uses hardly any.
                is_held_up = not self._device.is_gpu and took_s * LEAST_BUSY < cpu_s < took_s
                seconds.append(cpu_s if is_held_up else took_s)
        return max(min(seconds), 1e-9)


def smaller_cases(op: Op, case: Case) -> list[Case]:
    """Return the same case with all axes and the batch halved again and again, smallest first, without itself.

    Extents stay multiples of 16, which every dtype's instructions take, and the largest is far smaller than the
    case, so that the pilots together cost little of what they save.
    """
    cases: list[Case] = []
    larger = case
    while True:
        shape = {axis: max(1, extent // 2) // 16 * 16 or min(extent, 16) for axis, extent in larger.shape.items()}
        batch = {"batch": max(1, larger.options["batch"] // 2)} if "batch" in larger.options else {}
        smaller = replace(case, shape=shape, options={**larger.options, **batch})
        if smaller == larger:
            break
        cases.append(smaller)
        larger = smaller
        if total(op.work(smaller)) < SMALL_WORK // 16:
            break
    return cases[::-1]
