"""Compiles a step as `torch.compile` does, and counts what goes in and out of each region that it fuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.profile.counts import UNMODELLED, distinct, node_count, tensors_in
from bench.harness.profile.join import COMPILED, REGION, StepTimes
from bench.harness.profile.step import ProfiledStep
from bench.harness.profile.target import ORIGINALS

if TYPE_CHECKING:
    from bench.harness.profile.account import Accounted, Call

NAMED_OPERATIONS = 4
"""Of a region, in its row; the others are counted."""


@dataclass(frozen=True)
class Region:
    """A graph that the compiler turned into one callable."""

    name: str
    operations: tuple[str, ...]
    flops: int
    matmul_flops: int
    is_modelled: bool


@dataclass
class Compiler:
    """Compiles with inductor, and sees each call of what it compiled."""

    regions: list[Region] = field(default_factory=list)
    ran: list[tuple[Region, int, int, tuple[str, ...], str]] = field(default_factory=list)
    """Regions in the order of their calls, each with bytes read and written, dtypes and phase."""
    step: ProfiledStep | None = None
    """The step whose calls are noted; None: no calls are."""

    def compiled(self, step: ProfiledStep) -> ProfiledStep:
        """Return a step that is compiled at its first call.

        Raises:
            UsageError: this torch does not let its compiler be watched.
        """
        import torch

        inductor()  # before any compilation
        function = step.target.function
        for name in ORIGINALS:  # what is compiled already is compiled anew
            function = getattr(function, name, None) or function
        return ProfiledStep(replace(step.target, function=torch.compile(function, backend=self._backend)), step.mode)

    def calls_of(self, step: ProfiledStep) -> list[Call]:
        """Return the regions that a compiled step calls; steps before it compile them."""
        step()
        step()
        self.step = step
        step()
        self.step = None
        return [_call(*one) for one in self.ran]

    def _backend(self, graph: Any, inputs: Sequence[Any]) -> Any:
        compile_graph, _ = inductor()
        inner: Any = self._inner
        return compile_graph(graph, inputs, inner_compile=inner)

    def _inner(self, graph: Any, inputs: Sequence[Any], **options: Any) -> Callable[[list[Any]], Any]:
        import torch

        from bench.harness.profile.account import dtypes_of

        region = _region(f"region{len(self.regions)}", graph)
        self.regions.append(region)
        _, compile_region = inductor()
        function: Any = compile_region(graph, inputs, **options)

        def run(args: list[Any]) -> Any:
            given = list(tensors_in(args)) if self.step is not None else []
            with torch.autograd.profiler.record_function(COMPILED + region.name):
                result = function(args)
            if self.step is not None:
                self.ran.append((region, *_moved(given, result), dtypes_of(given), self.step.phase))
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def inductor() -> tuple[Any, Any]:
    """Return what compiles a whole graph by regions, and what compiles one region; torch documents neither.

    Raises:
        UsageError: this torch has them under other names, or does not let a region's compiler be replaced.
    """
    import torch

    try:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        is_known = "inner_compile" in inspect.signature(compile_fx).parameters
    except (ImportError, TypeError, ValueError):
        is_known = False
    if not is_known:
        raise UsageError(f"regions cannot be watched: torch {torch.__version__} has another hook into its compiler")
    return compile_fx, compile_fx_inner


def _moved(given: Sequence[Any], result: Any) -> tuple[int, int]:
    """Return the bytes of inputs, and of outputs that are no part of an input."""
    own = {tensor.untyped_storage()._cdata for tensor in given}
    made = [tensor for tensor in tensors_in(result) if tensor.untyped_storage()._cdata not in own]
    return sum(moved.bytes for moved in distinct(given)), sum(moved.bytes for moved in distinct(made))


def _region(name: str, graph: Any) -> Region:
    counts = [node_count(node) for node in graph.graph.nodes if node.op == "call_function"]
    working = [name for name, flops, _, is_known in counts if flops or not is_known]
    return Region(
        name,
        tuple(dict.fromkeys(working or [name for name, *_ in counts])),
        sum(flops for _, flops, _, _ in counts),
        sum(products for _, _, products, _ in counts),
        all(is_known for *_, is_known in counts),
    )


def _call(region: Region, read: int, written: int, dtypes: tuple[str, ...], phase: str) -> Call:
    from bench.harness.profile.account import Call

    names = list(region.operations[:NAMED_OPERATIONS])
    more = len(region.operations) - len(names)
    return Call(
        op=REGION + region.name,
        operands=(),
        shapes=" ".join([*names, *([f"and {more} more"] if more else [])]),
        dtypes=dtypes,
        module="",
        phase=phase,
        flops=region.flops,
        matmul_flops=region.matmul_flops,
        bytes_read=read,
        bytes_written=written,
        is_modelled=region.is_modelled,
        flags=() if region.is_modelled else (UNMODELLED,),
    )


def still_called(accounted: Accounted, steps: Sequence[StepTimes]) -> tuple[Accounted, list[StepTimes]]:
    """Return only the calls that a recorded step made: an operation that was fused is part of its region."""
    kept = sorted({place for step in steps for place in step.calls})
    new = {place: number for number, place in enumerate(kept)}
    renumbered = [
        replace(
            step,
            calls={new[place]: spent for place, spent in step.calls.items()},
            kernels={new[place]: names for place, names in step.kernels.items()},
        )
        for step in steps
    ]
    return replace(accounted, calls=[accounted.calls[place] for place in kept]), renumbered
