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
        """Return why a graph must not be timed, or None; `after` checks the same graph again."""
        self._graph = graph
        checked = self.after()
        if checked is None or checked.is_right:
            return None
        self._graph = None
        return f"its replay does not do what the calls do, so that work is on a stream of its own: {checked.reason}"

    def after(self) -> CheckResult | None:
        """Return the check of one more replay, of the first and the last copy; None where no graph is timed."""
        if self._graph is None:
            return None
        results = [self._result(self._graph, place) for place in range(len(self._sets))]
        held = {x.untyped_storage().data_ptr() for data in self._sets for x in data.inputs}
        before = {}
        for part in (part for result in results for part in result):
            if part.untyped_storage().data_ptr() not in held and part.data_ptr() not in before:
                before[part.data_ptr()] = part, part.clone()
                poison(part)
        self._graph.replay()
        checked = None
        for place in dict.fromkeys((len(self._sets) - 1, 0)):
            import torch

            result = results[place]
            whole = result[0] if len(result) == 1 else torch.stack(result)
            checked = check(self._op, self._case, self._sets[place], whole)
            if not checked.is_right:
                for part, kept in before.values():  # a function that keeps its result must not find poison in it
                    part.copy_(kept)
                break
        return checked

    def _result(self, graph: GraphSampler, place: int) -> tuple[Tensor, ...]:
        """Return where the launch on a copy writes: what it returned, else the output that it was given."""
        import torch

        returned = graph.results[place]
        if isinstance(returned, torch.Tensor):
            return (returned,)
        return returned if isinstance(returned, tuple) and returned else (self._sets[place].out,)
