"""Row norms under Triton's interpreter, against fp64. See test_interpreted.py for how this is run.

`battery(module)` is what a planted bug must not survive: it goes through every kernel of a version, with rows
where eps decides, rows whose squares pass the range of fp16, and rows 2^30 elements apart.
"""

import math
from unittest.mock import patch

import pytest
import torch
from bugs_norm import BUGS
from exact import UNWRITTEN
from norm_cases import OPS, VERSIONS, Plane, check, compare, draw, padded
from planted import ROOT, plant

import kernels.launch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
WIDTHS = (1, 7, 16, 256, 1000, 1024, 1128)
ROWS = (1, 3)
ELSE = {  # rows of other widths: up to 16 a program, about the limits of version 3, and in several steps
    "v1": {4099: (1,)},
    "v2": {4099: (1,)},
    "v3": {24: (17,), 27: (17,), **dict.fromkeys((257, 1025, 4099, 16408, 20001), (1,))},
}
HARDEST_FIRST = ("residual-rmsnorm", "layernorm", "rmsnorm")
SCALES = (1.0, 1e-4, 300.0)  # of rows: plain, where eps decides, where squares pass the range of fp16
ELSE["v4"] = {27: (17,), 17001: (3,), 20008: (1,), 131075: (1,)}  # of which most are shared
APART = ((5, 13, 37), (0, 1, 2))  # by how much the strides of x, of a residual and of out exceed n


def sizes(version):
    """Return the widths that a version is checked at, each with its counts of rows."""
    return (
        dict.fromkeys(WIDTHS if version == "v3" else WIDTHS[::4] if version == "v4" else WIDTHS[::2], ROWS)
        | ELSE[version]
    )


SIZES = [
    pytest.param(op, version, name, n, id=f"{op}-{version}-{name}-{n}")
    for op in OPS
    for version in VERSIONS
    for name in DTYPES
    for n in sizes(version)
]
KERNEL_CASES = [
    pytest.param(op, version, name, id=f"{op}-{version}-{name}")
    for op in OPS
    for version in VERSIONS
    for name in DTYPES
]


def is_corrected(version):
    return version in ("v3", "v4")


@pytest.mark.parametrize(("op", "version", "name", "n"), SIZES)
def test_sizes(op, version, name, n):
    for m in sizes(version)[n]:
        check(op, VERSIONS[version].KERNELS[op], *draw(op, DTYPES[name], m, n), corrected=is_corrected(version))


def run_padded(launcher, op, inputs, strides):
    """Launch on rows `strides` elements apart, NaN between them; return the output, having looked between its rows."""
    *matrices, out_stride = strides
    count = len(matrices)
    views = [padded(tensor, stride, math.nan)[0] for tensor, stride in zip(inputs, matrices, strict=False)]
    shape = tuple(inputs[0].shape)
    unwritten = torch.full((2, *shape) if op == "residual-rmsnorm" else shape, UNWRITTEN, dtype=inputs[0].dtype)
    out, storage = padded(unwritten, out_stride, UNWRITTEN)
    launcher(*views, *inputs[count:], out=out)
    assert (storage[..., shape[1] :] == UNWRITTEN).all(), f"{op}: wrote between rows"
    return out


def check_padded(module, op, dtype, m, n, extra, corrected):
    """Check rows apart: `extra` holds by how much the strides of x, of a residual and of out exceed n."""
    inputs = draw(op, dtype, m, n, SCALES)
    strides = [n + more for more in (extra if op == "residual-rmsnorm" else extra[::2])]
    compare(op, run_padded(module.KERNELS[op], op, inputs, strides), *inputs, corrected=corrected)


@pytest.mark.parametrize("n", [13, 1111])
@pytest.mark.parametrize(("op", "version", "name"), KERNEL_CASES)
def test_rows_apart(op, version, name, n):
    aligned = -n % 16
    for extra in ((aligned, aligned + 16, aligned + 48), *APART):
        check_padded(VERSIONS[version], op, DTYPES[name], 2, n, extra, is_corrected(version))


