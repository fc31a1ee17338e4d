"""Version 2 of cross-entropy: one read of the logits, 16 bytes an access wherever a row starts and ends.

Computes loss_i = log(sum_j exp(x_ij)) - x_ij at j = label_i, for logits x of shape (m, v) and labels of shape (m,),
int64. The loss is fp32 whatever the dtype of the logits.

A label of -100 gives the loss 0, whatever its row holds: it is the default `ignore_index` of torch. Any other label
outside of 0 .. v-1 gives NaN; nothing is read for it.

Bytes moved, for logits of e bytes: read m v e + 8 m, written 4 m. The logit of the label is fetched once more, 32 bytes
a row, which is not counted.

Rounding: logits are widened to fp32, everything runs in fp32, and the loss is not rounded further. The maximum and the
logit are subtracted before the logarithm is added, so that an offset common to a row costs no digits of its loss.
e^d is taken as 2^(d log2(e)) of the difference d from the maximum, never of x itself: folding the maximum into one
multiply-add is an instruction less, but where that add is not fused, logits near 10^4 lose three digits.

Special values, as torch: a row with NaN or +inf has the loss NaN, so has a row of nothing but -inf; a label whose logit
is -inf has the loss +inf. `tl.max` drops NaN, but the exponential of NaN is NaN and spoils the sum. The running maximum
starts at the lowest finite number, because -inf - -inf, in a row that only begins with -inf, would be NaN.

Changed against the last version, and why:
- One pass keeps a running maximum and a running sum (Milakov and Gimelshein, "Online normalizer calculation for
  softmax", 2018), so half the bytes are moved. Both are kept for each lane: threads exchange nothing until the end.
- A row is cut where addresses are multiples of 16 elements: a body, and fewer than 16 elements at either end. The body
  is read 16 bytes a thread, whatever v and the stride are, also where a row has 50,257 elements and each starts at
  another remainder; only its last step has a mask.
- A `tl.range` loop with several stages: steps are copied to shared memory ahead of their use.

What it leaves out: rows shared between programs, so fewer rows than multiprocessors leave some idle.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, require_contiguous, require_shape, require_tensors

WARPS = 8
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight
MAX_COLUMNS = 2**30  # a column number plus one step still fits 32 bits
UNIT = tl.constexpr(16)  # elements; what Triton takes as known of an aligned number
EDGES = tl.constexpr(32)  # room for what is left of a row at both ends

IGNORED = tl.constexpr(-100)  # the label that torch ignores by default
LOG2_E = tl.constexpr(1.4426950408889634)  # log2(e)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of fp32


@triton.jit
def row_cuts(
    first,  # offset of the row's first element, int64
    v,  # elements a row
):
    """Cut a row at multiples of UNIT: start and length of the body, then positions and mask of the elements beside."""
    last = first + v
    body = (first + UNIT - 1) // UNIT * UNIT
    units = tl.maximum(last // UNIT - body // UNIT, 0)
    length = units.to(tl.int32) * UNIT
    lanes = tl.arange(0, EDGES)
    is_head = lanes < UNIT
    edges = tl.where(is_head, first + lanes, last // UNIT * UNIT + lanes - UNIT)
    # Where the whole row lies between two multiples of UNIT, it is all head.
    return body, length, edges, (edges < last) & ((edges < body) == is_head)


@triton.jit
def running(
    highest,  # maximum so far, a lane
    total,  # sum so far of exponentials of the difference from it, a lane
    x,  # DEPTH further elements of each lane
):
    """Take a step of elements into the running maximum and sum of each lane."""
    x = x.to(tl.float32)
    higher = tl.maximum(highest, tl.max(x, axis=0))
    e = tl.exp2((x - higher[None, :]) * LOG2_E)
    return higher, total * tl.exp2((highest - higher) * LOG2_E) + tl.sum(e, axis=0)


@triton.jit(do_not_specialize=["v", "x_stride"])
def cross_entropy_online(
    x_ptr,  # logits, m rows of v elements, each row dense
    labels_ptr,  # m labels
    out_ptr,  # loss, m elements
    v,  # elements a row, not specialized: one binary serves every v
    x_stride,  # elements from one row of x to the next
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
):
    """Write the loss of one row."""
    STEP: tl.constexpr = DEPTH * LANES
    row = tl.program_id(0).to(tl.int64)
    first = row * x_stride
    # Asked for before the loop, so that its two round trips to memory are over when the loop is.
    label = tl.load(labels_ptr + row)
    picked = tl.load(x_ptr + first + label, mask=(label >= 0) & (label < v), other=float("nan")).to(tl.float32)

    body, length, edges, edge_inside = row_cuts(first, v)
    lanes = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    full = length // STEP * STEP
    x_body = x_ptr + body
    highest = tl.full((LANES,), LOWEST, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    for start in tl.range(0, full, STEP, num_stages=STAGES):
        x = tl.load(x_body + start + lanes, eviction_policy="evict_first")
        highest, total = running(highest, total, x)
    x_rest = tl.load(x_body + full + lanes, mask=lanes < length - full, other=float("-inf"))
    highest, total = running(highest, total, x_rest)
    x_edge = tl.load(x_ptr + edges, mask=edge_inside, other=float("-inf")).to(tl.float32)

    top = tl.maximum(tl.max(highest, axis=0), tl.max(x_edge, axis=0))
    of_lanes = tl.sum(total * tl.exp2((highest - top) * LOG2_E), axis=0)
    row_total = of_lanes + tl.sum(tl.exp2((x_edge - top) * LOG2_E), axis=0)
    loss = (top - picked) + tl.log(row_total)
    tl.store(out_ptr + row, tl.where(label == IGNORED, 0.0, loss))


def _variant(dtype: torch.dtype) -> Variant:
    lanes = WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    return Variant(
        kernel=cross_entropy_online,
        constants={"DEPTH": DEPTH, "LANES": lanes, "STAGES": STAGES},
        options={"num_warps": WARPS, "enable_fp_fusion": True},
        op="cross-entropy",
        dtype=DTYPES[dtype],
        shape_class="any v",
        types={"labels_ptr": "*i64", "out_ptr": "*fp32"},
        elements=DEPTH * lanes,
        bytes=DEPTH * lanes * dtype.itemsize,
    )


VARIANTS: dict[torch.dtype, Variant] = {dtype: _variant(dtype) for dtype in DTYPES}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return every variant compiled for an architecture, 80 for sm_80; here they are the same for all."""
    return tuple(VARIANTS.values())


