"""Runs what is profiled: forward, then backward and the optimizer where they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError

if TYPE_CHECKING:
    from bench.harness.profile.target import Target

STEP, MODULE, TAG = "ridgepoint step", "ridgepoint module ", "ridgepoint op "
"""How a trace names a step, the modules and the operations within it."""


@dataclass
class Operation:
    """One operation of a step: its work and, once the step was timed, its time."""

    op: str
    """`aten.mm`."""
    shapes: str = ""
    dtypes: tuple[str, ...] = ()
    module: str = ""
    phase: str = ""
    flops: int = 0
    matmul_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    is_modelled: bool = True
    flags: tuple[str, ...] = ()
    time_ns: int = 0
    """In the recorded step."""
    kernels: set[str] = field(default_factory=set)
    """Names of the kernels that a GPU ran for it."""
    alone_s: tuple[float | None, float] | None = None
    """Seconds measured alone, cold and warm; cold is None if its arguments cannot be made cold."""

    @property
    def signature(self) -> tuple[str, str, tuple[str, ...]]:
        """What decides its work."""
        return self.op, self.shapes, self.dtypes

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


@dataclass
class Breakdown:
    """The operations of a step and, once the step was timed, where its time went."""

    operations: Sequence[Operation]
    unique_bytes: int = 0
    """Bytes of all storages of the step, each counted once, as far as it is touched."""
    eager_bytes: int | None = None
    """Bytes that the operations of a compiled step move if none is fused."""
    samples_s: Sequence[float] = ()
    """Of the whole step, without a profiler."""
    unattributed: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by operation or kernel, of what belongs to no counted operation."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by module, when no operation ran: Python, autograd, waiting for the host."""

    @property
    def duration_ns(self) -> int:
        """Duration of the recorded step: the sum of its parts."""
        return (
            sum(operation.time_ns for operation in self.operations)
            + sum(self.unattributed.values())
            + sum(self.gaps.values())
        )


class ProfiledStep:
    """One call of the target; each call of this object is one step."""

    def __init__(self, target: Target, mode: str) -> None:
        """Prepare a step; the mode is `forward`, `backward` or `train`."""
        self.target, self.mode = target, mode
        self.phase = "forward"
        """The phase that runs now."""
        self.tags: Any = None
        """The mode that sees the operations now."""
        self.parameters = list(target.modules.parameters()) if mode != "forward" else []
        self._given = list(tensors_given(target)) if mode != "forward" else []
        self._optimizer: Any = None

    def __call__(self) -> None:
        """Run one step; it returns when the device is done."""
        import torch

        for leaf in (*self.parameters, *self._given):
            leaf.grad = None
        self.phase = "forward"
        with torch.no_grad() if self.mode == "forward" else nullcontext():
            result = self.target()
        if self.mode != "forward":
            self.phase = "backward"
            backward(result)
        if self.mode == "train":
            self.phase = "optimizer"
            # With a rate of 0, many steps leave the parameters as they are.
            self._optimizer = self._optimizer or torch.optim.AdamW(self.parameters, lr=0.0, fused=True)
            self._optimizer.step()
        if self.target.device.startswith("cuda"):
            torch.cuda.synchronize()


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

    leaves = [*target.modules.parameters(), *tensors_given(target)]
    gradients = [leaf.grad for leaf in leaves]
    buffers = [(buffer, buffer.detach().clone()) for buffer in target.modules.buffers()]
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

    paths = {id(one): path for path, one in target.modules.named_modules()}
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
