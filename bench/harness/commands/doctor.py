"""`python -m bench doctor`: does everything work on this machine, and how small a change could be seen on it?"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import CaseWords, UsageError, add, make_cases, number, path
from bench.harness.cli.terminal import Progress
from bench.harness.commands.findings import (
    BAD,
    NOTE,
    OK,
    Finding,
    finding,
    gpu_findings,
    host_findings,
    judged,
    noise_findings,
    row_finding,
    tick_finding,
)
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.device import gpu_state, host
from bench.harness.device.device import Device
from bench.harness.op import Case, Op
from bench.harness.op_file import options_of
from bench.harness.providers.registry import default_providers, load, numerics
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Settling, limits_of, no_garbage_collection, settle
from results.show.table import format_time
from results.show.terminal import INTERRUPTED, Parser, drawn, print_out, printable
from results.stats.samples import median
from results.stats.verdict import compare_pairs, smallest_detectable_change

if TYPE_CHECKING:
    from rich.console import Console

    from results.record import Record
    from roofline.ceilings import Ceilings

DESCRIPTION = """\
Check a machine before measuring on it, one line per check, each ok, note or bad:

- device, driver, clocks, limits, other users of the GPU, timer resolution, the cost of a launch;
- one matmul timed as two providers, interleaved in random order: they must come out the same, and the noise between
  them gives the smallest change that could be seen here;
- a large matmul and a large copy, beside a published figure of the same GPU or its datasheet;
- one small verified row of each family by each default provider.

Nothing is saved or changed. A check that fails costs its own line only. Exit code 0: fit; 1: a line is bad; 2: usage;
3: no such device; 130: interrupted."""

LEAST_PAIRS, MOST_PAIRS = 20, 400
SIZES = {"cpu": 512, "cuda": 2048, "rocm": 2048}
"""Square matmul of the comparison: about a millisecond or less, so that a few seconds hold hundreds of pairs."""

CPU_ROW_CAP_S, GPU_ROW_CAP_S = 0.3, 1.0  # of sampling one row

LARGE = {
    "cpu": (("matmul", "matmul", "bf16", "1024"), ("elementwise", "copy", "fp32", "16777216")),
    "gpu": (("matmul", "matmul", "bf16", "8192"), ("elementwise", "copy", "fp32", "134217728")),
}
"""Family, op, dtype and shape of the rows that are compared with expected rates; the copies move 2 x 64 and 512 MiB."""

GRAPH_LAUNCHES, GRAPH_SAMPLES = 800, 30

COLORS = {OK: "green", NOTE: "yellow", BAD: "red"}
NOISE_KEYS = ("self_comparison", "smallest_detectable_change_pct", "settling")
"""JSON keys of the comparison of one kernel with itself; None until it is measured."""


@dataclass
class Checkup:
    """The findings so far; each is printed, and saved with the previous ones, as soon as it is added."""

    args: argparse.Namespace
    device: Device
    ceilings: Ceilings
    families: Mapping[str, tuple[Op, ...]]
    versions: Mapping[str, Any]
    progress: Progress
    began: float = field(default_factory=time.perf_counter)
    findings: list[Finding] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    noise: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(NOISE_KEYS))

    @property
    def is_fit(self) -> bool:
        """Whether no finding is bad."""
        return all(finding.status != BAD for finding in self.findings)

    def add(self, found: Finding) -> None:
        """Print and save a finding."""
        self.findings.append(found)
        self.print(f"{found.name}: {found.value}", status=found.status)
        if found.advice:
            self.print(f"      {found.advice}")
        self.save()

    def print(self, text: str, color: str | None = None, status: str = "") -> None:
        """Print a line, unless stdout holds JSON."""

        def draw(console: Console) -> None:
            if status:
                console.print(f"{status:<4}", style=COLORS[status], end="  ", highlight=False)
            console.print(printable(text), style=color, markup=False, highlight=False, soft_wrap=True)

        if self.args.format == "table":
            print_out(drawn(draw))

    def save(self) -> None:
        """Write all findings so far to the output file.

        Raises:
            UsageError: it cannot be written.
        """
        if self.args.output is not None:
            try:
                self.args.output.write_text(self.text(), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write {self.args.output}: {error.strerror}") from None

    def text(self) -> str:
        """Return all findings so far as JSON, in SI base units."""
        content = {
            "fit": self.is_fit,
            "device": asdict(self.device),
            "gpu": self.ceilings.slug,
            "versions": dict(self.versions),
            "seconds": time.perf_counter() - self.began,
            "findings": [asdict(finding) for finding in self.findings],
            **self.noise,
            "records": [record.to_dict() for record in self.records],
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser: Parser = commands.add_parser("doctor", description=DESCRIPTION)
    seconds = number(0.1, 3600, "a number of seconds from 0.1 to 3600")
    add(parser, "--device", "--threads")
    of_budget = "time of the comparison of one kernel with itself (default: 4)"
    add(parser, "--budget", type=seconds, default=4.0, help=of_budget)
    add(parser, "--seed", help="random seed for the order of the pairs (default: 0)")
    add(parser, "--format", choices=("table", "json"))
    of_output = "save the findings as JSON, rewritten after each check"
    parser.add_argument("-o", "--output", metavar="FILE", type=path, help=of_output)
    add(parser, "--quiet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Run all checks and return the exit code."""
    from bench.harness.calibrate.calibration import ceilings_of
    from bench.harness.cli import main

    if isinstance(args.output, str) or (args.output is not None and args.output.is_dir()):
        raise UsageError(f"--output {args.output} is a folder; name a file in it")
    if args.output is not None:
        main.check_output(args.output)
    device = main.device_of(args)
    device.use()
    is_interrupted = False
    with Progress(args.quiet) as progress:
        checkup = Checkup(args, device, ceilings_of(device, None), families, host.versions(), progress)
        known = ", ".join(f"{name} {version}" for name, version in checkup.versions.items() if version)
        gpu = "" if checkup.ceilings.slug == device.slug else f", {checkup.ceilings.slug}"
        checkup.print(f"{device.name} ({device.slug}{gpu}), {known}")
        try:
            check_all(checkup)
        except KeyboardInterrupt:
            is_interrupted = True
    checkup.save()
    counts = {status: sum(finding.status == status for finding in checkup.findings) for status in COLORS}
    counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    verdict, color = ("fit: measure", "green") if checkup.is_fit else ("not fit: see what is bad above", "red")
    checkup.print(f"{verdict} ({counted}; {time.perf_counter() - checkup.began:.0f} s)", color)
    if args.format == "json":
        print_out(checkup.text())
    return INTERRUPTED if is_interrupted else 0 if checkup.is_fit else 1


