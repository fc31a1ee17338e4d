"""Softmax kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

from unittest.mock import patch

import pytest
import torch
from bugs_softmax import BUGS
from exact import UNWRITTEN, run_guarded
from planted import plant
from softmax_cases import (
    DTYPES,
    FEW_SPECIAL_ROWS,
    assert_softmax,
    check_far_output,
    check_far_rows,
    check_padded,
    check_softmax,
    expect_softmax,
    normal,
    special_rows,
)

import kernels.launch
from kernels.softmax import v1_naive, v2_aligned, v3_split_rows

torch.set_num_threads(1)  # the interpreter has one, and waits for the others of a busy machine

VERSIONS = {"v1": v1_naive, "v2": v2_aligned, "v3": v3_split_rows}
WIDTHS = [1, 7, 16, 257, 1000, 4096, 4099]
SHAPES = [(m, n) for n in WIDTHS for m in (1, 5)]
SHAPES += [(1, 8193), (1, 16400), (1, 32768), (2, 32769), (1, 65536)]
WIDE = [(1, 65537), (2, 131075)]  # more than version 1 takes
PADS = [(16, 0), (16, 32), (5, 5), (1, 17)]
NAMES = [f"softmax-{version}-{dtype}" for version in VERSIONS for dtype in DTYPES]


def split_name(name):
    _, version, dtype = name.split("-")
    return VERSIONS[version].KERNELS["softmax"], DTYPES[dtype]


SIZES = [(name, m, n) for name in NAMES for m, n in SHAPES + ([] if "v1" in name else WIDE)]


@pytest.mark.parametrize(("name", "m", "n"), SIZES, ids=lambda value: str(value))
def test_sizes(name, m, n):
    launcher, dtype = split_name(name)
    check_softmax(launcher, normal(m, n, dtype), f"{name} {m}x{n}")


@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize("n", [5, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_rows_apart(name, n, pads):
    launcher, dtype = split_name(name)
    check_padded(launcher, normal(3, n, dtype), pads)


@pytest.mark.parametrize("pads", [(16, 0), (5, 5)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_wide_rows_apart(name, pads):
    launcher, dtype = split_name(name)
    check_padded(launcher, normal(2, 33001, dtype), pads)


@pytest.mark.parametrize("n", [19, 1029])
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, n):
    launcher, dtype = split_name(name)
    x = special_rows(n, dtype)
    out = run_guarded(launcher, (x,), tuple(x.shape), "cpu")
    assert_softmax(out, x, name)
    assert torch.equal(out.isnan(), torch.softmax(x, 1).isnan())
    assert out[:6].isnan().all()
    assert out[9:12].isnan().all()
    assert out[12, -1] == 1


@pytest.mark.parametrize("name", NAMES)
def test_special_values_of_wide_rows(name):
    launcher, dtype = split_name(name)
    check_softmax(launcher, special_rows(33005, dtype)[FEW_SPECIAL_ROWS], name)


@pytest.mark.parametrize(("n", "lead"), [(1100, 1000), (40000, 33000)])
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_begin_with_minus_infinity(name, n, lead):
    launcher, dtype = split_name(name)
    x = normal(2, n, dtype)
    x[:, :lead] = float("-inf")
    check_softmax(launcher, x, name)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (1.0, -1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("n", [1000, 34000])
@pytest.mark.parametrize("name", NAMES)
def test_large_offsets_and_wide_ranges(name, n, scale, offset):
    launcher, dtype = split_name(name)
    check_softmax(launcher, normal(2, n, dtype, scale, offset), f"{name} {scale} {offset}")


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@pytest.mark.parametrize("name", NAMES)
def test_maximum_of_every_step(name, order):
    launcher, dtype = split_name(name)
    check_softmax(launcher, torch.linspace(-50 * order, 50 * order, 60000)[None].to(dtype), name)


def test_rows_go_through_the_cache_in_groups(monkeypatch):
    seen = []
    for variant in v3_split_rows.SHARED.values():
        monkeypatch.setitem(vars(variant), "launch", Recorded(variant, seen))
    monkeypatch.setattr(kernels.launch, "WIDE", 20000)
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 200_000))
    check_softmax(v3_split_rows.KERNELS["softmax"], normal(5, 20001, torch.float16), "5 rows, 2 at a time")
    assert [(part, programs) for part, programs in seen] == [
        *(("partial", 8), ("finish", 8)),
        *(("partial", 8), ("finish", 8)),
        *(("partial", 4), ("finish", 4)),
    ]


class Recorded:
    """A launch that is noted before it is made."""

    def __init__(self, variant, seen):
        self.variant, self.seen = variant, seen

    def __call__(self, programs, *arguments):
        self.seen.append((self.variant.part, programs))
        type(self.variant).launch(self.variant, programs, *arguments)


@pytest.mark.parametrize("n", [100, 40000])
@pytest.mark.parametrize("name", NAMES)
def test_result_may_replace_the_input(name, n):
    launcher, dtype = split_name(name)
    x = normal(3, n, dtype)
    out = x.clone()
    launcher(out, out=out)
    assert_softmax(out, x, name)


@pytest.mark.parametrize("name", [name for name in NAMES if "fp16" in name])
def test_rows_beyond_32_bit_offsets(name):
    check_far_rows(split_name(name)[0])
    check_far_output(split_name(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_empty_matrices_write_nothing(name):
    launcher, dtype = split_name(name)
    for shape in ((0, 5), (5, 0)):
        launcher(torch.empty(shape, dtype=dtype), out=torch.empty(shape, dtype=dtype))


# ---- the comparison itself ------------------------------------------------------------------------------------------


def right(n, dtype):
    x = normal(2, n, dtype)
    out = expect_softmax(x).exact.to(dtype)
    assert_softmax(out, x, "right")
    return x, out


def judged_wrong(out, x):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        assert_softmax(out, x, "wrong")


@pytest.mark.parametrize("n", [16, 1000, 131072])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_small_errors_are_seen(n, dtype):
    x, out = right(n, dtype)
    top = int(out[1].argmax())
    single = out.clone()
    single[1, top] *= 1.005
    judged_wrong(single, x)
    judged_wrong((out * 1.005).to(dtype), x)
    judged_wrong((out * 0.995).to(dtype), x)
    zeroed = out.clone()
    zeroed[:, -(n // 8) :] = 0
    judged_wrong(zeroed, x)
    judged_wrong(out.roll(1, 1), x)
    judged_wrong(torch.where(out == out.max(), torch.nan, out), x)


def test_one_small_wrong_element_of_a_wide_row_is_seen():
    x, out = right(131072, torch.float32)
    for wrong in (0.0, 1.005 * float(out[0, 77]), UNWRITTEN):
        changed = out.clone()
        changed[0, 77] = wrong
        judged_wrong(changed, x)


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def battery(module):
    """Raise unless the module's softmax passes a short form of the checks above."""
    launcher = module.KERNELS["softmax"]
    check_far_rows(launcher)
    check_far_rows(launcher, 16400)  # which programs share
    with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 70_000)):  # a row at a time
        check_softmax(launcher, normal(3, 17000, torch.float16), "groups of rows")
    for dtype in DTYPES.values():
        for m, n in ((3, 1), (3, 7), (2, 256), (2, 1030), (1, 33007)):
            check_softmax(launcher, normal(m, n, dtype), f"{m}x{n}")
        for n, pads in ((24, (16, 0)), (24, (3, 19)), (33003, (16, 32))):
            check_padded(launcher, normal(2, n, dtype), pads)
        for n in (1029, 33005):
            check_softmax(launcher, torch.zeros((1, n), dtype=dtype), "uniform")
            check_softmax(launcher, normal(1, n, dtype, 60.0, 3e4), "far from zero")
            check_softmax(launcher, special_rows(n, dtype)[FEW_SPECIAL_ROWS], "special")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("version", VERSIONS)
