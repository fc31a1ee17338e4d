"""Our median of a CPU matmul against that of `torch.utils.benchmark`: same product, same threads, one process.

The two take turns, so that whatever slows the machine slows both. Only the ratio is of interest, and it is reported,
not asserted: a machine with other work on it can give any number. At length:

    python -m tests.perf.test_matmul_against_torch_benchmark --rounds 7

Source  `Timer.blocked_autorange` and `Timer.adaptive_autorange` of torch.utils.benchmark; the better of the two is
        what ours is set against. They call one product again and again, which is our `warm`; our default is `cold`.
"""

import argparse
import math
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from bench.harness.data import inputs
from bench.harness.device.device import cpu_device
from bench.harness.op import Case
from bench.harness.providers.registry import load, numerics
from bench.harness.timing.protocol import CPU_LIMITS, Limits, collect, warm_up
from bench.harness.timing.samplers import make_sampler
from bench.matmul import OPS
from results.show.terminal import table_console
from results.stats.samples import median

MATMUL = OPS[0]
DTYPES, SIZES = ("bf16", "fp32"), (1024, 2048)

SHORT = Limits(min_samples=5, target_half_width=0.05, min_time_s=0.0, cap_s=0.25, warm_up_s=0.02, min_sample_s=1e-3)
"""What a test run can afford; as a script, our own limits hold."""

OURS = ("cold", "warm")
THEIRS = ("blocked", "adaptive")


@dataclass
class Comparison:
    """The medians of one product, a value for each way to take it and each round."""

    dtype: str
    size: int
    flops: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in (*OURS, *THEIRS)})

    def ratios(self, ours: str) -> list[float]:
        """Return our median over the better one of torch's, round by round."""
        return [
            mine / min(both) for mine, *both in zip(self.seconds[ours], *map(self.seconds.get, THEIRS), strict=True)
        ]


class Product:
    """One product, ready to be timed in each of the ways."""

    def __init__(self, dtype: str, size: int, limits: Limits, min_run_time_s: float) -> None:
        self._device = cpu_device()
        self._case = Case("matmul", dtype, {"m": size, "n": size, "k": size}, {"layout": "nn", "batch": 1})
        self._limits = limits
        self._provider = load("torch", MATMUL, "matmul", self._device)
        self._min_run_time_s = min_run_time_s
        filler = inputs.Filler("uniform", dtype, self._device, 0)
        self._sets = {
            cache: inputs.make_sets(MATMUL, self._case, filler, self._device, self._copies(cache)) for cache in OURS
        }

    def _copies(self, cache: str) -> int:
        moved_bytes, free_bytes = MATMUL.work(self._case).bytes, self._device.free_bytes()
        return inputs.plan_rotation(moved_bytes, self._device.cache_bytes, free_bytes, "cpu", cache).copies

    def flops(self) -> tuple[int, int]:
        """Return the FLOPs that our work declares, and those that torch counts for the call that both time."""
        data = self._sets["warm"][0]
        with FlopCounterMode(display=False) as counter:
            torch.matmul(*data.inputs)
        return MATMUL.work(self._case).flops, counter.get_total_flops()

    def median_s(self, way: str) -> float:
        """Return the median seconds of a launch, taken in one of the ways."""
        with numerics(self._case.dtype):
            if way in OURS:
                sampler = make_sampler(
                    [self._provider.call(data) for data in self._sets[way]], self._device, self._limits
                )
                warm_up(sampler, self._limits.warm_up_s)
                return collect(sampler, self._limits, way).median_s
            data = self._sets["warm"][0]
            values = {"call": self._provider.call(data)}
            timer = Timer("call()", globals=values, num_threads=torch.get_num_threads())
            if way == "blocked":
                return timer.blocked_autorange(min_run_time=self._min_run_time_s).median
            return timer.adaptive_autorange(min_run_time=self._min_run_time_s / 4).median


def compare(
    dtypes: Sequence[str], sizes: Sequence[int], rounds: int, limits: Limits, min_run_time_s: float
) -> list[Comparison]:
    """Return the comparison of each product, the ways taking turns, each round beginning with another one."""
    torch.set_num_threads(cpu_device().threads)
    found = []
    for dtype in dtypes:
        for size in sizes:
            product = Product(dtype, size, limits, min_run_time_s)
            declared, counted = product.flops()
            assert declared == counted == 2 * size**3
            comparison = Comparison(dtype, size, declared)
            ways = list(comparison.seconds)
            for turn in range(rounds):
                for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                    comparison.seconds[way].append(product.median_s(way))
            found.append(comparison)
    return found


