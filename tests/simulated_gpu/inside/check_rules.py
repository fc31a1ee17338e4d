"""Rules of a GPU that the simulated one must follow, run on it by `test_simulation.py`."""

import gc
from dataclasses import replace

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.device.device import detect
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.timing import samplers
from bench.harness.timing.protocol import GPU_LIMITS, Limits
from bench.harness.timing.samplers import BUSY_S, GraphSampler
from tests.simulated_gpu.cuda import POOLS, on_legacy_stream
from tests.simulated_gpu.tensors import TIMELINE

GPU = "cuda:0"


def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        work()
    return graph


def test_garbage_collection_is_off_during_a_capture():
    a = torch.zeros(8, device=GPU)

    def forgotten():
        cycle = [captured(lambda: a.add_(1))]
        cycle.append(cycle)

    def work():
        a.add_(1)
        if gc.isenabled():  # as after any other object made
            gc.collect()

    forgotten()
    with (
        pytest.raises(RuntimeError, match="error during capture"),
        torch.cuda.stream(torch.cuda.current_stream()),
    ):
        captured(work)  # leaves its stream the current one
    forgotten()
    assert GraphSampler([work], launches=2).sample() > 0
    gc.collect()  # or the capture of another test would end


def measured(function):
    op = next(op for op in ELEMENTWISE if op.name == "gelu")
    case = Case("gelu", "fp32", {"n": 2**16}, {})
    device, limits = detect("cuda"), Limits(5, 1.0, 0.0, 0.5, 0.0, 1e-4)
    return measure_row(
        Row(replace(op, eager=function), case, "torch", family="elementwise"), device, None, limits
    )


def written(x, out):
    torch.add(torch.nn.functional.gelu(x), 0.0, out=out)


def test_a_complete_graph_is_timed():
    record = measured(written)
    assert (record.status, record.method, "not-captured" in record.flags) == ("ok", "graph", False)


def test_a_graph_without_the_legacy_stream_kernel_is_rejected():
    def elsewhere(x, out):
        with on_legacy_stream():
            written(x, out)

    record = measured(elsewhere)
    assert (record.status, record.method) == ("ok", "events"), record.reason
    assert "nothing was captured" in record.flag_reasons["not-captured"]


def test_an_incomplete_graph_is_rejected():
    def half(x, out):
        y = torch.nn.functional.gelu(x)
        with on_legacy_stream():
            torch.add(y, 0.0, out=out)

    record = measured(half)
    assert (record.status, record.method) == ("ok", "events"), record.reason
    assert "a replay" in record.flag_reasons["not-captured"]


def test_clock_and_power_are_read_while_replays_are_queued():
    x, queued_s = torch.ones(2**20, device=GPU), []

    def read(keep_busy):
        assert TIMELINE.waited_s == TIMELINE.now_s  # the sample is over
        assert keep_busy() > 0
        queued_s.append(TIMELINE.now_s - TIMELINE.waited_s)

    GraphSampler([lambda: x.add_(1)], 20, read).sample()
    assert 0.98 * BUSY_S < queued_s[0] < 1.1 * BUSY_S


def test_a_failed_capture_releases_its_memory():
    x = torch.ones(2**10, device=GPU)
    gc.collect()
    before = set(POOLS)
    with pytest.raises(RuntimeError, match="capturing"):
        GraphSampler([lambda: (x + 1).sum().item()], 2)
    assert before == POOLS
    most, counts, capture_begin = [], iter([10, 1000]), torch.cuda.CUDAGraph.capture_begin

    def begin(graph, pool, **options):
        most.append(len(POOLS - before))
        capture_begin(graph, pool, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin)
        patch.setattr(samplers, "graph_launches", lambda copies, wanted: next(counts))
        assert (
            samplers.make_sampler([lambda: x.add_(1)], detect("cuda"), GPU_LIMITS).method == "graph"
        )
    assert most == [0, 0]


def test_returned_results_are_retained_for_a_round():
    x = torch.ones(2**10, device=GPU)
    sampler = GraphSampler([lambda: x + 1] * 40, 400)
    assert len({result.data_ptr() for result in sampler.results}) == 40
