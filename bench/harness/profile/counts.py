"""The FLOPs and the compulsory bytes of one call of a torch operation, from its arguments and its results.

FLOPs of products, convolutions and attention are those of torch's own table, `torch.utils.flop_counter.flop_registry`,
attention as the eager one computes it: two products forward and four backward, whatever the kernel computes again.
Other operations count `FLOPS_PER_ELEMENT` for each element of their largest floating-point operand, 1 where none is
given, and 0 where they only move data. What has no rule is not modelled, and never 0.

Bytes are read once for each distinct element that a call sees in a storage, and written once for each element of its
outputs. What is written in place is read too, unless the operation overwrites it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from roofline.work import FLOPS_PER_ELEMENT as DECLARED
from roofline.work import Work

if TYPE_CHECKING:
    from torch import Tensor

UNMODELLED = "unmodelled"
"""Flag of a call whose work no rule counts."""


def named(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


FREE = named(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided detach alias _unsafe_view "
    "_reshape_alias lift_fresh is_same_size resize set record_stream view_as _version sym_size sym_stride "
    "sym_numel sym_storage_offset as_strided promote_types result_type"
)
"""Operations that move no data: views, and new memory that is not written yet."""

MOVES = named(
    "clone copy _to_copy cat stack constant_pad_nd reflection_pad2d fill zero zeros ones full zeros_like ones_like "
    "full_like new_zeros new_ones new_full arange lift scalar_tensor slice_backward select_backward slice_scatter "
    "select_scatter as_strided_scatter diagonal_backward repeat flip roll tril triu where masked_fill "
    "_local_scalar_dense bernoulli uniform normal random rand randn randint rand_like randn_like eye nonzero "
    "linspace repeat_interleave unfold_backward masked_select split_with_sizes_copy copy_from unfold im2col col2im "
    "pixel_shuffle upsample_nearest2d randperm equal split_copy native_channel_shuffle _copy_from_and_resize "
    "bincount histc exponential max_pool2d_with_indices_backward one_hot _foreach_copy _foreach_zero embedding "
    "embedding_renorm index index_select gather index_put _index_put_impl _unsafe_index _unsafe_index_put scatter "
    "index_copy masked_scatter index_fill nll_loss_backward iota convert_element_type"
)
"""Operations that move data and compute nothing."""

OVERWRITES = named(
    "copy fill zero normal uniform bernoulli random exponential _foreach_copy _foreach_zero arange log_normal "
    "cauchy geometric"
)
"""Operations that write in place without reading what was there."""

OWN_FLOPS = {
    0: "nll_loss_forward nll_loss2d_forward convolution_overrideable",
    1: (
        "mean amax amin max min argmax argmin prod any all cumsum cumprod topk sort native_dropout "
        "native_dropout_backward embedding_dense_backward scatter_add index_add scatter_reduce max_pool2d_with_indices "
        "avg_pool2d avg_pool2d_backward mean_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward count_nonzero "
        "searchsorted floor_divide rrelu_with_noise _unsafe_masked_index_put_accumulate"
    ),
    2: "norm linalg_vector_norm mv addmv addr mse_loss aminmax _foreach_norm",
    3: (
        "logsumexp var std var_mean logcumsumexp sigmoid sigmoid_backward tanh_backward softplus addcmul addcdiv lerp "
        "smooth_l1_loss cdist linalg_cross"
    ),
    4: (
        "_softmax_backward_data _log_softmax_backward_data _native_batch_norm_legit_no_training _batch_norm_no_update "
        "glu _fused_sgd _weight_norm_interface"
    ),
    6: "silu_backward mish binary_cross_entropy binary_cross_entropy_with_logits",
    7: (
        "native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update "
        "_fused_adagrad"
    ),
    8: "_fused_rms_norm_backward upsample_bilinear2d",
    12: (
        "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward cudnn_batch_norm_backward "
        "batch_norm_backward"
    ),
    14: "_fused_adamw _fused_adam",
    30: "gelu_backward",
    32: "upsample_bicubic2d",
}
"""Names by FLOPs for each element of the largest floating-point operand: one for each addition, multiplication,
division, comparison or transcendental function of their formula."""

AS_DECLARED = {
    "sum": "sum",
    "dot": "dot vdot",
    "softmax": "_softmax _log_softmax _safe_softmax _masked_softmax",
    "layernorm": "native_layer_norm",
    "rmsnorm": "_fused_rms_norm",
    "gelu": "gelu",
    "silu": "silu",
    "add": "add",
}
"""Names by the op of `bench` that is counted the same way."""

FLOPS_PER_ELEMENT = {name: flops for flops, names in OWN_FLOPS.items() for name in names.split()} | {
    name: DECLARED[op] for op, names in AS_DECLARED.items() for name in names.split()
}


@dataclass(frozen=True)
class Moved:
    """Bytes that a call reads or writes of one storage."""

    storage: Any
    bytes: int


Traffic = tuple[list[Moved], list[Moved]]
"""What is read and what is written."""


@dataclass(frozen=True)
class Count:
    """The work of one call."""

    flops: int = 0
    matmul_flops: int = 0
    """Those of products, convolutions and attention among them."""
    reads: Sequence[Moved] = ()
    writes: Sequence[Moved] = ()
    is_modelled: bool = True
    """False if no rule counts the call; the counts are then those of generic rules."""
    declared: Work | None = None
    """What a user declared for an operation; `reads` and `writes` then say which storages, not how many bytes."""

    @property
    def bytes_read(self) -> int:
        """Compulsory bytes read."""
        return self.declared.bytes_read if self.declared else sum(moved.bytes for moved in self.reads)

    @property
    def bytes_written(self) -> int:
        """Compulsory bytes written."""
        return self.declared.bytes_written if self.declared else sum(moved.bytes for moved in self.writes)


RULES: dict[tuple[str, str], tuple[Callable[..., Work], bool]] = {}
"""What users declared: by namespace and name, the rule, and whether its FLOPs are those of a product."""


def declare_work(op: str, rule: Callable[..., Work], is_product: bool = False) -> None:
    """Say what the calls of an operation of yours compute and move, such as those of a Triton kernel.

    Args:
        op: its name, `mine::double`, as `torch.library.triton_op` or `custom_op` was given it.
        rule: is called with the arguments of a call and returns its `roofline.work.Work`.
        is_product: whether the FLOPs are those of a product of matrices, which MFU counts.

    Raises:
        ValueError: the name has no namespace, or is one of torch's own.
    """
    namespace, _, name = op.partition("::")
    if not name or namespace in ("aten", "prim", "profiler"):
        raise ValueError(f"declare_work: '{op}' is no operation of yours; name it as torch.library does: mine::double")
    RULES[namespace, base_name(name)] = rule, is_product


class Call:
    """A call of a torch operation, with its tensors by what it does with them."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Sort the tensors by the schema of the `OpOverload` that was called."""
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result
        self.namespace, _, name = str(func._overloadpacket).partition(".")
        self.base = base_name(name)
        schema = func._schema.arguments
        self.values = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
        self.read: list[Tensor] = []
        self.updated: list[Tensor] = []
        """Written in place."""
        for argument in schema:
            tensors = list(tensors_in(self.values.get(argument.name)))
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            # The gradients of a fused optimizer are declared as written: only a gradient scaler writes them.
            if is_written and not (argument.name == "grads" and self.values.get("grad_scale") is None):
                self.updated += tensors
                self.read += [] if self.base in OVERWRITES or argument.is_out else tensors
            else:
                self.read += tensors
        known = {id(tensor) for tensor in (*self.read, *self.updated)}
        self.created = [tensor for tensor in tensors_in(result) if id(tensor) not in known]
        if self.namespace == "aten" and (self.base.endswith("_like") or self.base.startswith("new_")):
            self.read = []  # only the shape of the input is needed

    @property
    def is_free(self) -> bool:
        """Whether the call neither moves nor computes anything."""
        is_free = self.base in FREE and self.namespace == "aten"
        return is_free or self.namespace in ("profiler", "prim") or bool(getattr(self.func, "is_view", False))

    def flops(self) -> tuple[int, int, bool]:
        """Return the FLOPs, those of products among them, and whether there is a rule."""
        import torch
        from torch.utils.flop_counter import flop_registry

        is_aten, packet = self.namespace == "aten", self.func._overloadpacket
        products = None
        if is_aten and "scaled_dot_product" in self.base:
            products = attention_flops(self.values) * (2 if self.base.endswith("backward") else 1)
        elif is_aten and self.base == "_grouped_mm":  # not in torch's table
            products = grouped_flops(self.values)
        elif packet in flop_registry:
            products = int(flop_registry[packet](*self.args, **self.kwargs, out_val=self.result))
        if products is not None:
            return products, products, True
        is_aten = is_aten or self.namespace == "prims"  # in graphs of the compiler
        is_pointwise = torch.Tag.pointwise in self.func.tags or self.base.startswith("_foreach_")
        if is_aten and self.base in MOVES:
            return 0, 0, True
        is_known = is_aten and (self.base in FLOPS_PER_ELEMENT or is_pointwise)
        return self._largest() * (FLOPS_PER_ELEMENT.get(self.base, 1) if is_known else 1), 0, is_known

    def _largest(self) -> int:
        """Return the elements of the largest floating-point operand; a list of outputs counts as one operand."""
        sizes = [tensor.numel() for tensor in self.read if is_float(tensor)]
        sizes += [sum(tensor.numel() for tensor in some if is_float(tensor)) for some in (self.updated, self.created)]
        return max(sizes)

    def traffic(self) -> Traffic:
        """Return what is read and written: by default each input once and each output once."""
        rule = BYTES.get(self.base) if self.namespace == "aten" else None
        return rule(self) if rule else (distinct(self.read), distinct([*self.updated, *self.created]))


