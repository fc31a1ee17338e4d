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
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import UsageError, add_list, device_name, number
from bench.harness.cli.interrupt import raise_when_interrupted
from bench.harness.cli.main import guarded
from bench.harness.profile.counters.ncu import (
    READ,
    WRITTEN,
    CountedKernel,
    CountersError,
    ForbiddenError,
    counted_by,
    found,
    listed_metrics,
    metric_name,
    ncu_command,
)
from bench.validation.side_by_side import one_line
from results.show.export import json_text, write_output
from results.show.table import format_time
from results.show.terminal import Parser, print_out, say
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


def profiled(sampler: Any, on_gpu: bool) -> tuple[list[float], list[list[Activity]]]:
    """Return the seconds of a few samples while torch's profiler records, and what it recorded of each replay."""
    from torch.profiler import ProfilerActivity, profile

    from bench.harness.timing.launched import launch_empty_kernels, prepare_profiler

    prepare_profiler()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
        if on_gpu:
            launch_empty_kernels()
        seconds = [sampler.sample() for _ in range(SAMPLES)]
    found = activities_of(recorded.events(), on_gpu)
    return seconds, replays_of(found) if on_gpu else [found]


def replays_of(activities: Sequence[Activity]) -> list[list[Activity]]:
    """Return the activities of each replay, without the kernel that spins before it.

    There may be more replays than samples: one that the host was late with is taken again.
    """
    from bench.harness.timing.launched import SPIN

    found: list[list[Activity]] = [[]]
    for one in activities:
        if SPIN in one.name:
            found.append([])
        else:
            found[-1].append(one)
    return [replay for replay in found if replay]


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
        seconds, replays = profiled(sampler, device.is_gpu)
        ready.verify(len(ready.calls) - 1)
    launches = sampler.launches_per_sample
    row = {"case": listed.name, "cache": ready.cache, "copies": len(ready.calls), "method": sampler.method}
    row |= {"ours_s": ours.median_s, "ci95_s": ours.ci95_s, "samples_s": ours.samples_s}
    row |= {"launches_per_sample": launches, "profiled_s": median(seconds) / launches}
    try:
        seen = timeline(list(chain(*replays)), len(replays) if device.is_gpu else SAMPLES, launches)
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

L2 = "lts__t_bytes.sum"


@dataclass(frozen=True)
class Counted:
    """Bytes of one launch, all of its kernels together."""

    read: int
    written: int
    l2: int
    kernels: tuple[str, ...]


def counted(kernels: Sequence[CountedKernel], metrics: Sequence[str]) -> Counted:
    """Return the sum over the kernels of a launch.

    Raises:
        CountersError: there is none.
    """
    if not kernels:
        raise CountersError("ncu counted no kernel: a copy that the driver makes is none")
    read, written, l2 = (round(sum(kernel.values[metric] for kernel in kernels)) for metric in metrics)
    return Counted(read, written, l2, tuple(kernel.name for kernel in kernels))


def bytes_verdict(seen: Counted, work: Work, l2_bytes: int) -> tuple[bool, str]:
    """Return whether the counted bytes are understood, and what they say about the compulsory ones.

    What was written last may still lie in the L2 cache when the kernel ends, so that up to its size is not counted.
    """
    said = [
        f"read {seen.read / work.bytes_read:.3f}",
        f"written {seen.written / work.bytes_written:.3f} of compulsory",
    ]
    is_understood = True
    if abs(seen.written - work.bytes_written) > BYTES_TOLERANCE * work.bytes_written:
        is_left = work.bytes_written - l2_bytes <= seen.written <= work.bytes_written
        said.append("up to the size of the L2 is still in it" if is_left else "writes unexplained")
        is_understood = is_left
    if abs(seen.read - work.bytes_read) > BYTES_TOLERANCE * work.bytes_read:
        # More than once can only be read from memory what the cache does not hold.
        is_again = seen.read > work.bytes_read > l2_bytes and seen.l2 >= seen.read
        said.append("operands are read again: they exceed the L2" if is_again else "reads unexplained")
        is_understood &= is_again
    return is_understood, ", ".join(said)


def count_all(device: Any, cases: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the counted bytes of each case with what they say, or the reason why it was not counted.

    Raises:
        CountersError: nothing can be counted here.
    """
    if device.type != "cuda":
        raise CountersError("that needs an NVIDIA GPU")
    ncu = found()
    listed = listed_metrics(ncu)
    metrics = [metric_name(metric, listed) for metric in (READ, WRITTEN, L2)]
    for name, by in cases:
        row: dict[str, Any] = {"case": name, "provider": by, "metrics": metrics}
        try:
            yield row | count_case(ncu, metrics, row, device)
        except ForbiddenError:
            raise
        except CountersError as error:
            yield row | {"is_known": False, "verdict": str(error)}


def count_case(ncu: str, metrics: Sequence[str], row: Mapping[str, Any], device: Any) -> dict[str, Any]:
    """Return the counted and the compulsory bytes of one case.

    Raises:
        CountersError: they cannot be counted.
    """
    from bench.validation.listed_cases import parse_case

    listed = parse_case(row["case"])
    work = listed.op.work(listed.case)
    launch = [sys.executable, "-m", "bench.validation.profiler_times", "--launch", f"{row['case']}:{row['provider']}"]
    command = ncu_command(ncu, metrics, [*launch, "--device", device.torch_name])
    seen = counted(counted_by(command, metrics, ROOT), metrics)
    is_known, said = bytes_verdict(seen, work, device.cache_bytes)
    compulsory = {"bytes_read": work.bytes_read, "bytes_written": work.bytes_written}
    return {**asdict(seen), **compulsory, "is_known": is_known, "verdict": said}


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
    counts: list[dict[str, Any]] = []
    try:
        for row in count_all(device, COUNTED):
            counts.append(row)
            print_out(f"{row['case']} {row['provider']}: {row['verdict']}\n")
    except CountersError as error:
        say(f"bytes were not counted: {error}")
    if args.output is not None:
        head = {"schema": 1, "device": device.to_dict(), "versions": stamp.versions(), "git": stamp.git_state()}
        path = args.output / "profiler_times.json"
        write_output(path, json_text({**head, "times": times, "bytes": counts}).encode())
        print_out(f"saved: {path}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(guarded(build_parser(), run, None))
