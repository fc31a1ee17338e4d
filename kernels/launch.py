"""Shared by all kernel versions: how a kernel is compiled and launched, and checks of its tensors.

Tensors of a wrong layout, dtype or device are rejected, because a silent `.contiguous()` would add
the time of a copy. Each check raises a ValueError of one line that starts with `label`, the
operation and version.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
import triton

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""Dtypes of most kernels, and Roofmark's names of them."""
TRITON_TYPES = {
    "tf32": "fp32",
    "fp8e4m3": "fp8e4nv",
    "fp8e5m2": "fp8e5",
    "int8": "i8",
    "int32": "i32",
}
"""Triton's names of dtypes that differ from Roofmark's."""
ALIGNMENT_BYTES = (
    16  # the widest access of a thread, and the alignment that Triton infers for pointers
)
# Read when a kernel is decorated, so it cannot change later.
INTERPRETED: bool = triton.knobs.runtime.interpret


@dataclass(frozen=True)
class Gpu:
    """GPU properties: `arch` is 90 for sm_90, `cache_bytes` the size of the last-level cache."""

    arch: int
    processors: int
    cache_bytes: int


stand_in = Gpu(90, 4, 2**20)
"""GPU properties for tensors that are not on a GPU. In the interpreter they are small, so that
small tensors need many programs; precompile.py sets the GPU to compile for."""


def gpu_of(device: torch.device) -> Gpu:
    return _facts(device) if device.type == "cuda" else stand_in


@cache
def _facts(device: torch.device) -> Gpu:
    properties = torch.cuda.get_device_properties(device)
    arch = 10 * properties.major + properties.minor
    return Gpu(arch, properties.multi_processor_count, properties.L2_cache_size)


@dataclass(frozen=True)
class Variant:
    """One kernel as compiled for one dtype, used both to launch it and to compile it ahead of time.

    Attributes:
        kernel: The `triton.jit` function. Arguments named `*_ptr` are pointers, aligned to
            `ALIGNMENT_BYTES`; every other runtime argument is a 32-bit integer, unless `types` says
            otherwise.
        constants: Compile-time arguments by name.
        warps: Warps of a program.
        op: The operation computed, a key of the file's `KERNELS`.
        dtype: Roofmark's name of the dtype, `bf16`.
        part: `partial` or `finish` if the operation takes two launches.
        shape_class: The shapes that it is for, such as `n <= 4096`, if the configuration depends on
            the shape.
        types: Triton types of the runtime arguments that are neither pointers to `dtype` nor 32-bit
            integers, `{"labels_ptr": "*i64", "eps": "fp32"}`.
        elements: Elements of the output, or of the input of a reduction, that a program computes in
            one pass through its loop, or in total if it has no loop.
        bytes: Compulsory memory traffic of those elements; None if unknown.
        stages: Pipeline stages of the compiler.
    """

    kernel: Any
    constants: Mapping[str, Any]
    warps: int
    op: str = ""
    dtype: str = ""
    part: str = ""
    shape_class: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    elements: int = 0
    bytes: int | None = 0
    stages: int = 3

    @cached_property
    def options(self) -> dict[str, int | bool]:
        """Compiler options by name. All are given, because their defaults differ between Triton
        releases, and fusion changes both rounding and instruction count.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def launch(self, programs: int, *arguments: torch.Tensor | int) -> None:
        """Launch `programs` programs on the device of the first argument."""
        with torch.cuda.device_of(arguments[0]):
            self.kernel[(programs,)](*arguments, **self.constants, **self.options)


def on_any_arch(variants: Mapping[Any, Variant]) -> Callable[[int], tuple[Variant, ...]]:
    """Return the function `variants(arch)` of a version that has the same variants for every
    architecture.
    """
    return lambda arch: tuple(variants.values())


@dataclass(frozen=True)
class Pieces:
    """Rows per launch, pieces per row, and elements per piece; the last piece may be shorter, but
    not empty.
    """

    rows: int
    count: int
    elements: int


MAX_PIECES = 128  # per row
PROGRAMS_PER_SM = 2  # target
MIN_STEPS = 4  # of a row that is shared because there are few rows
MIN_WIDE_COLUMNS = 2**17  # from this width on, any number of rows is shared
CACHE_DIVISOR = 2  # the rows of a launch take at most half of the cache


def pieces_of(m: int, n: int, row_bytes: int, step: int, unit: int, gpu: Gpu) -> Pieces | None:
    """Return how programs share m rows of n elements; None if rows are neither few nor too wide for
    the cache.

    A row has at most one piece per step of `step` elements. A piece is a multiple of `unit`
    elements.
    """
    if n < MIN_WIDE_COLUMNS and (m >= gpu.processors or n < MIN_STEPS * step):
        return None
    rows = min(m, max(1, gpu.cache_bytes // CACHE_DIVISOR // row_bytes))
    count = min(
        triton.cdiv(PROGRAMS_PER_SM * gpu.processors, rows), triton.cdiv(n, step), MAX_PIECES
    )
    elements = triton.cdiv(triton.cdiv(n, count), unit) * unit
    return Pieces(rows, triton.cdiv(n, elements), elements)


def require_tensors(
    label: str, *, dtypes: Collection[torch.dtype] = DTYPES.keys(), **tensors: torch.Tensor
) -> None:
    """Require aligned tensors of one device and one of `dtypes`."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        _require_usable(label, name, tensor, (first_name, first))
        if tensor.dtype not in dtypes:
            raise ValueError(
                f"{label}: {name} has dtype {tensor.dtype}; allowed are "
                f"{', '.join(map(str, dtypes))}"
            )
        if tensor.dtype != first.dtype:
            raise ValueError(
                f"{label}: {name} has dtype {tensor.dtype}, {first_name} {first.dtype}; use one "
                f"dtype"
            )


