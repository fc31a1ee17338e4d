"""Dropout: checked by its rule, per element and as a whole; masks differ between seeds."""

import json

import pytest
import torch

from bench import elementwise
from bench.elementwise import OPS as ELEMENTWISE
from bench.elementwise import check_dropout
from bench.harness.data.inputs import Filler, make_sets
from bench.harness.measure import measure_row as row_protocol
from bench.harness.measure.rows import Row, Settings
from bench.harness.op import Case
from bench.harness.providers.registry import Provider
from results.show.table import describe
from tests.bench.commands import CPU, QUICK

DROPOUT = next(op for op in ELEMENTWISE if op.name == "dropout")
FLOATS = ("fp64", "fp32", "fp16", "bf16")
MANY = 2**17


def case_of(n, dtype="bf16"):
    return Case("dropout", dtype, {"n": n})


def kernel(x, seed, out, keep=0.9, scale=1.0):
    """Compute dropout as a correct kernel does: the mask follows from the seed, the quotient is
    rounded once.
    """
    generator = torch.Generator().manual_seed(int(seed) % 2**63)
    mask = torch.rand(x.shape, generator=generator, dtype=torch.float64) < keep
    out.copy_((x.double() / 0.9 * scale).to(x.dtype) * mask)


def launches(n=MANY, dtype="bf16", fill="uniform", copies=2, run=kernel):
    """Return the case, and inputs and output of a launch on each copy."""
    case = case_of(n, dtype)
    sets = make_sets(DROPOUT, case, Filler(fill, dtype, CPU, 0), CPU, copies)
    for data in sets:
        run(*data.inputs, out=data.out)
    return case, [(data.inputs, data.out) for data in sets]


def reason(change=None, **options):
    case, ((inputs, out),) = launches(copies=1, **options)
    if change is not None:
        change(inputs[0], out)
    return check_dropout(case, (inputs, out), None)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("n", [1, 7, 1000, MANY + 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_correct_dropout_kernel_passes(dtype, n, fill):
    assert reason(n=n, dtype=dtype, fill=fill) is None


def set_to(n, value):
    """Return a fault that replaces the n-th nonzero element by a function of x there."""

    def fault(x, out):
        index = out.nonzero()[n].item()
        out[index] = value(x[index : index + 2].double())

    return fault


FAULTS = {
    "off by two percent": set_to(77, lambda x: 1.02 * x[0] / 0.9),
    "not scaled": set_to(-1, lambda x: x[0]),
    "unwritten": set_to(-1, lambda x: float("nan")),
    "infinite": set_to(0, lambda x: float("inf")),
    "of a neighbor": set_to(5, lambda x: x[1] / 0.9),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("chunk", [1000, 2**24])
def test_one_wrong_element_fails_at_any_chunk_size(monkeypatch, dtype, fault, chunk):
    monkeypatch.setattr(elementwise, "CHUNK_ELEMENTS", chunk)
    assert reason(FAULTS[fault], dtype=dtype) == "an element is neither 0 nor x / 0.9"
    assert reason(dtype=dtype) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.005, 0.995])
def test_a_dropout_scale_off_by_half_a_percent_fails(dtype, scale):
    found = reason(dtype=dtype, run=lambda *inputs, out: kernel(*inputs, out, scale=scale))
    assert found is not None
    if dtype == "bf16":  # no element shows it
        assert "on the whole, more than rounding explains" in found


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.89, 0.91, 1.0])
def test_a_wrong_keep_probability_fails(keep):
    found = reason(run=lambda *inputs, out: kernel(*inputs, out, keep=keep))
    assert "of the elements are kept instead of 90%" in found


@pytest.mark.parametrize(
    "repeat", [lambda kept: kept[:65536].repeat(2), lambda kept: kept[::4].repeat_interleave(4)]
)
def test_a_mask_that_repeats_itself_fails(repeat):
    def change(x, out):
        out.copy_(x.double() / 0.9 * repeat(out != 0))

    assert " apart agree in " in reason(change)


def ignores_the_seed(x, seed, out):
    kernel(x, torch.zeros_like(seed), out)


def test_equal_masks_of_two_seeds_fail():
    case, (first, second) = launches(run=ignores_the_seed)
    assert check_dropout(case, second, None) is None
    assert "the masks of two seeds agree in 100.00%" in check_dropout(case, second, first)
    same_seed = ((second[0][0], first[0][1]), second[1])
    assert check_dropout(case, same_seed, first) is None


def measured(monkeypatch, run, fill="uniform"):
    monkeypatch.setattr(
        row_protocol, "load", lambda name, op, family, device: Provider(name, run, takes_out=True)
    )
    row = Row(DROPOUT, case_of(4096), "ours", settings=Settings(fill=fill))
    return row_protocol.measure_row(row, CPU, None, QUICK)


@pytest.mark.parametrize("fill", ["uniform", "zeros"])
def test_a_correct_row_is_verified_by_the_rule(monkeypatch, fill):
    record = measured(monkeypatch, kernel, fill)
    assert (record.status, record.reason) == ("ok", None)
    for moment in ("before", "after"):
        assert record.verified[moment] == {
            "reference": "rule",
            "max_error_of_bound": None,
            "checked_elements": 4096,
            "elements": 4096,
        }
    json.dumps(record.to_dict(), allow_nan=False)
    assert "4096 elements by the op's own rule" in describe(record)[0]
