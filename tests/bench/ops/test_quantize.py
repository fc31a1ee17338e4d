"""Quantization to fp8: a result by hand, and wrong ones that its check finds."""

from functools import partial

import pytest
import torch

from bench.harness.data import stress
from bench.harness.data.verify import Checks
from bench.harness.op import Case
from bench.quantize import OPS, quantized
from tests.bench import commands

TOKEN, BLOCK = OPS


def problem_of(op, function, dtype="bf16", m=3, n=640):
    case = Case(op.name, dtype, {"m": m, "n": n})
    data = commands.inputs_of(op, case)
    checks = Checks(op, case, commands.CPU)
    call = partial(function, *data.inputs)
    return checks.check(call, data).reason or stress.problem(checks, call, data)


@pytest.mark.parametrize("dtype", TOKEN.dtypes)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_torch_is_right_also_on_hard_inputs(op, dtype):
    for m, n in ((1, 128), (3, 640)):
        assert problem_of(op, op.reference, dtype, m, n) is None


def test_codes_and_scales_by_hand():
    out = TOKEN.reference(torch.tensor([[896.0, -448.0, 2.0, 37.0]] * 2).repeat(1, 4))
    assert out[32:].view(torch.float32).tolist() == [2.0, 2.0]
    codes = out[:32].view(torch.float8_e4m3fn).float()  # 18.5 is between 18 and 20
    assert codes.tolist() == [448.0, -224.0, 1.0, 18.0] * 8


def scales_in_bf16(x):
    out = quantized(128, x)
    scales = out[x.numel() :].view(torch.float32)
    scales.copy_(scales.bfloat16())
    return out


def cut(x):
    out = quantized(128, x)
    scales = out[x.numel() :].view(torch.float32)
    codes = out[: x.numel()]
    scaled = (x.view(-1, 128).float() / scales[:, None]).flatten()
    is_larger = codes.view(torch.float8_e4m3fn).float().abs() > scaled.abs()
    return torch.cat((codes - is_larger.to(torch.uint8), out[x.numel() :]))


def without_least(x):
    groups = x.view(-1, 128).float()
    scales = groups.abs().amax(1) / 448
    codes = (groups / scales[:, None]).to(torch.float8_e4m3fn)
    return torch.cat([part.view(torch.uint8).view(-1) for part in (codes, scales)])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (scales_in_bf16, "a scale is not the largest"),
        (cut, "a code is not the fp8 number nearest"),
        (without_least, "on hard inputs (zeros): a scale is not"),
    ],
)
def test_wrong_codes_and_scales_are_found(function, said):
    assert said in problem_of(BLOCK, function)
