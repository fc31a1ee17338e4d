"""Tensors that say they are on `cuda:0` and are in host memory, and the mode that runs operations
on them.
"""

import weakref
from collections import deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
CROSSING = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
WAITING = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item")
VIEWS_ONLY = ("aten::detach", "aten::alias", "aten::lift_fresh", "aten::set_")
LAUNCH_S = 2e-5
BYTES_PER_S = 1e12


class Timeline:
    """The device's clock: it moves only when the device works, on one stream."""

    def __init__(self):
        self.now_s = 0.0
        self.waited_s = 0.0
        """Up to when the host has waited."""
        self.operations = 0
        """Operations that have run outside of captures."""
        # When the entries of the launch queue, 1,024 as of CUDA, end, the oldest first.
        self._ends_s = deque([0.0] * 1024, 1024)

    def run(self, seconds):
        """Queue work and return when it ends; the host waits if the queue is full."""
        self.waited_s = max(self.waited_s, self._ends_s[0])
        self.now_s += seconds
        self._ends_s.append(self.now_s)
        return self.now_s

    def wait(self):
        reject_in_capture()
        self.waited_s = self.now_s


TIMELINE = Timeline()


class Capture:
    """What a graph records: distinct operations to run again, and the time of all of them."""

    def __init__(self):
        self.replays = {}
        self.seconds = 0.0
        self.is_broken = False


capturing = []
"""The capture that is under way, if there is one."""


def reject_in_capture():
    """Raise CUDA's error for what no capture may have; the capture then fails at its end."""
    if capturing:
        capturing[-1].is_broken = True
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def seconds_of(tensors):
    """Return the time of an operation that touches these tensors; each counts once."""
    return (
        LAUNCH_S
        + sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values()) / BYTES_PER_S
    )


class Memory:
    """What the allocator counts: bytes in use, and their maximum since `reset`."""

    def __init__(self):
        self.used = 0
        self.peak = 0
        self._known = set()

    def add(self, storage):
        """Count a storage until it is freed; another tensor of it adds nothing."""
        key = storage.data_ptr()
        if key and key not in self._known:
            self._known.add(key)
            self.used += storage.nbytes()
            self.peak = max(self.peak, self.used)
            weakref.finalize(storage, self._remove, key, storage.nbytes())

    def _remove(self, key, size):
        self._known.discard(key)
        self.used -= size

    def reset(self):
        self.peak = self.used


MEMORY = Memory()


class SimulatedTensor(torch.Tensor):
    """A tensor of the device; `inner` has its values in host memory."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CUDA,
        )
        made.inner = inner
        MEMORY.add(inner.untyped_storage())
        return made

    def __repr__(self):
        return f"Simulated({self.inner!r})"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = SimulatedTensor(self.inner.clone())
        return memo[id(self)]

    def data_ptr(self):
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class OnDevice(TorchDispatchMode):
    """Make tensors requested on `cuda` simulated ones."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def inner_of(value):
    return value.inner if isinstance(value, SimulatedTensor) else value


def mapped(function, value):
    """Apply a function to the leaves of arguments or results, in a third of the time of torch's
    `tree_map`.
    """
    if isinstance(value, tuple | list):
        return type(value)([mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    return function(value)


def leaves(value):
    found = []
    mapped(found.append, value)
    return found


def run(func, args, kwargs):
    """Run an operation where its tensors are, for its simulated time."""
    tensors = [value for value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    simulated = [value for value in tensors if isinstance(value, SimulatedTensor)]
    name, target = func._schema.name, kwargs.get("device")
    on_device = bool(simulated) if target is None else torch.device(target).type == "cuda"
    if not simulated and not on_device:
        return func(*args, **kwargs)
    if name not in CROSSING:
        reject_mixed(name, tensors, simulated)
    if (
        name in WAITING
        or (name in CROSSING and len(simulated) != len(tensors))
        or (simulated and not on_device)
    ):
        is_queued = kwargs.get("non_blocking") or (
            name == "aten::copy_" and len(args) > 2 and args[2]
        )
        cross(bool(is_queued), tensors)
    if on_device and target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}

    def compute():
        return func(*mapped(inner_of, args), **mapped(inner_of, kwargs))

    result = compute()
    if name in WAITING or not on_device:
        return result
    owners = {id(tensor.inner): tensor for tensor in simulated}

    def wrap(value):
        if not isinstance(value, torch.Tensor) or isinstance(value, SimulatedTensor):
            return value
        return owners[id(value)] if id(value) in owners else SimulatedTensor(value)

    wrapped = mapped(wrap, result)
    account(func, (args, kwargs), simulated, wrapped, compute)
    return wrapped


def reject_mixed(name, tensors, simulated):
    """Reject operands on host and device together; a tensor without dimensions may come from the
    host.
    """
    others = [
        value for value in tensors if not isinstance(value, SimulatedTensor) and value.dim() > 0
    ]
    if simulated and others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {name}"
        )


def cross(is_queued, tensors):
    """Wait as the host does when it reads from the device or copies from pageable memory."""
    if not is_queued or not all(value.is_pinned() for value in tensors if not value.is_cuda):
        reject_in_capture()
    if not capturing:
        TIMELINE.run(seconds_of(tensors))
        if not is_queued:
            TIMELINE.wait()


def account(func, arguments, inputs, result, compute):
    """Advance the device's clock by an operation, or record it for a graph."""
    outputs = [value for value in leaves(result) if isinstance(value, SimulatedTensor)]
    storages = {value.untyped_storage().data_ptr() for value in inputs}
    name, is_mutable = func._schema.name, func._schema.is_mutable
    is_view = bool(outputs) and all(
        value.untyped_storage().data_ptr() in storages for value in outputs
    )
    if (
        name in VIEWS_ONLY
        or (is_view and not is_mutable)
        or name.startswith(("aten::empty", "aten::new_empty"))
    ):
        return
    seconds = seconds_of([*inputs, *outputs])
    if not capturing:
        TIMELINE.operations += 1
        TIMELINE.run(seconds)
        return
    recorded = outputs[0] if outputs and not is_mutable else None

    def again():
        new = compute()
        if recorded is not None and isinstance(new, torch.Tensor):
            recorded.inner.copy_(new)

    key = func, tuple(id(value) for value in leaves(arguments))
    capturing[-1].seconds += seconds
    # The arguments too: an id is reused when its object is gone.
    capturing[-1].replays[key] = (again, arguments)