@pytest.mark.parametrize("n", [24, 1001])
@pytest.mark.parametrize(("op", "version", "name"), KERNEL_CASES)
def test_special_values_stay_in_their_row(op, version, name, n):
    x, *others = draw(op, DTYPES[name], 8, n)
    for row, (column, value) in enumerate([(0, math.nan), (n - 1, math.inf), (n // 2, -math.inf), (n - 1, math.nan)]):
        x[2 * row, column] = value
    x[1], x[3] = 0.0, -0.0
    x[5, ::2] = 2.0**-24  # below the normal range of fp16
    if name == "fp32":
        x[7] = 1e-40
    check(op, VERSIONS[version].KERNELS[op], x, *others, corrected=is_corrected(version))


@pytest.mark.parametrize(("op", "version", "name"), KERNEL_CASES)
def test_rows_where_eps_decides_and_where_squares_pass_fp16(op, version, name):
    for n in (48, 1000):
        inputs = draw(op, DTYPES[name], 2, n, (1e-4, 3e3))
        check(op, VERSIONS[version].KERNELS[op], *inputs, corrected=is_corrected(version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("op", ["rmsnorm", "residual-rmsnorm"])
def test_zeros_keep_their_sign(op, version):
    x = torch.tensor([0.0, -0.0] * 13).repeat(3, 1)
    x[2, 0] = 1.0
    inputs = (x, torch.ones(26)) if op == "rmsnorm" else (x, torch.where(torch.signbit(x), -0.0, 0.0), torch.ones(26))
    out = check(op, VERSIONS[version].KERNELS[op], *inputs).view(-1, 3, 26)
    assert all(torch.equal(torch.signbit(plane), torch.signbit(x)) for plane in out)


@pytest.mark.parametrize("n", [40, 1024, 9001])
def test_a_large_mean_costs_the_newest_layernorm_nothing(n):
    inputs = draw("layernorm", torch.float32, 3, n, shift=1e4)
    check("layernorm", VERSIONS["v3"].KERNELS["layernorm"], *inputs, corrected=True)
    for version in ("v1", "v2"):
        check("layernorm", VERSIONS[version].KERNELS["layernorm"], *inputs)
    with pytest.raises(pytest.fail.Exception, match="wrong in"):
        check("layernorm", VERSIONS["v2"].KERNELS["layernorm"], *inputs, corrected=True)


@pytest.mark.parametrize("n", [40, 9001])
def test_constant_rows_give_the_bias(n):
    x = torch.tensor([[1e4], [-3e8], [0.1]]).expand(3, n).contiguous()
    _, weight, bias = draw("layernorm", torch.float32, 1, n)
    out = torch.empty_like(x)
    VERSIONS["v3"].KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.allclose(out[[0, 2]], bias.expand(2, n), rtol=1e-6, atol=1e-5)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("n", [24, 9001])
def test_squares_that_overflow_leave_nothing_but_the_bias(n):
    x, weight, bias = draw("layernorm", torch.float32, 2, n)
    x *= torch.tensor([[1e20], [1e30]])
    out, both = torch.empty_like(x), torch.empty(2, 2, n)
    VERSIONS["v3"].KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.equal(out, bias.expand(2, n))
    VERSIONS["v3"].KERNELS["residual-rmsnorm"](x, torch.zeros_like(x), weight, out=both)
    assert torch.equal(both[0], x)
    assert not both[1].any()


@pytest.mark.parametrize(("version", "name"), [(version, name) for version in VERSIONS for name in DTYPES])
@pytest.mark.parametrize("n", [40, 1001])
def test_residual_rmsnorm_is_the_chain(version, name, n):
    x, residual, weight = draw("residual-rmsnorm", DTYPES[name], 8, n)
    both, after = torch.empty(2, 8, n, dtype=x.dtype), torch.empty_like(x)
    VERSIONS[version].KERNELS["residual-rmsnorm"](x, residual, weight, out=both)
    VERSIONS[version].KERNELS["rmsnorm"](x + residual, weight, out=after)
    assert torch.equal(both[0], x + residual)
    assert torch.equal(both[1], after)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("op", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("n", [1001, 9008])
def test_result_may_replace_x(op, version, n):
    def in_place(x, *others, out):
        out.copy_(x)
        VERSIONS[version].KERNELS[op](out, *others, out=out)

    check(op, in_place, *draw(op, torch.float32, 3, n), corrected=is_corrected(version))


def check_far_rows(module, op, dtype, n):
    """Check rows so far apart that a product of row number and stride needs more than 32 bits; each stride differs."""
    stride, plane_stride = 2**30, 2**31 + 2**16
    inputs = draw(op, dtype, 3, n)
    count = 2 if op == "residual-rmsnorm" else 1
    views = [Plane(dtype).strided((3, n), (stride + 16 * number, 1)) for number in range(count)]
    for view, tensor in zip(views, inputs, strict=False):
        view.copy_(tensor)
    rows = (stride + 48, 1)
    out = Plane(dtype).strided((2, 3, n) if count == 2 else (3, n), (plane_stride, *rows) if count == 2 else rows)
    module.KERNELS[op](*views, *inputs[count:], out=out)
    compare(op, out.clone(), *inputs, corrected=is_newest(module))


def is_newest(module):
    return hasattr(module, "layer_tiles") or hasattr(module, "layer_finish")


def battery(module, suspect=""):
    """Raise unless every kernel of a version is right; what a suspect kernel computes comes first."""
    parts = [battery_of_short_rows, battery_of_wide_rows] if is_newest(module) else [battery_of_short_rows]
    if hasattr(module, "SHARED"):
        parts = [battery_of_shared_rows]
    ops = ("layernorm", "residual-rmsnorm", "rmsnorm") if suspect.startswith("layer") else HARDEST_FIRST
    for part in reversed(parts) if suspect.endswith("tiles") else parts:
        part(module, ops)


def battery_of_short_rows(module, ops):
    newest = is_newest(module)
    for op in ops:
        for dtype, m, n in ((torch.float16, 17, 40), (torch.float16, 3, 1001), (torch.float32, 1, 1025)):
            check(op, module.KERNELS[op], *draw(op, dtype, m, n, SCALES), corrected=newest)
    for op in ops:
        for extra in ((3, 5, 9), (3, 11, 19)):
            check_padded(module, op, torch.float16, 3, 200, extra, corrected=newest)
        check_far_rows(module, op, torch.float16, 40)
    if newest:
        inputs = draw("layernorm", torch.float32, 3, 1000, shift=1e4)
        check("layernorm", module.KERNELS["layernorm"], *inputs, corrected=True)


def battery_of_wide_rows(module, ops):
    for op in ops:
        check(op, module.KERNELS[op], *draw(op, torch.float16, 2, 9001, (300.0, 1e-4)), corrected=True)
        check_far_rows(module, op, torch.float32, 8301)
    check_padded(module, "residual-rmsnorm", torch.float16, 2, 9001, (7, 15, 31), corrected=True)


def battery_of_shared_rows(module, ops):
    """Rows of several pieces, in groups and together, with a large mean, and far apart."""
    with patch.object(kernels.launch, "FEWEST_STEPS", 1):  # shorter rows, so that it takes less
        for op in ops:
            check(op, module.KERNELS[op], *draw(op, torch.float16, 3, 6008, SCALES), corrected=True)
            check(op, module.KERNELS[op], *draw(op, torch.float32, 2, 5001, (300.0, 1e-4)), corrected=True)
            check_padded(module, op, torch.float16, 3, 5003, (7, 15, 31), corrected=True)
            check_far_rows(module, op, torch.float16, 4104)
        check(
            "layernorm",
            module.KERNELS["layernorm"],
            *draw("layernorm", torch.float32, 3, 5001, shift=1e4),
            corrected=True,
        )
        check("rmsnorm", module.KERNELS["rmsnorm"], *draw("rmsnorm", torch.float32, 3, 10001), corrected=True)
        with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 30_000)):  # a row at a time
            check(
                "rmsnorm", module.KERNELS["rmsnorm"], *draw("rmsnorm", torch.float16, 3, 5001, SCALES), corrected=True
            )


@pytest.mark.parametrize(("cache_bytes", "groups"), [(80_000, 3), (2**22, 1)])
@pytest.mark.parametrize("op", OPS)
def test_rows_go_through_the_cache_in_groups(monkeypatch, op, cache_bytes, groups):
    module, launched = VERSIONS["v4"], []
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, cache_bytes))
    monkeypatch.setattr(kernels.launch, "WIDE", 20000)
    part = module.SHARED[op, torch.float16, "partial"]
    launch = part.launch
    monkeypatch.setitem(vars(part), "launch", lambda *given: launched.append(given[0]) or launch(*given))
    check(op, module.KERNELS[op], *draw(op, torch.float16, 3, 20008, SCALES), corrected=True)
    assert len(launched) == groups


def test_a_row_of_version_4_is_that_of_version_3_where_no_programs_share_it():
    for m, n in ((4, 20008), (3, 4104)):
        x, weight = draw("rmsnorm", torch.float32, m, n)
        out, before = torch.empty_like(x), torch.empty_like(x)
        VERSIONS["v4"].KERNELS["rmsnorm"](x, weight, out=out)
        VERSIONS["v3"].KERNELS["rmsnorm"](x, weight, out=before)
        assert torch.equal(out, before)


def kernel_of(bug):
    """Return the name of the function that a bug is first planted in."""
    before = (ROOT / bug.file).read_text(encoding="utf-8").partition(bug.old)[0]
    return before.rpartition("\ndef ")[2].partition("(")[0]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("version", VERSIONS)
def test_battery_passes(version):
    battery(VERSIONS[version])


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_bug_is_caught(bug, tmp_path):
    module = plant(bug, tmp_path)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        battery(module, suspect=kernel_of(bug))


def tampered(change):
    def launcher(*inputs, out):
        VERSIONS["v3"].KERNELS["rmsnorm"](*inputs, out=out)
        change(out)

    return launcher


@pytest.mark.parametrize("name", DTYPES)
def test_the_comparison_notices(name):
    inputs = draw("rmsnorm", DTYPES[name], 3, 1000)
    step = 1 + 2 * torch.finfo(DTYPES[name]).eps
    changes = {
        "one element": lambda out: out[1, 500:501].mul_(step if name == "fp16" else 1 + 2e-6),
        "scale": lambda out: out.mul_(1.005),
        "tail": lambda out: out[:, -1:].zero_(),
        "row": lambda out: out[2].copy_(out[1].clone()),
    }
    check("rmsnorm", tampered(lambda out: None), *inputs)
    for change in changes.values():
        with pytest.raises(pytest.fail.Exception, match="wrong in"):
            check("rmsnorm", tampered(change), *inputs)


def test_empty_input_writes_nothing():
    for module in VERSIONS.values():
        for m, n in ((0, 8), (3, 0)):
            x, vector = torch.ones(m, n), torch.ones(n)
            module.KERNELS["rmsnorm"](x, vector, out=torch.empty(m, n))
            module.KERNELS["layernorm"](x, vector, vector, out=torch.empty(m, n))
            module.KERNELS["residual-rmsnorm"](x, x, vector, out=torch.empty(2, m, n))


def refused(version, op, *inputs, out):
    with pytest.raises(ValueError, match=rf"^{op} {version}: ") as error:
        VERSIONS[version].KERNELS[op](*inputs, out=out)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_unfit_operands_are_refused(version):
    x, w, out = torch.ones(4, 8), torch.ones(8), torch.full((4, 8), UNWRITTEN)
    wide = torch.full((2, 4, 8), UNWRITTEN)
    assert "x of shape (8, 4) has strides (1, 8); rows must be dense" in refused(
        version, "rmsnorm", torch.ones(4, 8).t(), w[:4], out=torch.ones(8, 4)
    )
    assert "strides (0, 1)" in refused(version, "rmsnorm", w.expand(4, 8), w, out=out)
    assert "weight of shape (8,) has strides (2,)" in refused(version, "rmsnorm", x, torch.ones(16)[::2], out=out)
    assert "weight has shape (4,)" in refused(version, "rmsnorm", x, w[:4], out=out)
    assert "bias has shape (1, 8)" in refused(version, "layernorm", x, w, w[None], out=out)
    assert "x has shape (8,); two dimensions" in refused(version, "rmsnorm", w, w, out=w)
    assert "out has shape (4, 8); the other operands need (2, 4, 8)" in refused(
        version, "residual-rmsnorm", x, x, w, out=out
    )
    assert "residual has shape (2, 8)" in refused(version, "residual-rmsnorm", x, x[:2], w, out=wide)
    assert "must not overlap" in refused(
        version, "residual-rmsnorm", x, x, w, out=torch.ones(200).as_strided((2, 4, 8), (31, 8, 1))
    )
    assert "x starts 4 bytes past" in refused(version, "rmsnorm", torch.ones(4, 9)[:, 1:], w, out=out)
    assert "x has dtype torch.float64; allowed are" in refused(version, "rmsnorm", x.double(), w, out=out)
    assert "weight has dtype torch.float16, x torch.float32" in refused(version, "rmsnorm", x, w.half(), out=out)
    limit = {"v1": 65536, "v2": 32768, "v3": 2**30, "v4": 2**30}[version]
    broad = torch.ones(1).expand(1, limit + 1)
    message = refused(version, "rmsnorm", broad, w, out=out)
    assert f"x has {limit + 1} columns; at most {limit} are supported" in message
    assert (out == UNWRITTEN).all()
    assert (wide == UNWRITTEN).all()
