"""Results of functions without an op: what rounding explains passes, and nothing else."""

import itertools
import math
import resource
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from bench.harness.data.agreement import (
    Expected,
    NotComparableError,
    UnverifiedError,
    changed_inputs,
    fresh,
    new_contents,
    on_copies,
    on_new_contents,
    returns_earlier_result,
    slower_on_new,
)
from bench.harness.timing.protocol import Samples
from tests.bench.fake_clock import set_clock


def timed(total_s, median_s=0.0):
    return Samples((total_s,), 1, "host", "warm", median_s, (0.0, 0.0), converged=True)


torch.manual_seed(0)
X = torch.randn(64, 512)
A = torch.randn(96, 512)
B = torch.randn(512, 80)
NAN = math.nan


def found(baseline, candidate, *args, tolerance=1.0):
    expected = Expected.of(partial(baseline, *args), baseline(*args))
    return expected.check(candidate(*args), tolerance)


def softmax(x):
    return torch.softmax(x, -1)


def largest_only(x):
    """Return a softmax with seven of eight values zeroed."""
    whole = softmax(x)
    kept = whole.float().topk(x.shape[-1] // 8, -1).indices
    return torch.zeros_like(whole).scatter(-1, kept, whole.gather(-1, kept))


def attention(x):
    return softmax(x @ x.mT / 8) @ x


LAYERS = torch.nn.Sequential(
    torch.nn.Linear(512, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
).bfloat16()


def layers(x):
    first, _, second = LAYERS
    return second(functional.gelu(x @ first.weight.T + first.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("baseline", "candidate", "args"),
    [
        (softmax, lambda x: torch.softmax(x.float(), -1).to(x.dtype), (X,)),
        (torch.mm, lambda a, b: (a[:, :256] @ b[:256]) + (a[:, 256:] @ b[256:]), (A, B)),
        (
            attention,
            lambda x: functional.scaled_dot_product_attention(x, x, x, scale=1 / 8),
            (X[None],),
        ),
        (lambda x: x.sum(), lambda x: x.flatten().cumsum(0)[-1], (X,)),
        (lambda x: [x, {"y": x + 1}], lambda x: [x, {"y": 1 + x}], (X,)),
        (lambda x: torch.relu(x - 9), lambda x: (x - 9).clamp(min=0), (X,)),
    ],
)
def test_functions_that_round_otherwise_agree(dtype, baseline, candidate, args):
    checked = found(baseline, candidate, *(x.to(dtype) for x in args))
    assert checked.is_right, checked.reason
    assert checked.reference == "fp64"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("baseline", "candidate", "args"),
    [
        (softmax, largest_only, (X,)),
        (torch.mm, lambda a, b: a[:, :-16] @ b[:-16], (A, B)),
        (lambda x: x.var(-1), lambda x: x.square().mean(-1) - x.mean(-1).square(), (X + 100,)),
        (lambda x: x, lambda x: torch.where(x == x.max(), NAN, x), (X,)),
        (lambda x: x, lambda x: x[:, :-1], (X,)),
        (lambda x: x, lambda x: [x, x], (X,)),
        (lambda x: x, lambda x: None, (X,)),
        (lambda x: x, lambda x: (row for row in x), (X,)),
        (lambda x: x.argmax(-1), lambda x: x.argmin(-1), (X,)),
        (lambda x: x.sign().abs(), lambda x: x != 0, (X,)),
    ],
)
def test_functions_that_compute_something_else_differ(dtype, baseline, candidate, args):
    checked = found(baseline, candidate, *(x.to(dtype) for x in args))
    assert not checked.is_right
    assert "\n" not in checked.reason


def test_infinite_and_missing_values_must_be_the_same():
    values = torch.tensor([[1.0, NAN, math.inf, -math.inf]])
    same = lambda x: x + values  # noqa: E731
    zeros = torch.zeros(1, 4)
    assert found(same, same, zeros).is_right
    assert not found(same, lambda x: (x + values).nan_to_num(0.0), zeros).is_right
    assert not found(same, lambda x: -(x + values), zeros).is_right


def test_a_module_and_what_takes_no_fp64_have_a_reference():
    x = X.bfloat16()
    module = found(LAYERS, layers, x)
    assert (module.is_right, module.reference) == (True, "fp64")
    closed = found(layers, lambda x: LAYERS(x), x)
    assert (closed.is_right, closed.reference) == (True, "baseline")
    only_fp32 = found(
        lambda x: x.float() if x.dtype != torch.float64 else 1 / 0, torch.Tensor.float, x
    )
    assert (only_fp32.is_right, only_fp32.reference) == (True, "fp32")


def softmax_of_short(x):
    if x.dtype is not torch.bfloat16 and len(x) > 64:
        raise torch.OutOfMemoryError
    return softmax(x)


def test_where_memory_is_short_the_error_is_that_of_the_first_rows():
    x = torch.randn(100, 512).bfloat16()
    checked = found(softmax_of_short, softmax, x)
    assert (checked.is_right, checked.reference) == (True, "baseline, 64 rows in fp64")
    assert checked.checked_elements == x.numel()
    assert found(softmax_of_short, lambda x: torch.softmax(x.float(), -1).to(x.dtype), x).is_right
    assert not found(softmax_of_short, largest_only, x).is_right
    down = found(lambda x: softmax_of_short(x) + x.sum(0), lambda x: softmax(x) + x.sum(0), x)
    assert (down.is_right, down.reference) == (True, "baseline")  # a row depends on others


W = torch.randn(4096, 64)
LONG = torch.randn(64, 4096)


def in_chunks(x):
    return sum(map(torch.mm, x.split(512, 1), W.to(x.dtype).split(512)))


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        (lambda x: x @ W, in_chunks),
        (lambda x: (x @ W)[:, :1], lambda x: (x * W[:, 0]).sum(-1, keepdim=True)),
    ],
)
def test_sums_in_another_order_agree_without_a_higher_precision(baseline, candidate):
    def wrong(x):
        return candidate(torch.cat([x[:, :-8], x[:, :8]], 1))

    checked = found(baseline, candidate, LONG)
    assert (checked.is_right, checked.reference) == (True, "baseline")
    assert not found(baseline, wrong, LONG).is_right
    exact = found(lambda x: x @ W.double(), in_chunks, LONG.double())
    assert (exact.is_right, exact.reference) == (True, "baseline")


