"""Counts the work of every operation of a step, in a pass that is not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bench.harness.profile.counts import UNMODELLED, Count, count, tensors_in
from bench.harness.profile.step import ProfiledStep, watch_modules

Catch = Callable[[int, Any, Any, Any], None]

TRACE_DTYPES = {
    **{torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"},
    **{torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char"},
    **{torch.uint8: "unsigned char", torch.bool: "bool"},
}
"""Names of dtypes in traces of torch.profiler."""

HOST_SYNC, DATA_DEPENDENT = "host-sync", "data-dependent"
FLAGS = (HOST_SYNC, DATA_DEPENDENT, UNMODELLED)
"""Flags of a call, each with its reason."""

LONGEST_LIST = 30
"""Tensors of a list whose shapes a trace holds; of a longer one it holds none."""


@dataclass(frozen=True)
class Call:
    """One call of an operation, and its work."""

    op: str
    """`aten.mm`."""
    operands: tuple[tuple[Any, str], ...]
    """Shape and dtype of each tensor with a dimension, as a trace of torch.profiler names them; joins the two."""
    shapes: str
    dtypes: tuple[str, ...]
    module: str
    phase: str
    flops: int
    matmul_flops: int
    bytes_read: int
    bytes_written: int
    is_modelled: bool
    flags: tuple[str, ...] = ()


@dataclass
class Accounted:
    """The work of one step."""

    calls: list[Call] = field(default_factory=list)
    unique_bytes: int = 0
    """Bytes of all storages of the step, each counted once, as far as it is touched."""
    eager_bytes: int | None = None
    """Bytes that the operations of a compiled step move where none is fused."""


class Account(TorchDispatchMode):
    """Sees every operation of a step below autograd."""

    def __init__(self, step: ProfiledStep, catch: Catch | None = None) -> None:
        """Count nothing yet; `catch` is given the place, the function and the arguments of each call before it runs."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._step, self._catch = step, catch
        self._module_of_node: dict[int, str] = {}
        self._stack: list[str] = []
        self._storages: dict[int, tuple[StorageWeakRef, int, list[int]]] = {}
        self._owners = {id(parameter): path.rpartition(".")[0] for path, parameter in step.target.named_parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call and count it."""
        kwargs = kwargs or {}
        if self._catch is not None:
            self._catch(len(self.calls), func, args, kwargs)
        result = func(*args, **kwargs)
        module = self._module()
        if not hasattr(func, "_schema"):
            self.calls.append(_unknown(str(func), module, self._step.phase))
            return result
        work = count(func, args, kwargs, result)
        self._touch(work)
        self.calls.append(_call(func, args, kwargs, result, work, module, self._step.phase))
        return result

    def entered(self, path: str) -> None:
        """Note that a module begins."""
        self._stack.append(path)

    def left(self, path: str) -> None:
        """Note that a module ends."""
        if self._stack:
            self._stack.pop()

    @staticmethod
    def _next_node() -> int:
        """Return the number that the next node of autograd gets."""
        return int(torch._C._autograd._get_sequence_nr())

    def _module(self) -> str:
        """Return the path of the module that a call belongs to; backward, that of its forward call."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            module = self._stack[-1] if self._stack else ""
            # The first call after a node of autograd was made is the one it belongs to.
            self._module_of_node.setdefault(self._next_node() - 1, module)
            return module
        if self._stack:  # computed again in the backward pass
            return self._stack[-1]
        if hasattr(node, "variable"):
            return self._owners.get(id(node.variable), "")
        return self._module_of_node.get(node._sequence_nr(), "")

    def _touch(self, work: Count) -> None:
        for side, moves in enumerate((work.reads, work.writes)):
            for moved in moves:
                reference = self._storages.get(moved.storage._cdata)
                if reference is None:  # the reference keeps the storage's address from being used again
                    reference = (StorageWeakRef(moved.storage), moved.storage.nbytes(), [0, 0])
                    self._storages[moved.storage._cdata] = reference
                reference[2][side] += moved.bytes

    def unique_bytes(self) -> int:
        """Return the bytes of all storages that were touched, each as far as it was, once."""
        return sum(min(size, max(sides)) for _, size, sides in self._storages.values())


def accounted(step: ProfiledStep, catch: Catch | None = None) -> Accounted:
    """Return the work of one step, which is run once; what is compiled stays compiled."""
    account = Account(step, catch)
    with ExitStack() as held:
        # A compiled function under a dispatch mode would run eagerly, and for ever after.
        held.enter_context(torch.compiler.set_stance("force_eager"))
        held.enter_context(watch_modules(step.target, account.entered, account.left))
        held.enter_context(account)
        step()
    return Accounted(account.calls, account.unique_bytes())


def _call(func: Any, args: Any, kwargs: Any, result: Any, work: Count, module: str, phase: str) -> Call:
    schema = func._schema.arguments
    given = dict(zip((argument.name for argument in schema), args, strict=False)) | kwargs
    values = [given[argument.name] for argument in schema if argument.name in given]
    traced = [given[argument.name] for argument in schema if argument.name in given and _is_traced(argument)]
    tensors = [*tensors_in(values)] or [*tensors_in(result)]
    flags = []
    if func._opname == "_local_scalar_dense":
        flags.append(HOST_SYNC)
    elif {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags):
        flags.append(DATA_DEPENDENT)
    if not work.is_modelled:
        flags.append(UNMODELLED)
    return Call(
        op=str(func._overloadpacket),
        operands=tuple(_operand(value) for value in traced if _has_dimensions(value)),
        shapes=shapes_text(values) or shapes_text([result]),
        dtypes=dtypes_of(tensors),
        module=module,
        phase=phase,
        flops=work.flops,
        matmul_flops=work.matmul_flops,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        is_modelled=work.is_modelled,
        flags=tuple(flags),
    )


def dtypes_of(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """Return the names of the dtypes of some tensors, each once: `float32`."""
    return tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))


def _unknown(name: str, module: str, phase: str) -> Call:
    return Call(name, (), "", (), module, phase, 0, 0, 0, 0, False, (UNMODELLED,))


def _is_traced(argument: Any) -> bool:
    """Return whether a trace tells the shapes of an argument: not of indices some of which may be None."""
    return str(argument.type) != "List[Optional[Tensor]]"


def _has_dimensions(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() > 0
    is_list = isinstance(value, list | tuple) and any(isinstance(one, torch.Tensor) for one in value)
    return is_list and len(value) <= LONGEST_LIST


def _operand(value: Any) -> tuple[Any, str]:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), TRACE_DTYPES.get(value.dtype, "")
    return tuple(tuple(one.shape) if one is not None else () for one in value), "TensorList"


def shapes_text(values: list[Any]) -> str:
    """Return the shapes of tensors in one word: `64x32,32x8`, of a list of them its length and first shape."""
    words = []
    for value in values:
        if isinstance(value, torch.Tensor):
            words.append("x".join(map(str, value.shape)) or "scalar")
        elif isinstance(value, list | tuple):
            tensors = list(tensors_in(value))
            shapes = list(dict.fromkeys("x".join(map(str, one.shape)) or "scalar" for one in tensors))
            words += [f"{len(tensors)}*{shapes[0]}{'...' if len(shapes) > 1 else ''}"] if tensors else []
    return ",".join(words)
