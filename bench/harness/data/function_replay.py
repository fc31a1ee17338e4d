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
    fresh,
    new_contents,
)
from bench.harness.data.verify import poisoned, restore

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
        with suppress(UnverifiedError), new_contents([last.args, last.keywords]) as write:
            write(1)
            # Buffers may hold intermediate results of the old contents.
            problem = problem or self._problem(graph, -1)
        if problem is None:
            return None
        return f"a replay does not repeat the calls, which use another stream: {problem}"

    def _problem(self, graph: GraphSampler, index: int) -> str | None:
        """Return how what a replay writes differs from what a call writes, also into arguments."""
        call = self.calls[index]
        arguments = _writable([call.args, call.keywords])
        before = [(x, x.clone()) for x in arguments]
        try:
            expected = Expected.itself([fresh(call()), fresh(arguments)])
        except NotComparableError:
            return None
        except Exception as error:  # the function does not take new contents
            raise UnverifiedError from error
        restore(before)
        if not expected.check([call(), arguments], ORDERS).is_right:  # it is random
            return None
        restore(before)
        inputs = {x.untyped_storage().data_ptr() for x in arguments}
        result = graph.results[index]
        held = poisoned(_writable(result), inputs)
        graph.replay()
        problem = expected.check([result, arguments], ORDERS).reason
        if problem is not None:
            restore(held)  # a function that reuses its result must not find poison
        return problem


def _writable(values: object) -> list[Tensor]:
    import torch

    from bench.harness.torch_private import tree_leaves

    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [x.detach() for x in leaves if 0 not in x.stride()]
