"""How often verdicts on simulated devices are wrong, or missed: paired rounds, and medians taken one after the other.

    python -m tests.perf.simulated_verdicts --trials 1000

Each trial is a comparison by the rules of `python -m bench compare`, within its default time, on a device with a
seed of its own. Beside it stands what most tools do: as many samples of the one version, then as many of the other,
and two medians, judged with an interval, or by the margin alone.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.harness.compare_rounds import Rule, run_rounds
from results.stats import median
from results.verdict import FASTER, SAME, SLOWER, UNSURE, compare_unpaired

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from simulated_device import SimulatedDevice  # lies beside the tests that use it too

BUDGET_S = 10.0
SLOW_DRIFT = {"drift": 0.03, "drift_s": 2.0}
"""3 % slower in the end, most of it within some seconds, as a GPU that becomes warm."""

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
    # Just at the margin a verdict of SLOWER is already wrong: here every look is a temptation.
    found.append(Scenario("+1 %: just at the margin, noise 2 %", {"noise": 0.02}, 0.01))
    return found


@dataclass
class Counts:
    """Verdicts over all trials, of the three ways to compare."""

    paired: dict
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
    samples = max(samples, LEAST_IN_A_ROW)
    device = device_of(scenario, seed + 10**6)
    series = [[load.slot()[0] for _ in range(samples)] for load in (device.load(), device.load(1 + scenario.change))]
    change = math.log(median(series[1]) / median(series[0]))
    edge = math.log1p(scenario.margin)
    by_margin = SLOWER if change > edge else FASTER if change < -edge else SAME
    return compare_unpaired(*series, scenario.margin).verdict, by_margin


def count(scenario, trials, budget_s=BUDGET_S):
    """Return the verdicts of so many trials."""
    blank = dict.fromkeys((FASTER, SLOWER, SAME, UNSURE), 0)
    counts = Counts(dict(blank), dict(blank), dict(blank), [])
    for seed in range(trials):
        rounds, comparison = paired(scenario, seed, budget_s)
        counts.paired[comparison.verdict] += 1
        counts.seconds.append(rounds.seconds)
        for found, verdict in zip(
            (counts.medians, counts.margin_only), one_after_the_other(scenario, seed, rounds.count), strict=True
        ):
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
    print("| device | counted | paired rounds | two medians, intervals | two medians, margin | UNSURE | seconds |")
    print("|---|---|---|---|---|---|---|")
    for scenario in scenarios():
        counts = count(scenario, args.trials, args.budget)
        counted = "false" if scenario.least_share is None else "found"
        cells = [cell(scenario, found, args.trials) for found in (counts.paired, counts.medians, counts.margin_only)]
        unsure = f"{100 * counts.paired[UNSURE] / args.trials:.1f} %"
        print(
            f"| {scenario.name} | {counted} | {' | '.join(cells)} | {unsure} | {median(counts.seconds):.2g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