def require_companion(
    label: str, name: str, tensor: torch.Tensor, dtype: torch.dtype, like: tuple[str, torch.Tensor]
) -> None:
    """Require an aligned tensor of a fixed dtype, such as labels, on the device of `like`."""
    _require_usable(label, name, tensor, like)
    if tensor.dtype != dtype:
        raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; expected {dtype}")


def _require_usable(
    label: str, name: str, tensor: torch.Tensor, like: tuple[str, torch.Tensor]
) -> None:
    """Require an aligned tensor on the GPU of `like`."""
    if tensor.device != like[1].device:
        raise ValueError(
            f"{label}: {name} is on {tensor.device}, {like[0]} on {like[1].device}; use one device"
        )
    if tensor.device.type != "cuda" and not INTERPRETED:
        raise ValueError(
            f"{label}: {name} is on {tensor.device}; Triton needs a GPU, device 'cuda'"
        )
    offset = tensor.data_ptr() % ALIGNMENT_BYTES
    if offset:
        raise ValueError(
            f"{label}: {name} starts {offset} bytes past a multiple of {ALIGNMENT_BYTES}; "
            "pass a tensor that is not an offset view"
        )


def require_contiguous(label: str, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{label}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
                "pass a contiguous tensor (copy it before the measurement)"
            )


def require_shape(label: str, name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(
            f"{label}: {name} has shape {tuple(tensor.shape)}; the other operands need "
            f"{tuple(shape)}"
        )


def row_stride(
    label: str, name: str, matrix: torch.Tensor, axes: str = "(m, n)", of_one_row: int | None = None
) -> int:
    """Return the row stride in elements. Rows must be dense and must not overlap.

    A single row, to which torch gives any stride, has the stride `of_one_row`, by default the
    length of the row.
    """
    if matrix.dim() != 2:
        raise ValueError(
            f"{label}: {name} has shape {tuple(matrix.shape)}; expected two dimensions, {axes}"
        )
    m, n = matrix.shape
    if (n > 1 and matrix.stride(1) != 1) or (m > 1 and matrix.stride(0) < n):
        raise ValueError(
            f"{label}: {name} of shape {(m, n)} has strides {matrix.stride()}; rows must be dense "
            f"and must not overlap"
        )
    if m > 1:
        return matrix.stride(0)
    return n if of_one_row is None else of_one_row
