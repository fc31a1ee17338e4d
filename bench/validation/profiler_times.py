"""Our time of a launch beside the kernels' own durations by torch's profiler, and our bytes beside counted ones.

    python -m bench.validation.profiler_times
    python -m bench.validation.profiler_times --case matmul/bf16/256,softmax/bf16/4096x8192 --output profiler

Time: the same CUDA graph over the same cold copies is replayed with and without the profiler. The sum of the durations
of a launch's kernels should be within 5 % of our time; where it is not, the gaps between the kernels, their overlap, or
the profiler's own weight explain it, or nothing does. A first session of the profiler, which may lose activities, is
thrown away. On a CPU the durations of torch's operators stand in, so that the script can be tried.

Bytes: `ncu`, where it is installed and permitted, counts what one launch reads from and writes to memory, the caches
emptied before; within 2 % of the compulsory bytes for a copy. Otherwise one line says why not.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import Parser, UsageError, add_list, device_name, number
from bench.harness.cli.interrupt import raise_when_interrupted
from bench.harness.cli.main import guarded
from bench.harness.isolate.server import die_with
from bench.validation.side_by_side import one_line
from results.show.export import json_text, write_output
from results.show.table import format_time
from results.show.terminal import print_out, say
from roofline.work import Work

OK, WRONG_RESULT = 0, 1
CASES = ("matmul/bf16/256",)
COUNTED = (("copy/fp32/1073741824", "triton"), ("matmul/bf16/8192", "torch"))
"""Cases whose bytes are counted, and by whom: torch's copy is one of the driver, which is no kernel to `ncu`. The copy
is so large that what stays in an L2 of 50 MiB is little more than 1 % of it."""

SAMPLES = 3
"""Replays that the profiler records: a graph may hold two thousand launches."""

ROOT = Path(__file__).resolve().parents[2]

# ---- what torch's profiler recorded --------------------------------------------------------------------------------

TIME_TOLERANCE = 0.05
"""Our time and the profiler's within 5 % need no reason."""


class ActivityError(ValueError):
    """The profiler's events do not fit the launches; the message says how."""


@dataclass(frozen=True)
class Activity:
    """One kernel, or one copy, on the device; on a CPU an operator that no other one called."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Seconds per launch, and what a launch consists of."""

    busy_s: float
    """Sum of the durations."""
    covered_s: float
    """Time in which at least one activity was going on: less than `busy_s` where they overlap."""
    gap_s: float
    """Time between activities of the same sample, in which none was going on."""
    activities: int
    """Of one launch."""
    names: tuple[str, ...]


def activities_of(events: Iterable[Any], on_gpu: bool) -> list[Activity]:
    """Return the activities among the events of `torch.profiler.profile.events()`, the earliest first.

    Args:
        events: with `name`, `device_type`, `time_range` in microseconds, `cpu_parent` and `is_user_annotation`.
        on_gpu: kernels and copies of the device; else the operators of the host that no other operator called.

    An event without a usable time, such as one that never ended, is no activity.
    """
    found = []
    for event in events:
        is_device = getattr(getattr(event, "device_type", None), "name", "CPU") != "CPU"
        is_nested = not on_gpu and getattr(event, "cpu_parent", None) is not None
        if is_device != on_gpu or is_nested or getattr(event, "is_user_annotation", False):
            continue
        span = getattr(event, "time_range", None)
        start_us, end_us = getattr(span, "start", math.nan), getattr(span, "end", math.nan)
        if math.isfinite(start_us) and math.isfinite(end_us) and end_us > start_us:
            found.append(Activity(str(event.name), start_us * 1e-6, end_us * 1e-6))
    return sorted(found, key=lambda one: (one.start_s, one.end_s))


