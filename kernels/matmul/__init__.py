"""Argument checks shared by all versions of matmul."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels import launch

DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
}
OUTPUTS = {
    torch.int8: torch.int32,
    torch.float8_e4m3fn: torch.bfloat16,
    torch.float8_e5m2: torch.bfloat16,
}
SCALES = ("scale_a", "scale_b")
LAYOUTS = ("nn", "nt", "tn")
MAX_EXTENT = 2**30  # a row or column number plus one tile still fits 32 bits
MAX_TILES = 2**31 - 1  # programs of a one-dimensional grid


@dataclass(frozen=True)
class Operands:
    """Shapes, strides in elements, dtype and layout of `batch` matmuls, and the GPU that computes
    them.

    Attributes:
        dtype: Roofmark's name of the dtype of A and B; `tf32` for fp32 tensors if torch's setting
            `torch.backends.cuda.matmul.fp32_precision`, which cuBLAS follows, is `tf32`.
        layout: How A and B are stored, `nn`, `nt` or `tn`.
        strides: Row strides of A, B and C as stored.
        batch_strides: Strides from one matrix to the next, of A, B and C; 0 if there is only one.
        unit: Known divisor of the length and stride of all stored rows of A and B: the elements in
            `launch.ALIGNMENT_BYTES`, or 1.
        label: Operation and version, for messages.
        tensors: A, B and C.
        scales: Factors of A and B in fp8.
    """

    dtype: str
    layout: str
    batch: int
    m: int
    n: int
    k: int
    strides: tuple[int, int, int]
    batch_strides: tuple[int, int, int]
    gpu: launch.Gpu
    unit: int
    label: str
    tensors: tuple[torch.Tensor, ...]
    scales: tuple[torch.Tensor, ...]

    def tiles(self, block_m: int, block_n: int) -> int:
        return self.batch * -(-self.m // block_m) * -(-self.n // block_n)


def layouts_of(dtype: str) -> tuple[str, ...]:
    """Return the layouts of A and B that there are kernels for."""
    return ("nt",) if dtype.startswith("fp8") else LAYOUTS


def triton_type(dtype: str) -> str:
    return launch.TRITON_TYPES.get(dtype, dtype)


def output_type(dtype: str) -> str:
    """Return Triton's name of the dtype of C for operands of `dtype`."""
    if dtype == "int8":
        return "i32"
    return "bf16" if dtype.startswith("fp8") else triton_type(dtype)


def aligned_unit(dtype: str) -> int:
    """Return the number of elements in `launch.ALIGNMENT_BYTES`."""
    return launch.ALIGNMENT_BYTES // {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}.get(dtype, 1)


def read(
    label: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    out: torch.Tensor,
) -> Operands:
    """Check the tensors of a matmul and return their description.

    A is (m, k), B (k, n), C (m, n), each with or without a leading batch axis. C is stored
    row-major, in the dtype of A, but in int32 for int8 and in bf16 for fp8. Scales, for fp8 alone,
    are the fp32 factors of A and B.

    Raises:
        ValueError: no version computes such a matmul.
    """
    launch.require_tensors(label, dtypes=DTYPES, a=a, b=b)
    launch.require_companion(label, "out", out, OUTPUTS.get(a.dtype, a.dtype), ("a", a))
    for name, tensor in {"a": a, "b": b, "out": out}.items():
        if tensor.dim() not in (2, 3):
            raise ValueError(
                f"{label}: {name} has shape {tuple(tensor.shape)}; expected 2 dimensions, or 3 "
                f"with a batch"
            )
    _require_scales(label, a, scales)
    *batch_shape, m, k = a.shape
    n = b.shape[-1]
    launch.require_shape(label, "b", b, (*batch_shape, k, n))
    launch.require_shape(label, "out", out, (*batch_shape, m, n))
    if max(m, n, k) > MAX_EXTENT:
        raise ValueError(
            f"{label}: {m}x{n}x{k} is too large; at most {MAX_EXTENT} rows, columns and terms are "
            f"supported"
        )
    dtype = DTYPES[a.dtype]
    layout = _layout(label, a, b, dtype)
    if "n" not in _stored(out):
        raise ValueError(
            f"{label}: out {_described(out)}; pass a row-major tensor whose rows do not overlap"
        )
    if dtype == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32":
        dtype = "tf32"
    stored = (a, layout[0]), (b, layout[1]), (out, "n")
    strides = tuple(_row_stride(tensor, order) for tensor, order in stored)
    batch_strides = tuple(_batch_stride(label, tensor) for tensor in (a, b, out))
    lengths = k if layout[0] == "n" else m, n if layout[1] == "n" else k
    unit = aligned_unit(dtype)
    is_aligned = not any(number % unit for number in (*lengths, *strides[:2], *batch_strides[:2]))
    return Operands(
        dtype=dtype,
        layout=layout,
        batch=batch_shape[0] if batch_shape else 1,
        m=m,
        n=n,
        k=k,
        strides=strides,
        batch_strides=batch_strides,
        gpu=launch.gpu_of(a.device),
        unit=unit if is_aligned else 1,
        label=label,
        tensors=(a, b, out),
        scales=scales,
    )


