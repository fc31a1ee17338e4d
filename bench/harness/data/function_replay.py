"""Replays of a CUDA graph of a function without an op, against a call of the function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.harness.data.agreement import (
    Expected,
    NotComparableError,
    UnverifiedError,
    arrays_of,
    fresh,
    new_contents,
)
from bench.harness.torch_private import tree_leaves

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.timing.samplers import GraphSampler


ORDERS = 4.0
"""Factor on the differences that rounding explains: atomic sums add in any order."""


@dataclass
class FunctionReplay:
    """Verifies a replay of calls, which lacks what a call launches on another stream."""

    calls: Sequence[Any]
    """A `partial` for each copy of the arguments, in the order of the capture."""

    def refusal(self, graph: GraphSampler) -> str | None:
        """Return the reason to reject a graph, or None."""
        problem = self._problem(graph, 0)
        last = len(self.calls) - 1
        with (
            suppress(UnverifiedError),
            new_contents([*self.calls[last].args, self.calls[last].keywords]),
        ):
            # Buffers may hold intermediate results of the old contents.
            problem = problem or self._problem(graph, last)
        return (
            problem and f"a replay does not repeat the calls, which use another stream: {problem}"
        )

    def _problem(self, graph: GraphSampler, index: int) -> str | None:
        """Return how the result of a replay on poisoned memory differs from that of a call;
        arguments that a call writes are results too.
        """
        import torch

        call = self.calls[index]
        arguments = _tensors([call.args, call.keywords])
        before = [x.clone() for x in arguments]
        try:
            result = fresh(call())
        except Exception as error:  # the function does not take new contents
            raise UnverifiedError from error
        written = [pair for pair in zip(arguments, before, strict=True) if not torch.equal(*pair)]
        outputs = [x for x, _ in written]
        try:
            expected = Expected.itself([result, fresh(outputs)])
        except NotComparableError:
            return None
        _restore(written)
        is_random = not expected.check([call(), outputs], ORDERS).is_right
        _restore(written)
        replayed = [graph.results[index], outputs]
        poisoned = [(x, x.clone()) for x in _own(arrays_of(replayed), arguments)]
        for x, _ in poisoned:
            _poison(x)
        graph.replay()
        problem = expected.check(replayed, ORDERS).reason
        if is_random:
            problem = _left_poison(arrays_of(replayed), expected.results)
        if problem is not None:  # a function that reuses its result must not find poison in it
            _restore(poisoned)
        return problem


def _tensors(values: object) -> list[Tensor]:
    import torch

    return [x.detach() for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _restore(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for x, values in pairs:
        x.copy_(values)


def _own(results: Sequence[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """Return the results in memory of their own, each once."""
    taken = {x.untyped_storage().data_ptr() for x in arguments}
    by_address = {x.data_ptr(): x for x in results if 0 not in x.stride()}
    return [x for x in by_address.values() if x.untyped_storage().data_ptr() not in taken]


def _poison(x: Tensor) -> None:
    if x.is_floating_point() or x.is_complex():
        x.fill_(float("nan"))
    else:
        x.bitwise_not_()


def _left_poison(replayed: Sequence[Tensor], results: Sequence[Tensor]) -> str | None:
    """Return whether NaN is left in a random result."""
    for x, wanted in zip(replayed, results, strict=False):
        if x.isnan().any() and not wanted.isnan().any():
            return "an element is NaN"
    return None
