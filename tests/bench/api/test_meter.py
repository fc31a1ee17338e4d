"""`bench.Meter`: the MFU of a training loop, with a clock that the test moves."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bench
from bench.api import meter as meters
from bench.harness.calibrate.calibration import MeasuredCeilings
from roofline.machine import Ceiling, Machine

PEAK = 1e6
"""FLOP/s."""

LINEAR = 2 * 16 * 8 * 8
"""FLOPs of a linear layer of 8 x 8 on 16 rows; a step has three times as many if its input needs a
gradient.
"""


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s


class Model(nn.Module):
    """Two linear layers; the second one may be checkpointed."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        x = self.first(x)
        if self.is_checkpointed:
            return checkpoint(self.end, x, use_reentrant=False).sum()
        return self.end(x).sum()

    def end(self, x):
        return self.second(x).sigmoid()  # its gradient needs the result of the layer


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    peak = Ceiling("flops", "fp32", PEAK, "measured", "")
    monkeypatch.setattr(meters, "known_ceilings", lambda *_: Machine("cpu", "A CPU", (peak,)))
    monkeypatch.setattr(meters, "time", made)
    monkeypatch.delenv("RANK", raising=False)
    return made


def test_a_cpu_has_the_peak_that_calibrate_saved(monkeypatch):
    peak = Ceiling("flops", "fp32", PEAK, "measured", "")
    monkeypatch.setattr(MeasuredCeilings, "load", lambda self: [peak])
    meter = bench.Meter(Model(), torch.randn(16, 8), block=1)
    for _ in range(3):
        with meter.step():
            meter.target.modules(torch.randn(16, 8)).backward()
    assert meter.reading().mfu is not None


def train(meter, clock, spent_s, rows=16):
    optimizer = torch.optim.SGD(meter.target.modules.parameters(), lr=0.1)
    for each_s in spent_s:
        x = torch.ones(rows, 8)
        with meter.step(x):
            meter.target.function(x).backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.now_s += each_s


def test_blocks_of_steps_have_the_mfu_of_their_time(clock):
    meter = bench.Meter(Model(), torch.ones(16, 8), block=2)
    # One step is counted, one compiles: 100 s each are not timed.
    train(meter, clock, [100, 100, 1, 1, 2, 2, 1])
    flops = 5 * LINEAR  # the first layer has no gradient of its input
    found = meter.reading()
    assert found.blocks == 2
    assert found.mfu.low == pytest.approx(flops / 2 / PEAK)
    assert found.mfu.high == pytest.approx(flops / 1 / PEAK)
    assert (found.items_per_s.low, found.items_per_s.high) == (8, 16)
    assert "samples/s (8 to 16), 2 blocks of 2 steps, A CPU" in str(meter)


def test_recomputed_activations_count_in_hfu_alone(clock):
    meter = bench.Meter(Model(is_checkpointed=True), torch.ones(16, 8), block=1)
    train(meter, clock, [1, 1, 1])
    found = meter.reading()
    assert found.mfu.center == pytest.approx(5 * LINEAR / PEAK)
    assert found.hfu.center == pytest.approx(6 * LINEAR / PEAK)


def test_each_shape_is_counted_and_a_new_one_ends_the_block(clock):
    meter = bench.Meter(Model(), torch.ones(16, 8), block=2)
    train(meter, clock, [9, 9, 1])
    train(meter, clock, [9, 9, 1, 1], rows=32)
    train(meter, clock, [2, 2])
    found = meter.reading()
    assert (found.items_per_s.low, found.items_per_s.high) == (8, 32)


def test_a_step_that_fails_is_in_no_block(clock):
    meter = bench.Meter(Model(), torch.ones(16, 8), block=2)
    train(meter, clock, [9, 9, 1])
    with pytest.raises(RuntimeError), meter.step():
        raise RuntimeError
    train(meter, clock, [9, 1, 1])
    assert meter.reading().items_per_s.center == 16


def test_ids_are_tokens_and_a_rank_is_named(clock, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    ids = torch.ones(2, 5, dtype=torch.int64)
    meter = bench.Meter(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8)), ids, block=1)
    assert "no block" in str(meter)
    for _ in range(3):
        with meter.step():
            meter.target.function(ids).sum().backward()
            clock.now_s += 1
    assert meter.reading().items_per_s.center == 10
    assert str(meter).startswith("rank 3: MFU 0.384%")


def test_without_a_peak_there_is_no_mfu(clock, monkeypatch):
    monkeypatch.setattr(meters, "known_ceilings", lambda *_: Machine("cpu", "A CPU"))
    meter = bench.Meter(Model(), torch.ones(16, 8), block=1)
    train(meter, clock, [1, 1, 1])
    assert meter.reading().mfu is None
    assert "bench calibrate, run once in this directory" in str(meter)


def test_a_meter_without_an_input_is_rejected(clock):
    with pytest.raises(bench.UsageError, match="example input"):
        bench.Meter(Model())


def test_a_backward_pass_of_second_order_is_not_recomputed(clock):
    model = nn.Linear(8, 8)
    meter = bench.Meter(model, torch.ones(16, 8), block=1)
    for _ in range(3):
        x = torch.ones(16, 8, requires_grad=True)
        with meter.step(x):
            (force,) = torch.autograd.grad(model(x).sigmoid().sum(), x, create_graph=True)
            force.square().sum().backward()
            clock.now_s += 1
    found = meter.reading()
    # The layer; the gradient of its input; of that, the gradients of both operands; of the layer,
    # those of the weight and the input.
    assert found.mfu.center == found.hfu.center == pytest.approx(6 * LINEAR / PEAK)