def timeline(activities: Sequence[Activity], samples: int, launches_per_sample: int) -> Timeline:
    """Return what one launch consists of.

    Args:
        activities: of all samples, the earliest first.
        samples: that were taken.
        launches_per_sample: in each of them; what lies between two samples is no gap.

    Raises:
        ActivityError: none was recorded, or a part was lost: their number is no multiple of the launches.
    """
    launches = samples * launches_per_sample
    if not activities:
        raise ActivityError("the profiler recorded nothing")
    if len(activities) % launches:
        raise ActivityError(f"{len(activities)} activities for {launches} launches: the profiler lost a part of them")
    each = len(activities) // samples
    covered_s = gap_s = 0.0
    for first in range(0, len(activities), each):
        sample = activities[first : first + each]
        until_s = sample[0].start_s
        for one in sample:
            gap_s += max(0.0, one.start_s - until_s)
            covered_s += max(0.0, one.end_s - max(one.start_s, until_s))
            until_s = max(until_s, one.end_s)
    busy_s = sum(one.end_s - one.start_s for one in activities)
    names = tuple(dict.fromkeys(one.name for one in activities))
    per = launches
    return Timeline(busy_s / per, covered_s / per, gap_s / per, len(activities) // launches, names)


def time_verdict(ours_s: float, profiled_s: float, seen: Timeline) -> tuple[bool, str]:
    """Return whether the difference between our time and the profiler's is known, and what it is.

    Args:
        ours_s: our time of a launch, without the profiler.
        profiled_s: the same clock while the profiler recorded.
        seen: what the profiler recorded.
    """
    if near(seen.busy_s, ours_s):
        return True, "within 5 %"
    span_s = seen.covered_s + seen.gap_s
    if seen.busy_s < ours_s and near(span_s, ours_s):
        return True, f"{share(seen.gap_s, ours_s)} of our time are gaps between kernels"
    if seen.busy_s > ours_s and near(seen.covered_s, ours_s):
        return True, f"kernels overlap: {share(seen.busy_s - seen.covered_s, ours_s)} of our time run two at once"
    if not near(profiled_s, ours_s) and near(span_s, profiled_s):
        return True, f"the profiler changes the time itself: {profiled_s / ours_s:.2f} times ours while it records"
    return False, "unexplained"


def near(value_s: float, wanted_s: float) -> bool:
    """Return whether two times agree within the tolerance."""
    return abs(value_s - wanted_s) <= TIME_TOLERANCE * wanted_s


def share(part_s: float, whole_s: float) -> str:
    """Return a part as a percentage."""
    return f"{part_s / whole_s:.1%}"


def profiled(sampler: Any, on_gpu: bool) -> tuple[list[float], list[Activity]]:
    """Return the seconds of a few samples while torch's profiler records, and what it recorded."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
        seconds = [sampler.sample() for _ in range(SAMPLES)]
    return seconds, activities_of(recorded.events(), on_gpu)


def time_case(listed: Any, device: Any, seed: int) -> dict[str, Any]:
    """Return our time of one case and the profiler's.

    Raises:
        UsageError: the device cannot run it.
        WrongResultError: the result is wrong.
    """
    from bench.harness.providers.registry import numerics
    from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, collect, warm_up
    from bench.harness.timing.samplers import make_sampler
    from bench.validation.listed_cases import make_ready
    from bench.validation.other_clocks import torch_threads
    from results.stats.samples import median

    limits = GPU_LIMITS if device.is_gpu else CPU_LIMITS
    with torch_threads(device), numerics(listed.case.dtype):
        ready = make_ready(listed, device, seed)
        sampler = make_sampler(ready.calls, device, limits)
        profiled(sampler, device.is_gpu)  # thrown away
        warm_up(sampler, limits.warm_up_s)
        ours = collect(sampler, limits, ready.cache)
        seconds, activities = profiled(sampler, device.is_gpu)
        ready.verify(len(ready.calls) - 1)
    launches = sampler.launches_per_sample
    row = {"case": listed.name, "cache": ready.cache, "copies": len(ready.calls), "method": sampler.method}
    row |= {"ours_s": ours.median_s, "ci95_s": ours.ci95_s, "samples_s": ours.samples_s}
    row |= {"launches_per_sample": launches, "profiled_s": median(seconds) / launches}
    try:
        seen = timeline(activities, SAMPLES, launches)
    except ActivityError as error:
        return row | {"is_known": False, "verdict": str(error)}
    is_known, said = time_verdict(ours.median_s, row["profiled_s"], seen)
    return row | asdict(seen) | {"is_known": is_known, "verdict": said}


def shown(row: dict[str, Any], on_gpu: bool) -> str:
    """Return a case as lines for people."""
    what = "kernels" if on_gpu else "operators"
    head = f"{row['case']} {row['cache']}: ours {format_time(row['ours_s'])} ({row['method']})"
    if "busy_s" not in row:
        return f"{head}: {row['verdict']}"
    times = f"{what} {format_time(row['busy_s'])}, gaps {format_time(row['gap_s'])}"
    under = f"under the profiler {format_time(row['profiled_s'])}, {row['activities']} {what} a launch"
    return f"{head}, {times}, {under}\n  {what} / ours {row['busy_s'] / row['ours_s']:.3f}: {row['verdict']}"


# ---- bytes that ncu counts -----------------------------------------------------------------------------------------

BYTES_TOLERANCE = 0.02
"""Counted bytes within 2 % of the compulsory ones need no reason."""

READ, WRITTEN, L2 = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"
NEWER = {READ: "dram__bytes_op_read.sum", WRITTEN: "dram__bytes_op_write.sum"}
"""Names of the same counters on Blackwell and later GPUs, where the older ones are not listed."""

UNITS = {"": 1, "byte": 1, "kbyte": 10**3, "mbyte": 10**6, "gbyte": 10**9, "tbyte": 10**12}
"""Units of bytes in Nsight Compute's output, in lower case; powers of ten."""

TIMEOUT_S = 300


class CountersError(RuntimeError):
    """There are no counters; the message says why in one line."""


class ForbiddenError(CountersError):
    """This user may not count, whatever the case."""


@dataclass(frozen=True)
class Counted:
    """Bytes of one launch, all of its kernels together."""

    read: int
    written: int
    l2: int
    kernels: tuple[str, ...]


def metric_names(listing: str) -> tuple[str, str, str]:
    """Return the metrics to ask for, from what `ncu --query-metrics` lists; the older names where it lists nothing."""
    listed = {line.split()[0] for line in listing.splitlines() if line.split()}

    def name(metric: str) -> str:
        newer = NEWER.get(metric, metric)
        is_newer = metric.removesuffix(".sum") not in listed and newer.removesuffix(".sum") in listed
        return newer if is_newer else metric

    return name(READ), name(WRITTEN), name(L2)


def ncu_command(ncu: str, metrics: Sequence[str], launch: Sequence[str]) -> list[str]:
    """Return the command that counts one launch: caches emptied before each kernel, clocks left as they are."""
    asked = ["--metrics", ",".join(metrics), "--cache-control", "all", "--clock-control", "none"]
    return [ncu, "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off", *asked, *launch]


def count(command: Sequence[str], metrics: tuple[str, str, str], folder: Path) -> Counted:
    """Return the bytes of a launch, the command started in a folder.

    Raises:
        ForbiddenError: the driver does not let this user count.
        CountersError: the tool failed, took too long, or printed no counters.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, cwd=folder,
            preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CountersError(f"ncu took more than {TIMEOUT_S} s") from None
    except OSError as error:
        raise CountersError(f"ncu cannot be started: {error.strerror}") from None
    refused = refusal_in(done.stdout + done.stderr)
    if refused:
        raise ForbiddenError(refused)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise CountersError(f"ncu failed with {done.returncode}: {lines[-1][:160] if lines else 'it said nothing'}")
    return counted(parse_counters(done.stdout, metrics), metrics)


def refusal_in(text: str) -> str | None:
    """Return that counters are forbidden here, where the tool says so, else None.

    Source: NVIDIA, ERR_NVGPUCTRPERM: Permission issue with performance counters.
    """
    if "ERR_NVGPUCTRPERM" not in text:
        return None
    return "counters are forbidden for this user (ERR_NVGPUCTRPERM): an administrator can allow them"


def parse_counters(text: str, metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the kernels in what `ncu --csv` printed, each with its metrics in bytes.

    Both forms are read: a column for each metric (`--page raw`, with a line of units below the header), and a line for
    each metric. Lines of the tool and of the program around the table are passed over.

    Raises:
        CountersError: there is no table, it is torn, or a value is missing or no count.
    """
    lines = text.replace("\0", "").splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and "Kernel Name" in line), None)
    if head is None:
        raise CountersError("ncu printed no table: no kernel was counted")
    table = [line for line in lines[head:] if line.startswith('"')]
    try:
        columns, *rows = csv.reader(table, strict=True)
    except csv.Error as error:
        raise CountersError(f"ncu's table cannot be read: {error}") from None
    if any(len(row) != len(columns) for row in rows):
        raise CountersError("ncu's table is torn: a line has not as many columns as its header")
    body = [dict(zip(columns, row, strict=True)) for row in rows]
    if "Metric Name" in columns:
        return _by_lines(body, metrics)
    return _by_columns(body, metrics)


