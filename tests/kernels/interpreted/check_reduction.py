"""Reductions under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import pytest
import reduction_cases as cases
import torch
from bugs_reduction import BUGS
from planted import plant
from reduction_cases import DTYPES

VERSIONS = cases.versions()
WAYS = [(f"{op}-{version}", op, module) for version, module in VERSIONS.items() for op in module.KERNELS]
# Around the accesses of all lanes and the blocks of version 2, and from one to several rounds of its 16 programs.
SIZES = (1, 7, 1023, 1025, 2049, 16384, 49152, 98305, 250003)


def ways(with_dtypes=True):
    names = DTYPES if with_dtypes else [None]
    return [
        pytest.param(op, module, DTYPES.get(name), id=f"{label}-{name}" if name else label)
        for label, op, module in WAYS
        for name in names
    ]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_sizes(op, module, dtype, n):
    cases.check(op, module.KERNELS[op], *cases.draw(op, dtype, n))
    cases.check_exact(op, module.KERNELS[op], *cases.draw_integers(op, dtype, n))


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("op", ["sum", "dot"])
def test_every_count_of_programs(op, programs, monkeypatch):
    module = VERSIONS["v2"]
    monkeypatch.setattr(module, "_max_programs", lambda device: programs)
    for n in (2047, 20001, 50000, 110013):
        cases.check_exact(op, module.KERNELS[op], *cases.draw_integers(op, torch.float16, n))


@pytest.mark.parametrize("n", [127, 20001])
@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_special_values(op, module, dtype, n):
    for special in ([math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]):
        for place in (0, n // 2, n - len(special)):
            inputs = cases.draw(op, dtype, n)
            inputs[0][place : place + len(special)] = torch.tensor(special)
            cases.check(op, module.KERNELS[op], *inputs)


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_zeros_and_denormals(op, module, dtype):
    for value in (0.0, -0.0, torch.finfo(dtype).smallest_normal / 8):
        inputs = [torch.full((2051,), value, dtype=dtype), *cases.draw(op, dtype, 2051)[1:]]
        cases.check(op, module.KERNELS[op], *inputs)


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_fp16_sums_beyond_fp16_range_on_the_way(op, module, dtype):
    for n in (2048, 40002):
        cases.check(op, module.KERNELS[op], *cases.draw_cancelling(op, n))


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_neighbors_are_added_with_more_digits_than_fp16_has(op, module, dtype):
    n = 16 * 16384  # more than a round of all programs of version 2
    x = torch.zeros(n // 16, 16).half()
    x[:, 0], x[:, 8], x[::16, 1] = 2048.0, -2048.0, 1.0  # 2048 + 1 is no number of fp16
    cases.check_exact(op, module.KERNELS[op], x.flatten(), *[torch.ones(n).half()] * (op == "dot"))


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_fp16_results_beyond_fp16_range_are_infinite(op, module, dtype):
    inputs = [torch.full((2049,), 200.0).half() for _ in cases.draw(op, torch.float16, 1)]
    cases.check(op, module.KERNELS[op], *inputs)


@pytest.mark.parametrize(("op", "module", "dtype"), ways())
def test_no_elements_have_the_sum_zero(op, module, dtype):
    out = torch.ones((), dtype=dtype)
    module.KERNELS[op](*cases.draw(op, dtype, 0), out=out)
    assert out.item() == 0


@pytest.mark.parametrize(("op", "module", "dtype"), ways(with_dtypes=False))
def test_launches_follow_each_other_and_give_the_same_bits(op, module, dtype):
    inputs = cases.draw(op, torch.float32, 60001)
    results = [torch.full((), math.nan) for _ in range(3)]
    for out in results:
        module.KERNELS[op](*inputs, out=out)
    assert torch.stack(results).unique().numel() == 1


# ---- the checks can fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 100], ids=["one-element", "tail"])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ["sum", "dot"])
def test_a_lost_element_is_seen(op, name, lost):
    def launcher(*copies, out):
        out.copy_(cases.expect(*(copy[:-lost] for copy in copies)).exact)

    inputs = cases.draw_integers(op, DTYPES[name], 16385)
    cases.check_exact(op, lambda *copies, out: out.copy_(cases.expect(*copies).exact), *inputs)
    with pytest.raises(AssertionError):
        cases.check_exact(op, launcher, *inputs)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", ["sum", "dot"])
def test_a_scale_is_seen(op, name):
    def launcher(*copies, out):
        out.copy_(cases.expect(*copies).exact * 1.005)

    with pytest.raises(pytest.fail.Exception):
        cases.check(op, launcher, *cases.draw(op, DTYPES[name], 16385))


def battery(module):
    """Run a few of each of the checks above."""
    for op, launch in module.KERNELS.items():
        for dtype in DTYPES.values():
            for n in (7, 2049, 16385, 150001):
                cases.check_exact(op, launch, *cases.draw_integers(op, dtype, n))
        for n in (127, 16385):
            cases.check(op, launch, *cases.draw(op, torch.float16, n))
        cases.check(op, launch, *cases.draw_cancelling(op, 40002))


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

    def refuse(op, *inputs, out):
        with pytest.raises(ValueError, match=rf"^{op} {request.param}: ") as error:
            VERSIONS[request.param].KERNELS[op](*inputs, out=out)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refuse


def test_unfit_operands_are_refused(refused):
    x, out = torch.ones(16), torch.zeros(())
    assert "x of shape (8,) has strides (2,)" in refused("sum", x[::2], out=out)
    assert "y of shape (16,) has strides (0,)" in refused("dot", x, x[:1].expand(16), out=out)
    assert "x starts 4 bytes past" in refused("sum", x[1:], out=out)
    assert "y starts 4 bytes past" in refused("dot", x[:15], x[1:], out=out)
    assert "out starts 4 bytes past" in refused("sum", x, out=torch.zeros(2)[1])
    assert "x has shape (4, 4); one dimension" in refused("sum", x.view(4, 4), out=out)
    assert "y has shape (8,)" in refused("dot", x, x[:8], out=out)
    assert "out has shape (1,)" in refused("sum", x, out=out[None])
    assert "x has dtype torch.int32; allowed are" in refused("sum", x.int(), out=out.int())
    assert "y has dtype torch.float16, x torch.float32" in refused("dot", x, x.half(), out=out)
    assert "out is on meta, x on cpu" in refused("sum", x, out=torch.empty((), device="meta"))
    assert "x is of type list" in refused("sum", [1.0], out=out)
    assert not out.any()
