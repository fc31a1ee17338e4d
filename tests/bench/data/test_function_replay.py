"""A replay of a function's calls is verified; `Graph` simulates it by what it repeats."""

from functools import partial

import pytest
import torch

from bench.harness.data.function_replay import FunctionReplay


class Graph:
    """`repeats(x, out)` is the part of the function that was captured."""

    def __init__(self, calls, repeats):
        self.calls, self.repeats, self.replays = calls, repeats, 0
        self.results = [call() for call in calls]

    def replay(self):
        self.replays += 1
        for call, result in zip(self.calls, self.results, strict=True):
            self.repeats(*call.args, result)


def refusal(function, repeats, copies=2):
    calls = [partial(function, torch.randn(8, 8)) for _ in range(copies)]
    graph = Graph(calls, repeats)
    before = [call.args[0].clone() for call in calls]
    reason = FunctionReplay(calls).refusal(graph)
    for call, x in zip(calls, before, strict=True):
        assert torch.equal(call.args[0], x)
    return reason, graph


def double(x):
    return x + x


@pytest.mark.parametrize("copies", [1, 3])
def test_a_complete_replay_is_accepted(copies):
    reason, _ = refusal(double, lambda x, out: out.copy_(double(x)), copies)
    assert reason is None


def test_a_result_that_a_replay_does_not_write_is_refused_and_left_as_it_was():
    reason, graph = refusal(double, lambda x, out: None)
    assert "which use another stream: its result differs" in reason
    assert not any(result.isnan().any() for result in graph.results)


def test_an_integer_that_a_replay_does_not_write_is_refused():
    reason, _ = refusal(lambda x: x.argmax(-1), lambda x, out: None)
    assert "differs from the baseline's in 8 of 8" in reason


def test_an_intermediate_result_of_the_capture_is_refused():
    """The last step repeats, the first one is on another stream."""
    first = {}

    def function(x):
        first.setdefault(x.data_ptr(), double(x))
        return double(x) + 1

    reason, _ = refusal(function, lambda x, out: torch.add(first[x.data_ptr()], 1, out=out))
    assert "its result differs" in reason


def test_random_results_need_not_be_equal():
    reason, _ = refusal(torch.rand_like, lambda x, out: out.uniform_())
    assert reason is None


def test_a_function_that_takes_no_other_contents_is_compared_on_its_own():
    def function(x):
        if calls and not torch.equal(x, calls[0].args[0]):
            raise ValueError("other contents")
        return double(x)

    calls = []
    calls.append(partial(function, torch.randn(8, 8)))
    replay = FunctionReplay(calls)
    assert replay.refusal(Graph(calls, lambda x, out: out.copy_(double(x)))) is None
    assert replay.refusal(Graph(calls, lambda x, out: None)) is not None


@pytest.mark.parametrize("returns", [False, True])
def test_an_output_among_the_arguments_is_a_result(returns):
    def function(x, out):
        torch.add(x, x, out=out)
        return out if returns else None

    calls = []
    for _ in range(2):
        calls.append(partial(function, torch.randn(8, 8), torch.zeros(8, 8)))
    complete = Graph(calls, lambda x, out, result: torch.add(x, x, out=out))
    assert FunctionReplay(calls).refusal(complete) is None
    assert FunctionReplay(calls).refusal(Graph(calls, lambda x, out, result: None)) is not None


def test_what_cannot_be_compared_is_accepted():
    calls = [partial(lambda x: None, torch.randn(8, 8))]
    assert FunctionReplay(calls).refusal(Graph(calls, lambda x, out: None)) is None
