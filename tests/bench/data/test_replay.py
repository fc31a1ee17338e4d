"""A replay of a function's calls is verified; `Graph` simulates it by what it repeats."""

from functools import partial

import pytest
import torch

from bench.harness.data.replay import ReplayCheck


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
    reason = ReplayCheck(calls).refusal(graph)
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
    replay = ReplayCheck(calls)
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
    assert ReplayCheck(calls).refusal(complete) is None
    assert ReplayCheck(calls).refusal(Graph(calls, lambda x, out, result: None)) is not None


def test_what_cannot_be_compared_is_accepted():
    calls = [partial(lambda x: None, torch.randn(8, 8))]
    assert ReplayCheck(calls).refusal(Graph(calls, lambda x, out: None)) is None


def add_one(x, out):
    torch.add(x, 1, out=out)


def ops(captured):
    """Return calls that write into `out=`, and a graph of only those in `captured`."""
    calls = [partial(add_one, torch.randn(64), out=torch.zeros(64)) for _ in range(4)]
    graph = Graph(calls, lambda x, result: None)

    def replay():
        for index in graph.captured:
            calls[index]()

    graph.captured = captured
    graph.replay = replay
    return calls, graph


@pytest.mark.parametrize("captured", [(), (0,), (0, 1, 2), (1, 2, 3)])
def test_a_replay_that_omits_launches_is_refused(captured):
    calls, graph = ops(captured)
    check = ReplayCheck(calls)
    assert check.refusal(graph).startswith("a replay does not repeat")
    assert check.after() is None  # it is not timed, so there is nothing to look at afterwards


@pytest.mark.parametrize("omitted", [0, 3])
def test_a_complete_replay_is_checked_again_after_timing(omitted):
    calls, graph = ops([0, 1, 2, 3])
    check = ReplayCheck(calls)
    assert check.after() is None
    assert check.refusal(graph) is None
    assert check.after() is None
    graph.captured.remove(omitted)
    assert "its result differs" in check.after()


def test_an_output_of_integers_is_checked():
    x = torch.arange(64)
    calls = [partial(add_one, x, out=torch.zeros(64, dtype=torch.int64))]
    refused = ReplayCheck(calls).refusal(Graph(calls, lambda x, result: None))
    assert "its result differs" in refused


def test_a_refused_replay_leaves_kept_and_given_tensors_as_they_were():
    kept = torch.ones(8, 8)
    x = torch.randn(8, 8)
    for tensor in (kept, x):
        graph = Graph([partial(double, x)], lambda x, out: None)
        graph.results = [tensor]
        before = tensor.clone()
        assert ReplayCheck(graph.calls).refusal(graph) is not None
        assert torch.equal(tensor, before)
