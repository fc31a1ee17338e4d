"""Counts the memory traffic of single operations of a step: a child under `ncu` replays each in a range of its own."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.profile.counters.ncu import (
    READ,
    WRITTEN,
    CountedKernel,
    CountersError,
    counted_by,
    found,
    is_listed,
    listed_metrics,
    metric_name,
    ncu_command,
)
from bench.harness.profile.replay import caught, copied
from bench.harness.profile.step import ProfiledStep, state_kept

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.profile.account import Call

HITS, MISSES = "lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum"
TENSOR, DURATION = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum"
OPTIONAL = (HITS, MISSES, TENSOR, DURATION)
"""Asked for where the GPU lists them; what is made of them is unknown elsewhere."""


@dataclass(frozen=True)
class Counters:
    """What was counted of one call, all of its kernels together, each begun with empty caches."""

    dram_read: int
    """Bytes read from the GPU's memory."""
    dram_written: int
    """Bytes written to it; what still lies in the cache at the end is not."""
    l2_hit_rate: float | None
    """Share of the sectors looked up in the L2 cache that were there, from 0 to 1."""
    tensor_share: float | None
    """Share of the time in which the tensor pipes were busy, from 0 to 1."""


def range_name(place: int, call: Call) -> str:
    """Return the name of the range around a call: its place, and a checksum of what it is."""
    return f"ridgepoint {place} {zlib.crc32(repr((call.op, call.shapes, call.dtypes)).encode()):08x}"


def replay_in_ranges(step: ProfiledStep, calls: Sequence[Call], places: Sequence[int]) -> None:
    """Launch some calls of a step, each in a range of its own where the profiler looks: what the child does.

    Args:
        step: it is run once to catch the arguments.
        calls: all calls of the step.
        places: of the calls to launch.

    Raises:
        OtherStepError: the step now calls something else at one of the places.
    """
    import torch

    with state_kept(step.target), torch.no_grad():
        found = caught(step, calls, set(places))
        for place in places:
            func, args, kwargs = found.pop(place)
            args, kwargs = copied(args, kwargs)
            func(*args, **kwargs)  # what is loaded and chosen at the first call is not counted
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda.nvtx.range_push(range_name(place, calls[place]))
            func(*args, **kwargs)
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()


def counters_of(
    calls: Sequence[Call], places: Sequence[int], launch: Sequence[str], device: Device
) -> dict[int, Counters]:
    """Return what the GPU counted of some calls by their places; those that launch no kernel are left out.

    Args:
        calls: all calls of the step.
        places: of the calls to count.
        launch: arguments of `python -m bench` for the child, which ends in `replay_in_ranges`.
        device: the device.

    Raises:
        CountersError: nothing can be counted here; the message says why in one line.
    """
    if device.type != "cuda":
        raise CountersError("that needs an NVIDIA GPU")
    ncu = found()
    listed = listed_metrics(ncu)
    names = {metric: metric_name(metric, listed) for metric in (READ, WRITTEN)}
    names |= {metric: metric for metric in OPTIONAL if not listed or is_listed(metric, listed)}
    command = [sys.executable, "-m", "bench", *launch, "--ranges", ",".join(map(str, places))]
    kernels = counted_by(
        ncu_command(ncu, list(names.values()), command, has_ranges=True), list(names.values()), Path.cwd()
    )
    by_range: dict[str, list[CountedKernel]] = {}
    for kernel in kernels:
        own = re.search(r"ridgepoint \d+ [0-9a-f]{8}", kernel.ranges)
        if own is None:
            raise CountersError("ncu does not tell the NVTX range of a kernel: it is too old")
        by_range.setdefault(own[0], []).append(kernel)
    asked = {range_name(place, calls[place]): place for place in places}
    if not by_range.keys() <= asked.keys():
        raise CountersError("the step is another one each time: what was counted is not what was timed")
    return {asked[name]: _summed(some, names) for name, some in by_range.items()}


def _summed(kernels: Sequence[CountedKernel], names: Mapping[str, str]) -> Counters:
    """Return the sum over the kernels of a call; shares are weighted by what they are shares of."""

    def total(metric: str) -> float:
        return sum(kernel.values[names[metric]] for kernel in kernels)

    hit_rate = tensor = None
    if HITS in names and MISSES in names and total(HITS) + total(MISSES):
        hit_rate = total(HITS) / (total(HITS) + total(MISSES))
    if TENSOR in names and DURATION in names and total(DURATION):
        busy = sum(kernel.values[TENSOR] * kernel.values[DURATION] for kernel in kernels)
        tensor = busy / total(DURATION) / 100
    return Counters(round(total(READ)), round(total(WRITTEN)), hit_rate, tensor)
