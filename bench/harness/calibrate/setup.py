"""What the parts of a calibration share: how long they measure, and how the fastest configuration is found.

On a CPU a ceiling is the rate by the shortest time, as STREAM reports it: other processes only add time. On a GPU it is
the rate by the median time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, polled_row, row_telemetry, snapshot
from bench.harness.measure.errors import one_line
from bench.harness.measure.flags import disturbance, power_limited, preempted, throttled
from bench.harness.timing.protocol import Samples, collect, limits_of, settle
from bench.harness.timing.samplers import Call, GraphSampler, make_sampler
from results.record import Record
from results.stats.samples import half_width, median, median_ci95, quantile
from roofline.ceilings import Ceiling

SLOWEST_CALL_S = 0.15  # candidates whose launch would take longer are skipped: each is called a dozen times
WARM_UP_SHARE = 0.2  # of the seconds of a measurement, at most
PROVIDERS = {"triton v1": "triton-v1", "C": "c"}
"""Providers by the first words of a configuration; all others are torch's."""


class NotMeasuredError(RuntimeError):
    """A ceiling could not be measured here; the message says why in one line."""


@dataclass(frozen=True)
class Effort:
    """Seconds that the measurements of a calibration take."""

    screening_s: float
    """Of each configuration."""
    confirming_s: float
    """Of the fastest, which is measured again: the maximum of noisy readings is too high."""
    long_run_s: float
    """Of the run of a GPU's fastest matmul that separates burst from sustained; 0: no such run."""


FULL = Effort(screening_s=0.4, confirming_s=4.0, long_run_s=3.5)
QUICK = Effort(screening_s=0.15, confirming_s=1.5, long_run_s=1.0)
"""Of `--quick`, and of any command that measures a missing ceiling."""


class Launch(NamedTuple):
    """One launch, and the bytes that it moves or the FLOPs that it computes."""

    call: Call
    work: int


@dataclass(frozen=True)
class Candidate:
    """One configuration that may reach a ceiling."""

    name: str
    prepare: Callable[[], Launch]
    work: int = 0
    """Bytes or FLOPs of its launch if known before `prepare`: it is skipped if the launch would take too long."""


