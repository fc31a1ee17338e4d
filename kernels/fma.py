"""Version 1 of the FMA kernel: independent chains of x <- a x + b in registers, written once at the
end.

FLOPs   2 n UNROLL iterations for n chain elements, one product and one sum per step.
Bytes   2 n w, each element read once and written once, and two coefficients: negligible compared
        with the FLOPs.

Each step is an explicit fused multiply-add, so the instruction count does not depend on the
compiler's fusion. In the machine code of sm_80 to sm_100 a step of one element is one FFMA (fp32),
one DFMA (fp64) or half an HFMA2 (fp16, bf16); sm_100 also pairs fp32 into FFMA2. A loop adds three
to a dozen other instructions to `UNROLL` steps of all chains, about one percent.

The coefficients come from memory, so the compiler cannot evaluate the loop. `COEFFICIENTS`
contract, |a| < 1, so every chain stays within a few units. a is so close to -1 that rounding makes
a chain alternate between the two sides of the fixed point. A chain that settled would draw less
power than real work, and the GPU would clock higher.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant

UNROLL = 32  # steps of every chain per loop iteration
# Dtypes with an FMA instruction, and Triton's names of them.
NAMES = DTYPES | {torch.float64: "fp64"}
COEFFICIENTS = {
    torch.float64: (-(1 - 2.0**-40), 1.0),
    torch.float32: (-(1 - 2.0**-22), 1.0),
    torch.float16: (-(1 - 2.0**-11), 1.0),
    torch.bfloat16: (-(1 - 2.0**-8), 1.0),
}
"""a and b by dtype; both are exact in the dtype."""


@dataclass(frozen=True)
class Config:
    """Launch configuration."""

    warps: int
    chains: int
    """Chain elements per thread: independent values."""
    threads_per_sm: int
    """Threads per multiprocessor in total; at most 2048 are resident together."""

    @property
    def block(self) -> int:
        """Chain elements per program."""
        return 32 * self.warps * self.chains

    @property
    def label(self) -> str:
        return (
            f"{self.chains} chains per thread, {self.warps} warps per program, "
            f"{self.threads_per_sm} threads per SM"
        )

    def elements(self, sm_count: int) -> int:
        """Return the chain elements of a launch that fills `sm_count` multiprocessors evenly."""
        return sm_count * (self.threads_per_sm // (32 * self.warps)) * self.block


CONFIGS = tuple(
    Config(warps, chains, threads)
    for chains in (16, 32)
    for warps, threads in ((4, 512), (8, 512), (4, 1024), (8, 1024), (8, 2048))
)
"""Configurations to try. Packed 16-bit instructions and FFMA2 take two chains, so 16 chains are 8
of them.
"""


@triton.jit(do_not_specialize=["iterations"])
def fma_kernel(
    coefficients_ptr,  # a, then b
    x_ptr,  # starts of the chains, BLOCK per program
    out_ptr,  # ends of the chains, BLOCK per program
    iterations,  # rounds of UNROLL steps
    BLOCK: tl.constexpr,  # chain elements per program, a power of two
    UNROLL: tl.constexpr,  # steps per round
):
    """Apply x <- a x + b UNROLL x iterations times to every element."""
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
    return Variant(
        kernel=fma_kernel,
        constants={"BLOCK": config.block, "UNROLL": UNROLL},
        warps=config.warps,
    )


def variants(arch: int) -> tuple[Variant, ...]:
    """Return the variants to audit: the fewest and the most chains of each dtype.

    An element is one step of one chain, without memory traffic.
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
    """Return the tensor (a, b) for a dtype in `NAMES`."""
    return torch.tensor(COEFFICIENTS[dtype], dtype=dtype, device=device)


def flops(elements: int, iterations: int) -> int:
    """Return the FLOPs of a launch; a fused multiply-add counts as 2."""
    return 2 * elements * UNROLL * iterations
