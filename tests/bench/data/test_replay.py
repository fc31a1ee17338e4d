"""A graph's replay is verified; `Graph` simulates it by a list of launches."""

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data.checks import ReplayCheck
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.op import Case
from tests.bench.commands import CPU

GELU = next(op for op in ELEMENTWISE if op.name == "gelu")
CASE = Case("gelu", "fp32", {"n": 4096}, {})


class Graph:
    """Replays only the launches in `captured`."""

    def __init__(self, sets, captured, returns=False):
        self.results = [torch.empty_like(data.out) if returns else None for data in sets]
        self.sets, self.captured, self.replays = sets, captured, 0

    def replay(self):
        self.replays += 1
        for index in self.captured:
            out = self.sets[index].out if self.results[index] is None else self.results[index]
            out.copy_(torch.nn.functional.gelu(*self.sets[index].inputs))


@pytest.fixture
def sets():
    found = make_sets(GELU, CASE, Filler("uniform", "fp32", CPU, 0), CPU, 4)
    for data in found:  # correct results of the calls, before any replay
        data.out.copy_(torch.nn.functional.gelu(*data.inputs))
    return found


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("captured", [(), (0,), (0, 1, 2), (1, 2, 3)])
def test_a_replay_that_omits_launches_is_rejected(sets, captured, returns):
    check = ReplayCheck(GELU, CASE, sets)
    reason = check.refusal(Graph(sets, captured, returns))
    assert reason.startswith("a replay")
    assert "NaN" in reason
    assert check.after() is None  # it is not timed, so there is nothing to look at afterwards


@pytest.mark.parametrize("returns", [False, True])
def test_a_complete_replay_is_accepted_and_checked_again(sets, returns):
    check, graph = ReplayCheck(GELU, CASE, sets), Graph(sets, range(4), returns)
    assert check.after() is None
    assert check.refusal(graph) is None
    assert check.after().is_right
    graph.captured = (0, 1, 2)  # the last launch is no longer replayed
    assert not check.after().is_right
    assert graph.replays == 3


def test_a_rejected_replay_restores_cached_and_given_tensors(sets):
    cached, given = torch.ones(4096), sets[0].inputs[0]
    for tensor in (cached, given):
        graph, before = Graph(sets, ()), tensor.clone()
        graph.results = [tensor] * len(sets)
        assert ReplayCheck(GELU, CASE, sets).refusal(graph) is not None
        assert torch.equal(tensor, before)
