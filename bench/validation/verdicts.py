"""How often `python -m bench compare` is right on this machine: twins that must not differ, and one with more work.

    python -m bench.validation.verdicts --runs 40

Each run is a comparison of its own: a bf16 matmul of 512 x 512 x 512 against itself under another name, and against one
with 5 % more work, a k of 538. Nothing is asserted, because a machine that others use gives UNSURE, which is no false
verdict.
"""

import argparse
import time
from collections import Counter

import torch

from bench.harness.cli.session import use_threads
from bench.harness.compare.case import InterleavingRunner
from bench.harness.compare.rounds import Rule
from bench.harness.device.device import detect
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.plan import Settings
from bench.harness.measure.plan import plan as planned_rows
from bench.harness.op import Case
from bench.harness.providers.registry import Provider
from bench.matmul import OPS
from results.record import Environment
from results.stats.comparison import FASTER, SLOWER
from results.stats.samples import half_width, median
from roofline.ceilings import Ceilings

SIZE = 512
MORE_WORK = 0.05
PREPARING_S = 3.0
"""Of each run: making and checking the copies, settling, and the warm time beside the cold one."""


class WithMoreWork:
    """Computes the product of matrices that are 5 % longer along k by zeros, so that the result is the same."""

    def __init__(self):
        self._longer = {}

    def __call__(self, a, b, out):
        """Multiply; the longer matrices are made when a copy of the inputs is seen for the first time."""
        key = a.data_ptr(), b.data_ptr()
        if key not in self._longer:
            more = round(MORE_WORK * SIZE)
            self._longer[key] = torch.nn.functional.pad(a, (0, more)), torch.nn.functional.pad(b, (0, 0, 0, more))
        torch.mm(*self._longer[key], out=out)


def load(name, op, family, device):
    """Return the provider of this name; ours does the same work, or 5 % more."""
    return Provider(name, WithMoreWork() if name == "more-work" else op.eager, takes_out=True)


def compared(device, candidate, seed, budget_s):
    """Return the comparison of one run, and the seconds of its rounds."""
    from bench.harness.measure import plan, runner
    from results.compare.live import compare_live

    runner.load = load
    plan.unavailable = lambda name, device: None  # the names here are none of ours
    settings = Settings(seed=seed)
    ceilings = Ceilings(device.slug, device.name, [])
    case = Case("matmul", "bf16", {"m": SIZE, "n": SIZE, "k": SIZE}, {"layout": "nn", "batch": 1})
    measuring = InterleavingRunner("matmul", device, settings, CostEstimator(device, "uniform", seed), None, ceilings)
    rows = planned_rows([(OPS[0], case)], ["torch", candidate], device, settings)
    records = measuring.measure_case(rows, ["torch", candidate], Rule(0.01, budget_s=budget_s, seed=seed))
    environment = Environment(run_id="r", started_at="2026-01-01", argv=(), device=device.to_dict())
    found = compare_live(environment, records, "torch", 0.01)
    return found.rows[0].compared, records[0].interleaved["seconds"]


def main():
    """Print the verdicts of both kinds of runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of one comparison")
    args = parser.parse_args()
    device = detect(None)
    use_threads(device)
    print(f"{device.name}, matmul {SIZE}x{SIZE}x{SIZE} bf16, {args.runs} runs each of at most {args.budget:g} s")
    most_s = 2 * args.runs * (args.budget + PREPARING_S)
    print(f"at most about {most_s / 60:.1f} minutes on a quiet machine", flush=True)
    began = time.perf_counter()
    for candidate, title in (("twin", "against itself"), ("more-work", f"with {MORE_WORK:.0%} more work")):
        found = [compared(device, candidate, seed, args.budget) for seed in range(args.runs)]
        verdicts = Counter(comparison.verdict for comparison, _ in found)
        widths = [100 * half_width(comparison.ci95, comparison.ratio) for comparison, _ in found]
        listed = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
        print(f"{title}: {listed}; ratio {median([comparison.ratio for comparison, _ in found]):.4f} (median)")
        print(f"  interval ±{median(widths):.2g} % (median), {median([s for _, s in found]):.2g} s of rounds (median)")
        if candidate == "twin":
            print(f"  false verdicts: {verdicts[FASTER] + verdicts[SLOWER]} of {args.runs}")
        else:
            print(f"  found: {verdicts[SLOWER]} of {args.runs}")
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
