"""Version 3 of the row norms: whole vectors beside loose edges, several short rows a program, wide rows walked twice.

Computes, for each row x of n elements (w weight, b bias, r residual; means are over the row):

    rmsnorm             y = x / sqrt(mean(x^2) + 1e-6) * w
    layernorm           y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + 1e-5) * w + b
    residual-rmsnorm    out[0] = x + r, rounded to the dtype; out[1] = rmsnorm of out[0] as stored

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); Ba, Kiros and Hinton, "Layer
Normalization" (2016); 1e-6 is the eps of Llama and Gemma, 1e-5 that of torch.nn.LayerNorm.

Bytes moved, for m rows of elements of e bytes: read (m n + n) e, by layernorm (m n + 2 n) e, by residual-rmsnorm
(2 m n + n) e; written m n e, by residual-rmsnorm 2 m n e.

Rounding: all in fp32, the product with the weight too, and one rounding at the end, the order of Gemma. Llama
rounds before it multiplies by the weight; that is not computed here. The residual sum is rounded once and
read as rounded, so the result is that of a residual-add and an rmsnorm one after the other.

Changed against version 2:
- Accesses are 16 bytes wide for every n. A row is its body, whole vectors of 16 elements from an aligned address
  on, and its edge, fewer than 16 elements before and after. A mask that ends at a multiple of 16 breaks no
  vector, so one mask serves full and partial blocks; only the edge is read element by element.
- Rows that start anywhere, as with a contiguous matrix of odd n, are "shifted": the body starts at the next
  multiple of 16 elements. All operands must be off by the same count in each row. Weight and bias then are not
  aligned with the body and are read one by one, from cache; so is out[1] written if m n is no multiple of 16.
- Up to 1039 columns a program takes several rows, each inside one warp, and reduces without a barrier.
- 32 elements a thread, not 64: two programs or more share a multiprocessor, and one loads while one reduces.
- Wider rows are walked twice. The second walk goes backward, so that what was read last is found in L1 and then
  in L2. Sums have the width of one access, the registers are for loads in flight: 4 a thread are 64 KB a
  multiprocessor, several times what latency asks for. A `tl.range` pipeline would take its buffers from L1.
- layernorm corrects its mean. In registers, the mean of x - mean(x) is taken off again; in two walks, sums are of
  x - k, with k the mean of the first columns. So the error follows the spread of a row, whatever its mean.
  Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).

What it leaves out: one row over several programs, so fewer rows than multiprocessors leave some idle, and where
the rows in flight exceed L2 (256k columns in fp32) a part is read twice from memory. Operands off by different
counts are read element by element. Rows of fp32 beyond 1.8e19, whose squares overflow, become zero.
"""

import itertools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, require_contiguous, require_shape, require_tensors

RMS_EPS = 1e-6
LAYER_EPS = 1e-5
ROWS_BLOCK_WARPS = ((16, 256, 4), (4, 1024, 4), (1, 4096, 4), (1, 8192, 8), (1, 16384, 16))  # 32 elements a thread
ACCESSES = 4  # of 16 bytes, in flight for each thread of a wide row
MAX_COLUMNS = 2**30  # a column number plus one tile still fits 32 bits

VECTOR = tl.constexpr(16)  # elements; what Triton takes as known of a size it specializes
EDGE = tl.constexpr(32)  # a power of two that holds all elements before and after a body
KEEP = tl.constexpr("evict_last")  # what is read again
DROP = tl.constexpr("evict_first")  # what is not


@triton.jit
def aligned(
    offset,  # elements from the start of a tensor to a row
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
):
    """Return the offset of the body of a row."""
    return (offset + (VECTOR - 1)) // VECTOR * VECTOR if SHIFTED else offset


@triton.jit
def split(
    offset,  # elements from the start of a tensor to a row
    n,  # elements a row
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
):
    """Return how many elements lie before the body of a row, and in it."""
    head = tl.minimum((aligned(offset, SHIFTED) - offset).to(tl.int32), n) if SHIFTED else 0
    return head, (n - head) // VECTOR * VECTOR


@triton.jit
def edge_columns(
    head,  # elements before the body
    body,  # elements in the body
    lanes,  # 0 .. EDGE - 1
):
    """Return the columns outside the body, the first ones first; lanes from n - body on are past the row."""
    return lanes + tl.where(lanes >= head, body, 0)


