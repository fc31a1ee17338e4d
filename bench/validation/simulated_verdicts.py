"""How often verdicts on simulated devices are wrong, or missed: paired rounds, and medians taken one after the other.

    python -m bench.validation.simulated_verdicts --trials 1000

Each trial is a comparison by the rules of `python -m bench compare`, within its default time, on a device with a
seed of its own. Beside it stands what most tools do: as many samples of the one version, then as many of the other,
and two medians, judged by what `python -m results compare` allows for drift between two windows, with an interval of
the samples alone, or by the margin alone.
"""

import argparse
import math
from dataclasses import dataclass, field

import numpy as np

from bench.harness.compare.rounds import Rule, run_rounds
from bench.harness.device.telemetry import ClockAndPower
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE
from results.stats.drift import drift_of
from results.stats.samples import median
from results.stats.unpaired import compare_many

# ---- the device ------------------------------------------------------------------------------------------

DRAWS = 512


@dataclass
class SimulatedDevice:
    """A clock, a load on it, and the sampler that times the load; by default steady but for its noise."""

    seed: int = 0
    launch_s: float = 1e-4
    """Median time of a cold launch on the settled device: the truth."""
    launches_per_sample: int = 10
    noise: float = 0.03
    """Standard deviation of the logarithm of a sample."""
    correlation: float = 0.0
    """Between the noise of one sample and the next."""
    drift: float = 0.0
    """How much slower it becomes in the end, as a fraction."""
    drift_s: float = 0.3
    """Time constant with which it does."""
    slow_share: float = 0.0
    slow_by: float = 0.0
    """So many samples are slower by this fraction."""
    tick_s: float = 0.0
    """Step of the clock that the sampler reads."""
    warm_gain: float = 1.5
    """Cold time over warm time."""
    is_falsely_cold: bool = False
    """Cold launches find their data in the cache all the same."""
    throttled_share: float = 0.0
    """Share of the time in which heat halves the clock."""
    max_clock_hz: float = 1.98e9
    start_clock: float = 1.0
    """Clock at the start as a fraction of the settled one; the rest is made up with `settle_s`."""
    settle_s: float = 0.3
    """Time constant with which clock and power approach what they settle at."""
    swing: float = 0.0
    """Amplitude with which the clock never stops to swing, as a fraction, at 3 Hz."""
    reads_clock: bool = True
    """Whether clock and power can be read."""
    method: str = "graph"
    cache: str = "cold"
    seconds: float = 0.0
    polls: list[float] = field(default_factory=list)

    def __post_init__(self):
        self._random = np.random.default_rng(self.seed)
        self._normal, self._uniform, self._state = iter(()), iter(()), self._random.normal()
        self.started_s = self.seconds

    def now(self):
        return self.seconds

    def sample(self, times=1.0):
        """Work for one sample, `times` as long, and return its time as the device's clock tells it, seconds."""
        before = self.seconds
        launch_s = times * self._launch_now_s() * math.exp(self.noise * self._next_normal())
        self.seconds += self.launches_per_sample * launch_s
        if not self.tick_s:
            return self.seconds - before
        return (math.floor(self.seconds / self.tick_s) - math.floor(before / self.tick_s)) * self.tick_s

    def load(self, times=1.0):
        """Return one of several works that take turns on this device, slower by so many times; `sample` is the first.

        All share the clock, the drift and the noise, whose correlation goes on from one turn to the next.
        """
        return SimulatedLoad(self, times)

    def _launch_now_s(self):
        is_warm = self.cache == "warm" or self.is_falsely_cold
        launch_s = self.launch_s / self.warm_gain if is_warm else self.launch_s
        launch_s *= 1 + self.drift * (1 - math.exp(-(self.seconds - self.started_s) / self.drift_s))
        if self.slow_share and self._next_uniform() < self.slow_share:
            launch_s *= 1 + self.slow_by
        return launch_s / (self.clock_hz() / self.max_clock_hz)

    def clock_hz(self):
        """Return the SM clock now, in steps of 15 MHz as NVIDIA's GPUs have them."""
        share = 1 - (1 - self.start_clock) * math.exp(-(self.seconds - self.started_s) / self.settle_s)
        share += self.swing * math.sin(2 * math.pi * 3 * self.seconds)
        if self.throttled_share and self.seconds / 0.02 % 1 < self.throttled_share:
            share /= 2
        return max(round(share * self.max_clock_hz / 15e6), 1) * 15e6

    def clock_and_power(self):
        """Return what a warm-up polls."""
        self.polls.append(self.seconds)
        if not self.reads_clock:
            return ClockAndPower(None, None)
        share = self.clock_hz() / self.max_clock_hz
        return ClockAndPower(self.clock_hz(), 100 + 600 * share**2)

    def telemetry(self):
        """Return a record's telemetry as far as flags need it."""
        shares = {"sw_power_cap": 0.0, "sw_thermal": self.throttled_share, "hw_thermal": 0.0, "power_brake": 0.0}
        return {"throttle": shares, "throttle_resolution": 0.005, "clock_events": [], "sm_clock_hz": self.clock_hz()}

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
    """One of several works on a simulated device; takes turns as a provider does."""

    device: SimulatedDevice
    times: float = 1.0

    def slot(self):
        """Return the samples of one turn, seconds per launch: one, as on a CPU."""
        return (self.device.sample(self.times) / self.device.launches_per_sample,)


