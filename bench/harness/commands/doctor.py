"""`python -m bench doctor`: can this machine be measured now, and how small a change could be seen on it?"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import add_device, number
from bench.harness.op import Case, Op
from results.show.terminal import Parser
from results.stats.comparison import SAME, Comparison
from results.stats.verdict import compare_pairs, smallest_detectable_change

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.timing.settle import Settling

FIT, NOT_FIT = 0, 1
"""Exit codes: the machine can be measured now, or something should be done first."""

OK, NOTE, BAD = "ok", "note", "bad"
"""Of a finding: as it should be; worth knowing; measurements will be wrong or too noisy until it is mended."""

DESCRIPTION = """\
Look at this machine before measuring on it: device, driver, clocks, limits, who else uses it, the tick of the clock,
how long the device takes to settle. Then time one matmul as if it were two providers, in turn and in random order:
they must come out the same, and the noise between them tells the smallest change that could be seen here.

Nothing is changed: no clock, no limit, no mode. Exit code 0: fit; 1: not fit, with what to do."""

SECONDS = 4.0
"""Time that the run of one kernel against itself takes."""

LEAST_PAIRS, MOST_PAIRS = 20, 400
SIZES = {"cpu": 512, "cuda": 2048, "rocm": 2048}
"""Square matmul that is timed: about a millisecond or less, so that a few seconds hold hundreds of pairs."""

BUSY_SHARE = 0.25
"""Load average over the cores above which other processes are at work: this process has hardly begun."""

TICK_S = {"cpu": 1e-6, "cuda": 2e-6, "rocm": 2e-6}
"""Coarsest tick of the clock that does not matter in a sample of a millisecond: 0.1 % of it, or 0.2 % on a GPU."""

COARSE_CHANGE_PCT = 5.0
"""Smallest detectable change above which a comparison on this machine says little."""


@dataclass(frozen=True)
class Finding:
    """One check and its result."""

    name: str
    status: str
    """`ok`, `note` or `bad`."""
    value: str
    """What was found, in words and numbers."""
    advice: str = ""
    """What to do about it."""


@dataclass(frozen=True)
class SelfComparison:
    """One kernel timed as two providers."""

    comparison: Comparison
    smallest_change_pct: float
    settling: Settling
    case: str
    disturbed: str | None = None
    """What took the cores or the clock away meanwhile; None where nothing did."""


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser: Parser = commands.add_parser(
        "doctor",
        description=DESCRIPTION,
    )
    seconds = number(0.1, 3600, "a number of seconds from 0.1 to 3600")
    add_device(parser)
    whole = number(0, 2**63 - 1, "a whole number, 0 or more", int)
    parser.add_argument("--budget", metavar="SECONDS", type=seconds, default=SECONDS, help="of the timing (default: 4)")
    parser.add_argument("--seed", type=whole, default=0, help="of the order of the pairs (default: 0)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the page (default: table)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Print the page and return the exit code."""
    from bench.harness.cli import main, session
    from bench.harness.cli.terminal import Progress
    from bench.harness.device import facts as machine_facts
    from bench.harness.device import stamp
    from bench.harness.timing import samplers

    device = main.device_of(args)
    session.use_threads(device)
    with Progress(args.quiet) as progress:
        progress.say("looking at the machine")
        findings = host_findings(machine_facts.host_facts(), device)
        tick = tick_finding(samplers.tick_s(device), device.type)
        if device.is_gpu:  # after the tick, for which this process has become one of those that use the GPU
            findings += gpu_findings(machine_facts.gpu_facts(device))
        findings.append(tick)
        findings.append(finding("launch floor", f"{1e6 * samplers.empty_launch_s(device):.3g} us for the host"))
        progress.say("timing one kernel as two providers")
        compared = compare_with_itself(device, families["matmul"][0], args.budget, args.seed)
    findings += noise_findings(compared)
    versions = stamp.versions()
    is_fit = all(finding.status != BAD for finding in findings)
    print_page(args.format, page(device, versions, findings, compared, is_fit))
    return FIT if is_fit else NOT_FIT


