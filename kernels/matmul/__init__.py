"""What a matmul is asked for, read from its tensors once for all versions; what none of them computes is refused.

The versions keep their kernels, tiles and loops to themselves. What they share is this reading of shapes and strides.
"""

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
OUTPUTS = {torch.int8: torch.int32, torch.float8_e4m3fn: torch.bfloat16, torch.float8_e5m2: torch.bfloat16}
SCALES = ("scale_a", "scale_b")
LAYOUTS = ("nn", "nt", "tn")
MAX_EXTENT = 2**30  # a row or column number plus one tile still fits 32 bits
MAX_TILES = 2**31 - 1  # programs of a one-dimensional grid


@dataclass(frozen=True)
class Operands:
    """The products asked for, `batch` of them, of k terms, and the GPU that computes them. Strides count elements.

    Attributes:
        dtype: Ridgepoint's name of the dtype of A and B; `tf32` for fp32 tensors if torch's setting
            `torch.backends.cuda.matmul.fp32_precision` says so, which is what cuBLAS goes by.
        layout: How A and B are stored, `nn`, `nt` or `tn`.
        strides: From one stored row to the next, of A, B and C.
        batch_strides: From one matrix to the next, of A, B and C; 0 if there is only one.
        unit: Elements of which all stored rows of A and B are whole numbers, in length and distance: as many as
            `launch.ALIGNMENT_BYTES` hold, or 1.
    """

    dtype: str
    layout: str
    batch: int
    m: int
    n: int
    k: int
    strides: tuple[int, int, int]
    batch_strides: tuple[int, int, int]
    arch: int
    processors: int
    unit: int

    def tiles(self, block_m: int, block_n: int) -> int:
        """Return how many tiles of block_m x block_n cover C in all batches."""
        return self.batch * -(-self.m // block_m) * -(-self.n // block_n)


def triton_type(dtype: str) -> str:
    """Return Triton's name of a dtype, `fp8e4nv` for `fp8e4m3`."""
    return launch.TRITON_TYPES.get(dtype, dtype)


def output_type(dtype: str) -> str:
    """Return Triton's name of the dtype of C for operands of `dtype`."""
    return "i32" if dtype == "int8" else "bf16" if dtype.startswith("fp8") else triton_type(dtype)


def aligned_unit(dtype: str) -> int:
    """Return how many elements of a dtype `launch.ALIGNMENT_BYTES` hold."""
    return launch.ALIGNMENT_BYTES // {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}.get(dtype, 1)


def read(label: str, a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, ...], out: torch.Tensor) -> Operands:
    """Read a product from its tensors.

    A is (m, k), B (k, n), C (m, n), all with a batch in front or without; C is stored row-major, of the dtype of A, but
    int32 for int8 and bf16 for fp8. Scales are the factors of A and of B in fp8, fp32, one element each.
    """
    launch.require_tensors(label, dtypes=DTYPES, a=a, b=b)
    launch.require_companion(label, "out", out, OUTPUTS.get(a.dtype, a.dtype), ("a", a))
    for name, tensor in {"a": a, "b": b, "out": out}.items():
        if tensor.dim() not in (2, 3):
            raise ValueError(
                f"{label}: {name} has shape {tuple(tensor.shape)}; 2 dimensions are needed, 3 with a batch"
            )
    _require_scales(label, a, scales)
    (*batch_shape, m, k), n = a.shape, b.shape[-1]
    launch.require_shape(label, "b", b, (*batch_shape, k, n))
    launch.require_shape(label, "out", out, (*batch_shape, m, n))
    if max(m, n, k) > MAX_EXTENT:
        raise ValueError(
            f"{label}: {m}x{n}x{k} is too large; at most {MAX_EXTENT} rows, columns and terms are supported"
        )
    dtype = DTYPES[a.dtype]
    layout = _layout(label, a, b, fp8=dtype.startswith("fp8"))
    if "n" not in _stored(out):
        raise ValueError(f"{label}: out {_described(out)}; pass one stored row-major whose rows do not overlap")
    if dtype == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32":
        dtype = "tf32"
    stored = (a, layout[0]), (b, layout[1]), (out, "n")
    gpu = launch.gpu_of(a.device)
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
        arch=gpu.arch,
        processors=gpu.processors,
        unit=unit if is_aligned else 1,
    )


def refuse_dtype(label: str, dtype: str, arch: int, allowed: str) -> ValueError:
    """Return the error of a version that has no kernel for a dtype on an architecture."""
    return ValueError(f"{label}: no kernel for {dtype} on sm_{arch}; {allowed}")


def _require_scales(label: str, a: torch.Tensor, scales: tuple[torch.Tensor, ...]) -> None:
    needed = 2 if DTYPES[a.dtype].startswith("fp8") else 0
    if len(scales) != needed:
        raise ValueError(f"{label}: {len(scales)} scales with operands of {a.dtype}; {needed} are needed")
    for name, scale in zip(SCALES, scales, strict=False):
        if scale.dtype != torch.float32 or scale.numel() != 1 or scale.device != a.device:
            found = f"{scale.numel()} elements of {scale.dtype} on {scale.device}"
            raise ValueError(f"{label}: {name} has {found}; one element of torch.float32 on {a.device} is needed")


def _stored(tensor: torch.Tensor) -> str:
    """Return the ways in which a matrix can be taken as stored: `n` row-major, `t` transposed. A row of one is both."""
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.stride()[-2:]
    row_major = (columns <= 1 or across == 1) and (rows <= 1 or down >= columns)
    transposed = (rows <= 1 or down == 1) and (columns <= 1 or across >= rows)
    return "n" * row_major + "t" * transposed


def _layout(label: str, a: torch.Tensor, b: torch.Tensor, fp8: bool) -> str:
    fitting = [
        layout for layout in (("nt",) if fp8 else LAYOUTS) if layout[0] in _stored(a) and layout[1] in _stored(b)
    ]
    if fitting:
        # A column of numbers is better taken as one stored row than as many rows of one number.
        return min(fitting, key=lambda layout: _is_column(a, layout[0]) + _is_column(b, layout[1]))
    allowed = "layout nt alone in fp8" if fp8 else f"layouts {', '.join(LAYOUTS)}"
    raise ValueError(
        f"{label}: a {_described(a)}, b {_described(b)}; {allowed} can be taken, with rows that do not overlap"
    )


def _is_column(tensor: torch.Tensor, order: str) -> bool:
    rows, columns = tensor.shape[-2:] if order == "n" else tensor.shape[:-3:-1]
    return columns == 1 and rows > 1


def _described(tensor: torch.Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} has strides {tensor.stride()}"


def _row_stride(tensor: torch.Tensor, order: str) -> int:
    """Return the distance of stored rows; of a single row its length, as torch gives any stride to an axis of one."""
    axis, length = (-2, -1) if order == "n" else (-1, -2)
    return tensor.stride(axis) if tensor.shape[axis] > 1 else tensor.shape[length]


def _batch_stride(label: str, tensor: torch.Tensor) -> int:
    if tensor.dim() == 2 or tensor.shape[0] <= 1:
        return 0
    if tensor.stride(0) <= 0:
        raise ValueError(f"{label}: a tensor {_described(tensor)}; pass as many matrices as the batch has")
    return tensor.stride(0)
