"""Measures the rate of a configuration, the fastest of several, and the parts of a calibration.

On a CPU the rate is that of the shortest time, as in STREAM, because other processes only add time.
On a GPU it is that of the median time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bench.harness import worker
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller
from bench.harness.measure.flags import disturbance, reasons_of, sampled, slowed
from bench.harness.measure.measure_row import release, undisturbed
from bench.harness.measure.rows import one_line
from bench.harness.timing.protocol import LIMITS, Samples, settle
from bench.harness.timing.samplers import Call, make_sampler
from results.record import Record
from results.stats.samples import half_width, quantile
from roofline.machine import Ceiling

MAX_WARM_UP = 0.2  # fraction of the time of a measurement


class NotMeasuredError(RuntimeError):
    """A ceiling could not be measured; the message is one line with the reason."""


class Effort(NamedTuple):
    """Seconds to measure each configuration; and the fastest again, as the maximum of noisy rates
    is too high.
    """

    screening_s: float
    confirming_s: float
    most: int | None = None
    """The most configurations of one ceiling that are measured on a GPU; None: all."""


FULL = Effort(0.4, 4.0)
QUICK = Effort(0.15, 1.5, most=4)
"""`QUICK` is for `--quick`, and for any command that measures a missing ceiling."""

BRIEF = Effort(0.05, 0.4)
"""For the cache, whose launches take microseconds: less than a second altogether."""


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be the fastest."""

    name: str
    work: int
    """Bytes or FLOPs per launch; 0 if the time of a launch is the ceiling."""
    prepare: Callable[[], Call]
    """Allocates the operands and returns the launch."""
    cache: str = "warm"


@dataclass(frozen=True)
class Rate:
    """The rate of a configuration in B/s or FLOP/s; without work, its seconds per launch."""

    candidate: Candidate
    samples: Samples
    is_gpu: bool

    @property
    def value(self) -> float:
        return self.of(self.samples.median_s if self.is_gpu else min(self.samples.samples_s))

    def of(self, seconds: float) -> float:
        return self.candidate.work / seconds if self.candidate.work else seconds

    def interval(self, *times_s: float) -> tuple[float, float]:
        rates = [self.of(seconds) for seconds in times_s]
        return min(rates), max(rates)


class Measured(NamedTuple):
    """A ceiling and the record of its samples."""

    ceiling: Ceiling
    record: Record


