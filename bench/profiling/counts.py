"""FLOPs and compulsory bytes of one call of a torch operation, from its arguments and results.

FLOPs of matmuls, convolutions, attention and recurrent layers are those of `products`, or of the
user's `torch.utils.flop_counter.register_flop_formula`. Other operations count `FLOPS_PER_ELEMENT`
for each element of their largest floating-point operand, by default 1, and 0 if they only move
data. An operation without a rule is flagged as unmodelled, never counted as 0.

Causal attention has two numbers: `matmul_flops` of every pair of tokens, by convention, and `flops`
of the pairs that are computed.

Each distinct element that a call uses of a storage is read once, and each element of its outputs is
written once. Elements that are updated in place are also read, unless the operation overwrites
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import ScriptObject, Tag, Tensor, broadcast_shapes
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import flop_registry

from bench.harness.torch_private import has_kernel_for, tree_iter, tree_map_only
from bench.profiling.operation import DATA_DEPENDENT, HOST_SYNC, UNMODELLED, Operation
from bench.profiling.products import PRODUCTS, computed_flops, specified_values
from roofline.work import FLOPS_PER_ELEMENT as DECLARED
from roofline.work import Work


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _names(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided _unsafe_view "
    "is_same_size resize set record_stream _version sym_size sym_stride sym_numel "
    "sym_storage_offset promote_types result_type unsafe_split unsafe_split_with_sizes transpose t "
    "detach squeeze unsqueeze as_strided is_coalesced _nested_tensor_size _efficientzerotensor "
    "_has_same_storage_numel _linalg_check_errors"
)
"""Operations that move no data, besides those that torch declares as views."""

MOVES = _names(
    "clone copy _to_copy cat stack constant_pad_nd reflection_pad2d fill zero zeros ones full "
    "zeros_like ones_like full_like new_zeros new_ones new_full arange lift scalar_tensor "
    "slice_backward select_backward slice_scatter select_scatter as_strided_scatter "
    "diagonal_backward repeat flip roll tril triu where masked_fill _local_scalar_dense "
    "bernoulli uniform normal random rand randn randint rand_like randn_like eye nonzero "
    "linspace repeat_interleave unfold_backward masked_select split_with_sizes_copy copy_from "
    "unfold im2col col2im pixel_shuffle upsample_nearest2d randperm equal split_copy "
    "native_channel_shuffle _copy_from_and_resize bincount histc exponential "
    "max_pool2d_with_indices_backward one_hot _foreach_copy _foreach_zero embedding "
    "embedding_renorm index index_select gather index_put _index_put_impl _unsafe_index "
    "_unsafe_index_put scatter index_copy masked_scatter index_fill nll_loss_backward iota "
    "convert_element_type masked_scatter_backward block_diag rot90 diag_embed diagonal_copy "
    "channel_shuffle pixel_unshuffle take put nll_loss2d_backward "
    "reflection_pad1d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "upsample_nearest1d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _to_dense to_padded_tensor _pack_padded_sequence "
    "_nested_tensor_from_tensor_list _nested_tensor_from_mask max_unpool2d multinomial "
    "_nested_tensor_from_mask_left_aligned _sparse_coo_tensor_with_dims_and_tensors "
    "nonzero_static poisson"
)
"""Operations that only move data."""

OVERWRITES = _names(
    "copy fill zero normal uniform bernoulli random exponential _foreach_copy _foreach_zero "
    "arange log_normal cauchy geometric"
)
"""In-place operations that do not read the old values."""

TAKES = _names(
    "embedding index_select index _unsafe_index gather nll_loss_forward nll_loss2d_forward "
    "_embedding_bag _embedding_bag_forward_only take"
)
"""Operations that read the indexed elements of a table."""

ROWWISE = _names(
    "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data "
    "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward sum "
    "mean amax amin var_mean logsumexp native_dropout native_dropout_backward clone copy "
    "_to_copy where masked_fill cat convert_element_type embedding index index_select gather"
)
"""Operations beside the elementwise ones that a compiler fuses: reductions, copies and lookups."""

REDUCTIONS = _names("sum mean amax amin var_mean logsumexp any all prod")
"""Operations that a compiler fuses with what reads them only if they reduce the last dimension."""

PUTS = _names(
    "index_put _index_put_impl _unsafe_index_put scatter scatter_add index_add index_copy "
    "scatter_reduce index_reduce index_fill put"
)
"""Operations that write the indexed elements of a table in place; out of place they copy all of
it.
"""

ADDS = _names("scatter_add index_add scatter_reduce index_reduce")
"""Those that also read the indexed elements."""

COUNTED = (
    (0, "nll_loss_forward nll_loss2d_forward convolution_overrideable"),
    (
        1,
        (
            "mean amax amin max min argmax argmin prod any all cumsum cumprod topk sort "
            "native_dropout native_dropout_backward embedding_dense_backward scatter_add "
            "index_add scatter_reduce max_pool2d_with_indices avg_pool2d avg_pool2d_backward "
            "mean_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward count_nonzero "
            "searchsorted floor_divide rrelu_with_noise isin hardtanh_backward "
            "upsample_nearest2d_backward _embedding_bag_dense_backward _embedding_bag_backward "
            "_is_all_true cummax cummin nansum adaptive_max_pool2d adaptive_max_pool3d avg_pool3d "
            "avg_pool3d_backward max_pool3d_with_indices adaptive_max_pool2d_backward "
            "adaptive_max_pool3d_backward max_pool3d_with_indices_backward bucketize allclose "
            "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward leaky_relu_backward "
            "softshrink_backward hardshrink_backward hardsigmoid_backward "
            "upsample_nearest1d_backward upsample_nearest3d_backward "
            "_upsample_nearest_exact2d_backward reflection_pad1d_backward "
            "reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
            "replication_pad2d_backward replication_pad3d_backward _prelu_kernel "
            "_amp_foreach_non_finite_check_and_unscale kthvalue median nanmedian mode "
            "mul rrelu_with_noise_backward index_reduce leaky_relu _unique _unique2 unique_dim "
            "unique_consecutive unique_dim_consecutive"
        ),
    ),
    (
        2,
        (
            "norm linalg_vector_norm mv addmv addr mse_loss aminmax _foreach_norm renorm "
            "quantize_per_tensor dequantize _prelu_kernel_backward mse_loss_backward"
        ),
    ),
    (
        3,
        (
            "logsumexp var std var_mean logcumsumexp sigmoid sigmoid_backward tanh_backward "
            "softplus addcmul addcdiv lerp smooth_l1_loss cdist linalg_cross std_mean huber_loss "
            "smooth_l1_loss_backward huber_loss_backward _cdist_forward _pdist_forward "
            "upsample_linear1d elu_backward"
        ),
    ),
    (
        4,
        (
            "_softmax_backward_data _log_softmax_backward_data "
            "_native_batch_norm_legit_no_training _batch_norm_no_update glu _fused_sgd "
            "_weight_norm_interface polar softplus_backward hardswish log_sigmoid_forward "
            "soft_margin_loss log_sigmoid_backward"
        ),
    ),
    (
        6,
        (
            "silu_backward mish binary_cross_entropy binary_cross_entropy_with_logits "
            "glu_backward hardswish_backward binary_cross_entropy_backward "
            "soft_margin_loss_backward"
        ),
    ),
    (
        7,
        (
            "native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
            "_batch_norm_with_update _fused_adagrad _weight_norm_interface_backward"
        ),
    ),
    (8, "_fused_rms_norm_backward upsample_bilinear2d upsample_bilinear2d_backward"),
    (
        12,
        (
            "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward "
            "cudnn_batch_norm_backward batch_norm_backward"
        ),
    ),
    (14, "_fused_adamw _fused_adam"),
    (30, "gelu_backward"),
    (32, "upsample_bicubic2d"),
    # As the ops of `bench` count:
    (DECLARED["sum"], "sum"),
    (DECLARED["dot"], "dot vdot"),
    (
        DECLARED["softmax"],
        "_softmax _log_softmax _safe_softmax _masked_softmax softmax log_softmax",  # last: with out
    ),
    (DECLARED["layernorm"], "native_layer_norm"),
    (DECLARED["rmsnorm"], "_fused_rms_norm"),
    (DECLARED["gelu"], "gelu"),
    (DECLARED["silu"], "silu"),
    (DECLARED["add"], "add"),
)
"""FLOPs per element of the largest floating-point operand, and the operations with that many: one
for each addition, multiplication, division, comparison or transcendental function of the
formula."""

FLOPS_PER_ELEMENT: dict[str, int] = {}
for _count, _ops in COUNTED:
    FLOPS_PER_ELEMENT |= dict.fromkeys(_ops.split(), _count)

COMPLEX_FLOPS = {"mul": 6, "div": 11, "mv": 8, "addmv": 8, "dot": 8, "vdot": 8, "addcmul": 8}
"""FLOPs per element of two complex operands: (a + bi)(c + di) has four multiplications and two
additions, a sum of products two more, a division also divides by c^2 + d^2. Others count twice the
real operation.
"""

BY_VALUES = {Tag.dynamic_output_shape, Tag.data_dependent_output}
"""Tags of an operation whose result depends on values in its shape or its meaning."""

Moved = Counter[StorageWeakRef]
"""Bytes that a call reads or writes, by storage; the references prevent that another storage gets
the same address.
"""

RULES: dict[tuple[str, str], tuple[Callable[..., Work], bool]] = {}
"""Rules that users declared, by namespace and name, with whether their FLOPs are those of a
matmul.
"""


def declare_work(op: str, rule: Callable[..., Work], is_product: bool = False) -> None:
    """Declare the FLOPs and bytes of your own operation, such as a Triton kernel.

    Args:
        op: name as passed to `torch.library.triton_op` or `custom_op`, such as `mine::double`.
        rule: takes the arguments of a call and returns its `roofline.work.Work`.
        is_product: whether the FLOPs are those of a matmul, which MFU counts.

    Raises:
        ValueError: the name has no namespace, or belongs to torch.
    """
    namespace, _, name = op.partition("::")
    if not name or namespace in ("aten", "prim", "profiler"):
        raise ValueError(
            f"declare_work: '{op}' is not the name of your own operation; write namespace::name, "
            f"as in torch.library"
        )
    RULES[namespace, base_name(name)] = rule, is_product


def count(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Operation:
    """Return the work of one call, whose tensors may be fake."""
    operation = Operation(name_of(func), flags=(UNMODELLED,))
    try:
        call = Call(func, args, kwargs, result)
        reads, writes = call.traffic()
        flops, products, is_known = call.flops()
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        # Tensors without strides or storage, such as those of MKL-DNN, raise errors of their own.
        return operation
    given = list(call.values.values()) or [args]
    operation.shapes = shapes_text(given) or shapes_text([result])
    operation.dtypes = dtypes_of([*tensors_in(given)] or tensors_in(result))
    operation.flops = flops
    operation.matmul_flops = products
    operation.reads = reads
    operation.writes = writes
    operation.bytes_read = reads.total()
    operation.bytes_written = writes.total()
    operation.is_fusable = call.is_fusable
    if call.base in REDUCTIONS:
        last = call.read[0].dim() - 1  # of this dimension alone, each row is a block's
        operation.ends_kernel = call.values.get("dim") not in (-1, [-1], last, [last])
    if (call.namespace, call.base) in RULES:
        declare(operation, *args, **kwargs)
        is_known = True
    flags = []
    if call.base == "_local_scalar_dense":
        flags.append(HOST_SYNC)
    elif not BY_VALUES.isdisjoint(call.tags):
        flags.append(DATA_DEPENDENT)
    if not is_known:
        flags.append(UNMODELLED)
    operation.flags = tuple(flags)
    return operation


def declare(operation: Operation, *args: Any, **kwargs: Any) -> None:
    """Give an operation the work of a call that its rule in `RULES` declares.

    Raises:
        TypeError: the rule returns something else.
    """
    namespace, _, name = operation.op.partition(".")
    rule, is_product = RULES[namespace, base_name(name)]
    work = rule(*args, **kwargs)
    if not isinstance(work, Work):
        raise TypeError(
            f"a rule of declare_work must return a roofline.work.Work, got {type(work).__name__}"
        )
    operation.flops = work.flops
    operation.matmul_flops = work.flops if is_product else 0
    operation.bytes_read = work.bytes_read
    operation.bytes_written = work.bytes_written


class Call:
    """A call of a torch operation, with the tensors that it reads, updates in place and creates."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.result = result
        name = name_of(func)
        self.namespace, _, op = name.partition(".")
        self.base = base_name(op)
        self.aten = self.base if self.namespace == "aten" else ""
        self.product = self.aten or name
        # A higher-order operation has neither a schema nor tags.
        schema = func._schema.arguments if hasattr(func, "_schema") else ()
        self.tags = getattr(func, "tags", ())
        self.values = named(func, args, kwargs)
        if "quantized" in name:
            self.values = tree_map_only(ScriptObject, held_by, self.values)
        self.read = [] if schema else list(parts_in((args, kwargs)))
        self.updated = []
        for argument in schema:
            tensors = list(parts_in(self.values.get(argument.name)))
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            # The gradients of a fused optimizer are declared as written: only a gradient scaler
            # writes them.
            if argument.name == "grads" and self.values.get("grad_scale") is None:
                is_written = False
            if is_written:
                self.updated += tensors
            if not is_written or not (self.base in OVERWRITES or argument.is_out):
                self.read += tensors
        known = {id(tensor) for tensor in tensors_in((args, kwargs))}
        fresh = [tensor for tensor in tensors_in(result) if id(tensor) not in known]
        self.created = list(parts_in(fresh))
        self.written = [*self.updated, *self.created]
        if self.aten.endswith("_like") or self.aten.startswith("new_"):
            self.read = []  # only the shape of the input is needed
        is_view = bool(getattr(func, "is_view", False))
        self.is_free = is_view or self.aten in FREE or self.namespace in ("profiler", "prim")
        is_elementwise = Tag.pointwise in self.tags and not self.base.startswith("_foreach_")
        self.is_fusable = self.namespace in ("aten", "prims") and (
            is_elementwise or self.base in ROWWISE
        )

    def flops(self) -> tuple[int, int, bool]:
        """Return the FLOPs, the matmul FLOPs among them, and whether there is a rule for them."""
        if self.is_free:
            return 0, 0, True
        packet = getattr(self.func, "_overloadpacket", self.func)
        products = None
        forward = self.product.removesuffix("_backward")
        if forward in PRODUCTS:
            products = PRODUCTS[forward](self.values, self.result)
        elif packet in flop_registry:
            products = int(flop_registry[packet](*self.args, **self.kwargs, out_val=self.result))
        is_complex = any(x.is_complex() for x in self.created)
        if products is not None:
            products *= 4 if is_complex else 1
            is_attention = "scaled_dot_product" in self.aten or "block_mask" in self.values
            computed = computed_flops(self.values, products) if is_attention else products
            return computed, products, True
        is_torchs = self.namespace in ("aten", "prims")  # the latter in graphs of the compiler
        if is_torchs and self.base in MOVES:
            return 0, 0, True
        if "offset2bag" not in self.values and "bag" in self.aten:
            rows = self.values["indices"].numel()
            return rows * self.values["weight"].shape[1], 0, True
        is_pointwise = Tag.pointwise in self.tags or self.base.startswith("_foreach_")
        is_known = is_torchs and (self.base in FLOPS_PER_ELEMENT or is_pointwise)
        # A list of outputs counts as one operand.
        operands = [*([tensor] for tensor in self.read), self.updated, self.created]
        largest = max(sum(x.numel() for x in operand if is_real(x)) for operand in operands)
        each = FLOPS_PER_ELEMENT.get(self.base, 1) if is_known else 1
        if is_complex:
            each *= 2
            if sum(x.is_complex() for x in self.read) > 1:
                each = COMPLEX_FLOPS.get(self.base, each)
        return largest * each, 0, is_known

    def traffic(self) -> tuple[Moved, Moved]:
        """Return the reads and writes: by default each input and each output once.

        Of a table only the indexed elements count, and repeated indices count again. Of grouped
        matrices at most one per row counts. Neither counts more than there is.
        """
        if self.is_free:
            return Counter(), Counter()
        base = self.aten
        written = distinct(self.written)
        is_embedding = base == "embedding" or "_bag" in base
        table: Any = self.values.get("weight" if is_embedding else "self")
        others = distinct(other for other in self.read if other is not table)
        if base in TAKES:
            taken = self.values.get("target", self.written[0]).numel()
            if "offsets" in self.values:  # of an embedding bag
                taken = self.values["indices"].numel() * table.shape[1]
            return _part(table, taken) + others, written
        if base in PUTS and not self.created:
            indexed = _part(table, self._elements_put(table))
            is_read = self.values.get("accumulate", base in ADDS or "reduce" in self.values)
            return indexed + others if is_read else others, indexed
        # The scores themselves are not needed.
        if base in ("nll_loss_backward", "nll_loss2d_backward"):
            return others, written
        if (
            base == "_grouped_mm"
            and self.values["mat2"].dim() == 3
            and self.values.get("offs") is not None
        ):
            matrices = self.values["mat2"]
            used = _part(matrices, table.shape[-2] * matrices[0].numel())
            return used + distinct(x for x in self.read if x is not matrices), written
        return distinct(self.read), written

    def _elements_put(self, table: Any) -> int:
        if "indices" not in self.values:
            each = [self.values.get(name) for name in ("source", "src", "index")]
            elements = next(tensors_in(each)).numel()
            if self.base == "index_fill":  # whole rows
                elements *= table.numel() // max(1, table.shape[self.values["dim"]])
            return elements
        given = [
            (axis, index) for axis, index in enumerate(self.values["indices"]) if index is not None
        ]
        rows = math.prod(broadcast_shapes(*(index.shape for _, index in given)))
        indexed = math.prod(table.shape[axis] for axis, _ in given)
        return int(rows * (table.numel() // max(1, indexed)))


@cache
def is_decomposed(func: Any) -> bool:
    """Whether torch runs an operation as others, and has no kernel for it."""
    name = func.name()
    # Only a GPU has a kernel for the fused RMS norm.
    is_whole = has_kernel_for(name, "CPU") or name == "aten::_fused_rms_norm"
    return has_kernel_for(name, "CompositeImplicitAutograd") and not is_whole


def named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    if hasattr(func, "_schema"):
        names = [argument.name for argument in func._schema.arguments]
    else:  # a higher-order operation
        names = list(signature(func.__call__).parameters)
    return dict(zip(names, args, strict=False)) | kwargs


def name_of(func: Any) -> str:
    return str(getattr(func, "_overloadpacket", func))


def base_name(name: str) -> str:
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def tensors_in(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, Tensor))


def is_real(tensor: Tensor) -> bool:
    """Whether a tensor has real or complex numbers, no integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def held_by(layer: Any) -> Any:
    """Return the weights that an object of a quantized layer holds."""
    if layer._has_method("unpack"):
        return layer.unpack()
    return tree_map_only(ScriptObject, held_by, layer.__getstate__())


def parts_in(value: Any) -> Iterator[Tensor]:
    """Return the dense tensors that hold the tensors in a value: the values and the indices of a
    sparse one, the sequences of a nested one.
    """
    for tensor in tensors_in(value):
        if tensor.is_nested:
            yield tensor.values()
        elif "sparse" not in str(tensor.layout):
            yield tensor
        else:
            yield specified_values(tensor)
            if tensor.is_sparse:
                yield tensor._indices()
            elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
                yield tensor.crow_indices()
                yield tensor.col_indices()
            else:
                yield tensor.ccol_indices()
                yield tensor.row_indices()


def dtypes_of(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))


def shapes_text(values: Iterable[Any]) -> str:
    """Return shapes as text: `64x32,32x8`; a list of tensors as its length and first shape."""
    texts = []
    for value in values:
        shapes = []
        for tensor in tensors_in(value):
            shape = "nested" if tensor.is_nested else "x".join(map(str, tensor.shape))
            shapes.append(shape or "scalar")
        if shapes and isinstance(value, list | tuple):
            texts.append(f"{len(shapes)}*{shapes[0]}{'...' if len(set(shapes)) > 1 else ''}")
        else:
            texts += shapes
    return ",".join(texts)


def distinct(tensors: Iterable[Tensor]) -> Moved:
    """Return the distinct bytes of tensors in each storage.

    A broadcast dimension, the shared elements of sliding windows and identical views count once.
    Views that overlap in part count separately, up to the size of the storage.
    """
    views = {}
    for tensor in tensors:
        strides = zip(tensor.stride(), tensor.shape, strict=True)
        extents = sorted((stride, size) for stride, size in strides if stride and size > 1)
        span = 1 + sum((size - 1) * stride for stride, size in extents)
        elements = min(math.prod(size for _, size in extents), span) if tensor.numel() else 0
        storage = tensor.untyped_storage()
        width = tensor.element_size()
        view = storage._cdata, tensor.storage_offset(), tuple(extents), width
        views[view] = storage, elements * width
    moved: Moved = Counter()
    for storage, view_bytes in views.values():
        reference = StorageWeakRef(storage)
        moved[reference] = min(storage.nbytes(), moved[reference] + view_bytes)
    return moved


def _part(tensor: Tensor, elements: int) -> Moved:
    size_bytes = min(elements, tensor.numel()) * tensor.element_size()
    return Counter({StorageWeakRef(tensor.untyped_storage()): size_bytes})
