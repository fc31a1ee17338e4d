"""An operation of a model and a user's function in its place: alone on the largest call of a step,
and in the whole step.

The function is registered at the backend's key of torch's dispatcher, below autograd, which stays
as it is: `aten.gelu` is replaced in the forward pass, and its gradient is `aten.gelu_backward`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import Library

from bench.comparing.case import Case, Functions
from bench.harness.data.agreement import Fn, fresh
from bench.harness.torch_private import remove_kernels, tree_map_only
from bench.profiling.counts import name_of, tensors_in
from bench.profiling.step import ProfiledStep, Watcher, leaves_of
from bench.profiling.target import Target, guarded_call, user_function
from results.record import Record

UNSOUND = ("invalid", "failed")


class LargestCall(Watcher):
    """Finds the call of an operation with the most elements, and its arguments."""

    def __init__(self, step: ProfiledStep, name: str) -> None:
        super().__init__(step)
        self.name = name
        self.elements = -1
        self.function: Any = None
        self.args: Any = ()
        self.kwargs: Any = {}

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        elements = sum(tensor.numel() for tensor in tensors_in((args, kwargs, result)))
        if name_of(func) == self.name and elements > self.elements:
            self.elements = elements
            self.function = func
            self.args, self.kwargs = fresh(tree_map_only(Tensor, Tensor.detach, [args, kwargs]))


class Override:
    """Calls a function in place of an operation of torch while a context is active."""

    def __init__(self, operation: Any, function: Fn, device: str) -> None:
        self.operation = operation
        self.function = function
        self.key = "CUDA" if device.startswith("cuda") else "CPU"
        self.is_active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within another such context, nothing changes."""
        if self.is_active:
            yield
            return
        namespace, name = self.operation.name().split("::")
        library = Library(namespace, "IMPL")
        try:
            with warnings.catch_warnings():  # that there is a kernel already
                warnings.simplefilter("ignore")
                library.impl(name, self.function, self.key)
            self.is_active = True
            yield
        finally:
            self.is_active = False
            remove_kernels(library)


class Step(nn.Module):
    """A step as a function of the arguments of its target, which returns the results and the
    gradients. A module, since the reference is a copy of it in fp64.
    """

    def __init__(self, target: Target, mode: str, override: Override | None = None) -> None:
        super().__init__()
        self.part = target.modules
        self.step = ProfiledStep(target, mode)
        self.step.gradient_of = uneven
        self.override = override

    def to(self, *args: Any, **kwargs: Any) -> Step:
        self.step.optimizer = None  # its state has the dtype of before
        return super().to(*args, **kwargs)

    def forward(self, args: Any, kwargs: Any) -> list[Tensor]:
        self.step.target = replace(self.step.target, args=args, kwargs=kwargs)
        self.step.leaves = leaves_of(self.step.target)
        if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            torch.manual_seed(0)  # the same dropout in each call
        if self.override is None:
            result = self.step.run()
        else:
            with self.override.active():
                result = self.step.run()
        gradients = [leaf.grad for leaf in self.step.leaves]
        return list(tensors_in([result, gradients]))


def uneven(result: Tensor) -> Tensor:
    """Return whole numbers as the gradient of a result: with ones, all gradients before a
    normalization are 0 but for rounding.
    """
    numbers = torch.arange(result.numel(), device=result.device) % 7 - 3
    return numbers.view_as(result).to(result.dtype)


@dataclass(kw_only=True)
class Replacement(Case):
    """An operation of a step, the baseline, and a function in its place."""

    target: Callable[[str], Target]
    """Returns what the step calls, on a device."""
    mode: str
    is_whole: bool = False
    """Whether the whole step is called; else the operation, as in its largest call of a step."""
    given: tuple[Any, ...] = ()

    def functions(self, names: Sequence[str]) -> Functions:
        target = self.target(self.device)
        largest = largest_call(ProfiledStep(target, self.mode), names[0])
        self.given = (target.args, target.kwargs) if self.is_whole else tuple(largest.args)

        def load(name: str) -> Fn:
            is_baseline = name == names[0]
            function = largest.function if is_baseline else user_function(name)
            if not self.is_whole:
                return partial(function, **largest.kwargs)
            if is_baseline:
                return Step(target, self.mode)
            override = Override(largest.function, function, self.device)
            self.within[name] = override.active
            return Step(target, self.mode, override)

        return self.loaded(names, load)

    def arguments(self) -> tuple[Any, ...]:
        return self.given

    def judged(self, records: list[Record], earlier: Sequence[Record]) -> list[Record]:
        """Return the records; a function that is wrong in the step is invalid alone too."""
        wrong = {each.provider: each.reason for each in earlier if each.status in UNSOUND}
        return [
            replace(record, status="invalid", reason=f"in the step: {wrong[record.provider]}")
            if record.provider in wrong
            else record
            for record in records
        ]


def largest_call(step: ProfiledStep, name: str) -> LargestCall:
    """Return the largest call of an operation."""
    largest = LargestCall(step, name)
    with guarded_call(step.target.name):
        step()
        with largest.watching(is_eager=True):
            step()
    return largest
