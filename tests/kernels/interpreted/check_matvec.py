"""Matrix-vector kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import matvec_cases as cases
import pytest
import torch
from bugs_matvec import BUGS
from matvec_cases import DTYPES
from planted import plant

import kernels.launch

VERSIONS = cases.versions()
WAYS = [(f"{op}-{version}", op, module) for version, module in VERSIONS.items() for op in module.KERNELS]
ROWS = (1, 3, 18)  # of which 3 and 18 end within a program's rows
WIDTHS = (1, 7, 127, 256, 511, 513, 1000, 2049, 4099)
WIDTHS_TO_SPLIT = (8192, 8209, 16400)  # two steps and more of a split, aligned or not; the last for int8 too


def ways(with_dtypes=True):
    names = DTYPES if with_dtypes else [None]
    return [
        pytest.param(op, module, DTYPES.get(name), id=f"{label}-{name}" if name else label)
        for label, op, module in WAYS
        for name in names
    ]


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_sizes(op, module, dtype, n):
    for m in ROWS:
        cases.check(op, module.KERNELS[op], *cases.draw(op, dtype, m, n))


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_wide_rows_of_few_rows(op, module, dtype):
    for n in WIDTHS_TO_SPLIT:
        cases.check(op, module.KERNELS[op], *cases.draw(op, dtype, 2, n))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", ["matvec", "matvec-int8"])
def test_split_rows_are_more_than_one_program_adds_up(op, monkeypatch):
    module = VERSIONS["v3"]
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 64, 2**16))
    for n in (16384, 16389):
        a = cases.draw_integers(op, torch.float32, 2 * module.TILE_ROWS + 3, n)
        chosen = module.plan(*a[0].shape, a[0].element_size(), n, 64)
        assert chosen.splits > 1
        cases.check_exact(op, module.KERNELS[op], *a)


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_integers_are_exact(op, module, dtype):
    for m, n in ((19, 1041), (5, 1040), (37, 45), (2, 8209)):
        cases.check_exact(op, module.KERNELS[op], *cases.draw_integers(op, dtype, m, n))


@pytest.mark.parametrize("stride", [1200, 1201, 1203], ids="stride-{}".format)
@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_padded_rows_are_walked_by_their_stride(op, module, dtype, stride):
    for n in (1, 1111):
        cases.check_padded(op, module.KERNELS[op], 9, n, stride, dtype)
    cases.check_padded(op, module.KERNELS[op], 2, 16387, 16384 + stride, dtype)  # split


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_special_values_stay_in_their_row(op, module, dtype, special):
    for column in (0, 5, 300, 600):
        inputs = cases.draw(op, dtype, 6, 601)
        if op == "matvec":
            inputs[0][4, column] = special
        else:
            inputs[2][4] = special
        cases.check(op, module.KERNELS[op], *inputs)


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_special_values_of_x_reach_every_row(op, module, dtype):
    for special in (math.nan, math.inf):
        a, x, *rest = cases.draw(op, dtype, 5, 1031)
        x[1030] = special
        a[2, 1030] = 0  # 0 * inf is NaN
        cases.check(op, module.KERNELS[op], a, x, *rest)


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_zeros_and_denormals(op, module, dtype):
    a, x, *rest = cases.draw(op, dtype, 4, 300)
    x.fill_(torch.finfo(dtype).smallest_normal / 4)
    a[0].fill_(0)
    a[1].fill_(1)
    a[2].fill_(-1)
    cases.check(op, module.KERNELS[op], a, x, *rest)
    cases.check(op, module.KERNELS[op], a, torch.full_like(x, -0.0), *rest)


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_fp16_sums_beyond_fp16_range_on_the_way(op, module, dtype):
    for n in (2048, 16384):
        cases.check(op, module.KERNELS[op], *cases.draw_cancelling(op, n))


@pytest.mark.parametrize("stride", [cases.FAR_STRIDE, cases.FAR_STRIDE + 1], ids=["aligned", "odd"])
@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_rows_beyond_32_bits(op, module, dtype, stride):
    cases.check_far_rows(op, module.KERNELS[op], stride)


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_no_columns_give_zeros_and_no_rows_give_nothing(op, module, dtype):
    launch, out = module.KERNELS[op], torch.ones(3)
    a, x, *scales = cases.draw(op, torch.float32, 3, 0)
    launch(a, x, *scales, out=out)
    assert not out.any()
    a, x, *scales = cases.draw(op, torch.float32, 0, 3)
    launch(a, x, *scales, out=out[:0])


def test_the_same_call_gives_the_same_bits():
    for op in ("matvec", "matvec-int8"):
        inputs = cases.draw(op, torch.float32, 3, 16400)
        first, second = torch.empty(3), torch.empty(3)
        for out in (first, second):
            VERSIONS["v3"].KERNELS[op](*inputs, out=out)
        assert torch.equal(first, second)


# ---- the checks can fail --------------------------------------------------------------------------------------------


SPOILED = {
    "one-element": lambda y: y[3].mul_(1.005),
    "scale": lambda y: y.mul_(1.005),
    "tail-of-zeros": lambda y: y[4:].zero_(),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ["matvec", "matvec-int8"])
def test_small_errors_are_seen(op, name, spoil):
    def launcher(*copies, out):
        out.copy_(cases.expect(*copies).exact)
        spoil(out)

    inputs = cases.draw(op, DTYPES[name], 5, 1031)
    cases.check(op, lambda *copies, out: out.copy_(cases.expect(*copies).exact), *inputs)
    with pytest.raises(pytest.fail.Exception):
        cases.check(op, launcher, *inputs)


def battery(module):
    """Run a few of each of the checks above.

    Far rows come last: beyond their last one there is no memory, and reading it would end the process.
    """
    for op, launch in module.KERNELS.items():
        for stride in (1201, 1216):
            cases.check_padded(op, launch, 9, 1111, stride, torch.float16)
        cases.check(op, launch, *cases.draw_cancelling(op, 16384))
        for m, n in ((3, 127), (18, 1041), (5, 2048), (3, 16401)):
            cases.check(op, launch, *cases.draw(op, torch.float16, m, n))
            cases.check_exact(op, launch, *cases.draw_integers(op, torch.float32, m, n))
        cases.check_far_rows(op, launch, cases.FAR_STRIDE)
        cases.check_far_rows(op, launch, cases.FAR_STRIDE + 1)


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

    def refuse(a, x, *, out):
        with pytest.raises(ValueError, match=rf"^matvec {request.param}: ") as error:
            VERSIONS[request.param].KERNELS["matvec"](a, x, out=out)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refuse


def test_unfit_operands_are_refused(refused):
    a, x, out = torch.ones(4, 8), torch.ones(8), torch.zeros(4)
    assert "strides (1, 4)" in refused(torch.ones(8, 4).t(), x, out=out)
    assert "strides (0, 1)" in refused(x.expand(4, 8), x, out=out)
    assert "strides (4, 1); rows must be dense and must not overlap" in refused(
        torch.ones(40).as_strided((4, 8), (4, 1)), x, out=out
    )
    assert "x of shape (8,) has strides (2,)" in refused(a, torch.ones(16)[::2], out=out)
    assert "a starts 4 bytes past" in refused(torch.ones(4, 9)[:, 1:], x, out=out)
    assert "a has dtype torch.float64" in refused(a.double(), x, out=out)
    assert "x has dtype torch.float16, a torch.float32" in refused(a, x.half(), out=out)
    assert "a has shape (8,); two dimensions" in refused(x, x, out=out)
    assert "x has shape (4,)" in refused(a, x[:4], out=out)
    assert "out has shape (8,)" in refused(a, x, out=torch.zeros(8))
    assert not out.any()


def refused_int8(*inputs, out):
    with pytest.raises(ValueError, match=r"^matvec-int8 v3: ") as error:
        VERSIONS["v3"].KERNELS["matvec-int8"](*inputs, out=out)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unfit_int8_operands_are_refused():
    a, x, scales, out = torch.ones((4, 16), dtype=torch.int8), torch.ones(16), torch.ones(4), torch.zeros(4)
    assert "a has dtype torch.float32; torch.int8 is needed" in refused_int8(a.float(), x, scales, out=out)
    assert "scales has dtype torch.float16; torch.float32 is needed" in refused_int8(a, x, scales.half(), out=out)
    assert "scales is of type float" in refused_int8(a, x, 1.0, out=out)
    assert "a starts 1 bytes past" in refused_int8(torch.ones((4, 17), dtype=torch.int8)[:, 1:], x, scales, out=out)
    assert "scales is on meta, x on cpu" in refused_int8(a, x, scales.to("meta"), out=out)
    assert "out has dtype torch.float16, x torch.float32" in refused_int8(a, x, scales, out=out.half())
    assert "scales has shape (3,)" in refused_int8(a, x, scales[:3], out=out)
    assert "scales of shape (4,) has strides (2,)" in refused_int8(a, x, torch.ones(8)[::2], out=out)
    assert "x has shape (8,)" in refused_int8(a, x[:8], scales, out=out)
    assert "out has shape (2,)" in refused_int8(a, x, scales, out=out[:2])
    assert "rows must be dense" in refused_int8(torch.ones((16, 4), dtype=torch.int8).t(), x, scales, out=out)
    assert not out.any()
