"""The work of operations: FLOPs and compulsory bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DTYPE_BITS = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8e4m3": 8,
    "fp8e5m2": 8,
    "int8": 8,
    "nvfp4": 4,
    "mxfp4": 4,
    "int4": 4,
    "int32": 32,
    "int64": 64,
    "int16": 16,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "uint64": 64,
    "bool": 8,
}
"""Bits of one element in memory, without the scale factors of block-scaled formats; tf32 is stored
as fp32.
"""

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8e4m3", "fp8e5m2", "int8", "nvfp4")
"""Dtypes of operands; outputs of int8 matmuls and profile rows may have others."""

OTHER_NAMES = {
    **dict.fromkeys(("float64", "double", "f64"), "fp64"),
    **dict.fromkeys(("float32", "float", "f32"), "fp32"),
    **dict.fromkeys(("float16", "half", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfp16"), "bf16"),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3", "fp8e4m3fn", "e4m3"), "fp8e4m3"),
    **dict.fromkeys(("float8e5m2", "e5m2"), "fp8e5m2"),
    "tfloat32": "tf32",
    "i8": "int8",
}
"""Other names of these dtypes, without `torch.` and underscores."""

LABEL_BYTES = 8
"""Bytes of a label or a seed: int64, as class indices in torch."""

OFFSET_BYTES = 4
"""Bytes of the end offset of a token group: int32, as in torch."""

FLOPS_PER_ELEMENT = {
    "add": 1,
    "mul": 1,
    "triad": 2,
    "relu": 1,
    "gelu": 20,
    "silu": 4,
    "swiglu": 5,
    "softmax": 5,
    "rmsnorm": 4,
    "layernorm": 7,
    "residual-rmsnorm": 5,
    "rope": 3,
    "sum": 1,
    "dot": 2,
}
"""Additions, multiplications, divisions, negations, comparisons and exponentials count as 1; GELU,
with the error function or the hyperbolic tangent, as 20."""

VECTOR_OPS = {
    *FLOPS_PER_ELEMENT,
    "copy",
    "gelu-tanh",
    "bias-gelu",
    "residual-add",
    "dropout",
    "cross-entropy",
    "rope-interleaved",
    "quantize-fp8",
    "quantize-fp8-block",
}
"""Vector ops of older records, which have no `units`."""


def dtype_named(word: str) -> str:
    """Return the dtype of a name, also of a torch name; unknown names are returned unchanged."""
    plain = word.lower().removeprefix("torch.").replace("_", "").replace("-", "")
    return OTHER_NAMES.get(plain, plain if plain in DTYPE_BITS else word)


def ordered_dtypes(dtypes: Iterable[str]) -> list[str]:
    """Return each dtype once, in the order of `DTYPES`; unknown ones last, by name."""
    rank = {dtype: index for index, dtype in enumerate(DTYPES)}
    return sorted(set(dtypes), key=lambda dtype: (rank.get(dtype, len(rank)), dtype))


def bytes_of(elements: int, dtype: str) -> int:
    """Return the bytes of `elements` of `dtype`, rounded up; ValueError if the dtype is unknown."""
    if dtype not in DTYPE_BITS:
        raise ValueError(f"unknown dtype '{dtype}'; known: {', '.join(DTYPES)}")
    return -(-elements * DTYPE_BITS[dtype] // 8)


@dataclass(frozen=True)
class Work:
    """FLOPs and compulsory bytes of one launch: integers from 0.

    Compulsory bytes are what every implementation must move: each input read once, each output
    written once. Broadcast operands count at their stored size.
    """

    flops: int
    """Floating-point operations; a fused multiply-add counts as 2."""
    bytes_read: int
    bytes_written: int

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_read", "bytes_written"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer from 0, got {value!r}")

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


def matmul_work(m: int, n: int, k: int, dtype: str, out_dtype: str, batch: int = 1) -> Work:
    """Return the work of C = A B with A (m, k), B (k, n), C (m, n), `batch` times.

    FLOPs = 2 m n k: one multiplication and one addition for each of the m n k products.
    Bytes = A and B read once, C written once.

    Source: CS336 (2025) lecture 2 for FLOPs; Austin et al., How to Scale Your Model (2025), chapter
    1, for bytes.
    """
    return Work(
        flops=2 * batch * m * n * k,
        bytes_read=bytes_of(batch * (m * k + k * n), dtype),
        bytes_written=bytes_of(batch * m * n, out_dtype),
    )


def grouped_matmul_work(tokens: Sequence[int], n: int, k: int, dtype: str) -> Work:
    """Return the work of multiplying the `tokens` of each expert, of width k, by its own matrix (k,
    n).

    FLOPs = 2 t n k for t tokens in all: each passes through one matrix.
    Bytes = t k of tokens, 4 for the end of each expert's tokens, and k n for every expert that has
        a token, read once; t n written.

    Source: `matmul_work`, expert by expert.
    """
    total = sum(tokens)
    used = sum(count > 0 for count in tokens)
    return Work(
        flops=2 * total * n * k,
        bytes_read=bytes_of(total * k + used * k * n, dtype) + OFFSET_BYTES * len(tokens),
        bytes_written=bytes_of(total * n, dtype),
    )


def causal_pairs(queries: int, keys: int, window: int) -> int:
    """Return the sum over queries of min(window, keys up to its own); the last query sees all
    keys.
    """
    first = keys - queries + 1
    growing = max(0, min(queries, window - first))
    return growing * first + growing * (growing - 1) // 2 + (queries - growing) * window


def causal_attention_work(
    batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> Work:
    """Return the work of causal attention in `batch` sequences: each token sees itself and earlier
    ones.

    FLOPs = 4 d for each of the tokens (tokens + 1) / 2 pairs of each query head: 2 d for its score
        and 2 d for its part of the output. Softmax is not counted.
    Bytes = queries, keys and values read once, the output written once.

    Source: Dao, FlashAttention-2 (2023), section 4.1, which halves 4 tokens^2 d for a causal mask.
    """
    pairs = batch * heads * causal_pairs(tokens, tokens, tokens)
    return Work(
        flops=4 * head_dim * pairs,
        bytes_read=bytes_of(batch * tokens * head_dim * (heads + 2 * kv_heads), dtype),
        bytes_written=bytes_of(batch * tokens * head_dim * heads, dtype),
    )


def matvec_work(m: int, n: int, dtype: str) -> Work:
    """Return the work of y = A x with A (m, n), x (n), y (m): a matmul with one column."""
    return matmul_work(m, 1, n, dtype, dtype)


def int8_matvec_work(m: int, n: int, dtype: str) -> Work:
    """Return the work of y = (A x) s with A (m, n) in int8, x (n) and y (m) in `dtype`, scales s
    (m) in fp32.

    FLOPs = 2 m n + m: the matmul, and one multiplication by the scale per row. Conversions are not
    counted.
    Bytes = m n of weights, x and the scales read once, y written once.
    """
    return Work(
        flops=2 * m * n + m,
        bytes_read=bytes_of(m * n, "int8") + bytes_of(n, dtype) + bytes_of(m, "fp32"),
        bytes_written=bytes_of(m, dtype),
    )


def elementwise_work(
    elements: int,
    flops_per_element: int,
    inputs: int,
    dtype: str,
    broadcast_elements: int = 0,
    outputs: int = 1,
    other_bytes: int = 0,
) -> Work:
    """Return the work of an operation that maps `inputs` arrays of `elements` to `outputs` of the
    same size.

    This includes row operations that read each row once. Smaller operands
    (`broadcast_elements`) and those of another dtype (`other_bytes`) are read once.
    """
    return Work(
        flops=flops_per_element * elements,
        bytes_read=bytes_of(inputs * elements + broadcast_elements, dtype) + other_bytes,
        bytes_written=bytes_of(outputs * elements, dtype),
    )


def rope_work(tokens: int, heads: int, head_dim: int, dtype: str) -> Work:
    """Return the work of turning all `heads` of each token, queries and keys, by its angles.

    FLOPs = 3 per element: 4 products and 2 additions for each pair.
    Bytes = the heads read and written once, and for each token head_dim / 2 cosines and as many
        sines read.

    Source: Su et al., RoFormer (2021), section 3.4.2, equation 34.
    """
    elements = tokens * heads * head_dim
    return elementwise_work(
        elements, FLOPS_PER_ELEMENT["rope"], 1, dtype, broadcast_elements=tokens * head_dim
    )


def quantize_work(elements: int, scales: int, dtype: str) -> Work:
    """Return the work of quantizing `elements` to fp8 with `scales` scales in fp32.

    FLOPs = 2 per element: a comparison for the maximum, and a division by the scale.
    Bytes = the elements read once, a byte for each and 4 for each scale written.

    Source: DeepSeek-V3 technical report (2024), section 3.3.
    """
    return Work(
        flops=2 * elements,
        bytes_read=bytes_of(elements, dtype),
        bytes_written=bytes_of(elements, "fp8e4m3") + bytes_of(scales, "fp32"),
    )


def adamw_work(parameters: int, dtype: str) -> Work:
    """Return the work of a step of AdamW on `parameters` in `dtype` with state in fp32.

    FLOPs = 14 per parameter: 3 for the mean, 4 for the mean of squares, 3 for the denominator, 4
        for the parameter.
    Bytes = parameter, gradient and state of 8 bytes read once, parameter and state written.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2.
    """
    state_bytes = bytes_of(2 * parameters, "fp32")
    return Work(
        flops=14 * parameters,
        bytes_read=bytes_of(2 * parameters, dtype) + state_bytes,
        bytes_written=bytes_of(parameters, dtype) + state_bytes,
    )


def cross_entropy_work(m: int, v: int, dtype: str, out_dtype: str) -> Work:
    """Return the work of the cross entropy of m rows of v logits with labels.

    FLOPs = 4 m v: per logit one comparison, subtraction, exponential and addition.
    Bytes = the logits and m labels of 8 bytes read once, m losses written.
    """
    return Work(
        flops=4 * m * v,
        bytes_read=bytes_of(m * v, dtype) + LABEL_BYTES * m,
        bytes_written=bytes_of(m, out_dtype),
    )


def reduction_work(elements: int, flops_per_element: int, inputs: int, dtype: str) -> Work:
    """Return the work of reducing `inputs` arrays of `elements` to one number of the same dtype.

    n elements count as n additions; CS336 (2025) lecture 2 counts n - 1.
    """
    return Work(
        flops=flops_per_element * elements,
        bytes_read=bytes_of(inputs * elements, dtype),
        bytes_written=bytes_of(1, dtype),
    )
