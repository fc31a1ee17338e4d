"""Verification of what is no sum of products: norms, softmax, cross-entropy. Small faults must show in every dtype."""

import pytest
import torch

from bench.cross_entropy import OPS as CROSS_ENTROPY
from bench.harness.data import verify
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.data.verify import check, run_poisoned, widened
from bench.harness.op import Case
from bench.harness.providers.registry import numerics
from bench.matvec import OPS as MATVEC
from bench.norm import OPS as NORM
from bench.softmax import OPS as SOFTMAX
from tests.bench.commands import CPU

OPS = {op.name: op for op in (*NORM, *SOFTMAX, *CROSS_ENTROPY, *MATVEC)}
FLOATS = ("fp64", "fp32", "fp16", "bf16")
ROWWISE = ("rmsnorm", "layernorm", "residual-rmsnorm", "softmax", "cross-entropy")


def inputs_of(name, dtype, m, n, fill="normal", seed=0):
    op = OPS[name]
    case = Case(name, dtype, dict(zip(op.axes, (m, n), strict=True)))
    return case, make_sets(op, case, Filler(fill, dtype, CPU, seed), CPU, 1)[0]


def truth_of(case, data):
    """Return the result in fp64, not rounded yet."""
    return OPS[case.op].reference(*widened(data.inputs))


def verdict(case, data, result):
    return check(OPS[case.op], case, data, result.to(data.out.dtype))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*ROWWISE, "matvec-int8"])
@pytest.mark.parametrize("width", [1000, 32000])
def test_eager_torch_is_right_in_wide_rows(name, dtype, fill, width):
    case, data = inputs_of(name, dtype, 8, width, fill)
    with numerics(dtype):
        result = run_poisoned(lambda: OPS[name].eager(*data.inputs, out=data.out), data.out, CPU.synchronize)
    found = check(OPS[name], case, data, result)
    assert found.is_right, found.reason
    assert found.max_error_of_bound <= 0.6  # and not by luck


def chained_sum(x):
    """Return the fp32 sum of each row in one long chain of additions, the worst order that a kernel may choose."""
    return x.cumsum(-1)[:, -1:]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_one_chain_of_fp32_additions_is_no_fault_in_rows_of_a_million(seed):
    case, data = inputs_of("softmax", "fp32", 1, 2**20, "uniform", seed)
    (x,) = data.inputs
    exponentials = (x - x.amax()).exp()
    found = verdict(case, data, exponentials / chained_sum(exponentials))
    assert found.is_right, found.reason
    case, data = inputs_of("rmsnorm", "fp32", 1, 2**20, "uniform", seed)
    x, weight = data.inputs
    found = verdict(case, data, x * (chained_sum(x.square()) / 2**20 + 1e-6).rsqrt() * weight)
    assert found.is_right, found.reason


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_norm_of_the_sum_before_and_after_rounding_is_right(dtype):
    # A compiler that fuses the two may keep the sum in fp32; a kernel that stores it first may not.
    case, data = inputs_of("residual-rmsnorm", dtype, 64, 512)
    x, residual, weight = widened(data.inputs)
    total = x + residual
    for of in (total, total.to(data.out.dtype).double()):
        normed = OPS["rmsnorm"].reference(of, weight)
        assert verdict(case, data, torch.stack((total, normed))).is_right


def test_several_results_that_are_returned_one_by_one_are_stacked():
    case, data = inputs_of("residual-rmsnorm", "fp32", 5, 7)
    with numerics("fp32"):
        pair = OPS[case.op].eager(*data.inputs)
    result = run_poisoned(lambda: pair, data.out, CPU.synchronize)
    assert result.shape == (2, 5, 7)
    assert torch.equal(result[1], pair[1])
    assert check(OPS[case.op], case, data, result).is_right
    assert not check(OPS[case.op], case, data, result.flip(0)).is_right


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWWISE)
def test_one_element_that_is_off_by_two_percent_fails(name, dtype):
    case, data = inputs_of(name, dtype, 64, 1000)
    truth = truth_of(case, data)
    for index in (0, truth.numel() // 2, truth.numel() - 1):
        wrong = truth.clone()
        wrong.view(-1)[index] *= 1.02
        assert not verdict(case, data, wrong).is_right
    assert verdict(case, data, truth).is_right


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1024, 131072])
def test_a_zeroed_tail_of_a_softmax_fails_though_its_values_are_small(dtype, width):
    case, data = inputs_of("softmax", dtype, 4, width, "uniform")
    truth = truth_of(case, data)
    assert width < 131072 or truth.mean() < 1e-5
    for tail in (1, 64):
        wrong = truth.clone()
        wrong[:, -tail:] = 0
        assert not verdict(case, data, wrong).is_right


