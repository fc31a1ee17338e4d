"""`python -m bench doctor`: checks whether everything works on this machine, and how small a change
is detectable.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.harness import clock
from bench.harness.cli.arguments import Request, chosen_ops, make_cases
from bench.harness.device import gpu_state
from bench.harness.op import Case, Families, Op
from bench.harness.settings import Argv, Settings
from bench.harness.timing.protocol import LIMITS
from results.show.grid import Table
from results.show.options import add, given, number, parameters
from results.show.terminal import INTERRUPTED, Parser, print_out, printable
from results.show.units import duration, percent, quantity
from results.stats.comparison import DEFAULT_MARGIN, SAME, smallest_detectable_change

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.run import Progress
    from results.record import Object, Record
    from roofline.machine import Machine

DESCRIPTION = """\
Check a machine before measuring on it. Each check prints one line: ok, note or bad.

- device, driver, clocks, limits, other users of the GPU, timer resolution, cost of a launch
- one matmul compared with itself, interleaved in random order: the times should match,
  and their noise sets the smallest detectable difference
- a large matmul and a large copy, compared with a published figure or the datasheet
- one small verified row of each family and default provider

Nothing is saved or changed. A check that fails does not stop the others.
exit codes: 0 ready to measure; 1 a check is bad; 2 usage; 3 no such device; 130 interrupted"""

OK = "ok"
NOTE = "note"
BAD = "bad"
"""Status of a finding: as expected; worth knowing; measurements are wrong or too noisy until it is
fixed.
"""

BUDGET_S = 4.0

BUSY_LOAD = 0.25  # load average per core above which other processes are running
MAX_TICK_S = {"cpu": 1e-6, "cuda": 2e-6, "rocm": 2e-6}  # for samples of a millisecond
GRAPH_LAUNCHES = 800
GRAPH_SAMPLES = 30

MAX_ROUNDS = 400
SIZES = {"cpu": 512, "cuda": 2048, "rocm": 2048}
"""Extent of the square matmul that is compared: a millisecond or less, so a few seconds hold
hundreds of pairs.
"""

MAX_CHANGE_PCT = 5.0  # a larger smallest detectable change gets advice

CPU_ROW_CAP_S = 0.3
GPU_ROW_CAP_S = 1.0
"""Maximum time to warm a row up, and to sample it, in seconds."""

LARGE = {
    "cpu": (("matmul", "bf16", "1024"), ("copy", "fp32", "16777216")),
    "gpu": (("matmul", "bf16", "8192"), ("copy", "fp32", "134217728")),
}
"""Op, dtype and shape of rows with an expected rate; the copies move 2 x 64 and 2 x 512
MiB.
"""

PUBLISHED = Path(__file__).with_name("published.toml")
MIN_FRACTION = {"published": 0.8, "datasheet": 0.6}
"""Smaller fractions of the expected value get a note. Only one shape is measured, and no GPU
reaches its datasheet.
"""

BAD_FRACTION = 0.5  # below this fraction of the expected value, something is wrong
# Small cases always have others.
REPORTED_FLAGS = (
    "not-captured",
    "above-roof",
    "throttled",
    "not-cold",
)


@dataclass(frozen=True)
class Finding:
    """One check and its result; `measured` and `expected` in SI base units."""

    name: str
    status: str
    value: str
    advice: str = ""
    measured: float | None = None
    unit: str | None = None
    expected: float | None = None
    source: str | None = None
    """Source of the expected value."""


def finding(name: str, value: str, is_ok: bool, advice: str, otherwise: str = NOTE) -> Finding:
    """Return a finding that is `ok`, or has another status and advice."""
    if is_ok:
        return Finding(name, OK, value)
    return Finding(name, otherwise, value, advice)


@dataclass
class Checkup:
    """The findings so far; adding one prints it."""

    settings: Settings
    device: Device
    ceilings: Machine
    families: Families
    progress: Progress
    began: float = field(default_factory=clock.now)
    findings: list[Finding] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    noise: Object = field(default_factory=dict)

    @property
    def is_fit(self) -> bool:
        return all(finding.status != BAD for finding in self.findings)

    def add(self, new: Finding) -> None:
        self.findings.append(new)
        self.print(f"{new.status:<6}{new.name}: {new.value}")
        if new.advice:
            self.print(f"      {new.advice}")

    def print(self, text: str) -> None:
        """Print a line, unless stdout holds data."""
        if self.settings.format == "table":
            print_out(f"{printable(text)}\n")


def add_options(parser: Parser) -> None:
    known = parameters(Settings)
    known["budget_s"] = replace(
        known["budget_s"],
        help="time to compare one kernel with itself (default: 4)",
        read=number(0.1, 3600, "a number of seconds from 0.1 to 3600"),
        default=BUDGET_S,
    )
    shown = ("device", "threads", "budget_s", "seed", "format", "quiet")
    add(parser, known, shown, seed="random seed for the order of the pairs (default: 0)")


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.harness.calibrate.calibration import ceilings_of
    from bench.harness.cli import main
    from bench.harness.device.device import environment_facts
    from bench.harness.run import Progress

    settings = given(Settings, args)
    device = main.device_of(settings)
    device.use()
    is_interrupted = False
    with closing(Progress(settings.quiet)) as progress:
        checkup = Checkup(settings, device, ceilings_of(device, None), families, progress)
        versions = environment_facts()["versions"]
        known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        gpu = "" if checkup.ceilings.slug == device.slug else f", {checkup.ceilings.slug}"
        checkup.print(f"{device.name} ({device.slug}{gpu}), {known}")
        try:
            check_all(checkup)
        except KeyboardInterrupt:
            is_interrupted = True
    is_fit = checkup.is_fit
    checkup.print("ready to measure" if is_fit else "not ready: see the lines marked bad")
    if settings.format != "table":
        findings = [asdict(finding) for finding in checkup.findings]
        content = {
            "fit": is_fit,
            "device": asdict(device),
            "gpu": checkup.ceilings.slug,
            "versions": versions,
            "seconds": clock.now() - checkup.began,
            "findings": findings,
            "self_comparison": None,
            "smallest_detectable_change_pct": None,
            "settling": None,
            **checkup.noise,
            "records": [record.to_dict() for record in checkup.records],
        }
        print_out(Table(rows=lambda: findings, document=lambda: content).render(settings.format))
    if is_interrupted:
        return INTERRUPTED
    return 0 if is_fit else 1


def check_all(checkup: Checkup) -> None:
    from bench.harness.measure.rows import one_line

    checks = {
        "the device": device_check,
        "launches": launch_check,
        "one kernel as two providers": noise_check,
        "large matmul and copy": large_check,
        "families": family_check,
    }
    for name, check in checks.items():
        checkup.progress.say(f"checking: {name}")
        try:
            for new in check(checkup):
                checkup.add(new)
        except Exception as error:  # compilers, drivers and libraries raise classes of their own
            checkup.add(
                Finding(name, BAD, one_line(error), "what depends on it cannot be measured")
            )


def device_check(checkup: Checkup) -> Iterator[Finding]:
    from bench.harness.timing import samplers

    device = checkup.device
    yield from host_findings(device)
    tick_s = samplers.tick_s(device)
    if device.is_gpu:  # after the timer, which makes this process a user of the GPU
        yield from gpu_findings(device.uuid)
    if checkup.ceilings.note:
        yield Finding("GPU table", NOTE, checkup.ceilings.note, "name the entry with --gpu")
    yield finding(
        "timer resolution",
        f"{tick_s * 1e9:.3g} ns",
        tick_s <= MAX_TICK_S[device.type],
        "short kernels are flagged `tick-limited`; use larger cases",
    )
    cache = f"{device.cache_bytes / 1e6:.3g} MB of last-level cache"
    yield Finding("free memory", OK, f"{device.free_bytes() / 1e9:.3g} GB, {cache}")


def host_findings(device: Device) -> Iterator[Finding]:
    from bench.harness.device.device import host_state, usable_cores

    allowed, quota = usable_cores()
    state = host_state()
    cores = len(allowed)
    threads = f", {device.threads} threads are used" if device.threads else ""
    yield Finding("cores", OK, f"{cores} allowed{threads}")
    if quota is not None:
        is_within = (device.threads or 0) <= max(1.0, quota)
        advice = "fewer threads are used" if is_within else "threads will be throttled; use fewer"
        text = f"the cgroup is limited to the time of {quota:g} cores"
        yield finding("cpu quota", text, quota >= cores, advice)
    load = state["load_average"]
    if load is not None:
        advice = "wait for other processes; noisy rows are flagged `preempted`"
        text = f"{load:g} over the last minute"
        yield finding("load", text, load <= BUSY_LOAD * cores, advice)
    governor = state["governor"]
    if governor is not None:
        is_slow = governor in ("powersave", "conservative") and not device.is_gpu
        advice = "the clock follows the load slowly; measure longer"
        yield finding("governor", governor, not is_slow, advice)


def gpu_findings(uuid: str | None) -> Iterator[Finding]:
    problem = gpu_state.errors(uuid).get("nvml")
    if problem:
        advice = "clocks, power and throttling will be missing; times are not affected"
        yield Finding("nvml", NOTE, f"not readable: {problem}", advice)
        return
    ask = partial(gpu_state.ask, uuid)
    modes = gpu_state.modes(uuid)
    limit_w = modes["power_limit_w"]
    if limit_w:
        default_w = modes["power_limit_default_w"] or limit_w
        text = f"{limit_w:g} W, {default_w:g} W by default"
        advice = "compare only with runs under the same limit"
        yield finding("power limit", text, limit_w >= default_w, advice)
    limiting = [event for event in gpu_state.clock_events(uuid) or () if event != "gpu_idle"]
    if limiting:
        advice = "the clock is limited now; see `throttle` in the rows"
        yield Finding("clock events", NOTE, ", ".join(limiting), advice)
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    if processes is not None:
        yield _sharing_finding([int(process.pid) for process in processes])
    rows = ask("nvmlDeviceGetRemappedRows")
    if rows:
        if rows[3]:
            yield Finding("memory", BAD, "row remapping failed", "the card must be replaced")
        elif rows[2]:
            advice = "the GPU must be reset by its administrator"
            yield Finding("memory", BAD, "a row remapping is pending", advice)
        else:
            yield Finding("memory", OK, "no row remapping pending")


def _sharing_finding(pids: list[int]) -> Finding:
    # This process uses the GPU too; in a container the driver lists it by its process ID on the
    # host.
    name = "other processes"
    others = [pid for pid in pids if pid != os.getpid()]
    if not others:
        return Finding(name, OK, "none seen")
    text = f"{len(others)} compute processes: {', '.join(map(str, others[:5]))}"
    advice = "wait for them or stop them"
    is_listed = len(others) < len(pids)
    if not is_listed:
        advice += "; in a container one of them is this process"
    return Finding(name, BAD if is_listed or len(others) > 1 else NOTE, text, advice)


def launch_check(checkup: Checkup) -> Iterator[Finding]:
    import torch

    from bench.harness.timing import samplers

    host_s = samplers.empty_launch_s(checkup.device)
    yield Finding("launch floor", OK, f"{duration(host_s)} for the host", "", host_s, "s")
    if checkup.device.is_gpu:
        x = torch.ones(1, device=checkup.device.torch_name)
        graph = samplers.GraphSampler([lambda: x.add_(0)], GRAPH_LAUNCHES)
        graph.sample()  # the first one also moves the graph to the GPU
        launch_s = (
            median([graph.sample() for _ in range(GRAPH_SAMPLES)]) / graph.launches_per_sample
        )
        yield against_ceiling(
            f"launch in a graph of {GRAPH_LAUNCHES}", checkup.ceilings, "launch", "launch", launch_s
        )


def noise_check(checkup: Checkup) -> Iterator[Finding]:
    from bench.harness.measure.flags import disturbance
    from results.compare.turns import compare_rounds, round_times

    baseline, candidate = compare_with_itself(checkup)
    comparison = compare_rounds(baseline, candidate, DEFAULT_MARGIN)
    change_pct = smallest_detectable_change(round_times(baseline), round_times(candidate))
    warm_up_s = LIMITS[checkup.device.type].warm_up_cap_s
    checkup.noise = {
        "self_comparison": asdict(comparison) | {"case": baseline.case},
        "smallest_detectable_change_pct": change_pct,
        "settling": {
            "settled": baseline.settled,
            "seconds": None if baseline.settled else warm_up_s,
        },
    }
    yield finding(
        "settled",
        f"{'within' if baseline.settled else 'not within'} {warm_up_s:g} s of work",
        bool(baseline.settled),
        "something changes the clock or uses the cores; find it, or wait",
    )
    disturbed = disturbance(baseline.telemetry, checkup.device.is_gpu)
    if disturbed:
        yield Finding("other work", BAD, disturbed.reason, "wait until it ends, or stop it")
    pairs = f"{comparison.pairs} pairs of matmul {baseline.case}"
    yield finding(
        "one kernel against itself",
        f"{comparison.verdict}: {comparison.reason} ({pairs})",
        comparison.verdict == SAME,
        "too noisy to compare: stop other processes, or use a larger --budget",
        BAD,
    )
    yield finding(
        "smallest detectable change",
        f"{change_pct:.2g} %",
        change_pct <= MAX_CHANGE_PCT,
        "use a quieter machine, or more time per comparison",
    )


def compare_with_itself(checkup: Checkup) -> tuple[Record, Record]:
    from bench.comparing.interleave import interleave
    from bench.comparing.turns import ComparePolicy
    from bench.harness.measure.budget import Budget
    from bench.harness.measure.rows import plan

    device = checkup.device
    matmul = checkup.families["matmul"][0]
    settings = Settings(cache="warm", seed=checkup.settings.seed)
    request = Request(dtype=["fp32"], shape=[str(SIZES[device.type])])
    cases = make_cases("matmul", matmul, device.type, request)
    rows = plan(matmul, cases[0], ["torch", "torch"], device, settings, family="matmul")
    policy = ComparePolicy(
        DEFAULT_MARGIN,
        budget_s=checkup.settings.budget_s or BUDGET_S,
        rounds=MAX_ROUNDS,
        seed=settings.seed,
    )
    baseline, candidate = interleave(rows, device, None, policy, Budget(device, settings))
    if baseline.status != "ok" or candidate.status != "ok":
        raise RuntimeError(f"{baseline.status}: {baseline.reason or candidate.reason}")
    return baseline, candidate


def large_check(checkup: Checkup) -> Iterator[Finding]:
    for name, dtype, shape in LARGE["gpu" if checkup.device.is_gpu else "cpu"]:
        ((family, op),) = chosen_ops([name], checkup.families)
        request = Request(dtype=[dtype], shape=[shape])
        (case,) = make_cases(family, op, checkup.device.type, request)
        yield from rows_of(checkup, family, op, case, is_large=True)


def family_check(checkup: Checkup) -> Iterator[Finding]:
    for family, ops in checkup.families.items():
        op = next((op for op in ops if op.is_in_suite and "bf16" in op.dtypes), None)
        if op is not None:
            cases = make_cases(family, op, checkup.device.type, Request(dtype=["bf16"]))
            yield from rows_of(
                checkup, family, op, min(cases, key=lambda case: op.work(case).bytes)
            )


def rows_of(
    checkup: Checkup, family: str, op: Op, case: Case, is_large: bool = False
) -> Iterator[Finding]:
    from bench.harness.measure.measure_row import measure_row
    from bench.harness.measure.rows import rows_of_case

    device = checkup.device
    settings = Settings(cache="cold" if is_large else "warm")
    cap_s = GPU_ROW_CAP_S if device.is_gpu else CPU_ROW_CAP_S
    limits = replace(LIMITS[device.type], cap_s=cap_s, warm_up_cap_s=cap_s, sampling_ratio=0.0)
    for row in rows_of_case(op, case, family, device, settings):
        checkup.progress.say(f"{op.name} {case.dtype} {case.name}, {row.provider}")
        record = measure_row(row, device, checkup.ceilings, limits)
        checkup.records.append(record)
        yield row_finding(record, checkup.ceilings, is_large)


def row_finding(record: Record, ceilings: Machine, is_large: bool) -> Finding:
    name = f"{record.op} {record.dtype} {record.case}, {record.provider}"
    median_s = record.median_s
    if record.status in ("failed", "invalid"):
        return Finding(
            name, BAD, f"{record.status}: {record.reason}", "its result or time cannot be used"
        )
    if record.status != "ok" or median_s is None:
        return Finding(name, NOTE, f"{record.status}: {record.reason}")
    flags = [
        f"{flag}: {record.flag_reasons.get(flag, '')}"
        for flag in record.flags
        if flag in REPORTED_FLAGS
    ]
    if not is_large:
        rated = Finding(name, OK, f"{duration(median_s)}; verified", measured=median_s, unit="s")
    elif record.op == "matmul":
        rated = against_ceiling(
            name, ceilings, "flops", record.dtype, (record.flops or 0) / median_s
        )
    else:
        bytes_per_s = (record.moved_bytes or 0) / median_s
        rated = against_ceiling(name, ceilings, "bandwidth", "copy", bytes_per_s)
    status = NOTE if flags and rated.status == OK else rated.status
    return replace(rated, status=status, advice=f"{rated.advice} {'; '.join(flags)}".strip())


def against_ceiling(
    name: str, ceilings: Machine, limit: str, ceiling: str, value: float
) -> Finding:
    from roofline.machine import QUANTITIES

    unit = QUANTITIES[limit]
    known = expected_of(ceilings, limit, ceiling)
    text = quantity(value, unit)
    status = OK
    advice = ""
    if known is None:
        return Finding(name, status, text, advice, value, unit)
    expected, kind, source = known
    fraction = expected / value if unit == "s" else value / expected
    if kind == "datasheet" and fraction > 1:
        status = BAD
        advice = "faster than the datasheet: the time or the GPU table is wrong"
    elif fraction < BAD_FRACTION:
        status = BAD
        advice = "less than half: check clocks, power limit and other processes before measuring"
    elif fraction < MIN_FRACTION[kind]:
        status = NOTE
        advice = "lower than expected: check the clock and the power limit"
    text += f", {percent(fraction)} of the {quantity(expected, unit)} expected ({kind})"
    return Finding(name, status, text, advice, value, unit, expected, source)


def expected_of(ceilings: Machine, quantity: str, name: str) -> tuple[float, str, str] | None:
    """Return the expected value, its kind (`published` or `datasheet`) and its source; None if none
    is known.
    """
    from results.show.facts import facts_of

    for record in facts_of(PUBLISHED)["record"]:
        if ceilings.slug in record["gpus"] and (record["quantity"], record["name"]) == (
            quantity,
            name,
        ):
            return record["value"], "published", record["source"]
    name = "memory" if quantity == "bandwidth" else name
    for entry in ceilings.entries:
        if (entry.quantity, entry.name, entry.kind) == (quantity, name, "datasheet"):
            return entry.value, "datasheet", entry.source
    return None