# ---- the verdicts ------------------------------------------------------------------------------------------

BUDGET_S = 10.0
SLOW_DRIFT = {"drift": 0.03, "drift_s": 2.0}
"""3 % slower in the end, most of it within some seconds, as a GPU that becomes warm."""

WINDOWS_DIFFER = 0.011
"""Standard deviation between the levels of windows: 95 % of two windows are within 3 % of each other, as on a B200."""

LEAST_IN_A_ROW = 2000
"""Samples of each version where one is measured after the other: 2 s, the most that an ordinary row takes on a CPU, and
mostly more than the rounds took."""


@dataclass(frozen=True)
class Scenario:
    """A kind of device, the truth, and what the verdict ought to be."""

    name: str
    device: dict
    change: float
    """True change of the time, as a fraction."""
    margin: float = 0.01
    least_share: float | None = None
    """Share of trials in which a true change must be found; None where there is none."""
    most_false: float = 0.05
    """Share of trials in which a version may be called different from itself, or faster though it is slower."""
    between: float = 0.0
    """Standard deviation of the logarithm of the speed from one window to another, minutes or days later."""


def scenarios():
    """Return all kinds of devices: twins, twins with a margin of twice the noise, and true changes."""
    kinds = {
        "noise 0.5 %": {"noise": 0.005},
        "noise 1 %": {"noise": 0.01},
        "noise 2 %": {"noise": 0.02},
        "noise 5 %": {"noise": 0.05},
        "noise 1 %, drift 3 %": {"noise": 0.01, **SLOW_DRIFT},
        "noise 2 %, neighbors correlate by 0.7": {"noise": 0.02, "correlation": 0.7},
        "noise 5 %, neighbors correlate by 0.7": {"noise": 0.05, "correlation": 0.7},
        "noise 1 %, two speeds 8 % apart": {"noise": 0.01, "slow_share": 0.3, "slow_by": 0.08},
        "all of these": {"noise": 0.01, "correlation": 0.5, "slow_share": 0.3, "slow_by": 0.08, **SLOW_DRIFT},
    }
    found = [Scenario(f"A/A, {name}", device, 0.0) for name, device in kinds.items()]
    found += [
        Scenario(f"A/A, {name}, margin of twice the noise", device, 0.0, 2 * device["noise"], most_false=0.01)
        for name, device in kinds.items()
        if "two speeds" not in name and "all" not in name
    ]
    changes = [
        ("noise 1 %", 0.02),
        ("noise 1 %, drift 3 %", 0.02),
        ("all of these", 0.02),
        ("noise 1 %, drift 3 %", -0.02),
        ("noise 5 %", 0.10),
        ("noise 5 %, neighbors correlate by 0.7", 0.10),
    ]
    found += [Scenario(f"{change:+.0%}, {name}", kinds[name], change, least_share=0.95) for name, change in changes]
    apart = f"windows differ by {WINDOWS_DIFFER:.1%}"
    for name in ("noise 1 %", "noise 5 %", "noise 1 %, drift 3 %"):
        found.append(Scenario(f"A/A, {name}, {apart}", kinds[name], 0.0, between=WINDOWS_DIFFER))
        for change in (0.10, -0.10):
            title = f"{change:+.0%}, {name}, {apart}"
            found.append(Scenario(title, kinds[name], change, least_share=0.95, between=WINDOWS_DIFFER))
    # Just at the margin a verdict of SLOWER is already wrong: here every look is a temptation.
    found.append(Scenario("+1 %: just at the margin, noise 2 %", {"noise": 0.02}, 0.01))
    return found


