"""Runs a step of a target, counts its operations, and tags them in the trace of a timed step."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.fx.node import map_arg
from torch.nn.modules import module as hooks
from torch.utils.flop_counter import flop_registry

from bench.harness.cli.arguments import UsageError
from bench.harness.torch_private import (
    HigherOrderOperator,
    TorchDispatchMode,
    current_autograd_node,
    disable_current_modes,
    eager,
    is_traceable_wrapper_subclass_type,
    sequence_number,
)
from bench.harness.torch_private import (
    RecordFunctionFast as Range,  # unlike record_function, it is not an operation
)
from bench.profiling.counts import (
    count,
    distinct,
    dtypes_of,
    is_decomposed,
    name_of,
    tensors_in,
)
from bench.profiling.operation import MODULE, TAG, UNMODELLED, Breakdown, Operation, summed
from bench.profiling.target import ORIGINALS, Target, guarded_call

MAX_NAMES = 4
"""Maximum number of operations that are named in the row of a compiled region."""


class ProfiledStep:
    """One call of the target; each call of this object is one step.

    The mode is `forward`, without gradients; `backward` or `train`; or `plain`, the call as its
    user makes it.
    """

    def __init__(self, target: Target, mode: str) -> None:
        self.target = target
        self.mode = mode
        self.phase = "forward"
        self.watcher: Watcher | None = None
        self.leaves = leaves_of(target) if mode in ("backward", "train") else []
        self.optimizer: Any = None
        self.gradient_of: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like
        """Returns the gradient of a result that is not one number."""

    def __call__(self) -> None:
        self.run()
        if self.target.device.startswith("cuda"):
            torch.cuda.synchronize()

    def run(self) -> Any:
        """Return the result of the target; a GPU may still be running."""
        for leaf in self.leaves:
            leaf.grad = None
        self.phase = "forward"
        with torch.no_grad() if self.mode == "forward" else nullcontext():
            result = self.target()
        if self.mode in ("backward", "train"):
            self.phase = "backward"
            backward(result, self.gradient_of)
        if self.mode == "train":
            self.phase = "optimizer"
            if self.optimizer is None:
                # A learning rate of 0 leaves the parameters unchanged.
                self.optimizer = torch.optim.AdamW(
                    self.target.modules.parameters(), lr=0.0, fused=True
                )
            self.optimizer.step()
        return result


def leaves_of(target: Target) -> list[torch.Tensor]:
    """Return the parameters and the arguments that get a gradient."""
    given = [
        tensor
        for tensor in tensors_in((target.args, target.kwargs))
        if tensor.is_leaf and tensor.requires_grad
    ]
    return [*target.modules.parameters(), *given]


def backward(
    result: Any, gradient_of: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like
) -> None:
    """Run the backward pass from the `loss` of a result, or from its first tensor that requires a
    gradient.
    """
    loss = getattr(result, "loss", None)
    found = tensors_in(loss if isinstance(loss, torch.Tensor) else result)
    start = next((tensor for tensor in found if tensor.requires_grad), None)
    if start is None:
        raise UsageError(
            "no result of the step requires a gradient, so there is no backward pass to profile"
        )
    torch.autograd.backward([start], [gradient_of(start)] if start.numel() != 1 else None)


@contextmanager
def state_kept(target: Target) -> Iterator[None]:
    gradients = [(leaf, leaf.grad) for leaf in leaves_of(target)]
    buffers = [(buffer, buffer.detach().clone()) for buffer in target.modules.buffers()]
    devices = [torch.device(target.device)] if target.device.startswith("cuda") else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


class Watcher(TorchDispatchMode):
    """Intercepts the operations of a step below autograd, tags each in a trace by its index and
    name and, if it `is_counting`, counts its work.
    """

    supports_higher_order_operators = True

    def __init__(self, step: ProfiledStep, is_counting: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step = step
        self.is_counting = is_counting
        self.operations: list[Operation] = []
        """Those that were counted."""
        self.number = 0
        self.modules: list[str] = []
        """Paths of the running modules, the innermost last."""
        self._module_of_node: dict[int, str] = {}
        named = step.target.modules.named_parameters()
        self._owners = {id(parameter): path.rpartition(".")[0] for path, parameter in named}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A range or a property of a tensor is not an operation.
        if getattr(func, "namespace", "") in ("profiler", "prim"):
            return func(*args, **kwargs)
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the operations on its parts are counted
        if isinstance(func, HigherOrderOperator):
            # Flex attention counts as a whole: its functions change single scores.
            if func not in flop_registry:
                return func(*map(self.watched, args), **kwargs)
        elif is_decomposed(func) and not any(tensor.is_nested for tensor in tensors_in(args)):
            with self:
                return func.decompose(*args, **kwargs)
        with self.tag(name_of(func)):
            result = func(*args, **kwargs)
        if self.is_counting:
            self.add(func, args, kwargs, result)
        return result

    def watched(self, value: Any) -> Any:
        """Return a function whose operations are intercepted, and another value unchanged."""
        if not callable(value):
            return value

        def run(*args: Any) -> Any:
            with self:
                return value(*args)

        return run

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operation that ran."""
        operation = count(func, args, kwargs, result)
        operation.phase = self.step.phase
        node = current_autograd_node()
        if self.modules:  # also if it is recomputed in the backward pass
            operation.module = self.modules[-1]
        if node is None:
            # An autograd node belongs to the first operation after it was created.
            self._module_of_node.setdefault(int(sequence_number()) - 1, operation.module)
        elif not self.modules and hasattr(node, "variable"):
            operation.module = self._owners.get(id(node.variable), "")
        elif not self.modules:
            operation.module = self._module_of_node.get(node._sequence_nr(), "")
        self.operations.append(operation)

    def tag(self, name: str) -> Any:
        self.number += 1
        return Range(f"{TAG}{self.number - 1} {name}")

    @contextmanager
    def watching(self, is_eager: bool) -> Iterator[None]:
        """Intercept the operations of steps; if `is_eager`, compiled functions run as eager
        ones.
        """
        paths = {id(module): path for path, module in self.step.target.modules.named_modules()}
        ranges = []

        def enter(module: Any, _: Any) -> None:
            if id(module) not in paths:  # of a function: named by its class, its children below it
                above = f"{self.modules[-1]}." if self.modules else ""
                for path, child in module.named_modules(prefix=above + type(module).__name__):
                    paths.setdefault(id(child), path)
            self.modules.append(paths[id(module)])
            ranges.append(Range(MODULE + self.modules[-1]))
            ranges[-1].__enter__()

        def leave(_: Any, __: Any, ___: Any) -> None:
            self.modules.pop()
            ranges.pop().__exit__(None, None, None)

        entering = hooks.register_module_forward_pre_hook(enter)
        leaving = hooks.register_module_forward_hook(leave, always_call=True)
        self.step.watcher = self
        try:
            with (
                eager() if is_eager else nullcontext(),
                warnings.catch_warnings(),
                self,
            ):
                warnings.filterwarnings(
                    "ignore", "Using .*torch.compile.* when there are global hooks"
                )
                yield
        finally:
            self.step.watcher = None
            entering.remove()
            leaving.remove()


