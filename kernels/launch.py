"""What every kernel version shares: the record of how a kernel is compiled, and the checks of its tensors.

A measured kernel must do exactly what its caller asked for. So a tensor of the wrong layout, dtype or device is refused
in one line: a silent `.contiguous()` would add the time of a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
import triton
from triton.runtime.jit import DependenciesFinder

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}  # with Triton's name of each
ALIGNMENT_BYTES = 16  # the widest access of one thread, and what Triton takes as known of an aligned pointer
INTERPRETED: bool = triton.knobs.runtime.interpret  # read when a kernel is decorated, so it cannot change later
TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
"""Triton's release, `(3, 9)`."""


_update_hash = DependenciesFinder._update_hash


def _add_to_key(finder: DependenciesFinder, callee: Any) -> None:
    """Add a function to the key that its caller has in Triton's cache, as Triton 3.8 does.

    Earlier ones read which constants the function uses before they have looked for them. The key then depends on what
    the process compiled before, so that a launch may miss what another process has compiled for it, and compile while
    something is timed. Source: pull request 10494 of triton-lang/triton.
    """
    callee.cache_key  # noqa: B018  # looks for the constants
    _update_hash(finder, callee)


if TRITON < (3, 8):
    DependenciesFinder._update_hash = _add_to_key


@dataclass(frozen=True)
class Gpu:
    """The facts of a GPU that a launcher chooses by."""

    arch: int
    """Compute capability, 90 for sm_90."""
    processors: int
    """Multiprocessors."""
    cache_bytes: int
    """Of the last-level cache."""
    name: str = ""
    """As its driver calls it."""


stand_in = Gpu(90, 4, 2**20)
"""The GPU for tensors that are on no GPU: the interpreter's, small so that small tensors make many programs, or the one
that a process without a GPU compiles for, see precompile.py."""


def gpu_of(device: torch.device) -> Gpu:
    """Return the facts of the GPU that holds the tensors of a launch."""
    return _facts(device) if device.type == "cuda" else stand_in


@cache
def _facts(device: torch.device) -> Gpu:
    properties = torch.cuda.get_device_properties(device)
    arch = 10 * properties.major + properties.minor
    return Gpu(arch, properties.multi_processor_count, properties.L2_cache_size, properties.name)


@dataclass(frozen=True)
class Variant:
    """One kernel as compiled for one dtype; a launch and an ahead-of-time compile read the same record.

    Attributes:
        kernel: The `triton.jit` function. Arguments named `*_ptr` are pointers, aligned to `ALIGNMENT_BYTES`; every
            other runtime argument is a 32-bit integer, unless `types` says otherwise. `out_ptr` is what it writes.
        constants: Compile-time arguments by name.
        options: Compiler options by name. `enable_fp_fusion` is always given: its default differs between
            Triton releases and changes both rounding and instruction count.
        op: The operation computed, a key of the file's `KERNELS`.
        dtype: Ridgepoint's name of the dtype, `bf16`.
        part: Where one operation takes several launches, which of them this is, `partial` or `finish`.
        shape_class: Where the configuration depends on the shape, the shapes it is for, `n <= 4096`.
        types: Triton types of the runtime arguments that are neither pointers to `dtype` nor 32-bit integers,
            `{"labels_ptr": "*i64", "eps": "fp32"}`.
        elements: What one program handles on one pass through its hot path, which is the body of its loop where it
            has one and all of the program where it has none: elements of the output, or of the input of a reduction.
        bytes: Compulsory bytes that memory moves for those elements; None where they are unknown.
    """

    kernel: Any
    constants: Mapping[str, Any]
    options: Mapping[str, int | bool]
    op: str = ""
    dtype: str = ""
    part: str = ""
    shape_class: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    elements: int = 0
    bytes: int | None = 0

    def launch(self, programs: int, *arguments: torch.Tensor | int) -> None:
        """Start `programs` programs on the device that holds the first tensor of `arguments`.

        Raises:
            ValueError: The output shares memory with an input. It may be an input itself where none is larger, as
                where each element depends on those of its own place or row alone.
        """
        if self._out_place is not None:
            inputs = {
                name: argument
                for place, (name, argument) in enumerate(zip(self.kernel.arg_names, arguments, strict=False))
                if place != self._out_place and isinstance(argument, torch.Tensor)
            }
            out = arguments[self._out_place]
            in_place = all(tensor.numel() <= out.numel() for tensor in inputs.values())
            require_apart(self.op or self.kernel.fn.__name__, out, inputs, in_place)
        self.start(programs, *arguments)

    def start(self, programs: int, *arguments: torch.Tensor | int) -> None:
        """Start `programs` programs, whatever memory the output shares with an input."""
        with torch.cuda.device_of(arguments[0]):
            self.kernel[(programs,)](*arguments, **self.constants, **self.options)

    @cached_property
    def _out_place(self) -> int | None:
        """Which argument is the output; None where the kernel names none."""
        return self.kernel.arg_names.index("out_ptr") if "out_ptr" in self.kernel.arg_names else None


