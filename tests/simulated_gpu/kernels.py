"""Launches of Triton kernels on simulated tensors: Triton's interpreter runs them on the values in
host memory.
"""

import dataclasses
from collections.abc import Hashable

import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.simulated_gpu.tensors import TIMELINE, SimulatedTensor, capturing, inner_of, seconds_of

launch = interpreter.GridExecutor.__call__


def on_host(value):
    if isinstance(value, TensorDescriptor):
        return dataclasses.replace(value, base=inner_of(value.base))
    return inner_of(value)


def identity(value):
    """Return the key of a kernel argument: the address of a tensor, else its value."""
    if isinstance(value, TensorDescriptor):
        return identity(value.base), *value.shape, *value.strides, *value.block_shape
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    return value if isinstance(value, Hashable) else id(value)


def simulated_launch(self, *arguments, **options):
    """Run a kernel for its simulated time, or record it for a graph."""
    bases = (value.base if isinstance(value, TensorDescriptor) else value for value in arguments)
    seconds = seconds_of([value for value in bases if isinstance(value, SimulatedTensor)])
    values = [on_host(value) for value in arguments]
    if capturing:
        key = (
            self.fn,
            identity(self.grid),
            *map(identity, arguments),
            *map(identity, sorted(options.items())),
        )
        capturing[-1].seconds += seconds
        capturing[-1].replays[key] = lambda: launch(self, *values, **options), arguments
        return
    launch(self, *values, **options)
    TIMELINE.operations += 1
    TIMELINE.run(seconds)


def install():
    """Route every launch of the interpreter through the device's clock."""
    interpreter.GridExecutor.__call__ = simulated_launch
