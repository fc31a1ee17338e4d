"""Our times beside those of Triton's and torch's own benchmarks, and where they differ, why.

    python -m bench.validation.side_by_side --output side-by-side
    python -m bench.validation.side_by_side --case matmul/bf16/256,gelu/bf16/4194304 --quick

All ways take turns in one process, round after round, so that what slows the machine slows all of them. The ratio is
taken within each round and its median over the rounds is shown, with the least and the largest. Where it is more than
2 % from 1, the reason is looked for on a ladder from our way to theirs that changes one thing a rung, every rung timed
in every round; what no rung covers is called unexplained. Nothing is asserted.

`bench.do_bench` and `do_bench` flush the cache before each launch and are set against our cold time;
`do_bench_cudagraph` and torch's Timer repeat on the same inputs and are set against our warm one. Without a GPU there
are `bench.do_bench` and torch's Timer.

Written into the folder: side_by_side.json (every raw value, after each case) and side_by_side.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import UsageError, add_list, device_name, number
from bench.harness.cli.interrupt import INTERRUPTED, raise_when_interrupted
from bench.harness.cli.main import guarded
from bench.harness.measure.evidence import PREEMPTIONS_PER_S
from bench.validation.other_clocks import LEAST_ROUNDS, Evidence, Explanation, Rung, explain, percent
from results.show.export import json_text, markdown_text, write_output
from results.show.table import format_time
from results.show.terminal import Parser, print_out, say
from results.stats.samples import median
from results.store.runs import runs_directory

OK, WRONG_RESULT = 0, 1
ROUNDS, QUICK_ROUNDS = 5, 3
SECONDS, QUICK_SECONDS = 0.5, 0.3
NOTES = {
    "pairs, copies": "an empty pair takes {event_floor_s}",
    "pairs, zero flush": "an empty pair right behind it takes {pair_behind_flush_s}",
    "loop, zero flush": "the host takes {host_launch_s} a launch, the flush {flush_s}",
    "graph of 20 ms": "{graph_launches} launches",
    "block of launches": "the host takes {host_launch_s} a launch",
}
"""What is shown beside a change that counts as a reason, from the facts of `Clocks`."""


@dataclass
class Compared:
    """One case: what was read in each round, and what came of it."""

    case: str
    estimate_s: float | None
    status: str = "ok"
    reason: str | None = None
    copies: int | None = None
    methods: Mapping[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """By way, the reading of each round: `value_s`, `values_s`, `launches`."""
    failed: dict[str, str] = field(default_factory=dict)
    """By way, why it gave no time."""
    facts: Mapping[str, float] = field(default_factory=dict)
    clock_hz: Mapping[str, float] = field(default_factory=dict)
    preemptions_per_s: float = 0.0
    """How often this process lost a core to another one, during the rounds."""
    explanations: list[Explanation] = field(default_factory=list)

    def median_s(self, way: str) -> float | None:
        """Return the median over the rounds of what a way says, s; None where it said nothing."""
        values = [one[way].value_s for one in self.rounds if way in one]
        return median(values) if values else None


def compare_case(listed: Any, device: Any, rounds: int, seconds: float, seed: int) -> Compared:
    """Return one case, timed in all ways, in turns; whatever becomes of it, the next one is not touched."""
    from bench.harness.measure.runner import release
    from bench.validation.listed_cases import WrongResultError, estimate_s
    from bench.validation.other_clocks import ladders_of

    compared = Compared(listed.name, estimate_s(listed, device.slug))
    try:
        take_turns(compared, listed, device, rounds, seconds, seed)
    except WrongResultError as error:
        compared.status, compared.reason, compared.rounds = "invalid", str(error), []
    except UsageError as error:
        compared.status, compared.reason = "skipped", str(error)
    except Exception as error:  # memory that runs out, mostly
        compared.status, compared.reason, compared.rounds = "failed", one_line(error), []
    release(device)
    compared.explanations = explanations(compared, ladders_of(device))
    return compared


def take_turns(compared: Compared, listed: Any, device: Any, rounds: int, seconds: float, seed: int) -> None:
    """Time one case in all ways, round after round, each round beginning with another way.

    Raises:
        UsageError: the device cannot run it.
        WrongResultError: the result is wrong, before or after.
    """
    from bench.harness.providers.registry import numerics
    from bench.validation.listed_cases import make_ready
    from bench.validation.other_clocks import Clocks, clocks_of, torch_threads, ways_of

    ways = ways_of(device)
    with torch_threads(device), numerics(listed.case.dtype):
        ready = make_ready(listed, device, seed)
        compared.copies = len(ready.calls)
        clocks = Clocks(ready, seconds)
        compared.methods, compared.facts = clocks.methods, clocks.facts
        began, lost = time.perf_counter(), preemptions()
        for turn in range(rounds):
            compared.rounds.append({})
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                read(clocks, way, compared)
        compared.preemptions_per_s = (preemptions() - lost) / (time.perf_counter() - began)
        compared.clock_hz = clocks_of(clocks, [way for way in ways if way not in compared.failed])
        ready.verify(len(ready.calls) - 1)


def read(clocks: Any, way: str, compared: Compared) -> None:
    """Take one reading into the latest round; a way that fails once is left out from then on."""
    if way in compared.failed:
        return
    from bench.validation.other_clocks import NotColdError

    try:
        compared.rounds[-1][way] = clocks.read(way)
    except NotColdError as error:
        compared.failed[way] = str(error)
    except Exception as error:  # whatever another clock raises is no reason to stop
        compared.failed[way] = one_line(error)


def one_line(error: BaseException) -> str:
    """Return the class and the first line of an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def explanations(compared: Compared, ladders: Mapping[str, Sequence[Rung]]) -> list[Explanation]:
    """Return what each other clock says against ours, as far as both have times."""
    from bench.validation.other_clocks import THEIRS

    rounds = [with_medians(one) for one in compared.rounds]
    evidence = Evidence(
        clock_hz=with_median_ways(compared.clock_hz),
        notes={way: text.format(**shown(compared.facts)) for way, text in NOTES.items() if has_facts(text, compared)},
        scatter=scatter_of(compared.rounds),
        disturbance=disturbance(compared.preemptions_per_s),
    )
    found = [explain(THEIRS[theirs], ladder, rounds, evidence) for theirs, ladder in ladders.items()]
    return [one for one in found if one is not None]