def launcher(label: str, start: Callable[[Operands], None]) -> Callable[..., None]:
    """Return the launcher of a version that launches its kernels with `start`."""

    def matmul(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor, out: torch.Tensor) -> None:
        start(read(label, a, b, scales, out))

    return matmul


def unsupported_dtype(operands: Operands, allowed: str) -> ValueError:
    return ValueError(
        f"{operands.label}: no kernel for {operands.dtype} on sm_{operands.gpu.arch}; {allowed}"
    )


def _require_scales(label: str, a: torch.Tensor, scales: tuple[torch.Tensor, ...]) -> None:
    needed = 2 if DTYPES[a.dtype].startswith("fp8") else 0
    if len(scales) != needed:
        raise ValueError(
            f"{label}: {len(scales)} scales with operands of {a.dtype}; expected {needed}"
        )
    for name, scale in zip(SCALES, scales, strict=False):
        if scale.dtype != torch.float32 or scale.numel() != 1 or scale.device != a.device:
            given = f"{scale.numel()} elements of {scale.dtype} on {scale.device}"
            raise ValueError(
                f"{label}: {name} has {given}; expected one element of torch.float32 on {a.device}"
            )


def _stored(tensor: torch.Tensor) -> str:
    """Return `n` if a matrix is row-major, `t` if it is transposed; a single row or column can be
    both, `nt`.
    """
    rows, columns = tensor.shape[-2:]
    down, across = tensor.stride()[-2:]
    row_major = (columns <= 1 or across == 1) and (rows <= 1 or down >= columns)
    transposed = (rows <= 1 or down == 1) and (columns <= 1 or across >= rows)
    return ("n" if row_major else "") + ("t" if transposed else "")


def _layout(label: str, a: torch.Tensor, b: torch.Tensor, dtype: str) -> str:
    for layout in layouts_of(dtype):
        if layout[0] in _stored(a) and layout[1] in _stored(b):
            return layout
    allowed = (
        "only layout nt in fp8" if dtype.startswith("fp8") else f"layouts {', '.join(LAYOUTS)}"
    )
    raise ValueError(
        f"{label}: a {_described(a)}, b {_described(b)}; expected {allowed}, with rows that do "
        f"not overlap"
    )


def _described(tensor: torch.Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} has strides {tensor.stride()}"


def _row_stride(tensor: torch.Tensor, order: str) -> int:
    """Return the row stride; the length of a single row, because torch gives an axis of one any
    stride.
    """
    axis, length = (-2, -1) if order == "n" else (-1, -2)
    return tensor.stride(axis) if tensor.shape[axis] > 1 else tensor.shape[length]


def _batch_stride(label: str, tensor: torch.Tensor) -> int:
    if tensor.dim() == 2 or tensor.shape[0] <= 1:
        return 0
    if tensor.stride(0) <= 0:
        raise ValueError(
            f"{label}: a tensor {_described(tensor)}; matrices of a batch must not overlap"
        )
    return tensor.stride(0)