def test_small_elements_beside_large_ones_count():
    x = (6 * X).bfloat16()
    assert "elements of its result are off" in found(softmax, largest_only, x).reason
    assert found(softmax, lambda x: torch.softmax(x.float(), -1).to(x.dtype), x).is_right


def test_a_tolerance_multiplies_the_allowed_difference():
    off = lambda x: x * (1 + 1e-3)  # noqa: E731
    error = found(torch.clone, off, X).max_error_of_bound
    assert error > 100
    assert found(torch.clone, off, X, tolerance=1.01 * error).is_right
    assert not found(torch.clone, off, X, tolerance=0.99 * error).is_right


def test_a_wrong_scale_that_rounding_of_elements_hides_is_found():
    x = X.bfloat16()
    assert "off by 0.9" in found(torch.clone, lambda x: x * 1.01, x).reason
    assert found(torch.clone, lambda x: x * 1.001, x).is_right


@pytest.mark.parametrize("other", [torch.Tensor.double, torch.Tensor.half, lambda x: 1.0])
def test_a_result_of_another_dtype_is_wrong(other):
    x = torch.ones(())
    assert "torch.float32" in found(lambda x: x * 1, other, x).reason


def test_arrays_and_numbers_are_compared():
    assert not found(lambda x: 3, lambda x: 4, X).is_right
    assert found(lambda x: torch.ones(0), lambda x: torch.ones(0), X).is_right
    for function in (
        lambda x: x.numpy()[:, ::-1],
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: torch.complex(x, x).conj().imag,
    ):
        assert on_new(lambda x, f=function: f(x), function, X.clone()).is_right