@triton.jit
def read(
    x_ptrs,  # where x lies
    r_ptrs,  # where the residual lies, if there is one
    inside,  # which of the elements are the row's
    RESIDUAL: tl.constexpr,  # whether there is a residual
    EVICT: tl.constexpr,  # eviction policy
):
    """Return x, or the sum of x and the residual, in the dtype of both."""
    x = tl.load(x_ptrs, mask=inside, other=0.0, eviction_policy=EVICT)
    if RESIDUAL:
        r = tl.load(r_ptrs, mask=inside, other=0.0, eviction_policy=EVICT)
        x = (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)
    return x


@triton.jit(do_not_specialize=["m", "n"])
def rms_rows(
    x_ptr,  # x, m rows of n elements
    r_ptr,  # residual, m rows of n elements; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, m rows of n elements; before it the sum, as many, if RESIDUAL
    m,  # rows, not specialized: one binary serves every m
    n,  # columns, below BLOCK + VECTOR, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide, unless SHIFTED
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y; a multiple of 16 makes stores of y wide
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SHIFTED: tl.constexpr,  # whether rows start anywhere, in all operands alike
    ROWS: tl.constexpr,  # rows a program, a power of two
    BLOCK: tl.constexpr,  # columns of the body, a power of two
):
    """Write the RMSNorm of ROWS rows of x, or of the sum of x and the residual."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    head, body = split(rows * x_stride, n, SHIFTED)
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (lanes < body)
    r_ptrs = r_ptr + aligned(rows * r_stride, SHIFTED) + lanes
    out_ptrs = out_ptr + aligned(rows * out_stride, SHIFTED) + lanes
    x = read(x_ptr + aligned(rows * x_stride, SHIFTED) + lanes, r_ptrs, inside, RESIDUAL, "")
    if RESIDUAL:
        tl.store(out_ptrs, x, mask=inside)
    x = x.to(tl.float32)
    squares = tl.sum(x * x, axis=1)[:, None]
    loose = (rows < m) & (tl.arange(0, EDGE)[None, :] < n - body)
    columns = edge_columns(head, body, tl.arange(0, EDGE)[None, :])
    x_edge = tl.zeros((ROWS, EDGE), tl.float32)
    if SHIFTED or n % VECTOR != 0:
        edge_sum = read(x_ptr + rows * x_stride + columns, r_ptr + rows * r_stride + columns, loose, RESIDUAL, "")
        if RESIDUAL:
            tl.store(out_ptr + rows * out_stride + columns, edge_sum, mask=loose)
        x_edge = edge_sum.to(tl.float32)
        squares += tl.sum(x_edge * x_edge, axis=1)[:, None]
    scale = tl.rsqrt(squares / n + EPS)
    w = tl.load(w_ptr + head + lanes, mask=lanes < body, other=0.0).to(tl.float32)
    tl.store(out_ptrs + plane, x * scale * w, mask=inside)
    if SHIFTED or n % VECTOR != 0:
        w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
        tl.store(out_ptr + plane + rows * out_stride + columns, x_edge * scale * w_edge, mask=loose)


@triton.jit(do_not_specialize=["m", "n"])
def layer_rows(
    x_ptr,  # x, m rows of n elements
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    out_ptr,  # y, m rows of n elements
    m,  # rows, not specialized: one binary serves every m
    n,  # columns, below BLOCK + VECTOR, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide, unless SHIFTED
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the variance
    SHIFTED: tl.constexpr,  # whether rows start anywhere, in x and y alike
    ROWS: tl.constexpr,  # rows a program, a power of two
    BLOCK: tl.constexpr,  # columns of the body, a power of two
):
    """Write the LayerNorm of ROWS rows of x."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    head, body = split(rows * x_stride, n, SHIFTED)
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (lanes < body)
    x = tl.load(x_ptr + aligned(rows * x_stride, SHIFTED) + lanes, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(x, axis=1)[:, None]
    loose = (rows < m) & (tl.arange(0, EDGE)[None, :] < n - body)
    columns = edge_columns(head, body, tl.arange(0, EDGE)[None, :])
    x_edge = tl.zeros((ROWS, EDGE), tl.float32)
    if SHIFTED or n % VECTOR != 0:
        x_edge = tl.load(x_ptr + rows * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
        total += tl.sum(x_edge, axis=1)[:, None]
    d = tl.where(inside, x - total / n, 0.0)
    # What rounding left of the mean: that of a row around 1e4 is off by up to 5e-4.
    rest = tl.sum(d, axis=1)[:, None]
    squares = tl.sum(d * d, axis=1)[:, None]
    if SHIFTED or n % VECTOR != 0:
        x_edge = tl.where(loose, x_edge - total / n, 0.0)
        rest += tl.sum(x_edge, axis=1)[:, None]
        squares += tl.sum(x_edge * x_edge, axis=1)[:, None]
    rest = rest / n
    scale = tl.rsqrt(squares / n - rest * rest + EPS)
    w = tl.load(w_ptr + head + lanes, mask=lanes < body, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + head + lanes, mask=lanes < body, other=0.0).to(tl.float32)
    tl.store(out_ptr + aligned(rows * out_stride, SHIFTED) + lanes, (d - rest) * scale * w + b, mask=inside)
    if SHIFTED or n % VECTOR != 0:
        w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
        b_edge = tl.load(b_ptr + columns, mask=loose, other=0.0).to(tl.float32)
        tl.store(out_ptr + rows * out_stride + columns, (x_edge - rest) * scale * w_edge + b_edge, mask=loose)


@triton.jit(do_not_specialize=["n"])
def rms_tiles(
    x_ptr,  # x, one row of n elements a program
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, as many rows; before it the sum, as many, if RESIDUAL
    n,  # columns, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide, unless SHIFTED
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y; a multiple of 16 makes stores of y wide
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SHIFTED: tl.constexpr,  # whether rows start anywhere, in all operands alike
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the RMSNorm of a wide row of x, or of the sum of x and the residual."""
    row = tl.program_id(0).to(tl.int64)
    head, body = split(row * x_stride, n, SHIFTED)
    source = x_ptr + aligned(row * x_stride, SHIFTED)
    r_body = r_ptr + aligned(row * r_stride, SHIFTED)
    out_body = out_ptr + aligned(row * out_stride, SHIFTED)
    columns = edge_columns(head, body, tl.arange(0, EDGE))
    loose = tl.arange(0, EDGE) < n - body
    x_edge = read(x_ptr + row * x_stride + columns, r_ptr + row * r_stride + columns, loose, RESIDUAL, "")
    if RESIDUAL:
        tl.store(out_ptr + row * out_stride + columns, x_edge, mask=loose)
    x_edge = x_edge.to(tl.float32)
    squares = tl.zeros((WIDTH,), tl.float32)
    tiles = tl.cdiv(body, WIDTH * ACCESSES)
    for tile in range(tiles):
        for access in tl.static_range(ACCESSES):
            lanes = (tile * ACCESSES + access) * WIDTH + tl.arange(0, WIDTH)
            x = read(source + lanes, r_body + lanes, lanes < body, RESIDUAL, DROP if RESIDUAL else KEEP)
            if RESIDUAL:
                tl.store(out_body + lanes, x, mask=lanes < body, eviction_policy=KEEP)
            squares += x.to(tl.float32) * x.to(tl.float32)
    scale = tl.rsqrt((tl.sum(squares) + tl.sum(x_edge * x_edge)) / n + EPS)
    w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    tl.store(out_ptr + plane + row * out_stride + columns, x_edge * scale * w_edge, mask=loose)
    if RESIDUAL:
        tl.debug_barrier()  # a thread may read a sum that another has stored
        source = out_body
    for step in range(tiles):
        lanes = (tiles - 1 - step) * (WIDTH * ACCESSES) + tl.arange(0, WIDTH * ACCESSES)
        x = tl.load(source + lanes, mask=lanes < body, other=0.0, eviction_policy=DROP).to(tl.float32)
        w = tl.load(w_ptr + head + lanes, mask=lanes < body, other=0.0, eviction_policy=KEEP).to(tl.float32)
        tl.store(out_body + plane + lanes, x * scale * w, mask=lanes < body, eviction_policy=DROP)


@triton.jit(do_not_specialize=["n"])
def layer_tiles(
    x_ptr,  # x, one row of n elements a program
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    out_ptr,  # y, as many rows
    n,  # columns, at least WIDTH + VECTOR, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide, unless SHIFTED
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the variance
    SHIFTED: tl.constexpr,  # whether rows start anywhere, in x and y alike
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the LayerNorm of a wide row of x."""
    row = tl.program_id(0).to(tl.int64)
    head, body = split(row * x_stride, n, SHIFTED)
    x_body = x_ptr + aligned(row * x_stride, SHIFTED)
    tiles = tl.cdiv(body, WIDTH * ACCESSES)
    # Some mean of the row itself is near enough to its mean for nothing to cancel in sums of what differs from it.
    pivot = tl.sum(tl.load(x_body + tl.arange(0, WIDTH)).to(tl.float32)) / WIDTH
    columns = edge_columns(head, body, tl.arange(0, EDGE))
    loose = tl.arange(0, EDGE) < n - body
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
    d_edge = tl.where(loose, x_edge - pivot, 0.0)
    total = tl.zeros((WIDTH,), tl.float32)
    squares = tl.zeros((WIDTH,), tl.float32)
    for tile in range(tiles):
        for access in tl.static_range(ACCESSES):
            lanes = (tile * ACCESSES + access) * WIDTH + tl.arange(0, WIDTH)
            inside = lanes < body
            x = tl.load(x_body + lanes, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
            d = tl.where(inside, x - pivot, 0.0)
            total += d
            squares += d * d
    mean = (tl.sum(total) + tl.sum(d_edge)) / n  # of the differences
    variance = (tl.sum(squares) + tl.sum(d_edge * d_edge)) / n - mean * mean
    scale = tl.rsqrt(tl.maximum(variance, 0.0, propagate_nan=tl.PropagateNan.ALL) + EPS)
    w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    b_edge = tl.load(b_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, (d_edge - mean) * scale * w_edge + b_edge, mask=loose)
    out_body = out_ptr + aligned(row * out_stride, SHIFTED)
    for step in range(tiles):
        lanes = (tiles - 1 - step) * (WIDTH * ACCESSES) + tl.arange(0, WIDTH * ACCESSES)
        inside = lanes < body
        x = tl.load(x_body + lanes, mask=inside, other=0.0, eviction_policy=DROP).to(tl.float32)
        w = tl.load(w_ptr + head + lanes, mask=inside, other=0.0, eviction_policy=KEEP)
        b = tl.load(b_ptr + head + lanes, mask=inside, other=0.0, eviction_policy=KEEP)
        y = (x - pivot - mean) * scale * w.to(tl.float32) + b.to(tl.float32)
        tl.store(out_body + lanes, y, mask=inside, eviction_policy=DROP)


_KERNELS = {
    "rmsnorm": (rms_rows, rms_tiles, {"EPS": RMS_EPS, "RESIDUAL": False}),
    "layernorm": (layer_rows, layer_tiles, {"EPS": LAYER_EPS}),
    "residual-rmsnorm": (rms_rows, rms_tiles, {"EPS": RMS_EPS, "RESIDUAL": True}),
}


def _variants(op: str, dtype: torch.dtype, shifted: bool) -> list[tuple[int, Variant]]:
    """Return the variants of an operation, narrow rows first, each with the longest body it is for."""
    rows, tiles, constants = _KERNELS[op]
    # Anything else of 16,384 columns, kept in registers, leaves no room for a second program, or spills on sm_80.
    longest = 16384 if op == "rmsnorm" and dtype.itemsize == 2 and not shifted else 8192
    configs = [(rows, block, warps, {"ROWS": count, "BLOCK": block}) for count, block, warps in ROWS_BLOCK_WARPS]
    configs = [config for config in configs if config[1] <= longest]
    # Fewer, larger programs keep fewer rows of 256k in L2; shifted ones need more registers than those leave.
    for limit, warps in ((MAX_COLUMNS, 8),) if shifted else ((2**17, 16), (MAX_COLUMNS, 32)):
        width = warps * 32 * ALIGNMENT_BYTES // dtype.itemsize
        configs.append((tiles, limit, warps, {"WIDTH": width, "ACCESSES": ACCESSES}))
    found, constants = [], constants | {"SHIFTED": shifted}
    for kernel, limit, warps, sizes in configs:
        options = {"num_warps": warps, "enable_fp_fusion": True}
        if shifted or sizes.get("ROWS", 1) > 1:  # left to itself, ptxas aims at too few registers and spills some
            options["maxnreg"] = 184 if shifted and sizes.get("ROWS") == 16 else 128
        shapes = f"n <= {limit + 15}" + ", shifted rows" * shifted
        moved = (elements := math.prod(sizes.values())) * dtype.itemsize * (4 if op == "residual-rmsnorm" else 2)
        names = {"op": op, "dtype": DTYPES[dtype], "shape_class": shapes}
        found.append((limit, Variant(kernel, constants | sizes, options, **names, elements=elements, bytes=moved)))
    return found


VARIANTS: dict[tuple[str, torch.dtype, bool], list[tuple[int, Variant]]] = {
    (op, dtype, shifted): _variants(op, dtype, shifted)
    for op, dtype, shifted in itertools.product(_KERNELS, DTYPES, (False, True))
}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return everything this file compiles, the same for every architecture.

    For wide rows `elements` and `bytes` are of a step of both loops; of residual-rmsnorm, elements of one matrix.
    """
    return tuple(variant for limits in VARIANTS.values() for _, variant in limits)


def _row_stride(label: str, name: str, matrix: torch.Tensor) -> int:
    """Return the stride of rows, 0 of a single one; refuse rows that are not dense or that overlap."""
    m, n = matrix.shape
    if (n > 1 and matrix.stride(1) != 1) or (m > 1 and matrix.stride(0) < n):
        raise ValueError(
            f"{label}: {name} of shape {(m, n)} has strides {matrix.stride()}; rows must be dense and must not overlap"
        )
    return matrix.stride(0) if m > 1 else 0


def _launch(op: str, matrices: dict[str, torch.Tensor], vectors: dict[str, torch.Tensor], out: torch.Tensor) -> None:
    label, x = f"{op} v3", matrices["x"]
    require_tensors(label, **matrices, **vectors, out=out)
    require_contiguous(label, **vectors)
    if x.dim() != 2:
        raise ValueError(f"{label}: x has shape {tuple(x.shape)}; two dimensions are needed, (rows, columns)")
    m, n = x.shape
    if n > MAX_COLUMNS:
        raise ValueError(f"{label}: x has {n} columns; at most {MAX_COLUMNS} are supported")
    for name, tensor in (matrices | vectors).items():
        require_shape(label, name, tensor, (m, n) if name in matrices else (n,))
    require_shape(label, "out", out, (2, m, n) if "residual" in matrices else (m, n))
    planes = out if out.dim() == 3 else out[None]
    strides = [_row_stride(label, name, tensor) for name, tensor in (matrices | {"out": planes[0]}).items()]
    if len(planes) == 2 and planes.stride(0) < (m - 1) * strides[-1] + n:
        raise ValueError(f"{label}: out has strides {out.stride()}; its two matrices must not overlap")
    if out.numel() == 0:
        return
    offsets = {stride % VECTOR.value for stride in strides}
    limits = VARIANTS[op, x.dtype, len(offsets) == 1 and offsets != {0}]
    variant = next(variant for limit, variant in limits if n // VECTOR.value * VECTOR.value <= limit)
    operands, sizes = [*matrices.values(), *vectors.values(), out], [n, *strides]
    if op != "layernorm":
        sizes = [n, strides[0], *strides[-2:], planes.stride(0) if len(planes) == 2 else 0]
        operands = [x, *operands] if op == "rmsnorm" else operands
    rows = variant.constants.get("ROWS")
    variant.launch(triton.cdiv(m, rows or 1), *operands, *([m] if rows else []), *sizes)


def _rmsnorm(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    _launch("rmsnorm", {"x": x}, {"weight": weight}, out)


def _layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, out: torch.Tensor) -> None:
    _launch("layernorm", {"x": x}, {"weight": weight, "bias": bias}, out)


def _residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    _launch("residual-rmsnorm", {"x": x, "residual": residual}, {"weight": weight}, out)


KERNELS: dict[str, Callable[..., None]] = {"rmsnorm": _rmsnorm, "layernorm": _layernorm, "residual-rmsnorm": _residual}
