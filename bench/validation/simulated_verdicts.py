"""How often verdicts on simulated devices are wrong, or missed: paired rounds, and medians taken one after the other.

    python -m bench.validation.simulated_verdicts --trials 1000

Each trial is a comparison by the rules of `python -m bench compare`, within its default time, on a device with a
seed of its own. Beside it stands what most tools do: as many samples of the one version, then as many of the other,
and two medians, judged by what `python -m results compare` allows for drift between two windows, with an interval of
the samples alone, or by the margin alone.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np

from bench.harness.compare.rounds import Rule, run_rounds
from bench.validation.simulated_device import SimulatedDevice
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE
from results.stats.drift import drift_of
from results.stats.samples import median
from results.stats.unpaired import compare_many

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
