"""Finds the fastest of many configurations, then measures it again: a maximum of noisy readings is too high.

Two searches. `best_of` screens a handful of configurations of one kernel. `ShapeSearch` looks for the fastest matmul
among hundreds of shapes by successive halving: each round drops the slower half and measures the rest more often. Both
report samples that took no part in the choice.

Source: successive halving, Jamieson and Talwalkar, Non-stochastic best arm identification (AISTATS 2016).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.harness.calibrate.matmul_shapes import Shape
from bench.harness.measure.runner import one_line
from bench.harness.timing.protocol import Limits, Samples
from bench.harness.timing.samplers import Call
from results.stats.samples import median, quantile

Note = Callable[[str], None]
"""Takes a line that says what is being measured at the moment."""


def silent(line: str) -> None:
    """Ignore a note."""


Summary = Callable[[Sequence[float]], float]
"""The one time that represents several: the median, or on a shared machine the minimum, because other processes only
add time."""


class NotMeasuredError(RuntimeError):
    """A ceiling could not be measured here; the message says why in one line."""


Measure = Callable[[Sequence[Call], Limits], Samples]
"""The timing protocol: warms up, and samples launches that go round the calls, as the limits say."""


@dataclass(frozen=True)
class Trial:
    """How configurations are compared, and how the one that is chosen is measured."""

    measure: Measure
    screening: Limits
    """Limits while all configurations are compared."""
    confirming: Limits
    """Limits while the chosen one is measured."""
    note: Note = silent
    """Told the name of each configuration before it runs."""
    summary: Summary = median
    """What the screening compares."""


@dataclass(frozen=True)
class Launch:
    """One launch, and what it does."""

    call: Call
    work: int
    """Bytes that it moves, or FLOPs that it computes."""


@dataclass(frozen=True)
class Candidate:
    """One way to reach a ceiling."""

    name: str
    """The configuration in words."""
    prepare: Callable[[], Launch]


@dataclass(frozen=True)
class Rate:
    """Work per second of one configuration."""

    value: float
    """Work of a launch over the median time, B/s or FLOP/s."""
    ci95: tuple[float, float]
    config: str
    """The configuration in words."""
    work_per_launch: int
    """Bytes or FLOPs."""
    samples: Samples

    @property
    def p5_p95(self) -> tuple[float, float]:
        """Quantiles of the rates of the samples."""
        times_s = self.samples.samples_s
        return self.work_per_launch / quantile(times_s, 0.95), self.work_per_launch / quantile(times_s, 0.05)

    @property
    def fastest(self) -> float:
        """The rate of the fastest sample."""
        return self.work_per_launch / min(self.samples.samples_s)


def rate_of(config: str, work_per_launch: int, samples: Samples) -> Rate:
    """Return the rate that samples mean; the shortest time gives the upper end of the interval."""
    low_s, high_s = samples.ci95_s
    interval = (work_per_launch / high_s, work_per_launch / low_s)
    return Rate(work_per_launch / samples.median_s, interval, config, work_per_launch, samples)


@dataclass(frozen=True)
class Chosen:
    """The fastest of some candidates, measured again, and the results of the screening of all."""

    rate: Rate
    screened: tuple[tuple[str, float], ...]
    """Configuration and rate when screened, fastest first. The first of them is the choice, and reads high."""
    refused: tuple[tuple[str, str], ...]
    """Configurations that could not run here, and why."""


def not_tried(chosen: Chosen) -> tuple[str, ...]:
    """Return a line about the configurations that could not be compared, none where all were."""
    if not chosen.refused:
        return ()
    reasons = dict.fromkeys(reason for _, reason in chosen.refused)
    names = "; ".join(name for name, _ in chosen.refused)
    return (f"{names}: {', '.join(reasons)}; {chosen.rate.config} is the fastest of the others",)


def best_of(candidates: Iterable[Candidate], trial: Trial) -> Chosen:
    """Screen candidates, and measure the fastest once more.

    Raises:
        NotMeasuredError: none of them runs here.
    """
    screened: list[tuple[float, Candidate]] = []
    refused: list[tuple[str, str]] = []
    for candidate in candidates:
        trial.note(candidate.name)
        try:
            launch = candidate.prepare()
            screened.append(
                (launch.work / trial.summary(trial.measure([launch.call], trial.screening).samples_s), candidate)
            )
        except Exception as error:  # compilers and drivers raise classes of their own; the others still count
            refused.append((candidate.name, one_line(error)))
    if not screened:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused[:1])
        raise NotMeasuredError(f"none of {len(refused)} configurations runs here; {reasons or 'there are none'}")
    screened.sort(key=lambda pair: pair[0], reverse=True)
    winner = screened[0][1]
    trial.note(f"{winner.name}, again")
    launch = winner.prepare()
    rate = rate_of(winner.name, launch.work, trial.measure([launch.call], trial.confirming))
    return Chosen(rate, tuple((candidate.name, value) for value, candidate in screened), tuple(refused))


# ---- the fastest matmul -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchPlan:
    """How many samples a search takes, and how far it looks."""

    full_repetitions: int
    """Samples of each finalist, and of the confirmation."""
    first_repetitions: int = 1
    """Samples of every shape in the first round; every round doubles them."""
    local_steps: int = 3
    """Most moves to a neighbor after the halving."""
    summary: Summary = median
    """What is compared."""
    seed: int = 0
    """Seed of the order in which shapes are measured: machines drift, and no shape may gain by that."""


QUICK_LOOK = 8
"""A neighbor is first measured with this fraction of the full repetitions, `1 / QUICK_LOOK`."""


@dataclass(frozen=True)
class Found:
    """The fastest matmul that a search has seen."""

    shape: Shape
    samples_s: tuple[float, ...]
    """Seconds per launch."""
    is_confirmed: bool
    """Whether the samples are fresh: taken after the shape was chosen. Others read high."""


class ShapeSearch:
    """Looks for the fastest shape; `best` is what it has found so far, also after an interruption."""

    def __init__(
        self,
        shapes: Iterable[Shape],
        measure: Callable[[Shape, int], Sequence[float]],
        plan: SearchPlan,
        neighbors_of: Callable[[Shape], Iterable[Shape]] = lambda shape: (),
        is_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; nothing is measured yet.

        Args:
            shapes: the candidates.
            measure: `measure(shape, repetitions)` returns that many times of a launch, seconds, in the order taken;
                none where the shape cannot run here.
            plan: how hard to look.
            neighbors_of: where to look after the halving.
            is_spent: whether the time for looking is over; then only the confirmation is left.
        """
        self._alive = list(dict.fromkeys(shapes))
        self._measure, self._plan = measure, plan
        self._neighbors_of, self._is_spent = neighbors_of, is_spent
        self._samples_s: dict[Shape, list[float]] = {}
        self._confirmed: Found | None = None
        self._random = random.Random(plan.seed)
        self.repetitions = 0
        """Samples taken so far."""

    @property
    def best(self) -> Found | None:
        """The fastest shape so far; None before the first is measured."""
        if self._confirmed is not None:
            return self._confirmed
        measured = [shape for shape in self._alive if self._samples_s.get(shape)]
        if not measured:
            return None
        shape = max(measured, key=self._rate)
        return Found(shape, tuple(self._samples_s[shape]), is_confirmed=False)

    def run(self, note: Note = silent) -> Found:
        """Return the fastest shape with samples of its own.

        Raises:
            NotMeasuredError: no shape can run here.
        """
        self._halve(note)
        if self.best is None:
            raise NotMeasuredError("no shape of the search can run here")
        self._step_locally(note)
        winner = self.best.shape
        note(f"{winner.name}, again")
        samples_s = self._take(winner, self._plan.full_repetitions)
        self._confirmed = Found(winner, tuple(samples_s), is_confirmed=True) if samples_s else None
        found = self.best
        assert found is not None
        return found

    def _halve(self, note: Note) -> None:
        wanted = min(self._plan.first_repetitions, self._plan.full_repetitions)
        while not self._is_spent():
            order = self._random.sample(self._alive, len(self._alive))
            for count, shape in enumerate(order, 1):
                if self._is_spent():
                    return
                note(f"{count} of {len(order)} shapes, {wanted} samples: {shape.name}")
                self._top_up(shape, wanted)
            ranked = sorted((shape for shape in order if self._samples_s[shape]), key=self._rate, reverse=True)
            if wanted == self._plan.full_repetitions or len(ranked) < 2:
                self._alive = ranked[:1]
                return
            self._alive = ranked[: math.ceil(len(ranked) / 2)]
            wanted = min(2 * wanted, self._plan.full_repetitions)

    def _step_locally(self, note: Note) -> None:
        tried: set[Shape] = set(self._alive)
        few = max(self._plan.first_repetitions, self._plan.full_repetitions // QUICK_LOOK)
        for _ in range(self._plan.local_steps):
            assert self.best is not None
            here = self.best.shape
            around = [shape for shape in dict.fromkeys(self._neighbors_of(here)) if shape not in tried]
            tried.update(around)
            for shape in self._random.sample(around, len(around)):
                if self._is_spent():
                    return
                note(f"near {here.name}: {shape.name}")
                self._top_up(shape, few)
            faster = [s for s in around if self._samples_s.get(s) and self._rate(s) > self._rate(here)]
            if not faster or self._is_spent():
                return
            challenger = max(faster, key=self._rate)
            self._top_up(challenger, self._plan.full_repetitions)
            if self._rate(challenger) <= self._rate(here):
                return
            self._alive = [challenger]

    def _top_up(self, shape: Shape, wanted: int) -> None:
        if shape in self._samples_s and not self._samples_s[shape]:
            return
        taken = self._samples_s.setdefault(shape, [])
        if len(taken) < wanted:
            taken.extend(self._take(shape, wanted - len(taken)))

    def _take(self, shape: Shape, repetitions: int) -> Sequence[float]:
        samples_s = self._measure(shape, repetitions)
        self.repetitions += len(samples_s)
        return samples_s

    def _rate(self, shape: Shape) -> float:
        return shape.flops / self._plan.summary(self._samples_s[shape])
