"""Launches of Triton kernels on simulated tensors: Triton's interpreter runs them on the values in host memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.simulated_gpu.clock import TIMELINE
from tests.simulated_gpu.tensors import SimulatedTensor, capturing, inner_of, ran

launch = interpreter.GridExecutor.__call__


def on_host(value: Any) -> Any:
    """Return an argument of a kernel with its values in host memory."""
    if isinstance(value, TensorDescriptor):
        return dataclasses.replace(value, base=inner_of(value.base))
    return inner_of(value)


def tensors_of(arguments: Any) -> list[SimulatedTensor]:
    """Return the tensors that a kernel is given, those within descriptors too."""
    candidates = (value.base if isinstance(value, TensorDescriptor) else value for value in arguments)
    return [value for value in candidates if isinstance(value, SimulatedTensor)]


def identity(value: Any) -> Any:
    """Return what tells an argument of a kernel from another: the place of a tensor, the value of all else."""
    if isinstance(value, TensorDescriptor):
        return identity(value.base), *value.shape, *value.strides, *value.block_shape
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    return value if isinstance(value, Hashable) else id(value)


def simulated_launch(self: Any, *arguments: Any, **options: Any) -> None:
    """Run a kernel and take the device's time for the bytes of its arguments, or record it for a graph."""
    buffers = {tensor.data_ptr(): tensor.nbytes for tensor in tensors_of(arguments)}
    seconds = TIMELINE.operation_s(buffers.items())
    values = [on_host(value) for value in arguments]

    def again() -> None:
        launch(self, *values, **options)

    if capturing:
        capturing[-1].seconds += seconds
        # Each launch is another executor, with views of its own: told apart by what they are, not by which objects.
        key = self.fn, identity(self.grid), *map(identity, arguments), *map(identity, sorted(options.items()))
        capturing[-1].replays[key] = again, arguments
        return
    TIMELINE.catch_up()
    again()
    ran.count += 1
    TIMELINE.run(seconds)


def install() -> None:
    """Let every launch of the interpreter go through the device's clock."""
    interpreter.GridExecutor.__call__ = simulated_launch