def test_battery_passes_without_a_bug(version):
    battery(VERSIONS[version])


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_bug_is_caught(bug, tmp_path):
    module = plant(bug, tmp_path)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        battery(module)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def refused(request):
    """Return the one line with which a version refuses its operands."""

    def refuse(x, *, out):
        before = out.clone() if isinstance(out, torch.Tensor) and out.device.type == "cpu" else None
        with pytest.raises(ValueError, match=rf"^softmax {request.param}: ") as error:
            VERSIONS[request.param].KERNELS["softmax"](x, out=out)
        assert "\n" not in str(error.value)
        assert before is None or torch.equal(before, out)
        return str(error.value)

    return refuse


def test_unfit_operands_are_refused(refused):
    x, out = torch.ones(4, 8), torch.zeros(4, 8)
    assert "x of shape (4, 8) has strides (1, 4); rows must be dense" in refused(torch.ones(8, 4).t(), out=out)
    assert "out of shape (4, 8) has strides (1, 4)" in refused(x, out=torch.ones(8, 4).t())
    assert "strides (0, 1); rows must be dense and must not overlap" in refused(x[:1].expand(4, 8), out=out)
    assert "strides (16, 2)" in refused(torch.ones(4, 16)[:, ::2], out=out)
    assert "x starts 4 bytes past" in refused(torch.ones(4, 9)[:, 1:], out=out)
    assert "x has shape (8,); two dimensions are needed, (m, n)" in refused(x[0], out=out[0])
    assert "out has shape (4, 4)" in refused(x, out=out[:, :4])
    assert "x has dtype torch.float64; allowed are" in refused(x.double(), out=out.double())
    assert "out has dtype torch.float16, x torch.float32" in refused(x, out=out.half())
    assert "out is on meta, x on cpu" in refused(x, out=torch.empty(4, 8, device="meta"))
    assert "x is of type list" in refused([1.0], out=out)


def test_rows_too_wide_are_refused():
    def wide(n):
        return torch.empty(n, dtype=torch.float16)[None]  # never touched, so never there

    with pytest.raises(ValueError, match=r"^softmax v1: x has 65537 columns; at most 65536 are supported"):
        v1_naive.KERNELS["softmax"](wide(65537), out=wide(65537))
    with pytest.raises(ValueError, match=r"^softmax v2: x has 1073741825 columns; at most 1073741824 are"):
        v2_aligned.KERNELS["softmax"](wide(2**30 + 1), out=wide(2**30 + 1))


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_rows_shifted_against_each_other_are_refused(version):
    x = torch.ones(2, 300)
    with pytest.raises(ValueError, match=rf"^softmax {version}: rows of x are 300 elements apart, rows of out 308"):
        VERSIONS[version].KERNELS["softmax"](x, out=torch.ones(2, 308)[:, :300])
