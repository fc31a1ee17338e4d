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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roofline.work import FLOPS_PER_ELEMENT as DECLARED
from roofline.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    Span = tuple[int, int]

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
    "index_copy masked_scatter index_fill nll_loss_backward"
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
        "searchsorted floor_divide rrelu_with_noise"
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
    """What a call reads or writes of one storage."""

    storage: Any
    bytes: int


@dataclass(frozen=True)
class Count:
    """The work of one call."""

    flops: int = 0
    matmul_flops: int = 0
    """Those of products, convolutions and attention among them."""
    reads: tuple[Moved, ...] = ()
    writes: tuple[Moved, ...] = ()
    is_modelled: bool = True
    """False where no rule counts the call; the counts are then those of generic rules."""
    declared: Work | None = None
    """What a user said of an operation of theirs; `reads` and `writes` are then where its bytes lie, not how many."""

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


def declared_work(rule: Callable[..., Work], args: Sequence[Any], kwargs: dict[str, Any]) -> Work:
    """Return what a rule says of a call.

    Raises:
        TypeError: it returned something else than work.
    """
    work = rule(*args, **kwargs)
    if not isinstance(work, Work):
        raise TypeError(f"a rule of declare_work returns a roofline.work.Work, not {type(work).__name__}")
    return work


@dataclass(frozen=True)
class Operands:
    """The tensors of a call, by what it does with them."""

    read: list[Tensor]
    updated: list[Tensor]
    """Written in place."""
    created: list[Tensor]
    """Outputs that are no inputs."""


