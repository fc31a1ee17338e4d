"""Memory bandwidth of this machine for each mix of reads and writes, and its launch floor.

A GPU runs torch's kernels and the Triton kernels of `kernels/bandwidth` in several configurations;
a CPU runs torch's. Bytes are counted as in STREAM: the operands, without cache lines that a store
may read first.

Source: McCalpin, Memory bandwidth and machine balance in current high performance computers, IEEE
TCCA Newsletter, December 1995, for copy and triad, and for arrays of at least four times the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bench.harness.calibrate.setup import BRIEF, Candidate, Measured, NotMeasuredError, Rate, Setup
from bench.harness.device.device import MIB, Device
from bench.harness.providers.registry import has_triton
from bench.harness.timing.samplers import Call
from roofline.machine import MIX_RATIOS

if TYPE_CHECKING:
    from torch import Tensor

    Arrays = tuple[Tensor, Tensor, Tensor]
    """x, y and out in fp32, of equal length."""

MIN_CACHES = 4  # array size in last-level caches, the rule of STREAM
MIN_CPU_BYTES = 64 * MIB  # array size, so a launch takes a millisecond or more
MIN_GPU_BYTES = 4096 * MIB
MIN_GPU_CACHES = 20
"""Array size on a GPU, in bytes and in caches: L2 retains at most a twentieth of the bytes of the
previous launch.
"""

ARRAYS_IN_MEMORY = 8  # free memory must hold this many arrays
FACTOR = 0.5  # of the triad x + factor y


def launch(setup: Setup) -> list[Measured]:
    """Return the time of an empty kernel on a GPU, and of a copy of one element on a CPU."""
    import torch

    x, out = (torch.ones(1, device=setup.device.torch_name) for _ in range(2))
    what = "copy of one element"
    call = partial(out.copy_, x)
    if setup.device.type == "cuda" and has_triton():
        from kernels import launch_floor

        what = "triton v1, empty kernel"
        call = partial(launch_floor.VARIANT.launch, 1, x)
    elif setup.device.is_gpu:  # a copy would be a node of the copy engine, and not a kernel
        what = "addition to one element"
        call = partial(out.add_, x)
    rate = setup.timed(Candidate(what, 0, lambda: call), setup.effort.confirming_s)
    name = f"{what}, {'per graph node' if rate.samples.method == 'graph' else 'back to back'}"
    rate = replace(rate, candidate=replace(rate.candidate, name=name))
    no_work = {"flops": 0, "bytes_read": 0, "bytes_written": 0}
    return [setup.measured("launch", "launch", rate, "launch", "fp32", {"n": 1}, **no_work)]


def bandwidth(setup: Setup, mixes: Sequence[str]) -> list[Measured]:
    size_bytes = operand_bytes(setup.device)
    arrays = filled(setup.device, size_bytes)
    measured = []
    for mix in mixes:
        try:
            rate = setup.fastest_of(candidates(mix, setup.device, arrays))
        except NotMeasuredError as error:
            setup.missing.append(f"{mix}: {error}")
            continue
        work = _work(rate, mix)
        measured.append(
            setup.measured("bandwidth", mix, rate, mix, "fp32", {"n": size_bytes // 4}, **work)
        )
    return measured


def cache(setup: Setup) -> list[Measured]:
    """Return the bandwidth of the last level of cache: the fastest warm read or copy of half of
    it.
    """
    import torch

    device = setup.device
    half_bytes = device.cache_bytes // 2
    x, y, out = filled(device, half_bytes // 2)
    whole = torch.cat((x, y))
    warm = []
    for mix, operands in (("read", (whole, whole, whole)), ("copy", (x, y, out))):
        for candidate in candidates(mix, device, operands):
            if candidate.work <= half_bytes:  # a read of two arrays would fill the level
                name = f"{candidate.name}, {mix}"
                warm.append(replace(candidate, name=name, cache="warm"))
    rate = replace(setup, effort=BRIEF).fastest_of(warm)
    work = _work(rate, rate.candidate.name.rpartition(", ")[2])
    level = "L2 cache" if device.is_gpu else "last-level cache"
    shape = {"n": half_bytes // 4}
    return [setup.measured("cache-bandwidth", level, rate, "cache", "fp32", shape, **work)]


def _work(rate: Rate, mix: str) -> dict[str, int]:
    read, written = MIX_RATIOS[mix]
    moved = rate.candidate.work
    bytes_written = moved * written // (read + written)
    return {"flops": 0, "bytes_read": moved - bytes_written, "bytes_written": bytes_written}


def operand_bytes(device: Device) -> int:
    """Return the bytes of each of the three arrays, a multiple of 1 MiB."""
    needed = MIN_CACHES * device.cache_bytes
    on_gpu = max(MIN_GPU_BYTES, MIN_GPU_CACHES * device.cache_bytes)
    wanted = on_gpu if device.is_gpu else max(MIN_CPU_BYTES, needed)
    free = device.free_bytes()
    affordable = min(wanted, free // ARRAYS_IN_MEMORY) // MIB * MIB
    if affordable < needed // MIB * MIB or not affordable:
        raise NotMeasuredError(
            f"memory bandwidth needs arrays of {needed / 1e6:.0f} MB, {MIN_CACHES} times the "
            f"cache, and {ARRAYS_IN_MEMORY} times as much free memory; {free / 1e6:.0f} MB are "
            "free"
        )
    return affordable


def filled(device: Device, size_bytes: int) -> Arrays:
    """Return three arrays of random bits on the device.

    Pages that were never written would all be read from one cached page of zeros. On a CPU, each
    thread first writes its part, because a page is placed on the NUMA node of that thread. The
    values are in [0, 1) there, because sums of denormal numbers are slow.
    """
    import torch

    generator = torch.Generator(device=device.torch_name).manual_seed(0)

    def array() -> Tensor:
        if not device.is_gpu:
            # uniform_ runs on one thread.
            return torch.empty(size_bytes // 4).fill_(0.0).uniform_(generator=generator)
        words = torch.empty(size_bytes // 8, dtype=torch.int64, device=device.torch_name)
        return words.random_(-(2**63), None, generator=generator).view(torch.float32)

    return array(), array(), array()


def candidates(mix: str, device: Device, arrays: Arrays) -> list[Candidate]:
    """Return the configurations of a mix: torch's in fp32 (several on a CPU, because none is tuned)
    and Triton's.
    """
    import torch

    x, y, out = arrays
    number = torch.empty((), device=device.torch_name)
    calls: dict[str, list[tuple[str, int, Call]]] = {
        "read": [
            ("torch sum", 1, lambda: torch.sum(x, 0, out=number)),
            ("torch amax", 1, lambda: torch.amax(x, 0, out=number)),
            ("torch dot of two arrays", 2, lambda: torch.dot(x, y, out=number)),
        ],
        "write": [
            ("torch fill_", 1, lambda: out.fill_(FACTOR)),
            ("torch zero_", 1, lambda: out.zero_()),
        ],
        "copy": [
            ("torch copy_", 2, lambda: out.copy_(x)),
            ("torch mul by a number", 2, lambda: torch.mul(x, FACTOR, out=out)),
        ],
        "triad": [
            ("torch add with alpha", 3, lambda: torch.add(x, y, alpha=FACTOR, out=out)),
            ("torch add", 3, lambda: torch.add(x, y, out=out)),
        ],
    }
    known = [_candidate(name, operands * x.nbytes, call) for name, operands, call in calls[mix]]
    own = _triton_candidates(mix, device, arrays) if device.type == "cuda" and has_triton() else []
    return [known[0], *own] if device.is_gpu else known


def _candidate(name: str, moved: int, call: Call) -> Candidate:
    return Candidate(name, moved, lambda: call, "cold")


def _triton_candidates(mix: str, device: Device, arrays: Arrays) -> list[Candidate]:
    import torch

    from kernels import bandwidth as tiles

    x, y, out = (array.view(torch.int32) for array in arrays)
    candidates = []
    for config in tiles.configs(device.sm_count or 1):
        call, moved = tiles.launch_of(mix, config, x, y, out)
        candidates.append(_candidate(f"triton v1, {config.label}", moved, call))
    return candidates
