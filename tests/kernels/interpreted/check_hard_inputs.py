"""The kernels on the hard inputs of their ops, in Triton's interpreter. See test_interpreted.py."""

import importlib
from functools import partial

import pytest
from exact import DTYPES
from families import versions_of

from bench.harness.data import stress
from bench.harness.data.verify import Checks
from bench.harness.op import Case
from tests.bench import commands

SHAPES = {
    "adamw": (3001,),
    "cross_entropy": (9, 9001),
    "elementwise": (300,),
    "matmul": (40, 48, 80),
    "matvec": (20, 333),
    "norm": (7, 9001),
    "reduction": (70_003,),
    "rope": (5,),
    "softmax": (7, 9001),
}
OPTIONS = {
    "matmul": {"layout": "nn", "batch": 1},
    "rope": {"heads": 9, "kv-heads": 2, "head-dim": 64},
}
WITHOUT = ("dropout", "matvec-int8")


def launchers():
    found = []
    for family in SHAPES:
        ops = {op.name: op for op in importlib.import_module(f"bench.{family}").OPS}
        for version, module in versions_of(family).items():
            for name in module.KERNELS.keys() - WITHOUT:
                launcher = (family, ops[name], module.KERNELS[name])
                found.append(pytest.param(*launcher, id=f"{name}-{version}"))
    return sorted(found, key=lambda param: param.id)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "op", "launcher"), launchers())
def test_hard_inputs(family, op, launcher, dtype):
    extents = (9, 40) if op.name == "bias-gelu" else SHAPES[family]
    options = OPTIONS.get(family, {})
    case = Case(op.name, dtype, dict(zip(op.axes, extents, strict=True)), options)
    data = commands.inputs_of(op, case)
    call = partial(launcher, *data.inputs, **({} if op.in_place else {"out": data.out}))
    checks = Checks(op, case, commands.CPU)
    assert checks.check(call, data).reason is None
    assert stress.problem(checks, call, data) is None
