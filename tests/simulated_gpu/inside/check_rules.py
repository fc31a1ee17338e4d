"""What the simulated GPU must do as a GPU does, run on it by `test_simulation.py`."""

import pytest
import torch

from tests.simulated_gpu.clock import TIMELINE

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
