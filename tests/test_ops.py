"""Every op: its work compared with counters and counts by hand, its results compared with fp64."""

import csv
import importlib
import inspect
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from bench.__main__ import families
from bench.harness.data.inputs import InputSet, torch_dtype
from bench.harness.data.verify import Checks, widened
from bench.harness.measure.rows import CPU_DTYPES
from bench.harness.op import Case, UnsupportedCaseError
from bench.harness.providers.registry import load, numerics
from tests.bench.commands import CPU, inputs_of, meta_inputs

FAMILIES = families()
MODELS = ("decode", "attention")
"""Families whose defaults are too large for these tests; they have separate tests."""
SHIPPED = (
    "matmul",
    "elementwise",
    "matvec",
    "reduction",
    "norm",
    "softmax",
    "cross_entropy",
    "rope",
)
"""Families whose ops have values by hand in the tables below; the other tests also cover new
families.
"""
EVERY_OP = {op.name: op for family, ops in FAMILIES.items() if family not in MODELS for op in ops}
OPS = {op.name: op for family in SHIPPED for op in FAMILIES[family]}
OPTIONS = {
    op.name: importlib.import_module(f"bench.{family}")
    for family, ops in FAMILIES.items()
    for op in ops
}
EVERY_OP_AND_DTYPE = [(name, dtype) for name, op in EVERY_OP.items() for dtype in op.dtypes]
ON_THIS_CPU = [(name, dtype) for name, dtype in EVERY_OP_AND_DTYPE if dtype in CPU_DTYPES]


def case_of(name, dtype, *extents, **options):
    """Return a case with the default options of its family."""
    known = getattr(OPTIONS[name], "OPTIONS", ())
    chosen = {option.name: option.default(dtype) for option in known} | options
    if name.startswith("rope") and not options:
        chosen = {"heads": 3, "kv-heads": 1, "head-dim": 6}
    return Case.of(name, dtype, dict(zip(EVERY_OP[name].axes, extents, strict=True)), known, chosen)


def is_rejected(case):
    try:
        EVERY_OP[case.op].check(case, "cpu")
    except UnsupportedCaseError:
        return True
    return False


@pytest.mark.parametrize("name", EVERY_OP)
def test_every_op_has_a_formula_and_defaults(name):
    op = EVERY_OP[name]
    assert op.formula
    assert all(axis in op.formula for axis in op.axes) or op.axes == ("n",)
    for device_type in ("cpu", "cuda"):
        assert op.default_shapes[device_type]
    assert "bf16" in op.dtypes  # the default of every command
    doc = inspect.getdoc(OPTIONS[name])
    for word in ("FLOPs", "Bytes", "Source"):
        assert word in doc


BY_HAND = list(
    csv.DictReader(Path(__file__).with_name("work_by_hand.csv").read_text().splitlines())
)
"""Worked out on paper from the formulas of the docstrings."""


@pytest.mark.parametrize("name", [*OPS, "quantize-fp8", "quantize-fp8-block", "adamw"])
def test_op_work_agrees_with_counts_by_hand(name):
    rows = [row for row in BY_HAND if row["op"] == name]
    assert rows  # every op has one
    for row in rows:
        extents = map(int, row["extents"].split("x"))
        options = json.loads(row["options"])
        work = EVERY_OP[name].work(case_of(name, row["dtype"], *extents, **options))
        found = {key: getattr(work, key) for key in ("flops", "bytes_read", "bytes_written")}
        assert found == {key: int(row[key]) for key in found}
        assert {type(count) for count in found.values()} == {int}


@pytest.mark.parametrize(("name", "dtype"), EVERY_OP_AND_DTYPE)
@pytest.mark.parametrize("extent", [1, 7])
def test_inputs_have_the_declared_shapes_and_bytes(name, dtype, extent):
    case = case_of(name, dtype, *(extent + index for index in range(len(EVERY_OP[name].axes))))
    if name not in OPS and is_rejected(case):
        pytest.skip(f"{name} has no case {case.name}")
    inputs, out = meta_inputs(EVERY_OP[name], case)
    result = EVERY_OP[name].reference(*(inputs if name == "adamw" else widened(inputs)))
    assert result.shape == out.shape
    work = EVERY_OP[name].work(case)
    if name in OPS and not dtype.startswith("fp8"):  # fp8 also has two scales
        assert (sum(x.nbytes for x in inputs), out.nbytes) == (work.bytes_read, work.bytes_written)


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name, op in OPS.items() if op.take_rows), ("matmul", {"batch": 3})],
)
@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 9, 4), slice(8, 9), slice(0, 9)])
def test_rows_of_the_inputs_give_the_same_rows_of_the_result(name, options, rows):
    op, case = OPS[name], case_of(name, "fp64", *[9, 5, 4][: len(OPS[name].axes)], **options)
    data = inputs_of(op, case, "normal")
    assert op.rows(case) == 9
    inputs, part = op.take_rows(data.inputs, op.reference(*widened(data.inputs)), rows)
    assert part.numel() > 0
    assert torch.allclose(op.reference(*widened(inputs)), part, rtol=1e-12, atol=1e-12)


