"""Tensors that say they are on `cuda:0` and lie in host memory, and the mode that keeps host and device apart."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.flop_counter import flop_registry

from tests.simulated_gpu.clock import LINK_BYTES_PER_S, TIMELINE
from tests.simulated_gpu.fused import ON_HOST
from tests.simulated_gpu.memory import MEMORY

CUDA = torch.device("cuda", 0)
CROSSING = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
WAITING = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item")
VIEWS_ONLY = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::set_")


class SimulatedTensor(torch.Tensor):
    """A tensor of the device; `inner` holds its values in host memory."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> SimulatedTensor:
        """Wrap a tensor in host memory."""
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CUDA,
            requires_grad=False,
        )
        made.inner = inner
        MEMORY.hold(inner.untyped_storage())
        return made

    def __repr__(self) -> str:
        """Return the values and where they pretend to be."""
        return f"Simulated({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy of the values; of a parameter without its gradient, as `torch.nn.Parameter` has it."""
        if id(self) not in memo:
            copy = memo[id(self)] = SimulatedTensor(self.inner.clone())
            if getattr(self, "_is_param", False):
                memo[id(self)] = torch.nn.Parameter(copy, self.requires_grad)
        return memo[id(self)]

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        """Return the storage of the values."""
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        """Return the values as numbers; the host waits for them."""
        return self.cpu().tolist()

    def set_(self, *arguments: Any) -> Any:
        """Return a tensor over a storage; unlike torch's, the tensor itself stays as it is."""
        return SimulatedTensor(self.inner.set_(*arguments))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation outside of the mode, as the thread of the backward pass does."""
        return run(func, args, kwargs or {})


class OnDevice(TorchDispatchMode):
    """Sends what is asked for on `cuda` to simulated tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        return run(func, args, kwargs or {})


class Capture:
    """What a graph records: operations to run again, and how long they take."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self.replays: dict[Any, Any] = {}
        self.seconds = 0.0
        self.is_broken = False


capturing: list[Capture] = []
"""The capture that goes on now, if one does."""


class Ran:
    """Counts what has run outside of captures."""

    count = 0


ran = Ran()


def inner_of(value: Any) -> Any:
    """Return the tensor in host memory for a simulated one, everything else as it is."""
    return value.inner if isinstance(value, SimulatedTensor) else value


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation where its tensors are, and take the device's time for it."""
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
    simulated = [value for value in tensors if isinstance(value, SimulatedTensor)]
    name = func._schema.name
    target = kwargs.get("device")
    on_device = bool(simulated) if target is None else torch.device(target).type == "cuda"
    if not simulated and not on_device:
        return func(*args, **kwargs)
    TIMELINE.catch_up()
    if name not in CROSSING:
        refuse_mixed(name, tensors, simulated)
    if name in WAITING or (name in CROSSING and len(simulated) != len(tensors)) or (simulated and not on_device):
        is_queued = kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2])
        crossing(bool(is_queued), tensors)
    if on_device and target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}

    def compute() -> Any:
        computed = ON_HOST.get(name, func)
        return computed(*tree_map(inner_of, args), **tree_map(inner_of, kwargs))

    result = compute()
    if name in WAITING or not on_device:
        return result
    owners = {id(tensor.inner): tensor for tensor in simulated}

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, SimulatedTensor):
            return value
        return owners[id(value)] if id(value) in owners else SimulatedTensor(value)

    wrapped = tree_map(wrap, result)
    account(func, args, kwargs, simulated, wrapped, compute)
    return wrapped


def refuse_mixed(name: str, tensors: list[torch.Tensor], simulated: list[SimulatedTensor]) -> None:
    """Refuse operands on host and device together; a number in a tensor without dimensions may come from the host."""
    others = [value for value in tensors if not isinstance(value, SimulatedTensor) and value.dim() > 0]
    if simulated and others:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {name}")


def crossing(is_queued: bool, tensors: list[torch.Tensor]) -> None:
    """Wait, as the host does when it reads from the device or copies from pageable memory."""
    size_bytes = max((value.nbytes for value in tensors), default=0)
    if capturing and is_queued and all(value.is_pinned() for value in tensors if not value.is_cuda):
        capturing[-1].seconds += size_bytes / LINK_BYTES_PER_S
        return
    if capturing:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    TIMELINE.run(size_bytes / LINK_BYTES_PER_S)
    if not is_queued:
        TIMELINE.wait()


def account(func: Any, args: Any, kwargs: Any, inputs: Any, result: Any, compute: Any) -> None:
    """Let the device's clock run for an operation, or record it for a graph."""
    outputs = [value for value in tree_iter(result) if isinstance(value, SimulatedTensor)]
    addresses = {value.untyped_storage().data_ptr() for value in inputs}
    is_view = func._schema.name in VIEWS_ONLY or (
        not func._schema.is_mutable
        and bool(outputs)
        and all(value.untyped_storage().data_ptr() in addresses for value in outputs)
    )
    is_empty = func._schema.name.startswith(("aten::empty", "aten::new_empty"))
    if is_view or is_empty:
        return
    buffers = {value.data_ptr(): value.nbytes for value in (*inputs, *outputs)}
    dtype = str(inputs[0].dtype).removeprefix("torch.") if inputs else ""
    seconds = TIMELINE.operation_s(buffers.items(), flops_of(func, args, kwargs, result), dtype)
    if not capturing:
        ran.count += 1
        TIMELINE.run(seconds)
        return
    capturing[-1].seconds += seconds
    recorded = outputs[0] if outputs and not func._schema.is_mutable else None
    key = func, tuple(id(value) for value in tree_iter((args, kwargs)))

    def again() -> None:
        new = compute()
        if recorded is not None and isinstance(new, torch.Tensor):
            recorded.inner.copy_(new)

    capturing[-1].replays[key] = again, (args, kwargs)  # the arguments too: an id is taken anew when one is gone


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the FLOPs of a matrix product, 0 of everything else."""
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except (TypeError, AssertionError, ValueError):
        return 2 * math.prod(args[0].shape) * args[1].shape[-1]