def compare_with_itself(device: Device, matmul: Op, seconds: float, seed: int) -> SelfComparison:
    """Time one fp32 matmul as two providers, each pair in random order, for about `seconds`."""
    import time

    from bench.harness.data import inputs
    from bench.harness.device.telemetry import Monitor, row_telemetry
    from bench.harness.measure.evidence import disturbance
    from bench.harness.providers.registry import load, numerics
    from bench.harness.timing import samplers
    from bench.harness.timing.protocol import limits_of, no_garbage_collection
    from bench.harness.timing.settle import CPU_SETTLE, GPU_SETTLE, settle

    monitor, size = Monitor(device), SIZES[device.type]
    case = Case(matmul.name, "fp32", {"m": size, "n": size, "k": size}, {"layout": "nn", "batch": 1})
    data = inputs.make_sets(matmul, case, inputs.Filler("uniform", case.dtype, device, seed), device, 1)[0]
    order, series = random.Random(seed), ([], [])  # type: tuple[random.Random, tuple[list[float], list[float]]]
    with numerics(case.dtype), no_garbage_collection():
        call = load("torch", matmul, "matmul", device).call(data)
        call()
        pair = [samplers.make_sampler([call], device, limits_of(device)) for _ in range(2)]
        launches = [sampler.launches_per_sample for sampler in pair]
        settle_limits = GPU_SETTLE if device.is_gpu else CPU_SETTLE
        settling = settle(pair[0].sample, monitor.clock_and_power, settle_limits)
        start, before = time.perf_counter(), monitor.snapshot()
        while len(series[0]) < LEAST_PAIRS or (len(series[0]) < MOST_PAIRS and time.perf_counter() - start < seconds):
            for index in order.sample((0, 1), 2):
                series[index].append(pair[index].sample() / launches[index])
    disturbed = disturbance(row_telemetry(before, monitor.snapshot()), device.is_gpu)
    change = smallest_detectable_change(*series)
    return SelfComparison(compare_pairs(*series), change, settling, case.name, disturbed)


# ---- findings -----------------------------------------------------------------------------------------------------


def finding(name: str, value: str, advice: str = "") -> Finding:
    """Return what was looked at: worth a note where there is something to do about it."""
    return Finding(name, NOTE if advice else OK, value, advice)


def host_findings(facts: Mapping[str, Any], device: Device) -> list[Finding]:
    """Return what the host's cores tell; `facts` are those of `facts.host_facts`."""
    cores, quota, load = facts["cores_allowed"], facts["cgroup_quota_cores"], facts["load_average"]
    threads = "" if device.threads is None else f", {device.threads} threads are used"
    found = [finding("cores", f"{cores} allowed{threads}")]
    if quota is not None:
        is_kept = (device.threads or 0) <= max(1.0, quota)
        advice = "fewer threads are used" if is_kept else "the threads are stopped again and again; use fewer"
        is_short = cores is not None and quota < cores
        text = f"the control group may use {quota:g} cores' worth of time"
        found.append(finding("cpu quota", text, advice if is_short else ""))
    if load is not None and cores:
        advice = "wait until nothing else runs; rows that were disturbed are flagged `preempted`"
        found.append(finding("load", f"{load:g} over the last minute", advice if load > BUSY_SHARE * cores else ""))
    governor = facts["governor"]
    if governor is not None:
        is_slow = governor in ("powersave", "conservative") and not device.is_gpu
        found.append(finding("governor", governor, "the clock follows the load slowly: measure longer" * is_slow))
    return found


def gpu_findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return what NVML tells; `facts` are those of `facts.gpu_facts`."""
    problem = facts["errors"].get("nvml")
    if problem:
        advice = "clocks, power and throttling will be missing from every row; times are not affected"
        return [finding("nvml", f"not readable: {problem}", advice)]
    return [*_clock_findings(facts), *_sharing_findings(facts), *_health_findings(facts)]


def _clock_findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return clocks and power limits, and whether something holds them down."""
    found = []
    clock, most = facts["sm_clock_hz"], facts["max_sm_clock_hz"]
    if most is not None:
        now = "" if clock is None else f"{clock / 1e6:.0f} MHz now, "
        found.append(finding("SM clock", f"{now}{most / 1e6:.0f} MHz at most"))
    limit, default = facts["power_limit_w"], facts["power_limit_default_w"]
    if limit is not None and default is not None and limit < default:
        advice = "results are those of the lower limit; compare only with runs under it"
        found.append(finding("power limit", f"{limit:g} W, {default:g} W by default", advice))
    elif limit is not None:
        found.append(finding("power limit", f"{limit:g} W"))
    held = [event for event in facts["clock_events"] or () if event not in ("idle", "gpu_idle")]
    if held:
        found.append(finding("clock events", ", ".join(held), "the clock is held down now; see `throttle` of rows"))
    return found