def verdict(name, case, data, provider="torch"):
    op = EVERY_OP[name]
    with numerics(case.dtype):
        return Checks(op, case, CPU).check(load(provider, op, "", CPU).call(data), data)


def sizes(name):
    """Return small extents: one, odd ones, multiples of 16, and very unequal ones."""
    each = {1: [(1,), (7,), (64,), (1000,)], 2: [(1, 1), (3, 5), (64, 48), (1, 333), (333, 1)]}
    each[3] = [
        (1, 1, 1),
        (3, 5, 7),
        (32, 48, 64),
        (1, 65, 129),
        (65, 1, 129),
        (65, 129, 1),
        (17, 16, 500),
    ]
    count = len(EVERY_OP[name].axes)
    return each.get(count, [(1,) * count, (2,) * count, tuple(range(2, 2 + count)), (16,) * count])


@pytest.mark.sampled(30)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize(("name", "dtype"), ON_THIS_CPU)
def test_eager_torch_is_right_at_every_size_and_dtype(name, dtype, fill):
    for extents in sizes(name):
        case = case_of(name, dtype, *extents)
        if is_rejected(case):
            assert name not in OPS or (dtype, case.shape["k"]) == ("int8", 1)
            continue
        data = inputs_of(EVERY_OP[name], case, fill)
        found = verdict(name, case, data)
        assert found.is_right, f"{extents}: {found.reason}"
        assert found.checked_elements == found.elements == data.out.numel()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("layout", "batch"), [*itertools.product(["nn", "nt", "tn"], [1, 3])])
@pytest.mark.parametrize("dtype", [dtype for dtype in OPS["matmul"].dtypes if dtype in CPU_DTYPES])
def test_matmul_is_right_or_rejected_in_every_layout(dtype, layout, batch):
    op = OPS["matmul"]
    for extents in ((32, 48, 64), (5, 3, 7)):
        case = case_of("matmul", dtype, *extents, layout=layout, batch=batch)
        if dtype == "int8" and batch > 1:
            with pytest.raises(UnsupportedCaseError):
                op.check(case, "cpu")
            continue
        op.check(case, "cpu")
        found = verdict("matmul", case, inputs_of(op, case, "normal"))
        assert found.is_right, f"{extents}: {found.reason}"


def test_fp8_matmuls_converted_on_a_cpu_pass():
    case = case_of("matmul", "fp8e4m3", 64, 48, 128)
    data = inputs_of(OPS["matmul"], case)
    assert verdict("matmul", case, data).is_right


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu-tanh", "silu", "swiglu", "bias-gelu"])
def test_activations_are_right_far_from_zero(name, dtype):
    # For x = -5 GELU is -1.4e-6, the difference of two numbers near 1: libraries return 0 or that,
    # and both are right.
    x = torch.linspace(-40, 40, 8001, dtype=torch.float64).to(torch_dtype(dtype))
    case = case_of(name, dtype, *((1, 8001) if name == "bias-gelu" else (8001,)))
    inputs = {"swiglu": (x, x.flip(0)), "bias-gelu": (x.view(1, -1), x.flip(0) / 16)}.get(
        name, (x,)
    )
    data = InputSet(inputs, torch.zeros(OPS[name].output_shape(case), dtype=x.dtype))
    found = verdict(name, case, data)
    assert found.is_right, found.reason


# Values by hand or from tables, to detect a wrong reference.
def test_op_references_agree_with_values_by_hand():
    x, y = (
        torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64),
        torch.tensor([3.0, 5.0, 7.0], dtype=torch.float64),
    )
    found = {name: OPS[name].reference for name in OPS}
    assert found["matvec-int8"](
        torch.stack([x, y]), y, torch.tensor([2.0, 0.5]).double()
    ).tolist() == [22, 41.5]
    assert found["triad"](x, y).tolist() == [8, 15, 23]
    # Elements that are not dropped.
    assert found["dropout"](x, None)[2].item() == pytest.approx(2 / 0.9, rel=1e-12)
    # The normal distribution function at 2, Abramowitz and Stegun table 26.1.
    normal_below_2 = 0.977249868051820793
    assert found["gelu"](x)[2].item() == pytest.approx(2 * normal_below_2, rel=1e-12)
    assert found["gelu"](x)[0].item() == pytest.approx(-0.158655253931457051, rel=1e-12)
    assert (
        found["bias-gelu"](x.view(1, 3), torch.tensor([1.0, 0.0, 0.0]).double())[0, 2]
        == found["gelu"](x)[2]
    )
    assert found["bias-gelu"](x.view(1, 3), torch.tensor([1.0, 0.0, 0.0]).double())[0, 0] == 0
    logistic_at_2 = 0.880797077977882444
    assert found["silu"](x)[2].item() == pytest.approx(2 * logistic_at_2, rel=1e-12)
    assert found["swiglu"](x, y)[2].item() == pytest.approx(14 * logistic_at_2, rel=1e-12)
    tanh_form = 1 + math.tanh(math.sqrt(2 / math.pi) * (2 + 0.044715 * 2**3))
    assert found["gelu-tanh"](x)[2].item() == pytest.approx(tanh_form, rel=1e-12)