@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        "text",
        (x for x in ()),
        torch.full((3,), NAN),
        torch.eye(3).to_sparse(),
        np.ones(3, np.longdouble),
    ],
)
def test_a_baseline_without_a_result_is_not_comparable(result):
    with pytest.raises(NotComparableError):
        Expected.of(partial(lambda: result), result)


def cube(x):
    return x @ x @ x


def cached_by(key):
    results = {}

    def cached(x):
        if key(x) not in results:
            results[key(x)] = cube(x)
        return results[key(x)]

    return cached


def on_new(candidate, baseline, *args, pace=None):
    expected = Expected.of(partial(baseline, *args), baseline(*args))
    candidate(*args)  # as the timed calls
    return on_new_contents(partial(candidate, *args), baseline, expected, pace=pace)


LABELS = torch.arange(64)
LENGTHS = 1 + torch.randperm(64)


@pytest.mark.parametrize(
    "key",
    [
        id,
        lambda x: x.shape,
        lambda x: (x.data_ptr(), x._version),
        lambda x: (float(x[0, 0]), float(x[-1, -1])),
    ],
)
def test_results_of_earlier_calls_are_found_on_new_contents(key):
    checked = on_new(cached_by(key), cube, X[:, :64].contiguous())
    assert not checked.is_right
    assert "on new values in the same tensors: " in checked.reason


def test_results_that_are_kept_for_one_call_are_found_on_new_contents():
    kept = [0, None]

    def of_last_call(x):
        if kept[0] != x.data_ptr():
            kept[:] = x.data_ptr(), cube(x)
        return kept[1]

    checked = on_new(of_last_call, cube, X[:, :64].contiguous())
    assert checked.reason.startswith("on new values in the same tensors: ")


@pytest.mark.parametrize(
    ("candidate", "baseline", "other"),
    [
        (lambda x, bias: x * 2, lambda x, bias: x * 2 + bias, torch.zeros(512)),
        (lambda x, scale: x * 2, lambda x, scale: x * scale, torch.tensor(2.0)),
        (lambda x, scale: x + 1, lambda x, scale: x + scale, torch.ones(64, 1)),
        (
            lambda x, bias: functional.layer_norm(x, (512,)),
            lambda x, bias: functional.layer_norm(x + bias, (512,)),
            torch.zeros(64, 512),
        ),
        (
            lambda x, rows: x + rows[:1].square(),  # all of which are equal at first
            lambda x, rows: x + rows.square(),
            X[:1].repeat(64, 1),
        ),
    ],
    ids=["zeros", "number", "ones", "constant", "rows"],
)
def test_inputs_that_are_not_read_are_found(candidate, baseline, other):
    checked = on_new(candidate, baseline, X.clone(), other.clone())
    assert checked.reason.startswith("on new values in the same tensors: ")


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x @ x.T).square().mean(), functional.normalize(X)),  # rows in any order
        (functional.normalize, X.relu()),  # sparse, of any scale
        (lambda x: x.softmax(-1).mean(0), X.softmax(-1)),
    ],
)
def test_a_result_that_new_contents_do_not_change_is_not_verified(function, x):
    x = x.clone()
    kept = function(x)
    with pytest.raises(UnverifiedError, match="did not change"):
        on_new(lambda x: kept.clone(), lambda x: function(x) * 1, x)


def test_results_by_name_are_compared_by_name():
    expected = Expected.itself({"first": X, "second": 2 * X})
    assert expected.check({"second": 2 * X, "first": X.clone()}, 1.0).is_right
    assert not expected.check({"second": X, "first": 2 * X}, 1.0).is_right


