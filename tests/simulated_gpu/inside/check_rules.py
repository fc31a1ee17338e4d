"""What the simulated GPU must do as a GPU does, run on it by `test_simulation.py`."""

import gc
import time
from dataclasses import replace

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.device.device import detect
from bench.harness.device.nvml import CLOCK_SM, NvmlGpu
from bench.harness.measure.plan import Row, Settings
from bench.harness.measure.runner import Runner
from bench.harness.op import Case
from bench.harness.timing.protocol import Limits
from bench.harness.timing.samplers import GraphSampler
from tests.simulated_gpu import clock
from tests.simulated_gpu.clock import LAUNCH_S, TIMELINE
from tests.simulated_gpu.cuda import EVENT_S, on_legacy_stream

GPU = "cuda:0"


def test_a_tensor_is_where_it_was_made_and_computes_there():
    a = torch.full((4, 4), 2.0, device=GPU)
    assert (a.device, a.is_cuda) == (torch.device("cuda", 0), True)
    product = a @ a
    assert product.is_cuda
    assert product.cpu().tolist() == [[16.0] * 4] * 4
    assert not product.cpu().is_cuda
    assert torch.ones(2).to(GPU).is_cuda


def test_a_view_shares_memory_and_an_operation_in_place_is_seen_through_it():
    a = torch.zeros(8, device=GPU)
    a[2:4].add_(1)
    assert a.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert a[2:].data_ptr() == a.data_ptr() + 8
    out = torch.empty(8, device=GPU)
    assert torch.add(a, 1, out=out) is out
    assert out.sum().item() == 10


def test_operands_in_two_places_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=GPU) + torch.ones(3)
    assert (torch.ones(3, device=GPU) * torch.tensor(2.0)).is_cuda  # a number may come from the host
    out = torch.empty(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(torch.ones(3, device=GPU), 1, out=out)


def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        work()
    return graph


def test_a_graph_that_is_collected_within_a_capture_ends_it_and_a_sampler_collects_nothing():
    a = torch.zeros(8, device=GPU)

    def forgotten():
        cycle = [captured(lambda: a.add_(1))]
        cycle.append(cycle)

    def work():
        a.add_(1)
        if gc.isenabled():  # as after any other object made
            gc.collect()

    forgotten()
    with pytest.raises(RuntimeError, match="error during capture"), torch.cuda.stream(torch.cuda.current_stream()):
        captured(work)  # leaves its stream the current one
    forgotten()
    assert GraphSampler([work], launches=2).sample() > 0
    gc.collect()  # or the capture of another test would end


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.ones(3).to(GPU),
        lambda x: bool((x > 0).all()),
    ],
)
def test_the_host_may_not_wait_within_a_capture(waiting):
    x = torch.ones(3, device=GPU)
    with pytest.raises(RuntimeError, match="capturing"):
        captured(lambda: waiting(x))
    assert not torch.cuda.is_current_stream_capturing()
    assert x.sum().item() == 3  # the device goes on


def test_a_replay_takes_the_time_of_all_that_was_recorded():
    x, out = torch.ones(2**20, device=GPU), torch.zeros(2**20, device=GPU)
    graph = captured(lambda: [torch.add(x, 1, out=out) for _ in range(50)])
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert out.sum().item() == 2**21
    least_s = 50 * 2 * x.nbytes / 6e12
    assert least_s <= start.elapsed_time(end) / 1e3 < 10 * least_s


def test_an_event_that_has_not_passed_has_no_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(10**8)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1e3 * 10**8 / 1.98e9, rel=0.01)


def test_a_second_event_waits_for_the_work_in_between_and_not_for_the_host():
    x = torch.ones(2**20, device=GPU)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10**9)  # long enough for the host to queue everything
    start.record()
    for _ in range(10):
        x.add_(0)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) / 1e3 < 10 * 3 * x.nbytes / 3e12 + 1e-4
    assert TIMELINE.now_s > 0


def test_a_model_learns_there():
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4, device=GPU).to(torch.bfloat16).to(torch.float32)
    x = torch.randn(16, 4, device=GPU)
    before = (layer(x) - x).square().mean()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
    assert layer.weight.grad.is_cuda
    assert loss.item() < before.item() / 2


def test_nvml_knows_the_gpu_by_the_uuid_that_torch_tells():
    gpu = NvmlGpu(str(torch.cuda.get_device_properties(0).uuid))
    assert gpu.error is None
    assert gpu.clock_hz(CLOCK_SM) == 1980e6
    time.sleep(0.2)
    assert gpu.clock_events() == ("gpu_idle",)
    TIMELINE.run(0.2)
    assert (gpu.clock_events(), gpu.power_w() > 100) == ((), True)


