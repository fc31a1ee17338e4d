"""Version 1 of the bandwidth kernels: whole tiles of 32-bit words, 16 bytes a thread and access, no mask.

Computes, for int32 words with wrap-around, so that every result can be checked exactly:

    read    out_p = sum of the words that program p reads
    write   out_i = factor i
    copy    out = x
    triad   out = x + factor y

Bytes moved, for n words: read 4 n, write 4 n, copy 8 n (half read), triad 12 n (two thirds read). Each program of the
read also stores one word, which is not counted.
Counted as STREAM counts them, without lines that a store may read first; McCalpin, IEEE TCCA Newsletter, Dec. 1995.

The random bits of any dtype are as good as these words: nothing here is arithmetic worth its time. The words
written differ from each other, because a memory controller may shorten a stretch of equal ones.

Changed against the last version: nothing, this is the starting point. It already has
- no mask at all: `grid` rounds the count of words down to whole tiles, and the launchers refuse any other;
- several accesses of 16 bytes in flight for each thread, `Config.accesses`;
- 64-bit offsets.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, Variant, require_contiguous, require_shape, require_tensors

WORD_BYTES = 4
WORDS_AN_ACCESS = ALIGNMENT_BYTES // WORD_BYTES
FACTOR = 40503  # odd, so that 2^32 words in a row are all different when multiplied by it


@dataclass(frozen=True)
class Config:
    """How a kernel walks over memory."""

    warps: int
    """Warps a program."""
    accesses: int
    """Accesses of 16 bytes a thread makes to each operand in one step, all in flight together."""
    programs: int | None = None
    """Programs that go through all tiles in turns; None: one program a tile."""
    policy: str = "default"
    """A key of `POLICIES`."""

    @property
    def width(self) -> int:
        """Words that all threads of a program take with one access."""
        return 32 * self.warps * WORDS_AN_ACCESS

    @property
    def block(self) -> int:
        """Words a tile."""
        return self.width * self.accesses

    @property
    def words(self) -> str:
        """The configuration for a reader."""
        how = f"{self.programs} programs in turns" if self.programs else "a program a tile"
        return f"{self.warps} warps, {self.accesses} x 16 B a thread, {how}, {self.policy} policy"


POLICIES = {
    "default": ("", "", ""),
    "streaming": ("evict_first", ".cs", ""),
    "evict-first": ("evict_first", "", "evict_first"),
}
"""Triton's eviction policy of loads, and cache modifier and eviction policy of stores. A load has no `.cs` in Triton
3.6; PTX says of `ld.cs` that it allocates lines with the policy evict-first (PTX ISA, Cache Operators)."""
POLICY_CONSTANTS = ("LOAD_EVICT", "STORE_CACHE", "STORE_EVICT")
POLICY_OF = {"read": POLICY_CONSTANTS[:1], "write": POLICY_CONSTANTS[1:]}
"""The constants that a kernel has, where it does not have all."""


def configs(sm_count: int) -> tuple[Config, ...]:
    """Return the configurations worth trying on a GPU with `sm_count` multiprocessors."""
    one_shot = [Config(warps, accesses) for warps, accesses in ((4, 1), (4, 4), (8, 2), (8, 8), (16, 4))]
    in_turns = [Config(warps, accesses, per_sm * sm_count) for warps, accesses, per_sm in ((8, 4, 4), (8, 8, 8))]
    streaming = [Config(8, 4, policy="streaming"), Config(8, 8, 8 * sm_count, "streaming")]
    return (*one_shot, *in_turns, *streaming, Config(8, 4, policy="evict-first"))


def grid(config: Config, words: int) -> tuple[int, int]:
    """Return programs and steps that cover as many of `words` words as whole tiles for every program allow.

    Raises:
        ValueError: not even one tile fits.
    """
    tiles = words // config.block
    if tiles == 0:
        raise ValueError(f"bandwidth v1: {words} words; a tile of '{config.words}' has {config.block}")
    programs = min(tiles, config.programs or tiles)
    return programs, tiles // programs


def covered(config: Config, words: int) -> int:
    """Return how many of `words` words a launch touches."""
    programs, steps = grid(config, words)
    return programs * steps * config.block


@triton.jit(do_not_specialize=["steps"])
def read_kernel(
    x_ptr,  # words, programs x steps x BLOCK
    out_ptr,  # one sum a program
    steps,  # tiles a program
    BLOCK: tl.constexpr,  # words a tile
    WIDTH: tl.constexpr,  # words of one access of all threads
    LOAD_EVICT: tl.constexpr,  # eviction policy
):
    """Write the sum of every `programs`-th tile."""
    program = tl.program_id(0).to(tl.int64)
    start = program * BLOCK
    lanes = tl.arange(0, WIDTH)
    # One sum for each word of an access, not for each of the tile: the registers are for loads in flight.
    total = tl.zeros((WIDTH,), tl.int32)
    for _ in range(steps):
        for access in tl.static_range(BLOCK // WIDTH):
            total += tl.load(x_ptr + start + access * WIDTH + lanes, eviction_policy=LOAD_EVICT)
        start += tl.num_programs(0).to(tl.int64) * BLOCK
    tl.store(out_ptr + program, tl.sum(total))


@triton.jit(do_not_specialize=["steps", "factor"])
def write_kernel(
    out_ptr,  # words, programs x steps x BLOCK
    steps,  # tiles a program
    factor,  # any odd number
    BLOCK: tl.constexpr,  # words a tile
    STORE_CACHE: tl.constexpr,  # cache modifier
    STORE_EVICT: tl.constexpr,  # eviction policy
):
    """Write factor times its own number to every word."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    for _ in range(steps):
        words = (start.to(tl.int32) + lanes) * factor
        tl.store(out_ptr + start + lanes, words, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICT)
        start += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit(do_not_specialize=["steps"])