def require_tensors(label: str, **tensors: torch.Tensor) -> None:
    """Refuse tensors that do not share one supported dtype and one device, or that are not aligned.

    Args:
        label: Operation and version, the opening words of the message.
        tensors: The operands by the name the message gives them. The first sets dtype and device.

    Raises:
        ValueError: One line that says which operand, what it is and what is allowed.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{label}: {name} is of type {type(tensor).__name__}; pass a torch tensor")
        if tensor.dtype not in DTYPES:
            allowed = ", ".join(str(dtype) for dtype in DTYPES)
            raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; allowed are {allowed}")
        if tensor.dtype != first.dtype:
            raise ValueError(f"{label}: {name} has dtype {tensor.dtype}, {first_name} {first.dtype}; use one dtype")
        if tensor.device != first.device:
            raise ValueError(f"{label}: {name} is on {tensor.device}, {first_name} on {first.device}; use one device")
        if tensor.device.type != "cuda" and not INTERPRETED:
            raise ValueError(f"{label}: {name} is on {tensor.device}; Triton needs a GPU, device 'cuda'")
        _require_aligned(label, name, tensor)


def _require_aligned(label: str, name: str, tensor: torch.Tensor) -> None:
    past = tensor.data_ptr() % ALIGNMENT_BYTES
    if past:
        raise ValueError(
            f"{label}: {name} starts {past} bytes past a multiple of {ALIGNMENT_BYTES}; "
            "pass a tensor that is no offset view"
        )


def require_contiguous(label: str, **tensors: torch.Tensor) -> None:
    """Refuse tensors that are not dense and row-major.

    Raises:
        ValueError: One line that says which operand, its shape and strides.
    """
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{label}: {name} of shape {tuple(tensor.shape)} has strides {tensor.stride()}; "
                "pass a contiguous tensor (copy it before the measurement)"
            )


def require_shape(label: str, name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ValueError: One line that says which operand, its shape and the one needed.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{label}: {name} has shape {tuple(tensor.shape)}; the other operands need {tuple(shape)}")


def require_companion(
    label: str, name: str, tensor: torch.Tensor, dtype: torch.dtype, like: tuple[str, torch.Tensor]
) -> None:
    """Refuse a tensor, such as labels, that does not have the dtype that its meaning needs.

    Args:
        label: Operation and version, the opening words of the message.
        name: What the message calls the tensor.
        tensor: The tensor.
        dtype: The dtype needed.
        like: An operand on the device needed, and its name.

    Raises:
        ValueError: One line that says what the tensor is and what is needed.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{label}: {name} is of type {type(tensor).__name__}; pass a torch tensor")
    if tensor.dtype != dtype:
        raise ValueError(f"{label}: {name} has dtype {tensor.dtype}; {dtype} is needed")
    if tensor.device != like[1].device:
        raise ValueError(f"{label}: {name} is on {tensor.device}, {like[0]} on {like[1].device}; use one device")
    _require_aligned(label, name, tensor)


def row_stride(label: str, name: str, matrix: torch.Tensor, axes: str = "(m, n)", of_one_row: int | None = None) -> int:
    """Return the elements from one row of a matrix to the next.

    Args:
        label: Operation and version, the opening words of the message.
        name: What the message calls the matrix.
        matrix: Rows and columns.
        axes: What the message calls them.
        of_one_row: The stride of a matrix that has one row, as torch gives it any; None is its length.

    Raises:
        ValueError: It has another number of dimensions, its rows are not dense, or they overlap.
    """
    if matrix.dim() != 2:
        raise ValueError(f"{label}: {name} has shape {tuple(matrix.shape)}; two dimensions are needed, {axes}")
    m, n = matrix.shape
    if (n > 1 and matrix.stride(1) != 1) or (m > 1 and matrix.stride(0) < n):
        raise ValueError(
            f"{label}: {name} of shape {(m, n)} has strides {matrix.stride()}; rows must be dense and must not overlap"
        )
    if m > 1:
        return matrix.stride(0)
    return n if of_one_row is None else of_one_row


def require_apart(label: str, out: torch.Tensor, inputs: Mapping[str, torch.Tensor], in_place: bool = False) -> None:
    """Refuse an output that shares memory with an input: the result would depend on which program runs first.

    Args:
        label: Operation and version, the opening words of the message.
        out: The output.
        inputs: The operands by the name the message gives them, with or without `_ptr` behind it.
        in_place: Whether the output may be an input itself, element on element.

    Raises:
        ValueError: One line that says which operand.
    """
    if out.is_meta:  # has no address, and nothing is launched
        return
    begin, end = _span(out)
    for name, tensor in inputs.items():
        first, last = _span(tensor)
        if first >= end or last <= begin or _interleave(out, tensor):
            continue
        same = (first, tensor.dtype, tensor.shape, tensor.stride()) == (begin, out.dtype, out.shape, out.stride())
        if not (in_place and same):
            allowed = f"a tensor of its own, or {name.removesuffix('_ptr')} itself" if in_place else "one of its own"
            raise ValueError(f"{label}: out shares memory with {name.removesuffix('_ptr')}; pass {allowed}")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the one after its last."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (steps + 1) * tensor.itemsize


def _interleave(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether rows of two tensors lie in turn, as columns of one wider matrix do, with no element in common."""
    if one.dtype != other.dtype or one.dim() < 2 or other.dim() < 2:
        return False
    distance = one.stride(-2)
    if one.stride(-1) != 1 or other.stride(-1) != 1 or distance == 0:
        return False
    if any(stride % distance for stride in (*one.stride()[:-1], *other.stride()[:-1])):
        return False
    past = (other.data_ptr() - one.data_ptr()) // one.itemsize % distance
    return one.shape[-1] <= past <= distance - other.shape[-1]
