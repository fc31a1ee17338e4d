"""The time of a run: what rows are expected to take, and how a budget is shared among them.

The time of a case is estimated before it is run, from smaller cases, so that no command hangs: on one machine a dtype
may be a thousand times slower than another (fp16 matmul on a CPU without fp16 arithmetic).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from bench.harness.data.inputs import Filler, make_sets, plan_rotation
from bench.harness.device.device import Device
from bench.harness.measure.rows import Row, Settings, out_of_time
from bench.harness.op import Case, Op, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from results.record import Record
from results.show.units import duration

MIN_SHARE_S = 1.0
"""Seconds that a row gets as long as the budget lasts: in less time few intervals become narrow."""

MAX_SHARES = 3.0
"""A row may take this many times its share of the time, because most rows take less than theirs."""

CASE_ALLOWANCE_S = 10.0
"""Time that one case may take without a budget; a larger budget allows more."""

PREPARE_S_PER_BYTE = {"cpu": 2e-9, "cuda": 1e-10, "rocm": 1e-10}
"""Seconds to fill, copy and check the inputs of a case, per byte of all copies. A CPU: as measured on two cores. A GPU:
at 1 TB/s, with a hundred bytes moved for each, most of them for the fp64 reference."""

MIN_ROW_S = 0.7
"""Seconds that the smallest row takes outside of its samples: settling, warm launches, latency, loading the kernel."""

CHECK_S_PER_BYTE = 3e-8
"""Time to check the result twice on a processor, per byte of one set of inputs and outputs, as two cores take it."""

SMALL_WORK = 2**23
"""FLOPs plus bytes below which a case needs no estimate: at the slowest rate seen, 1 GFLOP/s, it takes 8 ms."""

LONG_ENOUGH_S = 0.05
"""A pilot that takes this long can be scaled up: launches, caches and the 4 to 16 ms that a busy machine's scheduler
adds to a call of several threads are small beside it."""

PILOT_CALLS = 5
LEAST_PILOT_CALLS = 3
PILOT_CAP_S = 0.05
"""A pilot is called `PILOT_CALLS` times, or fewer where the calls together take this long, but three times in any case:
a busy machine may delay a single call of a small pilot by 50 ms, and the estimate of a large case multiplies that."""

CALLS_PER_CASE = 15
"""Calls that even the shortest measurement makes: ten (first, estimate, settling, five samples, warm, last check),
times 1.5, because a case that is larger than its pilot no longer fits into the caches that the pilot fitted into."""


def total(op: Op, case: Case) -> int:
    """Return FLOPs plus bytes: grows as fast as the time does, whichever of the two binds."""
    work = op.work(case)
    return work.flops + work.bytes


class Budget:
    """The time that is left for the rows of a run, what rows are expected to take, and what they have taken."""

    def __init__(
        self,
        device: Device,
        settings: Settings,
        deadline: float | None = None,
        rows: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin with `rows` rows to come; `deadline` is a reading of the clock, None without a budget."""
        self._device, self._settings, self.deadline, self._rows = device, settings, deadline, rows
        self._clock, self._began = clock, clock()
        self._least_s, self._overhead_s, self._expected_s = math.inf, 0.0, 0.0
        self._pilots: dict[tuple[str, str], tuple[int, float]] = {}
        """By op and dtype the largest case timed so far: its FLOPs plus bytes, and the seconds of a call."""

    def left_s(self) -> float | None:
        """Return the seconds that are left; None without a budget."""
        return None if self.deadline is None else self.deadline - self._clock()

    def sharing(self, done: int) -> int:
        """Return how many rows share the time that is left when `done` are done: fewer than all if it is short."""
        left_s, to_come = self.left_s(), self._rows - done
        return to_come if left_s is None else max(1, min(to_come, int(left_s / MIN_SHARE_S)))

    def has_time(self, expected_s: float = 0.0) -> bool:
        """Return whether another row could end in time; the first row is tried in any case.

        `expected_s` is what it is expected to take beside its samples. It takes at least the least that any row took.
        """
        left_s = self.left_s()
        return left_s is None or left_s > (max(self._least_s, self._likely_s(expected_s)) if self._overhead_s else 0)

    def is_too_long(self, expected_s: float, done: int) -> bool:
        """Return whether a row that is expected to take so long would take several times its share of what is left."""
        left_s = self.left_s()
        return left_s is not None and self._likely_s(expected_s) > MAX_SHARES * left_s / self.sharing(done)

    def _likely_s(self, expected_s: float) -> float:
        """Return what a row will take if it exceeds what is expected as much as the rows so far did."""
        return expected_s * (self._overhead_s / self._expected_s if self._expected_s else 1.0)

    def took(self, record: Record, began: float, expected_s: float = 0.0, row: Row | None = None) -> None:
        """Learn from a record whose row began at a reading of the clock; one that was not measured teaches nothing."""
        if record.status != "ok":
            return
        timed_s = sum(record.samples_s) * (record.launches_per_sample or 0)
        beside_s = max(0.0, self._clock() - began - timed_s)
        self._least_s = min(self._least_s, beside_s)
        self._overhead_s += beside_s
        self._expected_s += expected_s
        if row is not None and record.provider == "torch" and record.median_s:
            key, size = (row.op.name, row.case.dtype), total(row.op, row.case)
            if size > self._pilots.get(key, (0, 0.0))[0]:
                self._pilots[key] = size, record.median_s

    def enough_s(self, done: int) -> int:
        """Return a budget in whole seconds that would do for about all rows, going by those that are done."""
        return round((self._clock() - self._began) / max(1, done) * self._rows) + 1

    def refusal(self, row: Row, together: int = 1) -> str | None:
        """Return why a row is not to be started, or None: it would take more than the time that is left.

        `together` is for how many providers the estimate is, if several are measured at once.
        """
        left_s = self.left_s()
        if left_s is None and total(row.op, row.case) <= SMALL_WORK:
            return None
        if left_s is None:
            allowance_s, together, limit = CASE_ALLOWANCE_S, 1, f"the {CASE_ALLOWANCE_S:g} s limit"
        else:
            allowance_s, limit = left_s, f"the {duration(left_s)} left"
        if allowance_s <= 0:
            return out_of_time(self._settings.budget_s)
        call_s = self.call_s(row.op, row.case)
        case_s = (call_s or 0.0) * CALLS_PER_CASE * together + self.prepare_s(row)
        if case_s <= allowance_s:
            return None
        launch = f" ({duration(call_s)} per launch)" if call_s else ""
        spent_s = (self._settings.budget_s or allowance_s) - allowance_s
        enough = math.ceil(spent_s + case_s * 1.5)  # rounded down it could be less than the budget that did not do
        return f"estimated {duration(case_s)} for this case{launch} exceeds {limit}; use --budget {enough}"

    def expected_s(self, row: Row) -> float:
        """Return what a row that can run is expected to take beside its samples, seconds; roughly."""
        calls_s = 0.0
        with suppress(Exception):  # the row itself will say why
            calls_s = (self.call_s(row.op, row.case) or 0.0) * CALLS_PER_CASE
        check_s = 0.0 if self._device.is_gpu else CHECK_S_PER_BYTE * row.op.work(row.case).bytes
        return MIN_ROW_S + calls_s + self.prepare_s(row) + check_s

    def prepare_s(self, row: Row) -> float:
        device, size_bytes = self._device, row.op.work(row.case).bytes
        place = device.cache_bytes, device.free_bytes(), device.type
        copies = plan_rotation(size_bytes, *place, row.settings.cache).copies
        return PREPARE_S_PER_BYTE[device.type] * copies * size_bytes

    def call_s(self, op: Op, case: Case) -> float | None:
        """Return the seconds of one call by eager torch, estimated by the largest smaller case; None if short."""
        work = total(op, case)
        if work <= SMALL_WORK:
            return None
        size, seconds = self._pilots.get((op.name, case.dtype), (0, 0.0))
        for smaller in smaller_cases(op, case):
            if seconds >= LONG_ENOUGH_S:
                break
            with suppress(UnsupportedCaseError):  # some dtypes have a least extent, and halving may fall below it
                op.check(smaller, self._device.type)
                if total(op, smaller) > size:
                    size, seconds = total(op, smaller), self._time(op, smaller)
        self._pilots[op.name, case.dtype] = size, seconds
        return seconds * work / size if size else None

    def _time(self, op: Op, case: Case) -> float:
        """Return the seconds of a call of a small case: the fastest of a few after the first, which loads libraries.

        The fastest, because on a busy machine a short call that is interrupted takes a hundred times as long, and
        the estimate is scaled up from it.
        """
        filler = Filler(self._settings.fill, case.dtype, self._device, self._settings.seed)
        call = load("torch", op, "", self._device).call(make_sets(op, case, filler, self._device, 1)[0])
        seconds: list[float] = []
        with numerics(case.dtype):
            call()
            while len(seconds) < LEAST_PILOT_CALLS or (len(seconds) < PILOT_CALLS and sum(seconds) < PILOT_CAP_S):
                self._device.synchronize()
                start = time.perf_counter()
                call()
                self._device.synchronize()
                seconds.append(time.perf_counter() - start)
        return max(min(seconds), 1e-9)


def smaller_cases(op: Op, case: Case) -> list[Case]:
    """Return the same case with all axes and the batch halved again and again, smallest first, without itself.

    Extents stay multiples of 16, which every dtype's instructions take, and the largest is far smaller than the
    case, so that the pilots together cost little of what they save.
    """
    cases = [case]
    while total(op, cases[-1]) >= SMALL_WORK // 32 or len(cases) == 1:
        larger = cases[-1]
        shape = {axis: max(1, extent // 2) // 16 * 16 or min(extent, 16) for axis, extent in larger.shape.items()}
        batch = {"batch": max(1, larger.options["batch"] // 2)} if "batch" in larger.options else {}
        smaller = replace(case, shape=shape, options={**larger.options, **batch})
        if smaller == larger:
            break
        cases.append(smaller)
    return cases[:0:-1]