def copy_kernel(
    x_ptr,  # words, programs x steps x BLOCK
    out_ptr,  # as many
    steps,  # tiles a program
    BLOCK: tl.constexpr,  # words a tile
    LOAD_EVICT: tl.constexpr,  # eviction policy of loads
    STORE_CACHE: tl.constexpr,  # cache modifier of stores
    STORE_EVICT: tl.constexpr,  # eviction policy of stores
):
    """Write every word of x."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    for _ in range(steps):
        x = tl.load(x_ptr + start + lanes, eviction_policy=LOAD_EVICT)
        tl.store(out_ptr + start + lanes, x, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICT)
        start += tl.num_programs(0).to(tl.int64) * BLOCK


@triton.jit(do_not_specialize=["steps", "factor"])
def triad_kernel(
    x_ptr,  # words, programs x steps x BLOCK
    y_ptr,  # as many
    out_ptr,  # as many
    steps,  # tiles a program
    factor,  # any odd number
    BLOCK: tl.constexpr,  # words a tile
    LOAD_EVICT: tl.constexpr,  # eviction policy of loads
    STORE_CACHE: tl.constexpr,  # cache modifier of stores
    STORE_EVICT: tl.constexpr,  # eviction policy of stores
):
    """Write x + factor y for every word."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    for _ in range(steps):
        x = tl.load(x_ptr + start + lanes, eviction_policy=LOAD_EVICT)
        y = tl.load(y_ptr + start + lanes, eviction_policy=LOAD_EVICT)
        tl.store(out_ptr + start + lanes, x + factor * y, cache_modifier=STORE_CACHE, eviction_policy=STORE_EVICT)
        start += tl.num_programs(0).to(tl.int64) * BLOCK


KERNELS = {
    "read": read_kernel,
    "write": write_kernel,
    "copy": copy_kernel,
    "triad": triad_kernel,
}


@cache
def variant(name: str, config: Config) -> Variant:
    """Return a kernel of `KERNELS` as compiled for a configuration."""
    constants: dict[str, int | str] = {"BLOCK": config.block}
    if name == "read":
        constants["WIDTH"] = config.width
    policy = dict(zip(POLICY_CONSTANTS, POLICIES[config.policy], strict=True))
    constants |= {constant: policy[constant] for constant in POLICY_OF.get(name, POLICY_CONSTANTS)}
    return Variant(KERNELS[name], constants, {"num_warps": config.warps, "enable_fp_fusion": True})


def variants(arch: int) -> tuple[Variant, ...]:
    """Return what an audit looks at, the same for every architecture.

    Of the many configurations it is the largest tile, which needs most registers, and one with a hint to the cache.
    """
    operands = {"read": 1, "write": 1, "copy": 2, "triad": 3}
    largest, hinted = Config(8, 8), Config(8, 4, policy="streaming")
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
    """Write the sum of what each program reads to the first words of `out`; together they are the sum of `x`."""
    programs, steps = _grid("read", config, x=x)
    _require_words("read v1", out=out)
    if out.numel() < programs:
        raise ValueError(f"read v1: out has {out.numel()} words; each of {programs} programs writes one")
    variant("read", config).launch(programs, x, out, steps)


def write(*, out: torch.Tensor, factor: int = FACTOR, config: Config) -> None:
    """Write factor i to word i of `out`."""
    programs, steps = _grid("write", config, out=out)
    variant("write", config).launch(programs, out, steps, factor)


def copy(x: torch.Tensor, *, out: torch.Tensor, config: Config) -> None:
    """Write `x` to `out`."""
    programs, steps = _grid("copy", config, x=x, out=out)
    variant("copy", config).launch(programs, x, out, steps)


def triad(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor, factor: int = FACTOR, config: Config) -> None:
    """Write x + factor y to `out`."""
    programs, steps = _grid("triad", config, x=x, y=y, out=out)
    variant("triad", config).launch(programs, x, y, out, steps, factor)


def _grid(name: str, config: Config, **tensors: torch.Tensor) -> tuple[int, int]:
    """Return the grid of a launch; refuse tensors that are not equally many words, in whole tiles."""
    label = f"{name} v1"
    _require_words(label, **tensors)
    words = next(iter(tensors.values())).shape
    for operand, tensor in tensors.items():
        require_shape(label, operand, tensor, words)
    count = words.numel()
    if covered(config, count) != count:
        raise ValueError(f"{label}: {count} words; '{config.words}' covers {covered(config, count)}")
    return grid(config, count)


def _require_words(label: str, **tensors: torch.Tensor) -> None:
    require_tensors(label, dtypes=(torch.int32,), **tensors)
    require_contiguous(label, **tensors)
