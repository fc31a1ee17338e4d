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

There is no mask: `grid` rounds the number of words down to whole tiles, and the launchers reject
any other. Each thread has several accesses of 16 bytes in flight (`Config.accesses`). Offsets have
64 bits.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import (
    ALIGNMENT_BYTES,
    Variant,
    require_contiguous,
    require_shape,
    require_tensors,
)

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


def grid(config: Config, words: int) -> tuple[int, int]:
    """Return programs and steps per program that cover `words` words, rounded down to the same
    tiles for each program.

    Raises:
        ValueError: fewer words than one tile.
    """
    tiles = words // config.block
    if tiles == 0:
        raise ValueError(
            f"bandwidth v1: expected at least {config.block} words for '{config.label}', got "
            f"{words}"
        )
    programs = min(tiles, config.programs or tiles)
    return programs, tiles // programs


def covered(config: Config, words: int) -> int:
    """Return the number of words, of `words`, that a launch accesses."""
    programs, steps = grid(config, words)
    return programs * steps * config.block


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
    operands = {"read": 1, "write": 1, "copy": 2, "triad": 3}
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
            bytes=WORD_BYTES * operands[name] * config.block,
        )
        for name, config in chosen
    )


def read(x: torch.Tensor, *, out: torch.Tensor, config: Config) -> None:
    """Write the sum of the words that each program reads to the first words of `out`; they add up
    to the sum of `x`.
    """
    programs, steps = _grid("read", config, x=x)
    _require_words("read v1", out=out)
    if out.numel() < programs:
        raise ValueError(
            f"read v1: out has {out.numel()} words; expected at least {programs}, one per program"
        )
    variant("read", config).launch(programs, x, out, steps)


def write(*, out: torch.Tensor, factor: int = FACTOR, config: Config) -> None:
    programs, steps = _grid("write", config, out=out)
    variant("write", config).launch(programs, out, steps, factor)


def copy(x: torch.Tensor, *, out: torch.Tensor, config: Config) -> None:
    programs, steps = _grid("copy", config, x=x, out=out)
    variant("copy", config).launch(programs, x, out, steps)


def triad(
    x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor, factor: int = FACTOR, config: Config
) -> None:
    programs, steps = _grid("triad", config, x=x, y=y, out=out)
    variant("triad", config).launch(programs, x, out, steps, y, factor)


def _grid(name: str, config: Config, **tensors: torch.Tensor) -> tuple[int, int]:
    """Return the grid of a launch. Tensors must have the same shape and whole tiles of words."""
    label = f"{name} v1"
    _require_words(label, **tensors)
    words = next(iter(tensors.values())).shape
    for operand, tensor in tensors.items():
        require_shape(label, operand, tensor, words)
    count = words.numel()
    if covered(config, count) != count:
        raise ValueError(
            f"{label}: {count} words; '{config.label}' covers {covered(config, count)}"
        )
    return grid(config, count)


def _require_words(label: str, **tensors: torch.Tensor) -> None:
    require_tensors(label, dtypes=(torch.int32,), **tensors)
    require_contiguous(label, **tensors)
