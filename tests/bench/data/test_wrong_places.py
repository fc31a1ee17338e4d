"""A wrong result says where: planted faults, as kernels make them, and the words that tell them."""

import json
import math

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.data.verify import check, widened
from bench.harness.data.wrong_places import pattern, units_in_the_last_place
from bench.harness.device.device import Device
from bench.harness.op import Case
from bench.matmul import OPS as MATMUL
from bench.softmax import OPS as SOFTMAX

CPU = Device(type="cpu", torch_name="cpu", slug="cpu", name="a CPU", cache_bytes=2**20, memory_bytes=2**30)
OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL, *SOFTMAX)}
NAN = float("nan")


def checked(name, fault, *extents, dtype="fp32"):
    op, options = OPS[name], {"layout": "nn", "batch": 1} if name == "matmul" else {}
    case = Case(name, dtype, dict(zip(op.axes, extents, strict=True)), options)
    data = make_sets(op, case, Filler("uniform", dtype, CPU, 0), CPU, 1)[0]
    result = op.reference(*widened(data.inputs)).to(data.out.dtype)
    fault(result)
    return check(op, case, data, result)


def put(where, value=None, factor=None, shift=None):
    def fault(result):
        if value is not None:
            result[where] = value
        elif factor is not None:
            result[where] *= factor
        else:
            result[where] += shift

    return fault


@pytest.mark.parametrize(
    ("name", "extents", "fault", "words"),
    [
        ("gelu", (65536,), put(-1, 7.0), "1 of 65,536 elements is wrong, the last 1 of 65,536: a tail mask?"),
        ("gelu", (65536,), put(slice(-36, None), shift=2.0), "the last 36 of 65,536: a tail mask?"),
        ("gelu", (1000,), put(slice(256, 512), shift=9.0), "elements 256 to 511: a block that was left out?"),
        ("gelu", (1024,), put(slice(3, None, 8), shift=9.0), "every 8th from 3 on: a stride, or a vector load?"),
        ("gelu", (1000,), put(slice(None), NAN), "which is all of them: never written, or NaN on the way?"),
        ("gelu", (1000,), put(slice(500, None), NAN), "the last 500 of 1,000: never written, or NaN on the way?"),
        ("gelu", (1000,), put(slice(0, 300), 0.0), "all of them 0: never computed?"),
        (
            "matmul",
            (64, 48, 32),
            put((slice(None), slice(40, None)), shift=9.0),
            "the last 8 of 48 columns of 64 of 64 r",
        ),
        ("matmul", (64, 48, 32), put(slice(60, None), shift=9.0), "the last 192 of 3,072: a tail mask?"),
        ("matmul", (64, 48, 32), put(slice(10, 20), shift=9.0), "rows 10 to 19 as a whole"),
        ("matmul", (64, 48, 32), put(slice(None), factor=2.0), "each is 2 times what is expected: a scale, or a part"),
        ("matmul", (64, 48, 32), put((slice(None), 5), shift=9.0), "column 5 of 64 of 64 rows"),
        ("softmax", (40, 90), put(7, factor=1.5), "each is 1.5 times what is expected"),
    ],
)
def test_a_planted_fault_is_told_by_its_place_and_its_pattern(name, extents, fault, words):
    found = checked(name, fault, *extents)
    assert not found.is_right
    assert words in found.reason
    assert "\n" not in found.reason


def test_the_worst_element_is_told_with_what_was_expected_and_by_how_much_it_is_off():
    found = checked("matmul", put((3, 4), 100.0), 8, 8, 8, dtype="bf16")
    wrong = found.wrong
    assert (wrong.index, wrong.got, wrong.count, wrong.checked) == ((3, 4), 100.0, 1, 64)
    assert abs(wrong.expected) < 8
    assert f"at [3, 4] {wrong.expected:.6g} is expected, 100 found, " in found.reason
    assert "units in the last place off; 1 of 64 elements is wrong" in found.reason
    assert found.to_dict()["wrong"]["index"] == [3, 4]


def test_a_result_that_is_not_finite_is_still_json():
    assert json.loads(json.dumps(checked("gelu", put(5, NAN), 100).to_dict(), allow_nan=False))["wrong"]["got"] == "nan"
    assert checked("gelu", put(5, NAN), 100).wrong.ulp is None
    assert "wrong" not in checked("gelu", lambda result: None, 100).to_dict()


def test_a_product_that_is_checked_on_some_rows_names_one_of_them():
    found = checked("matmul", put((slice(None), slice(1000, None)), shift=99.0), 2048, 1024, 1024)
    assert found.wrong.checked < 2048 * 1024
    assert found.wrong.index[1] >= 1000
    assert found.wrong.where is None  # of the rows between nothing is known


@pytest.mark.parametrize(
    ("expected", "got", "dtype", "ulp"),
    [
        (1.0, 1.0 + 2**-7, torch.bfloat16, 1.0),
        (1.5, 1.5 + 2**-23, torch.float32, 1.0),
        (-8.0, -8.0 - 3 * 2**-20, torch.float32, 3.0),
        (0.0, 2.0**-149, torch.float32, 1.0),
        (7.0, 9.0, torch.int32, 2.0),
        (1.0, math.inf, torch.float32, None),
    ],
)
def test_units_in_the_last_place(expected, got, dtype, ulp):
    assert units_in_the_last_place(expected, got, dtype) == ulp


def test_scattered_elements_are_told_by_the_first_and_the_last():
    assert pattern(torch.tensor([3, 10, 700]), (1000,)) == ("between elements 3 and 700", None)
    assert pattern(torch.tensor([3]), (10, 10)) == (None, None)
