"""Version 1 of the bandwidth kernels: whole tiles of 32-bit words, 16 bytes per thread and access,
no mask.

Computes, for int32 words with wrap-around, so that every result can be checked exactly:

    read    out_p = sum of the words that program p reads
    write   out_i = factor i
    copy    out = x
    triad   out = x + factor y

Bytes moved, for n words: read 4 n, write 4 n, copy 8 n (half read), triad 12 n (two thirds read).
Each program of the read also stores one word, which is not counted. Counted as in STREAM, without
lines that a store may read first; McCalpin, IEEE TCCA Newsletter, Dec. 1995.

Any bits measure bandwidth equally well, because the arithmetic takes no significant time. The
written words differ from each other, because a memory controller may compress a run of equal ones.

There is no mask: a launch takes whole tiles, as many for each program. Each thread has several
accesses of 16 bytes in flight (`Config.accesses`). Offsets have 64 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, Variant

WORD_BYTES = 4
WORDS_PER_ACCESS = ALIGNMENT_BYTES // WORD_BYTES
FACTOR = 40503  # odd, so that 2^32 words in a row are all different when multiplied by it


@dataclass(frozen=True)
class Config:
    """Launch configuration."""

    warps: int
    accesses: int
    """Accesses of 16 bytes per thread, operand and step, all in flight together."""
    programs: int | None = None
    """Number of programs, each of which takes every `programs`-th tile; None: one program per
    tile.
    """
    policy: str = "default"
    """A key of `POLICIES`."""

    @property
    def width(self) -> int:
        """Words that all threads of a program access together."""
        return 32 * self.warps * WORDS_PER_ACCESS

    @property
    def block(self) -> int:
        """Words per tile."""
        return self.width * self.accesses

    @property
    def label(self) -> str:
        grid = f"{self.programs} programs" if self.programs else "one program per tile"
        return (
            f"{self.warps} warps, {self.accesses} x 16 B per thread, {grid}, {self.policy} policy"
        )


POLICIES = {
    "default": ("", "", ""),
    "streaming": ("evict_first", ".cs", ""),
    "evict-first": ("evict_first", "", "evict_first"),
}
"""Triton's eviction policy of loads, and cache modifier and eviction policy of stores. A load has
no `.cs` in Triton 3.6; PTX says of `ld.cs` that it allocates lines with the policy evict-first (PTX
ISA, Cache Operators)."""
POLICY_CONSTANTS = ("LOAD_EVICT", "STORE_CACHE", "STORE_EVICT")
POLICY_OF = {"read": POLICY_CONSTANTS[:1], "write": POLICY_CONSTANTS[1:]}
"""The constants of kernels that do not take all of them."""


def configs(sm_count: int) -> tuple[Config, ...]:
    """Return the configurations to try on a GPU with `sm_count` multiprocessors."""
    tile_grid = [
        Config(warps, accesses) for warps, accesses in ((4, 1), (4, 4), (8, 2), (8, 8), (16, 4))
    ]
    fixed_grid = [
        Config(warps, accesses, per_sm * sm_count)
        for warps, accesses, per_sm in ((8, 4, 4), (8, 8, 8))
    ]
    streaming = [Config(8, 4, policy="streaming"), Config(8, 8, 8 * sm_count, "streaming")]
    return (*tile_grid, *fixed_grid, *streaming, Config(8, 4, policy="evict-first"))


@triton.jit(do_not_specialize=["steps"])
def read_kernel(
    x_ptr,  # words, programs x steps x BLOCK
    out_ptr,  # one sum per program
    steps,  # tiles per program
    BLOCK: tl.constexpr,  # words per tile
    WIDTH: tl.constexpr,  # words of one access of all threads
    LOAD_EVICT: tl.constexpr,  # eviction policy
):
    program = tl.program_id(0).to(tl.int64)
    start = program * BLOCK
    lanes = tl.arange(0, WIDTH)
    # One sum per word of an access, not of the tile, to leave registers for loads in flight.
    total = tl.zeros((WIDTH,), tl.int32)
    for _ in range(steps):
        for access in tl.static_range(BLOCK // WIDTH):
            total += tl.load(x_ptr + start + access * WIDTH + lanes, eviction_policy=LOAD_EVICT)
        start += tl.num_programs(0).to(tl.int64) * BLOCK
    tl.store(out_ptr + program, tl.sum(total))


@triton.jit(do_not_specialize=["steps", "factor"])
def write_kernel(
    out_ptr,  # words, programs x steps x BLOCK
    steps,  # tiles per program
    factor,  # any odd number
    BLOCK: tl.constexpr,  # words per tile
    STORE_CACHE: tl.constexpr,  # cache modifier
    STORE_EVICT: tl.constexpr,  # eviction policy
):
    """Write factor times its index to every word."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    for _ in range(steps):
        words = (start.to(tl.int32) + lanes) * factor
        tl.store(
            out_ptr + start + lanes, words, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICT
        )
        start += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit(do_not_specialize=["steps", "factor"])