def count(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Count:
    """Return the work of one call as a dispatch mode sees it.

    Raises:
        TypeError: a rule of `declare_work` returned something else than work.
    """
    call = Call(func, args, kwargs, result)
    if call.is_free:
        return Count()
    reads, writes = call.traffic()
    if (call.namespace, call.base) not in RULES:
        flops, products, is_known = call.flops()
        return Count(flops, products, reads, writes, is_known)
    rule, is_product = RULES[call.namespace, call.base]
    work = rule(*args, **kwargs)
    if not isinstance(work, Work):
        raise TypeError(f"a rule of declare_work returns a roofline.work.Work, not {type(work).__name__}")
    return Count(work.flops, work.flops * is_product, reads, writes, True, work)


def node_count(node: Any) -> tuple[str, int, int, bool]:
    """Return the name of a call in a traced graph, its FLOPs, those of products, and whether there is a rule for it.

    Args:
        node: of `torch.fx`, with the fake tensors of its result and its arguments as `meta["val"]`.
    """
    from torch.fx.node import map_arg

    if not hasattr(node.target, "_schema"):  # `operator.getitem`, arithmetic on sizes; or a higher-order operation
        return str(node.target), 0, 0, getattr(node.target, "__module__", "") == "_operator"
    args, kwargs = map_arg((node.args, node.kwargs), lambda other: other.meta["val"])
    call = Call(node.target, args, kwargs, node.meta["val"])
    return call.base, *((0, 0, True) if call.is_free else call.flops())


def base_name(name: str) -> str:
    """Return the name of an operation without the underscore of its form that writes in place."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_float(tensor: Tensor) -> bool:
    """Return whether the elements are real floating-point numbers."""
    return tensor.dtype.is_floating_point


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result, those of lists too."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def distinct(tensors: Iterable[Tensor]) -> list[Moved]:
    """Return the distinct bytes that some tensors have in each storage.

    A broadcast dimension counts once, and so do elements that several windows or several tensors share. Tensors with
    gaps between their elements count apart, unless they are the same view.
    """
    storages: dict[int, Any] = {}
    dense: dict[int, list[tuple[int, int]]] = {}
    sparse: dict[int, dict[Any, int]] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        width, begin = tensor.element_size(), int(tensor.storage_offset())
        extents = [
            (size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride and size > 1
        ]
        span = 1 + sum((size - 1) * stride for size, stride in extents)
        elements, storage = min(math.prod(size for size, _ in extents), span), tensor.untyped_storage()
        storages[storage._cdata] = storage
        if elements == span:
            dense.setdefault(storage._cdata, []).append((begin * width, (begin + span) * width))
        else:
            sparse.setdefault(storage._cdata, {})[begin, tuple(sorted(extents)), width] = elements * width
    moved = [Moved(storages[key], _union(spans)) for key, spans in dense.items()]
    return moved + [Moved(storages[key], sum(views.values())) for key, views in sparse.items()]


def _union(spans: Iterable[tuple[int, int]]) -> int:
    total, reached = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


# ---- operations whose bytes depend on the values of an index -------------------------------------------------------


def _distinct_indices(index: Tensor) -> int:
    """Return the number of different indices, of a mask the number of set elements."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad(), _disable_current_modes():
        if index.device.type == "meta":
            return index.numel()
        return int(index.sum() if index.dtype == torch.bool else index.unique().numel())


def _part(tensor: Tensor, elements: int) -> Moved:
    return Moved(tensor.untyped_storage(), min(elements, tensor.numel()) * tensor.element_size())


def _others(call: Call, tensor: Tensor) -> list[Moved]:
    return distinct(other for other in call.read if other is not tensor)


def _rows(table: str, index: str) -> Callable[[Call], Traffic]:
    """Return the rule for taking rows of a table: each row that is named once, the index and the output."""

    def traffic(call: Call) -> Traffic:
        rows, indices, dim = call.values[table], call.values[index], call.values.get("dim", 0)
        each = rows.numel() // max(1, rows.shape[dim] if rows.dim() else 1)
        taken = _part(rows, _distinct_indices(indices) * each)
        return [taken, *distinct([indices])], distinct(call.created)

    return traffic


def _named_elements(table: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Return how many elements of a table some indices name: exactly for one index, at most for several."""
    given = [index for index in indices if index is not None]
    if len(given) == 1:
        (index,) = given
        first = next(axis for axis, other in enumerate(indices) if other is not None)
        axes = index.dim() if str(index.dtype) == "torch.bool" else 1
        return _distinct_indices(index) * (table.numel() // max(1, math.prod(table.shape[first : first + axes])))
    named = math.prod(map(max, zip_longest(*(reversed(index.shape) for index in given), fillvalue=1)))
    extents = math.prod(table.shape[axis] for axis, index in enumerate(indices) if index is not None)
    return min(table.numel(), named * (table.numel() // max(1, extents)))


def _index(call: Call) -> Traffic:
    table, indices = call.values["self"], call.values["indices"]
    return [_part(table, _named_elements(table, indices)), *distinct(tensors_in(indices))], distinct(call.created)


def _gather(call: Call) -> Traffic:
    table, index = call.values["self"], call.values["index"]
    return [_part(table, index.numel()), *distinct([index])], distinct(call.created)


def _index_put(call: Call) -> Traffic:
    """A copy of the whole table, unless it is written in place."""
    table, indices = call.values["self"], call.values["indices"]
    reads = distinct([*tensors_in(indices), call.values["values"]])
    if call.created:
        return [*distinct([table]), *reads], distinct(call.created)
    touched = _part(table, _named_elements(table, indices))
    return [*([touched] if call.values.get("accumulate") else []), *reads], [touched]


def _scatter(call: Call) -> Traffic:
    table, index = call.values["self"], call.values["index"]
    others = _others(call, table)
    if call.created:
        return [*distinct([table]), *others], distinct(call.created)
    source = call.values.get("source", call.values.get("src"))
    touched = _part(table, source.numel() if source is not None else index.numel())
    return [touched, *others], [touched]


def _nll_forward(call: Call) -> Traffic:
    scores = call.values["self"]
    return [_part(scores, call.values["target"].numel()), *_others(call, scores)], distinct(call.created)


def _nll_backward(call: Call) -> Traffic:
    """The scores themselves are not needed."""
    return _others(call, call.values["self"]), distinct(call.created)


def _grouped(call: Call) -> Traffic:
    """Matrices of groups without a row are not read."""
    matrices, ends = call.values["mat2"], call.values.get("offs")
    if matrices.dim() != 3 or ends is None or ends.device.type == "meta":
        return distinct(call.read), distinct(call.created)
    groups = _distinct_indices(ends[ends > 0]) if ends.numel() else 0
    return [_part(matrices, groups * matrices[0].numel()), *_others(call, matrices)], distinct(call.created)


BYTES: dict[str, Callable[[Call], Traffic]] = {
    "embedding": _rows("weight", "indices"),
    "index_select": _rows("self", "index"),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    "gather": _gather,
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), _index_put),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy", "scatter_reduce"), _scatter),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll_forward),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
    "_grouped_mm": _grouped,
}
"""Rules by the name of the operation, without namespace."""


# ---- products that torch's table lacks, or counts for equal heads only ---------------------------------------------


def attention_flops(values: Mapping[str, Any]) -> int:
    """Return the FLOPs of the two products of attention; every pair of tokens counts, as in eager attention.

    Source: `torch.utils.flop_counter.sdpa_flop`, heads of grouped queries as many as the queries have.
    """
    batch, heads, queries, width = values["query"].shape
    keys, out_width = values["key"].shape[2], values["value"].shape[3]
    return int(2 * batch * heads * queries * keys * (width + out_width))


def grouped_flops(values: Mapping[str, Any]) -> int:
    """Return the FLOPs of a grouped product: each row of the tokens passes through one matrix.

    Source: `roofline.work.grouped_matmul_work`, and its two backward products.
    """
    first, second = values["self"], values["mat2"]
    if first.dim() == 3 and second.dim() == 3:
        return int(2 * first.numel() * second.shape[2])
    if first.dim() == 3:
        return int(2 * first.shape[1] * first.shape[2] * second.shape[1])
    return int(2 * first.numel() * second.shape[-1])
