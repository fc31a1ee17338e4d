"""AdamW in place: the step of torch's optimizer, and wrong steps that its check finds."""

from functools import partial

import pytest
import torch

from bench.adamw import OPS, ROOT, STEP, step, stepped
from bench.harness.data import stress
from bench.harness.data.verify import Checks, same_bytes
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from tests.bench import commands

(ADAMW,) = OPS


def problem_of(function, dtype="bf16", n=2100):
    case = Case("adamw", dtype, {"n": n})
    data = commands.inputs_of(ADAMW, case)
    before = [x.clone() for x in data.inputs]
    checks, call = Checks(ADAMW, case, commands.CPU), partial(function, *data.inputs)
    found = checks.check(call, data).reason or stress.problem(checks, call, data)
    assert all(map(same_bytes, data.inputs, before))  # restored
    return found


@pytest.mark.parametrize("dtype", ADAMW.dtypes)
@pytest.mark.parametrize("n", [1, 2100])
def test_torch_is_right_also_on_hard_inputs(dtype, n):
    assert problem_of(step, dtype, n) is None


def test_the_tenth_step_is_that_of_torchs_optimizer():
    p = torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([p], lr=0.01, weight_decay=1.0)
    p.grad = torch.tensor([0.3, -0.7], dtype=torch.float64)
    for _ in range(10):
        state = optimizer.state[p]
        before = [x.clone() for x in (p.detach(), p.grad, *list(state.values())[1:])]
        optimizer.step()
    for mine, truth in zip(stepped(*before), (p, p.grad, *list(state.values())[1:]), strict=True):
        assert torch.allclose(mine, truth, rtol=1e-12)


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


def eps_in_the_root(p, g, m, v):
    kept = p.float() * 0.99
    step(p, g, m, v)
    p.copy_(kept.addcdiv_(m, (v / ROOT**2 + 1e-16).sqrt(), value=-STEP))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (rounded_state, "wrong result: v: an element"),
        (only_parameter, "wrong result: m: an element"),
        (all_but_one, "at [2099]"),
        (without_decay, "wrong result: p: an element"),
        (eps_in_the_root, "on hard inputs (little, large and no gradients): p: "),
    ],
)
def test_wrong_steps_are_found(function, said):
    assert said in problem_of(function)


def test_a_row_is_measured_in_place():
    row = Row(ADAMW, Case("adamw", "bf16", {"n": 4096}), "torch", family="adamw")
    record = measure_row(row, commands.CPU, None, commands.QUICK)
    assert record.status == "ok"
    assert record.verified["after"]["checked_elements"] == 4096 * 10