@dataclass
class Counts:
    """Verdicts over all trials, of the four ways to compare."""

    paired: dict
    allowing: dict
    medians: dict
    margin_only: dict
    seconds: list
    """Time that each paired comparison took, on the device's own clock."""


def device_of(scenario, seed):
    """Return a device of this kind, already settled but for its drift."""
    return SimulatedDevice(seed=seed, launch_s=1e-4, launches_per_sample=10, **scenario.device)


def paired(scenario, seed, budget_s=BUDGET_S):
    """Return the rounds of one trial and their comparison."""
    device, rule = device_of(scenario, seed), Rule(scenario.margin, budget_s=budget_s, seed=seed)
    rounds = run_rounds([device.load(), device.load(1 + scenario.change)], rule, device.now)
    return rounds, rounds.comparison(1, rule)


def one_after_the_other(scenario, seed, samples):
    """Return the verdicts with an interval and by the margin alone, from `samples` of each version in a row."""
    return apart(scenario, seed, samples)[1:]


def apart(scenario, seed, samples):
    """Return the verdicts that allow for drift, by the interval and by the margin alone, from as many samples each."""
    samples = max(samples, LEAST_IN_A_ROW)
    device = device_of(scenario, seed + 10**6)
    levels = np.exp(np.random.default_rng(seed).normal(0, scenario.between, size=2)).tolist()
    loads = [device.load(level * times) for level, times in zip(levels, (1, 1 + scenario.change), strict=True)]
    series = [np.array([load.slot()[0] for _ in range(samples)]) for load in loads]
    change = math.log(np.median(series[1]) / np.median(series[0]))
    edge = math.log1p(scenario.margin)
    by_margin = SLOWER if change > edge else FASTER if change < -edge else SAME
    row = [([series[0]], [series[1]])]
    found = [compare_many(row, scenario.margin, drift=drift)[0].verdict for drift in (drift_of(None, 0.0, 0), None)]
    return *found, by_margin


def count(scenario, trials, budget_s=BUDGET_S):
    """Return the verdicts of so many trials."""
    blank = dict.fromkeys((FASTER, SLOWER, SAME, UNSURE), 0)
    counts = Counts(dict(blank), dict(blank), dict(blank), dict(blank), [])
    for seed in range(trials):
        rounds, comparison = paired(scenario, seed, budget_s)
        counts.paired[comparison.verdict] += 1
        counts.seconds.append(rounds.seconds)
        kinds = (counts.allowing, counts.medians, counts.margin_only)
        for found, verdict in zip(kinds, apart(scenario, seed, rounds.count), strict=True):
            found[verdict] += 1
    return counts


def right(scenario):
    """Return the verdict that finds the change."""
    return SLOWER if scenario.change > 0 else FASTER


def false_verdicts(scenario, verdicts):
    """Return how many verdicts claim what is not so: a change beyond the margin, or the wrong one."""
    return sum(verdicts[v] for v in (FASTER, SLOWER) if scenario.least_share is None or v != right(scenario))


def cell(scenario, verdicts, trials):
    """Return what counts: false verdicts of twins, changes that were found of true ones, in percent."""
    hits = false_verdicts(scenario, verdicts) if scenario.least_share is None else verdicts[right(scenario)]
    return f"{100 * hits / trials:.1f} %"


def main():
    """Print a table in Markdown, a row for each kind of device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of a simulated comparison")
    args = parser.parse_args()
    print(f"{args.trials} trials each, at most {args.budget:g} s, samples of 1 ms; margin 1 % where none is named")
    print(
        "| device | counted | paired rounds | two windows, ±3 % for drift | medians, intervals | medians, margin "
        "| UNSURE, paired | UNSURE, ±3 % | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in scenarios():
        counts = count(scenario, args.trials, args.budget)
        counted = "false" if scenario.least_share is None else "found"
        ways = (counts.paired, counts.allowing, counts.medians, counts.margin_only)
        cells = [cell(scenario, found, args.trials) for found in ways]
        cells += [f"{100 * found[UNSURE] / args.trials:.1f} %" for found in (counts.paired, counts.allowing)]
        print(f"| {scenario.name} | {counted} | {' | '.join(cells)} | {median(counts.seconds):.2g} |", flush=True)


if __name__ == "__main__":
    main()
