"""A wrong result names its worst element and the number of wrong ones."""

import json

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.data.verify import check, widened
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


def put(where, value=None, shift=0.0):
    def fault(result):
        result[where] = result[where] + shift if value is None else value

    return fault


def test_the_worst_element_is_named_with_what_was_expected():
    found = checked("matmul", put((3, 4), 100.0), 8, 8, 8, dtype="bf16")
    wrong = found.wrong
    assert (wrong.index, wrong.got, wrong.count, wrong.checked) == ((3, 4), 100.0, 1, 64)
    assert abs(wrong.expected) < 8
    assert f"at [3, 4] {wrong.expected:.6g} is expected, 100 found; " in found.reason
    assert "1 of 64 elements is wrong" in found.reason
    assert found.to_dict()["wrong"]["index"] == [3, 4]


def test_a_result_that_is_not_finite_is_still_json():
    assert json.loads(json.dumps(checked("gelu", put(5, NAN), 100).to_dict(), allow_nan=False))["wrong"]["got"] == "nan"
    assert "wrong" not in checked("gelu", lambda result: None, 100).to_dict()


def test_a_product_that_is_checked_on_some_rows_names_one_of_them():
    found = checked("matmul", put((slice(None), slice(1000, None)), shift=99.0), 2048, 1024, 1024)
    assert found.wrong.checked < 2048 * 1024
    assert found.wrong.index[1] >= 1000
