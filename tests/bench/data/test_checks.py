"""Checks of a user's function: what its call may change, and what must be as before."""

import itertools
from dataclasses import replace

import pytest
import torch

from bench.elementwise import OPS
from bench.harness.data.checks import STALE, UserChecks
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.op import Case
from bench.harness.timing.protocol import Samples
from tests.bench.commands import CPU

ADD = next(op for op in OPS if op.name == "add")
CASE = Case("add", "fp32", {"n": 4096})
TIMED = Samples((0.0,), 1, "host", "warm", 0.0, (0.0, 0.0), converged=True)


@pytest.fixture
def data():
    (data,) = make_sets(ADD, CASE, Filler("uniform", "fp32", CPU), CPU, 1)
    return data


def checks(takes_out=False, fill="uniform"):
    return UserChecks(ADD, CASE, CPU, fill, takes_out)


def clones(data):
    return [x.clone() for x in data.inputs]


def are_equal(data, before):
    return all(map(torch.equal, data.inputs, before))


def test_inputs_are_as_before_after_the_last_check(data):
    """Copies may share inputs, such as the weights of a layer, so the new values must go."""
    other = InputSet(data.inputs, torch.zeros_like(data.out))
    before = clones(data)
    seen = []

    def add():
        seen.append(clones(data))
        return data.inputs[0] + data.inputs[1]

    user = checks()
    assert user.check(add, data).is_right
    assert user.last(add, data, None, TIMED).is_right
    assert len(seen) == 7  # two are timed on old and new values
    assert all(map(torch.equal, seen[1], before))
    assert not any(map(torch.equal, seen[2], before))
    assert are_equal(other, before)


def test_inputs_are_as_before_after_a_wrong_result(data):
    before = clones(data)
    calls = itertools.count()
    user = checks()

    def wears_out():
        sign = 1 if next(calls) < 2 else -1
        return data.inputs[0] + sign * data.inputs[1]

    assert user.check(wears_out, data).is_right
    checked = user.last(wears_out, data, None, TIMED)
    assert not checked.is_right
    assert checked.reason.startswith("on new values in the same tensors: ")
    assert are_equal(data, before)


def test_the_last_check_finds_a_function_that_works_only_after_a_pause(data):
    (other,) = make_sets(ADD, CASE, Filler("uniform", "fp32", CPU, 1), CPU, 1)
    calls = itertools.count()
    kept = {}

    def add(data):
        if next(calls) != 3:  # the second of the sample follows at once
            kept["sum"] = data.inputs[0] + data.inputs[1]
        return kept["sum"]

    def call():
        return add(data)

    user = UserChecks(ADD, CASE, CPU, "uniform", False, calls=[lambda: add(other), call])
    assert user.check(call, data).is_right
    assert user.last(call, data, None, TIMED).reason.startswith("on new values in the same tensors")


def test_new_values_do_not_show_in_the_version_of_a_tensor(data):
    kept = {}

    def add():
        key = tuple(x._version for x in data.inputs)
        if key not in kept:
            kept[key] = data.inputs[0] + data.inputs[1]
        return kept[key]

    user = checks()
    assert user.check(add, data).is_right
    assert user.last(add, data, None, TIMED).reason == STALE


def test_the_last_check_uses_other_values_than_zeros():
    (data,) = make_sets(ADD, CASE, Filler("zeros", "fp32", CPU), CPU, 1)
    zeros = torch.zeros(4096)
    user = checks(fill="zeros")
    assert user.check(lambda: zeros, data).is_right
    assert user.last(lambda: zeros, data, None, TIMED).reason == STALE
    assert are_equal(data, [zeros, zeros])


def raises(x, other):
    if not x.equal(x.round()):
        raise ValueError("not integers")
    return x + other


def is_nan(x, other):
    return torch.where(x == x.round(), x, torch.nan) + other


@pytest.mark.parametrize("function", [raises, is_nan])
def test_a_function_that_takes_only_some_inputs_is_verified_on_those_of_its_op(function):
    def make_inputs(case, tensor):
        return tensor(case.shape["n"]).mul_(100).round_(), tensor(case.shape["n"])

    op = replace(ADD, make_inputs=make_inputs, reference=function)
    (data,) = make_sets(op, CASE, Filler("uniform", "fp32", CPU), CPU, 1)
    user = UserChecks(op, CASE, CPU, "uniform", False)
    user.check(lambda: function(*data.inputs), data)
    assert user.last(lambda: function(*data.inputs), data, None, TIMED).is_right
    kept = function(*data.inputs)
    assert user.last(lambda: kept, data, None, TIMED).reason == STALE
    user.op = replace(op, make_inputs=lambda case, tensor: data.inputs)
    checked = user.last(lambda: function(*data.inputs), data, None, TIMED)
    assert (checked.is_right, checked.unverified is not None) == (True, True)


def test_a_function_that_skips_work_on_known_contents_is_found_on_them(data):
    seen = set()

    def skips():
        key = float(data.inputs[0].sum())
        if key in seen:
            return torch.zeros(4096)
        seen.add(key)
        return data.inputs[0] + data.inputs[1]

    user = checks()
    assert user.check(skips, data).is_right
    checked = user.last(skips, data, None, TIMED)
    assert checked.reason.startswith("wrong result: an element is")