@dataclass(frozen=True)
class Rate:
    """Work per second of one configuration, B/s or FLOP/s; for a launch without work, seconds per launch."""

    config: str
    work: int
    """Bytes or FLOPs per launch."""
    samples: Samples
    telemetry: dict[str, Any]
    poller: Poller
    """Clock and power of a GPU, by sample."""
    is_gpu: bool

    @property
    def value(self) -> float:
        """The rate by the median time on a GPU, by the shortest time on a CPU."""
        return self._of(self.samples.median_s if self.is_gpu else min(self.samples.samples_s))

    def interval(self, times_s: Iterable[float]) -> tuple[float, float]:
        """Return the rates at two times, the lower first."""
        low, high = sorted(map(self._of, times_s))
        return low, high

    def part(self, first: int, end: int) -> Rate:
        """Return the rate of samples `first` to `end - 1`, with clock and power during these."""
        times_s = self.samples.samples_s[first:end]
        samples = replace(self.samples, samples_s=times_s, median_s=median(times_s), ci95_s=median_ci95(times_s))
        polled = self.poller.between(first, end)
        telemetry = self.telemetry | (polled_row({"power_source": None}, polled) if polled else {})
        return replace(self, samples=samples, telemetry=telemetry)

    def _of(self, seconds: float) -> float:
        return self.work / seconds if self.work else seconds


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

    def timed(self, config: str, launch: Launch, seconds: float, idle_s: float = 0.0) -> Rate:
        """Return the rate of a launch that is repeated for some seconds, after a warm-up or after `idle_s` of rest."""
        launch.call()  # compiles, and loads libraries
        usual = limits_of(self.device)
        # The interval must not end it: the shortest time of a noisy machine needs all the time there is.
        limits = replace(usual, min_samples=sys.maxsize, cap_s=seconds)
        poller = Poller(self.device)
        sampler = make_sampler([launch.call], self.device, limits, reading=poller)
        if idle_s:
            self.device.synchronize()
            time.sleep(idle_s)
            if isinstance(sampler, GraphSampler):
                sampler.runs_ahead = True
        else:
            warm_up_s = min(usual.warm_up_s, WARM_UP_SHARE * seconds)
            settle(sampler.sample, replace(limits, warm_up_s=warm_up_s, warm_up_cap_s=warm_up_s))
        poller.begin()
        before = snapshot(self.device)
        samples = collect(sampler, limits, "warm")
        if idle_s:
            self.device.synchronize()  # one sample was queued ahead
        telemetry = row_telemetry(before, snapshot(self.device), polled=poller.seen)
        return Rate(config, launch.work, samples, telemetry, poller, self.device.is_gpu)

    def fastest_of(self, candidates: Sequence[Candidate]) -> tuple[Rate, Launch]:
        """Time every candidate for a short time, and the fastest once more; return it with the rate of that.

        Raises:
            NotMeasuredError: no candidate runs here.
        """
        best, winner, refused = 0.0, None, dict[str, str]()
        for candidate in candidates:
            if candidate.work > SLOWEST_CALL_S * best > 0:
                continue
            try:
                value = self.timed(candidate.name, candidate.prepare(), self.effort.screening_s).value
            except Exception as error:  # compilers and drivers raise classes of their own; the others still count
                refused[candidate.name] = one_line(error)
                continue
            if value > best:
                best, winner = value, candidate
        if winner is None:
            reason = next((f"{name}: {reason}" for name, reason in refused.items()), "there are none")
            raise NotMeasuredError(f"none of {len(refused)} configurations runs here; {reason}")
        if refused:
            reasons = ", ".join(dict.fromkeys(refused.values()))
            self.missing.append(f"{'; '.join(refused)}: {reasons}; {winner.name} is the fastest of the others")
        launch = winner.prepare()
        return self.timed(winner.name, launch, self.effort.confirming_s), launch

    def measured(
        self, quantity: str, name: str, rate: Rate, op: str, dtype: str, shape: dict[str, int], **fields: Any
    ) -> Measured:
        """Return the ceiling and the record of a rate; `fields` are further fields of `Record`."""
        samples, telemetry, is_gpu, now = rate.samples, rate.telemetry, rate.is_gpu, datetime.now(UTC)
        ceiling = Ceiling(
            quantity,
            name,
            rate.value,
            "measured",
            f"measured here {now:%Y-%m-%d}: {rate.config}, {self.device.threads or 'GPU'} threads",
            ci95=rate.interval(samples.ci95_s),
            p5_p95=rate.interval(quantile(samples.samples_s, share) for share in (0.05, 0.95)),
            config=rate.config,
            work_per_launch=rate.work or None,
            **{key: telemetry.get(key) for key in ("sm_clock_hz", "memory_clock_hz", "power_w")},
            at_power_limit=power_limited(telemetry) is not None if quantity == "sustained" else None,
            measured_at=now.isoformat(timespec="seconds"),
            disturbed=disturbance(telemetry, is_gpu),
        )
        flags = [flag for flag in (throttled(telemetry, is_gpu), None if is_gpu else preempted(telemetry)) if flag]
        record = Record(
            op=f"calibrate-{op}",
            provider=PROVIDERS.get(rate.config.partition(",")[0], "torch"),
            dtype=dtype,
            shape=shape,
            case="x".join(map(str, shape.values())),
            status="ok",
            samples_s=samples.samples_s,
            launches_per_sample=samples.launches_per_sample,
            method=samples.method,
            median_s=samples.median_s,
            ci95_s=samples.ci95_s,
            converged=half_width(samples.ci95_s, samples.median_s) <= limits_of(self.device).target_half_width,
            flags=tuple(flag.name for flag in flags),
            flag_reasons={flag.name: f"{flag.reason}; {flag.advice}" for flag in flags},
            telemetry=telemetry,
            **{"options": {"config": rate.config}, "cache": samples.cache} | fields,
        )
        return Measured(ceiling, record)


Part = Callable[[Setup], list[Measured]]
"""Measures some ceilings. Raises any error of compilers, drivers and libraries, and `NotMeasuredError`."""
