"""Cross-entropy kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import pytest
import torch
from bugs import BUGS
from cross_entropy_cases import (
    IGNORED,
    OUTSIDE,
    check,
    check_apart,
    check_far_logits,
    compare,
    draw,
    expect,
    special_labels,
    special_logits,
)
from exact import DTYPES, run_guarded
from families import versions_of, ways
from planted import planted_tests

torch.set_num_threads(1)  # the interpreter has one, and waits for the others of a busy machine

OP = "cross-entropy"
VERSIONS = versions_of("cross_entropy")
WIDTHS = [1, 7, 16, 257, 1000, 4099]
SHAPES = [(m, v) for v in WIDTHS for m in (1, 3)]
SHAPES += [(2, 8192), (1, 16400), (2, 50257), (1, 131075)]
SEVERAL_STEPS = 262200  # columns, so many that each piece of version 3 is two steps and a rest in fp32
every_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("cross_entropy"))


@pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
@every_way
def test_sizes(op, module, dtype, shape):
    check(op, module, *draw(op, dtype, *shape))


@pytest.mark.parametrize("pad", [8, 5, 3])
@pytest.mark.parametrize("v", [1, 1000, 9001])
@every_way
def test_rows_apart(op, module, dtype, v, pad):
    check_apart(module, *draw(op, dtype, 2, v), pad)


@pytest.mark.parametrize("v", [19, 9001])
@every_way
def test_special_values(op, module, dtype, v):
    x, labels = special_logits(v, dtype)
    out = run_guarded(module.KERNELS[op], (x, labels), (len(x),), "cpu", torch.float32)
    compare(out, x, labels)
    by_torch = torch.nn.functional.cross_entropy(x.float(), labels, reduction="none")
    assert torch.equal(out.isnan(), by_torch.isnan())
    assert torch.equal(out.isinf(), by_torch.isinf())
    assert out[:6].isnan().all()
    assert out[9:12].isnan().all()
    assert out[6] == torch.inf
    assert out[12] == out[15] == 0


@pytest.mark.parametrize("v", [1, 9001])
@every_way
def test_labels_that_are_no_column(op, module, dtype, v):
    x, labels = special_labels(v, dtype)
    out = run_guarded(module.KERNELS[op], (x, labels), (len(x),), "cpu", torch.float32)
    compare(out, x, labels)
    assert out[[1, *range(4, 5 + len(OUTSIDE))]].isnan().all()
    assert out[2] == 0
    assert not out[[0, 3, -1]].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_reference_agrees_with_torch(dtype):
    x, labels = draw(OP, dtype, 7, 1000)
    labels[3] = IGNORED
    by_torch = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
    assert torch.allclose(expect(x, labels).exact, by_torch, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (1.0, -1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("v", [1000, 20003])
@every_way
def test_large_offsets_and_wide_ranges(op, module, dtype, v, scale, offset):
    check(op, module, *draw(op, dtype, 1, v, scale, offset))


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@every_way
def test_maximum_of_every_step(op, module, dtype, order):
    check(op, module, torch.linspace(-50 * order, 50 * order, 60000)[None].to(dtype), torch.tensor([777]))


def battery(module):
    """Raise unless the module's cross-entropy passes a short form of the checks above."""
    check_far_logits(module)
    for dtype in DTYPES.values():
        for m, v in ((2, 1), (2, 7), (2, 256), (2, 1030), (2, 20011)):
            check(OP, module, *draw(OP, dtype, m, v))
        for v, pad in ((24, 16), (24, 5), (20003, 3)):
            check_apart(module, *draw(OP, dtype, 2, v), pad)
        check(OP, module, *special_labels(24, dtype))
        check(OP, module, *special_logits(1029, dtype))
    for v, dtype in ((1029, torch.float32), (1029, torch.float16), (20005, torch.float16)):
        check(OP, module, torch.full((1, v), 3e4).to(dtype), torch.tensor([v - 1]))
        check(OP, module, *draw(OP, dtype, 1, v, 60.0, 3e4))
    check_far_logits(module, 20000)
    check(OP, module, *draw(OP, torch.float32, 1, SEVERAL_STEPS))
    check(OP, module, *special_labels(20005, torch.float16))
    check(OP, module, *special_logits(20005, torch.float16))


test_battery_passes, test_planted_bug_is_caught = planted_tests(battery, VERSIONS, BUGS["cross_entropy"])
