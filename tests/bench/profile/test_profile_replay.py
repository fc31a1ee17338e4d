"""Operations measured alone: which ones, on which arguments, and what is said where their time is another one."""

import pytest
import torch
from torch import nn

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import detect
from bench.harness.profile import tracing
from bench.harness.profile.counts import Breakdown, Operation
from bench.harness.profile.report import records_of
from bench.harness.profile.step import ProfiledStep, account
from bench.harness.profile.target import target_of
from bench.harness.timing.protocol import Limits


def operation(op, shapes, time_ns, bytes_read=4, alone_s=None):
    moved = bytes_read, 4 * bool(bytes_read)
    return Operation(f"aten.{op}", shapes, ("float32",), "", "forward", 8, 8, *moved, time_ns=time_ns, alone_s=alone_s)


def test_signatures_worth_most_of_the_time_are_replayed_once_and_what_moves_nothing_is_not():
    times = [("mm", "4x4", 300), ("t", "4x4", 500, 0), ("add", "4", 30), ("mm", "4x4", 400), ("sum", "4", 30)]
    breakdown = Breakdown([operation(*given) for given in times])
    assert tracing.worth_replaying(breakdown.operations) == [0, 2]  # 700 of 760 ns are less than 95 %, 730 are more


def test_times_alone_are_those_of_all_calls_and_what_differs_says_so():
    products = [operation("mm", "4x4", time_ns, alone_s=(420e-9, 200e-9)) for time_ns in (300, 400)]
    others = [operation("add", "4", 30, alone_s=(None, 20e-9)), operation("sum", "4", 30)]
    by_op = {record.op: record for record in records_of(Breakdown([*products, *others], samples_s=[1e-6]))}
    assert by_op["aten.mm"].extra["replay_cold_s"] == pytest.approx(840e-9)
    assert by_op["aten.mm"].extra["replay_warm_s"] == pytest.approx(400e-9)
    assert by_op["aten.mm"].flags == ()
    assert by_op["aten.add"].extra["replay_cold_s"] is None
    assert by_op["aten.add"].flags == ("replay-differs",)
    assert "replay_warm_s" not in by_op["aten.sum"].extra


@pytest.fixture
def _in_short(monkeypatch):
    monkeypatch.setattr(tracing, "REPLAY_LIMITS", Limits(3, 1.0, 0.0, 0.01, 0.0, 1e-6))


@pytest.mark.usefixtures("_in_short")
def test_each_call_is_measured_on_copies_of_its_own_arguments():
    model, steps = nn.Linear(4, 4), torch.zeros(3)
    step = ProfiledStep(target_of("model", lambda x: (steps.add_(1), model(x)), [torch.ones(2, 4)]), "forward")
    breakdown = account(step)
    for operation in breakdown.operations:
        operation.time_ns = 100 * (operation.op in ("aten.add_", "aten.addmm"))
    tracing.replay(step, breakdown, detect("cpu"))
    assert all(operation.alone_s[1] > 0 for operation in breakdown.operations if operation.time_ns)
    assert steps.tolist() == [3, 3, 3]  # two steps were counted, and one gave its arguments


def test_copies_keep_strides_and_what_they_share():
    x = torch.arange(6.0).view(2, 3)
    (one, (other, wide), number), kwargs = tracing.copied((x.t(), [x[1], x[0].expand(4, 3)], 3), {"out": x})
    assert number == 3
    assert (one.stride(), wide.stride()) == ((1, 3), (0, 1))
    one[0, 1] = 50
    assert kwargs["out"][1, 0] == other[0] == 50
    assert x[1, 0] == 3


@pytest.mark.parametrize("index", [0, 1])
def test_a_step_that_is_another_one_each_time_is_refused(index):
    turns = iter(range(9))

    def changing(x):
        return x.exp().exp() if next(turns) % 2 else x.sin() if index == 0 else x.exp()

    step = ProfiledStep(target_of("changing", changing, [torch.ones(3)]), "forward")
    breakdown = account(step)
    breakdown.operations[index].time_ns = 100
    with pytest.raises(UsageError, match="another one each time"):
        tracing.replay(step, breakdown, detect("cpu"))
