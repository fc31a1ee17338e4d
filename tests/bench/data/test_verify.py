"""Verification: right results pass in every dtype, planted faults do not."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bench.cross_entropy import OPS as CROSS_ENTROPY
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data import verify
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.data.verify import check, run_poisoned, widened
from bench.harness.measure.rows import Row, Settings, plan
from bench.harness.op import Case
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC
from bench.norm import OPS as NORM
from bench.reduction import OPS as REDUCTION
from bench.softmax import OPS as SOFTMAX
from results.store.runfile import encode_line
from tests.bench.commands import CPU

OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL, *MATVEC, *REDUCTION, *NORM, *SOFTMAX, *CROSS_ENTROPY)}
FLOATS = ("fp64", "fp32", "fp16", "bf16")


def case_of(name, dtype, *extents):
    options = {"layout": "nt" if dtype.startswith("fp8") else "nn", "batch": 1} if name == "matmul" else {}
    return Case(name, dtype, dict(zip(OPS[name].axes, extents, strict=True)), options)


def inputs_of(case, fill="uniform", seed=0):
    return make_sets(OPS[case.op], case, Filler(fill, case.dtype, CPU, seed), CPU, 1)[0]


def truth_of(case, data):
    """Return the result in fp64, rounded once to the dtype of the output: the best that any provider can do."""
    return OPS[case.op].reference(*widened(data.inputs)).to(data.out.dtype)


def verdict(case, fault=None, fill="uniform", seed=0):
    """Return the verdict on the best result, after `fault` has changed it in place or returned another one."""
    data = inputs_of(case, fill, seed)
    result = truth_of(case, data)
    if fault is not None:
        changed = fault(result)
        result = result if changed is None else changed
    return check(OPS[case.op], case, data, result)


CASES = [
    *(case_of("matmul", dtype, 96, 80, 64) for dtype in (*FLOATS, "tf32", "int8", "fp8e4m3", "fp8e5m2")),
    *(case_of("matvec", dtype, 1500, 64) for dtype in FLOATS),
    *(case_of("relu", dtype, 5000) for dtype in FLOATS),
    *(case_of("swiglu", dtype, 5000) for dtype in FLOATS),
    *(case_of("bias-gelu", dtype, 60, 90) for dtype in FLOATS),
    *(case_of(name, dtype, 60, 90) for name in ("layernorm", "residual-rmsnorm", "softmax") for dtype in FLOATS),
    *(case_of(name, dtype, 1500, 64) for name in ("cross-entropy", "matvec-int8") for dtype in FLOATS),
]
IDS = [f"{case.op}-{case.dtype}" for case in CASES]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_best_possible_result_passes(case, fill):
    found = verdict(case, fill=fill)
    assert found.is_right, found.reason
    assert found.reason is None
    # Correctly rounded is a quarter of the bound of 4 u, whatever the dtype; only a bound of 0 needs equality.
    assert found.max_error_of_bound <= 0.26
    assert found.checked_elements == found.elements > 0


def wrong_element(result):
    flat = result.view(-1)
    flat[flat.numel() // 3] = flat[flat.numel() // 3].double() * 1.5 + 2


def nan_element(result):
    result.view(-1)[-1] = math.nan


def infinite_element(result):
    result.view(-1)[0] = math.inf


def unwritten_tail(result):
    result.view(-1)[-7:] = math.nan if result.dtype.is_floating_point else -(2**30) - 7


def zeros(result):
    result.zero_()


def transposed_neighbors(result):
    flat = result.view(-1)
    flat[:16] = flat[:16].flip(0)


def one_too_many(result):
    result.add_(1)


def negative(result):
    return -result


FAULTS = [wrong_element, unwritten_tail, zeros, transposed_neighbors, negative, nan_element, infinite_element]
WHOLE_NUMBERS = {("int8", nan_element), ("int8", infinite_element)}
PLANTED = [(case, fault, "uniform") for case in CASES for fault in FAULTS if (case.dtype, fault) not in WHOLE_NUMBERS]
# With inputs of zeros every bound is 0, except where a function of 0 is computed to an absolute error.
PLANTED += [(case, fault, "zeros") for case in CASES for fault in (wrong_element, unwritten_tail, one_too_many)]


@pytest.mark.sampled(48)
@pytest.mark.parametrize(("case", "fault", "fill"), PLANTED)
def test_a_planted_fault_fails(case, fault, fill):
    found = verdict(case, fault, fill)
    assert not found.is_right
    assert "wrong result" in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    ("dtype", "factor"), [("bf16", 1.005), ("bf16", 0.995), ("fp16", 1.0015), ("fp8e4m3", 1.005), ("tf32", 1.002)]
)
@pytest.mark.parametrize("extents", [(256, 256, 256), (1024, 64, 64)])
def test_a_wrong_scale_below_the_bound_of_one_element_fails(dtype, factor, extents):
    case = case_of("matmul", dtype, *extents)

    def scaled(result):
        return (result.double() * factor).to(result.dtype)

    found = verdict(case, scaled)
    assert found.max_error_of_bound < 1  # element by element nothing can be seen
    assert not found.is_right
    assert "on the whole" in found.reason
    assert verdict(case).is_right


@pytest.mark.parametrize(
    ("fault", "found", "wanted"),
    [
        (lambda result: result[:-1], "(95, 80)", "(96, 80)"),
        (lambda result: result.T, "(80, 96)", "(96, 80)"),
        (lambda result: result.view(-1), "(7680,)", "(96, 80)"),
        (lambda result: result.double(), "torch.float64", "torch.bfloat16"),
        (lambda result: result.half(), "torch.float16", "torch.bfloat16"),
    ],
)
def test_a_wrong_shape_or_dtype_is_named(fault, found, wanted):
    verdict_ = verdict(case_of("matmul", "bf16", 96, 80, 64), fault)
    assert not verdict_.is_right
    assert verdict_.checked_elements == 0
    before, after = verdict_.reason.split(" instead of ")
    assert found in before
    assert wanted in after


MANY = 2**20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["sum", "dot"])
@pytest.mark.parametrize("fill", ["uniform", "normal"])
def test_a_sum_of_a_million_terms_as_torch_computes_it_passes(name, dtype, fill):
    case = case_of(name, dtype, MANY)
    data = inputs_of(case, fill)
    result = run_poisoned(lambda: OPS[name].eager(*data.inputs, out=data.out), data.out, CPU.synchronize)
    found = check(OPS[name], case, data, result)
    assert found.is_right, found.reason
    assert (found.checked_elements, found.elements) == (1, 1)


def without(case, data, start, stop):
    """Return the sum that a kernel gets which forgets the terms from `start` to `stop`."""
    kept = [torch.cat([x[:start], x[stop:]]).double() for x in data.inputs]
    return OPS[case.op].reference(*kept).to(data.out.dtype)


def times_seen(case, length, seed=0):
    """Return how many of 16 different stretches of `length` terms are missed when they are missing."""
    data = inputs_of(case, "normal", seed)
    starts = range(0, MANY - length + 1, (MANY - length) // 15)
    return sum(not check(OPS[case.op], case, data, without(case, data, i, i + length)).is_right for i in starts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["sum", "dot"])
@pytest.mark.parametrize("seed", range(3))
def test_zero_is_no_sum_of_a_million_terms(name, dtype, seed):
    case = case_of(name, dtype, MANY)
    data = inputs_of(case, "normal", seed)
    assert check(OPS[name], case, data, without(case, data, 0, 0)).is_right
    assert not check(OPS[name], case, data, without(case, data, 0, MANY)).is_right


# What is missing can sum to nearly nothing by chance, and then nobody can see it: hence 13 of 16 and not all.


@pytest.mark.exhaustive
def test_a_thousand_of_a_million_terms_missing_show_in_fp32():
    assert times_seen(case_of("dot", "fp32", MANY), 1024) >= 13


def test_one_chain_of_fp32_additions_is_no_fault():
    # The worst order of adding that a right kernel may choose: one term after the other.
    case = case_of("sum", "fp32", 2**16)
    for seed in range(3):
        data = inputs_of(case, "normal", seed)
        total = data.inputs[0].cumsum(0)[-1]  # torch adds in sequence here
        found = check(OPS["sum"], case, data, total)
        assert found.is_right
        assert found.max_error_of_bound > 1e-5  # it did round


def to_tf32(x, is_truncated):
    """Return fp32 numbers with the 10 bits of fraction that tf32 has, rounded or cut off as tensor cores do."""
    bits = x.contiguous().view(torch.int32)
    return ((bits if is_truncated else bits + (1 << 12)) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("k", [32, 1024, 8192])
def test_products_in_tf32_pass_as_tf32_and_not_as_fp32(is_truncated, k):
    case, strict = case_of("matmul", "tf32", 128, 128, k), case_of("matmul", "fp32", 128, 128, k)
    data = inputs_of(case, "normal")
    result = to_tf32(data.inputs[0], is_truncated) @ to_tf32(data.inputs[1], is_truncated)
    found = check(OPS["matmul"], case, data, result)
    assert found.is_right, found.reason
    assert not check(OPS["matmul"], strict, data, result).is_right


def test_a_tile_of_zeros_fails_in_tf32_too():
    # tf32 has the loosest bound; 64 of 4096 rows hardly change the scale of the whole.
    def tile(result):
        result[64:128, :64] = 0

    assert not verdict(case_of("matmul", "tf32", 512, 64, 4096), tile).is_right


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", [7, 100])
@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "bf16"], ids=[i for i in IDS if "bf16" in i])
def test_every_element_is_checked_however_it_is_cut(monkeypatch, case, chunk):
    monkeypatch.setattr(verify, "CHUNK_ELEMENTS", chunk)
    found = verdict(case)
    assert found.is_right
    assert found.checked_elements == found.elements
    for index in (0, 1, found.elements // 2, found.elements - 1):

        def fault(result, index=index):
            result.view(-1)[index] += 3

        assert not verdict(case, fault).is_right


@pytest.fixture
def sampled(monkeypatch):
    """Make a matmul of 512 x 48 x 64 so dear that only every 64th row is checked."""
    monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", {"cpu": 2 * 512 * 48 * 64 // 64})
    return case_of("matmul", "bf16", 512, 48, 64)


def test_where_the_check_is_too_dear_rows_are_sampled_and_the_last_is_among_them(sampled):
    found = verdict(sampled)
    assert found.is_right
    assert found.checked_elements == (512 // 64 + 1) * 48
    assert found.elements == 512 * 48


@pytest.mark.parametrize("row", [*range(0, 512, 64), 448 - 7, 13])
def test_a_wrong_tile_of_64_rows_is_met_wherever_it_lies(sampled, row):
    def tile(result):
        result[row : row + 64, 16:32] = 0

    assert not verdict(sampled, tile).is_right


def test_a_sampled_row_is_counted_once_even_if_it_is_the_last(monkeypatch):
    monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", {"cpu": 1})
    found = verdict(case_of("matmul", "fp32", 1, 2048, 64))
    assert found.is_right
    assert found.checked_elements == found.elements == 2048


def test_the_largest_default_shape_on_a_gpu_is_sampled_finely_enough_for_tiles_of_64_rows():
    sums = 2 * max(int(shape) for shape in MATMUL[0].default_shapes["cuda"]) ** 3
    assert sums / verify.FULL_CHECK_FLOPS["cuda"] <= 64


def put(where, value):
    def fault(result):
        result[where] = value

    return fault


def test_the_worst_element_is_named_with_what_was_expected():
    found = verdict(case_of("matmul", "bf16", 8, 8, 8), put((3, 4), 100.0))
    wrong = found.wrong
    expected = wrong["expected"]
    assert wrong == {"count": 1, "checked": 64, "index": [3, 4], "expected": expected, "got": 100.0}
    assert abs(expected) < 8
    assert f"at [3, 4] {expected:.6g} is expected, 100 found; 1 of 64 elements is wrong" in found.reason
    assert found.to_dict()["wrong"] == wrong
    not_finite = verdict(case_of("gelu", "fp32", 100), put(5, math.nan)).to_dict()
    assert json.loads(json.dumps(not_finite, allow_nan=False))["wrong"]["got"] == "nan"
    assert "wrong" not in verdict(case_of("gelu", "fp32", 100)).to_dict()


def test_a_sampled_product_names_a_wrong_element_of_its_rows(sampled):
    wrong = verdict(sampled, put((slice(None), slice(40, None)), 99.0)).wrong
    assert (wrong["count"], wrong["checked"], wrong["got"]) == (9 * 8, 9 * 48, 99.0)
    row, column = wrong["index"]
    assert (row in (*range(0, 512, 64), 511), column >= 40) == (True, True)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_a_launch_does_not_write_is_poison(case):
    data = inputs_of(case)
    right = truth_of(case, data)
    data.out.copy_(right)  # what an earlier launch, a right one, has left in the output

    def writes_half():
        half = right.shape[0] // 2
        data.out[:half] = right[:half]

    result = run_poisoned(writes_half, data.out, CPU.synchronize)
    assert result is data.out
    assert not check(OPS[case.op], case, data, result).is_right

    result = run_poisoned(lambda: data.out.copy_(right), data.out, CPU.synchronize)
    assert check(OPS[case.op], case, data, result).is_right


def test_a_returned_tensor_is_the_result_and_anything_else_is_not():
    out, fresh = torch.zeros(3), torch.ones(3)
    assert run_poisoned(lambda: fresh, out, CPU.synchronize) is fresh
    assert run_poisoned(lambda: 7, out, CPU.synchronize) is out


@pytest.mark.parametrize("fault", [None, wrong_element, nan_element, lambda result: result[:-1]])
def test_every_verdict_can_be_kept_in_a_record(fault):
    case = case_of("matmul", "bf16", 96, 80, 64)
    found = verdict(case, fault)
    record = Row(OPS["matmul"], case, "torch").blank()
    line = encode_line(type(record)(**{**record.__dict__, "verified": {"before": found.to_dict()}}))
    assert b'"reference":"fp64"' in line
    if fault is None:
        assert found.to_dict()["checked_elements"] == 96 * 80
        assert 0 <= found.to_dict()["max_error_of_bound"] <= 1


def test_inputs_are_not_changed_by_the_check():
    case = case_of("matmul", "bf16", 96, 80, 64)
    data = inputs_of(case)
    before = [x.clone() for x in data.inputs]
    result = truth_of(case, data)
    kept = InputSet(tuple(before), result.clone())
    check(OPS["matmul"], case, data, result)
    assert all(torch.equal(x, y) for x, y in zip(data.inputs, kept.inputs, strict=True))
    assert torch.equal(result, kept.out)


@pytest.mark.parametrize("error", [2e-5, 1e-3])
def test_a_tolerance_allows_so_many_times_the_error_that_rounding_explains(error):
    op = next(op for op in ELEMENTWISE if op.name == "gelu")
    case = Case(op.name, "fp32", {"n": 4096})
    data = make_sets(op, case, Filler("uniform", "fp32", CPU, 0), CPU, 1)[0]
    result = op.reference(*data.inputs) * (1 + error)
    found = check(op, case, data, result)
    assert not found.is_right
    factor = max(found.max_error_of_bound, error / 1e-3)
    assert check(replace(op, tolerance=1.01 * factor), case, data, result).is_right
    assert not check(replace(op, tolerance=factor / 1.5), case, data, result).is_right
    assert not check(replace(op, tolerance=1e6), case, data, result * float("nan")).is_right


def test_the_rows_of_a_plan_carry_the_tolerance_of_the_run():
    op = next(op for op in ELEMENTWISE if op.name == "gelu")
    case = Case(op.name, "fp32", {"n": 64})
    assert [row.op.tolerance for row in plan([(op, case)], ["torch"], CPU, Settings(tolerance=8.0))] == [8.0]
    assert plan([(op, case)], ["torch"], CPU, Settings())[0].op is op