def counted(step: ProfiledStep, is_eager: bool = True) -> Breakdown:
    watcher = Watcher(step)
    with watcher.watching(is_eager):
        step()
    return Breakdown(watcher.operations)


def account(step: ProfiledStep) -> Breakdown:
    """Return the operations of a step, after a first step that creates caches and state."""
    with state_kept(step.target):
        with guarded_call(step.target.name):
            step()
        with guarded_call(step.target.name, is_heard=False):
            breakdown = counted(step)
    if not breakdown.operations:
        raise UsageError(f"{step.target.name} called no torch operation")
    return breakdown


def compiled(step: ProfiledStep, eager: Breakdown) -> tuple[ProfiledStep, Breakdown]:
    """Return a compiled step and its operations: fused regions, and operations outside of them."""
    from bench.harness.torch_private import (
        compile_fx,
        compile_fx_inner,
        dynamo_config,
        functorch_config,
    )

    numbers = itertools.count()

    def inner(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
        region = region_of(f"region{next(numbers)}", graph)
        return shown(fast, region, compile_fx_inner(graph, inputs, **options))

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph, inputs, inner_compile=inner)

    function = step.target.function
    for name in ORIGINALS:  # compile the original again
        function = getattr(function, name, None) or function
    made = torch.compile(function, backend=backend, dynamic=False)
    fast = ProfiledStep(replace(step.target, function=made), step.mode)
    with (
        state_kept(step.target),
        # A graph from the cache of whole graphs has no regions that can be intercepted.
        functorch_config.patch(enable_autograd_cache=False),
        # All modules share the code that is compiled: torch would run it as it is after 8 times.
        dynamo_config.patch(recompile_limit=sys.maxsize),
    ):
        fast()
        fast()
        counted(fast, is_eager=False)
        operations = counted(fast, is_eager=False).operations
    return fast, Breakdown(operations, summed(eager.operations).bytes_moved)


def region_of(name: str, graph: Any) -> Operation:
    """Return a traced graph as one operation with its FLOPs, without bytes."""
    operations = []
    for node in graph.graph.nodes:
        # `operator.getitem` and arithmetic on sizes are not torch operations.
        if node.op == "call_function" and getattr(node.target, "__module__", "") != "_operator":
            args, kwargs = map_arg((node.args, node.kwargs), lambda other: other.meta.get("val"))
            operations.append(count(node.target, args, kwargs, node.meta.get("val")))
    total = summed(operations)
    working = [
        operation for operation in operations if operation.flops or not operation.is_modelled
    ]
    names = list(
        dict.fromkeys(operation.op.removeprefix("aten.") for operation in working or operations)
    )
    if len(names) > MAX_NAMES:
        names[MAX_NAMES:] = [f"and {len(names) - MAX_NAMES} more"]
    return Operation(
        f"compiled.{name}",
        " ".join(names),
        flops=total.flops,
        matmul_flops=total.matmul_flops,
        flags=() if all(operation.is_modelled for operation in operations) else (UNMODELLED,),
    )


def shown(
    step: ProfiledStep, region: Operation, function: Callable[[list[Any]], Any]
) -> Callable[[list[Any]], Any]:
    """Return the function of a region, wrapped so that its calls are tagged and counted."""

    def run(args: list[Any]) -> Any:
        watcher = step.watcher
        if watcher is None:
            return function(args)
        given = list(tensors_in(args))  # the function takes them out of the list
        with disable_current_modes(), watcher.tag(region.op):
            result = function(args)
        if watcher.is_counting:
            # Outputs that are part of an input are not written.
            read = distinct(given)
            made = distinct(tensors_in(result)).items()
            call = replace(
                region,
                dtypes=dtypes_of(given),
                phase=step.phase,
                bytes_read=read.total(),
                bytes_written=sum(size for storage, size in made if storage not in read),
            )
            watcher.operations.append(call)
        return result

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
