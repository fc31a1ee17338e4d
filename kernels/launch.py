"""What every kernel version shares: the record of how a kernel is compiled, and the checks of its tensors.

A measured kernel must do exactly what its caller asked for. So a tensor of the wrong layout, dtype or device is
refused: a silent `.contiguous()` would add the time of a copy. Each check raises a ValueError of one line, which
begins with its `label`, operation and version, and says which operand, what it is and what is allowed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import triton

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The dtypes of most kernels, with Ridgepoint's name of each."""
TRITON_TYPES = {"tf32": "fp32", "fp8e4m3": "fp8e4nv", "fp8e5m2": "fp8e5", "int8": "i8", "int32": "i32"}
"""Triton's name of a dtype, if it differs from Ridgepoint's."""
ALIGNMENT_BYTES = 16  # the widest access of one thread, and what Triton takes as known of an aligned pointer
INTERPRETED: bool = triton.knobs.runtime.interpret  # read when a kernel is decorated, so it cannot change later


@dataclass(frozen=True)
class Gpu:
    """The facts of a GPU that a launcher chooses by."""

    arch: int
    """Compute capability, 90 for sm_90."""
    processors: int
    """Multiprocessors."""
    cache_bytes: int
    """Of the last-level cache."""


stand_in = Gpu(90, 4, 2**20)
"""The GPU for tensors that are on no GPU: the interpreter's, small so that small tensors make many programs, or the one
that a process without a GPU compiles for, see precompile.py."""


def gpu_of(device: torch.device) -> Gpu:
    return _facts(device) if device.type == "cuda" else stand_in


@cache
def _facts(device: torch.device) -> Gpu:
    properties = torch.cuda.get_device_properties(device)
    arch = 10 * properties.major + properties.minor
    return Gpu(arch, properties.multi_processor_count, properties.L2_cache_size)


@dataclass(frozen=True)
class Variant:
    """One kernel as compiled for one dtype; a launch and an ahead-of-time compile read the same record.

    Attributes:
        kernel: The `triton.jit` function. Arguments named `*_ptr` are pointers, aligned to `ALIGNMENT_BYTES`; every
            other runtime argument is a 32-bit integer, unless `types` says otherwise.
        constants: Compile-time arguments by name.
        options: Compiler options by name. `enable_fp_fusion` is always given: its default differs between
            Triton releases and changes both rounding and instruction count.
        op: The operation computed, a key of the file's `KERNELS`.
        dtype: Ridgepoint's name of the dtype, `bf16`.
        part: Where one operation takes several launches, which of them this is, `partial` or `finish`.
        shape_class: Where the configuration depends on the shape, the shapes it is for, `n <= 4096`.
        types: Triton types of the runtime arguments that are neither pointers to `dtype` nor 32-bit integers,
            `{"labels_ptr": "*i64", "eps": "fp32"}`.
        elements: What one program handles on one pass through its hot path, which is the body of its loop where it
            has one and all of the program where it has none: elements of the output, or of the input of a reduction.
        bytes: Compulsory bytes that memory moves for those elements; None where they are unknown.
    """

    kernel: Any
    constants: Mapping[str, Any]
    options: Mapping[str, int | bool]
    op: str = ""
    dtype: str = ""
    part: str = ""
    shape_class: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    elements: int = 0
    bytes: int | None = 0

    def launch(self, programs: int, *arguments: torch.Tensor | int) -> None:
        """Start `programs` programs on the device that holds the first tensor of `arguments`."""
        with torch.cuda.device_of(arguments[0]):
            self.kernel[(programs,)](*arguments, **self.constants, **self.options)


@dataclass(frozen=True)
class Pieces:
    """How several programs share each row."""

    rows: int
    """Rows that are in flight together."""
    count: int
    """Pieces a row, one for each program."""
    elements: int
    """Elements of a piece; the last of a row may be shorter, but is not empty."""


MAX_PIECES = 128  # of a row
PROGRAMS_A_PROCESSOR = 2  # what sharing aims at
FEWEST_STEPS = 4  # of a row that is shared because rows are few
WIDE = 2**17  # elements from which rows are shared, however many they are
CACHE_SHARE = 2  # rows in flight take at most this fraction of the cache, `1 / CACHE_SHARE`


