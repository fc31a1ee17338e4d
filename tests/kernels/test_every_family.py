"""Results of all kernel versions compared with fp64.

Without TRITON_INTERPRET these tests need a GPU; `test_interpreted.py` runs them in the interpreter.
Tests of a single family are in `interpreted/`, `test_gpu.py` and `test_matmul.py`.
"""

import pytest
import torch
from exact import DEVICE, version_of
from families import blank, cases_of, every_way, small, ways

from kernels.launch import INTERPRETED

pytestmark = [] if INTERPRETED else pytest.mark.gpu

# Around the widths of accesses, of blocks, and from which a row is walked or shared by programs.
WIDTHS = (1, 7, 16, 257, 1000, 1024, 1128, 4099)
# The interpreter is slow; it has single rows of the widths below.
HEIGHTS = (3,) if INTERPRETED else (1, 3)
ROWS = [(m, n) for n in WIDTHS for m in HEIGHTS]
ROWS += [(17, 24), (17, 27), (1, 8193), (1, 16408), (2, 20001), (2, 32769), (1, 65536), (1, 131075)]
SHAPES = {
    "adamw": [(n,) for n in (1, 7, 1023, 1040, 5003)],
    "cross_entropy": ROWS,
    # The second is the length of a bias.
    "elementwise": [(m * n, n) for n in (1, 7, 256, 513) for m in (1, 5)],
    "matvec": [(m, n) for n in (1, 7, 127, 256, 511, 513, 1000, 2049, 4099) for m in (1, 3, 18)],
    "norm": ROWS,
    "reduction": [(n,) for n in (1, 7, 1023, 1025, 2049, 16384, 49152, 98305, 250003)],
    # Tokens, query heads, key heads, and elements of a head.
    "quantize": [(m, n) for n in (128, 256, 1152, 4096) for m in (1, 35)],
    "rope": [(1, 1, 1, 2), (3, 7, 2, 6), (2, 32, 8, 128), (2, 9, 4, 80), (1, 3, 1, 258)],
    "softmax": ROWS,
}
# Two steps and more of columns that programs share.
SHAPES["matvec"] += [(2, 8192), (2, 8209), (2, 16400)]
LARGE_ROWS = [(199, 1000), (199, 4099), (17, 50257), (17, 128256), (1, 262144)]
LARGE = {
    "adamw": [(1_000_003,)],
    "cross_entropy": LARGE_ROWS,
    "elementwise": [(1_000_003, 1_000_003), (1001 * 2064, 2064), (1001 * 4099, 4099)],
    "matvec": [(129, 1000), (1001, 513), (4096, 4096), (1, 1_000_003), (7, 65536)],
    "norm": LARGE_ROWS,
    "reduction": [(1_000_003,), (20_000_001,)],
    "quantize": [(1001, 7168), (4099, 128), (17, 32768)],
    "rope": [(1001, 32, 8, 128), (4099, 33, 3, 96)],
    "softmax": LARGE_ROWS,
}
SIZES = SHAPES if INTERPRETED else {family: SHAPES[family] + LARGE[family] for family in SHAPES}
OF_ROWS = ("cross_entropy", "matvec", "norm", "softmax")
EVERY = 8 if INTERPRETED else 1
"""The interpreter is slow: it takes every eighth size of an operation in a version and a dtype, and
the sizes beside them of the next one.
"""
MAX_COLUMNS = {("softmax", "v1"): 65536, ("norm", "v1"): 65536}


def takes(family, module, columns):
    return columns <= MAX_COLUMNS.get((family, version_of(module)), 2**30)


def each_way(*families):
    return [
        pytest.param(family, *way.values, id=f"{family}-{way.id}")
        for family in families
        for way in ways(family)
    ]


