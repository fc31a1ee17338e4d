"""What the parts of a calibration share: how long they measure, and how the fastest of several ways is found.

On a CPU a ceiling is what the shortest time gives, as STREAM reports it: other processes only ever add time. On a GPU
it is what the median time gives.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, polled_row, row_telemetry, snapshot
from bench.harness.measure.evidence import disturbance, preempted, throttled
from bench.harness.measure.runner import one_line
from bench.harness.op import Op
from bench.harness.timing.protocol import Samples, collect, limits_of, warm_up
from bench.harness.timing.samplers import Call, GraphSampler, make_sampler
from results.record import Record
from results.stats.samples import half_width, median, median_ci95, quantile
from roofline.ceilings import Ceiling

SLOWEST_CALL_S = 0.15
"""Launches that would take longer than this are left out: each is called a dozen times."""

WARM_UP_SHARE = 0.2
"""Share of a measurement's seconds that its warm-up takes at most."""

PROVIDERS = {"triton v1": "triton-v1", "C": "c"}
"""Providers by the first words of a configuration; all others are torch's."""

Note = Callable[[str], object]
"""Takes a line that says what is being measured."""


class NotMeasuredError(RuntimeError):
    """A ceiling could not be measured here; the message says why in one line."""


@dataclass(frozen=True)
class Effort:
    """Seconds that the measurements of a calibration take."""

    screening_s: float
    """For each configuration, while the fastest is looked for."""
    confirming_s: float
    """For the fastest, which is measured again: the maximum of noisy readings is too high."""
    long_run_s: float
    """For the run of a GPU's fastest matmul that separates burst from sustained; 0: no such run."""


FULL = Effort(screening_s=0.4, confirming_s=4.0, long_run_s=3.5)
QUICK = Effort(screening_s=0.15, confirming_s=1.5, long_run_s=1.0)
"""Of `--quick`, and of what any command measures when a ceiling is missing."""


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
    work: int = 0
    """Of its launch, where that is known beforehand: it is left out where the launch would take too long."""


