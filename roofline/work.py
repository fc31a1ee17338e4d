"""The work of an operation: its floating-point operations and its compulsory bytes, counted before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DTYPE_BITS = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,  # a precision of the multiplier: the data in memory is fp32
    "fp16": 16,
    "bf16": 16,
    "fp8e4m3": 8,
    "fp8e5m2": 8,
    "int8": 8,
    "nvfp4": 4,
    "int32": 32,
    "int64": 64,
    "int16": 16,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "uint64": 64,
    "bool": 8,
}
"""Bits that one element takes in memory, without the scale factors of block-scaled formats."""

OTHER_NAMES = {
    **{"float64": "fp64", "double": "fp64", "f64": "fp64", "float32": "fp32", "float": "fp32", "f32": "fp32"},
    **{"tfloat32": "tf32", "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16", "bfp16": "bf16"},
    **{"float8e4m3fn": "fp8e4m3", "float8e4m3": "fp8e4m3", "fp8e4m3fn": "fp8e4m3", "e4m3": "fp8e4m3"},
    **{"float8e5m2": "fp8e5m2", "e5m2": "fp8e5m2", "i8": "int8"},
}
"""What others call these dtypes, torch among them, without `torch.` and underscores."""

LABEL_BYTES = 8
"""Bytes of a label or a seed: int64, as torch takes class indices."""

OFFSET_BYTES = 4
"""Bytes of a place among tokens: int32, as torch takes where groups end."""

DTYPES = tuple(dtype for dtype in DTYPE_BITS if dtype == "int8" or ("int" not in dtype and dtype != "bool"))
"""The dtypes that can be asked for; in the others are outputs of int8 products, and rows of a profile."""


UNITS = ("matrix", "vector")
"""Whose peak judges an operation: tensor cores, or what computes without them."""

VECTOR_OPS = frozenset(
    (
        *("copy", "add", "mul", "triad", "relu", "gelu", "gelu-tanh", "silu", "swiglu", "bias-gelu", "residual-add"),
        *("dropout", "softmax", "rmsnorm", "layernorm", "residual-rmsnorm", "sum", "dot", "cross-entropy"),
    )
)
"""Vector ops of older records, which do not say `units`. New ops say it in their definition."""


FLOPS_PER_ELEMENT = {
    **{"add": 1, "mul": 1, "triad": 2, "relu": 1, "gelu": 20, "silu": 4, "swiglu": 5, "softmax": 5},
    **{"rmsnorm": 4, "layernorm": 7, "residual-rmsnorm": 5, "sum": 1, "dot": 2},
}
"""Counted by formula for each element: additions, products, divisions, negations, comparisons and exponentials are one
each; the error function and the hyperbolic tangent make GELU 20."""


def dtype_named(word: str) -> str:
    """Return the dtype that a word stands for, by the name of torch too; a word that names none as it is."""
    plain = word.lower().removeprefix("torch.").replace("_", "").replace("-", "")
    return OTHER_NAMES.get(plain, plain if plain in DTYPE_BITS else word)


def bytes_of(elements: int, dtype: str) -> int:
    """Return the bytes that `elements` of `dtype` take in memory, rounded up to a whole byte.

    Raises:
        ValueError: the dtype is unknown.
    """
    if dtype not in DTYPE_BITS:
        raise ValueError(f"unknown dtype '{dtype}'; known: {', '.join(DTYPES)}")
    return -(-elements * DTYPE_BITS[dtype] // 8)


@dataclass(frozen=True)
class Work:
    """FLOPs and compulsory bytes of one launch, as whole numbers.

    Compulsory bytes are the least that any implementation must move: each input read once, each output written
    once. Broadcast operands count at their stored size.
    """

    flops: int
    """Floating-point operations; a fused multiply-add counts as 2."""
    bytes_read: int
    bytes_written: int

    def __post_init__(self) -> None:
        """Refuse what cannot be a count.

        Raises:
            ValueError: a value is negative or not a whole number.
        """
        for name in ("flops", "bytes_read", "bytes_written"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number, 0 or more, found {value!r}")

    @property
    def bytes(self) -> int:
        """Compulsory bytes in both directions."""
        return self.bytes_read + self.bytes_written


def matmul_work(m: int, n: int, k: int, dtype: str, out_dtype: str, batch: int = 1) -> Work:
    """Return the work of C = A B with A (m, k), B (k, n), C (m, n), `batch` times.

    FLOPs = 2 m n k: one multiplication and one addition for each of the m n k products.
    Bytes = A and B read once, C written once.

    Source: FLOPs as CS336 (2025) lecture 2 counts them; least traffic w (m k + k n + m n), Austin et al., How to
        Scale Your Model (2025), chapter 1.
    """
    return Work(
        flops=2 * batch * m * n * k,
        bytes_read=bytes_of(batch * (m * k + k * n), dtype),
        bytes_written=bytes_of(batch * m * n, out_dtype),
    )


def grouped_matmul_work(tokens: Sequence[int], n: int, k: int, dtype: str) -> Work:
    """Return the work of multiplying the tokens of each expert by its own matrix (k, n).

    FLOPs = 2 t n k for t tokens in all: each passes through one matrix.
    Bytes = t k of tokens, where those of each expert end in 4 bytes each, and k n for every expert that has a token,
        read once; t n written.

    Args:
        tokens: how many each expert has.
        n: columns of a matrix.
        k: rows of a matrix, the width of a token.
        dtype: of tokens, matrices and output.

    Source: `matmul_work`, expert by expert.
    """
    total, used = sum(tokens), sum(count > 0 for count in tokens)
    return Work(
        flops=2 * total * n * k,
        bytes_read=bytes_of(total * k + used * k * n, dtype) + OFFSET_BYTES * len(tokens),
        bytes_written=bytes_of(total * n, dtype),
    )


def causal_attention_work(batch: int, tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Work:
    """Return the work of causal attention in `batch` sequences: each of `tokens` sees itself and those before.

    FLOPs = 4 d for each pair of tokens that the mask lets through, tokens (tokens + 1) / 2 of them for each query head:
        2 d for its score and 2 d for its share of the output. The softmax is not counted.
    Bytes = queries, keys and values read once, the output written once; scores are no operand.

    Source: Dao, FlashAttention-2 (2023), section 4.1, which halves 4 tokens^2 d for a causal mask.
    """
    pairs = batch * heads * (tokens * (tokens + 1) // 2)
    return Work(
        flops=4 * head_dim * pairs,
        bytes_read=bytes_of(batch * tokens * head_dim * (heads + 2 * kv_heads), dtype),
        bytes_written=bytes_of(batch * tokens * head_dim * heads, dtype),
    )


def matvec_work(m: int, n: int, dtype: str) -> Work:
    """Return the work of y = A x with A (m, n), x (n), y (m): the product of matrices with one column."""
    return matmul_work(m, 1, n, dtype, dtype)


def int8_matvec_work(m: int, n: int, dtype: str) -> Work:
    """Return the work of y = (A x) s with A (m, n) in int8, x (n) and y (m) in `dtype`, scales s (m) in fp32.

    FLOPs = 2 m n + m: the product, and one multiplication by its scale for each row. Widening a weight is none.
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
    """Return the work of an operation that maps `inputs` arrays of `elements` to `outputs` of the same size.

    Operations on rows are of this kind too, where a row is read once and each element of it is written.

    Args:
        elements: elements of one array.
        flops_per_element: declared by the operation, with its source.
        inputs: how many arrays of `elements` are read.
        dtype: of inputs and outputs.
        broadcast_elements: elements of further, smaller operands, such as a bias; read once.
        outputs: how many arrays of `elements` are written.
        other_bytes: bytes of operands of another dtype, such as a seed; read once.
    """
    return Work(
        flops=flops_per_element * elements,
        bytes_read=bytes_of(inputs * elements + broadcast_elements, dtype) + other_bytes,
        bytes_written=bytes_of(outputs * elements, dtype),
    )


def cross_entropy_work(m: int, v: int, dtype: str, out_dtype: str) -> Work:
    """Return the work of the loss of each of m rows of v logits, given a label for each.

    FLOPs = 4 m v, counted here: for each logit the comparison of the maximum, the subtraction of it, one exponential
        and one addition. The logarithm and the two subtractions of a row are left out.
    Bytes = the logits and m labels of 8 bytes read once, m losses written.
    """
    return Work(
        flops=4 * m * v,
        bytes_read=bytes_of(m * v, dtype) + LABEL_BYTES * m,
        bytes_written=bytes_of(m, out_dtype),
    )


def reduction_work(elements: int, flops_per_element: int, inputs: int, dtype: str) -> Work:
    """Return the work of reducing `inputs` arrays of `elements` to one number of the same dtype.

    The first addition, to an empty sum, is counted too: n additions for n elements. CS336 (2025) lecture 2 counts
    n - 1, which differs in the seventh digit at a million elements.
    """
    return Work(
        flops=flops_per_element * elements,
        bytes_read=bytes_of(inputs * elements, dtype),
        bytes_written=bytes_of(1, dtype),
    )