def pieces_of(m: int, n: int, row_bytes: int, step: int, unit: int, gpu: Gpu) -> Pieces | None:
    """Return how programs share m rows of n elements; None if rows are neither few nor too wide for the cache.

    A step of the loop, `step` elements, is the least worth a program; a piece is a multiple of `unit` elements.
    """
    if n < WIDE and (m >= gpu.processors or n < FEWEST_STEPS * step):
        return None
    rows = min(m, max(1, gpu.cache_bytes // CACHE_SHARE // row_bytes))
    wanted = min(triton.cdiv(PROGRAMS_A_PROCESSOR * gpu.processors, rows), triton.cdiv(n, step), MAX_PIECES)
    elements = triton.cdiv(triton.cdiv(n, wanted), unit) * unit
    return Pieces(rows, triton.cdiv(n, elements), elements)


def require_tensors(label: str, *, dtypes: Collection[torch.dtype] = DTYPES.keys(), **tensors: torch.Tensor) -> None:
    """Refuse tensors that do not share one of `dtypes` and the device of the first, or that are not aligned."""
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        _require_tensor(label, name, tensor)
        if tensor.dtype not in dtypes:
            raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; allowed are {', '.join(map(str, dtypes))}")
        if tensor.dtype != first.dtype:
            raise ValueError(f"{label}: {name} has dtype {tensor.dtype}, {first_name} {first.dtype}; use one dtype")
        _require_place(label, name, tensor, (first_name, first))


def require_companion(
    label: str, name: str, tensor: torch.Tensor, dtype: torch.dtype, like: tuple[str, torch.Tensor]
) -> None:
    """Refuse a tensor, such as labels, without the dtype that its meaning needs, or on another device than `like`."""
    _require_tensor(label, name, tensor)
    if tensor.dtype != dtype:
        raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; {dtype} is needed")
    _require_place(label, name, tensor, like)


def _require_tensor(label: str, name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{label}: {name} is of type {type(value).__name__}; pass a torch tensor")


def _require_place(label: str, name: str, tensor: torch.Tensor, like: tuple[str, torch.Tensor]) -> None:
    """Refuse a tensor that is on another device than `like`, on no GPU, or not aligned."""
    if tensor.device != like[1].device:
        raise ValueError(f"{label}: {name} is on {tensor.device}, {like[0]} on {like[1].device}; use one device")
    if tensor.device.type != "cuda" and not INTERPRETED:
        raise ValueError(f"{label}: {name} is on {tensor.device}; Triton needs a GPU, device 'cuda'")
    past = tensor.data_ptr() % ALIGNMENT_BYTES
    if past:
        raise ValueError(
            f"{label}: {name} starts {past} bytes past a multiple of {ALIGNMENT_BYTES}; "
            "pass a tensor that is no offset view"
        )


def require_contiguous(label: str, **tensors: torch.Tensor) -> None:
    """Refuse tensors that are not dense and row-major."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{label}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
                "pass a contiguous tensor (copy it before the measurement)"
            )


def require_shape(label: str, name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{label}: {name} has shape {tuple(tensor.shape)}; the other operands need {tuple(shape)}")


def row_stride(label: str, name: str, matrix: torch.Tensor, axes: str = "(m, n)", of_one_row: int | None = None) -> int:
    """Return the elements from one row of a matrix to the next; refuse rows that are not dense, or overlap.

    A matrix that has one row, of which torch gives any stride, has `of_one_row`, by default the length of the row.
    """
    if matrix.dim() != 2:
        raise ValueError(f"{label}: {name} has shape {tuple(matrix.shape)}; two dimensions are needed, {axes}")
    m, n = matrix.shape
    if (n > 1 and matrix.stride(1) != 1) or (m > 1 and matrix.stride(0) < n):
        raise ValueError(
            f"{label}: {name} of shape {(m, n)} has strides {matrix.stride()}; rows must be dense and must not overlap"
        )
    if m > 1:
        return matrix.stride(0)
    return n if of_one_row is None else of_one_row
