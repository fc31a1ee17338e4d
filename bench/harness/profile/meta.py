"""A step on torch's meta device, which has shapes and no memory: the operations are those of a GPU.

Attention is one operation there, as it is in the kernels of a GPU; torch would write the scores to memory on the meta
device. AdamW is the fused one, which `torch.optim` refuses on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class FusedAttention(TorchFunctionMode):
    """Makes `scaled_dot_product_attention` one operation; its dropout is left out, which costs no bytes of scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        return func(*args, **kwargs)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return the attention of tensors (..., heads, tokens, width) by the operation of one kernel."""
    four = [x.reshape(-1, *x.shape[-3:]) for x in (query, key, value)]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out: torch.Tensor = flash(*four, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return out.reshape(*query.shape[:-1], value.shape[-1])


class MetaAdamW:
    """The fused AdamW step of some parameters, two moments each in the parameter's dtype, as `torch.optim` keeps."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._moments = [[torch.empty_like(x) for x in self._parameters] for _ in range(2)]
        self._steps = [torch.empty((), device="meta") for _ in self._parameters]

    def step(self) -> None:
        given = [index for index, x in enumerate(self._parameters) if x.grad is not None]
        parameters: Any = [self._parameters[index] for index in given]
        lists: Any = [[values[index] for index in given] for values in (*self._moments, self._steps)]
        gradients: Any = [x.grad for x in parameters]
        with torch.no_grad():
            torch._fused_adamw_(
                parameters,
                gradients,
                exp_avgs=lists[0],
                exp_avg_sqs=lists[1],
                max_exp_avg_sqs=[],
                state_steps=lists[2],
                lr=0.0,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
