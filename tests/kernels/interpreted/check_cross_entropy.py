"""Cross-entropy kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import pytest
import torch
from bugs_cross_entropy import BUGS
from cross_entropy_cases import (
    IGNORED,
    OUTSIDE,
    assert_cross_entropy,
    check_cross_entropy,
    check_far_logits,
    check_far_pieces,
    check_padded_logits,
    expect_cross_entropy,
    labels_for,
    special_labels,
    special_logits,
)
from exact import run_guarded
from planted import plant
from softmax_cases import DTYPES, normal

from kernels.cross_entropy import v1_naive, v2_online, v3_split_rows

torch.set_num_threads(1)  # the interpreter has one, and waits for the others of a busy machine

VERSIONS = {"v1": v1_naive, "v2": v2_online, "v3": v3_split_rows}
WIDTHS = [1, 7, 16, 257, 1000, 4099]
SHAPES = [(m, v) for v in WIDTHS for m in (1, 3)]
SHAPES += [(2, 8192), (1, 16400), (2, 50257), (1, 131075)]
PADS = [8, 5, 3]
NAMES = [f"cross-entropy-{version}-{dtype}" for version in VERSIONS for dtype in DTYPES]
SEVERAL_STEPS = 262200  # columns, so many that each piece of version 3 is two steps and a rest in fp32


def split_name(name):
    version, dtype = name.split("-")[-2:]
    return VERSIONS[version].KERNELS["cross-entropy"], DTYPES[dtype]


@pytest.mark.parametrize(("m", "v"), SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_sizes(name, m, v):
    launcher, dtype = split_name(name)
    check_cross_entropy(launcher, normal(m, v, dtype), labels_for(m, v), f"{name} {m}x{v}")


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("v", [1, 1000, 9001])
@pytest.mark.parametrize("name", NAMES)
def test_rows_apart(name, v, pad):
    launcher, dtype = split_name(name)
    check_padded_logits(launcher, normal(2, v, dtype), labels_for(2, v), pad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_enough_are_not_shared(dtype, monkeypatch):
    monkeypatch.setattr(v3_split_rows, "PROGRAMS_WANTED", 3)
    launcher, step = v3_split_rows.KERNELS["cross-entropy"], v3_split_rows.STEP[DTYPES[dtype]]
    assert v3_split_rows.split(3, 20003, step) == (1, 20016)
    assert v3_split_rows.split(2, 20003, step) == (2, 10016)
    check_cross_entropy(launcher, normal(3, 20003, DTYPES[dtype]), labels_for(3, 20003), "rows enough")
    check_padded_logits(launcher, normal(3, 20003, DTYPES[dtype]), labels_for(3, 20003), 5)


@pytest.mark.parametrize(
    ("m", "v", "step"), [(1, 262144, 8192), (64, 128256, 4096), (5, 50257, 4096), (2, 2**30, 8192)]
)
def test_pieces_cover_a_row_and_none_is_empty(m, v, step):
    splits, chunk = v3_split_rows.split(m, v, step)
    assert 1 < splits <= v3_split_rows.MAX_SPLITS
    assert chunk % 16 == 0
    assert (splits - 1) * chunk < v <= splits * chunk


def test_the_battery_has_pieces_of_several_steps():
    step = v3_split_rows.STEP[torch.float32]
    assert v3_split_rows.split(1, SEVERAL_STEPS, step)[1] > 2 * step


@pytest.mark.parametrize("v", [19, 9001])
@pytest.mark.parametrize("name", NAMES)
def test_special_values(name, v):
    launcher, dtype = split_name(name)
    x, labels = special_logits(v, dtype)
    out = run_guarded(launcher, (x, labels), (len(x),), "cpu", torch.float32)
    assert_cross_entropy(out, x, labels, name)
    by_torch = torch.nn.functional.cross_entropy(x.float(), labels, reduction="none")
    assert torch.equal(out.isnan(), by_torch.isnan())
    assert torch.equal(out.isinf(), by_torch.isinf())
    assert out[:6].isnan().all()
    assert out[9:12].isnan().all()
    assert out[6] == torch.inf
    assert out[12] == out[15] == 0


@pytest.mark.parametrize("v", [1, 9001])
@pytest.mark.parametrize("name", NAMES)
def test_labels_that_are_no_column(name, v):
    launcher, dtype = split_name(name)
    x, labels = special_labels(v, dtype)
    out = run_guarded(launcher, (x, labels), (len(x),), "cpu", torch.float32)
    assert_cross_entropy(out, x, labels, name)
    assert out[[1, *range(4, 5 + len(OUTSIDE))]].isnan().all()
    assert out[2] == 0
    assert not out[[0, 3, -1]].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_reference_agrees_with_torch(dtype):
    x, labels = normal(7, 1000, dtype), labels_for(7, 1000)
    labels[3] = IGNORED
    by_torch = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
    assert torch.allclose(expect_cross_entropy(x, labels).exact, by_torch, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (1.0, -1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("v", [1000, 20003])
@pytest.mark.parametrize("name", NAMES)
def test_large_offsets_and_wide_ranges(name, v, scale, offset):
    launcher, dtype = split_name(name)
    check_cross_entropy(launcher, normal(1, v, dtype, scale, offset), labels_for(1, v), f"{name} {scale} {offset}")


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@pytest.mark.parametrize("name", NAMES)
def test_maximum_of_every_step(name, order):
    launcher, dtype = split_name(name)
    x = torch.linspace(-50 * order, 50 * order, 60000)[None].to(dtype)
    check_cross_entropy(launcher, x, torch.tensor([777]), name)


@pytest.mark.parametrize("name", [name for name in NAMES if "fp16" in name])
def test_rows_beyond_32_bit_offsets(name):
    check_far_logits(split_name(name)[0])
    check_far_pieces(split_name(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_write_nothing(name):
    launcher, dtype = split_name(name)
    launcher(torch.empty((0, 5), dtype=dtype), torch.empty(0, dtype=torch.int64), out=torch.empty(0))


def test_the_same_bits_in_every_run():
    launcher = v3_split_rows.KERNELS["cross-entropy"]
    x, labels = normal(2, 30000, torch.float32), labels_for(2, 30000)
    runs = [run_guarded(launcher, (x, labels), (2,), "cpu", torch.float32) for _ in range(2)]
    assert torch.equal(*runs)


# ---- the comparison itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [16, 1000, 131072])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_small_errors_are_seen(v, dtype):
    x, labels = normal(4, v, dtype), labels_for(4, v)
    labels[3] = IGNORED
    right = expect_cross_entropy(x, labels).exact.float()
    assert_cross_entropy(right, x, labels, "right")
    tail = x.clone()
    tail[:, -(v // 8) :] = -torch.inf
    without_tail = torch.logsumexp(tail.double(), 1) - torch.logsumexp(x.double(), 1)
    for wrong in (
        right * torch.tensor([1, 1.005, 1, 1]),
        right * 1.005,
        right * 0.995,
        (right + without_tail).float(),
        right + torch.tensor([0.0, 0.0, 0.0, 1e-7]),
        right.where(labels != labels[1], torch.nan),
        torch.zeros(4),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            assert_cross_entropy(wrong, x, labels, "wrong")


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def battery(module):
    """Raise unless the module's cross-entropy passes a short form of the checks above."""
    launcher = module.KERNELS["cross-entropy"]
    check_far_logits(launcher)
    for dtype in DTYPES.values():
        for m, v in ((2, 1), (2, 7), (2, 256), (2, 1030)):
            check_cross_entropy(launcher, normal(m, v, dtype), labels_for(m, v), f"{m}x{v}")
        for pad in (16, 5):
            check_padded_logits(launcher, normal(2, 24, dtype), labels_for(2, 24), pad)
        _far_from_zero(launcher, 1029, dtype)
        check_cross_entropy(launcher, *special_labels(24, dtype), "labels")
        check_cross_entropy(launcher, normal(2, 20011, dtype), labels_for(2, 20011), "2x20011")
        check_padded_logits(launcher, normal(2, 20003, dtype), labels_for(2, 20003), 3)
    check_far_pieces(launcher)
    check_cross_entropy(launcher, normal(1, SEVERAL_STEPS, torch.float32), labels_for(1, 9), "several steps a piece")
    for dtype in DTYPES.values():
        check_cross_entropy(launcher, *special_logits(1029, dtype), "special")
    _far_from_zero(launcher, 20005, torch.float16)
    check_cross_entropy(launcher, *special_labels(20005, torch.float16), "labels, rows shared")
    check_cross_entropy(launcher, *special_logits(20005, torch.float16), "special, rows shared")