def test_what_is_kept_of_a_mask_shows_with_another_one():
    """Scaling leaves 0 and -inf as they are."""

    def masked(x, mask):
        return (x + mask).softmax(-1)

    def make_inputs(case, tensor):
        keeps = tensor(64, 64) > 0.5
        keeps[:, 0] = False
        return tensor(64, 64), torch.zeros(64, 64).masked_fill(keeps, -torch.inf)

    op = replace(ADD, make_inputs=make_inputs, reference=masked, magnitude=lambda y, *_: y)
    op = replace(op, output_shape=lambda case: (64, 64), take_rows=None)
    (data,) = make_sets(op, CASE, Filler("uniform", "fp32", CPU), CPU, 1)
    x, mask = data.inputs
    kept = mask.isinf()
    user = UserChecks(op, CASE, CPU, "uniform", False)
    assert user.check(lambda: masked(x, mask), data).is_right
    assert user.last(lambda: masked(x, mask), data, None, TIMED).is_right
    checked = user.last(lambda: x.masked_fill(kept, -torch.inf).softmax(-1), data, None, TIMED)
    assert checked.reason.startswith("on new values in the same tensors")


def test_a_function_that_raises_where_its_time_is_compared_is_not_verified(data):
    new = []

    def raises():
        new.append(data.inputs[0][5] != before)
        if sum(new) > 2:
            raise ValueError("new")
        return data.inputs[0] + data.inputs[1]

    before = data.inputs[0][5].clone()

    user = checks()
    assert user.check(raises, data).is_right
    assert user.last(raises, data, None, TIMED).unverified == "it raised ValueError"


def test_a_result_kept_from_an_earlier_copy_is_stale(data):
    user = checks()
    first = data.inputs[0] + data.inputs[1]
    assert user.check(lambda: first, data).is_right
    (other,) = make_sets(ADD, CASE, Filler("uniform", "fp32", CPU, 1), CPU, 1)
    checked = user.last(lambda: first, other, None, TIMED)
    assert (checked.is_right, checked.reason) == (False, STALE)


def test_changed_inputs_are_restored_and_reported(data):
    before = clones(data)

    def change():
        data.inputs[1].mul_(2)
        return data.inputs[0] + before[1]

    checked = checks().check(change, data)
    assert (checked.is_right, checked.reason) == (False, "changes its inputs")
    assert (checked.checked_elements, checked.elements) == (0, 4096)
    assert are_equal(data, before)


def test_settings_are_restored_and_reported(data):
    user = checks()

    def change():
        torch.set_default_dtype(torch.float64)
        return data.inputs[0] + data.inputs[1]

    checked = user.check(change, data)
    assert checked.reason == (
        "changed settings of the process: default dtype: torch.float32 -> torch.float64"
    )
    assert torch.get_default_dtype() is torch.float32


def test_replaced_memory_is_reported(data):
    def replaced():
        data.out.set_(torch.empty(4096))
        return data.inputs[0] + data.inputs[1]

    checked = checks().check(replaced, data)
    assert checked.reason == "replaced the memory of an input or the output"


def test_result_is_copied_when_the_call_returns(data):
    """A kernel on another stream or thread would finish its result later."""
    user = checks()
    result = data.inputs[0] + data.inputs[1]
    assert user.check(lambda: result, data).is_right
    result.zero_()
    assert torch.equal(user.result, data.inputs[0] + data.inputs[1])


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "or a parameter named out, got None"),
        (7, "or a parameter named out, got a int"),
        ((), "or a parameter named out, got a tuple"),
    ],
)
def test_a_result_that_is_no_tensor_is_named(data, returned, reason):
    checked = checks().check(lambda: returned, data)
    assert not checked.is_right
    assert checked.reason.endswith(reason)
    assert "expected a torch.Tensor of 4096 torch.float32" in checked.reason


def test_a_launcher_with_out_may_return_anything(data):
    def launch():
        torch.add(*data.inputs, out=data.out)
        return "done"

    assert checks(takes_out=True).check(launch, data).is_right
    assert not checks(takes_out=True).check(lambda: "done", data).is_right


def test_the_output_is_not_poisoned_for_new_values(data):
    """On new values the output has the earlier result, which an empty one would give away."""
    seen = []

    def add():
        seen.append(data.out.clone())
        return torch.add(*data.inputs, out=data.out)

    user = checks(takes_out=True)
    before = clones(data)
    assert user.check(add, data).is_right
    assert user.last(add, data, None, TIMED).is_right
    assert seen[0].isnan().all()
    assert seen[1].isnan().all()
    assert torch.equal(seen[2], before[0] + before[1])


def test_results_that_share_memory_or_views_are_reported(data):
    one = torch.zeros(1).expand(4096)
    assert checks().check(lambda: one, data).reason == (
        "wrong result: its elements share memory (stride 0)"
    )
    for shape in ((64, 1), (1, 64)):
        shared = torch.zeros(shape).expand(64, 64)
        assert checks().check(lambda shared=shared: shared, data).reason == (
            "wrong result: its elements share memory (stride 0)"
        )
    view = data.inputs[0].view(4096)
    assert checks().check(lambda: view, data).reason == (
        "returns a view of an input: nothing was written"
    )
    sparse = torch.zeros(4096).to_sparse()
    assert "expected a dense tensor on cpu, got torch.sparse_coo" in (
        checks().check(lambda: sparse, data).reason
    )


@pytest.mark.parametrize("kind", [lambda x: 3, lambda x: (x, 3), lambda x: ()])
def test_a_result_that_is_no_tensor_says_what_is_expected(data, kind):
    user = checks()
    assert user.check(lambda: data.inputs[0] + data.inputs[1], data).is_right
    found = user.last(lambda: kind(data.inputs[0] + 1), data, None, TIMED)
    assert "wrong result: expected a torch.Tensor of 4096 torch.float32" in found.reason