def stream_kernel(
    x_ptr,  # words, programs x steps x BLOCK
    out_ptr,  # as many
    steps,  # tiles per program
    y_ptr,  # as many words to add `factor` times, or None
    factor,  # any odd number, or None
    BLOCK: tl.constexpr,  # words per tile
    LOAD_EVICT: tl.constexpr,  # eviction policy of loads
    STORE_CACHE: tl.constexpr,  # cache modifier of stores
    STORE_EVICT: tl.constexpr,  # eviction policy of stores
):
    """Copy x, or write the triad of x and y."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    for _ in range(steps):
        x = tl.load(x_ptr + start + lanes, eviction_policy=LOAD_EVICT)
        if y_ptr is not None:
            x += factor * tl.load(y_ptr + start + lanes, eviction_policy=LOAD_EVICT)
        tl.store(
            out_ptr + start + lanes, x, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICT
        )
        start += tl.num_programs(0).to(tl.int64) * BLOCK


OPERANDS = {"read": 1, "write": 1, "copy": 2, "triad": 3}
KERNELS = {
    "read": read_kernel,
    "write": write_kernel,
    "copy": stream_kernel,
    "triad": stream_kernel,
}


@cache
def variant(name: str, config: Config) -> Variant:
    constants: dict[str, int | str | None] = {"BLOCK": config.block}
    constants |= {"read": {"WIDTH": config.width}, "copy": {"y_ptr": None, "factor": None}}.get(
        name, {}
    )
    policy = dict(zip(POLICY_CONSTANTS, POLICIES[config.policy], strict=True))
    constants |= {constant: policy[constant] for constant in POLICY_OF.get(name, POLICY_CONSTANTS)}
    return Variant(KERNELS[name], constants, config.warps)


def variants(arch: int) -> tuple[Variant, ...]:
    """Return the variants to audit: the largest tile, which needs the most registers, and one with
    cache hints.
    """
    largest = Config(8, 8)
    hinted = Config(8, 4, policy="streaming")
    chosen = [(name, largest) for name in KERNELS] + [(name, hinted) for name in KERNELS]
    return tuple(
        replace(
            variant(name, config),
            op=name,
            dtype="int32",
            shape_class=f"{config.warps} warps, {config.accesses} x 16 B, {config.policy}",
            elements=config.block,
            bytes=WORD_BYTES * OPERANDS[name] * config.block,
        )
        for name, config in chosen
    )


def launch_of(
    mix: str, config: Config, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor
) -> tuple[Callable[[], None], int]:
    """Return a launch on int32 words, and the bytes that it moves.

    `x`, `y` and `out` have equally many words, at least one tile. Programs have equally many tiles,
    so some words at the end may be left out. The read writes the sum of each program to `out`; the
    sums add up to that of the words read.
    """
    tiles = out.numel() // config.block
    programs = min(tiles, config.programs or tiles)
    steps = tiles // programs
    arguments: dict[str, tuple[torch.Tensor | int, ...]] = {
        "read": (x, out, steps),
        "write": (out, steps, FACTOR),
        "copy": (x, out, steps),
        "triad": (x, out, steps, y, FACTOR),
    }
    launch = partial(variant(mix, config).launch, programs, *arguments[mix])
    return launch, WORD_BYTES * OPERANDS[mix] * programs * steps * config.block
