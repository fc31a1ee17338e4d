"""What the parts of a calibration share: their times, their timer, and how ceilings and records are made.

A part never starts another configuration when its time is over, and no part starts when the time of all of them is.
On a CPU a ceiling is what the shortest time gives, as STREAM reports it: what else runs on a shared machine only ever
adds time. On a GPU it is the median's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from bench.harness.calibrate import bandwidth
from bench.harness.calibrate.search import Note, NotMeasuredError, Rate, Summary, Trial
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Monitor, Poller, row_telemetry
from bench.harness.measure.evidence import disturbance, power_limited, preempted, throttled
from bench.harness.op import Op
from bench.harness.timing import samplers
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Limits, Samples, collect, warm_up
from results.record import Record
from results.stats.samples import half_width, median
from roofline.ceilings import Ceiling


@dataclass(frozen=True)
class CalibrationPlan:
    """Seconds that each part may take, and the effort of the matmul search."""

    total_s: float
    """No part starts later than this."""
    launch_s: float
    mix_s: float
    """Seconds for each mix of reads and writes."""
    matmul_s: float
    """Seconds for the searches of all dtypes together."""
    long_run_s: float
    """Seconds for the run that separates burst from sustained; part of `matmul_s`. 0: none."""
    fma_s: float
    """Seconds for each dtype."""
    repetitions: int
    """Samples of a finalist of the search."""
    is_quick: bool
    """Whether only square matmuls in row order are tried."""
    largest: int = 16384
    """Most rows of a square matmul."""


PLANS = {
    ("cpu", False): CalibrationPlan(100, 1.0, 5.0, 44.0, 2.5, 4.0, 16, False),
    ("cpu", True): CalibrationPlan(22, 0.3, 1.5, 8.0, 0.6, 1.0, 4, True),
    ("gpu", False): CalibrationPlan(270, 2.0, 10.0, 130.0, 3.5, 6.0, 32, False),
    ("gpu", True): CalibrationPlan(48, 1.0, 3.0, 20.0, 1.0, 1.5, 8, True),
}

FIRST_PLANS = {
    "cpu": CalibrationPlan(10, 0.3, 2.0, 3.0, 0.0, 0.0, 16, True, 3072),
    "gpu": CalibrationPlan(20, 0.5, 1.0, 4.0, 0.0, 0.0, 16, True, 8192),
}
"""Plans for what any command measures when a ceiling is missing; `matmul_s` is for one dtype here, without a long
run."""

DTYPES = {
    ("cpu", False): ("bf16", "fp32"),
    ("cpu", True): ("bf16", "fp32"),
    ("gpu", False): ("bf16", "fp16", "tf32", "fp32", "fp8e4m3", "int8", "fp64"),
    ("gpu", True): ("bf16", "fp32", "fp8e4m3"),
}
"""Measured where none is asked for, the most used first."""

SCREENING_SHARE, CONFIRMING_SHARE = 0.55, 0.35
"""How a part divides its time between choosing a configuration and measuring the one chosen; the rest is for what no
limit can see: allocating, compiling, estimating."""

PROVIDERS = {"triton v1": "triton-v1", "C": "c"}
"""Providers by the beginning of a configuration's words; all others are torch's."""

WRITTEN_SHARE = {"read": (0, 1), "write": (1, 1), "copy": (1, 2), "triad": (1, 3)}
"""Which part of a mix's bytes is written, as numerator and denominator."""


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


