"""Reads what inductor declares of the Triton kernels that it launches, from the events of their launches.

While torch.profiler records, inductor puts an event around each launch of a Triton kernel of its own. It holds the
shapes of the arguments, the file with the kernel's source and, where kernels are compiled with `DECLARING`, the bytes
that the kernel reads and writes together and the FLOPs of the products in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

DECLARING = "benchmark_kernel"
"""The option of `torch._inductor.config` with which kernels hold their bytes and FLOPs."""

DTYPES = {
    **{
        "double": ("float64", 8),
        "float": ("float32", 4),
        "c10::Half": ("float16", 2),
        "c10::BFloat16": ("bfloat16", 2),
    },
    **{"c10::Float8_e4m3fn": ("float8_e4m3fn", 1), "c10::Float8_e5m2": ("float8_e5m2", 1), "bool": ("bool", 1)},
    **{"long int": ("int64", 8), "int": ("int32", 4), "short int": ("int16", 2)},
    **{"signed char": ("int8", 1), "unsigned char": ("uint8", 1)},
}
"""What a trace calls the dtype of a tensor: its name in torch, and the bytes of an element."""

LONGEST_SOURCE = 1 << 24
"""Bytes of a file that are looked through for the names of a kernel's arguments."""


@dataclass(frozen=True)
class KernelLaunch:
    """A Triton kernel that inductor launches, with arguments of some shapes."""

    name: str
    shapes: str
    """Of its tensors: `64x32,64`."""
    dtypes: tuple[str, ...]
    flops: int | None
    """Of the products in it; None where they are not declared."""
    bytes_read: int | None
    """None where its bytes are not declared, or its source does not tell what it writes; as `bytes_written`."""
    bytes_written: int | None


def launch_of(name: str, details: Mapping[str, Any]) -> KernelLaunch | None:
    """Return what the event of a launch declares; None where it is no launch of inductor's.

    Args:
        name: of the event.
        details: its arguments, as the Chrome trace has them.
    """
    if details.get("kernel_backend") != "triton":
        return None
    pairs = list(zip(details.get("Input Dims", ()), details.get("Input type", ()), strict=False))
    tensors = [(shape, dtype) for shape, dtype in pairs if shape and dtype in DTYPES]
    flops, read, written = details.get("kernel_flop"), None, None
    total, out = _bytes(details.get("kernel_num_gb")), _written(str(details.get("kernel_file", "")), pairs)
    if total is not None and out is not None:
        read, written = max(0, total - out), min(total, out)
    return KernelLaunch(
        name,
        ",".join("x".join(map(str, shape)) for shape, _ in tensors),
        tuple(dict.fromkeys(DTYPES[dtype][0] for _, dtype in tensors)),
        flops if isinstance(flops, int) else None,
        read,
        written,
    )


def _bytes(gigabytes: Any) -> int | None:
    if not isinstance(gigabytes, int | float) or not 0 <= gigabytes < math.inf:
        return None
    return round(gigabytes * 1e9)


def _written(file: str, arguments: Sequence[tuple[Sequence[int], str]]) -> int | None:
    """Return the bytes of the arguments that a kernel writes by their names in its source; None where it has none."""
    names = _argument_names(file)
    out = [
        argument for name, argument in zip(names, arguments, strict=False) if name.startswith(("out_ptr", "in_out_ptr"))
    ]
    if not out or any(dtype not in DTYPES for _, dtype in out):
        return None
    return sum(math.prod(shape) * DTYPES[dtype][1] for shape, dtype in out)


@lru_cache(maxsize=4096)
def _argument_names(file: str) -> tuple[str, ...]:
    """Return the names of the arguments of the kernel in a file that inductor wrote; none where it cannot be read."""
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as source:
            found = re.search(r"@triton\.jit\s+def \w+\(([^)]*)\)", source.read(LONGEST_SOURCE))
    except (OSError, ValueError):
        return ()
    return tuple(argument.partition(":")[0].strip() for argument in found[1].split(",")) if found else ()
