"""Interleaves the contenders of one case in rounds until their verdicts are clear.

A drifting clock or another process affects all contenders alike and cancels out in ratios within a
round. The memory of call objects and inputs changes the time of a short launch by up to 5 %, so
contenders share copies of the inputs and exchange copies and objects: see `Exchange`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from bench.comparing.contender import Contender, Exchange, running, share_launches
from bench.harness import clock, worker
from bench.harness.device.device import Device
from bench.harness.device.telemetry import POLL_EVERY_S, Poller, row_telemetry, snapshot
from bench.harness.measure.flags import disturbance
from bench.harness.measure.measure_row import warm_median_s
from bench.harness.timing import samplers
from bench.harness.timing.protocol import LIMITS, Samples, no_garbage_collection, settle
from results import record as saved
from results.compare.flags import MIN_DISTURBED_ROUNDS
from results.record import Object, Record
from results.stats.comparison import (
    FASTER,
    MAX_ROUNDS,
    MIN_PAIRS,
    SAME,
    SLOWER,
    VERDICT_ERROR,
    Comparison,
    judge_rounds,
)
from results.stats.samples import drift, half_width, median_ci95, two_modes

SLOT_S = {"cpu": 0.0, "cuda": 0.025, "rocm": 0.025}
"""Length of a turn, seconds. On a GPU it is long enough for the clock frequency to follow the work.
On a CPU it is one sample, so that another process affects both of a pair."""

CALIBRATION_TURNS = 3
"""Last turns of the warm-up that determine the number of samples per turn."""

FIRST_LOOK = 20
"""Rounds before the first look: two blocks of ten give a usable interval."""

LOOK_EVERY = 2
"""Factor by which the number of rounds grows until the next look."""

EXCHANGE_EVERY = 5
"""Rounds between exchanges: few, because each exchange is one random draw, but not so few that
exchanges take longer than the rounds."""

Turn = Callable[[], tuple[float, ...] | None]
"""Runs a contender for one turn and returns its samples, seconds per launch; None if it failed and
is out.
"""


@dataclass(frozen=True)
class ComparePolicy:
    """When to stop a comparison."""

    margin: float
    """Maximum change of the time, as a fraction, that does not matter."""
    budget_s: float = 10.0
    """Time limit of the rounds of a case: some thousand rounds of two short kernels."""
    rounds: int | None = None
    """Fixed number of rounds, with one look at the end; None: until the verdicts are clear."""
    seed: int = 0
    rows: int = 1
    """Comparisons in the whole table, for the correction of verdicts."""
    deadline: float = math.inf
    """Reading of `clock.now` at which to stop, including preparation."""

    def to_dict(self) -> Object:
        return {name: getattr(self, name) for name in ("margin", "budget_s", "rounds", "seed")}

    def left_s(self, now: float) -> float:
        """Return the time limit of rounds that begin now, seconds."""
        return min(self.budget_s, self.deadline - now)


@dataclass
class Rounds:
    """The samples and the clock of each contender by round, the baseline first."""

    slots: list[list[tuple[float, ...]]]
    clocks_hz: list[list[float | None]]
    failed: set[int] = field(default_factory=set)
    seconds: float = 0.0
    is_clear: bool = False

    @property
    def count(self) -> int:
        return len(self.slots[0])

    def running(self) -> list[int]:
        """Return the indices of the contenders that have not failed; none if the baseline has."""
        if 0 in self.failed:
            return []
        return [index for index in range(len(self.slots)) if index not in self.failed]

    def comparison(
        self, index: int, policy: ComparePolicy, is_disturbed: bool = False
    ) -> Comparison:
        count = len(self.slots[index])
        baseline = list(map(median, self.slots[0][:count]))
        candidate = list(map(median, self.slots[index]))
        is_fixed = policy.rounds is not None
        return judge_rounds(baseline, candidate, policy.margin, is_fixed, is_disturbed)

    def are_clear(self, policy: ComparePolicy, is_disturbed: bool) -> bool:
        """Return whether each verdict is SAME, or significant among all rows of the table."""
        candidates = self.running()[1:] if self.count else []
        compared = [self.comparison(index, policy, is_disturbed) for index in candidates]
        return bool(compared) and all(
            row.verdict == SAME
            or (row.verdict in (FASTER, SLOWER) and row.p_value <= VERDICT_ERROR / policy.rows)
            for row in compared
        )

    def details_of(self, index: int, policy: ComparePolicy, names: Sequence[str]) -> saved.Rounds:
        slots = self.slots[index]
        clocks_hz = self.clocks_hz[index]
        known_hz = tuple(clock_hz for clock_hz in clocks_hz if clock_hz is not None)
        return saved.Rounds(
            names=tuple(names),
            rounds=len(slots),
            samples_per_round=len(slots[0]),
            is_fixed=policy.rounds is not None,
            is_clear=self.is_clear,
            seconds=self.seconds,
            seed=policy.seed,
            sm_clock_hz=known_hz if known_hz and len(known_hz) == len(clocks_hz) else None,
        )

    def look_disturbed(self) -> bool:
        sides = [list(itertools.chain(*self.slots[index])) for index in self.running()]
        return any(
            two_modes(samples_s) is not None or drift(samples_s) is not None for samples_s in sides
        )


def compare_contenders(
    contenders: Sequence[Contender],
    device: Device,
    policy: ComparePolicy,
    timed_in: AbstractContextManager[None],
) -> list[Record]:
    """Prepare contenders, the baseline first, interleave them in the context `timed_in`, and return
    their records.

    Nothing is timed if the baseline or all others cannot run or are wrong.
    """
    ready: list[Contender] = []
    for contender in contenders:
        if contenders[0].record is None:
            contender.attempt(partial(contender.prepare, ready))
            worker.end_with_parent()
            ready += running([contender])
    if contenders[0].record is None and len(ready) > 1:
        with timed_in:
            take_turns(ready, device, policy)
    return completed(
        [contender.blank for contender in contenders],
        [contender.record for contender in contenders],
    )


def completed(blanks: Sequence[Record], records: Sequence[Record | None]) -> list[Record]:
    """Return the records of a case, with a reason for those that had nothing to be compared
    with.
    """
    reasons = [
        f"{record.provider} {record.status}: {record.reason}"
        for record in records
        if record is not None
    ]
    return [
        record or replace(blank, reason=f"nothing to compare with: {reasons[0]}")
        for blank, record in zip(blanks, records, strict=True)
    ]


def run_rounds(
    turns: Sequence[Turn],
    policy: ComparePolicy,
    now: Callable[[], float] = clock.now,
    clock_hz: Callable[[int], float | None] = lambda _: None,
    exchange: Callable[[], object] = lambda: None,
    is_disturbed: Callable[[], bool] = lambda: False,
) -> Rounds:
    """Run rounds until every verdict is clear, the time limit is reached, or nothing is left to
    compare.

    `clock_hz` returns the SM clock that was last read in a turn of the contender of an index. A
    verdict takes more rounds if `is_disturbed` or the samples show interference.
    """
    rounds = Rounds([[] for _ in turns], [[] for _ in turns])
    order = random.Random(policy.seed)
    start = now()
    limit_s = policy.left_s(start)
    next_look = FIRST_LOOK
    with no_garbage_collection():
        while not rounds.is_clear and rounds.count < (policy.rounds or MAX_ROUNDS):
            running = rounds.running()
            if len(running) < 2:
                break
            if rounds.count % EXCHANGE_EVERY == 0:
                exchange()
            for index in order.sample(running, len(running)):
                samples_s = turns[index]()
                if samples_s is None:
                    rounds.failed.add(index)
                    continue
                rounds.slots[index].append(samples_s)
                rounds.clocks_hz[index].append(clock_hz(index))
            rounds.seconds = now() - start
            if policy.rounds is None and rounds.count >= next_look:
                next_look *= LOOK_EVERY
                has_lost_time = is_disturbed()
                rounds.is_clear = rounds.are_clear(policy, has_lost_time) and (
                    rounds.count >= MIN_DISTURBED_ROUNDS
                    or not (has_lost_time or rounds.look_disturbed())
                )
            if rounds.seconds >= limit_s and rounds.count >= MIN_PAIRS:
                break
    rounds.is_clear = rounds.are_clear(policy, is_disturbed())
    return rounds


def take_turns(contenders: Sequence[Contender], device: Device, policy: ComparePolicy) -> None:
    """Interleave prepared contenders and set their records, unless the baseline has failed."""
    for index, contender in enumerate(contenders):
        # One reading every `POLL_EVERY_S`, of each contender in turn.
        poller = Poller(device, every_s=POLL_EVERY_S * len(contenders))
        # All rotate through the same copies, as far apart as possible, so that none finds another's
        # data in the cache.
        contender.attempt(
            partial(contender.begin, index * len(contender.calls) // len(contenders), poller)
        )
    settled = warm_up(contenders, device)
    ready = running(contenders)
    if contenders[0].record is not None or len(ready) < 2:
        return
    for contender in ready:
        contender.poller.begin()
    before = snapshot(device)

    def clock_hz(index: int) -> float | None:
        readings = ready[index].poller.readings
        return readings[-1].sm_clock_hz if readings else None

    def telemetry() -> Object:
        # Without the number of launches: the energy of interleaved contenders cannot be separated.
        return row_telemetry(before, snapshot(device))

    rounds = run_rounds(
        [contender.slot for contender in ready],
        policy,
        clock_hz=clock_hz,
        exchange=Exchange(ready, policy.seed, policy.left_s(clock.now())),
        is_disturbed=lambda: disturbance(telemetry(), device.is_gpu) is not None,
    )
    during = telemetry()
    names = [contender.blank.provider for contender in ready]

    def finish(index: int) -> Record:
        record = ready[index].finish(samples_of(ready[index], rounds, index, settled, during))
        if not record.samples_s:
            return record
        return replace(record, details=rounds.details_of(index, policy, names))

    for index in rounds.running():
        contender = ready[index]
        contender.record = contender.attempt(partial(finish, index)) or contender.record


def warm_up(contenders: Sequence[Contender], device: Device) -> bool:
    """Run turns until the time is steady, then set the number of samples per turn; return whether
    it became steady.
    """
    times_s: list[list[float]] = [[] for _ in contenders]

    def work() -> float:
        for contender, taken_s in zip(contenders, times_s, strict=True):
            if contender.record is None and (samples_s := contender.slot()) is not None:
                taken_s.append(samples_s[0] * contender.sampler.launches_per_sample)
        return sum(taken_s[-1] for taken_s in times_s if taken_s)

    share_launches(contenders)
    settling = settle(work, LIMITS[device.type])
    for contender, taken_s in zip(contenders, times_s, strict=True):
        if contender.record is None:
            # A single turn may be delayed.
            contender.call_s = min(taken_s) / contender.sampler.launches_per_sample
            sample_s = max(median(taken_s[-CALIBRATION_TURNS:]), 1e-9)
            contender.samples = max(1, math.floor(SLOT_S[device.type] / sample_s))
    share_launches(contenders)
    return settling.settled


def samples_of(
    contender: Contender, rounds: Rounds, index: int, settled: bool, telemetry: Object
) -> Samples:
    calls = contender.calls
    device = contender.device
    limits = LIMITS[device.type]
    samples_s = tuple(itertools.chain(*rounds.slots[index]))
    middle = median(samples_s)
    interval = median_ci95(samples_s)
    is_narrow = half_width(interval, middle) <= limits.target_half_width
    # All contenders share the telemetry, except the clock.
    clocks_hz = [clock for clock in rounds.clocks_hz[index] if clock is not None]
    samples = Samples(
        samples_s=samples_s,
        launches_per_sample=contender.sampler.launches_per_sample,
        method=contender.sampler.method,
        cache=contender.cache,
        median_s=middle,
        ci95_s=interval,
        converged=len(samples_s) >= limits.min_samples and is_narrow,
        settled=settled,
        tick_s=samplers.tick_s(device),
        target_half_width=limits.target_half_width,
        telemetry=telemetry | ({"sm_clock_hz": median(clocks_hz)} if clocks_hz else {}),
        why_no_graph=contender.sampler.why_no_graph,
    )
    if contender.restore is not None:
        return replace(samples, is_single=len(calls) == 1)
    return replace(
        samples,
        host_launch_s=samplers.host_launch_s(calls, device.synchronize),
        host_latency_s=samplers.host_latency_s(calls, device.synchronize),
        warm_median_s=warm_median_s(calls, samples, device),
    )
