"""Runs a step on fake tensors, which have shapes but neither memory nor values.

Integers and booleans of small tensors are known all the same: masks, lengths and indices decide
what a model runs. torch itself knows those of single elements. Indices that are chosen by unknown
values, as the experts of a token by `topk`, choose each element equally often. If other values
decide, a result is the largest possible, a condition holds unless it is that of `any`, and a number
that the host reads is 1.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bench.harness.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    TorchDispatchMode,
    disable_current_modes,
    eager_kernel,
    tree_leaves,
    tree_map_only,
)
from bench.profiling.counts import is_decomposed, is_real, name_of, named
from bench.profiling.target import Target, guarded_call, target_of

ONE_KERNEL = "_scaled_dot_product_efficient_attention"
"""The operation that stands for the attention of one kernel, see `FakeFunctions`."""

MAX_KNOWN = 2**22
"""Maximum elements of a tensor with known integers; operations on them run on a CPU."""

MAX_ASSUMED = 20_000
"""Maximum assumed results of a step: a loop may wait for another value."""


def without_memory(target: Target, mode: FakeTensorMode) -> Target:
    """Return a copy of a target with fake tensors; no memory is copied but known integers."""
    with guarded_call(target.name), FakeCopies(mode):
        return target_of(target.name, *copy.deepcopy((target.function, target.args, target.kwargs)))


class FakeCopies(FakeCopyMode):
    """Makes copies of tensors fake; integers and booleans stay known."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func is Tensor.__deepcopy__ and is_knowable(args[0]):
            retain(result, args[0])
        return result


class FakeFunctions(TorchFunctionMode):
    """Makes `scaled_dot_product_attention` one operation, as it is in the kernels of a GPU, without
    dropout, and texts of numbers.

    On a CPU torch would write the scores to memory. Dropout costs no bytes of scores.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            func = attention
        if func is Tensor.__format__ and not args[0].dim():
            return format(args[0].item(), args[1])
        return func(*args, **(kwargs or {}))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    """Return the attention of tensors (..., heads, tokens, width) by the operation of one
    kernel.
    """
    q, k, v = (x[(None,) * (4 - x.dim())].flatten(0, -4) for x in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    has_gradient = torch.is_grad_enabled() and query.requires_grad
    out: torch.Tensor = efficient(q, k, v, attn_mask, has_gradient, 0.0, is_causal, scale=scale)[0]
    return out.reshape(*query.shape[:-1], value.shape[-1])


class FakeResults(TorchDispatchMode):
    """Returns the results that `FakeTensorMode` does not have: known integers, results that depend
    on values, grouped matmuls in fp32, gradients of attention with fewer heads of keys.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.assumed: Counter[str] = Counter()
        """Operations whose results were assumed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if isinstance(func, HigherOrderOperator):
            with self:
                return eager_kernel(func)(*args, **kwargs)
        if name == f"{ONE_KERNEL}_backward.default":
            return tree_map_only(Tensor, torch.empty_like, args[1:5])
        if name == "_grouped_mm.default" and args[0].dtype == torch.float32:
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).float()
        if name == "index.Tensor":
            with self:
                args = (args[0], list(chain.from_iterable(map(rows_of, args[1]))))
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if is_decomposed(func):
                with self:
                    return func.decompose(*args, **kwargs)
            self.assumed[name_of(func)] += 1
            if self.assumed.total() > MAX_ASSUMED:
                raise
            if name == "nonzero.default":
                return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.int64)
            return tree_map_only(Tensor, torch.empty_like, really(func, args, kwargs))
        know(result, name, func, args, kwargs)
        return result


def know(result: Any, name: str, func: Any, args: Any, kwargs: Any) -> None:
    """Let the fake tensors of a result know their values if these do not depend on unknown ones."""
    given = list(filter(is_fake, tree_leaves((args, kwargs))))
    if any(tensor.constant is None for tensor in given):
        for tensor in filter(is_fake, tree_leaves(result)):
            tensor.constant = None  # that of `new_empty`, by which torch implements others
    if name in CHOICES:
        choose(tree_leaves(result)[-1], **named(func, args, kwargs))
    is_made = name.startswith("new_") or "_like" in name or not given
    if is_made and is_fake(result) and is_knowable(result):
        retain(result, really(func, args, kwargs))


def really(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation on copies of known values, and on ones in place of unknown
    ones.
    """
    with disable_current_modes():
        given, options = tree_map_only(Tensor, known_or_ones, (args, kwargs))
        if "unique" in func.__name__:
            different = torch.arange(args[0].numel()).view(args[0].shape)
            given = (different.to(args[0].dtype), *given[1:])
        return func(*given, **options)


def known_or_ones(tensor: Tensor) -> Tensor:
    known = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if known is None:
        return torch.ones((), dtype=tensor.dtype).expand(tensor.shape)
    return known.clone()


def is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


def is_knowable(tensor: Tensor) -> bool:
    is_small = tensor.numel() <= (1 if is_real(tensor) else MAX_KNOWN)
    return is_small and not tensor.requires_grad and tensor.device.type == "cpu"


def retain(fake: Any, values: Tensor) -> Any:
    """Let a fake tensor know its values, and return it."""
    with disable_current_modes():
        fake.constant = values.clone()
    fake.fake_mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake


CHOICES = frozenset(
    (
        "any.default",
        "topk.default",
        "sort.default",
        "sort.stable",
        "argmax.default",
        "argmin.default",
        "max.dim",
        "min.dim",
        "multinomial.default",
    )
)
"""Operations whose last result is indices of the elements of a dimension, and `any`, which is
false as index 0: it asks for what should not be.
"""


def choose(indices: Any, self: Tensor, dim: int | None = -1, **_: Any) -> None:
    """Let indices of unknown values choose each element equally often."""
    if indices.constant is None and is_knowable(indices) and self.dim():
        count = self.numel() if dim is None else self.shape[dim]
        with disable_current_modes():
            chosen = torch.arange(indices.numel()) % count
            values = chosen.view(indices.shape).to(indices.dtype)
        retain(indices, values)


def rows_of(index: Tensor | None) -> Sequence[Tensor | None]:
    """Return the indices that a mask stands for; other indices unchanged."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return index.nonzero().unbind(1)