def preemptions() -> int:
    """Return how often this process has lost a core to another one."""
    import resource  # of Unix alone

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def disturbance(preemptions_per_s: float) -> str | None:
    """Return in words that other processes took the cores away, where they did."""
    if preemptions_per_s <= PREEMPTIONS_PER_S:
        return None
    return f"this process lost a core {preemptions_per_s:.0f} times a second to others"


def with_medians(readings: Mapping[str, Any]) -> dict[str, float]:
    """Return the times of a round, with the medians of what is given as a mean."""
    times = {way: one.value_s for way, one in readings.items()}
    from bench.validation.other_clocks import MEANS

    for way in MEANS:
        if way in readings:
            times[f"{way} median"] = median(readings[way].values_s)
    return times


def with_median_ways(clock_hz: Mapping[str, float]) -> dict[str, float]:
    """Return the clocks, those of the medians being those of the means: they are the same launches."""
    from bench.validation.other_clocks import MEANS

    return {**clock_hz, **{f"{way} median": value for way, value in clock_hz.items() if way in MEANS}}


def scatter_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    """Return by way the values of a round and the standard error of their mean, each the median over the rounds."""
    found = {}
    for way in {way for one in rounds for way in one}:
        taken = [one[way] for one in rounds if way in one]
        error = median([one.standard_error for one in taken if math.isfinite(one.standard_error)] or [math.inf])
        if math.isfinite(error):
            found[way] = (int(median([len(one.values_s) for one in taken])), error)
    return found


def shown(facts: Mapping[str, float]) -> dict[str, str]:
    """Return facts as text: times with their unit, counts as they are."""
    return {name: format_time(value) if name.endswith("_s") else f"{value:g}" for name, value in facts.items()}


def has_facts(text: str, compared: Compared) -> bool:
    """Return whether all facts are known that a note shows."""
    return names_in(text) <= compared.facts.keys()


def names_in(text: str) -> set[str]:
    """Return the names between braces."""
    import string

    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


# ---- what is shown ------------------------------------------------------------------------------------------------


def table_rows(cases: Sequence[Compared]) -> list[dict[str, str]]:
    """Return a row for each case: its estimate, the times, and the ratio of each other clock to ours."""
    rows = []
    for one in cases:
        row = {"case": one.case, "estimate": format_time(one.estimate_s)}
        row |= {"ours cold": format_time(one.median_s("cold")), "ours warm": format_time(one.median_s("warm"))}
        by_clock = {found.theirs: found for found in one.explanations}
        for clock, ratio in (
            ("bench.do_bench", "/ cold"),
            ("do_bench", "/ cold"),
            ("do_bench_cudagraph", "/ warm"),
            ("torch Timer", "/ warm"),
        ):
            found = by_clock.get(clock)
            row[clock] = format_time(one.median_s(clock))
            row[f"{clock} {ratio}"] = (
                "-" if found is None else f"{found.ratio:.3f} ({found.low:.2f} to {found.high:.2f})"
            )
        rows.append(row)
    return rows


def reason_lines(cases: Sequence[Compared]) -> list[str]:
    """Return a line for each difference of more than 2 % with its reasons, and for each time that is missing."""
    lines = []
    for one in cases:
        if one.status != "ok":
            lines.append(f"{one.case}: {one.status}: {one.reason}")
        for found in one.explanations:
            if found.verdict != "same":
                head = f"{one.case}: {found.theirs} / ours {found.ours} {percent(math.log(found.ratio))}"
                lines.append(f"{head}: {'; '.join(found.reasons)}")
        lines += [f"{one.case}: {way}: no time: {why}" for way, why in one.failed.items()]
    timed = [one for one in cases if one.rounds]
    if timed and not any("do_bench" in {*one.rounds[0], *one.failed} for one in timed):
        lines.append("Triton's do_bench is not among the ways: it needs the driver of a GPU, and this device has none")
    return lines