class PartTimer:
    """The timing protocol within the time of one part; a `search.Measure`."""

    def __init__(
        self,
        device: Device,
        limit_s: float,
        candidates: int,
        monitor: Monitor,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start the clock of the part.

        Args:
            device: the device under test.
            limit_s: what the part may take.
            candidates: among how many configurations it chooses.
            monitor: reads clocks and throttling around every measurement.
            now: seconds of a clock that only runs forward.
        """
        base = GPU_LIMITS if device.is_gpu else CPU_LIMITS
        each_s, last_s = limit_s * SCREENING_SHARE / max(1, candidates), limit_s * CONFIRMING_SHARE
        # No half width ends them: the shortest time of a noisy machine needs all the time there is.
        every = replace(base, target_half_width=0.0, min_time_s=0.0)
        self.screening = replace(every, cap_s=0.8 * each_s, warm_up_s=0.1 * each_s)
        self.confirming = replace(every, cap_s=0.8 * last_s, warm_up_s=min(base.warm_up_s, 0.2 * last_s))
        self.telemetry: dict[str, Any] = {}
        """Telemetry of the last measurement."""
        self._device, self._monitor, self._now, self._poller = device, monitor, now, Poller(monitor)
        start = now()
        self._choose_until, self._ends = start + limit_s * SCREENING_SHARE, start + limit_s
        self._has_candidate = False

    def __call__(self, calls: Sequence[samplers.Call], limits: Limits) -> Samples:
        """Return samples of launches that go round `calls`.

        Raises:
            NotMeasuredError: the time for choosing is over, and there is something to choose already.
        """
        if limits is self.screening and self._has_candidate and self._now() >= self._choose_until:
            raise NotMeasuredError("not tried: the time of this part was over")
        left_s = max(0.0, self._ends - self._now())
        before = self._monitor.snapshot()
        samples = self._sample(calls, replace(limits, cap_s=min(limits.cap_s, left_s)))
        self.telemetry = row_telemetry(before, self._monitor.snapshot(), polled=self._poller.seen)
        self._has_candidate = True
        return samples

    def _sample(self, calls: Sequence[samplers.Call], limits: Limits) -> Samples:
        # A kernel is compiled at its first call; taken for the cost of a launch, that lets the GPU spin for seconds.
        calls[0]()
        sampler = samplers.make_sampler(calls, self._device, limits, while_running=self._poller)
        warm_up(sampler, limits.warm_up_s)
        self._poller.begin()
        return collect(sampler, limits, "cold" if len(calls) > 1 else "warm")


@dataclass
class CalibrationSetup:
    """The device, and what several parts share."""

    device: Device
    plan: CalibrationPlan
    matmul: Op
    """The op of `bench/matmul.py`."""
    monitor: Monitor

    @property
    def summary(self) -> Summary:
        """The time that represents several samples."""
        return median if self.device.is_gpu else min

    @cached_property
    def arrays(self) -> bandwidth.Arrays:
        """The arrays of all bandwidth parts.

        Raises:
            NotMeasuredError: too little memory is free.
        """
        return bandwidth.Arrays(self.device, bandwidth.operand_bytes(self.device))

    @cached_property
    def streams(self) -> list[bandwidth.Stream]:
        """The streams of this device."""
        return bandwidth.streams(self.device, self.arrays)

    def release_arrays(self) -> None:
        """Give the memory of the bandwidth parts back."""
        for name in ("arrays", "streams"):
            self.__dict__.pop(name, None)

    def timer(self, limit_s: float, candidates: int) -> PartTimer:
        """Return a timer whose clock starts now."""
        return PartTimer(self.device, limit_s, candidates, self.monitor)

    def trial(self, timer: PartTimer, note: Note, what: str) -> Trial:
        """Return how the configurations of a part are compared; its notes begin with `what`."""
        return Trial(timer, timer.screening, timer.confirming, lambda line: note(f"{what}: {line}"), self.summary)

    def ceiling(
        self, quantity: str, name: str, value: float, how: str, telemetry: dict[str, Any], **details: Any
    ) -> Ceiling:
        """Return a measured ceiling with clocks, power and date; `details` are further fields of `Ceiling`."""
        now = datetime.now(UTC)
        source = f"measured here {now:%Y-%m-%d}: {how}, {self.device.threads or 'GPU'} threads"
        clocks: dict[str, Any] = {key: telemetry.get(key) for key in ("sm_clock_hz", "memory_clock_hz")}
        clocks |= {
            "measured_at": now.isoformat(timespec="seconds"),
            "disturbed": disturbance(telemetry, self.device.is_gpu),
            "power_w": telemetry.get("power_w"),
        }
        if quantity == "sustained" and self.device.is_gpu:  # its window alone is that of the throttle reasons
            clocks["at_power_limit"] = power_limited(telemetry) is not None
        return Ceiling(quantity, name, value, "measured", source, **clocks, **details)

    def of_rate(self, quantity: str, name: str, rate: Rate, telemetry: dict[str, Any]) -> Ceiling:
        """Return the ceiling that a rate is on this device."""
        value = rate.value if self.device.is_gpu else rate.fastest
        details: dict[str, Any] = {"ci95": rate.ci95, "p5_p95": rate.p5_p95, "config": rate.config}
        details |= {"work_per_launch": rate.work_per_launch}
        return self.ceiling(quantity, name, value, rate.config, telemetry, **details)


def record_of(op: str, dtype: str, shape: dict[str, int], samples: Samples, config: str, **fields: Any) -> Record:
    """Return the record of one measurement; `fields` are further fields of `Record`."""
    telemetry, is_host = fields.get("telemetry", {}), samples.method == "host"
    seen = [preempted(telemetry) if is_host else None, throttled(telemetry, not is_host)] if telemetry else []
    flags = [flag for flag in seen if flag]
    target = (CPU_LIMITS if is_host else GPU_LIMITS).target_half_width
    return Record(
        op=f"calibrate-{op}",
        provider=PROVIDERS.get(config.partition(",")[0], "torch"),
        dtype=dtype,
        shape=shape,
        case="x".join(str(extent) for extent in shape.values()),
        status="ok",
        samples_s=samples.samples_s,
        launches_per_sample=samples.launches_per_sample,
        method=samples.method,
        median_s=samples.median_s,
        ci95_s=samples.ci95_s,
        converged=half_width(samples.ci95_s, samples.median_s) <= target,
        flags=tuple(flag.name for flag in flags),
        flag_reasons={flag.name: f"{flag.reason}; {flag.advice}" for flag in flags},
        **{"options": {"config": config}, "cache": samples.cache} | fields,
    )


def bytes_of_mix(mix: str, moved: int) -> dict[str, int]:
    """Return how many of a mix's bytes are read and written; FLOPs are not what it is measured for."""
    share, of = WRITTEN_SHARE[mix]
    written = moved * share // of
    return {"flops": 0, "bytes_read": moved - written, "bytes_written": written}