def count(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Count:
    """Return the work of one call as a dispatch mode sees it.

    Args:
        func: the `OpOverload` that was called.
        args: its positional arguments.
        kwargs: its other arguments.
        result: what it returned.
    """
    namespace, base = names_of(func)
    if is_free(func):
        return Count()
    values = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    operands = operands_of(func, values, result, base)
    if namespace == "aten" and (base.endswith("_like") or base.startswith("new_")):
        operands = Operands([], operands.updated, operands.created)  # only the shape of the input is needed
    if (namespace, base) in RULES:
        rule, is_product = RULES[namespace, base]
        work, (reads, writes) = declared_work(rule, args, kwargs), generic_bytes(operands)
        return Count(work.flops, work.flops * is_product, tuple(reads), tuple(writes), True, work)
    special = BYTES.get(base) if namespace == "aten" else None
    reads, writes = special(values, operands, result) if special else generic_bytes(operands)
    flops, matmul, is_known = flops_of(func, base, namespace, values, operands, args, kwargs, result)
    return Count(flops, matmul, tuple(reads), tuple(writes), is_known)


def names_of(func: Any) -> tuple[str, str]:
    """Return the namespace of an operation, and its name without the form that writes in place."""
    namespace, _, name = str(getattr(func, "_overloadpacket", func)).partition(".")
    return namespace, base_name(name)


def is_free(func: Any) -> bool:
    """Return whether a call neither moves nor computes anything."""
    namespace, base = names_of(func)
    is_view = bool(getattr(func, "is_view", False))
    return namespace in ("profiler", "prim") or is_view or (namespace == "aten" and base in FREE)


def node_count(node: Any) -> tuple[str, int, int, bool]:
    """Return the name of a call in a traced graph, its FLOPs, those of products, and whether there is a rule for it.

    Args:
        node: of `torch.fx`, with the fake tensors of its result and its arguments as `meta["val"]`.
    """
    from torch.fx.node import map_arg

    func = node.target
    if not hasattr(func, "_schema"):  # `operator.getitem`, arithmetic on sizes; or an operation of a higher order
        return str(func), 0, 0, getattr(func, "__module__", "") == "_operator"
    namespace, base = names_of(func)
    if is_free(func):
        return base, 0, 0, True
    args, kwargs = map_arg((node.args, node.kwargs), lambda other: other.meta["val"])
    result = node.meta["val"]
    values = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    operands = operands_of(func, values, result, base)
    return base, *flops_of(func, base, namespace, values, operands, args, kwargs, result)


def base_name(name: str) -> str:
    """Return the name of an operation without the underscore of its form that writes in place."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def operands_of(func: Any, values: dict[str, Any], result: Any, base: str) -> Operands:
    """Return the tensors of a call by what its schema says of them."""
    read, updated = [], []
    for argument in func._schema.arguments:
        tensors = list(tensors_in(values.get(argument.name)))
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        # The gradients of a fused optimizer are declared as written: only a gradient scaler writes them.
        if is_written and not (argument.name == "grads" and values.get("grad_scale") is None):
            updated += tensors
            read += [] if base in OVERWRITES or argument.is_out else tensors
        else:
            read += tensors
    known = {id(tensor) for tensor in (*read, *updated)}
    created = [tensor for tensor in tensors_in(result) if id(tensor) not in known]
    return Operands(read, updated, created)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result, those of lists too."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def generic_bytes(operands: Operands) -> tuple[list[Moved], list[Moved]]:
    """Return what is read and written where each input is read once and each output written once."""
    return distinct(operands.read), distinct([*operands.updated, *operands.created])


def distinct(tensors: Iterable[Tensor]) -> list[Moved]:
    """Return the distinct bytes that some tensors have in each storage.

    A broadcast dimension counts once, and so do elements that several windows or several tensors share. Tensors with
    gaps between their elements count apart, unless they are the same view.
    """
    storages: dict[int, Any] = {}
    dense: dict[int, list[Span]] = {}
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
    moved = [Moved(storages[key], union(spans)) for key, spans in dense.items()]
    return moved + [Moved(storages[key], sum(views.values())) for key, views in sparse.items()]


def union(spans: Iterable[Span]) -> int:
    """Return the length of the union of intervals."""
    total, reached = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


# ---- operations whose bytes depend on what is in an index ----------------------------------------------------------


def distinct_places(index: Tensor) -> int:
    """Return how many different places an index names, of a mask how many are set."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad(), _disable_current_modes():
        if index.device.type == "meta":
            return index.numel()
        return int(index.sum() if index.dtype == torch.bool else index.unique().numel())


def part(tensor: Tensor, elements: int) -> Moved:
    """Return so many elements of a tensor, but no more than it has."""
    return Moved(tensor.untyped_storage(), min(elements, tensor.numel()) * tensor.element_size())


def rows_bytes(table: Tensor, dim: int, index: Tensor, operands: Operands) -> tuple[list[Moved], list[Moved]]:
    """Return what taking rows of a table moves: each row that is named once, the index and the output."""
    rows = distinct_places(index) * (table.numel() // max(1, table.shape[dim] if table.dim() else 1))
    return [part(table, rows), *distinct([index])], distinct(operands.created)


def embedding_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what looking up rows moves."""
    return rows_bytes(values["weight"], 0, values["indices"], operands)


def index_select_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what taking slices moves."""
    return rows_bytes(values["self"], values["dim"], values["index"], operands)


def named_elements(table: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Return how many elements of a table some indices name: exactly for one index, at most for several."""
    given = [index for index in indices if index is not None]
    if len(given) == 1:
        is_mask = given[0].dtype.is_floating_point is False and str(given[0].dtype) == "torch.bool"
        taken = given[0].dim() if is_mask else 1
        first = next(place for place, index in enumerate(indices) if index is not None)
        extent = math.prod(table.shape[first : first + taken])
        return distinct_places(given[0]) * (table.numel() // max(1, extent))
    places = math.prod(max(sizes) for sizes in padded_shapes(given))
    taken_extents = math.prod(table.shape[place] for place, index in enumerate(indices) if index is not None)
    return min(table.numel(), places * (table.numel() // max(1, taken_extents)))


def padded_shapes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return the sizes of each dimension of tensors that are broadcast together."""
    depth = max(tensor.dim() for tensor in tensors)
    shapes = [(1,) * (depth - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    return list(zip(*shapes, strict=True)) or [(1,)]


def index_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what taking elements by tensors of indices moves."""
    table, indices = values["self"], values["indices"]
    return [part(table, named_elements(table, indices)), *distinct(tensors_in(indices))], distinct(operands.created)


def gather_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what picking one element for each of an index moves."""
    table, index = values["self"], values["index"]
    return [part(table, index.numel()), *distinct([index])], distinct(operands.created)


def index_put_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what writing elements at indices moves; a copy of the whole table where it is not in place."""
    table, indices = values["self"], values["indices"]
    touched = part(table, named_elements(table, indices))
    reads = [*distinct([*tensors_in(indices), values["values"]])]
    if operands.created:
        return [*distinct([table]), *reads], distinct(operands.created)
    return [*([touched] if values.get("accumulate") else []), *reads], [touched]


def scatter_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what writing or adding at an index moves; sums read what they add to."""
    table, index = values["self"], values["index"]
    others = distinct(tensor for tensor in operands.read if tensor is not table)
    if operands.created:
        return [*distinct([table]), *others], distinct(operands.created)
    source = values.get("source", values.get("src"))
    touched = part(table, source.numel() if source is not None else index.numel())
    return [touched, *others], [touched]


def nll_forward_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what picking the score of each target moves."""
    others = [tensor for tensor in operands.read if tensor is not values["self"]]
    return [part(values["self"], values["target"].numel()), *distinct(others)], distinct(operands.created)


def nll_backward_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what the gradient of picked scores moves: the scores themselves are not needed."""
    return distinct(tensor for tensor in operands.read if tensor is not values["self"]), distinct(operands.created)


def grouped_bytes(values: dict[str, Any], operands: Operands, _: Any) -> tuple[list[Moved], list[Moved]]:
    """Return what a grouped product moves: matrices of groups without a row are not read."""
    matrices, ends = values["mat2"], values.get("offs")
    if matrices.dim() != 3 or ends is None or ends.device.type == "meta":
        return generic_bytes(operands)
    groups = distinct_places(ends[ends > 0]) if ends.numel() else 0
    others = [tensor for tensor in operands.read if tensor is not matrices]
    return [part(matrices, groups * matrices[0].numel()), *distinct(others)], distinct(operands.created)


BYTES: dict[str, Callable[[dict[str, Any], Operands, Any], tuple[list[Moved], list[Moved]]]] = {
    "embedding": embedding_bytes,
    "index_select": index_select_bytes,
    **dict.fromkeys(("index", "_unsafe_index"), index_bytes),
    "gather": gather_bytes,
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"), index_put_bytes),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy", "scatter_reduce"), scatter_bytes),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_forward_bytes),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_backward_bytes),
    "_grouped_mm": grouped_bytes,
}
"""Rules of their own, by the name without namespace."""


# ---- FLOPs ---------------------------------------------------------------------------------------------------------


def flops_of(
    func: Any,
    base: str,
    namespace: str,
    values: dict[str, Any],
    operands: Operands,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Any,
) -> tuple[int, int, bool]:
    """Return the FLOPs of a call, those of products among them, and whether there is a rule for it."""
    import torch
    from torch.utils.flop_counter import flop_registry

    packet = func._overloadpacket
    if namespace == "aten" and "scaled_dot_product" in base:
        flops = attention_flops(values) * (2 if base.endswith("backward") else 1)
        return flops, flops, True
    if namespace == "aten" and base == "_grouped_mm":  # which torch's table lacks
        flops = grouped_flops(values)
        return flops, flops, True
    if packet in flop_registry:
        flops = int(flop_registry[packet](*args, **kwargs, out_val=result))
        return flops, flops, True
    elements = largest(operands)
    if namespace != "aten":
        return elements, 0, False
    if base in MOVES:
        return 0, 0, True
    is_pointwise = torch.Tag.pointwise in func.tags or base.startswith("_foreach_")
    if base in FLOPS_PER_ELEMENT or is_pointwise:
        return elements * FLOPS_PER_ELEMENT.get(base, 1), 0, True
    return elements, 0, False


def largest(operands: Operands) -> int:
    """Return the elements of the largest floating-point operand; a list of outputs, as of `_foreach_add`, is one."""
    sizes = [one.numel() for one in operands.read if one.dtype.is_floating_point]
    for some in (operands.updated, operands.created):
        sizes.append(sum(one.numel() for one in some if one.dtype.is_floating_point))
    return max(sizes)


def attention_flops(values: dict[str, Any]) -> int:
    """Return the FLOPs of the two products of attention; every pair of tokens counts, as in eager attention.

    Source: `torch.utils.flop_counter.sdpa_flop`, heads of grouped queries as many as the queries have.
    """
    batch, heads, queries, width = values["query"].shape
    keys, out_width = values["key"].shape[2], values["value"].shape[3]
    return int(2 * batch * heads * queries * keys * (width + out_width))


def grouped_flops(values: dict[str, Any]) -> int:
    """Return the FLOPs of a grouped product: each row of the tokens passes through one matrix.

    Source: `roofline.work.grouped_matmul_work`, and its two backward products.
    """
    first, second = values["self"], values["mat2"]
    if first.dim() == 3 and second.dim() == 3:
        return int(2 * first.numel() * second.shape[2])
    if first.dim() == 3:
        return int(2 * first.shape[1] * first.shape[2] * second.shape[1])
    return int(2 * first.numel() * second.shape[-1])
