"""`python -m tests.validation.fleets`: recall and false flags on synthetic fleets, beside the rules
of other tools.

Each rule judges the same rows: the median of each op and phase, over all devices of the fleet.
DCGM's own check is a floor of 75 % of a value for the model, here the mean; its optional check of
the spread is the mean less 10 %.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean

from results.fleet.devices import read_fleet
from results.fleet.judge import judge
from tests.validation.fleet_generator import fleet

RULES = {
    "DCGM, 75 % floor": (mean, 0.75),
    "DCGM, mean - 10 %": (mean, 0.9),
    "superbench, mean - 5 %": (mean, 0.95),
    "gpu-fryer, best - 10 %": (max, 0.9),
    "NVRx, 0.75 of best": (max, 0.75),
}


def counts_of(spread, seeds, rules=True):
    """Return counts over fleets of 1,000 devices: `slow`, `found`, `false` flags, `right cause`,
    and of each rule.
    """
    counts = Counter()
    for seed in range(seeds):
        files, slow = fleet(seed, spread=spread)
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                (Path(directory) / name).write_bytes(content)
            devices, earlier, _ = read_fleet([Path(directory)])
        findings = judge(devices, earlier)
        counts["slow"] += len(slow)
        for finding in findings:
            cause = slow.get(finding.device.uuid) if finding.device else None
            counts["found"] += bool(cause) and finding.verdict == "slow"
            counts["right cause"] += (
                bool(cause) and finding.verdict == "slow" and finding.rule.cause == cause
            )
            counts["false"] += cause is None and finding.verdict != "ok"
        for name, (center, limit) in RULES.items() if rules else ():
            flagged = {
                uuid for uuid, ratio in lowest_ratios(devices, center).items() if ratio < limit
            }
            counts[name, "found"] += len(flagged & slow.keys())
            counts[name, "false"] += len(flagged - slow.keys())
    return counts


def lowest_ratios(devices, center):
    """Return the lowest ratio of a device's rate to the mean or the best of its peers, over its
    rows.
    """
    from math import exp

    ratios = {device.uuid: 1.0 for device in devices}
    for key in devices[0].readings:
        rates = {device.uuid: exp(device.readings[key].rate) for device in devices}
        reference = center(rates.values())
        ratios = {uuid: min(ratio, rates[uuid] / reference) for uuid, ratio in ratios.items()}
    return ratios


def main(seeds=20):
    spreads = (0.003, 0.01, 0.02, 0.03)
    columns = {spread: counts_of(spread, seeds) for spread in spreads}
    print(f"| rule | {' | '.join(f'{100 * spread:g} %' for spread in spreads)} |")
    print(f"| --- |{' --- |' * len(spreads)}")
    for name in ("fleet-report", *RULES):
        cells = []
        for counts in columns.values():
            found, false = (
                counts[key] if name == "fleet-report" else counts[name, key]
                for key in ("found", "false")
            )
            cells.append(f"{found / counts['slow']:.3f} / {round(false / seeds, 2):g}")
        print(f"| {name} | {' | '.join(cells)} |")
    causes = [f"{counts['right cause'] / counts['found']:.3f}" for counts in columns.values()]
    print(f"| right cause, of those found | {' | '.join(causes)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