def preemptions() -> int:
    """Return how often this process has lost a core to another one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def report(comparisons: Sequence[Comparison], switches: int) -> str:
    """Return a table of medians over the rounds and of the ratios, with what else the machine was doing."""
    from rich import box
    from rich.table import Table

    rounds = len(comparisons[0].seconds["cold"])
    title = f"medians over {rounds} rounds, {torch.get_num_threads()} threads, torch {torch.__version__}"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, preempted {switches} times"
    table = Table(box=box.SIMPLE_HEAD, title=f"{title}, {load}", title_justify="left")
    for name in ("dtype", "n", "ours cold", "ours warm", "blocked", "adaptive", "GFLOP/s", "cold/best", "warm/best"):
        table.add_column(name, justify="left" if name == "dtype" else "right", no_wrap=True)
    for one in comparisons:
        times = {way: median(values) for way, values in one.seconds.items()}
        ratios = [f"{median(one.ratios(way)):.3f} ({spread(one.ratios(way))})" for way in OURS]
        shown = [f"{times[way] * 1e3:.3f} ms" for way in (*OURS, *THEIRS)]
        table.add_row(one.dtype, str(one.size), *shown, f"{one.flops / times['warm'] / 1e9:.1f}", *ratios)
    console = table_console(sys.stdout)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def spread(values: Sequence[float]) -> str:
    """Return the least and the largest value."""
    return f"{min(values):.2f} to {max(values):.2f}"


def test_our_median_beside_torch_utils_benchmark(capsys):
    switches = preemptions()
    comparisons = compare(DTYPES, SIZES, rounds=2, limits=SHORT, min_run_time_s=0.1)
    with capsys.disabled():
        print(f"\n{report(comparisons, preemptions() - switches)}")
    assert [(one.dtype, one.size) for one in comparisons] == [(d, n) for d in DTYPES for n in SIZES]
    for one in comparisons:
        assert one.flops == 2 * one.size**3
        for values in one.seconds.values():
            assert len(values) == 2
            assert all(math.isfinite(value) and value > 0 for value in values)


def test_one_product_cold_by_the_fixture(gpu_benchmark):
    """The same product once more, as a test of another project would measure it."""
    case = Case("matmul", "fp32", {"m": 256, "n": 256, "k": 256}, {"layout": "nn", "batch": 1})
    work, made = MATMUL.work(case), []

    def operands():
        made.append(tuple(torch.rand(256, 256) for _ in range(2)))
        return made[-1]

    product = gpu_benchmark(
        torch.matmul,
        inputs=operands,
        flops=work.flops,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        dtype="fp32",
        budget_s=0.3,
    )
    torch.testing.assert_close(product, made[0][0] @ made[0][1])
    if gpu_benchmark.enabled:
        info = gpu_benchmark.extra_info
        assert info["flops_per_s"] == pytest.approx(2 * 256**3 / gpu_benchmark.stats["median"])
        assert (info["device_type"], info["method"], info["cache"]) == ("cpu", "host", "cold")
        assert info["copies"] == len(made) > 1


@pytest.mark.parametrize(
    ("ours", "blocked", "adaptive", "ratio"), [(3.0, 2.0, 4.0, 1.5), (3.0, 6.0, 4.0, 0.75), (2.0, 2.0, 2.0, 1.0)]
)
def test_the_ratio_is_over_the_better_of_the_two(ours, blocked, adaptive, ratio):
    comparison = Comparison("fp32", 1024, 1)
    for way, value in zip((*OURS, *THEIRS), (ours, 9.0, blocked, adaptive), strict=True):
        comparison.seconds[way].append(value)
    assert comparison.ratios("cold") == [ratio]


def main() -> int:
    """Compare at length, with the limits of our own commands, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is taken (default: 5)")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=("fp64", "fp32", "bf16"))
    parser.add_argument("--size", nargs="+", type=int, default=list(SIZES))
    args = parser.parse_args()
    switches = preemptions()
    comparisons = compare(args.dtype, args.size, args.rounds, CPU_LIMITS, min_run_time_s=1.0)
    print(report(comparisons, preemptions() - switches), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
