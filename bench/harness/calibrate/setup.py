"""How the parts of a calibration measure: the rate of a configuration, and the fastest of several.

On a CPU a ceiling is the rate by the shortest time, as STREAM reports it: other processes only add time. On a GPU it is
the rate by the median time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller
from bench.harness.measure.flags import disturbance, reasons_of, sampled, slowed
from bench.harness.measure.measure_row import undisturbed
from bench.harness.measure.rows import one_line
from bench.harness.timing.protocol import LIMITS, Samples, settle
from bench.harness.timing.samplers import Call, make_sampler
from results.record import Record
from results.stats.samples import half_width, quantile
from roofline.machine import Ceiling

WARM_UP_SHARE = 0.2  # of the seconds of a measurement, at most


class NotMeasuredError(RuntimeError):
    """A ceiling could not be measured here; the message says why in one line."""


class Effort(NamedTuple):
    """Seconds of the measurements of a calibration: of each configuration; and of the fastest, which is measured again
    because the maximum of noisy readings is too high.
    """

    screening_s: float
    confirming_s: float


FULL, QUICK = Effort(0.4, 4.0), Effort(0.15, 1.5)
"""`QUICK`: of `--quick`, and of any command that measures a missing ceiling."""


@dataclass(frozen=True)
class Candidate:
    """One configuration that may reach a ceiling."""

    name: str
    work: int
    """Bytes or FLOPs of a launch; 0 if the time of a launch is the ceiling."""
    prepare: Callable[[], Call]
    """Makes the operands and returns the launch."""
    cache: str = "warm"
    """What a launch finds: `cold` or `warm`."""


@dataclass(frozen=True)
class Rate:
    """Samples of one configuration as work per second, B/s or FLOP/s; without work, as seconds per launch."""

    candidate: Candidate
    samples: Samples
    is_gpu: bool

    @property
    def value(self) -> float:
        """The rate by the median time on a GPU, by the shortest time on a CPU."""
        return self.of(self.samples.median_s if self.is_gpu else min(self.samples.samples_s))

    def of(self, seconds: float) -> float:
        return self.candidate.work / seconds if self.candidate.work else seconds

    def interval(self, *times_s: float) -> tuple[float, float]:
        rates = [self.of(seconds) for seconds in times_s]
        return min(rates), max(rates)


class Measured(NamedTuple):
    """A ceiling, and the record of its samples."""

    ceiling: Ceiling
    record: Record


@dataclass
class Setup:
    """The device, and how long its ceilings are measured."""

    device: Device
    effort: Effort
    missing: list[str] = field(default_factory=list)
    """Reasons why a ceiling or a configuration was not measured."""

    def timed(self, candidate: Candidate, seconds: float) -> Rate:
        call = candidate.prepare()
        call()  # compiles, and loads libraries
        usual = LIMITS[self.device.type]
        warm_up_s = min(usual.warm_up_s, WARM_UP_SHARE * seconds)
        # The interval must not end it: the shortest time of a noisy machine needs all the time there is.
        limits = replace(usual, min_samples=sys.maxsize, cap_s=seconds, warm_up_s=warm_up_s, warm_up_cap_s=warm_up_s)
        poller = Poller(self.device)
        sampler = make_sampler([call], self.device, limits, reading=poller)
        settle(sampler.sample, limits)
        samples = undisturbed(sampler, self.device, limits, candidate.cache, None, poller)
        return Rate(candidate, samples, self.device.is_gpu)

    def fastest_of(self, candidates: Sequence[Candidate], slowest_call_s: float = math.inf) -> Rate:
        """Time every candidate for a short time, and the fastest once more; return the rate of that.

        Candidates whose launch would take longer than `slowest_call_s`, by the best rate so far, are skipped.
        """
        best, winner, refused = 0.0, None, dict[str, str]()
        for candidate in candidates:
            if best and candidate.work > slowest_call_s * best:
                continue
            try:
                value = self.timed(candidate, self.effort.screening_s).value
            except Exception as error:  # compilers and drivers raise classes of their own; the others still count
                refused[candidate.name] = one_line(error)
                continue
            if value > best:
                best, winner = value, candidate
        if winner is None:
            reason = ": ".join(next(iter(refused.items()), ["there are none"]))
            raise NotMeasuredError(f"none of {len(refused)} configurations runs here; {reason}")
        if refused:
            reasons = ", ".join(dict.fromkeys(refused.values()))
            self.missing.append(f"{'; '.join(refused)}: {reasons}; {winner.name} is the fastest of the others")
        return self.timed(winner, self.effort.confirming_s)

    def measured(
        self, quantity: str, name: str, rate: Rate, op: str, dtype: str, shape: dict[str, int], **fields: Any
    ) -> Measured:
        config, samples, telemetry = rate.candidate.name, rate.samples, rate.samples.telemetry
        now, disturbed = datetime.now(UTC), disturbance(telemetry, rate.is_gpu)
        is_limited = any(flag.name == "power-limited" for flag in slowed(telemetry, rate.is_gpu))
        is_converged = half_width(samples.ci95_s, samples.median_s) <= LIMITS[self.device.type].target_half_width
        ceiling = Ceiling(
            quantity,
            name,
            rate.value,
            "measured",
            f"measured here {now:%Y-%m-%d}: {config}, {self.device.threads or 'GPU'} threads",
            ci95=rate.interval(*samples.ci95_s),
            p5_p95=rate.interval(*(quantile(samples.samples_s, share) for share in (0.05, 0.95))),
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
