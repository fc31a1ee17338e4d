"""How a time budget is shared among rows, and the estimated time of a row.

A case is estimated from smaller cases before it runs, so that no command hangs: one dtype may be a
thousand times slower than another on the same machine, such as fp16 matmul on a CPU without fp16
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from bench.harness import clock
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.device.device import Device
from bench.harness.measure.rows import Row, out_of_time, rotation_of
from bench.harness.op import Case, Op, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from bench.harness.settings import Settings
from results.record import Record
from results.show.units import duration

MIN_SHARE_S = 1.0
"""Minimum time of a row while the budget lasts: in less time, few intervals become narrow."""

MAX_SHARES = 3.0
"""A row may take this many times its share, because most rows take less than theirs."""

CASE_ALLOWANCE_S = 10.0
"""Time limit of a case if there is no budget."""

PREPARE_S_PER_BYTE = {"cpu": 2e-9, "cuda": 1e-10, "rocm": 1e-10}
"""Time to fill, copy and check the inputs of a case, per byte of all copies. CPU: measured on two
cores. GPU: 100 bytes moved per byte at 1 TB/s, most of them for the fp64 reference."""

MIN_ROW_S = 0.7
"""Time of the smallest row outside its samples: settling, warm launches, latency, loading the
kernel.
"""

CHECK_S_PER_BYTE = 3e-8
"""Time to check the result twice on a CPU, per byte of one set of inputs and outputs; measured on
two cores.
"""

SMALL_WORK = 2**23
"""FLOPs plus bytes below which a case is not estimated: at 1 GFLOP/s, the slowest rate seen, it
takes 8 ms.
"""

MIN_PILOT_S = 0.05
"""Growth of the time from one pilot to the next that can be scaled up: much longer than launches,
cache effects and the 4 to 16 ms that a busy machine's scheduler adds to a call of several threads.
"""

MAX_DELAY_S = 0.2
"""Other processes delay a call by less: at load 7 on two cores, the fastest of five calls of a
40x40x40 matmul took up to 64 ms."""

MAX_UNIT_GROWTH = 2.0
"""A unit of work of a larger case costs at most this many times what it costs in a smaller one,
when its data no longer fits in a cache."""

MAX_PILOT_CALLS = 5
MIN_PILOT_CALLS = 3
MAX_PILOT_S = 0.05
"""Time after which a pilot is not called again, if it was called `MIN_PILOT_CALLS` times: a busy
machine may delay one call of a small pilot by 50 ms, and the estimate of a large case multiplies
that."""

CALLS_PER_CASE = 15
"""Minimum calls of a measurement: ten (first, estimate, settling, five samples, warm, last check),
times 1.5 because a case may no longer fit in the caches that its pilot fitted in."""


def total(op: Op, case: Case) -> int:
    """Return FLOPs plus bytes, which grow as fast as the time whether compute or memory limits
    it.
    """
    work = op.work(case)
    return work.flops + work.bytes


@dataclass
class Budget:
    """The time left for the rows of a run, and the time that rows are expected to take or took."""

    device: Device
    settings: Settings
    deadline: float = math.inf
    """Reading of `clock.now`; infinite: there is no budget."""
    rows: int = 1
    _min_overhead_s: float = math.inf
    _overhead_s: float = 0.0
    _expected_s: float = 0.0
    _lateness: float = 1.0
    """Actual over expected time so far."""
    _pilots: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    """Seconds of a call by FLOPs plus bytes, of the cases timed so far, by op and dtype."""

    def left_s(self) -> float:
        return self.deadline - clock.now()

    def sharing(self, done: int) -> int:
        """Return how many rows share the time left after `done` rows: fewer than all if it is
        short.
        """
        return max(1, int(min(self.rows - done, self.left_s() / MIN_SHARE_S)))

    def has_time(self, expected_s: float = 0.0) -> bool:
        """Return whether another row could finish in time; the first row is always tried.

        `expected_s` is the expected time outside its samples; no row takes less than the fastest
        row so far.
        """
        needed_s = 0.0
        if self._overhead_s:
            needed_s = max(self._min_overhead_s, self._lateness * expected_s)
        return self.left_s() > needed_s

    def is_too_long(self, expected_s: float, done: int) -> bool:
        return self._lateness * expected_s > MAX_SHARES * self.left_s() / self.sharing(done)

    def took(
        self, record: Record, began: float, expected_s: float = 0.0, row: Row | None = None
    ) -> None:
        """Learn from a measured record; `began` is the reading of the clock at the start of its
        row.
        """
        if record.status != "ok":
            return
        timed_s = sum(record.samples_s) * (record.launches_per_sample or 0)
        overhead_s = max(0.0, clock.now() - began - timed_s)
        self._min_overhead_s = min(self._min_overhead_s, overhead_s)
        self._overhead_s += overhead_s
        self._expected_s += expected_s
        if self._expected_s:
            self._lateness = self._overhead_s / self._expected_s
        if row is not None and record.provider == "torch" and record.median_s:
            key = (row.op.name, row.case.dtype)
            size = total(row.op, row.case)
            if size > max(self._pilots.get(key, {}), default=0):
                # A median is scaled as it is: it is not one disturbed call.
                self._pilots[key] = {0: 0.0, size: record.median_s}

    def enough_s(self, done: int, spent_s: float) -> int:
        """Return a budget in seconds for about all rows, extrapolated from the `done` rows, which
        took `spent_s`, or twice the budget.
        """
        budget_s = self.settings.budget_s or 0.0
        row_s = spent_s / done if done else budget_s / self.rows
        return round(budget_s + (self.rows - done) * row_s) + 1

    def refusal(self, row: Row, together: int = 1) -> str | None:
        """Return the reason to skip a row that would exceed the time left, or None.

        `together` is the number of providers that are measured together.
        """
        allowance_s = self.left_s()
        if allowance_s < math.inf:
            limit = f"the {duration(allowance_s)} left"
        elif total(row.op, row.case) <= SMALL_WORK:
            return None
        else:
            allowance_s = CASE_ALLOWANCE_S
            together = 1
            limit = f"the {CASE_ALLOWANCE_S:g} s limit"
        if allowance_s <= 0:
            return out_of_time(self.settings.budget_s)
        call_s = self.call_s(row.op, row.case)
        case_s = (call_s or 0.0) * CALLS_PER_CASE * together + self.prepare_s(row)
        if case_s <= allowance_s:
            return None
        launch = f" ({duration(call_s)} per launch)" if call_s else ""
        spent_s = (self.settings.budget_s or allowance_s) - allowance_s
        # Rounded down it could be less than the current budget.
        enough = math.ceil(spent_s + case_s * 1.5)
        return (
            f"estimated {duration(case_s)} for this case{launch} exceeds {limit}; use --budget "
            f"{enough}"
        )

    def expected_s(self, row: Row) -> float:
        """Return the rough time of a row outside its samples, seconds."""
        calls_s = 0.0
        with suppress(Exception):  # the row itself will say why
            calls_s = (self.call_s(row.op, row.case) or 0.0) * CALLS_PER_CASE
        check_s = 0.0 if self.device.is_gpu else CHECK_S_PER_BYTE * row.op.work(row.case).bytes
        return MIN_ROW_S + calls_s + self.prepare_s(row) + check_s

    def prepare_s(self, row: Row) -> float:
        copies = rotation_of(row, self.device).copies
        return PREPARE_S_PER_BYTE[self.device.type] * copies * row.op.work(row.case).bytes

    def call_s(self, op: Op, case: Case) -> float | None:
        """Return the seconds of one call by eager torch, estimated from smaller cases; None if
        short.
        """
        work = total(op, case)
        if work <= SMALL_WORK:
            return None
        times_s = self._pilots.setdefault((op.name, case.dtype), {})
        for smaller in smaller_cases(op, case):
            if is_scalable(times_s):
                break
            with suppress(UnsupportedCaseError):  # some dtypes have a minimum extent
                op.check(smaller, self.device.type)
                size = total(op, smaller)
                if size > max(times_s, default=0):
                    times_s[size] = self._time(op, smaller)
        return scaled_s(times_s, work) if times_s else None

    def _time(self, op: Op, case: Case) -> float:
        """Return the seconds of the fastest of a few calls after the first, which loads libraries.

        The fastest, because a short call that is interrupted takes a hundred times as long.
        """
        filler = Filler(self.settings.fill, case.dtype, self.device, self.settings.seed)
        call = load("torch", op, "", self.device).call(
            make_sets(op, case, filler, self.device, 1)[0]
        )
        seconds: list[float] = []
        with numerics(case.dtype):
            call()
            while len(seconds) < MIN_PILOT_CALLS or (
                len(seconds) < MAX_PILOT_CALLS and sum(seconds) < MAX_PILOT_S
            ):
                self.device.synchronize()
                start = clock.now()
                call()
                self.device.synchronize()
                seconds.append(clock.now() - start)
        return max(min(seconds), 1e-9)


def is_scalable(times_s: Mapping[int, float]) -> bool:
    """Return whether the two largest cases timed are enough to estimate larger ones.

    Their times differ clearly, and a unit of work costs about the same in both: a call that waited
    for other processes looks like much work, and the next larger case shows that it was not.
    """
    if len(times_s) < 2:
        return False
    second, largest = sorted(times_s)[-2:]
    growth_s = times_s[largest] - times_s[second]
    if growth_s >= MAX_DELAY_S:
        return True
    return growth_s >= MIN_PILOT_S and growth_s <= (largest - second) * max_unit_s(times_s, second)


def max_unit_s(times_s: Mapping[int, float], size: int) -> float:
    """Return the maximum time of a unit of work in larger cases than this one."""
    return MAX_UNIT_GROWTH * times_s[size] / size if size else math.inf


def scaled_s(times_s: Mapping[int, float], work: int) -> float:
    """Return the seconds of a case of more `work` than those timed.

    A unit of work costs what it costs between the two largest, so that a delay that every call has
    is not scaled.
    """
    largest = max(times_s)
    if len(times_s) == 1:
        return times_s[largest] * work / largest
    second = sorted(times_s)[-2]
    unit_s = (times_s[largest] - times_s[second]) / (largest - second)
    return max(times_s[largest], min(unit_s, max_unit_s(times_s, second)) * work)


def smaller_cases(op: Op, case: Case) -> list[Case]:
    """Return the same case with all axes and the batch halved repeatedly, smallest first, without
    itself.

    Extents stay multiples of 16, which the instructions of every dtype accept.
    """
    cases = [case]
    while total(op, cases[-1]) >= SMALL_WORK // 32:
        larger = cases[-1]
        shape = {
            axis: max(1, extent // 2) // 16 * 16 or min(extent, 16)
            for axis, extent in larger.shape.items()
        }
        batch = {"batch": max(1, larger.options["batch"] // 2)} if "batch" in larger.options else {}
        smaller = replace(case, shape=shape, options={**larger.options, **batch})
        if smaller == larger:
            break
        cases.append(smaller)
    return cases[:0:-1]