def check_all(checkup: Checkup) -> None:
    """Run every check; an error in one adds a bad finding, and the next one runs."""
    from bench.harness.measure.errors import DEVICE_LOST, one_line
    from bench.harness.measure.measure_row import release

    checks: tuple[tuple[str, Callable[[Checkup], Iterator[Finding]]], ...] = (
        ("the device", device_check),
        ("launches", launch_check),
        ("one kernel as two providers", noise_check),
        ("large matmul and copy", large_check),
        ("families", family_check),
    )
    for name, check in checks:
        checkup.progress.say(f"checking: {name}")
        try:
            for found in check(checkup):
                checkup.add(found)
        except UsageError:
            raise
        except Exception as error:  # compilers, drivers and libraries raise classes of their own
            checkup.add(Finding(name, BAD, one_line(error), "nothing that depends on it can be measured"))
        if not release(checkup.device):
            checkup.add(Finding("the other checks", BAD, DEVICE_LOST))
            break


# ---- the checks ------------------------------------------------------------------------------------------------------


def device_check(checkup: Checkup) -> Iterator[Finding]:
    """Yield the state of the host, the device and its timer."""
    device = checkup.device
    cores = {"cores_allowed": len(host.allowed_cores()), "cgroup_quota_cores": host.cpu_quota()}
    yield from host_findings(host.state() | cores, device)
    tick = tick_finding(samplers.tick_s(device), device.type)
    if device.is_gpu:  # after the timer, which makes this process a user of the GPU
        yield from gpu_findings(gpu_state.facts(device.uuid))
    if checkup.ceilings.note:
        yield finding("GPU table", checkup.ceilings.note, "--gpu names the entry to use")
    yield tick
    cache = f"{device.cache_bytes / 1e6:.3g} MB of last-level cache"
    yield finding("free memory", f"{device.free_bytes() / 1e9:.3g} GB, {cache}")


def launch_check(checkup: Checkup) -> Iterator[Finding]:
    """Yield the time of a launch from the host, and on a GPU also the time of the shortest kernel in a CUDA graph."""
    import torch

    host_s = samplers.empty_launch_s(checkup.device)
    yield Finding("launch floor", OK, f"{format_time(host_s)} for the host", "", host_s, "s")
    if checkup.device.is_gpu:
        x = torch.ones(1, device=checkup.device.torch_name)
        graph = samplers.GraphSampler([lambda: x.add_(0)], GRAPH_LAUNCHES)
        graph.sample()  # the first one also moves the graph to the GPU
        launch_s = median([graph.sample() for _ in range(GRAPH_SAMPLES)]) / graph.launches_per_sample
        yield judged(f"launch in a graph of {GRAPH_LAUNCHES}", checkup.ceilings, "launch", "launch", launch_s)


