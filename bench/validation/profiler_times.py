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
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.harness.cli.arguments import Parser, UsageError, add_list, device_name, number
from bench.harness.cli.interrupt import raise_when_interrupted
from bench.harness.cli.main import guarded
from bench.validation import hardware_counters, kernel_activities
from bench.validation.hardware_counters import CountersError, ForbiddenError
from bench.validation.kernel_activities import ActivityError
from bench.validation.side_by_side import one_line
from results.show.export import json_text, write_output
from results.show.table import format_time
from results.show.terminal import print_out, say

OK, WRONG_RESULT = 0, 1
CASES = ("matmul/bf16/256",)
COUNTED = (("copy/fp32/1073741824", "triton"), ("matmul/bf16/8192", "torch"))
"""Cases whose bytes are counted, and by whom: torch's copy is one of the driver, which is no kernel to `ncu`. The copy
is so large that what stays in an L2 of 50 MiB is little more than 1 % of it."""

SAMPLES = 3
"""Replays that the profiler records: a graph may hold two thousand launches."""

ROOT = Path(__file__).resolve().parents[2]


def profiled(sampler: Any, on_gpu: bool) -> tuple[list[float], list[kernel_activities.Activity]]:
    """Return the seconds of a few samples while torch's profiler records, and what it recorded."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as recorded:
        seconds = [sampler.sample() for _ in range(SAMPLES)]
    return seconds, kernel_activities.activities_of(recorded.events(), on_gpu)


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
        seen = kernel_activities.timeline(activities, SAMPLES, launches)
    except ActivityError as error:
        return row | {"is_known": False, "verdict": str(error)}
    is_known, said = kernel_activities.verdict(ours.median_s, row["profiled_s"], seen)
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


# ---- counted bytes ------------------------------------------------------------------------------------------------


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
    metrics = hardware_counters.metric_names(listed_metrics(ncu))
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
    command = hardware_counters.ncu_command(ncu, metrics, [*launch, "--device", device.torch_name])
    found = hardware_counters.count(command, metrics, ROOT)
    is_known, said = hardware_counters.verdict(found, work, device.cache_bytes)
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