def _require_companion(label: str, name: str, tensor: torch.Tensor, dtype: torch.dtype, logits: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{label}: {name} is of type {type(tensor).__name__}; pass a torch tensor")
    if tensor.dtype != dtype:
        raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; {dtype} is needed")
    if tensor.device != logits.device:
        raise ValueError(f"{label}: {name} is on {tensor.device}, logits on {logits.device}; use one device")
    if tensor.data_ptr() % ALIGNMENT_BYTES:
        raise ValueError(
            f"{label}: {name} does not start at a multiple of {ALIGNMENT_BYTES} bytes; pass no offset view"
        )
    require_contiguous(label, **{name: tensor})
    require_shape(label, name, tensor, logits.shape[:1])


def _row_stride(label: str, logits: torch.Tensor) -> int:
    if logits.dim() != 2:
        raise ValueError(f"{label}: logits has shape {tuple(logits.shape)}; two dimensions are needed, (m, v)")
    m, v = logits.shape
    stride = logits.stride(0) if m > 1 else v
    if (v > 1 and logits.stride(1) != 1) or stride < v:
        raise ValueError(
            f"{label}: logits of shape {(m, v)} has strides {logits.stride()}; rows must be dense and must not overlap"
        )
    if not 1 <= v <= MAX_COLUMNS:
        raise ValueError(f"{label}: logits has {v} columns; 1 to {MAX_COLUMNS} are supported")
    return stride


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, out: torch.Tensor) -> None:
    label = "cross-entropy v2"
    require_tensors(label, logits=logits)
    stride = _row_stride(label, logits)
    _require_companion(label, "labels", labels, torch.int64, logits)
    _require_companion(label, "out", out, torch.float32, logits)
    m, v = logits.shape
    if m:
        VARIANTS[logits.dtype].launch(m, logits, labels, out, v, stride)


KERNELS: dict[str, Callable[..., None]] = {"cross-entropy": _cross_entropy}