@dataclass
class Setup:
    """The device and the effort of a calibration."""

    device: Device
    effort: Effort
    missing: list[str] = field(default_factory=list)
    """Reasons why ceilings or configurations were not measured."""
    min_sample_s: float = 0.0
    """Minimum time of a sample, if more than usual."""

    def timed(self, candidate: Candidate, seconds: float) -> Rate:
        call = candidate.prepare()
        call()  # compiles, and loads libraries
        usual = LIMITS[self.device.type]
        warm_up_s = min(usual.warm_up_s, MAX_WARM_UP * seconds)
        # Use all of the time: on a noisy machine the shortest time needs many samples.
        limits = replace(
            usual,
            min_samples=sys.maxsize,
            cap_s=seconds,
            warm_up_s=warm_up_s,
            warm_up_cap_s=warm_up_s,
        )
        limits = replace(limits, min_sample_s=max(usual.min_sample_s, self.min_sample_s))
        poller = Poller(self.device)
        sampler = make_sampler([call], self.device, limits, reading=poller)
        settle(sampler.sample, limits)
        samples = undisturbed(sampler, self.device, limits, candidate.cache, None, poller)
        return Rate(candidate, samples, self.device.is_gpu)

    def fastest_of(self, candidates: Sequence[Candidate], slowest_call_s: float = math.inf) -> Rate:
        """Return the rate of the fastest candidate, which is timed again after a screening of all.

        Candidates whose launch would take longer than `slowest_call_s` at the best rate so far are
        skipped.
        """
        best = 0.0
        winner = None
        errors: dict[str, str] = {}
        most = self.effort.most
        every = math.ceil(len(candidates) / most) if most and self.device.is_gpu else 1
        for candidate in candidates[::every]:
            if best and candidate.work > slowest_call_s * best:
                continue
            try:
                value = self.timed(candidate, self.effort.screening_s).value
            except (
                Exception
            ) as error:  # compilers and drivers raise classes of their own; the others still count
                errors[candidate.name] = one_line(error)
                continue
            if value > best:
                best = value
                winner = candidate
        if winner is None:
            reason = ": ".join(next(iter(errors.items()), ["there are none"]))
            raise NotMeasuredError(f"all of {len(errors)} configurations failed; {reason}")
        if errors:
            reasons = ", ".join(dict.fromkeys(errors.values()))
            self.missing.append(
                f"{'; '.join(errors)}: {reasons}; {winner.name} is the fastest of the others"
            )
        return self.timed(winner, self.effort.confirming_s)

    def measured(
        self,
        quantity: str,
        name: str,
        rate: Rate,
        op: str,
        dtype: str,
        shape: dict[str, int],
        **fields: Any,
    ) -> Measured:
        config = rate.candidate.name
        samples = rate.samples
        telemetry = samples.telemetry
        now = datetime.now(UTC)
        disturbed = disturbance(telemetry, rate.is_gpu)
        is_limited = any(flag.name == "power-limited" for flag in slowed(telemetry, rate.is_gpu))
        is_converged = (
            half_width(samples.ci95_s, samples.median_s)
            <= LIMITS[self.device.type].target_half_width
        )
        ceiling = Ceiling(
            quantity,
            name,
            rate.value,
            "measured",
            f"measured here {now:%Y-%m-%d}: {config}, {self.device.threads or 'GPU'} threads",
            ci95=rate.interval(*samples.ci95_s),
            p5_p95=rate.interval(
                quantile(samples.samples_s, 0.05), quantile(samples.samples_s, 0.95)
            ),
            config=config,
            work_per_launch=rate.candidate.work or None,
            **{key: telemetry.get(key) for key in ("sm_clock_hz", "memory_clock_hz", "power_w")},
            at_power_limit=is_limited if rate.is_gpu and quantity == "flops" else None,
            measured_at=now.isoformat(timespec="seconds"),
            disturbed=disturbed.reason if disturbed else None,
        )
        record = Record(
            op=f"calibrate-{op}",
            provider="triton-v1" if config.startswith("triton v1,") else "torch",
            dtype=dtype,
            shape=shape,
            case="x".join(map(str, shape.values())),
            status="ok",
            flags=(disturbed.name,) if disturbed else (),
            flag_reasons=reasons_of([disturbed]),
            **{"options": {"config": config}} | fields,
        )
        return Measured(ceiling, sampled(record, replace(samples, converged=is_converged)))


Part = Callable[[Setup], list[Measured]]


def measure_all(
    parts: Iterable[tuple[str, Part]], setup: Setup, say: Callable[[str], object]
) -> Iterator[list[Measured]]:
    for name, part in parts:
        say(name)
        measured: list[Measured] = []
        try:
            if release(setup.device):
                measured, setup.missing = measure_part(name, part, setup)
            else:  # after an illegal access only a new process can use the GPU
                (measured, setup.missing), _ = worker.call(
                    measure_part, name, part, setup, timeout_s=worker.OWN_TIMEOUT_S
                )
        except worker.WorkerError as error:
            setup.missing.append(f"{name}: {error}")
        yield measured


def measure_part(name: str, part: Part, setup: Setup) -> tuple[list[Measured], list[str]]:
    """Return the ceilings of a part, and the reasons of all that is missing."""
    setup.device.use()
    try:
        return part(setup), setup.missing
    except Exception as error:  # compilers, drivers and libraries raise classes of their own
        return [], [*setup.missing, f"{name}: {one_line(error)}"]
