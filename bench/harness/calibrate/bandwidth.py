"""Memory bandwidth of this machine: the streams that move bytes, for each mix of reads and writes.

A GPU runs the Triton kernels of `kernels/bandwidth` in several configurations and torch's own; a CPU runs torch's.
Bytes are counted as STREAM counts them: what the operation names, without lines that a store may read first.

Source: McCalpin, Memory bandwidth and machine balance in current high performance computers, IEEE TCCA Newsletter,
December 1995, for copy and triad, and for arrays of at least four times the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.calibrate.search import Candidate, Launch, NotMeasuredError
from bench.harness.device.device import MIB, Device
from bench.harness.providers.registry import has_triton
from bench.harness.timing.samplers import Call

if TYPE_CHECKING:
    from torch import Tensor

    Function = Callable[[Tensor, Tensor, Tensor], object]
    """Works on x, y and out."""

MIXES = ("read", "write", "copy", "triad")
"""Reads to writes: 1:0, 0:1, 1:1, 2:1."""

OPERANDS = {"read": 1, "write": 1, "copy": 2, "triad": 3}
"""Arrays that a launch of a mix goes over."""

CACHES = 4
"""Each array is at least this many times the last-level cache.

Source: the rule of STREAM, McCalpin, IEEE TCCA Newsletter, December 1995."""

CPU_OPERAND_BYTES = 64 * MIB
"""Least size of an array on a CPU, so that a launch lasts a millisecond or more."""

GPU_OPERAND_BYTES, GPU_CACHES = 4096 * MIB, 20
"""Least size of an array on a GPU, and least multiple of its L2: a launch lasts a millisecond or more, and what the
L2 may keep from the launch before is a twentieth of the bytes at most."""

MEMORY_SHARE = 8
"""One array takes at most this fraction of the free memory, `1 / MEMORY_SHARE`."""

FACTOR = 0.5
"""The number in torch's launches, as in the triad x + factor y."""


@dataclass(frozen=True)
class Stream:
    """One way to move bytes, of any size up to that of its arrays."""

    mix: str
    """One of `MIXES`."""
    name: str
    """The configuration in words."""
    launch: Callable[[int, int], Launch]
    """`launch(operand_bytes, start_byte)` works on that stretch of each array, or on a little less of it where it must
    be whole tiles. Raises `ValueError` where the stretch is too small for the configuration."""


