"""A device with known speed, noise and drift, on a clock that moves only when it works."""

import math
from dataclasses import dataclass

import numpy as np

DRAWS = 512


@dataclass
class SimulatedDevice:
    """A clock, its load and the sampler that times the load; steady by default, except for
    noise.
    """

    seed: int = 0
    launch_s: float = 1e-4
    """True median time of a cold launch on the settled device."""
    launches_per_sample: int = 10
    noise: float = 0.03
    """Standard deviation of the logarithm of a sample."""
    correlation: float = 0.0
    """Between the noise of one sample and the next."""
    drift: float = 0.0
    """How much slower it becomes in the end, as a fraction."""
    drift_s: float = 0.3
    """Time constant of the drift."""
    slow_share: float = 0.0
    """Fraction of the samples that are slower by `slow_by`."""
    slow_by: float = 0.0
    tick_s: float = 0.0
    """Resolution of the timer that the sampler reads."""
    warm_gain: float = 1.5
    """Cold time over warm time."""
    is_falsely_cold: bool = False
    """Cold launches find their data in the cache all the same."""
    throttled_share: float = 0.0
    """Fraction of the time in which heat halves the clock."""
    max_clock_hz: float = 1.98e9
    start_clock: float = 1.0
    """Clock at the start as a fraction of the settled one."""
    settle_s: float = 0.3
    """Time constant with which clock and power settle."""
    method: str = "graph"
    cache: str = "cold"
    seconds: float = 0.0

    def __post_init__(self):
        self._random = np.random.default_rng(self.seed)
        self._normal, self._uniform, self._state = iter(()), iter(()), self._random.normal()
        self.started_s = self.seconds

    def now(self):
        return self.seconds

    def sample(self, times=1.0):
        """Work for one sample, `times` as long; return its seconds by the device's timer."""
        before = self.seconds
        launch_s = times * self._launch_now_s() * math.exp(self.noise * self._next_normal())
        self.seconds += self.launches_per_sample * launch_s
        if not self.tick_s:
            return self.seconds - before
        return (
            math.floor(self.seconds / self.tick_s) - math.floor(before / self.tick_s)
        ) * self.tick_s

    def load(self, times=1.0):
        """Return a contender; contenders of one device share clock, drift and noise."""
        return SimulatedLoad(self, times)

    def _launch_now_s(self):
        is_warm = self.cache == "warm" or self.is_falsely_cold
        launch_s = self.launch_s / self.warm_gain if is_warm else self.launch_s
        launch_s *= 1 + self.drift * (1 - math.exp(-(self.seconds - self.started_s) / self.drift_s))
        if self.slow_share and self._next_uniform() < self.slow_share:
            launch_s *= 1 + self.slow_by
        return launch_s / (self.clock_hz() / self.max_clock_hz)

    def clock_hz(self):
        """Return the current SM clock, in steps of 15 MHz as on NVIDIA GPUs."""
        share = 1 - (1 - self.start_clock) * math.exp(
            -(self.seconds - self.started_s) / self.settle_s
        )
        if self.throttled_share and self.seconds / 0.02 % 1 < self.throttled_share:
            share /= 2
        return max(round(share * self.max_clock_hz / 15e6), 1) * 15e6

    def telemetry(self):
        """Return the telemetry that flags need."""
        shares = {
            "sw_power_cap": 0.0,
            "sw_thermal": self.throttled_share,
            "hw_thermal": 0.0,
            "power_brake": 0.0,
        }
        return {
            "throttle": shares,
            "throttle_resolution": 0.005,
            "clock_events": [],
            "sm_clock_hz": self.clock_hz(),
        }

    def _next_normal(self):
        draw = next(self._normal, None)
        if draw is None:
            self._normal = iter(self._random.normal(size=DRAWS).tolist())
            draw = next(self._normal)
        self._state = self.correlation * self._state + math.sqrt(1 - self.correlation**2) * draw
        return self._state

    def _next_uniform(self):
        draw = next(self._uniform, None)
        if draw is None:
            self._uniform = iter(self._random.random(DRAWS).tolist())
            draw = next(self._uniform)
        return draw


@dataclass
class SimulatedLoad:
    """One of several contenders on a simulated device."""

    device: SimulatedDevice
    times: float = 1.0

    def slot(self):
        """Return the sample of one turn, in seconds per launch."""
        return (self.device.sample(self.times) / self.device.launches_per_sample,)