def noise_check(checkup: Checkup) -> Iterator[Finding]:
    """Yield whether one kernel is as fast as itself, and the smallest change that could be seen."""
    matmul, args = checkup.families["matmul"][0], checkup.args
    times_s, settling, case, disturbed = compare_with_itself(checkup.device, matmul, args.budget, args.seed)
    comparison, change_pct = compare_pairs(*times_s), smallest_detectable_change(*times_s)
    settled = {"settled": settling.settled, "seconds": settling.seconds}
    values = asdict(comparison) | {"case": case}, change_pct, settled
    checkup.noise = dict(zip(NOISE_KEYS, values, strict=True))
    yield from noise_findings(comparison, change_pct, settling, case, disturbed)


def compare_with_itself(
    device: Device, matmul: Op, seconds: float, seed: int
) -> tuple[tuple[list[float], list[float]], Settling, str, str | None]:
    """Time one fp32 matmul as two providers, each pair in random order, for about `seconds`.

    Returns:
        The times of both, the warm-up, the name of the case, and what disturbed the measurement.
    """
    from bench.harness.device.telemetry import row_telemetry, snapshot
    from bench.harness.measure.flags import disturbance

    size = SIZES[device.type]
    case = Case(matmul.name, "fp32", {"m": size, "n": size, "k": size}, {"layout": "nn", "batch": 1})
    data = make_sets(matmul, case, Filler("uniform", case.dtype, device, seed), device, 1)[0]
    order, series = random.Random(seed), (list[float](), list[float]())
    with numerics(case.dtype), no_garbage_collection():
        call = load("torch", matmul, "matmul", device).call(data)
        call()
        pair = [samplers.make_sampler([call], device, limits_of(device)) for _ in range(2)]
        launches = [sampler.launches_per_sample for sampler in pair]
        settling = settle(pair[0].sample, limits_of(device))
        start, before = time.perf_counter(), snapshot(device)
        while len(series[0]) < LEAST_PAIRS or (len(series[0]) < MOST_PAIRS and time.perf_counter() - start < seconds):
            for index in order.sample((0, 1), 2):
                series[index].append(pair[index].sample() / launches[index])
    disturbed = disturbance(row_telemetry(before, snapshot(device)), device.is_gpu)
    return series, settling, case.name, disturbed.reason if disturbed else None


def large_check(checkup: Checkup) -> Iterator[Finding]:
    """Yield the rates of a large matmul and a large copy, with cold caches."""
    for family, name, dtype, shape in LARGE["gpu" if checkup.device.is_gpu else "cpu"]:
        op = next(op for op in checkup.families[family] if op.name == name)
        cases = make_cases([op], options_of(family), CaseWords([dtype], [shape]), checkup.device.type)
        yield from rows_of(checkup, family, *cases[0], is_large=True)


def family_check(checkup: Checkup) -> Iterator[Finding]:
    """Yield whether the smallest default case of each family is right, with warm caches."""
    for family, ops in checkup.families.items():
        op = next((op for op in ops if op.is_in_suite and "bf16" in op.dtypes), None)
        if op is not None:
            cases = make_cases([op], options_of(family), CaseWords(["bf16"]), checkup.device.type)
            yield from rows_of(checkup, family, *min(cases, key=lambda pair: pair[0].work(pair[1]).bytes))


def rows_of(checkup: Checkup, family: str, op: Op, case: Case, is_large: bool = False) -> Iterator[Finding]:
    """Measure a case by the default providers of its family, and yield a finding for each."""
    from bench.harness.measure.measure_row import measure_row
    from bench.harness.measure.rows import Settings, plan

    device, settings = checkup.device, Settings(cache="cold" if is_large else "warm")
    limits = replace(limits_of(device), cap_s=GPU_ROW_CAP_S if device.is_gpu else CPU_ROW_CAP_S)
    providers = default_providers(family, device, case.dtype)
    for row in plan([(op, case)], list(providers), device, settings, providers, family):
        checkup.progress.say(f"{op.name} {case.dtype} {case.name}, {row.provider}")
        checkup.records.append(measure_row(row, device, checkup.ceilings, limits))
        yield row_finding(checkup.records[-1], checkup.ceilings, is_large)
