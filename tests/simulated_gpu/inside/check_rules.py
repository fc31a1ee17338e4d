"""Rules of a GPU that the simulated one must follow, run on it by `test_simulation.py`."""

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import bench
import bench.transfer
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness import transfer
from bench.harness.device.device import detect
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.settings import Settings
from bench.harness.timing import samplers
from bench.harness.timing.protocol import GPU_LIMITS, Limits
from bench.harness.timing.samplers import GraphSampler
from bench.model.step import timed_record
from tests.simulated_gpu import tensors
from tests.simulated_gpu.cuda import POOLS, on_legacy_stream

GPU = "cuda:0"
DEVICE = detect("cuda")
RUN = SimpleNamespace(device=DEVICE, settings=Settings(), ceilings=None, share_s=lambda rows: 0.1)


def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def test_captures_share_a_stream():
    """On each stream that captures a matmul, cuBLAS allocates 32 MiB that it never frees."""
    a = torch.zeros(8, device=GPU)
    streams = []

    def work():
        streams.append(torch.cuda.current_stream())
        a.add_(1)

    for _ in range(2):
        GraphSampler([work], launches=1)
    assert streams[0] is streams[1] is not torch.cuda.current_stream()


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
    limits = Limits(5, 1.0, 0.0, 0.5, 0.0, 1e-4)
    return measure_row(
        Row(replace(op, eager=function), case, "torch", family="elementwise"), DEVICE, None, limits
    )


def written(x, out):
    torch.add(torch.nn.functional.gelu(x), 0.0, out=out)


def test_a_complete_graph_is_timed():
    record = measured(written)
    assert (record.status, record.method, "not-captured" in record.flags) == ("ok", "graph", False)


def elsewhere(x, out):
    with on_legacy_stream():
        written(x, out)


def half(x, out):
    y = torch.nn.functional.gelu(x)
    with on_legacy_stream():
        torch.add(y, 0.0, out=out)


@pytest.mark.parametrize(
    ("function", "reason"), [(elsewhere, "nothing was captured"), (half, "a replay")]
)
def test_a_graph_without_legacy_stream_kernels_is_rejected(function, reason):
    record = measured(function)
    assert (record.status, record.method) == ("ok", "events"), record.reason
    assert reason in record.flag_reasons["not-captured"]


def mostly_elsewhere(x):
    y = x + 1
    with on_legacy_stream():
        for _ in range(10):
            y = y + 1
    return y


def starting_elsewhere(x):
    with on_legacy_stream():
        y = x + 1
    return y + 1


API = {"budget_s": 0.1, "cache": "warm", "device": "cuda"}


@pytest.mark.parametrize(
    ("function", "additions"), [(mostly_elsewhere, 11), (starting_elsewhere, 2)]
)
def test_a_graph_of_a_function_without_part_of_its_work_is_rejected(function, additions):
    x = torch.randn(2**8, device=GPU)
    record = bench.measure(function, x, **API)
    assert (record.status, record.method) == ("ok", "events"), record.reason
    assert "a replay does not repeat" in record.flag_reasons["not-captured"]
    assert record.median_s == pytest.approx(additions * tensors.LAUNCH_S, rel=0.1)
    functions = {"mine": function, "torch": lambda x: x + additions}
    compared = bench.compare(functions, x, rounds=6, **API)
    assert [record.method for record in compared.records] == ["events", "graph"]


def test_a_complete_graph_of_a_function_is_timed():
    x = torch.randn(2**8, device=GPU)
    frame = bench.sweep({"gelu": torch.nn.functional.gelu}, [2**8], **API)
    assert frame["method"].tolist() == ["graph"]
    out = torch.empty_like(x)
    assert bench.measure(torch.add, x, x, out=out, **API).method == "graph"
    assert bench.measure(torch.rand_like, x, **API).method == "graph"


def test_a_failed_capture_releases_its_memory():
    x = torch.ones(2**10, device=GPU)
    gc.collect()
    before = set(POOLS)
    sampler = samplers.make_sampler([lambda: (x + 1).sum().item()], DEVICE, GPU_LIMITS)
    assert (sampler.method, before) == ("events", POOLS)
    assert "not permitted" in sampler.why_no_graph  # the cause, not the error at the end
    most, counts, capture_begin = [], iter([10, 1000]), torch.cuda.CUDAGraph.capture_begin

    def begin(graph, pool):
        most.append(len(POOLS - before))
        capture_begin(graph, pool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin)
        patch.setattr(samplers, "graph_launches", lambda *_: next(counts))
        assert samplers.make_sampler([lambda: x.add_(1)], DEVICE, GPU_LIMITS).method == "graph"
    assert most == [0, 0]


@pytest.fixture
def spins(monkeypatch):
    spins = []
    spin = torch.cuda._sleep
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: spins.append(cycles) or spin(cycles))
    return spins


@pytest.mark.parametrize("memory", bench.transfer.MEMORY)
@pytest.mark.parametrize("kind", bench.transfer.TRANSFER)
def test_only_queued_copies_are_captured(memory, kind, spins):
    blank = bench.transfer.copy_record("h2d", DEVICE, 2**16, memory, kind)
    record = transfer.measure_copy(blank, RUN, 1)
    is_queued = (memory, kind) == ("pinned", "non-blocking")
    method = "graph" if is_queued else "host"
    assert (record.status, record.method, bool(spins)) == ("ok", method, is_queued)


def test_a_training_step_does_not_fill_the_launch_queue(monkeypatch, spins):
    monkeypatch.setattr(tensors, "LAUNCH_S", 2e-6)
    x = torch.ones(1, device=GPU)

    def step():
        for _ in range(150):
            x.add_(1)

    step.clock = SimpleNamespace(medians_s=lambda count: {})
    record = timed_record(step, bench.transfer.BLANK, RUN, 1)
    assert record.details.device_s == pytest.approx(150 * tensors.LAUNCH_S, rel=0.1)
    assert len(set(spins)) == 1  # no sample was late