def each_size(sizes):
    """Return each way of the families in `sizes` with its sizes."""
    found = []
    for place, way in enumerate(each_way(*sizes)):
        family, _, module, _ = way.values
        own = [size for size in sizes[family] if takes(family, module, size[-1])]
        step = min(EVERY, len(own))
        for size in own[place % step :: step]:
            name = "x".join(map(str, size))
            found.append(pytest.param(*way.values, size, id=f"{way.id}-{name}"))
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("family", "op", "module", "dtype", "shape"), each_size(SIZES))
def test_sizes(family, op, module, dtype, shape):
    cases = cases_of(family)
    cases.check(op, module, *cases.draw(op, dtype, *shape))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "op", "module", "dtype", "shape"),
    each_size({family: SIZES[family] for family in ("matvec", "reduction")}),
)
def test_integers_are_exact(family, op, module, dtype, shape):
    cases = cases_of(family)
    cases.check_exact(op, module, *cases.draw_integers(op, dtype, *shape))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("family", "op", "module", "dtype", "size"),
    each_size({family: [(9, 13), (9, 1111), (2, 33001)] for family in OF_ROWS}),
)
def test_row_strides_beyond_the_width(family, op, module, dtype, size):
    aligned = -size[1] % 16
    for pads in ((aligned, aligned + 16, aligned + 48), (5, 21, 37), (0, 16, 32)):
        cases_of(family).check_apart(op, module, dtype, *size, pads)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("family", "op", "module", "dtype", "size"),
    each_size({family: [(24,), (1029,), (33005,)] for family in SHAPES}),
)
def test_special_values(family, op, module, dtype, size):
    cases = cases_of(family)
    for inputs in cases.specials(op, dtype, *size):
        cases.check(op, module, *inputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n", "scale", "offset"), [(1000, 1.0, 1e4), (34000, 1.0, -1e4), (1000, 60.0, 0.0)]
)
@pytest.mark.parametrize(("family", "op", "module", "dtype"), each_way("cross_entropy", "softmax"))
def test_large_offsets_and_wide_ranges(family, op, module, dtype, n, scale, offset):
    cases = cases_of(family)
    cases.check(op, module, *cases.draw(op, dtype, 2, n, scale, offset))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("family", "op", "module", "dtype"), each_way("elementwise", "norm", "softmax")
)
def test_output_may_be_the_first_input(family, op, module, dtype):
    if op == "residual-rmsnorm":  # whose output is twice as large
        return
    for shape in ((3 * 1040, 1040),) if family == "elementwise" else ((3, 1001), (3, 20008)):
        x, *others = (tensor.to(DEVICE) for tensor in cases_of(family).draw(op, dtype, *shape))
        out = torch.empty_like(x)
        module.KERNELS[op](x, *others, out=out)
        module.KERNELS[op](x, *others, out=x)
        assert torch.equal(out, x)


every_launcher = pytest.mark.parametrize(("family", "op", "module"), every_way())


@pytest.mark.sampled(3)
@every_launcher
def test_same_call_gives_the_same_bits(family, op, module):
    inputs, out = small(family, op, torch.float32)
    first, second = torch.zeros_like(out, device=DEVICE), torch.ones_like(out, device=DEVICE)
    for found in (first, second):
        module.KERNELS[op](*(tensor.to(DEVICE) for tensor in inputs), out=found)
    assert torch.equal(first, second)


EMPTY = {
    "adamw": [(0,)],
    "cross_entropy": [(0, 5)],
    "elementwise": [(0, 4)],
    "matmul": [(0, 8, 4), (8, 0, 4)],
    "matvec": [(0, 3), (3, 0)],
    "norm": [(0, 8), (3, 0)],
    "reduction": [(0,)],
    "quantize": [(0, 128), (3, 0)],
    "rope": [(0, 2, 1, 8), (3, 0, 0, 8)],
    "softmax": [(0, 5), (5, 0)],
}
"""Shapes without an output, or whose sums have no terms and are zero."""


@pytest.mark.sampled(3)
@every_launcher
def test_empty_operands_give_zeros_or_nothing(family, op, module):
    for shape in EMPTY[family]:
        inputs = cases_of(family).draw(op, torch.float32, *shape)
        out = torch.ones_like(blank(family, op, inputs), device=DEVICE)
        module.KERNELS[op](*(tensor.to(DEVICE) for tensor in inputs), out=out)
        assert not out.any()
