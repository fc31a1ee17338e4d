"""Counts the bytes that tensors hold at one moment of a step, storage by storage, without asking an allocator.

    SavedBytes    what autograd keeps for the backward pass, through `torch.autograd.graph.saved_tensors_hooks`
    LiveBytes     everything that an operation has returned and that is still referred to, temporaries too

Both work on a CPU, where no allocator counts. What a kernel allocates for itself while it runs is seen by neither, and
rounding by an allocator is not in them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

RANDOM_STATE_DTYPES = (torch.int64, torch.uint64)
LARGEST_RANDOM_STATE = 2
"""How many numbers a tensor with a seed and an offset holds."""


def is_random_state(tensor: Tensor) -> bool:
    """Return whether a tensor is the seed or the offset that fused attention returns, also without dropout.

    They do not count: 16 or 24 bytes a layer, by kernel and version of torch, some of them in host memory.

    Source: torch 2.11, `torch/_meta_registrations.py`, `_scaled_dot_product_*_attention`.
    """
    return tensor.dtype in RANDOM_STATE_DTYPES and tensor.numel() <= LARGEST_RANDOM_STATE


def storages_of(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage of some tensors, by its address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}


class SavedBytes:
    """Counts the distinct storages that autograd keeps at each moment, by region of the model.

    A tensor counts from the operation that saves it until the node that needs it has run. Parameters, buffers and
    inputs are there anyway and do not count; nor does a copy of a parameter in another dtype, which is a region of
    its own, `cast_copies`.
    """

    def __init__(self, resident: Iterable[Tensor], parameters: Iterable[Tensor]) -> None:
        """Count nothing yet.

        Args:
            resident: parameters, gradients, inputs: whatever does not come from the step.
            parameters: those of which copies in another dtype may be kept.
        """
        self._resident = set(storages_of(resident))
        self._parameters: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            self._parameters.setdefault(parameter.numel(), []).append(parameter)
        self._holders: dict[int, tuple[int, str, int]] = {}
        self._region = "activations"
        self.live: dict[str, int] = {}
        """Bytes kept now, by region."""
        self.most: dict[str, int] = {}
        """The most that each region has kept at any moment."""
        self.total = 0

    def enter(self, region: str) -> None:
        """Say where the model is now; a storage belongs to the region that saves it first."""
        self._region = region

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context in which saved tensors are counted; forward and backward pass both belong into it."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> _Kept:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._resident or not storage.nbytes() or is_random_state(tensor):
            return _Kept(tensor, lambda: None)
        if address not in self._holders:
            region = "cast_copies" if self._is_cast(tensor) else self._region
            self._holders[address] = 0, region, storage.nbytes()
            self._add(region, storage.nbytes())
        holders, region, size_bytes = self._holders[address]
        self._holders[address] = holders + 1, region, size_bytes
        return _Kept(tensor, lambda: self._release(address))

    def _is_cast(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a parameter in another dtype, as it is or transposed."""
        candidates = [p for p in self._parameters.get(tensor.numel(), ()) if p.dim() == 2 and p.dtype != tensor.dtype]
        with torch.no_grad(), _disable_current_modes():  # what is computed here is none of the step's
            copies = (view.to(tensor.dtype) for p in candidates for view in (p, p.t()) if view.shape == tensor.shape)
            return any(torch.equal(copy, tensor) for copy in copies)

    def _release(self, address: int) -> None:
        holders, region, size_bytes = self._holders[address]
        if holders > 1:
            self._holders[address] = holders - 1, region, size_bytes
            return
        del self._holders[address]
        self._add(region, -size_bytes)

    def _add(self, region: str, size_bytes: int) -> None:
        self.live[region] = self.live.get(region, 0) + size_bytes
        self.most[region] = max(self.most.get(region, 0), self.live[region])
        self.total += size_bytes


class _Kept:
    """What autograd holds in place of a saved tensor; it tells when it is no longer held."""

    def __init__(self, tensor: Tensor, release: Callable[[], None]) -> None:
        self.tensor, self._release = tensor, release

    def __del__(self) -> None:
        self._release()


class LiveBytes(TorchDispatchMode):
    """Counts every storage that operations return within this context, until nothing refers to it any more."""

    def __init__(self, resident: Iterable[Tensor], at_peak: Callable[[int], None] = lambda _: None) -> None:
        """Count nothing yet.

        Args:
            resident: tensors that are there anyway and do not count.
            at_peak: called with the bytes whenever more is live than ever before. It must not refer to this object:
                the two would keep each other, and with them all tensors, until the garbage is collected.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[Any, int] = {}
        self._resident = set(storages_of(resident))
        self._at_peak = at_peak
        self.total = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._resident or not storage.nbytes() or is_random_state(tensor):
            return
        reference = weakref.ref(storage, self._forget)
        if reference in self._seen:
            return
        self._seen[reference] = storage.nbytes()
        self.total += storage.nbytes()
        if self.total > self.peak:
            self.peak = self.total
            self._at_peak(self.total)

    def _forget(self, reference: Any) -> None:
        self.total -= self._seen.pop(reference, 0)
