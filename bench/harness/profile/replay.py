"""Measures the operations that take most of a step one by one, on the arguments that they had in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.data.inputs import plan_rotation
from bench.harness.measure.meter import Meter
from bench.harness.profile.step import ProfiledStep, state_kept
from bench.harness.timing.protocol import Limits, limits_of

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device
    from bench.harness.profile.account import Call

LIMITS = Limits(10, 0.02, 0.0, 0.5, 0.0, 1e-3)
"""For each operation: it is to be told from another time by 20 %, not by 1 %."""


@dataclass(frozen=True)
class Replayed:
    """The time of one call by itself, seconds."""

    cold_s: float | None
    """Its arguments come from memory; None where they cannot be made cold."""
    warm_s: float


class OtherStepError(ValueError):
    """A step called other operations than the step that was counted."""


def replayed(
    step: ProfiledStep,
    calls: Sequence[Call],
    places: Sequence[int],
    device: Device,
    say: Callable[[str], None] = lambda _: None,
) -> dict[int, Replayed]:
    """Return the times of some calls of a step, by their places, each measured alone by the protocol.

    Arguments are those of the step: their values decide what a gather or a mixture of experts moves.

    Args:
        step: it is run once to catch the arguments, which are kept until all are measured.
        calls: all calls of the step.
        places: of the calls to measure.
        device: the device.
        say: is told before each measurement what is measured.

    Raises:
        OtherStepError: the step now calls something else at one of the places.
    """
    found: dict[int, Replayed] = {}
    with state_kept(step.target):
        arguments = caught(step, calls, set(places))
        for number, place in enumerate(places, 1):
            say(f"replaying {calls[place].op} {calls[place].shapes} ({number} of {len(places)})")
            func, args, kwargs = arguments.pop(place)
            found[place] = _measured(func, args, kwargs, device)
    return found


def caught(step: ProfiledStep, calls: Sequence[Call], places: set[int]) -> dict[int, tuple[Any, Any, Any]]:
    """Return the functions and arguments of some calls of a step, which is run once.

    Raises:
        OtherStepError: the step now calls something else at one of the places.
    """
    from bench.harness.profile.account import accounted

    found: dict[int, tuple[Any, Any, Any]] = {}

    def catch(place: int, func: Any, args: Any, kwargs: Any) -> None:
        if place in places:
            if place >= len(calls) or str(func._overloadpacket) != calls[place].op:
                raise OtherStepError(f"the step is another one each time: {calls[place].op} was {func} this time")
            found[place] = func, args, kwargs

    accounted(step, catch)
    missing = places - set(found)
    if missing:
        raise OtherStepError(f"the step is another one each time: {len(missing)} of its operations did not come again")
    return found


def _measured(func: Any, args: Any, kwargs: Any, device: Device) -> Replayed:
    """Return the time of one operation, cold and warm."""
    import torch
    from torch.utils._pytree import tree_iter

    tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
    held = sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())
    plan = plan_rotation(max(1, held), device.cache_bytes, device.free_bytes(), device.type, "cold")
    is_cold = plan.cache == "cold"
    with torch.no_grad():
        sets = [copied(args, kwargs) for _ in range(plan.copies if is_cold else 1)]
        calls = [partial(func, *own_args, **own_kwargs) for own_args, own_kwargs in sets]
        # What an operation calls inside may not be allowed in a capture, and a failed one leaves the stream unusable.
        usual = limits_of(device)
        limits = replace(LIMITS, warm_up_s=usual.warm_up_s, warm_up_cap_s=usual.warm_up_cap_s)
        measured = Meter(device, limits, is_capturable=False).measure(calls, "cold" if is_cold else "warm")
    if is_cold and measured.warm_s is not None:
        return Replayed(measured.samples.median_s, measured.warm_s)
    return Replayed(None, measured.samples.median_s)


def copied(args: Any, kwargs: Any) -> Any:
    """Return arguments on storages of their own; what shared a storage shares its copy."""
    import torch
    from torch.utils._pytree import tree_map_only

    storages: dict[int, Any] = {}

    def copied(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    return tree_map_only(torch.Tensor, copied, (args, kwargs))