def _sharing_findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return who else uses the GPU, and whether it is a whole one."""
    found, name, others = [], "other processes", facts["other_processes"]
    # This process uses the GPU too. Where none listed has its id, a container gives it another than the driver lists.
    hidden = 1 if facts.get("own_process_seen") is False else 0
    if others and len(others) == hidden:
        text = f"one compute process: {others[0]['pid']}; in a container it is this one, under its id on the host"
        found.append(finding(name, text, "if this is no container, wait for it or stop it"))
    elif others:
        pids = ", ".join(str(process["pid"]) for process in others[:5])
        text = f"{len(others)} compute processes: {pids}" + ("; one of them may be this one" if hidden else "")
        found.append(Finding(name, BAD, text, "wait for them or stop them"))
    elif others is not None:
        found.append(finding(name, "none seen"))
    if facts["is_mig_slice"]:
        advice = "peaks of the whole GPU do not hold; other slices share power"
        found.append(finding("MIG", "a slice of a GPU", advice))
    if facts["virtualization"] == "vgpu":
        found.append(finding("virtualization", "a vGPU", "others may share the GPU unseen"))
    if facts["confidential_compute"]:
        found.append(finding("confidential compute", "on", "transfers are slower than the link"))
    return found


def _health_findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return what the driver says of the memory's health."""
    rows = facts["remapped_rows"]
    if not rows:
        return []
    if rows.get("failed"):
        return [Finding("memory", BAD, "row remapping failed", "the card is beyond repair: have it replaced")]
    if rows.get("pending"):
        return [Finding("memory", BAD, "a row remapping is pending", "the GPU must be reset by its administrator")]
    return [finding("memory", "no row remapping pending")]


def tick_finding(tick_s: float, device_type: str) -> Finding:
    """Return whether the clock ticks finely enough for samples of a millisecond."""
    advice = "short kernels are flagged `tick-limited`; give them larger cases"
    return finding("tick of the clock", f"{tick_s * 1e9:.3g} ns", advice if tick_s > TICK_S[device_type] else "")


def noise_findings(compared: SelfComparison) -> list[Finding]:
    """Return whether the device settled, whether one kernel came out as fast as itself, and what could be seen."""
    settling, comparison = compared.settling, compared.comparison
    state = f"{'after' if settling.settled else 'not within'} {settling.seconds:.2g} s, judged by {settling.judged_by}"
    advice = "something else changes the clock or takes the cores; look for it, and wait"
    found = [finding("settled", state, "" if settling.settled else advice)]
    if compared.disturbed:
        found.append(Finding("other work", BAD, compared.disturbed, "wait until nothing else runs, or stop it"))
    name, pairs = "one kernel against itself", f"{comparison.pairs} pairs of matmul {compared.case}"
    text = f"{comparison.verdict}: {comparison.reason} ({pairs})"
    advice = "too noisy for comparisons of 1 %: let nothing else run, or give a larger --budget"
    found.append(finding(name, text) if comparison.verdict == SAME else Finding(name, BAD, text, advice))
    change, advice = compared.smallest_change_pct, "a quieter machine, or more time for each comparison"
    name = "smallest change that would be seen"
    return [*found, finding(name, f"{change:.2g} %", advice if change > COARSE_CHANGE_PCT else "")]


# ---- the page -----------------------------------------------------------------------------------------------------


def page(
    device: Device, versions: Mapping[str, Any], findings: Sequence[Finding], compared: SelfComparison, is_fit: bool
) -> dict[str, Any]:
    """Return the page as a JSON object."""
    settling = {"settled": compared.settling.settled, "seconds": compared.settling.seconds}
    return {
        "fit": is_fit,
        "device": device.to_dict(),
        "versions": dict(versions),
        "findings": [asdict(finding) for finding in findings],
        "self_comparison": asdict(compared.comparison) | {"case": compared.case},
        "smallest_detectable_change_pct": compared.smallest_change_pct,
        "settling": settling | {"judged_by": compared.settling.judged_by},
    }


def print_page(output_format: str, content: Mapping[str, Any]) -> None:
    """Print the page to stdout."""
    from results.show.terminal import drawn, print_out

    if output_format == "json":
        print_out(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return
    print_out(drawn(lambda console: _print_table(console, content)))


def _print_table(console: Any, content: Mapping[str, Any]) -> None:
    from results.show.grid import Column, print_grid
    from results.show.terminal import printable

    device, findings = content["device"], content["findings"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
    line = f"{device['name']} ({device['slug']}), {versions}"
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    colors = {OK: "green", NOTE: "yellow", BAD: "red"}
    columns = [
        Column("", [each["status"] for each in findings], styles=[colors[each["status"]] for each in findings]),
        Column("looked at", [each["name"] for each in findings]),
        Column("found", [each["value"] for each in findings], goes_below=1),
    ]
    print_grid(console, columns, [each["advice"] for each in findings], "what to do")
    verdict = "fit: measure" if content["fit"] else "not fit: see what is bad above"
    console.print(verdict, style="green" if content["fit"] else "red", markup=False, highlight=False)
