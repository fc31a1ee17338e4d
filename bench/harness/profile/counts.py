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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from results.record import DTYPES
from roofline.work import FLOPS_PER_ELEMENT as DECLARED
from roofline.work import Work, dtype_named

if TYPE_CHECKING:
    from torch import Tensor

HOST_SYNC, DATA_DEPENDENT, UNMODELLED = "host-sync", "data-dependent", "unmodelled"
FLAGS = (HOST_SYNC, DATA_DEPENDENT, UNMODELLED)
"""Flags of an operation: the host reads its result, its shape depends on values, or no rule counts its work."""

STEP, MODULE, TAG = "ridgepoint step", "ridgepoint module ", "ridgepoint op "
"""How a trace names a step, the modules and the operations within it."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _names(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided _unsafe_view is_same_size resize set "
    "record_stream _version sym_size sym_stride sym_numel sym_storage_offset promote_types result_type"
)
"""Operations that move no data, besides those that torch knows as views."""

MOVES = _names(
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

OVERWRITES = _names(
    "copy fill zero normal uniform bernoulli random exponential _foreach_copy _foreach_zero arange log_normal "
    "cauchy geometric"
)
"""Operations that write in place without reading what was there."""

TAKES = _names("embedding index_select index _unsafe_index gather nll_loss_forward nll_loss2d_forward")
"""Operations that read the elements of a table that indices name."""

PUTS = _names("index_put _index_put_impl _unsafe_index_put scatter scatter_add index_add index_copy scatter_reduce")
"""Operations that in place write the elements of a table that indices name; out of place all of it is copied."""

COUNTED = (
    (0, "nll_loss_forward nll_loss2d_forward convolution_overrideable"),
    (1, "mean amax amin max min argmax argmin prod any all cumsum cumprod topk sort native_dropout"),
    (1, "native_dropout_backward embedding_dense_backward scatter_add index_add scatter_reduce"),
    (1, "max_pool2d_with_indices avg_pool2d avg_pool2d_backward mean_backward _adaptive_avg_pool2d"),
    (1, "_adaptive_avg_pool2d_backward count_nonzero searchsorted floor_divide rrelu_with_noise"),
    (2, "norm linalg_vector_norm mv addmv addr mse_loss aminmax _foreach_norm"),
    (3, "logsumexp var std var_mean logcumsumexp sigmoid sigmoid_backward tanh_backward softplus addcmul addcdiv"),
    (3, "lerp smooth_l1_loss cdist linalg_cross"),
    (4, "_softmax_backward_data _log_softmax_backward_data _native_batch_norm_legit_no_training"),
    (4, "_batch_norm_no_update glu _fused_sgd _weight_norm_interface"),
    (6, "silu_backward mish binary_cross_entropy binary_cross_entropy_with_logits"),
    (7, "native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update"),
    (7, "_fused_adagrad"),
    (8, "_fused_rms_norm_backward upsample_bilinear2d"),
    (12, "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward cudnn_batch_norm_backward"),
    (12, "batch_norm_backward"),
    (14, "_fused_adamw _fused_adam"),
    (30, "gelu_backward"),
    (32, "upsample_bicubic2d"),
    # As the ops of `bench` count:
    (DECLARED["sum"], "sum"),
    (DECLARED["dot"], "dot vdot"),
    (DECLARED["softmax"], "_softmax _log_softmax _safe_softmax _masked_softmax"),
    (DECLARED["layernorm"], "native_layer_norm"),
    (DECLARED["rmsnorm"], "_fused_rms_norm"),
    (DECLARED["gelu"], "gelu"),
    (DECLARED["silu"], "silu"),
    (DECLARED["add"], "add"),
)
"""FLOPs for each element of the largest floating-point operand, and the names of the operations that have so many: one
for each addition, multiplication, division, comparison or transcendental function of their formula."""

FLOPS_PER_ELEMENT = {name: flops for flops, names in COUNTED for name in names.split()}


@dataclass
class Operation:
    """One operation of a step: its work and, once the step was timed, its time."""

    op: str
    """`aten.mm`."""
    shapes: str = ""
    dtypes: tuple[str, ...] = ()
    module: str = ""
    phase: str = ""
    flops: int = 0
    matmul_flops: int = 0
    """Those of products, convolutions and attention among them."""
    bytes_read: int = 0
    bytes_written: int = 0
    flags: tuple[str, ...] = ()
    time_ns: int = 0
    """In the recorded step."""
    kernels: set[str] = field(default_factory=set)
    """Names of the kernels that a GPU ran for it."""

    @property
    def is_modelled(self) -> bool:
        """False if no rule counts its work; the counts are then those of generic rules."""
        return UNMODELLED not in self.flags

    @property
    def dtype(self) -> str:
        """The dtype whose peak it is evaluated against: of its first floating-point operand, else of its first."""
        floats = [dtype for dtype in self.dtypes if "float" in dtype]
        name = dtype_named((floats or self.dtypes or ("float32",))[0])
        return name if name in DTYPES else "fp32"

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass
class Breakdown:
    """The operations of a step and, once the step was timed, where its time went."""

    operations: Sequence[Operation]
    unique_bytes: int = 0
    """Bytes of all storages of the step, each counted once, as far as it is touched."""
    eager_bytes: int | None = None
    """Bytes that the operations of a compiled step move if none is fused."""
    samples_s: Sequence[float] = ()
    """Of the whole step, without a profiler."""
    unattributed: Counter[str] = field(default_factory=Counter)
    """Nanoseconds by operation or kernel, of what belongs to no counted operation."""
    gaps: Counter[str] = field(default_factory=Counter)
    """Nanoseconds by module, when no operation ran: Python, autograd, waiting for the host."""

    @property
    def duration_ns(self) -> int:
        """Duration of the recorded step: the sum of its parts."""
        operations_ns = sum(operation.time_ns for operation in self.operations)
        return operations_ns + sum(self.unattributed.values()) + sum(self.gaps.values())


class Moved(NamedTuple):
    """Bytes that a call reads or writes of one storage."""

    storage: Any
    bytes: int


Traffic = tuple[list[Moved], list[Moved]]
"""What is read and what is written."""

RULES: dict[tuple[str, str], tuple[Callable[..., Work], bool]] = {}
"""What users declared: by namespace and name, the rule, and whether its FLOPs are those of a product."""


def declare_work(op: str, rule: Callable[..., Work], is_product: bool = False) -> None:
    """Declare what the calls of your own operation, such as a Triton kernel, compute and move.

    Args:
        op: its name, `mine::double`, as passed to `torch.library.triton_op` or `custom_op`.
        rule: is called with the arguments of a call and returns its `roofline.work.Work`.
        is_product: whether the FLOPs are those of a product of matrices, which MFU counts.

    Raises:
        ValueError: the name has no namespace, or is one of torch's own.
    """
    namespace, _, name = op.partition("::")
    if not name or namespace in ("aten", "prim", "profiler"):
        raise ValueError(f"declare_work: '{op}' is no operation of yours; name it as torch.library does: mine::double")
    RULES[namespace, base_name(name)] = rule, is_product


def count(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> tuple[Operation, Traffic]:
    """Return the work of one call, whose tensors may be fake, and the bytes that it moves by storage."""
    name = name_of(func)
    if not hasattr(func, "_schema"):  # a higher-order operation
        return Operation(name, flags=(UNMODELLED,)), ([], [])
    call = Call(func, args, kwargs, result)
    given = list(call.values.values())
    shapes, dtypes = shapes_text(given) or shapes_text([result]), dtypes_of([*tensors_in(given)] or tensors_in(result))
    traffic = call.traffic()
    read, written = (sum(moved.bytes for moved in side) for side in traffic)
    flops, products, is_known = call.flops()
    if (call.namespace, call.base) in RULES:
        rule, is_product = RULES[call.namespace, call.base]
        work = rule(*args, **kwargs)
        if not isinstance(work, Work):
            raise TypeError(f"a rule of declare_work returns a roofline.work.Work, not {type(work).__name__}")
        flops, products, is_known = work.flops, work.flops * is_product, True
        read, written = work.bytes_read, work.bytes_written
    flags = (*call.flags(), *(() if is_known else (UNMODELLED,)))
    return Operation(name, shapes, dtypes, "", "", flops, products, read, written, flags), traffic


class Call:
    """A call of a torch operation, with its tensors by what it does with them."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result
        self.namespace, _, name = name_of(func).partition(".")
        self.base = base_name(name)
        schema = func._schema.arguments
        given = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
        self.values = {argument.name: given[argument.name] for argument in schema if argument.name in given}
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
        is_free = self.base in FREE and self.namespace == "aten"
        return is_free or self.namespace in ("profiler", "prim") or bool(getattr(self.func, "is_view", False))

    def flags(self) -> Iterator[str]:
        import torch

        if self.func._opname == "_local_scalar_dense":
            yield HOST_SYNC
        elif {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(self.func.tags):
            yield DATA_DEPENDENT

    def flops(self) -> tuple[int, int, bool]:
        """Return the FLOPs, those of products among them, and whether there is a rule for them."""
        import torch
        from torch.utils.flop_counter import flop_registry

        if self.is_free:
            return 0, 0, True
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
        if is_aten and self.base in MOVES:
            return 0, 0, True
        is_pointwise = torch.Tag.pointwise in self.func.tags or self.base.startswith("_foreach_")
        is_known = is_aten and (self.base in FLOPS_PER_ELEMENT or is_pointwise)
        # A list of outputs counts as one operand.
        operands = [*([tensor] for tensor in self.read), self.updated, self.created]
        largest = max(sum(one.numel() for one in operand if one.dtype.is_floating_point) for operand in operands)
        return largest * (FLOPS_PER_ELEMENT.get(self.base, 1) if is_known else 1), 0, is_known

    def traffic(self) -> Traffic:
        """Return what is read and written: by default each input once and each output once.

        Of tables as many elements count as indices name, of grouped matrices as many as there are rows; no more than
        there are. Indices that repeat count each time.
        """
        if self.is_free:
            return [], []
        base = self.base if self.namespace == "aten" else ""
        written = distinct([*self.updated, *self.created])
        table: Any = self.values.get("weight" if base == "embedding" else "self")
        others = distinct(other for other in self.read if other is not table)
        if base in TAKES:
            target, results = self.values.get("target"), [*self.updated, *self.created]
            taken = results[0] if target is None else target
            return [_part(table, taken.numel()), *others], written
        if base in PUTS and not self.created:
            named = _part(table, self._elements_put(table))
            is_read = self.values.get("accumulate", "index_put" not in base)
            return [*([named] if is_read else []), *others], [named]
        if base in ("nll_loss_backward", "nll_loss2d_backward"):  # the scores themselves are not needed
            return others, written
        if base == "_grouped_mm" and self.values["mat2"].dim() == 3 and self.values.get("offs") is not None:
            matrices = self.values["mat2"]
            named = _part(matrices, table.shape[-2] * matrices[0].numel())
            return [named, *distinct(other for other in self.read if other is not matrices)], written
        return distinct(self.read), written

    def _elements_put(self, table: Any) -> int:
        if "indices" not in self.values:
            each = [self.values.get(name) for name in ("source", "src", "index")]
            return next(tensors_in(each)).numel()
        given = [(axis, index) for axis, index in enumerate(self.values["indices"]) if index is not None]
        rows = math.prod(map(max, zip_longest(*(reversed(index.shape) for _, index in given), fillvalue=1)))
        return int(rows * (table.numel() // max(1, math.prod(table.shape[axis] for axis, _ in given))))


def name_of(func: Any) -> str:
    return str(getattr(func, "_overloadpacket", func))


def base_name(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def tensors_in(value: Any) -> Iterator[Tensor]:
    import torch
    from torch.utils._pytree import tree_iter

    return (one for one in tree_iter(value) if isinstance(one, torch.Tensor))


def dtypes_of(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))


def shapes_text(values: Iterable[Any]) -> str:
    """Return the shapes of tensors in one word: `64x32,32x8`, of a list of them its length and first shape."""
    words = []
    for value in values:
        shapes = ["x".join(map(str, tensor.shape)) or "scalar" for tensor in tensors_in(value)]
        if shapes and isinstance(value, list | tuple):
            words.append(f"{len(shapes)}*{shapes[0]}{'...' if len(set(shapes)) > 1 else ''}")
        else:
            words += shapes
    return ",".join(words)


def distinct(tensors: Iterable[Tensor]) -> list[Moved]:
    """Return the distinct bytes that some tensors have in each storage.

    A broadcast dimension counts once, and so do elements that several windows share. Views of the same elements count
    once; views that overlap in part count apart, but no storage for more than it has.
    """
    views: dict[Any, Moved] = {}
    for tensor in tensors:
        strides = zip(tensor.stride(), tensor.shape, strict=True)
        extents = sorted((stride, size) for stride, size in strides if stride and size > 1)
        span = 1 + sum((size - 1) * stride for stride, size in extents)
        elements = min(math.prod(size for _, size in extents), span) if tensor.numel() else 0
        storage, width = tensor.untyped_storage(), tensor.element_size()
        views[storage._cdata, tensor.storage_offset(), tuple(extents), width] = Moved(storage, elements * width)
    moved: dict[int, Moved] = {}
    for (key, *_), view in views.items():
        earlier = moved[key].bytes if key in moved else 0
        moved[key] = Moved(view.storage, min(view.storage.nbytes(), earlier + view.bytes))
    return list(moved.values())


def _part(tensor: Tensor, elements: int) -> Moved:
    return Moved(tensor.untyped_storage(), min(elements, tensor.numel()) * tensor.element_size())


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
    rows = first[0] if first.dim() > second.dim() else first  # groups of columns, not of rows
    return int(2 * rows.numel() * second.shape[-1])