def _by_columns(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the kernels of a table with a column for each metric; its first line holds the units."""
    units: Mapping[str, str] = {}
    kernels = []
    for row in body:
        if not row["ID"].strip():
            units = row
            continue
        missing = [metric for metric in metrics if metric not in row]
        if missing:
            raise CountersError(f"ncu's table has no {missing[0]}")
        counts = {metric: _bytes(row[metric], units.get(metric, ""), metric) for metric in metrics}
        kernels.append((row["Kernel Name"], counts))
    return kernels


def _by_lines(body: Sequence[Mapping[str, str]], metrics: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the kernels of a table with a line for each metric."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for row in body:
        name = row["Metric Name"]
        if name in metrics:
            _, counts = found.setdefault(row["ID"], (row["Kernel Name"], {}))
            counts[name] = _bytes(row.get("Metric Value", ""), row.get("Metric Unit", ""), name)
    for kernel, counts in found.values():
        missing = [metric for metric in metrics if metric not in counts]
        if missing:
            raise CountersError(f"ncu's table has no {missing[0]} of {kernel[:60]}")
    return list(found.values())


def _bytes(text: str, unit: str, metric: str) -> int:
    """Return a value of the table in bytes.

    Raises:
        CountersError: it is no count, or its unit is none of bytes.
    """
    digits = text.strip().replace(",", "")
    scale = UNITS.get(unit.strip().lower())
    value = float(digits) if re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,30})?", digits) else math.nan
    if scale is None or not math.isfinite(value):
        raise CountersError(f"ncu gives {metric} as '{text.strip()[:30]}' '{unit.strip()[:30]}', no count of bytes")
    return round(value * scale)


def counted(kernels: Sequence[tuple[str, Mapping[str, int]]], metrics: tuple[str, str, str]) -> Counted:
    """Return the sum over the kernels of a launch.

    Raises:
        CountersError: there is none.
    """
    if not kernels:
        raise CountersError("ncu counted no kernel: a copy that the driver makes is none")
    read, written, l2 = (sum(counts[metric] for _, counts in kernels) for metric in metrics)
    return Counted(read, written, l2, tuple(name for name, _ in kernels))


def bytes_verdict(found: Counted, work: Work, l2_bytes: int) -> tuple[bool, str]:
    """Return whether the counted bytes are understood, and what they say about the compulsory ones.

    What was written last may still lie in the L2 cache when the kernel ends, so that up to its size is not counted.
    """
    said = [
        f"read {found.read / work.bytes_read:.3f}",
        f"written {found.written / work.bytes_written:.3f} of compulsory",
    ]
    is_understood = True
    if abs(found.written - work.bytes_written) > BYTES_TOLERANCE * work.bytes_written:
        is_left = work.bytes_written - l2_bytes <= found.written <= work.bytes_written
        said.append("up to the size of the L2 is still in it" if is_left else "writes unexplained")
        is_understood = is_left
    if abs(found.read - work.bytes_read) > BYTES_TOLERANCE * work.bytes_read:
        # More than once can only be read from memory what the cache does not hold.
        is_again = found.read > work.bytes_read > l2_bytes and found.l2 >= found.read
        said.append("operands are read again: they exceed the L2" if is_again else "reads unexplained")
        is_understood &= is_again
    return is_understood, ", ".join(said)


def count_all(device: Any, cases: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the counted bytes of each case with what they say, or the reason why it was not counted.

    Raises:
        CountersError: nothing can be counted here.
    """
    ncu = shutil.which("ncu")
    if device.type != "cuda":
        raise CountersError("bytes were not counted: that needs an NVIDIA GPU")
    if ncu is None:
        raise CountersError("bytes were not counted: there is no ncu on the path")
    metrics = metric_names(listed_metrics(ncu))
    for name, by in cases:
        row: dict[str, Any] = {"case": name, "provider": by, "metrics": metrics}
        try:
            yield row | count_case(ncu, metrics, row, device)
        except ForbiddenError:
            raise
        except CountersError as error:
            yield row | {"is_known": False, "verdict": str(error)}


def count_case(ncu: str, metrics: tuple[str, str, str], row: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Return the counted and the compulsory bytes of one case.

    Raises:
        CountersError: they cannot be counted.
    """
    from bench.validation.listed_cases import parse_case

    listed = parse_case(row["case"])
    work = listed.op.work(listed.case)
    launch = [sys.executable, "-m", "bench.validation.profiler_times", "--launch", f"{row['case']}:{row['provider']}"]
    command = ncu_command(ncu, metrics, [*launch, "--device", device.torch_name])
    found = count(command, metrics, ROOT)
    is_known, said = bytes_verdict(found, work, device.cache_bytes)
    compulsory = {"bytes_read": work.bytes_read, "bytes_written": work.bytes_written}
    return {**asdict(found), **compulsory, "is_known": is_known, "verdict": said}


def listed_metrics(ncu: str) -> str:
    """Return the metrics that this GPU has, as the tool lists them; nothing where it does not."""
    try:
        done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def launch_once(text: str, device: Any, seed: int) -> int:
    """Launch one case twice, the second time where a profiler looks: what `ncu` runs."""
    import torch

    from bench.harness.providers.registry import default_providers, numerics
    from bench.validation.listed_cases import make_ready, parse_case

    name, _, by = text.partition(":")
    listed = parse_case(name)
    provider = default_providers(listed.family, device)[-1] if by == "triton" else by
    with numerics(listed.case.dtype):
        ready = make_ready(listed, device, seed, provider)
        ready.calls[-1]()
        device.synchronize()
        torch.cuda.profiler.start()
        ready.calls[-1]()
        device.synchronize()
        torch.cuda.profiler.stop()
    return OK


# ---- the command ---------------------------------------------------------------------------------------------------


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        prog="python -m bench.validation.profiler_times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_list(parser, "--case", f"cases op/dtype/shape whose time is compared (default: {', '.join(CASES)})")
    parser.add_argument("--device", type=device_name, help="cpu, cuda or cuda:N (default: the first GPU, else the CPU)")
    parser.add_argument(
        "--seed", type=number(0, 2**63 - 1, "a whole number from 0", int), default=0, help="of the inputs"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, default=None, help="folder for profiler_times.json")
    parser.add_argument("--launch", metavar="CASE:PROVIDER", help=argparse.SUPPRESS)
    return parser


def run(args: argparse.Namespace) -> int:
    """Compare times and bytes and return the exit code.

    Raises:
        UsageError: a case that does not exist.
        NoDeviceError: the device is not there.
        StoreError: the folder cannot be written.
    """
    from bench.harness.device import device as machine
    from bench.harness.device import stamp
    from bench.validation.listed_cases import WrongResultError, chosen_cases

    device = machine.detect(args.device)
    raise_when_interrupted()
    if args.launch:
        return launch_once(args.launch, device, args.seed)
    code = OK
    times: list[dict[str, Any]] = []
    for listed in chosen_cases(args.case, CASES):
        try:
            times.append(time_case(listed, device, args.seed))
            print_out(f"{shown(times[-1], device.is_gpu)}\n")
        except WrongResultError as error:
            code = WRONG_RESULT
            say(str(error))
        except UsageError as error:
            say(f"{listed.name}: skipped: {error}")
        except Exception as error:  # a profiler that cannot record raises whatever it likes
            say(f"{listed.name}: no time of the profiler: {one_line(error)}")
    counted: list[dict[str, Any]] = []
    try:
        for row in count_all(device, COUNTED):
            counted.append(row)
            print_out(f"{row['case']} {row['provider']}: {row['verdict']}\n")
    except CountersError as error:
        say(str(error))
    if args.output is not None:
        head = {"schema": 1, "device": device.to_dict(), "versions": stamp.versions(), "git": stamp.git_state()}
        path = args.output / "profiler_times.json"
        write_output(path, json_text({**head, "times": times, "bytes": counted}).encode())
        print_out(f"saved: {path}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(guarded(build_parser(), run, None))
