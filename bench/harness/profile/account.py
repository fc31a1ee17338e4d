"""Counts the work of every operation of a step, in a pass that is not timed, and tags each in one that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bench.harness.profile.counts import UNMODELLED, Count, Moved, count, tensors_in
from bench.harness.profile.step import TAG, Breakdown, Operation, ProfiledStep, watch_modules

HOST_SYNC, DATA_DEPENDENT = "host-sync", "data-dependent"
FLAGS = (HOST_SYNC, DATA_DEPENDENT, UNMODELLED)
"""Flags of an operation, each with its reason."""


class Tags(TorchDispatchMode):
    """Sees every operation of a step below autograd, and tags each in a trace by its number and its name."""

    def __init__(self) -> None:
        """Start at 0."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: what is compiled stays compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation in its tag; a range of a profiler is none."""
        kwargs = kwargs or {}
        return func(*args, **kwargs) if getattr(func, "namespace", "") == "profiler" else self.run(func, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation in its tag."""
        with self.tag(name_of(func)):
            return func(*args, **kwargs)

    def tag(self, name: str) -> Any:
        """Return the range in a trace of the next operation."""
        self.number += 1
        return _RecordFunctionFast(f"{TAG}{self.number - 1} {name}")


class OtherStepError(ValueError):
    """A step called other operations than the step that was counted."""


class Arguments(Tags):
    """Keeps the functions and arguments of some operations."""

    def __init__(self, operations: Sequence[Operation], wanted: Set[int]) -> None:
        """Keep nothing yet; `wanted` are indices of `operations`, which are those of the step."""
        super().__init__()
        self.kept: dict[int, tuple[Any, Any, Any]] = {}
        self._names = {index: operations[index].op for index in wanted}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Keep the arguments if they are wanted, then run the operation."""
        if self._names.get(self.number) == name_of(func):
            self.kept[self.number] = func, args, kwargs
        return super().run(func, args, kwargs)


class Account(Tags):
    """Counts the work of every operation."""

    def __init__(self, step: ProfiledStep) -> None:
        """Count nothing yet."""
        super().__init__()
        self.operations: list[Operation] = []
        self._step = step
        self._module_of_node: dict[int, str] = {}
        self._stack: list[str] = []
        self._storages: dict[int, tuple[StorageWeakRef, int, list[int]]] = {}
        named = step.target.modules.named_parameters()
        self._owners: dict[int, str] = {id(parameter): path.rpartition(".")[0] for path, parameter in named}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation and count it."""
        result = super().run(func, args, kwargs)
        where: dict[str, Any] = {"module": self._module(), "phase": self._step.phase}
        if hasattr(func, "_schema"):
            work = count(func, args, kwargs, result)
            self._touch(0, work.reads)
            self._touch(1, work.writes)
            self.operations.append(Operation(name_of(func), **where, **_known_of(func, args, kwargs, result, work)))
        else:
            self.operations.append(Operation(name_of(func), **where, is_modelled=False, flags=(UNMODELLED,)))
        return result

    def entered(self, path: str) -> None:
        """Note that a module starts."""
        self._stack.append(path)

    def left(self, path: str) -> None:
        """Note that a module ends."""
        if self._stack:
            self._stack.pop()

    def _module(self) -> str:
        """Return the path of the module that an operation belongs to; backward, that of its forward operation."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            module = self._stack[-1] if self._stack else ""
            # The first operation after a node of autograd was made is the one it belongs to.
            self._module_of_node.setdefault(int(torch._C._autograd._get_sequence_nr()) - 1, module)
            return module
        if self._stack:  # computed again in the backward pass
            return self._stack[-1]
        if hasattr(node, "variable"):
            return self._owners.get(id(node.variable), "")
        return self._module_of_node.get(node._sequence_nr(), "")

    def _touch(self, side: int, moves: Sequence[Moved]) -> None:
        for moved in moves:
            reference = self._storages.get(moved.storage._cdata)
            if reference is None:  # the reference keeps the storage's address from being used again
                reference = (StorageWeakRef(moved.storage), moved.storage.nbytes(), [0, 0])
                self._storages[moved.storage._cdata] = reference
            reference[2][side] += moved.bytes

    def unique_bytes(self) -> int:
        """Return the bytes of all storages that were touched, each as far as it was, once."""
        return sum(min(size, max(sides)) for _, size, sides in self._storages.values())


@contextmanager
def watched(
    step: ProfiledStep, tags: Tags, entered: Callable[[str], Any], left: Callable[[str], Any], is_eager: bool
) -> Iterator[None]:
    """Show each operation of the steps within to a mode, and tell when each module starts and ends.

    Args:
        step: its steps run within.
        tags: the mode.
        entered: is called with the path of a module.
        left: is called with the path of a module.
        is_eager: whether what is compiled runs as it was written, and stays compiled for later.
    """
    step.tags = tags
    eager = torch.compiler.set_stance("force_eager") if is_eager else nullcontext()
    try:
        with eager, watch_modules(step.target, entered, left), tags:
            yield
    finally:
        step.tags = None


def accounted(step: ProfiledStep, is_eager: bool = True) -> Breakdown:
    """Return the operations of one step, which is run once."""
    account = Account(step)
    with watched(step, account, account.entered, account.left, is_eager):
        step()
    return Breakdown(account.operations, account.unique_bytes())


def arguments_of(step: ProfiledStep, operations: Sequence[Operation], wanted: Set[int]) -> dict[int, Any]:
    """Return the functions and arguments of some operations of a step, which is run once.

    Raises:
        OtherStepError: the step now calls something else.
    """
    arguments = Arguments(operations, wanted)
    with watched(step, arguments, str, str, is_eager=True):
        step()
    if missing := wanted - set(arguments.kept):
        name = operations[min(missing)].op
        raise OtherStepError(f"the step is another one each time: {name} did not come again at its place")
    return arguments.kept


def name_of(func: Any) -> str:
    """Return the name of an operation: `aten.mm`."""
    return str(getattr(func, "_overloadpacket", func))


def _known_of(func: Any, args: Any, kwargs: Any, result: Any, work: Count) -> dict[str, Any]:
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    values = [given[argument.name] for argument in func._schema.arguments if argument.name in given]
    flags = []
    if func._opname == "_local_scalar_dense":
        flags.append(HOST_SYNC)
    elif {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags):
        flags.append(DATA_DEPENDENT)
    if not work.is_modelled:
        flags.append(UNMODELLED)
    return {
        "shapes": shapes_text(values) or shapes_text([result]),
        "dtypes": dtypes_of([*tensors_in(values)] or [*tensors_in(result)]),
        "flops": work.flops,
        "matmul_flops": work.matmul_flops,
        "bytes_read": work.bytes_read,
        "bytes_written": work.bytes_written,
        "is_modelled": work.is_modelled,
        "flags": tuple(flags),
    }


def dtypes_of(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """Return the names of the dtypes of some tensors, each once: `float32`."""
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
