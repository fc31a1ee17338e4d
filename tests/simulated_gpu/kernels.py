"""Launches of Triton kernels on simulated tensors: Triton's interpreter runs them on the values in host memory."""

from __future__ import annotations

import dataclasses
from typing import Any

from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.simulated_gpu.clock import TIMELINE
from tests.simulated_gpu.tensors import SimulatedTensor, capturing, inner_of

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


def simulated_launch(self: Any, *arguments: Any, **options: Any) -> None:
    """Run a kernel and take the device's time for the bytes of its arguments, or record it for a graph."""
    buffers = {tensor.data_ptr(): tensor.nbytes for tensor in tensors_of(arguments)}
    seconds = TIMELINE.operation_s(buffers.items())
    values = [on_host(value) for value in arguments]

    def again() -> None:
        launch(self, *values, **options)

    if capturing:
        capturing[-1].seconds += seconds
        capturing[-1].replays[self, tuple(id(value) for value in arguments)] = again, arguments
        return
    again()
    TIMELINE.run(seconds)


def install() -> None:
    """Let every launch of the interpreter go through the device's clock."""
    interpreter.GridExecutor.__call__ = simulated_launch