@dataclass(frozen=True)
class Rate:
    """Work per second of one configuration, B/s or FLOP/s."""

    config: str
    """The configuration in words."""
    work_per_launch: int
    """Bytes or FLOPs."""
    samples: Samples
    telemetry: dict[str, Any]
    """While the samples ran."""
    poller: Poller
    """What was read of clock and power meanwhile, by sample."""

    @property
    def value(self) -> float:
        """The rate by the median time."""
        return self.work_per_launch / self.samples.median_s

    @property
    def fastest(self) -> float:
        """The rate by the shortest time."""
        return self.work_per_launch / min(self.samples.samples_s)

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % confidence interval of `value`."""
        low_s, high_s = self.samples.ci95_s
        return self.work_per_launch / high_s, self.work_per_launch / low_s

    @property
    def p5_p95(self) -> tuple[float, float]:
        """Quantiles of the rates of the samples."""
        times_s = self.samples.samples_s
        return self.work_per_launch / quantile(times_s, 0.95), self.work_per_launch / quantile(times_s, 0.05)

    def part(self, first: int, end: int) -> Rate:
        """Return the rate of samples `first` to `end - 1`, with clock and power as they were during these."""
        times_s = self.samples.samples_s[first:end]
        samples = replace(self.samples, samples_s=times_s, median_s=median(times_s), ci95_s=median_ci95(times_s))
        polled = self.poller.between(first, end)
        telemetry = self.telemetry | (polled_row({"power_source": None}, polled) if polled else {})
        return replace(self, samples=samples, telemetry=telemetry)


@dataclass(frozen=True)
class Chosen:
    """The fastest of some candidates."""

    rate: Rate
    """Of samples that took no part in the choice."""
    launch: Launch
    notes: tuple[str, ...]
    """A line about the candidates that could not run here, if there are any."""


@dataclass(frozen=True)
class PartOutcome:
    """What one part found."""

    ceilings: tuple[Ceiling, ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CalibrationPart:
    """One thing to measure."""

    name: str
    """In words, for people."""
    measure: Callable[[Note], PartOutcome]
    """Raises whatever compilers, drivers and libraries raise; `NotMeasuredError` where there is no such ceiling."""


@dataclass(frozen=True)
class CalibrationSetup:
    """The device, and how long its ceilings are measured."""

    device: Device
    effort: Effort
    matmul: Op
    """The op of `bench/matmul.py`."""

    def timed(self, config: str, launch: Launch, seconds: float, idle_s: float = 0.0) -> Rate:
        """Return the rate of a launch that runs again and again for some seconds.

        It is warmed up before, or where `idle_s` is given, the device does nothing for so many seconds.
        """
        launch.call()  # compiles, and loads libraries
        usual = limits_of(self.device)
        # No interval ends it: the shortest time of a noisy machine needs all the time there is.
        limits = replace(usual, min_samples=sys.maxsize, cap_s=seconds)
        poller = Poller(self.device)
        sampler = make_sampler([launch.call], self.device, limits, reading=poller)
        if idle_s:
            self.device.synchronize()
            time.sleep(idle_s)
            if isinstance(sampler, GraphSampler):
                sampler.runs_ahead = True
        else:
            warm_up(sampler, min(usual.warm_up_s, WARM_UP_SHARE * seconds))
        poller.begin()
        before = snapshot(self.device)
        samples = collect(sampler, limits, "warm")
        if idle_s:
            self.device.synchronize()  # one sample was queued ahead
        telemetry = row_telemetry(before, snapshot(self.device), polled=poller.seen)
        return Rate(config, launch.work, samples, telemetry, poller)

    def value(self, rate: Rate) -> float:
        """Return the rate that counts on this device."""
        return rate.value if self.device.is_gpu else rate.fastest

    def fastest_of(self, what: str, candidates: Iterable[Candidate], note: Note) -> Chosen:
        """Time every candidate for a short time, and the fastest of them once more; notes begin with `what`.

        Raises:
            NotMeasuredError: none of them runs here.
        """
        screened: list[tuple[float, Candidate]] = []
        refused: dict[str, str] = {}
        for candidate in candidates:
            if screened and candidate.work > SLOWEST_CALL_S * max(value for value, _ in screened):
                continue
            note(f"{what}: {candidate.name}")
            try:
                rate = self.timed(candidate.name, candidate.prepare(), self.effort.screening_s)
            except Exception as error:  # compilers and drivers raise classes of their own; the others still count
                refused[candidate.name] = one_line(error)
            else:
                screened.append((self.value(rate), candidate))
        if not screened:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:1])
            raise NotMeasuredError(f"none of {len(refused)} configurations runs here; {reasons or 'there are none'}")
        _, winner = max(screened, key=lambda pair: pair[0])
        note(f"{what}: {winner.name}, again")
        launch = winner.prepare()
        rate = self.timed(winner.name, launch, self.effort.confirming_s)
        reasons = ", ".join(dict.fromkeys(refused.values()))
        notes = (f"{'; '.join(refused)}: {reasons}; {winner.name} is the fastest of the others",) if refused else ()
        return Chosen(rate, launch, notes)

    def ceiling(
        self, quantity: str, name: str, value: float, how: str, telemetry: dict[str, Any], **details: Any
    ) -> Ceiling:
        """Return a measured ceiling with clocks, power and date; `details` are further fields of `Ceiling`."""
        now = datetime.now(UTC)
        source = f"measured here {now:%Y-%m-%d}: {how}, {self.device.threads or 'GPU'} threads"
        facts = {key: telemetry.get(key) for key in ("sm_clock_hz", "memory_clock_hz", "power_w")}
        facts |= {"measured_at": now.isoformat(timespec="seconds")}
        facts |= {"disturbed": disturbance(telemetry, self.device.is_gpu)}
        return Ceiling(quantity, name, value, "measured", source, config=how, **facts, **details)

    def of_rate(self, quantity: str, name: str, rate: Rate, **details: Any) -> Ceiling:
        """Return the ceiling that a rate is on this device."""
        details |= {"ci95": rate.ci95, "p5_p95": rate.p5_p95, "work_per_launch": rate.work_per_launch}
        return self.ceiling(quantity, name, self.value(rate), rate.config, rate.telemetry, **details)

    def record_of(self, op: str, dtype: str, shape: dict[str, int], rate: Rate, **fields: Any) -> Record:
        """Return the record of one measurement; `fields` are further fields of `Record`."""
        samples, is_gpu = rate.samples, self.device.is_gpu
        seen = [throttled(rate.telemetry, is_gpu), None if is_gpu else preempted(rate.telemetry)]
        flags = [flag for flag in seen if flag]
        return Record(
            op=f"calibrate-{op}",
            provider=PROVIDERS.get(rate.config.partition(",")[0], "torch"),
            dtype=dtype,
            shape=shape,
            case="x".join(str(extent) for extent in shape.values()),
            status="ok",
            samples_s=samples.samples_s,
            launches_per_sample=samples.launches_per_sample,
            method=samples.method,
            median_s=samples.median_s,
            ci95_s=samples.ci95_s,
            converged=half_width(samples.ci95_s, samples.median_s) <= limits_of(self.device).target_half_width,
            flags=tuple(flag.name for flag in flags),
            flag_reasons={flag.name: f"{flag.reason}; {flag.advice}" for flag in flags},
            telemetry=rate.telemetry,
            **{"options": {"config": rate.config}, "cache": samples.cache} | fields,
        )
