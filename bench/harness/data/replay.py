"""The check of a captured graph: it verifies what a replay writes, not what the calls wrote before the capture.

A capture sees the work of its own streams. A kernel that a user's extension launches on another stream runs once, while
the graph is captured, and is missing in every replay: the results of the calls are right, and the time is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.harness.data.inputs import InputSet
from bench.harness.data.verify import CheckResult, check, poison
from bench.harness.op import Case, Op
from bench.harness.timing.samplers import GraphSampler

if TYPE_CHECKING:
    from torch import Tensor


class ReplayCheck:
    """Verifies what the replay of a graph writes: before it is timed, and again afterwards."""

    def __init__(self, op: Op, case: Case, sets: Sequence[InputSet]) -> None:
        """Prepare for graphs of calls on these sets, one call for each, in their order."""
        self._op, self._case, self._sets = op, case, sets
        self._graph: GraphSampler | None = None

    def refusal(self, graph: GraphSampler) -> str | None:
        """Return the reason to reject a graph, or None; `after` checks the same graph again."""
        self._graph = graph
        checked = self.after()
        if checked is None or checked.is_right:
            return None
        self._graph = None
        return f"its replay does not do what the calls do, so that work is on a stream of its own: {checked.reason}"

    def after(self) -> CheckResult | None:
        """Return the check of one more replay, of the first and the last copy; None if no graph is timed."""
        import torch

        if self._graph is None:
            return None
        results = [
            self._written(returned, data) for returned, data in zip(self._graph.results, self._sets, strict=True)
        ]
        inputs = {x.untyped_storage().data_ptr() for data in self._sets for x in data.inputs}
        parts = {part.data_ptr(): part for result in results for part in result}
        before = [(x, x.clone()) for x in parts.values() if x.untyped_storage().data_ptr() not in inputs]
        for part, _ in before:
            poison(part)
        self._graph.replay()
        for result, data in ((results[-1], self._sets[-1]), (results[0], self._sets[0])):
            checked = check(self._op, self._case, data, result[0] if len(result) == 1 else torch.stack(result))
            if not checked.is_right:
                for part, kept in before:  # a function that keeps its result must not find poison in it
                    part.copy_(kept)
                break
        return checked

    def _written(self, returned: object, data: InputSet) -> tuple[Tensor, ...]:
        """Return where a launch writes: what it returned, else the output that it was given."""
        import torch

        if isinstance(returned, torch.Tensor):
            return (returned,)
        return returned if isinstance(returned, tuple) and returned else (data.out,)
