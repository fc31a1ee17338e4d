"""Compiles a step as `torch.compile` does, and counts what goes in and out of each region that it fuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.harness.cli.arguments import UsageError
from bench.harness.profile.counts import UNMODELLED, distinct, node_count, tensors_in
from bench.harness.profile.step import Breakdown, Operation, ProfiledStep, state_kept
from bench.harness.profile.target import ORIGINALS

REGION = "compiled."
MAX_NAMES = 4
"""Operations of a region that are named in its row; the others are counted."""


def compiled(step: ProfiledStep, eager: Breakdown) -> tuple[ProfiledStep, Breakdown]:
    """Return a step that is compiled, and its operations: a region, or what was not fused into one.

    Args:
        step: as it is written.
        eager: its operations.

    Raises:
        UsageError: this torch does not let its compiler be watched.
    """
    import torch
    from torch._functorch import config

    from bench.harness.profile.account import accounted

    compiler = Compiler()
    function = step.target.function
    for name in ORIGINALS:  # what is compiled already is compiled anew
        function = getattr(function, name, None) or function
    function = torch.compile(function, backend=compiler.backend)
    compiler.step = fast = ProfiledStep(replace(step.target, function=function), step.mode)
    # A graph that comes from the cache of whole graphs has no regions that can be watched.
    with state_kept(step.target), config.patch(enable_autograd_cache=False):
        fast()
        fast()
        accounted(fast, is_eager=False)
        operations = accounted(fast, is_eager=False).operations
    eager_bytes = sum(operation.bytes_moved for operation in eager.operations)
    return fast, Breakdown(operations, eager.unique_bytes, eager_bytes)


def region_of(name: str, graph: Any) -> Operation:
    """Return a traced graph as one operation: with its FLOPs, without bytes."""
    counts = [node_count(node) for node in graph.graph.nodes if node.op == "call_function"]
    working = [name for name, flops, _, is_known in counts if flops or not is_known]
    names = list(dict.fromkeys(working or [name for name, *_ in counts]))
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    is_modelled = all(is_known for *_, is_known in counts)
    return Operation(
        REGION + name,
        " ".join([*names[:MAX_NAMES], *more]),
        flops=sum(flops for _, flops, _, _ in counts),
        matmul_flops=sum(products for _, _, products, _ in counts),
        is_modelled=is_modelled,
        flags=() if is_modelled else (UNMODELLED,),
    )


def _called(region: Operation, given: Sequence[Any], result: Any, phase: str) -> Operation:
    """Return a call of a region; outputs that are part of an input are not written."""
    from bench.harness.profile.account import dtypes_of

    inputs = {tensor.untyped_storage()._cdata for tensor in given}
    made = [tensor for tensor in tensors_in(result) if tensor.untyped_storage()._cdata not in inputs]
    read, written = (sum(moved.bytes for moved in distinct(tensors)) for tensors in (given, made))
    return replace(region, dtypes=dtypes_of(given), phase=phase, bytes_read=read, bytes_written=written)


class Compiler:
    """Compiles with inductor, and shows each call of a region to the mode that watches the step."""

    def __init__(self) -> None:
        """Look for the hooks into the compiler; torch documents neither.

        Raises:
            UsageError: this torch has them under other names, or does not let a region's compiler be replaced.
        """
        import torch

        self.step: ProfiledStep | None = None
        self._regions = 0
        try:
            from torch._inductor.compile_fx import compile_fx, compile_fx_inner

            is_known = "inner_compile" in inspect.signature(compile_fx).parameters
        except (ImportError, TypeError, ValueError):
            is_known = False
        if not is_known:
            raise UsageError(f"regions cannot be watched: torch {torch.__version__} has another hook into its compiler")
        self._compile_graph: Any = compile_fx
        self._compile_region: Any = compile_fx_inner

    def backend(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Compile a graph; each region of it comes back to `_inner`."""
        return self._compile_graph(graph, inputs, inner_compile=self._inner)

    def _inner(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
        from torch.utils._python_dispatch import _disable_current_modes

        from bench.harness.profile.account import Account

        region = region_of(f"region{self._regions}", graph)
        self._regions += 1
        function = self._compile_region(graph, inputs, **options)

        def run(args: list[Any]) -> Any:
            step = self.step
            if step is None or step.tags is None:
                return function(args)
            given = list(tensors_in(args))  # the function takes them out of the list
            with _disable_current_modes(), step.tags.tag(region.op):
                result = function(args)
            if isinstance(step.tags, Account):
                step.tags.operations.append(_called(region, given, result, step.phase))
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