def operand_bytes(device: Device) -> int:
    """Return the bytes of each of the three arrays on a device, whole MiB.

    Raises:
        NotMeasuredError: so little memory is free that an array would be less than `CACHES` times the cache.
    """
    needed = CACHES * device.cache_bytes
    if device.is_gpu:
        wanted = max(GPU_OPERAND_BYTES, GPU_CACHES * device.cache_bytes)
    else:
        wanted = max(CPU_OPERAND_BYTES, needed)
    free = device.free_bytes()
    affordable = min(wanted, free // MEMORY_SHARE) // MIB * MIB
    if affordable < needed // MIB * MIB or not affordable:
        raise NotMeasuredError(
            f"memory bandwidth needs arrays of {needed / 1e6:.0f} MB, {CACHES} times the cache; "
            f"{free / 1e6:.0f} MB are free, and one array takes at most 1/{MEMORY_SHARE} of that"
        )
    return affordable


class Arrays:
    """Three arrays on the device, every page of them written with random bits before anything is read.

    Pages that were never written all read from one page of zeros, which stays in the cache.
    """

    def __init__(self, device: Device, size_bytes: int, seed: int = 0) -> None:
        """Allocate and fill.

        Args:
            device: where.
            size_bytes: of each array, a multiple of 8.
            seed: of the random bits.
        """
        import torch

        self.size_bytes = size_bytes
        generator = torch.Generator(device=device.torch_name if device.is_gpu else "cpu").manual_seed(seed)
        self._arrays = [self._filled(device, generator) for _ in range(3)]

    def _filled(self, device: Device, generator: Any) -> Tensor:
        """Return one array of bytes; without CUDA those of fp32 in [0, 1): sums of denormal numbers are slow."""
        import torch

        if device.is_gpu:
            words = torch.empty(self.size_bytes // 8, dtype=torch.int64, device=device.torch_name)
            return words.random_(-(2**63), None, generator=generator).view(torch.uint8)
        numbers = torch.rand(self.size_bytes // 4, dtype=torch.float32, generator=generator)
        return numbers.to(device.torch_name).view(torch.uint8)

    def views(self, dtype: Any, operand_bytes: int, start_byte: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same stretch of x, y and out as tensors of `dtype`."""
        x, y, out = (array[start_byte : start_byte + operand_bytes].view(dtype) for array in self._arrays)
        return x, y, out


def streams(device: Device, arrays: Arrays) -> list[Stream]:
    """Return all streams of a device, for every mix; those that need no compiler come first, so that they are tried."""
    own = triton_streams(device, arrays) if device.type == "cuda" and has_triton() else []
    return [*torch_streams(device, arrays), *own]


def torch_streams(device: Device, arrays: Arrays) -> list[Stream]:
    """Return what torch offers for each mix, in fp32; without Triton several ways, because none of them is tuned."""
    import torch

    number = torch.empty((), device=device.torch_name)
    found: list[tuple[str, str, int, Function]] = [
        ("read", "torch sum", 1, lambda x, y, out: torch.sum(x, 0, out=number)),
        ("write", "torch fill_", 1, lambda x, y, out: out.fill_(FACTOR)),
        ("copy", "torch copy_", 2, lambda x, y, out: out.copy_(x)),
        ("triad", "torch add with alpha", 3, lambda x, y, out: torch.add(x, y, alpha=FACTOR, out=out)),
    ]
    if not device.is_gpu:
        found += [
            ("read", "torch amax", 1, lambda x, y, out: torch.amax(x, 0, out=number)),
            ("read", "torch dot of two arrays", 2, lambda x, y, out: torch.dot(x, y, out=number)),
            ("write", "torch zero_", 1, lambda x, y, out: out.zero_()),
            ("copy", "torch mul by a number", 2, lambda x, y, out: torch.mul(x, FACTOR, out=out)),
            ("triad", "torch add", 3, lambda x, y, out: torch.add(x, y, out=out)),
        ]
    return [_torch_stream(arrays, *entry) for entry in found]


def _torch_stream(arrays: Arrays, mix: str, name: str, operands: int, function: Function) -> Stream:
    def launch(operand_bytes: int, start_byte: int) -> Launch:
        import torch

        x, y, out = arrays.views(torch.float32, operand_bytes, start_byte)
        return Launch(lambda: function(x, y, out), operands * operand_bytes)

    return Stream(mix, name, launch)


def triton_streams(device: Device, arrays: Arrays) -> list[Stream]:
    """Return the Triton kernels for each mix in every configuration worth trying, on 32-bit words."""
    import torch

    from kernels.bandwidth import v1_tiles as tiles

    smallest_tile = min(config.block for config in tiles.configs(device.sm_count or 1))
    sums = torch.empty(arrays.size_bytes // 4 // smallest_tile, dtype=torch.int32, device=device.torch_name)

    def stream(mix: str, config: Any) -> Stream:
        def launch(operand_bytes: int, start_byte: int) -> Launch:
            size_bytes = tiles.WORD_BYTES * tiles.covered(config, operand_bytes // tiles.WORD_BYTES)
            call = _tile_launch(mix, *arrays.views(torch.int32, size_bytes, start_byte), sums, config)
            return Launch(call, OPERANDS[mix] * size_bytes)

        return Stream(mix, f"triton v1, {config.words}", launch)

    return [stream(mix, config) for mix in MIXES for config in tiles.configs(device.sm_count or 1)]


def _tile_launch(mix: str, x: Tensor, y: Tensor, out: Tensor, sums: Tensor, config: Any) -> Call:
    from kernels.bandwidth import v1_tiles as tiles

    return {
        "read": partial(tiles.read, x, out=sums, config=config),
        "write": partial(tiles.write, out=out, config=config),
        "copy": partial(tiles.copy, x, out=out, config=config),
        "triad": partial(tiles.triad, x, y, out=out, config=config),
    }[mix]


def launches_to_compile(device: Device, size_bytes: int) -> dict[str, Call]:
    """Return the launches of all Triton kernels here, by a name of each, on tensors that have no memory.

    Args:
        device: the GPU.
        size_bytes: of each operand.
    """
    import torch

    from kernels.bandwidth import v1_tiles as tiles

    def absent(elements: int) -> Tensor:
        return torch.empty(elements, dtype=torch.int32, device="meta")

    found: dict[str, Call] = {}
    for config in tiles.configs(device.sm_count or 1):
        words = tiles.covered(config, size_bytes // tiles.WORD_BYTES)
        sums = absent(size_bytes // tiles.WORD_BYTES // config.block + 1)
        operands = (absent(words), absent(words), absent(words))
        found |= {f"{mix}, {config.words}": _tile_launch(mix, *operands, sums, config) for mix in MIXES}
    return found


def candidates_of(mix: str, among: Iterable[Stream], size_bytes: int) -> list[Candidate]:
    """Return the streams of a mix as candidates that work on `size_bytes` of each operand."""
    return [Candidate(stream.name, partial(stream.launch, size_bytes, 0)) for stream in among if stream.mix == mix]
