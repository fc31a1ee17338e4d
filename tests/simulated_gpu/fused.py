"""What torch computes in one kernel on a GPU and not on a CPU: RMSNorm, attention; and LayerNorm's statistics in fp32.

What autograd keeps of them is what it keeps on a GPU. Values come from torch's CPU kernels and decompositions.

Source: torch 2.11, `torch/_meta_registrations.py` (shapes of log-sum-exp, seed and offset),
`torch/_decomp/decompositions.py` (RMSNorm), `torch.nn.functional.scaled_dot_product_attention` (which kernel takes
what: grouped heads have flash attention and the one taken apart).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import _fused_rms_norm_backward
from torch.nn.functional import pad

HALF = (torch.float16, torch.bfloat16)
ROW_MULTIPLE = 32
"""Memory-efficient attention keeps its log-sum-exp for so many queries more than there are, rounded up."""

aten = torch.ops.aten


def layer_norm(x: torch.Tensor, *arguments: Any) -> Any:
    """Return LayerNorm with mean and deviation in fp32 at least; the CPU keeps them in the dtype of x."""
    out, *statistics = aten.native_layer_norm.default(x, *arguments)
    return out, *(value.to(torch.promote_types(value.dtype, torch.float32)) for value in statistics)


def layer_norm_backward(gradient: torch.Tensor, x: torch.Tensor, shape: Any, mean: Any, deviation: Any, *rest: Any):
    """Return the gradients; the CPU takes the statistics in the dtype of x."""
    return aten.native_layer_norm_backward.default(gradient, x, shape, mean.to(x.dtype), deviation.to(x.dtype), *rest)


ON_HOST = {
    "aten::native_layer_norm": layer_norm,
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::_fused_rms_norm_backward": _fused_rms_norm_backward,
}
"""What stands for an operation that the CPU computes otherwise, or not at all; takes tensors in host memory."""


class RmsNorm(torch.autograd.Function):
    """Keeps its input and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, deviation = aten._fused_rms_norm.default(x, shape, weight, epsilon)
        ctx.save_for_backward(x, weight, deviation)
        ctx.shape = shape
        ctx.mark_non_differentiable(deviation)
        ctx.set_materialize_grads(False)
        return out, deviation

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        x, weight, deviation = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        to_x, to_weight = aten._fused_rms_norm_backward.default(gradient, x, ctx.shape, deviation, weight, needed)
        return to_x, None, to_weight, None


class FusedAttention(torch.autograd.Function):
    """Keeps query, key, value, output, a log-sum-exp per query, and a seed and an offset that nothing uses."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: Any) -> Any:
        out, rows = aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        if query.dtype in HALF:
            seeds = (
                torch.empty(2, dtype=torch.uint64, device="cuda"),
                torch.empty((), dtype=torch.uint64, device="cuda"),
            )
        else:
            rows = pad(rows.transpose(1, 2), (0, 0, 0, -rows.shape[-1] % ROW_MULTIPLE)).transpose(1, 2)
            seeds = torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)  # in host memory
        ctx.save_for_backward(query, key, value, mask, out, rows, *seeds)
        ctx.options = is_causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, mask, out, rows, *_ = ctx.saved_tensors
        is_causal, scale = ctx.options
        rows = rows[..., : query.shape[-2]]
        kept = query, key, value, out, rows
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            gradient, *kept, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        return *gradients, None, None, None


def is_fused(query: Any, key: Any, dropout_p: float) -> bool:
    """Return whether a kernel that keeps no scores takes this."""
    has_any = torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
    if dropout_p or not has_any or query.dim() != 4 or query.shape[-1] != key.shape[-1]:
        return False
    if query.dtype in HALF:
        return query.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    return query.dtype == torch.float32 and query.shape[1] == key.shape[1] and query.shape[-1] % 4 == 0


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return attention by the kernel that a GPU would take."""
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise RuntimeError("the heads of query and key differ, and enable_gqa is not given")
    if is_fused(query, key, dropout_p):
        return FusedAttention.apply(query, key, value, attn_mask, is_causal, scale)
    arguments = query, key, value, attn_mask, dropout_p, is_causal, None
    return aten._scaled_dot_product_attention_math(*arguments, scale=scale, enable_gqa=enable_gqa)[0]


def install() -> None:
    """Put these in the place of what torch would take apart."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", RmsNorm.apply, "AutogradCUDA")
    library.impl("scaled_dot_product_attention", attention, "AutogradCUDA")
    install.library = library  # type: ignore[attr-defined]  it would be taken back otherwise