@pytest.mark.parametrize("seed", range(8))
def test_a_single_sum_may_have_the_rounding_of_its_terms(seed):
    """By chance the error of the baseline may be far below it."""
    x, y = torch.randn(2, 2**16, generator=torch.Generator().manual_seed(seed))
    expected = Expected.of(partial(lambda x, y: (x * y).sum(), x, y), (x * y).sum())
    size = float((x * y).square().sum().sqrt())
    truth = float((x.double() * y.double()).sum())
    rounded = torch.tensor(truth + 0.25 * 2.0**-24 * 2**8 * abs(truth))
    assert expected.check(rounded, 1.0).is_right
    assert not expected.check(torch.tensor(truth + 0.05 * size), 1.0).is_right


def softmax_of_exponentials(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


def variance_of_squares(x):
    return x.square().mean(-1) - x.mean(-1).square()


def variance(x):
    return x.var(-1, correction=0)


def softmax_of_leading(x):
    exponentials = (x - x[:, :400].amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("unstable", "stable"),
    [
        (softmax_of_exponentials, softmax),
        (variance_of_squares, variance),
        (lambda x: x.sigmoid().log(), functional.logsigmoid),
        (lambda x: softmax(x).log(), lambda x: functional.log_softmax(x, -1)),
        (softmax_of_leading, softmax),
        (lambda x: variance_of_squares(x.T), lambda x: variance(x.T)),
        (lambda x: softmax_of_exponentials(x)[LABELS], lambda x: softmax(x)[LABELS]),
        (lambda x: (x - x.max()).exp() / (x - x.max()).exp().sum(-1, keepdim=True), softmax),
    ],
)
def test_a_formula_that_overflows_or_cancels_is_found(unstable, stable):
    x = X.clone()
    assert on_new(unstable, stable, x).reason.startswith("on inputs shifted by 1000: its result")
    assert on_new(lambda x: stable(x) * 1, stable, x).is_right
    assert on_new(stable, unstable, x).is_right  # as far as such a baseline is known
    assert torch.equal(x, X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_unstable_formulas_are_found_in_other_dtypes(dtype):
    x = X.to(dtype)
    largest = on_new(lambda x: (x - x.max()).exp() / (x - x.max()).exp().sum(-1, True), softmax, x)
    assert largest.reason.startswith("on inputs shifted by ")
    assert on_new(lambda x: softmax(x) * 1, softmax, x).is_right


SQUARE = X @ X.T
ADDED = torch.zeros(64, 512).masked_fill(X > 0.8, -1e9)


def fused_cross_entropy(x, y):
    return x.logsumexp(-1) - x.gather(-1, y[:, None]).squeeze()


def cross_entropy(x, y):
    return functional.cross_entropy(x, y, reduction="none")


def own_attention(queries, keys, values):
    return softmax(queries @ keys.T / 8) @ values


PROPERTIES = {
    "logits": (fused_cross_entropy, cross_entropy, (X, LABELS)),
    "logits in 16 bits": (fused_cross_entropy, cross_entropy, (X.bfloat16(), LABELS)),
    "small numbers": (
        own_attention,
        functional.scaled_dot_product_attention,
        X[:, :192].reshape(3, 64, 64).half(),
    ),
    "probabilities": (
        lambda x, y: x.logsumexp(-1) - (x * y).sum(-1),
        lambda x, y: -(y * x.log_softmax(-1)).sum(-1),
        (X, X.flip(0).softmax(-1)),
    ),
    "probabilities of columns": (
        lambda x, y: (x * y).sum(0),
        lambda x, y: (x * y).sum(0) / y.sum(0),
        (X, X.flip(0).softmax(0)),
    ),
    "unit vectors": (
        lambda x: x @ x.T,
        lambda x: functional.cosine_similarity(x[:, None], x, -1),
        (functional.normalize(X),),
    ),
    "halves alike": (
        lambda x, y: x * y[:, :256].repeat(1, 2),
        torch.mul,
        (X, X[:, :256].repeat(1, 2)),
    ),
    "padded": (
        lambda x: torch.stack([x[at, :length].sum() for at, length in enumerate(LENGTHS)]),
        lambda x: x.sum(-1),
        (X.masked_fill(torch.arange(512) >= LENGTHS[:, None], 0.0),),
    ),
    "symmetric": (torch.linalg.eigvalsh, partial(torch.linalg.eigvalsh, UPLO="U"), (SQUARE,)),
    "positive": (torch.linalg.cholesky, lambda x: torch.linalg.cholesky(x.mT), (SQUARE + 9,)),
    "triangular": (
        lambda x, y: torch.linalg.solve_triangular(x, y, upper=False),
        torch.linalg.solve,
        (SQUARE.tril() + 600 * torch.eye(64), X),
    ),
    "sorted": (
        lambda bounds, x: torch.searchsorted(bounds, x),
        lambda bounds, x: (x[..., None] > bounds).sum(-1),
        (X[0].exp().sort().values, X[1:3].exp()),
    ),
    "mask": (
        lambda x, mask: softmax(x + mask),
        lambda x, mask: softmax(x.masked_fill(mask < 0, -math.inf)),
        (X.bfloat16(), ADDED.bfloat16()),
    ),
    "range": (
        lambda x: torch.bincount((x.clamp(-1, 0.99) * 8 + 8).long(), minlength=16),
        lambda x: torch.histc(x, 16, -1, 1).long(),
        (torch.rand(512) * 1.9 - 0.95,),
    ),
}


@pytest.mark.parametrize(("candidate", "baseline", "args"), PROPERTIES.values(), ids=PROPERTIES)
def test_functions_that_rely_on_properties_of_their_inputs_pass(candidate, baseline, args):
    assert on_new(candidate, baseline, *fresh(args)).is_right


@pytest.mark.parametrize(("period", "first"), [(1000, 1), *((8, first) for first in range(8))])
def test_a_function_that_works_in_some_calls_is_found(period, first):
    calls = itertools.count(-first)
    kept = [cube(X[:, :64])]

    def function(x):
        if next(calls) % period == 0:
            kept[0] = cube(x)
        return kept[0]

    pace = int, timed(20.0)
    assert not on_new(function, cube, X[:, :64].contiguous(), pace=pace).is_right


def test_honest_functions_pass_on_new_contents_which_are_restored():
    x = X[:, :64].contiguous()
    before = x.clone()
    version = x._version
    assert on_new(lambda x: x @ (x @ x), cube, x).is_right
    assert torch.equal(x, before)
    assert x._version == version
    assert on_new(lambda x: x.mul_(1.0), torch.clone, x).is_right
    index = torch.arange(64).flip(0)
    assert on_new(lambda x, i: x[i], lambda x, i: x.index_select(0, i), x, index).is_right


@pytest.mark.parametrize("x", [torch.arange(9), torch.ones(9), np.arange(9.0)])
def test_a_result_that_is_kept_is_not_computed_again(x):
    kept = torch.tensor([1, 2]) if isinstance(x, torch.Tensor) else np.ones(2)
    assert returns_earlier_result(partial(lambda x: kept, x))
    assert not returns_earlier_result(partial(lambda x: x + 1, x))


def test_new_contents_keep_the_ends_and_the_version_and_are_new(monkeypatch):
    monkeypatch.setattr("bench.harness.data.agreement.NUMBERS", itertools.count())
    x = X.clone()
    version = x._version
    for rolled, scale in ((1, 0.25), (2, 0.559017)):
        with new_contents([x]) as write:
            write(1)
            assert x._version == version
            assert (x[0, 0], x[-1, -1]) == (X[0, 0], X[-1, -1])
            assert torch.allclose(x[1 + rolled : -1], X[1 : -1 - rolled] * scale)
        assert torch.equal(x, X)


@pytest.mark.parametrize(
    ("fn", "args", "reason"),
    [
        (lambda x: [x] if x.equal(x.round()) else 1 / 0, (X.mul(9).round(),), "raised"),
        (lambda x: x.argmax(-1) * 0, (X,), "did not change"),
        (lambda x: x.zero_() * 0, (torch.zeros(9),), "did not change"),
        (lambda x: x + 1, (torch.arange(9),), "did not change"),
        (lambda: 3, (), "no tensor"),
        (torch.rand_like, (X,), "random"),
        (lambda x: torch.where(x.sum() == X.sum(), x, NAN), (X.clone(),), "NaN"),
    ],
)
def test_what_cannot_be_verified_on_new_contents_says_why(fn, args, reason):
    with pytest.raises(UnverifiedError, match=reason):
        on_new(fn, fn, *args)


def test_a_random_result_of_a_function_without_a_baseline_says_so():
    call = partial(torch.rand_like, X.clone())
    with pytest.raises(UnverifiedError, match="the result is random"):
        on_new_contents(call, call.func, Expected.itself(call()))


def test_masks_and_integers_stay_and_new_contents_come_from_their_maker():
    mask = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    index = torch.arange(9)
    hidden = torch.tensor([-math.inf, 0.0, 2.0, 3.0])
    with new_contents([X.clone(), mask, index, hidden]) as write:
        write(1)
        assert mask.tolist() == [[0.0, 1.0], [1.0, 1.0]]
        assert torch.equal(index, torch.arange(9))
        assert hidden.isinf().tolist() == [True, False, False, False]
    made = [(torch.full((9,), 7), "text"), (index, "text")]
    seen = []
    x = index.clone()
    with new_contents([(x, "text"), {}], lambda: made.pop(0)) as write:
        for number in (1, 2):
            write(number)
            seen.append(x.tolist())
    assert seen == [[7] * 9, list(range(9))]
    with new_contents([X], lambda: X) as write:  # the maker has a fixed seed
        before = X.clone()
        write(1)
        assert not torch.equal(X, before)
    assert torch.equal(X, before)


def sums_and_clears(x):
    total = x.sum()
    x.zero_()
    return total


@pytest.mark.parametrize(
    ("fn", "is_changed"),
    [
        (lambda x, out: x.relu_(), True),
        (lambda x, out: x.copy_(x.sort().values).sum(), True),
        (lambda x, out: sums_and_clears(x), True),
        (lambda x, out: out.add_(x), True),
        (lambda x, out: torch.add(x, 1, out=out), False),
        (lambda x, out: [out.copy_(x), None][1], False),
        (lambda x, out: x * out, False),
        (lambda x, out: x.view(-1)[3:], False),
    ],
)
def test_a_changed_input_is_told_from_an_output(fn, is_changed):
    before = partial(fn, X.clone(), torch.ones(64, 512))
    after = on_copies(before)
    assert changed_inputs(before, after, after()) is is_changed


@pytest.mark.parametrize(
    ("fn", "args", "is_changed"),
    [
        (lambda x: np.tanh(x, out=x), (np.ones(9),), True),
        (lambda x, out: np.tanh(x, out=out), (np.ones(9), np.zeros(9)), False),
        (lambda x: x[0].add_(1), (torch.ones(1).expand(3),), True),
        (lambda x: x.append(X), ([X],), True),
        (lambda x: x.update(y=X), ({"x": X},), True),
    ],
)
def test_changes_of_arrays_and_collections_are_found(fn, args, is_changed):
    before = partial(fn, *args)
    after = on_copies(before)
    assert changed_inputs(before, after, after()) is is_changed


@pytest.mark.parametrize(
    ("new_s", "calls", "forgets", "said"),
    [
        (1e-3, 7, False, None),
        (2.9e-3, 7, False, None),
        (4e-3, 107, False, "slower on fresh contents: "),
        (4e-3, 107, True, "slower on fresh contents: "),
    ],
)
def test_work_that_is_skipped_on_known_contents_shows(monkeypatch, new_s, calls, forgets, said):
    now = [0.0]
    set_clock(monkeypatch, lambda: now[0])
    x = X.clone()
    seen = {x.sum().item(): 0}
    known = set(seen)

    def remembers():
        key = x.sum().item()
        now[0] += 1e-3 if key in known else new_s
        seen[key] = seen.get(key, 0) + 1
        if forgets:  # all but the last call
            known.clear()
        known.add(key)

    problem = slower_on_new(remembers, [x], lambda: None, timed(10.0))
    assert problem is None if said is None else problem.startswith(said)
    assert seen[X.sum().item()] == 2 * calls
    assert len(seen) == 1 + calls  # each call has contents of its own


def test_a_few_delayed_calls_are_not_slower(monkeypatch):
    now = [0.0]
    set_clock(monkeypatch, lambda: now[0])
    delays_s = iter([0.0, 0.02, 0.0, 0.02])

    def delayed():
        now[0] += 1e-3 + next(delays_s, 0.0)

    assert slower_on_new(delayed, [X.clone()], lambda: None, timed(0.01)) is None


def test_new_contents_that_stay_do_not_cost_a_call_its_pages():
    x = torch.randn(2**18)
    kept = []
    faults = []

    def make():
        kept.append(torch.randn(2**18))
        return [kept[-1]]

    def call():
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        torch.neg(x)
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

    slower_on_new(call, [x], lambda: None, timed(60.0), make=make)
    assert len(faults) >= 21
    on_new = faults[2::3]
    assert min(on_new) < 64  # of 256 pages; the fastest of these calls counts


def test_long_calls_are_compared_once_and_short_differences_do_not_count(monkeypatch):
    now = [0.0]
    set_clock(monkeypatch, lambda: now[0])
    x = X.clone()
    taken = []

    def takes(old_s, new_s):
        taken.append(old_s if torch.equal(x, X) else new_s)
        now[0] += taken[-1]

    assert slower_on_new(lambda: takes(1.0, 1.1), [x], lambda: None, timed(20.0)) is None
    assert taken == [1.0, 1.0, 1.1]
    assert slower_on_new(lambda: takes(1e-6, 3.8e-6), [x], lambda: None, timed(20.0)) is None
    assert slower_on_new(lambda: takes(1e-6, 3.9e-6), [x], lambda: None, timed(20.0))
    sort = lambda: takes(1.0, 9.0)  # noqa: E731
    assert slower_on_new(sort, [x], lambda: None, timed(20.0, median_s=2.9))
    assert slower_on_new(sort, [x], lambda: None, timed(20.0, median_s=3.1)) is None
    with pytest.raises(UnverifiedError, match="it raised ZeroDivisionError"):
        slower_on_new(lambda: 1 / 0, [x], lambda: None, timed(20.0))


class OnlyFp32(torch.nn.Linear):
    def forward(self, x):
        return torch.mm(x.to(torch.float32), self.weight.T)


def test_a_module_is_no_reference_in_its_own_precision():
    call = partial(OnlyFp32(8, 4), torch.randn(4, 8))
    assert Expected.of(call, call()).precision == "baseline"


def test_a_result_of_0_but_for_rounding_leaves_the_others_their_reference():
    torch.manual_seed(0)

    def step(x):  # as a gradient that is 0, such as that of the bias of the keys of attention
        return [x, (x - x.mean(0)).sum(0)]

    x = torch.randn(500, 8)
    expected = Expected.of(partial(step, x), step(x))
    assert expected.precision == "fp64"
    assert expected.check([x, step(x)[1].flip(0)], tolerance=1.0).reason is None
    assert expected.check([x, step(x)[1] + 0.01], tolerance=1.0).reason is not None


@pytest.mark.filterwarnings("error")
def test_complex_results_have_a_reference():
    call = partial(torch.mul, torch.randn(64, dtype=torch.complex64), 1j)
    assert Expected.of(call, call()).precision == "fp64"