def summary(cases: Sequence[Compared]) -> str:
    """Return how many of the pairs agree, and how many differences have a reason."""
    verdicts = [found.verdict for one in cases for found in one.explanations]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("same", "explained", "partly", "unexplained"))
    return f"{len(verdicts)} pairs: {counts} (same: within 2 %)"


def print_table(title: str, cases: Sequence[Compared]) -> None:
    """Print the table and the reasons to stdout."""
    from rich import box
    from rich.table import Table

    from results.show.terminal import table_console

    rows = table_rows(cases)
    kept = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    table = Table(box=box.SIMPLE_HEAD)
    for name in kept:
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in kept))
    console = table_console(sys.stdout)
    with console.capture() as captured:
        console.print(table, markup=False)
    print_out(f"{title}\n{captured.get()}" + "".join(f"{line}\n" for line in [*reason_lines(cases), summary(cases)]))


def written(head: Mapping[str, Any], cases: Sequence[Compared], folder: Path) -> list[Path]:
    """Write both files, each whole or not at all, and return their paths.

    Raises:
        StoreError: the folder cannot be written.
    """
    document = {**head, "cases": [asdict(one) for one in cases]}
    rows = [{name: "" if text == "-" else text for name, text in row.items()} for row in table_rows(cases)]
    lines = [
        head["title"],
        "",
        markdown_text(rows, ()),
        *(f"- {line}" for line in [*reason_lines(cases), summary(cases)]),
    ]
    paths = [folder / "side_by_side.json", folder / "side_by_side.md"]
    write_output(paths[0], json_text(finite(document)).encode())
    write_output(paths[1], ("\n".join(lines) + "\n").encode())
    return paths


def finite(value: Any) -> Any:
    """Return a document in which every number that JSON cannot hold is null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def environment(device: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Return what opens the JSON file: machine, versions, settings."""
    from bench.harness.device import stamp as machine

    versions, slug = machine.versions(), device.slug if device.is_gpu else ""
    names = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return {
        "schema": 1,
        "title": f"{device.name}, {names}, {args.rounds} rounds" + (f"; estimate: roofline of {slug}" if slug else ""),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": machine.command_line("bench.validation.side_by_side"),
        "device": device.to_dict(),
        "host": machine.host(),
        "versions": versions,
        "git": machine.git_state(),
        "rounds": args.rounds,
        "seconds": args.seconds,
        "seed": args.seed,
    }


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog="python -m bench.validation.side_by_side",
        description=__doc__,
    )
    add_list(parser, "--case", "cases op/dtype/shape, such as matmul/bf16/256 (default: twelve)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} short rounds")
    parser.add_argument(
        "--rounds",
        type=number(LEAST_ROUNDS, 1000, f"a whole number from {LEAST_ROUNDS} to 1000", int),
        help=f"default: {ROUNDS}",
    )
    parser.add_argument("--device", type=device_name, help="cpu, cuda or cuda:N (default: the first GPU, else the CPU)")
    parser.add_argument(
        "--seed", type=number(0, 2**63 - 1, "a whole number from 0", int), default=0, help="of the inputs"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, default=None, help="folder (default: among the runs)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Compare all cases and return the exit code.

    Raises:
        UsageError: a case that does not exist.
        NoDeviceError: the device is not there.
        StoreError: the folder cannot be written.
    """
    from bench.harness.device.device import detect
    from bench.validation.listed_cases import CPU_CASES, GPU_CASES, chosen_cases

    device = detect(args.device)
    raise_when_interrupted()
    listed = chosen_cases(args.case, GPU_CASES if device.is_gpu else CPU_CASES)
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    args.seconds = QUICK_SECONDS if args.quick else SECONDS
    folder = args.output or runs_directory() / device.slug / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-side-by-side"
    if not device.is_gpu:
        say("no GPU: Triton's do_bench and do_bench_cudagraph need one, so that their columns are left out")
    head, is_interrupted = environment(device, args), False
    cases: list[Compared] = []
    written(head, cases, folder)  # where it cannot be written, that is better known now
    began = time.perf_counter()
    try:
        for index, one in enumerate(listed):
            say(f"[{index + 1}/{len(listed)}] {one.name}")
            cases.append(compare_case(one, device, args.rounds, args.seconds, args.seed))
            written(head, cases, folder)
    except KeyboardInterrupt:
        is_interrupted = True
        say("interrupted: what was finished is kept")
    if cases:
        print_table(head["title"], cases)
    print_out(f"{(time.perf_counter() - began) / 60:.1f} minutes\n")
    print_out("".join(f"saved: {path}\n" for path in written(head, cases, folder)))
    if is_interrupted:
        return INTERRUPTED
    return WRONG_RESULT if any(one.status == "invalid" for one in cases) else OK


if __name__ == "__main__":
    raise SystemExit(guarded(build_parser(), run, None))
