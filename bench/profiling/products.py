"""FLOPs of matmuls, convolutions, attention and recurrent layers: a function for each family.

Each takes the arguments of a call by the names of the operation's schema, and the result of the
call. A multiply-add counts as 2 FLOPs. None means that the count depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from bench.harness.torch_private import FakeTensor, tree_iter

Values = Mapping[str, Any]

LEFT = ("mat1", "batch1", "sparse", "X", "inp", "input", "self")
"""Names of the left operand of a matmul; `addmm` calls the addend `self`."""


def matmul_flops(values: Values, result: Tensor) -> int | None:
    """Return 2 m n k: each element of the result is a sum of k products.

    Of a sparse operand only the specified elements count.
    Source: Golub and Van Loan, Matrix Computations, section 1.1.
    """
    left = values[next(name for name in LEFT if name in values)]
    if left.is_nested and result.is_nested:
        pairs = zip(left.unbind(), result.unbind(), strict=True)
        return sum(matmul_flops({"self": one}, product) or 0 for one, product in pairs)
    flops = 2 * result.numel() * left.size(-1)
    operands = [left, values.get("mat2"), result]
    sparse = [
        tensor
        for tensor in operands
        if isinstance(tensor, Tensor) and "sparse" in str(tensor.layout)
    ]
    # How many elements meet depends on the indices, which fake tensors do not have.
    if len(sparse) > 1 or any(isinstance(tensor, FakeTensor) for tensor in sparse):
        return None
    for tensor in sparse:
        flops = flops // max(1, tensor.numel()) * specified_values(tensor).numel()
    return int(flops)


def specified_values(tensor: Tensor) -> Tensor:
    """Return the values of a sparse tensor; one in coordinate form need not be coalesced."""
    return tensor._values() if tensor.is_sparse else tensor.values()


def grouped_flops(values: Values, result: Tensor) -> int:
    """Return the FLOPs of a grouped matmul, forward or backward: each token is multiplied by one
    matrix.

    Source: `roofline.work.grouped_matmul_work`.
    """
    first = values["self"]
    second = values["mat2"]
    rows = first[0] if first.dim() > second.dim() else first  # groups of columns, not of rows
    return int(2 * rows.numel() * second.shape[-1])


def convolution_flops(values: Values, result: Any) -> int:
    """Return the FLOPs of a convolution, or of its gradients for the input and the weight.

    Each element of the output is a sum of as many products as a filter has elements, which are
    those of one group; in a transposed convolution each element of the input spreads over as many.
    Both gradients multiply the same pairs. Bias adds are not counted.
    Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
    `torch.utils.flop_counter` counts the gradient of the weight once for each group
    (pytorch#183405).
    """
    weight = next(values[name] for name in ("weight", "W", "packed_weight") if name in values)
    if isinstance(weight, tuple):  # of a quantized layer, with its bias
        weight = weight[0]
    inner = next(values[name] for name in ("input", "X", "self", "qx") if name in values)
    if not values.get("transposed"):
        inner = values.get("grad_output", result)
    matmuls = sum(values["output_mask"][:2]) if "output_mask" in values else 1
    return int(2 * matmuls * inner.numel() * (weight.numel() // max(1, weight.shape[0])))


def transposed_flops(values: Values, result: Any) -> int:
    """Return the FLOPs of an operation that only does transposed convolutions."""
    return convolution_flops({**values, "transposed": True}, result)


def gradients(values: Values) -> int:
    """Return the matmuls for each one of the forward pass: 1 in the forward pass, 2 in the backward
    pass.
    """
    return 2 if any(name.startswith("grad_out") for name in values) else 1


def attention_flops(values: Values, result: Any) -> int:
    """Return the FLOPs of the two matmuls of attention, or of the four of its gradients, without
    scores that a kernel computes again; every pair of tokens counts, as in eager attention.

    Source: `torch.utils.flop_counter.sdpa_flop`, with as many heads as the queries have.
    """
    batch, heads, queries, width = values["query"].shape
    keys = values["key"].shape[2]
    out_width = values["value"].shape[3]
    pairs = batch * heads * queries * keys
    return int(2 * pairs * (width + out_width) * gradients(values))


def computed_flops(values: Values, flops: int) -> int:
    """Return the FLOPs that are computed, of those of every pair of tokens: in causal attention a
    token sees itself and earlier ones, a block mask names the blocks of pairs.

    Source: Dao, FlashAttention-2, 2023, section 3.1: a kernel skips blocks of other pairs.
    """
    if "block_mask" in values:
        _, _, partial, indices, full, *_ = values["block_mask"]
        if isinstance(partial, FakeTensor) and partial.constant is None:
            return flops  # which blocks there are is not known
        blocks = partial.sum() if full is None else partial.sum() + full.sum()
        return int(flops * int(blocks) / indices.numel())
    if not values.get("is_causal"):
        return flops
    queries = values["query"].shape[2]
    keys = values["key"].shape[2]
    seen = min(queries, keys)
    pairs = seen * (seen + 1) // 2 + (queries - seen) * keys
    return int(flops * pairs // max(1, queries * keys))


def triangular_flops(values: Values, result: Tensor) -> int:
    """Return the FLOPs of n^2 for each right-hand side of n elements.

    Source: Golub and Van Loan, Matrix Computations, section 3.1.
    """
    return int(result.numel() * values["self"].shape[-1])


def layer_flops(values: Values, result: Any) -> int:
    """Return the FLOPs of the weight matrices of a layer, or of the gradients of its inputs and
    weights: each token is multiplied by all matrices.

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997, with the gates as one matrix.
    """
    given = next(values[name] for name in ("input", "query", "src") if name in values)
    held = [
        value
        for name, value in values.items()
        if "weight" in name or name.startswith(("w_", "params"))  # the last two if quantized
    ]
    weights = [x for x in tree_iter(held) if isinstance(x, Tensor) and x.dim() == 2]
    tokens = given.numel() // max(1, given.size(-1))
    return int(2 * tokens * sum(weight.numel() for weight in weights) * gradients(values))


def transformer_flops(values: Values, result: Any) -> int:
    """Return the FLOPs of a fused layer with self-attention: its weights, and the scores and values
    of every pair of tokens in a sequence.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2.
    """
    given = next(values[name] for name in ("query", "src") if name in values)
    pairs = sum(sequence.shape[0] * sequence.numel() for sequence in given.unbind())
    return int(layer_flops(values, result) + 4 * pairs)


FAMILIES = (
    (
        matmul_flops,
        (
            "mm addmm bmm baddbmm linear matmul mkldnn_linear mkldnn._linear_pointwise _scaled_mm "
            "_int_mm _addmm_activation _mixed_dtypes_linear _sparse_mm _sparse_addmm "
            "sparse_sampled_addmm _dyn_quant_matmul_4bit _weight_int8pack_mm _weight_int4pack_mm "
            "_weight_int4pack_mm_for_cpu quantized.linear quantized.linear_relu "
            "quantized.linear_dynamic quantized.linear_relu_dynamic quantized.linear_dynamic_fp16"
        ),
    ),
    (triangular_flops, "linalg_solve_triangular"),
    (grouped_flops, "_grouped_mm _scaled_grouped_mm"),
    (
        convolution_flops,
        (
            "convolution _convolution convolution_overrideable convolution_backward_overrideable "
            "mkldnn_convolution cudnn_convolution cudnn_convolution_relu "
            "cudnn_convolution_add_relu miopen_convolution miopen_convolution_relu "
            "miopen_depthwise_convolution _conv_depthwise2d conv_depthwise3d _slow_conv2d_forward "
            "slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d "
            "mkldnn._convolution_pointwise quantized.conv1d quantized.conv2d quantized.conv3d "
            "quantized.conv1d_relu quantized.conv2d_relu quantized.conv3d_relu "
            "quantized.conv1d_dynamic quantized.conv2d_dynamic quantized.conv3d_dynamic "
            "quantized.conv2d_add quantized.conv2d_add_relu"
        ),
    ),
    (
        transposed_flops,
        (
            "cudnn_convolution_transpose miopen_convolution_transpose slow_conv_transpose2d "
            "slow_conv_transpose3d quantized.conv_transpose1d quantized.conv_transpose2d "
            "quantized.conv_transpose3d"
        ),
    ),
    (
        attention_flops,
        (
            "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention "
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
            "_scaled_dot_product_fused_attention_overrideable flex_attention"
        ),
    ),
    (
        layer_flops,
        (
            "mkldnn_rnn_layer _cudnn_rnn miopen_rnn quantized_lstm quantized_gru "
            "quantized.quantized_lstm_cell_dynamic quantized.quantized_gru_cell_dynamic "
            "quantized.quantized_rnn_relu_cell_dynamic quantized.quantized_rnn_tanh_cell_dynamic"
        ),
    ),
    (transformer_flops, "_native_multi_head_attention _transformer_encoder_layer_fwd"),
)
"""Functions, and operations of each: those of `aten` without a namespace. A function also counts
the backward operation, whose name ends with `_backward`.
"""

PRODUCTS: dict[str, Callable[[Values, Any], int | None]] = {}
for _rule, _ops in FAMILIES:
    PRODUCTS |= dict.fromkeys(_ops.split(), _rule)
