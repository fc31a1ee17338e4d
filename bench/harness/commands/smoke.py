"""`python -m bench smoke`: the first look at a machine, in three minutes on a GPU and below one on a CPU."""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import CaseWords, UsageError, add_device, make_cases, path
from bench.harness.cli.interrupt import INTERRUPTED
from bench.harness.commands.doctor import BAD, NOTE, OK, Finding, gpu_findings, host_findings
from bench.harness.op import Case, Op, UnsupportedCaseError
from bench.harness.op_file import options_of
from results.show.table import format_percent, format_rate, format_time
from results.show.terminal import Parser

if TYPE_CHECKING:
    from bench.harness.cli.terminal import Progress
    from bench.harness.device.device import Device
    from bench.harness.timing.samplers import GraphSampler
    from results.record import Record
    from roofline.ceilings import Ceilings

DESCRIPTION = """\
Look at a machine for the first time: what it is; one verified row of each family of kernels; what launches cost, with
and without a spinning kernel before them; large matmuls, a large copy; a norm whose results are kept or dropped; the
bandwidth of a copy and the peak of a matmul. Each line has a verdict: ok, note or bad. Where others have published a
figure of this GPU, or its datasheet has one, it stands beside what was measured.

It keeps no run and no ceiling, and changes no setting. Exit code 0: nothing is bad; 1: something is; 2: usage;
3: no such device; 130: interrupted, what was finished is printed."""

PUBLISHED = Path(__file__).with_name("published.toml")
"""Measurements that others have published, with their sources."""

LIMIT_S = {"cpu": 45.0, "gpu": 165.0}
"""No line is begun after this."""

ROW_CAP_S = {"cpu": 0.3, "gpu": 1.0}
"""Sampling of one row."""

FAMILY_DTYPES = ("fp8e4m3", "int8", "tf32")
"""In which matmul is looked at beside bf16, where the device has them."""

MATMULS = {"cpu": (512, 1024), "gpu": (4096, 8192)}
COPY = {"cpu": "64MiB", "gpu": "512MiB"}
FAMILIES_SHARE = 0.5
"""Largest share of the time that the families take: launches and peaks are as important."""

GRAPHS = (1, 10, 100, 800)
"""Empty kernels in a graph."""

GRAPH_SAMPLES = 30
CHANGED = 0.03
"""Share by which a time may differ after a recording before it is told as changed."""

NORM = 1024
"""Rows and columns of the norm: its results fit into the L2 of a GPU."""

ENOUGH = {"published": 0.8, "datasheet": 0.6}
"""Share of what is expected from which a line is ok: nothing here is searched for long, and no datasheet is reached."""

FAR_OFF = 0.5
"""Share of what is expected below which something is wrong."""

TELLING_FLAGS = ("not-captured", "above-roof", "throttled", "not-cold")
"""Flags of a row that a first look tells of; small cases carry others of necessity."""


@dataclass(frozen=True)
class Line(Finding):
    """A finding with a value to hold against what is expected of this device."""

    measured: float | None = None
    """SI base units."""
    unit: str | None = None
    expected: float | None = None
    source: str | None = None
    """Source of the expected value."""


