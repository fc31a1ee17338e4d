"""An Apple GPU, as torch's MPS backend drives it: its names and sizes, and what torch computes on it.

It has neither CUDA's events and graphs nor NVML, and its memory is the processor's. So it is measured as a CPU is, by
the host's clock and against measured ceilings, and waited for as a GPU.
"""

from __future__ import annotations

from bench.harness.device import darwin

ASSUMED_CACHE_BYTES = 96 * 2**20
"""Assumed system-level cache, which no call reports: a guess on the large side, so that cold data is cold. Too large a
guess costs memory only."""

DTYPES = ("fp32", "fp16")
"""What torch computes on every Apple GPU. Metal has neither fp64 nor fp8 nor tf32, and torch no int8 product on it."""

BF16_MACOS = (14, 0)
"""From this macOS on torch has bf16 too.

Source: torch, `aten/src/ATen/native/mps/OperationUtils.h`, `checkSupportsBFloat16`."""


def memory_bytes() -> int:
    """Return the memory of the machine, the GPU's too, bytes."""
    import torch

    return darwin.total_memory_bytes() or torch.mps.recommended_max_memory()


def free_bytes() -> int:
    """Return what Metal recommends this process to hold at most, less what it holds, bytes.

    What other programs hold of the same memory is not told.
    """
    import torch

    return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())


def has_dtype(dtype: str) -> bool:
    """Return whether torch computes in a dtype on this system's Apple GPU."""
    import torch

    return dtype in DTYPES or (dtype == "bf16" and torch.backends.mps.is_macos_or_newer(*BF16_MACOS))
