"""The estimate `intensity`: operations from elementwise to a large matmul against the ridge of a
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil, prod
from typing import Annotated, NamedTuple, Unpack

from roofline.accounting import inference
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.machines import bandwidth_of
from roofline.accounting.presets import load_preset
from roofline.estimate.answer import Answer, Row, steps_of
from roofline.estimate.options import MAX_SOURCES, Computing, Use, uses_of
from roofline.estimate.products import OUT_DTYPES, under_roofs
from roofline.estimate.question import extents, question
from roofline.machine import MEASURED_FIRST
from roofline.model import bound, mfu, ridge_intensity
from roofline.model import intensity as intensity_of
from roofline.work import (
    FLOPS_PER_ELEMENT,
    LABEL_BYTES,
    VECTOR_OPS,
    Work,
    adamw_work,
    causal_attention_work,
    cross_entropy_work,
    elementwise_work,
    grouped_matmul_work,
    int8_matvec_work,
    matmul_work,
    matvec_work,
    quantize_work,
    reduction_work,
    rope_work,
)


class Operation(NamedTuple):
    """An operation as in `python -m bench list`, by the number of its axes."""

    shape: tuple[int, ...] | None
    """Default; None for matmuls, which have `SMALL`, the size at the ridge, and `LARGE`."""
    axes: int | None
    """None: any number, whose product counts."""
    work: Callable[..., Work]
    """Of the extents and the dtype."""


def elementwise(flops: int, inputs: int, other: int = 0) -> Operation:
    return Operation(
        (4096, 4096),
        None,
        lambda n, dtype: elementwise_work(n, flops, inputs, dtype, other_bytes=other),
    )


def reduction(flops: int, inputs: int) -> Operation:
    return Operation((2**24,), None, lambda n, dtype: reduction_work(n, flops, inputs, dtype))


def row_operation(flops: int, matrices: int, vectors: int, outputs: int) -> Operation:
    def work(m: int, n: int, dtype: str) -> Work:
        return elementwise_work(m * n, flops, matrices, dtype, vectors * n, outputs)

    return Operation((32768, 4096), 2, work)


def decoding(work: Callable[[ModelConfig, int, int, str], Work]) -> Operation:
    return Operation((64, 1024), 2, lambda b, s, dtype: work(load_preset(MODEL), s, b, dtype))


def experts(tokens: int, n: int, k: int, dtype: str) -> Work:
    ends = [tokens * place // EXPERTS for place in range(EXPERTS + 1)]
    return grouped_matmul_work([end - start for start, end in pairwise(ends)], n, k, dtype)


def rope(tokens: int, dtype: str) -> Work:
    return rope_work(tokens, HEADS + KV_HEADS, HEAD_DIM, dtype)


def losses(m: int, v: int, dtype: str) -> Work:
    return cross_entropy_work(m, v, dtype, "fp64" if dtype == "fp64" else "fp32")


HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
"""Of attention, as in Llama 3 8B."""
MODEL = "llama-3-8b"
"""Of decoding."""
EXPERTS = 8
"""Of a grouped matmul, with as many tokens each, as in Mixtral 8x7B."""

INPUTS = {"relu": 1, "gelu": 1, "silu": 1, "add": 2, "mul": 2, "triad": 2, "swiglu": 2}
OPERATIONS = {name: elementwise(FLOPS_PER_ELEMENT[name], inputs) for name, inputs in INPUTS.items()}
OPERATIONS |= {
    "dot": reduction(FLOPS_PER_ELEMENT["dot"], 2),
    "matvec": Operation((8192, 8192), 2, matvec_work),
    "matmul": Operation(
        None,
        3,
        lambda m, n, k, dtype: matmul_work(m, n, k, dtype, OUT_DTYPES.get(dtype, str(dtype))),
    ),
    "gelu-tanh": elementwise(FLOPS_PER_ELEMENT["gelu"], 1),
    "bias-gelu": row_operation(FLOPS_PER_ELEMENT["gelu"] + 1, 1, 1, 1),
    "residual-add": elementwise(FLOPS_PER_ELEMENT["add"], 2),
    "sum": reduction(FLOPS_PER_ELEMENT["sum"], 1),
    "softmax": row_operation(FLOPS_PER_ELEMENT["softmax"], 1, 0, 1),
    "rmsnorm": row_operation(FLOPS_PER_ELEMENT["rmsnorm"], 1, 1, 1),
    "layernorm": row_operation(FLOPS_PER_ELEMENT["layernorm"], 1, 2, 1),
    "residual-rmsnorm": row_operation(FLOPS_PER_ELEMENT["residual-rmsnorm"], 2, 1, 2),
    "quantize-fp8": Operation((8192, 8192), 2, lambda m, n, dtype: quantize_work(m * n, m, dtype)),
    "quantize-fp8-block": Operation(
        (8192, 8192), 2, lambda m, n, dtype: quantize_work(m * n, m * n // 128, dtype)
    ),
    "adamw": Operation((2**27,), None, adamw_work),
    "rope": Operation((4096,), 1, rope),
    "rope-interleaved": Operation((4096,), 1, rope),
    "cross-entropy": Operation((8192, 128256), 2, losses),
    "matvec-int8": Operation((8192, 8192), 2, int8_matvec_work),
    "prefill-attention": Operation(
        (4096,), 1, lambda s, dtype: causal_attention_work(1, s, HEADS, KV_HEADS, HEAD_DIM, dtype)
    ),
    "copy": elementwise(0, 1),
    "dropout": elementwise(1, 1, LABEL_BYTES),
    "grouped-matmul": Operation((4096, 14336, 4096), 3, experts),
    "decode-attention": decoding(inference.decode_attention_work),
    "decode-block": decoding(inference.decode_layer_work),
    "decode-step": decoding(inference.decode_step_work),
}
LADDER = ("relu", "gelu", "dot", "matvec", "matmul")
"""Operations by default, those of the lecture."""
SMALL = 256
LARGE = 8192

STEPS = """\
ridge | {peak:number} / {bandwidth:number} B/s | {ridge:number} FLOP/B
matmul at the ridge | {product.flops:count} FLOPs / {product.bytes:count} bytes | n = {n}
"""


@question
def intensity(
    op: Annotated[list[str] | None, tuple(OPERATIONS)] = None,
    shape: Annotated[tuple[int, ...], extents] | None = None,
    **options: Unpack[Computing],
) -> Answer:
    """Arithmetic intensity of operations, and the FLOP/s that a machine can reach at it."""
    uses = uses_of(options)
    rows: list[Row] = []
    roofs = {}
    values = {}
    machine_columns = {"gpu": "GPU", "dtype": "dtype"}
    for use in uses.uses:
        roofs[f"{use.machine.slug} in {use.dtype}"] = (use.peak, bandwidth_of(use.machine))
        for name in op or LADDER:
            rows += [_row(use, name, extent) for extent in _shapes(use, name, shape)]
    use = uses.uses[0]
    bandwidth = bandwidth_of(use.machine)
    ridge = ridge_intensity(use.peak, bandwidth)
    if len(roofs) == 1:
        values["ridge"] = ridge
        machine_columns = {}
    points = {}
    for row in rows:
        if row["flops"]:
            label = " ".join(row[key] for key in ("op", "shape", *machine_columns))
            points[label] = (row["intensity"], row["attainable_flops_per_s"])
    side = _side_at_ridge(use)
    machines = ", ".join(roofs)
    if len(roofs) > MAX_SOURCES:
        machines = f"{len(roofs)} machines"
    return Answer(
        main=("ridge",),
        title=f"Arithmetic intensity on {machines}",
        values=values,
        rows=rows,
        columns={
            "op": "op",
            "shape": "shape",
            **machine_columns,
            "flops": "FLOPs",
            "bytes": "bytes",
            "intensity": "FLOP/B",
            "min_time_s": "time",
            "bound": "bound",
            "attainable_flops_per_s": "attainable",
            "peak_pct": "% of peak",
        },
        steps=steps_of(
            STEPS,
            peak=use.peak,
            bandwidth=bandwidth,
            ridge=ridge,
            product=_work("matmul", (side, side, side), use.dtype),
            n=side,
        ),
        formula="intensity = FLOPs / bytes; attainable = min(peak, intensity x bandwidth); ridge "
        "= peak / bandwidth",
        source=f"Williams, Waterman and Patterson (2009); CS336 lecture 2; {uses.source}",
        assumptions=[
            (
                "each input is read once and each output written once; GELU counts 20 FLOPs per "
                "element"
            ),
            "attention has 32 heads, 8 of keys and values; grouped-matmul has 8 experts",
            "decoding is one token for each of b sequences of s, with the weights of llama-3-8b",
            "memory-bound below the ridge; mixed if the times of compute and memory are within 10 %",  # noqa: E501
            (
                "% of peak: of the dense peak of matmuls; operations without matmuls are limited "
                "by the peak of the vector units"
            ),
            *uses.notes,
        ],
        curve=under_roofs(roofs, points),
    )


def _work(op: str, shape: tuple[int, ...], dtype: str) -> Work:
    operation = OPERATIONS[op]
    extents = (prod(shape),) if operation.axes is None else shape
    return operation.work(*extents, dtype)


def _row(use: Use, op: str, shape: tuple[int, ...]) -> Row:
    work = _work(op, shape, use.dtype)
    peak = use.peak
    if op in VECTOR_OPS and (vector := use.machine.vector_peak(use.dtype, MEASURED_FIRST)):
        peak = vector.value
    bandwidth = bandwidth_of(use.machine, work)
    compute_s = work.flops / peak
    memory_s = work.bytes / bandwidth
    min_time_s = max(compute_s, memory_s)
    flops_per_s = work.flops / min_time_s
    return {
        "op": op,
        "shape": "x".join(map(str, shape)),
        **use.row,
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": intensity_of(work.flops, work.bytes),
        "min_time_s": min_time_s,
        "bound": bound(compute=compute_s, memory=memory_s),
        "attainable_flops_per_s": flops_per_s,
        "peak_pct": 100 * mfu(flops_per_s, use.peak),
    }


def _side_at_ridge(use: Use) -> int:
    """Return the smallest n of a square matmul at or above the ridge: 2 n^3 / (w n^2), w the bytes
    of A, B and C.
    """
    bytes_per_element = _work("matmul", (SMALL, SMALL, SMALL), use.dtype).bytes / SMALL**2
    return ceil(ridge_intensity(use.peak, bandwidth_of(use.machine)) * bytes_per_element / 2)


def _shapes(use: Use, op: str, given: tuple[int, ...] | None) -> list[tuple[int, ...]]:
    """Return the shapes of an operation: the given one, or its default."""
    operation = OPERATIONS[op]
    if given is None and operation.shape:
        return [operation.shape]
    if given is None:
        sides = sorted({SMALL, _side_at_ridge(use), LARGE})
        return [(side, side, side) for side in sides]
    axes = operation.axes or len(given)
    if len(given) not in (1, axes):
        raise ConfigError(
            f"--shape of {len(given)} numbers does not fit {op}: write one number or {axes}"
        )
    return [given * axes if len(given) == 1 else given]
