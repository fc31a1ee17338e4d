"""Verification: right results pass in every dtype, planted faults do not, however small."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bench.adamw import OPS as ADAMW
from bench.cross_entropy import OPS as CROSS_ENTROPY
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data import verify
from bench.harness.data.verify import Checks, check, widened
from bench.harness.op import Case
from bench.harness.providers.registry import numerics
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC
from bench.norm import OPS as NORM
from bench.reduction import OPS as REDUCTION
from bench.softmax import OPS as SOFTMAX
from tests.bench import commands
from tests.bench.commands import CPU

OPS = {
    op.name: op
    for op in (*ELEMENTWISE, *MATMUL, *MATVEC, *REDUCTION, *NORM, *SOFTMAX, *CROSS_ENTROPY)
}
FLOATS = ("fp64", "fp32", "fp16", "bf16")
ROWWISE = ("rmsnorm", "layernorm", "residual-rmsnorm", "softmax", "cross-entropy")


def case_of(name, dtype, *extents):
    options = (
        {"layout": "nt" if dtype.startswith("fp8") else "nn", "batch": 1}
        if name == "matmul"
        else {}
    )
    return Case(name, dtype, dict(zip(OPS[name].axes, extents, strict=True)), options)


def inputs_of(case, fill="uniform", seed=0):
    return commands.inputs_of(OPS[case.op], case, fill, seed)


def truth_of(case, data):
    return OPS[case.op].reference(*widened(data.inputs))


def checked(case, data, result):
    return check(OPS[case.op], case, data, result.to(data.out.dtype))


def verdict(case, fault=None, fill="uniform", seed=0):
    """Return the verdict on the fp64 result rounded once, after `fault` has changed or replaced
    it.
    """
    data = inputs_of(case, fill, seed)
    result = truth_of(case, data).to(data.out.dtype)
    if fault is not None:
        changed = fault(result)
        result = result if changed is None else changed
    return check(OPS[case.op], case, data, result)


def eager(case, data):
    with numerics(case.dtype):
        call = lambda: OPS[case.op].eager(*data.inputs, out=data.out)  # noqa: E731
        return Checks(OPS[case.op], case, CPU).check(call, data)


CASES = [
    *(
        case_of("matmul", dtype, 96, 80, 64)
        for dtype in (*FLOATS, "tf32", "int8", "fp8e4m3", "fp8e5m2")
    ),
    *(case_of(name, dtype, 5000) for name in ("relu", "swiglu") for dtype in FLOATS),
    *(case_of("bias-gelu", dtype, 60, 90) for dtype in FLOATS),
    *(
        case_of(name, dtype, 60, 90)
        for name in ("layernorm", "residual-rmsnorm", "softmax")
        for dtype in FLOATS
    ),
    *(
        case_of(name, dtype, 1500, 64)
        for name in ("matvec", "cross-entropy", "matvec-int8")
        for dtype in FLOATS
    ),
]
IDS = [f"{case.op}-{case.dtype}" for case in CASES]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_correctly_rounded_results_pass(case, fill):
    found = verdict(case, fill=fill)
    assert found.is_right, found.reason
    assert found.reason is None
    # Correct rounding uses a quarter of the bound of 4 u in every dtype; only a bound of 0 needs
    # equality. Below the least normal number of fp16 it uses half.
    is_tiny = (case.op, case.dtype) == ("softmax", "fp16")
    assert found.max_error_of_bound <= (0.5 if is_tiny else 0.26)
    assert found.checked_elements == found.elements > 0


MANY = 2**20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["sum", "dot"])
@pytest.mark.parametrize("fill", ["uniform", "normal"])
def test_torch_sums_of_a_million_terms_pass(name, dtype, fill):
    case = case_of(name, dtype, MANY)
    found = eager(case, inputs_of(case, fill))
    assert found.is_right, found.reason
    assert (found.checked_elements, found.elements) == (1, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["sum", "softmax", "rmsnorm"])
def test_sequential_fp32_additions_pass(name, seed):
    """The worst order of summation that a correct kernel may use."""
    case = case_of(name, "fp32", *((2**16,) if name == "sum" else (1, MANY)))
    data = inputs_of(case, "normal", seed)
    x = data.inputs[0]
    if name == "sum":
        result = x.cumsum(-1)[-1]  # torch adds in sequence here
    elif name == "softmax":
        exponentials = (x - x.amax()).exp()
        result = exponentials / exponentials.cumsum(-1)[:, -1:]
    else:
        result = x * (x.square().cumsum(-1)[:, -1:] / MANY + 1e-6).rsqrt() * data.inputs[1]
    found = checked(case, data, result)
    assert found.is_right, found.reason
    assert found.max_error_of_bound > 1e-5  # it did round


def to_tf32(x, is_truncated):
    """Return fp32 numbers with 10 bits of fraction, rounded or truncated as tensor cores do."""
    bits = x.contiguous().view(torch.int32)
    return ((bits if is_truncated else bits + (1 << 12)) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("k", [32, 1024, 8192])
def test_tf32_matmuls_pass_as_tf32_and_fail_as_fp32(is_truncated, k):
    case, strict = case_of("matmul", "tf32", 128, 128, k), case_of("matmul", "fp32", 128, 128, k)
    data = inputs_of(case, "normal")
    result = to_tf32(data.inputs[0], is_truncated) @ to_tf32(data.inputs[1], is_truncated)
    found = checked(case, data, result)
    assert found.is_right, found.reason
    assert not checked(strict, data, result).is_right


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_norms_of_the_rounded_and_unrounded_sum_pass(dtype):
    """A compiler that fuses both may keep the sum in fp32; a kernel that stores it first may
    not.
    """
    case = case_of("residual-rmsnorm", dtype, 64, 512)
    data = inputs_of(case, "normal")
    x, residual, weight = widened(data.inputs)
    total = x + residual
    for of in (total, total.to(data.out.dtype).double()):
        assert checked(
            case, data, torch.stack((total, OPS["rmsnorm"].reference(of, weight)))
        ).is_right


def put(where, value):
    def fault(result):
        result.view(-1)[where] = value

    return fault


def wrong_element(result):
    flat = result.view(-1)
    flat[flat.numel() // 3] = flat[flat.numel() // 3].double() * 1.5 + 2


def unwritten_tail(result):
    result.view(-1)[-7:] = math.nan if result.dtype.is_floating_point else -(2**30) - 7


def transposed_neighbors(result):
    flat = result.view(-1)
    flat[:16] = flat[:16].flip(0)


FAULTS = {
    "wrong element": wrong_element,
    "unwritten tail": unwritten_tail,
    "zeros": torch.Tensor.zero_,
    "neighbors exchanged": transposed_neighbors,
    "negative": torch.neg,
    "NaN": put(-1, math.nan),
    "infinite": put(0, math.inf),
}
PLANTED = [(case, fault, "uniform") for case in CASES for fault in FAULTS]
PLANTED = [one for one in PLANTED if not (one[0].dtype == "int8" and one[1] in ("NaN", "infinite"))]
# With zero inputs every bound is 0, except for functions with an absolute error at 0.
PLANTED += [
    (case, fault, "zeros") for case in CASES for fault in ("wrong element", "unwritten tail")
]


@pytest.mark.sampled(48)
@pytest.mark.parametrize(("case", "fault", "fill"), PLANTED)
def test_a_planted_fault_fails(case, fault, fill):
    found = verdict(case, FAULTS[fault], fill)
    assert not found.is_right
    assert "wrong result" in found.reason
    assert "\n" not in found.reason
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("bf16", 1.005), ("bf16", 0.995), ("fp16", 1.0015), ("fp8e4m3", 1.005), ("tf32", 1.002)],
)
@pytest.mark.parametrize("extents", [(256, 256, 256), (1024, 64, 64)])
def test_a_wrong_scale_within_the_element_bound_fails(dtype, factor, extents):
    case = case_of("matmul", dtype, *extents)
    found = verdict(case, lambda result: (result.double() * factor).to(result.dtype))
    assert found.max_error_of_bound < 1  # element by element nothing can be seen
    assert not found.is_right
    assert "on the whole" in found.reason
    assert verdict(case).is_right


@pytest.mark.sampled(6)
@pytest.mark.parametrize("factor", [1.005, 0.995])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*ROWWISE, "matvec-int8"])
def test_a_wrong_scale_of_half_a_percent_fails(name, dtype, factor):
    case = case_of(name, dtype, 2048, 256)
    data = inputs_of(case)
    truth = truth_of(case, data)
    assert checked(case, data, truth).is_right
    for part in (
        truth if name == "residual-rmsnorm" else (truth,)
    ):  # one of its two results is enough
        part *= factor
        assert not checked(case, data, truth).is_right
        part /= factor


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWWISE)
def test_one_element_off_by_two_percent_fails(name, dtype):
    case = case_of(name, dtype, 64, 1000)
    data = inputs_of(case, "normal")
    truth = truth_of(case, data)
    for index in (0, truth.numel() // 2, truth.numel() - 1):
        wrong = truth.clone()
        wrong.view(-1)[index] *= 1.02
        assert not checked(case, data, wrong).is_right


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1024, 131072])
def test_a_zeroed_softmax_tail_fails(dtype, width):
    case = case_of("softmax", dtype, 4, width)
    data = inputs_of(case)
    for tail in (1, 64):
        wrong = truth_of(case, data)
        wrong[:, -tail:] = 0
        assert not checked(case, data, wrong).is_right


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("vocabulary", "forgotten"), [(32000, 8), (128256, 32), (262144, 64)])
def test_a_truncated_vocabulary_and_a_shifted_label_fail(dtype, vocabulary, forgotten):
    case = case_of("cross-entropy", dtype, 4, vocabulary)
    data = inputs_of(case)
    logits, labels = widened(data.inputs)
    without = logits[:, :-forgotten].logsumexp(-1) - logits.gather(-1, labels[:, None]).squeeze(-1)
    shifted = OPS[case.op].reference(logits, (labels + 1) % vocabulary)
    for wrong in (without, shifted):
        assert not checked(case, data, wrong).is_right


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_norm_with_the_mean_handling_of_the_other_fails(dtype):
    case, other = case_of("rmsnorm", dtype, 16, 1024), case_of("layernorm", dtype, 16, 1024)
    data = inputs_of(case, "normal")
    x, weight = widened(data.inputs)
    assert not checked(
        case, data, OPS["rmsnorm"].reference(x - x.mean(-1, keepdim=True), weight)
    ).is_right
    data = inputs_of(other, "normal")
    x, weight, bias = widened(data.inputs)
    assert not checked(other, data, OPS["rmsnorm"].reference(x, weight) + bias).is_right


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [
        ("fp64", 64 * 2.0**-53),
        ("fp32", 64 * 2.0**-24),
        ("tf32", 64 * 2.0**-24 + 32 * 2.0**-11),  # and rounded factors
        ("fp16", 32 * 2.0**-11 + 33 * 2.0**-24),  # summed in fp32; and of subnormal numbers
        ("bf16", 32 * 2.0**-8 + 32 * 2.0**-24),
    ],
)
@pytest.mark.parametrize("roundings", [0, 3])
def test_the_bound_is_the_sum_of_its_terms(dtype, bound, roundings):
    """A sum of four ones is 4, as is the RMS of the result; the norm of its terms is 2."""
    op = replace(OPS["matmul"], intermediate_roundings=roundings)
    case = case_of("matmul", dtype, 1, 1, 4)
    data = inputs_of(case)
    for x in data.inputs:
        x.fill_(1.0)
    bound += 2 * roundings * 2 * torch.finfo(data.out.dtype).eps / 2
    found = check(op, case, data, data.out.fill_(4.5))
    assert found.max_error_of_bound == pytest.approx(0.5 / bound, rel=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_half_the_distance_of_numbers_is_the_unit_roundoff(dtype):
    result = inputs_of(case_of("relu", dtype, 1)).out
    assert verify.UNIT_ROUNDOFF[dtype] == torch.finfo(result.dtype).eps / 2


@pytest.mark.parametrize(("terms", "rows"), [(64, 12), (80, 12), (500, 2), (2000, 1)])
def test_parts_of_a_product_fit_in_a_chunk(monkeypatch, terms, rows):
    """Of 80 columns; the rows of A are as long as there are terms."""
    monkeypatch.setattr(verify, "CHUNK_ELEMENTS", 1000)
    seen = []

    def reference(a, b, *others):
        seen.append(len(a))
        return OPS["matmul"].reference(a, b, *others)

    op = replace(OPS["matmul"], reference=reference)
    case = case_of("matmul", "fp64", 24, 80, terms)
    data = inputs_of(case)
    assert check(op, case, data, truth_of(case, data)).is_right
    assert set(seen) == {rows}


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_bytes_are_the_same_or_not(value):
    x = torch.full((3, 4), value)
    assert verify.same_bytes(x, x.clone()) is True
    assert verify.same_bytes(x.T, x.clone().T) is True
    assert verify.same_bytes(x[:, 1], x[:, 2]) is True
    assert verify.same_bytes(x, torch.full((3, 4), -value)) is False
    assert verify.same_bytes(x, x[:2]) is False


@pytest.mark.parametrize("terms", [1, 4])
@pytest.mark.parametrize("other", [torch.randint(2**62, (64,)), torch.ones(64, dtype=torch.bool)])
def test_labels_and_masks_do_not_widen_the_bound(other, terms):
    op = replace(
        OPS["add"],
        make_inputs=lambda case, tensor: (tensor(64), other),
        reference=lambda x, other: x * (other % 2 if other.dtype == torch.int64 else other),
        terms=lambda case: terms,
    )
    case = Case("add", "fp32", {"n": 64})
    data = commands.inputs_of(op, case)
    right = op.reference(*data.inputs)
    assert check(op, case, data, right).is_right
    assert not check(op, case, data, right * 1.001).is_right


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
def test_a_wrong_shape_or_dtype_is_reported(fault, found, wanted):
    refused = verdict(case_of("matmul", "bf16", 96, 80, 64), fault)
    assert (refused.is_right, refused.checked_elements) == (False, 0)
    before, after = refused.reason.split(" instead of ")
    assert found in before
    assert wanted in after


@pytest.mark.sampled(4)
@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.dtype == "bf16"], ids=[i for i in IDS if "bf16" in i]
)
def test_every_element_is_checked_at_any_chunk_size(monkeypatch, case, chunk):
    monkeypatch.setattr(verify, "CHUNK_ELEMENTS", chunk)
    found = verdict(case)
    assert found.is_right
    assert found.checked_elements == found.elements
    for index in (0, 1, found.elements // 2, found.elements - 1):
        assert not verdict(case, put(index, 3e3)).is_right


@pytest.fixture
def sampled(monkeypatch):
    """Return a function that makes a matmul of which every 64th row is compared by elements."""
    monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", {"cpu": 2 * 512 * 200 * 64 // 64})
    return lambda dtype: case_of("matmul", dtype, 512, 200, 64)


PRODUCTS = (*FLOATS, "tf32", "int8", "fp8e4m3")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("dtype", PRODUCTS)
def test_large_products_are_compared_in_some_rows_and_in_sums_of_blocks(sampled, dtype, fill):
    for seed in range(3):
        found = verdict(sampled(dtype), fill=fill, seed=seed)
        assert found.is_right, found.reason
        assert found.blocks["sums"] == 512 * 4
        assert (found.checked_elements, found.elements) == (9 * 200, 512 * 200)


def test_an_inexact_product_of_a_library_passes_in_sums_of_blocks(sampled):
    for dtype in (*FLOATS, "int8"):
        case = sampled(dtype)
        found = eager(case, inputs_of(case))
        assert found.is_right, found.reason
        assert found.blocks


def test_partial_sums_in_bf16_pass_and_show_in_the_smallest_error(sampled):
    case = sampled("bf16")
    data = inputs_of(case)
    a, b = data.inputs
    halves = [a[:, part].double() @ b[part].double() for part in (slice(32), slice(32, None))]
    split = check(OPS["matmul"], case, data, halves[0].bfloat16() + halves[1].bfloat16())
    assert split.is_right, split.reason
    assert split.blocks["smallest_error"] >= verdict(case).blocks["smallest_error"]


def test_sums_that_spread_more_widen_the_limit(sampled):
    """By rounding alone their standard deviation is that of elements, u / sqrt(5)."""
    case = sampled("bf16")
    spread = 3.0

    def noise(result):
        noise = torch.rand(result.shape) * 2 - 1
        largest = spread * 2.0**-8 * math.sqrt(3 / 5)
        return (result.double() * (1 + largest * noise)).bfloat16()

    found = verdict(case, noise)
    assert found.is_right, found.reason
    widened_by = found.blocks["smallest_error"] / verdict(case).blocks["smallest_error"]
    assert widened_by == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize(("dtype", "most"), [("bf16", 0.3), ("fp16", 0.04), ("fp32", 2e-4)])
def test_an_error_of_one_element_shows_in_a_sum_of_64(sampled, dtype, most):
    # Twice six standard deviations of 64 roundings: 2 * 6 * 8 * 0.29 u, u of the dtype, is 0.11 in
    # bf16 for results of one binade; the largest element of a block has a higher one.
    assert 0 < verdict(sampled(dtype)).blocks["smallest_error"] < most


def test_small_products_and_other_ops_are_compared_whole(sampled):
    for case in (case_of("matmul", "fp32", 1, 2048, 64), case_of("matvec", "fp32", 3000, 4096)):
        found = verdict(case)
        assert found.checked_elements == found.elements
        assert "blocks" not in found.to_dict()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("index", [(0, 0), (1, 199), (511, 130)])
@pytest.mark.parametrize("dtype", PRODUCTS)
def test_one_wrong_element_in_any_row_of_a_large_product_is_found(sampled, dtype, index):
    case = sampled(dtype)
    shown = verdict(case).blocks["smallest_error"]

    def fault(result):
        error = shown * result.double().square().mean().sqrt()
        result[index] += max(1, int(error)) if dtype == "int8" else 1.1 * float(error)

    found = verdict(case, fault)
    assert not found.is_right
    assert str(index[0]) in found.reason


def test_errors_that_cancel_in_a_plain_sum_of_a_block_are_found(sampled, monkeypatch):
    monkeypatch.setattr(verify, "_rows_to_check", lambda *_: iter(()))  # the sums alone

    def fault(result):
        for first in range(0, 200, 2):
            result[:, first] += 1.0
            result[:, first + 1] -= 1.0

    assert not verdict(sampled("fp32"), fault).is_right


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_elements_that_are_not_written_are_found_in_any_row(sampled, value):
    def odd_rows(result):
        result[1::2] = value

    found = verdict(sampled("bf16"), odd_rows)
    assert not found.is_right
    assert "NaN, infinite" in found.reason
    json.dumps(found.to_dict(), allow_nan=False)


def test_rows_are_sampled_from_a_random_one_on(sampled, monkeypatch):
    rows = set()

    def fault(result):
        result[:] = 1e3

    for start in (0, 5, 63):
        monkeypatch.setattr(verify.secrets, "randbelow", lambda step, start=start: start)
        rows.add(verdict(sampled("bf16"), fault).wrong["checked"])
        monkeypatch.setattr(verify, "_blocks", lambda *_: None)
        assert verdict(sampled("bf16"), fault).wrong["index"][0] % 64 == start
        monkeypatch.undo()
        monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", {"cpu": 2 * 512 * 200 * 64 // 64})
    assert rows == {9 * 200}


def test_the_worst_element_is_reported_with_its_expected_value():
    found = verdict(case_of("matmul", "bf16", 8, 8, 8), put(3 * 8 + 4, 100.0))
    expected = found.wrong["expected"]
    assert found.wrong == {
        "count": 1,
        "checked": 64,
        "index": [3, 4],
        "expected": expected,
        "got": 100.0,
    }
    assert abs(expected) < 8
    assert f"expected {expected:.6g} at [3, 4], got 100; 1 of 64 elements is wrong" in found.reason
    assert found.to_dict()["wrong"] == found.wrong
    assert (
        verdict(case_of("gelu", "fp32", 100), put(5, math.nan)).to_dict()["wrong"]["got"] == "nan"
    )
    assert "wrong" not in verdict(case_of("gelu", "fp32", 100)).to_dict()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_unwritten_output_fails(case):
    data = inputs_of(case)
    right, before = truth_of(case, data).to(data.out.dtype), [x.clone() for x in data.inputs]
    data.out.copy_(right)  # result of an earlier, correct launch

    def is_right_after_writing(rows):
        return (
            Checks(OPS[case.op], case, CPU)
            .check(lambda: data.out.__setitem__(rows, right[rows]), data)
            .is_right
        )

    assert not is_right_after_writing(slice(right.shape[0] // 2))
    assert is_right_after_writing(slice(None))
    assert all(torch.equal(x, y) for x, y in zip(data.inputs, before, strict=True))


def test_a_later_visit_verifies_again_unless_each_byte_is_the_same(monkeypatch):
    case = case_of("gelu", "fp32", 4096)
    data = inputs_of(case)
    right = truth_of(case, data).to(data.out.dtype)
    checks = Checks(OPS["gelu"], case, CPU)
    first = checks.last(lambda: data.out.copy_(right), data, None, None)
    assert first.is_right
    checks.remember()
    other = right.clone()
    other[7] += 1
    assert not checks.last(lambda: data.out.copy_(other), data, None, None).is_right
    monkeypatch.setattr(verify, "check", None)  # which would be called
    checks.checked = first
    assert checks.last(lambda: data.out.copy_(right), data, None, None) is first
    with pytest.raises(TypeError):
        checks.last(lambda: None, data, None, None)  # it has written nothing


def test_a_rule_of_an_op_replaces_the_reference():
    rule = lambda case, launch, earlier: "repeated" if earlier else None  # noqa: E731
    op = replace(OPS["gelu"], check_result=rule)
    case = case_of("gelu", "fp32", 64)
    data = inputs_of(case)
    found = check(op, case, data, data.out)
    assert (found.is_right, found.checked_elements, found.elements) == (True, 64, 64)
    assert (found.reference, found.to_dict()["max_error_of_bound"]) == ("rule", None)
    assert check(op, case, data, data.out, (data.inputs, data.out)).reason.endswith("repeated")


def test_inputs_that_hold_the_result_are_restored():
    (op,) = ADAMW
    case = Case("adamw", "fp32", {"n": 64})
    data = commands.inputs_of(op, case)
    before = [x.clone() for x in data.inputs]
    assert Checks(op, case, CPU).check(lambda: op.eager(*data.inputs), data).is_right
    assert all(map(torch.equal, data.inputs, before))


@pytest.mark.parametrize("output", [0, 1])
def test_the_scale_of_each_output_counts(output):
    def scaled(result):
        result[output] *= 1.008

    found = verdict(case_of("residual-rmsnorm", "bf16", 64, 512), scaled)
    assert "on the whole" in found.reason


def test_only_returned_tensors_are_taken_as_the_result():
    case = case_of("residual-rmsnorm", "fp32", 5, 7)
    data, checks = inputs_of(case, "normal"), Checks(OPS[case.op], case, CPU)
    first, second = OPS[case.op].eager(*data.inputs)
    assert checks.check(lambda: (first, second), data).is_right
    stacked = checks.result
    assert checks.check(lambda: stacked, data).is_right
    assert checks.result is stacked
    assert not checks.check(lambda: (second, first), data).is_right
    assert not checks.check(lambda: 7, data).is_right
    assert checks.result is data.out


@pytest.mark.parametrize("error", [2e-5, 1e-3])
def test_a_tolerance_multiplies_the_allowed_rounding_error(error):
    op, case = OPS["gelu"], case_of("gelu", "fp32", 4096)
    data = inputs_of(case)
    result = op.reference(*data.inputs) * (1 + error)
    found = check(op, case, data, result)
    assert not found.is_right
    factor = max(found.max_error_of_bound, error / 1e-3)
    assert check(replace(op, tolerance=1.01 * factor), case, data, result).is_right
    assert not check(replace(op, tolerance=factor / 1.5), case, data, result).is_right
    assert not check(replace(op, tolerance=1e6), case, data, result * float("nan")).is_right
