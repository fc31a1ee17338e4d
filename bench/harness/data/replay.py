"""Replays of a CUDA graph against calls: a replay lacks what a call launches on another stream."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness.data.agreement import (
    Expected,
    NotComparableError,
    UnverifiedError,
    arguments_of,
    fresh,
    new_contents,
    poisoned,
    renew,
    tensors_in,
)

if TYPE_CHECKING:
    from bench.harness.timing.samplers import GraphSampler


ORDERS = 4.0
"""Factor on the differences that rounding explains: atomic sums add in any order."""


@dataclass
class ReplayCheck:
    """Verifies what a replay of calls writes, also into arguments."""

    calls: Sequence[Any]
    """A `partial` for each copy of the arguments, in the order of the capture."""
    graph: GraphSampler | None = field(init=False, default=None)

    def refusal(self, graph: GraphSampler) -> str | None:
        """Return the reason to reject a graph, or None; `after` checks the same graph again."""
        self.graph = graph
        problem = self.after()
        if problem is None:
            return None
        self.graph = None
        return f"a replay does not repeat the calls, which use another stream: {problem}"

    def after(self) -> str | None:
        """Return how another replay differs, in the first copy, and in the last one, also with new
        contents; None also if no graph is timed.
        """
        if self.graph is None:
            return None
        problem = self._problem(self.graph, 0)
        with suppress(UnverifiedError), new_contents(arguments_of(self.calls[-1])) as write:
            write(1)
            # Buffers may hold intermediate results of the old contents.
            problem = problem or self._problem(self.graph, -1)
        return problem or self._problem(self.graph, -1)

    def _problem(self, graph: GraphSampler, index: int) -> str | None:
        call = self.calls[index]
        arguments = tensors_in(arguments_of(call))
        before = [x.clone() for x in arguments]
        try:
            expected = Expected.itself([fresh(call()), fresh(arguments)])
        except NotComparableError:
            return None
        except Exception as error:  # the function does not take new contents
            raise UnverifiedError from error
        renew([arguments], lambda: before)
        if not expected.check([call(), arguments], ORDERS).is_right:  # it is random
            return None
        renew([arguments], lambda: before)
        result = graph.results[index]
        options = dict(call.keywords)
        written = [result, options.pop("out", None)]
        with poisoned(written, [call.args, options]):  # a function may reuse its result
            graph.replay()
            return expected.check([result, arguments], ORDERS).reason