@dataclass
class Look:
    """The findings of one run, and the time that is left."""

    device: Device
    families: Mapping[str, tuple[Op, ...]]
    ceilings: Ceilings
    published: Mapping[tuple[str, str], tuple[float, str]]
    ends_at: float
    """Reading of `time.perf_counter`."""
    lines: list[Line] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """`gpu` where CUDA graphs and events can be had, else `cpu`."""
        return "gpu" if self.device.is_gpu else "cpu"

    def expected(self, quantity: str, name: str) -> tuple[float, str, str] | None:
        """Return what is expected of this device, with its kind and its source; None where nothing is known."""
        if (found := self.published.get((quantity, name))) is not None:
            return found[0], "published", found[1]
        of = "memory" if quantity == "bandwidth" else name
        for entry in self.ceilings.entries:
            if (entry.quantity, entry.name, entry.kind) == (quantity, of, "datasheet"):
                return entry.value, "datasheet", entry.source
        return None


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser: Parser = commands.add_parser(
        "smoke",
        description=DESCRIPTION,
    )
    add_device(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of the page (default: table)")
    parser.add_argument("-o", "--output", metavar="FILE", type=path, help="keep the page as JSON in this file")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Print the page, keep it where that is asked for, and return the exit code."""
    from bench.harness.calibrate.calibration import ceilings_of
    from bench.harness.cli import main, session
    from bench.harness.cli.terminal import Progress
    from bench.harness.device.stamp import versions

    if isinstance(args.output, str) or (args.output is not None and args.output.is_dir()):
        raise UsageError(f"--output {args.output} is a folder; name a file in it")
    if args.output is not None:
        main.check_output(args.output)
    device, began, is_interrupted = main.device_of(args), time.perf_counter(), False
    session.use_threads(device)
    ceilings = ceilings_of(device, None)
    kind = "gpu" if device.is_gpu else "cpu"
    look = Look(device, families, ceilings, published(ceilings.slug), began + LIMIT_S[kind])
    with Progress(args.quiet) as progress:
        try:
            look_at_all(look, progress)
        except KeyboardInterrupt:
            is_interrupted = True
    content = page(look, versions(), time.perf_counter() - began)
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    if args.output is not None:
        try:
            args.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {args.output}: {error.strerror}") from None
    print_all(args.format, content, text)
    if is_interrupted:
        return INTERRUPTED
    return 1 if any(line.status == BAD for line in look.lines) else 0


def published(slug: str) -> dict[tuple[str, str], tuple[float, str]]:
    """Return what others have measured of a GPU, with the source, by quantity and name of the ceiling."""
    records = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["record"]
    return {(r["quantity"], r["name"]): (r["value"], r["source"]) for r in records if slug in r["gpus"]}


def look_at_all(look: Look, progress: Progress) -> None:
    """Take every step, as far as the time reaches; what one step raises costs that step alone."""
    from bench.harness.measure.runner import one_line, release

    steps: list[tuple[str, Callable[[Look, Progress], None]]] = [
        ("the device", look_at_device),
        ("compiling", look_at_compiling),
        ("launches", look_at_launches),  # before any row: a row is recorded by torch's profiler, which stays attached
        ("each family of kernels", look_at_families),
        ("results kept and dropped", look_at_results),
        ("quick peaks", look_at_peaks),
        ("large matmuls and a large copy", look_at_large),
    ]
    for name, step in steps:
        if time.perf_counter() >= look.ends_at:
            look.lines.append(Line(name, NOTE, "not looked at", "the time of this first look was over"))
            continue
        progress.say(name)
        try:
            step(look, progress)
        except Exception as error:  # compilers, drivers and libraries raise classes of their own
            look.lines.append(Line(name, BAD, one_line(error), "nothing that depends on it can be measured"))
        finally:
            release(look.device)


# ---- the steps ------------------------------------------------------------------------------------------------------


def look_at_device(look: Look, progress: Progress) -> None:
    """Look at what the doctor looks at, without its timing."""
    from bench.harness.device import facts

    findings = host_findings(facts.host_facts(), look.device)
    if look.device.is_gpu:
        findings += gpu_findings(facts.gpu_facts(look.device))
    look.lines += [Line(**asdict(finding)) for finding in findings]
    if look.ceilings.note:
        look.lines.append(Line("GPU table", NOTE, look.ceilings.note))
    cache = f"{look.device.cache_bytes / 1e6:.3g} MB of last-level cache"
    look.lines.append(Line("memory", OK, f"{look.device.free_bytes() / 1e9:.3g} GB free, {cache}"))


def look_at_compiling(look: Look, progress: Progress) -> None:
    """Compile the Triton kernels of the families beforehand."""
    from bench.harness.measure.compile import compile_rows
    from bench.harness.measure.plan import Settings, plan
    from bench.harness.providers.registry import default_providers

    rows = []
    for family, op, case in family_cases(look):
        providers = default_providers(family, look.device, case.dtype)
        rows += [(family, row) for row in plan([(op, case)], providers, look.device, Settings())]
    began = time.perf_counter()
    failed = compile_rows(rows, look.device)
    if look.device.is_gpu:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        look.lines.append(Line("compiling", NOTE if failed else OK, format_time(time.perf_counter() - began), reasons))


def look_at_families(look: Look, progress: Progress) -> None:
    """Verify and time one row of each family by each provider that is measured by default, the smallest first."""
    now = time.perf_counter()
    measure_rows(look, family_cases(look), progress, now + FAMILIES_SHARE * (look.ends_at - now))


def family_cases(look: Look) -> list[tuple[str, Op, Case]]:
    """Return a small case of each family, and of matmul one of each dtype; those of the least work come first."""
    rows = []
    for family, ops in look.families.items():
        op = next((op for op in ops if op.is_in_suite), None)
        if op is None:
            continue
        dtypes = ["bf16", *(FAMILY_DTYPES if family == "matmul" and look.device.is_gpu else ())]
        rows += [(family, op, smallest(look, family, op, dtype)) for dtype in dtypes if dtype in op.dtypes]
    return sorted(rows, key=lambda row: row[1].work(row[2]).flops + row[1].work(row[2]).bytes)


def look_at_large(look: Look, progress: Progress) -> None:
    """Time matmuls and a copy whose rates are known of this GPU."""
    matmul = look.families["matmul"][0]
    copy = next(op for op in look.families["elementwise"] if op.name == "copy")
    words = [str(size) for size in MATMULS[look.kind]]
    cases = make_cases([matmul], options_of("matmul"), CaseWords(["bf16"], words), look.device.type)
    rows = [("matmul", op, case) for op, case in cases]
    sized = CaseWords(["fp32"], None, [COPY[look.kind]])
    cases = make_cases([copy], options_of("elementwise"), sized, look.device.type)
    rows += [("elementwise", op, case) for op, case in cases]
    measure_rows(look, rows, progress, look.ends_at, is_judged=True)


def smallest(look: Look, family: str, op: Op, dtype: str) -> Case:
    """Return the smallest of an op's default cases; on a CPU one that is smaller still, where the op has it."""
    from bench.harness.measure.cost import smaller_cases

    cases = make_cases([op], options_of(family), CaseWords([dtype]), look.device.type)
    found = min((case for _, case in cases), key=lambda case: op.work(case).bytes)
    for smaller in [] if look.device.is_gpu else smaller_cases(op, found):
        with suppress(UnsupportedCaseError):
            op.check(smaller, look.device.type)
            return smaller
    return found


def measure_rows(
    look: Look, cases: Sequence[tuple[str, Op, Case]], progress: Progress, ends_at: float, is_judged: bool = False
) -> None:
    """Measure cases by their default providers, one line each, and begin none after `ends_at`.

    Those that are judged are measured with cold caches. The others are small, and copies of their inputs that fill the
    caches would take longer to make than all else.
    """
    from bench.harness.measure.cost import CostEstimator
    from bench.harness.measure.plan import Settings, plan
    from bench.harness.measure.runner import Runner
    from bench.harness.providers.registry import default_providers, stand_ins
    from bench.harness.timing.protocol import limits_of

    device, settings = (
        look.device,
        Settings(cache="cold" if is_judged else "warm", budget_s=ceil(max(0.0, ends_at - time.perf_counter()))),
    )
    estimator = CostEstimator(device, settings.fill, settings.seed)
    limits = replace(limits_of(device), cap_s=ROW_CAP_S[look.kind])
    for family, op, case in cases:
        runner = Runner(family, device, settings, estimator, limits, ends_at, look.ceilings)
        providers, older = default_providers(family, device, case.dtype), stand_ins(family, device)
        for row in plan([(op, case)], providers, device, settings, older):
            progress.say(f"{op.name} {case.dtype} {case.name}, {row.provider}")
            record = runner.measure(row)
            look.records.append(record)
            look.lines.append(line_of_row(look, record, is_judged))


def line_of_row(look: Look, record: Record, is_judged: bool) -> Line:
    """Return the line of a row: whether its result is right, how it was timed, and how fast it was where that is
    judged.

    Args:
        look: what is known of the device.
        record: of the row.
        is_judged: whether its rate is held against what is expected: of a large row, that fills the device.
    """
    name = f"{record.op} {record.dtype} {record.case}, {record.provider}"
    if record.status in ("failed", "invalid"):
        return Line(name, BAD, f"{record.status}: {record.reason}", "its result or its time cannot be used")
    if record.status != "ok" or record.median_s is None:
        return Line(name, NOTE, f"{record.status}: {record.reason}")
    replay = ", a replay of the timed graph too" if record.method == "graph" else ""
    flags = [flag for flag in record.flags if flag in TELLING_FLAGS]
    if is_judged:
        quantity, of, count = (
            ("flops", record.dtype, record.flops) if record.op == "matmul" else ("bandwidth", "copy", 0)
        )
        count = count or (record.bytes_read or 0) + (record.bytes_written or 0)
        line = judged(look, name, quantity, of, count / record.median_s)
    else:
        line = Line(name, OK, f"{format_time(record.median_s)}; verified{replay}", "", record.median_s, "s")
    if not flags:
        return line
    reasons = "; ".join(f"{flag}: {record.flag_reasons.get(flag, '')}" for flag in flags)
    return replace(line, status=NOTE if line.status == OK else line.status, advice=f"{line.advice} {reasons}".strip())


def judged(look: Look, name: str, quantity: str, of: str, value: float) -> Line:
    """Return the line of a rate or a time, with the verdict of what is expected of this device."""
    from roofline.ceilings import QUANTITIES

    unit, known = QUANTITIES[quantity], look.expected(quantity, of)

    def text(number: float) -> str:
        return format_time(number) if unit == "s" else format_rate(number, unit)

    if known is None:
        return Line(name, OK, text(value), "", value, unit)
    expected, kind, source = known
    share = expected / value if unit == "s" else value / expected
    told = f"{text(value)}, {format_percent(100 * share)} of the {text(expected)} expected ({kind})"
    status, advice = verdict(share, kind)
    return Line(name, status, told, advice, value, unit, expected, source)


def verdict(share: float, kind: str) -> tuple[str, str]:
    """Return the status and what to do for a share of what is expected, by a `published` figure or the `datasheet`."""
    if kind == "datasheet" and share > 1:
        return BAD, "faster than the datasheet: the time, or the entry of the GPU, is wrong"
    if share < FAR_OFF:
        return BAD, "less than half: look at clocks, power limit and other processes before anything is measured"
    if share < ENOUGH[kind]:
        return NOTE, "below what is expected: look at the clock and the power limit"
    return OK, ""


def look_at_launches(look: Look, progress: Progress) -> None:
    """Time an empty launch from the host, and on a GPU graphs of empty kernels with and without a spin before them.

    The difference of the two is the bias that the spin takes from a sample. Then once more after a recording by torch's
    profiler, which stays attached to the process.
    """
    from bench.harness.timing import samplers
    from bench.harness.timing.launched import recorded

    host_s = samplers.empty_launch_s(look.device)
    look.lines.append(Line("launch by the host", OK, format_time(host_s), "", host_s, "s"))
    if not look.device.is_gpu:
        return
    call = empty_kernel(look.device)
    call()
    held_s = 0.0
    for launches in GRAPHS:
        graph = samplers.GraphSampler([call], launches)
        held_s, unheld_s = (graph_launch_s(graph, take) for take in (graph.sample, graph.unheld_sample))
        name = f"graph of {launches} empty kernels, each"
        look.lines.append(
            judged(look, name, "launch", "launch", held_s)
            if launches == max(GRAPHS)
            else Line(name, OK, format_time(held_s), "", held_s, "s")
        )
        more = f"{format_time(unheld_s)}, {100 * (unheld_s / held_s - 1):+.1f} % for the launch by the host"
        look.lines.append(Line(f"{name}, no spin", OK, more, "", unheld_s, "s"))
    if not recorded([call], look.device.synchronize):
        look.lines.append(Line("recording", NOTE, "", "torch's profiler records no kernel here", None, ""))
        return
    later = samplers.GraphSampler([call], launches)
    look.lines += [
        after_recording("launch by the host", host_s, samplers.empty_launch_s(look.device)),
        after_recording(name, held_s, graph_launch_s(graph, graph.sample)),
        after_recording(f"new {name}", held_s, graph_launch_s(later, later.sample)),
    ]


def graph_launch_s(graph: GraphSampler, take: Callable[[], float]) -> float:
    """Return the median seconds of a launch in a graph, by the samples of it that `take` returns."""
    from results.stats.samples import median

    graph.sample()  # the first also moves the graph to the GPU
    return median([take() for _ in range(GRAPH_SAMPLES)]) / graph.launches_per_sample


def after_recording(name: str, before_s: float, after_s: float) -> Line:
    """Return the line of a time taken again after torch's profiler has recorded something."""
    change = after_s / before_s - 1
    is_changed = abs(change) > CHANGED
    advice = "look again: if this stays so, the profiler changes the times of the rows after it" if is_changed else ""
    value = f"{format_time(after_s)}, {100 * change:+.1f} % against before"
    return Line(f"{name}, after a recording", NOTE if is_changed else OK, value, advice, after_s, "s")


def empty_kernel(device: Device) -> Callable[[], object]:
    """Return a launch of an empty kernel, or of the shortest that torch has."""
    import torch

    from bench.harness.providers.registry import has_triton

    one = torch.ones(1, device=device.torch_name)
    if device.type == "cuda" and has_triton():
        from kernels.launch_floor import v1_empty

        return lambda: v1_empty.launch(one)
    return lambda: one.add_(0)


def look_at_results(look: Look, progress: Progress) -> None:
    """Time a norm that returns new memory, its results kept for a round of the copies, and dropped at once."""
    from bench.harness.data import inputs
    from bench.harness.providers.registry import load, numerics
    from bench.harness.timing import samplers
    from results.stats.samples import median

    if not look.device.is_gpu:
        return
    op, dtype = next(op for op in look.families["norm"] if op.name == "rmsnorm"), "bf16"
    (_, case), *_ = make_cases([op], options_of("norm"), CaseWords([dtype], [f"{NORM}x{NORM}"]), look.device.type)
    rotation = inputs.plan_rotation(
        op.work(case).bytes, look.device.cache_bytes, look.device.free_bytes(), look.device.type, "cold"
    )
    filler = inputs.Filler("uniform", dtype, look.device, 0)
    provider = load("torch", op, "norm", look.device)
    with numerics(dtype):
        calls = [provider.call(data) for data in inputs.make_sets(op, case, filler, look.device, rotation.copies)]
        for call in calls:
            call()
        for words, round_ in (("kept", calls), ("dropped", [dropping(call) for call in calls])):
            graph = samplers.GraphSampler(round_, len(round_))
            graph.sample()
            launch_s = median([graph.sample() for _ in range(GRAPH_SAMPLES)]) / len(round_)
            name = f"{op.name} {dtype} {case.name}, torch, results {words}"
            look.lines.append(Line(name, OK, format_time(launch_s), "", launch_s, "s"))


def dropping(call: Callable[[], object]) -> Callable[[], None]:
    """Return a call whose result is given back at once, so that the next launch writes the same memory."""

    def launch() -> None:
        call()

    return launch


def look_at_peaks(look: Look, progress: Progress) -> None:
    """Take the short calibration of a copy and of a bf16 matmul; the ceilings are not kept."""
    from bench.harness.calibrate.parts import matmul_of, mixes
    from bench.harness.calibrate.setup import FIRST_PLANS, CalibrationSetup
    from bench.harness.device.telemetry import Monitor

    plan = FIRST_PLANS[look.kind]
    setup = CalibrationSetup(look.device, plan, look.families["matmul"][0], Monitor(look.device))
    for part in (*mixes(setup, ["copy"]), matmul_of(setup, "bf16", plan.matmul_s)):
        outcome = part.measure(progress.say)
        setup.release_arrays()
        look.records += outcome.records
        for entry in outcome.ceilings:
            clock = f"; SM clock {entry.sm_clock_hz / 1e6:.0f} MHz" if entry.sm_clock_hz else ""
            line = judged(look, f"peak: {part.name}", entry.quantity, entry.name, entry.value)
            look.lines.append(replace(line, value=line.value + clock))


# ---- the page -------------------------------------------------------------------------------------------------------


def page(look: Look, versions: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the page as a JSON object: SI base units, and what is expected beside what was measured."""
    return {
        "device": look.device.to_dict(),
        "gpu": look.ceilings.slug,
        "versions": dict(versions),
        "seconds": seconds,
        "lines": [asdict(line) for line in look.lines],
        "records": [record.to_dict() for record in look.records],
    }


def print_all(output_format: str, content: Mapping[str, Any], text: str) -> None:
    """Print the page to stdout."""
    from results.show.terminal import drawn, print_out

    print_out(text if output_format == "json" else drawn(lambda console: _print_table(console, content)))


def _print_table(console: Any, content: Mapping[str, Any]) -> None:
    from results.show.grid import Column, print_grid
    from results.show.terminal import printable

    device, lines = content["device"], content["lines"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
    console.print(
        printable(f"{device['name']} ({content['gpu']}), {versions}"), markup=False, highlight=False, soft_wrap=True
    )
    colors = {OK: "green", NOTE: "yellow", BAD: "red"}
    columns = [
        Column("", [line["status"] for line in lines], styles=[colors[line["status"]] for line in lines]),
        Column("looked at", [line["name"] for line in lines]),
        Column("found", [line["value"] for line in lines], goes_below=1),
    ]
    print_grid(console, columns, [line["advice"] for line in lines], "what to do")
    counts = {status: sum(line["status"] == status for line in lines) for status in colors}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.print(f"{told}; {content['seconds']:.0f} s", markup=False, highlight=False)
