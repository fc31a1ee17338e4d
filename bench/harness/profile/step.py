"""Runs what is profiled: forward, then backward and the optimizer where they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError

if TYPE_CHECKING:
    from bench.harness.profile.target import Target

STEP, PHASE, MODULE = "ridgepoint step", "ridgepoint phase ", "ridgepoint module "
"""How a trace names a step, its phases and the modules within them."""


class ProfiledStep:
    """One call of the target; each call of this object is one step."""

    def __init__(self, target: Target, mode: str, is_marked: bool = False) -> None:
        """Prepare a step.

        Args:
            target: what is profiled.
            mode: `forward`, `backward` or `train`.
            is_marked: whether the trace of a profiler is told where phases begin.
        """
        self.target, self.mode, self.is_marked = target, mode, is_marked
        self.phase = "forward"
        """The phase that runs now."""
        self.parameters = [one for _, one in target.named_parameters()] if mode != "forward" else []
        self._given = list(tensors_given(target)) if mode != "forward" else []
        self._optimizer: Any = None

    def __call__(self) -> None:
        """Run one step; it returns when the device is done."""
        import torch

        for leaf in (*self.parameters, *self._given):
            leaf.grad = None
        with self._enter("forward"), nullcontext() if self.mode != "forward" else torch.no_grad():
            result = self.target()
        if self.mode != "forward":
            with self._enter("backward"):
                backward(result)
        if self.mode == "train":
            with self._enter("optimizer"):
                self.optimizer().step()
        if self.target.device.startswith("cuda"):
            torch.cuda.synchronize()

    def optimizer(self) -> Any:
        """Return AdamW with a rate of 0, so that many steps leave the parameters as they are."""
        import torch

        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(self.parameters, lr=0.0, fused=True)
        return self._optimizer

    @contextmanager
    def _enter(self, phase: str) -> Iterator[None]:
        import torch

        self.phase = phase
        with torch.autograd.profiler.record_function(PHASE + phase) if self.is_marked else nullcontext():
            yield


def tensors_given(target: Target) -> Iterator[Any]:
    """Yield the tensors among the arguments whose gradient a backward pass would add to."""
    import torch
    from torch.utils._pytree import tree_iter

    for one in tree_iter((target.args, target.kwargs)):
        if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad:
            yield one


@contextmanager
def state_kept(target: Target) -> Iterator[None]:
    """Give gradients, buffers and every random generator back as they were; steps within are as they are without.

    The gradients of arguments are kept too: a backward pass adds to them.
    """
    import torch

    leaves = [*(parameter for _, parameter in target.named_parameters()), *tensors_given(target)]
    gradients = [leaf.grad for leaf in leaves]
    buffers = [(buffer, buffer.detach().clone()) for _, buffer in target.named_buffers()]
    devices = [torch.device(target.device)] if target.device.startswith("cuda") else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def backward(result: Any) -> None:
    """Go backward from a result: from its `loss`, else from the first tensor that has a gradient.

    Raises:
        UsageError: nothing in the result has one.
    """
    import torch
    from torch.utils._pytree import tree_iter

    loss = getattr(result, "loss", None)
    tensors = [loss] if isinstance(loss, torch.Tensor) else list(tree_iter(result))
    start = next((one for one in tensors if isinstance(one, torch.Tensor) and one.requires_grad), None)
    if start is None:
        raise UsageError("nothing that the step returns has a gradient, so there is no backward pass to profile")
    torch.autograd.backward([start], [torch.ones_like(start)] if start.numel() != 1 else None)


@contextmanager
def watch_modules(target: Target, entered: Callable[[str], Any], left: Callable[[str], Any]) -> Iterator[None]:
    """Tell when each module of a target, or any other that it calls, begins and ends, by its path."""
    from torch.nn.modules import module as modules

    paths = {id(one): path for path, one in target.named_modules()}
    stack: list[str] = []

    def before(module: Any, _: Any) -> None:
        if id(module) not in paths:  # of a function: named by its class, its children below it
            above = f"{stack[-1]}." if stack else ""
            for path, child in module.named_modules(prefix=above + type(module).__name__):
                paths.setdefault(id(child), path)
        stack.append(paths[id(module)])
        entered(stack[-1])

    def after(module: Any, _: Any, __: Any) -> None:
        left(stack.pop())

    handles = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using .*torch.compile.* when there are global hooks")
            yield
    finally:
        for handle in handles:
            handle.remove()