def test_rope_references_agree_with_values_by_hand():
    q = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    cos, sin = torch.tensor([[0.0, 0.6]]).double(), torch.tensor([[1.0, 0.8]]).double()
    for name, by_hand in (
        ("rope", [-3, 2 * 0.6 - 4 * 0.8, 1, 4 * 0.6 + 2 * 0.8]),
        ("rope-interleaved", [-2, 1, 3 * 0.6 - 4 * 0.8, 4 * 0.6 + 3 * 0.8]),
    ):
        found = OPS[name].reference(q, q[:, :0], cos, sin)
        assert found.flatten().tolist() == pytest.approx(by_hand)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_rowwise_references_agree_with_values_by_hand():
    found = {name: OPS[name].reference for name in OPS}
    x, weight, bias = rows([3.0, 4.0], [-1.0, 1.0]), rows(2.0, 10.0), rows(0.5, -1.0)
    root = [math.sqrt(12.5 + 1e-6), math.sqrt(1 + 1e-6)]  # means of the squares: 12.5 and 1
    normed = torch.stack([rows(6.0, 40.0) / root[0], rows(-2.0, 10.0) / root[1]])
    assert torch.allclose(found["rmsnorm"](x, weight), normed, rtol=1e-12)
    deviation = [math.sqrt(0.25 + 1e-5), math.sqrt(1 + 1e-5)]  # variances over n: 0.25 and 1
    centered = torch.stack([rows(-1.0, 5.0) / deviation[0], rows(-2.0, 10.0) / deviation[1]])
    assert torch.allclose(found["layernorm"](x, weight, bias), centered + bias, rtol=1e-12)
    total, of_total = found["residual-rmsnorm"](x - 1, torch.ones_like(x), weight)
    assert torch.equal(total, x)
    assert torch.allclose(of_total, normed, rtol=1e-12)
    # 1 : 3, and values that overflow without the maximum.
    logits = rows([0.0, math.log(3.0)], [1000.0, 1000.0])
    assert torch.allclose(found["softmax"](logits), rows([0.25, 0.75], [0.5, 0.5]), rtol=1e-12)
    losses = found["cross-entropy"](logits, torch.tensor([1, 0]))
    assert losses.tolist() == pytest.approx([math.log(4 / 3), math.log(2)], rel=1e-12)


WIDENS_ON_A_CPU = ("rmsnorm", "residual-rmsnorm", "dropout")
"""Ops that torch composes of several kernels on a CPU, including a conversion; on a GPU it has one
kernel.
"""

WIDENS = ("cross-entropy", "matvec-int8")
"""Ops without a torch kernel for 16-bit logits or int8 weights, as their docstrings say."""


@pytest.mark.parametrize(
    "name", [name for name in OPS if name not in ("copy", *WIDENS_ON_A_CPU, *WIDENS)]
)
def test_eager_torch_copies_nothing(name):
    data = inputs_of(OPS[name], case_of(name, "bf16", *(64 for _ in OPS[name].axes)))
    with torch.no_grad(), torch.profiler.profile() as profile:
        OPS[name].eager(*data.inputs, out=data.out)
    names = {event.key for event in profile.key_averages()}
    assert any(word.startswith("aten::") for word in names)
    assert not names & {"aten::copy_", "aten::clone", "aten::contiguous"}


@pytest.mark.exhaustive
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
@pytest.mark.parametrize(
    ("name", "dtype", "extents"),
    [
        ("dropout", "bf16", (5000,)),
        ("residual-rmsnorm", "bf16", (5, 333)),
        ("matvec-int8", "fp16", (9, 40)),
    ],
)
def test_a_compiled_expression_is_right_too(name, dtype, extents):
    case = case_of(name, dtype, *extents)
    found = verdict(name, case, inputs_of(OPS[name], case, "normal"), "torch-compile")
    assert found.is_right, found.reason


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.check_result is None])
def test_compiled_expressions_compute_the_reference(name):
    op, case = OPS[name], case_of(name, "fp64", *[9, 5, 4][: len(OPS[name].axes)])
    data = inputs_of(op, case, "normal")
    found = (op.expression or op.reference)(*data.inputs)
    found = torch.stack(found) if isinstance(found, tuple) else found
    assert torch.allclose(found, op.reference(*widened(data.inputs)), rtol=1e-12)