@pytest.mark.exhaustive
@pytest.mark.parametrize("factor", [1.005, 0.995])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax", "cross-entropy", "matvec-int8"])
def test_half_a_percent_on_the_whole_fails(name, dtype, factor):
    case, data = inputs_of(name, dtype, 2048, 256, "uniform")
    truth = truth_of(case, data)
    assert verdict(case, data, truth).is_right
    assert not verdict(case, data, truth * factor).is_right


@pytest.mark.exhaustive
@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_half_a_percent_in_one_of_two_results_fails(dtype, plane):
    case, data = inputs_of("residual-rmsnorm", dtype, 512, 256, "uniform")
    wrong = truth_of(case, data)
    assert verdict(case, data, wrong).is_right
    wrong[plane] *= 1.005
    assert not verdict(case, data, wrong).is_right


def test_rounding_of_equal_elements_is_no_wrong_scale():
    # 1/100003 lies between two subnormal numbers of fp16: every element is 0.13 % too large, as it should be.
    case, data = inputs_of("softmax", "fp16", 8, 100_003, "zeros")
    truth = truth_of(case, data)
    assert abs(truth.half().double().sum() / 8 - 1) > 1e-3
    assert verdict(case, data, truth).is_right
    assert not verdict(case, data, truth * 1.01).is_right


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("vocabulary", "forgotten"), [(32000, 8), (128256, 32), (262144, 64)])
def test_a_forgotten_tail_of_the_vocabulary_shows(dtype, vocabulary, forgotten):
    case, data = inputs_of("cross-entropy", dtype, 4, vocabulary, "uniform")
    logits, labels = widened(data.inputs)
    without = logits[:, :-forgotten].logsumexp(-1) - logits.gather(-1, labels[:, None]).squeeze(-1)
    assert not verdict(case, data, without).is_right


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_label_next_to_it_fails(dtype):
    case, data = inputs_of("cross-entropy", dtype, 16, 32000)
    logits, labels = data.inputs
    shifted = InputSet((logits, (labels + 1) % 32000), data.out)
    assert not verdict(case, data, truth_of(case, shifted)).is_right


def test_losses_rounded_to_the_dtype_of_the_logits_fail():
    case, data = inputs_of("cross-entropy", "bf16", 64, 32000)
    assert not verdict(case, data, truth_of(case, data).bfloat16()).is_right
    assert "torch.bfloat16" in check(OPS[case.op], case, data, truth_of(case, data).bfloat16()).reason


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_mean_of_a_row_is_not_taken_off_by_rmsnorm_and_is_by_layernorm(dtype):
    case, data = inputs_of("rmsnorm", dtype, 16, 1024)
    x, weight = widened(data.inputs)
    assert not verdict(case, data, OPS["rmsnorm"].reference(x - x.mean(-1, keepdim=True), weight)).is_right
    case, data = inputs_of("layernorm", dtype, 16, 1024)
    x, weight, bias = widened(data.inputs)
    assert not verdict(case, data, OPS["rmsnorm"].reference(x, weight) + bias).is_right


@pytest.mark.parametrize("chunk", [1, 5000, 10**6])
@pytest.mark.parametrize("name", ROWWISE)
def test_the_verdict_does_not_depend_on_how_rows_are_cut(monkeypatch, name, chunk):
    case, data = inputs_of(name, "bf16", 70, 130)
    truth = truth_of(case, data)
    whole = verdict(case, data, truth)
    monkeypatch.setattr(verify, "CHUNK_ELEMENTS", chunk)
    cut = verdict(case, data, truth)
    assert cut == whole
    assert cut.checked_elements == data.out.numel()
    wrong = truth.clone()
    wrong.view(-1)[-1] += 1
    assert not verdict(case, data, wrong).is_right
