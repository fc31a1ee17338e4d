"""AdamW in place: a step by hand, wrong ones that its check finds, and the inputs restored."""

from functools import partial

import pytest
import torch

from bench.adamw import OPS, step, updated
from bench.harness.data import stress
from bench.harness.data.verify import Checks, same_bytes
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from tests.bench import commands

(ADAMW,) = OPS


def problem_of(function, dtype="bf16", n=700):
    case = Case("adamw", dtype, {"n": n})
    data = commands.inputs_of(ADAMW, case)
    before = [x.clone() for x in data.inputs]
    checks = Checks(ADAMW, case, commands.CPU)
    call = partial(function, *data.inputs)
    found = checks.check(call, data).reason or stress.problem(checks, call, data)
    assert all(map(same_bytes, data.inputs, before))
    return found


@pytest.mark.parametrize("dtype", ADAMW.dtypes)
@pytest.mark.parametrize("n", [1, 700])
def test_torch_is_right_also_on_hard_inputs_which_are_restored(dtype, n):
    assert problem_of(step, dtype, n) is None


def test_a_step_agrees_with_torch():
    """Whose first steps with a constant gradient give the state that the tenth one starts from."""
    p = torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([p], lr=0.01, weight_decay=1.0)
    for _ in range(10):
        p.grad = torch.tensor([0.3, -0.7], dtype=torch.float64)
        before = [p.detach().clone(), p.grad]
        before += [x.clone() for x in list(optimizer.state[p].values())[1:]]
        optimizer.step()
    state = optimizer.state[p]
    for mine, truth in zip(
        updated(*before), (state["exp_avg"], state["exp_avg_sq"], p), strict=True
    ):
        assert torch.allclose(mine, truth, rtol=1e-12)


def without_eps(p, g, m, v):
    step(p, g, m, v.add_(0.0))
    p.add_(torch.where(v < 1e-12, p, torch.zeros_like(p)))


def rounded_state(p, g, m, v):
    step(p, g, m, v)
    v.copy_(v.bfloat16())


def only_parameter(p, g, m, v):
    step(p, g, m.clone(), v.clone())


def all_but_one(*inputs):
    step(*(x[:-1] for x in inputs))


def without_decay(p, g, m, v):
    p.div_(0.99)
    step(p, g, m, v)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (rounded_state, "wrong result: v is"),
        (only_parameter, "wrong result: m is"),
        (all_but_one, "at [699]"),
        (without_decay, "wrong result: p is"),
        (without_eps, "on hard inputs (little, large and no gradients): p is"),
    ],
)
def test_wrong_steps_are_found(function, said):
    assert said in problem_of(function)


def test_a_row_is_measured_in_place():
    case = Case("adamw", "bf16", {"n": 4096})
    record = measure_row(
        Row(ADAMW, case, "torch", family="adamw"), commands.CPU, None, commands.QUICK
    )
    assert (record.status, record.verified["after"]["reference"]) == ("ok", "rule")
    assert record.verified["after"]["checked_elements"] == 4096 * 10
    assert record.warm_median_s is None
