"""Version 1 of the FMA kernel: independent chains of x <- a x + b in registers, written once at the end.

FLOPs   2 n UNROLL iterations for n chain elements, one product and one sum a step.
Bytes   2 n w, each element read once and written once, and two coefficients: nothing beside the FLOPs.

Arithmetic: the sum is written as an explicit fused multiply-add, so the count of instructions does not depend on the
fusion of the compiler. In the machine code of sm_80 to sm_100 a step of one element is one FFMA (fp32), one
DFMA (fp64) or half an HFMA2 (fp16, bf16); sm_100 also pairs fp32 into FFMA2. A loop adds three to a dozen other
instructions to `UNROLL` steps of all chains, about one percent.

The coefficients come from memory, so the compiler cannot work the loop out. `COEFFICIENTS` contract, |a| < 1, so
every start stays within a few units; and a is so close to -1 that rounding keeps a chain jumping from one side of
the fixed point to the other. A chain that settled would draw less power than real work, and clock higher.

Changed against the last version: nothing, this is the starting point.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, require_contiguous, require_shape, require_tensors

UNROLL = 32  # steps of every chain between two tests of the loop
NAMES = DTYPES | {torch.float64: "fp64"}  # the dtypes that have such an instruction, with Triton's name of each
COEFFICIENTS = {
    torch.float64: (-(1 - 2.0**-40), 1.0),
    torch.float32: (-(1 - 2.0**-22), 1.0),
    torch.float16: (-(1 - 2.0**-11), 1.0),
    torch.bfloat16: (-(1 - 2.0**-8), 1.0),
}
"""a and b by dtype; both are exact in the dtype."""


@dataclass(frozen=True)
class Config:
    """How the chains are laid out."""

    warps: int
    """Warps a program."""
    chains: int
    """Chain elements a thread: values whose steps do not wait for each other."""
    threads_per_sm: int
    """Threads that all programs together put on a multiprocessor; at most 2048 are there at once."""

    @property
    def block(self) -> int:
        """Chain elements a program."""
        return 32 * self.warps * self.chains

    @property
    def words(self) -> str:
        """The configuration for a reader."""
        return f"{self.chains} chains a thread, {self.warps} warps a program, {self.threads_per_sm} threads an SM"

    def elements(self, sm_count: int) -> int:
        """Return the chain elements of a launch that fills `sm_count` multiprocessors evenly."""
        return sm_count * (self.threads_per_sm // (32 * self.warps)) * self.block


CONFIGS = tuple(
    Config(warps, chains, threads)
    for chains in (16, 32)
    for warps, threads in ((4, 512), (8, 512), (4, 1024), (8, 1024), (8, 2048))
)
"""Worth trying. A packed 16-bit instruction takes two chains, and FFMA2 too: eight of it are left of 16 chains."""


@triton.jit(do_not_specialize=["iterations"])
def fma_kernel(
    coefficients_ptr,  # a, then b
    x_ptr,  # starts of the chains, BLOCK a program
    out_ptr,  # ends of the chains, BLOCK a program
    iterations,  # rounds of UNROLL steps
    BLOCK: tl.constexpr,  # chain elements a program, a power of two
    UNROLL: tl.constexpr,  # steps a round
):
    """Write what UNROLL x iterations steps of x <- a x + b make of every element."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(coefficients_ptr)
    b = tl.load(coefficients_ptr + 1)
    x = tl.load(x_ptr + offsets)
    for _ in range(iterations):
        for _step in tl.static_range(UNROLL):
            x = tl.fma(x, a, b)
    tl.store(out_ptr + offsets, x)


@cache
def variant(config: Config) -> Variant:
    """Return the kernel as compiled for a configuration; the dtype is that of the tensors."""
    return Variant(
        kernel=fma_kernel,
        constants={"BLOCK": config.block, "UNROLL": UNROLL},
        options={"num_warps": config.warps, "enable_fp_fusion": True},
    )


def variants(arch: int) -> tuple[Variant, ...]:
    """Return what an audit looks at, the same for every architecture: fewest and most chains in each dtype.

    An element is one step of one chain; memory moves nothing for it.
    """
    chosen = {config.chains: config for config in CONFIGS if config.warps == 8}
    return tuple(
        replace(
            variant(config),
            op="fma",
            dtype=name,
            shape_class=f"{config.chains} chains, {config.warps} warps",
            elements=config.block * UNROLL,
        )
        for config in chosen.values()
        for name in NAMES.values()
    )


def coefficients(dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a and b of a dtype as the kernel reads them.

    Raises:
        ValueError: the dtype has no such instruction.
    """
    if dtype not in COEFFICIENTS:
        raise ValueError(f"fma v1: dtype {dtype}; allowed are {', '.join(str(known) for known in NAMES)}")
    return torch.tensor(COEFFICIENTS[dtype], dtype=dtype, device=device)


def flops(elements: int, iterations: int) -> int:
    """Return the FLOPs of a launch; a fused multiply-add counts as 2."""
    return 2 * elements * UNROLL * iterations


def launch(ab: torch.Tensor, x: torch.Tensor, iterations: int, *, out: torch.Tensor, config: Config) -> None:
    """Run every chain of `x` for `UNROLL` x `iterations` steps and write its end to `out`.

    There are a multiple of `config.block` chains and fewer than 2^31 iterations; `ab` is what `coefficients` returns.
    """
    label = "fma v1"
    operands = {"x": x, "ab": ab, "out": out}
    require_tensors(label, dtypes=NAMES, **operands)
    require_contiguous(label, **operands)
    require_shape(label, "ab", ab, (2,))
    require_shape(label, "out", out, x.shape)
    if x.numel() % config.block or not x.numel():
        raise ValueError(f"{label}: x has {x.numel()} elements; a multiple of {config.block} is needed")
    variant(config).launch(x.numel() // config.block, ab, x, out, iterations)