def kept_by(work):
    """Return shapes and dtypes of what autograd keeps of some work."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append((tuple(t.shape), t.dtype)) or t, lambda t: t):
        result = work()
    return result, kept


def test_a_fused_norm_keeps_its_input_and_a_number_a_row():
    x = torch.randn(3, 8, device=GPU, requires_grad=True)
    weight = torch.rand(8, device=GPU, requires_grad=True)
    out, kept = kept_by(lambda: torch.nn.functional.rms_norm(x, (8,), weight, 1e-6))
    assert sorted(shape for shape, _ in kept) == [(3, 1), (3, 8), (8,)]
    out.square().sum().backward()
    a, b = (t.detach().cpu().double().requires_grad_() for t in (x, weight))
    torch.nn.functional.rms_norm(a, (8,), b, 1e-6).square().sum().backward()
    torch.testing.assert_close(x.grad.cpu().double(), a.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.cpu().double(), b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "key_heads", "keeps_scores"),
    [(torch.float32, 4, False), (torch.float32, 2, True), (torch.bfloat16, 2, False), (torch.float64, 4, True)],
)
def test_attention_is_fused_where_a_gpu_has_a_kernel_for_it(dtype, key_heads, keeps_scores):
    query, key, value = (
        torch.randn(1, heads, 20, 8, device=GPU, dtype=dtype, requires_grad=True) for heads in (4, key_heads, key_heads)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    out, kept = kept_by(lambda: attention(query, key, value, is_causal=True, enable_gqa=key_heads != 4))
    assert any(shape[-2:] == (20, 20) for shape, _ in kept) is keeps_scores
    out.square().sum().backward()
    a, b, c = (t.detach().cpu().double().requires_grad_() for t in (query, key, value))
    attention(a, b, c, is_causal=True, enable_gqa=key_heads != 4).square().sum().backward()
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-4
    for ours, theirs in ((query, a), (key, b), (value, c)):
        torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=tolerance, atol=tolerance)


def test_the_allocator_counts_what_is_held():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.zeros(1000, device=GPU)
    assert torch.cuda.memory_allocated() - before == 4096
    (x + 1).sum().item()
    assert torch.cuda.memory_allocated() - before == 4096
    assert torch.cuda.max_memory_allocated() - before >= 2 * 4096


def test_a_module_that_has_the_right_dtype_keeps_its_gradients():
    layer = torch.nn.Linear(4, 4, device=GPU)
    layer.weight.grad = torch.ones(4, 4, device=GPU)
    assert layer.to(torch.float32).weight.grad.shape == (4, 4)


def test_a_copy_of_pinned_memory_may_be_captured_where_it_is_not_waited_for():
    there, pinned, pageable = torch.zeros(4, device=GPU), torch.ones(4).pin_memory(), torch.ones(4)
    captured(lambda: there.copy_(pinned, non_blocking=True))
    assert there.tolist() == [1, 1, 1, 1]
    for source, is_queued in ((pinned, False), (pageable, True)):
        with pytest.raises(RuntimeError, match="capturing"):
            captured(lambda source=source, is_queued=is_queued: there.copy_(source, non_blocking=is_queued))


def measured(function):
    """Return the record of a function as a row of gelu, measured on the device."""
    op = next(op for op in ELEMENTWISE if op.name == "gelu")
    case = Case("gelu", "fp32", {"n": 2**16}, {})
    device, limits = detect("cuda"), Limits(5, 1.0, 0.0, 0.5, 0.0, 1e-4)
    runner = Runner("elementwise", device, Settings(cache="cold"), limits=limits)
    return runner.measure(Row(replace(op, eager=function), case, "torch"))


def written(x, out):
    torch.add(torch.nn.functional.gelu(x), 0.0, out=out)


def test_a_kernel_on_the_legacy_stream_is_not_timed_by_a_graph_that_does_not_hold_it():
    def elsewhere(x, out):
        with on_legacy_stream():
            written(x, out)

    record = measured(elsewhere)
    assert (record.status, record.method) == ("ok", "events")
    assert "nothing was captured" in record.flag_reasons["not-captured"]
    assert record.median_s >= LAUNCH_S


def test_half_a_capture_is_not_timed_by_a_graph_either():
    def half(x, out):
        y = torch.nn.functional.gelu(x)
        with on_legacy_stream():
            torch.add(y, 0.0, out=out)

    record = measured(half)
    assert (record.status, record.method) == ("ok", "events")
    assert "its replay does not do what the calls do" in record.flag_reasons["not-captured"]


def test_a_graph_that_does_it_all_is_timed_without_the_time_of_its_launch():
    record = measured(written)
    assert (record.status, record.method, "not-captured" in record.flags) == ("ok", "graph", False)
    x = torch.ones(2**16, device=GPU)
    sampler = GraphSampler([lambda: x.add_(0)], 500)
    alone_s = sum(TIMELINE.operation_s([(x.data_ptr(), x.nbytes)]) for _ in range(500))
    # The least: a host that is kept from its core for longer than the longest spin is late.
    assert min(sampler.sample() for _ in range(20)) == pytest.approx(alone_s, abs=5 * EVENT_S)


def test_dropped_results_would_stay_in_the_cache_and_kept_ones_do_not(monkeypatch):
    monkeypatch.setattr(clock, "LAUNCH_S", 0.0)
    x = torch.ones(2**16, device=GPU)  # 256 KiB, of which the L2 holds 4
    kept = GraphSampler([lambda: x + 1] * 40, 400)
    assert len({result.data_ptr() for result in kept.results}) == 40
    same = torch.empty_like(x)  # as the allocator of a GPU gives it again; that of the host may have another block
    dropped = GraphSampler([lambda: torch.add(x, 1, out=same)], 400)
    assert min(kept.sample() for _ in range(200)) > 1.2 * min(dropped.sample() for _ in range(200))


def test_the_launch_of_a_graph_is_in_its_time_where_no_spin_holds_the_gpu_back():
    one = torch.ones(1, device=GPU)
    graph = GraphSampler([lambda: one.add_(0)], 10)
    assert graph.unheld_sample() > 1.2 * graph.sample()
