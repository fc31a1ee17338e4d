"""How often one kernel, timed as two providers, is called faster or slower than itself on this machine.

    python -m bench.validation.self_comparisons --runs 40 --dtype bf16

Each run is that of `python -m bench doctor`: pairs in random order for about `--seconds`. Nothing is asserted: a
machine that others use gives UNSURE, which is no false verdict, and the interval reached says how noisy it was.
"""

import argparse
from collections import Counter

from bench.harness.cli.session import use_threads
from bench.harness.commands.doctor import compare_with_itself
from bench.harness.device.device import detect
from bench.matmul import OPS
from results.stats.comparison import FASTER, SLOWER
from results.stats.samples import half_width, median


def main() -> None:
    """Print the verdicts of all runs, how many of them are false, and the half width of their intervals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--dtype", default="bf16")
    args = parser.parse_args()
    device = detect(None)
    use_threads(device)
    found = [compare_with_itself(device, OPS[0], args.seconds, seed, args.dtype) for seed in range(args.runs)]
    verdicts = Counter(run.comparison.verdict for run in found)
    widths = [100 * half_width(run.comparison.ci95, run.comparison.ratio) for run in found]
    print(f"{device.name}, matmul {found[0].case} {args.dtype}, {args.runs} runs of {args.seconds:g} s")
    print(", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items())))
    print(f"half width of the interval: median {median(widths):.2g} %, from {min(widths):.2g} to {max(widths):.2g} %")
    print(f"smallest detectable change: median {median([run.smallest_change_pct for run in found]):.2g} %")
    print(f"false verdicts: {verdicts[FASTER] + verdicts[SLOWER]} of {args.runs}")


if __name__ == "__main__":
    main()
