"""Measures the operations that take most of a step one by one, on the arguments that they had in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.data.inputs import plan_rotation
from bench.harness.measure.measure_row import take_samples
from bench.harness.profile.step import Breakdown, ProfiledStep, state_kept
from bench.harness.timing.protocol import Limits, limits_of

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device

LIMITS = Limits(10, 0.02, 0.0, 0.5, 0.0, 1e-3)
"""For each operation: its time is compared with another to 20 %, not to 1 %."""

REPLAYED = 0.95
"""Share of the time whose operations are measured alone."""


def replay(
    step: ProfiledStep, breakdown: Breakdown, device: Device, say: Callable[[str], None] = lambda _: None
) -> None:
    """Add to the operations that take most of a step their times alone, by the protocol of all measurements.

    Arguments are those of the step: their values decide what a gather or a mixture of experts moves.

    Args:
        step: is run once for the arguments, which are kept until all are measured.
        breakdown: of the step, with its times.
        device: the device.
        say: is called before each measurement with what is measured.

    Raises:
        OtherStepError: the step now calls other operations.
    """
    from bench.harness.profile.account import arguments_of

    operations, alone = breakdown.operations, {}
    indices = worth_replaying(breakdown)
    with state_kept(step.target):
        arguments = arguments_of(step, operations, set(indices))
        for number, index in enumerate(indices, 1):
            operation = operations[index]
            say(f"replaying {operation.op} {operation.shapes} ({number} of {len(indices)})")
            alone[operation.signature] = _measured(arguments.pop(index), device)
    for operation in operations:
        operation.alone_s = alone.get(operation.signature)


def worth_replaying(breakdown: Breakdown) -> list[int]:
    """Return the index of one operation of each signature, those that take `REPLAYED` of the time, longest first."""
    times_ns: dict[Any, int] = {}
    first: dict[Any, int] = {}
    for index, operation in enumerate(breakdown.operations):
        if operation.time_ns and operation.bytes_moved:
            key = operation.signature
            times_ns[key] = times_ns.get(key, 0) + operation.time_ns
            first.setdefault(key, index)
    left_ns, indices = REPLAYED * sum(times_ns.values()), []
    for key in sorted(times_ns, key=lambda key: -times_ns[key]):
        if left_ns > 0:
            left_ns -= times_ns[key]
            indices.append(first[key])
    return indices


def _measured(call: tuple[Any, Any, Any], device: Device) -> tuple[float | None, float]:
    """Return the seconds of one operation, cold and warm; cold is None if its arguments cannot be made cold."""
    import torch
    from torch.utils._pytree import tree_iter

    func, args, kwargs = call
    tensors = [tensor for tensor in tree_iter((args, kwargs)) if isinstance(tensor, torch.Tensor)]
    held = sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())
    plan = plan_rotation(max(1, held), device.cache_bytes, device.free_bytes(), device.type, "cold")
    is_cold = plan.cache == "cold"
    with torch.no_grad():
        sets = [copied(args, kwargs) for _ in range(plan.copies if is_cold else 1)]
        calls = [partial(func, *own_args, **own_kwargs) for own_args, own_kwargs in sets]
        # What an operation calls inside may not be allowed in a capture, and a failed one leaves the stream unusable.
        usual = limits_of(device)
        limits = replace(LIMITS, warm_up_s=usual.warm_up_s, warm_up_cap_s=usual.warm_up_cap_s)
        samples = take_samples(calls, "cold" if is_cold else "warm", device, limits, is_capturable=False)
    if is_cold and samples.warm_median_s is not None:
        return samples.median_s, samples.warm_median_s
    return None, samples.median_s


def copied(args: Any, kwargs: Any) -> Any:
    """Return arguments on storages of their own; what shared a storage shares its copy."""
    import torch
    from torch.utils._pytree import tree_map_only

    storages: dict[int, Any] = {}

    def copy(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    return tree_map_only(torch.Tensor, copy, (args, kwargs))