def _far_from_zero(launcher, v, dtype):
    check_cross_entropy(launcher, torch.full((1, v), 3e4).to(dtype), labels_for(1, v), "uniform, far")
    check_cross_entropy(launcher, normal(1, v, dtype, 60.0, 3e4), labels_for(1, v), "far from zero")


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

    def refuse(x, labels, *, out):
        with pytest.raises(ValueError, match=rf"^cross-entropy {request.param}: ") as error:
            VERSIONS[request.param].KERNELS["cross-entropy"](x, labels, out=out)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refuse


def test_unfit_logits_are_refused(refused):
    x, labels, out = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64), torch.zeros(4)
    assert "logits of shape (4, 8) has strides (1, 4); rows must be dense" in refused(
        torch.ones(8, 4).t(), labels, out=out
    )
    assert "strides (0, 1); rows must be dense and must not overlap" in refused(x[:1].expand(4, 8), labels, out=out)
    assert "logits starts 4 bytes past" in refused(torch.ones(4, 9)[:, 1:], labels, out=out)
    assert "logits has shape (8,); two dimensions are needed, (m, v)" in refused(x[0], labels, out=out)
    assert "logits has 0 columns; 1 to 1073741824 are supported" in refused(x[:, :0], labels, out=out)
    assert "logits has dtype torch.float64; allowed are" in refused(x.double(), labels, out=out)
    assert "logits is of type list" in refused([[1.0]], labels, out=out)
    assert not out.any()


def test_unfit_labels_and_results_are_refused(refused):
    x, labels, out = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64), torch.zeros(4)
    assert "labels has dtype torch.int32; torch.int64 is needed" in refused(x, labels.int(), out=out)
    assert "labels has shape (3,); the other operands need (4,)" in refused(x, labels[:3], out=out)
    assert "labels of shape (4,) has strides (0,)" in refused(x, labels[:1].expand(4), out=out)
    assert "labels is of type list; pass a torch tensor" in refused(x, [0, 0, 0, 0], out=out)
    assert "labels is on meta, logits on cpu" in refused(x, labels.to("meta"), out=out)
    assert "labels starts 8 bytes past a multiple of 16" in refused(x, torch.zeros(5, dtype=torch.int64)[1:], out=out)
    assert "out has dtype torch.float16; torch.float32 is needed" in refused(x, labels, out=out.half())
    assert "out has shape (1,)" in refused(x, labels, out=out[:1])
    assert not out.any()
