"""Replays of a CUDA graph of a function without an op, against a call of the function."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.harness.data.agreement import (
    Expected,
    NotComparableError,
    UnverifiedError,
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
        last = self.calls[-1]
        with suppress(UnverifiedError), new_contents([last.args, last.keywords]):
            # Buffers may hold intermediate results of the old contents.
            problem = problem or self._problem(graph, -1)
        if problem is None:
            return None
        return f"a replay does not repeat the calls, which use another stream: {problem}"

    def _problem(self, graph: GraphSampler, index: int) -> str | None:
        """Return how what a replay writes differs from what a call writes, also into arguments."""
        call = self.calls[index]
        arguments = _writable(tree_leaves([call.args, call.keywords]))
        before = fresh(arguments)
        try:
            expected = Expected.itself([fresh(call()), fresh(arguments)])
        except NotComparableError:
            return None
        except Exception as error:  # the function does not take new contents
            raise UnverifiedError from error
        _restore(arguments, before)
        if not expected.check([call(), arguments], ORDERS).is_right:  # it is random
            return None
        _restore(arguments, before)
        inputs = {x.untyped_storage().data_ptr() for x in arguments}
        results = _writable(tree_leaves(graph.results[index]))
        results = [x for x in results if x.untyped_storage().data_ptr() not in inputs]
        kept = fresh(results)
        for x in results:
            x.fill_(math.nan if x.is_floating_point() or x.is_complex() else 1)
        graph.replay()
        problem = expected.check([graph.results[index], arguments], ORDERS).reason
        if problem is not None:  # a function that reuses its result must not find poison in it
            _restore(results, kept)
        return problem


def _writable(values: Iterable[object]) -> list[Tensor]:
    import torch

    return [x.detach() for x in values if isinstance(x, torch.Tensor) and 0 not in x.stride()]


def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for x, value in zip(tensors, values, strict=True):
        x.copy_(value)
