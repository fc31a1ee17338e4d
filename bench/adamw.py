"""AdamW on n parameters, in place: one step with fp32 state, in one pass.

Ops     adamw. With the gradient g and the state m and v of each parameter p:

            m = 0.9 m + 0.1 g               v = 0.999 v + 0.001 g^2
            p = p (1 - lr decay) - lr m / c1 / (sqrt(v / c2) + 1e-8)

        where c1 = 1 - 0.9^10 and c2 = 1 - 0.999^10, as in step 10. lr is 0.01 and decay is 1, so
        large that a wrong term is above the rounding of bf16.
Inputs  p and g of the dtype, m and v in fp32. p, m and v are overwritten, and restored before each
        sample.
Check   Every element of m, v and p is compared with fp64.
Bytes   2 w + 8 read and w + 8 written per parameter, where w is the bytes per element.
FLOPs   14 per parameter: 3 for m, 4 for v, 3 for the root, 4 for p.
Ridge   0.6 FLOP/byte in bf16: memory-bound on any machine.
NaN     If a gradient is NaN, so are its parameter and state.
Torch   Eager torch has 11 kernels and fp32 intermediate results. `torch.optim.AdamW` keeps the
        state of bf16 parameters in bf16.

Source  Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101, algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.verify import compared
from bench.harness.op import Case, Op, TensorMaker, rows_of
from roofline.work import Work, adamw_work

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Inputs, Launch

EXAMPLES = (
    ("--dtype bf16", "steps of several numbers of parameters"),
    ("--shape 16777216 --provider torch,torch-compile", "eleven kernels compared with a fused one"),
)

EPS = 1e-8
STEP = 0.01 / (1 - 0.9**10)
ROOT = math.sqrt(1 - 0.999**10)

LITTLE = (0.0, 2.0**-24, 2.0**-20, 3e4)
"""First gradients after which the root is 0, about as large as 1e-8, and much larger."""


def step_work(case: Case) -> Work:
    return adamw_work(case.shape["n"], case.dtype)


def make_inputs(case: Case, tensor: TensorMaker) -> Inputs:
    n = case.shape["n"]
    m = tensor(n, dtype="fp32")
    return tensor(n).mul_(2.0**-7), tensor(n), m, tensor(n, dtype="fp32").square_()


def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    """Make a step in place, computed in the precision of the state."""
    gradient = g.to(m.dtype)
    m.lerp_(gradient, 0.1)
    v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    scale = v.sqrt().div_(ROOT).add_(EPS)
    p.copy_((p.to(m.dtype) * 0.99).addcdiv_(m, scale, value=-STEP))


def stepped(*inputs: Tensor) -> Inputs:
    written = tuple(x.clone() for x in inputs)
    step(*written)
    return written


def result_in(inputs: Inputs) -> Tensor:
    """Return m, v and p as bytes."""
    import torch

    p, _, m, v = inputs
    return torch.cat([x.view(torch.uint8) for x in (m, v, p)])


BASE = Op(
    name="adamw",
    formula="p, m, v (n) = AdamW step of p with gradient g, in place",
    axes=("n",),
    default_shapes={
        "cpu": ("1048576", "16777216"),
        "cuda": ("16777216", "134217728", "536870912"),
    },
    make_inputs=make_inputs,
    output_shape=lambda case: (case.shape["n"],),
    reference=lambda *inputs: stepped(*inputs)[0],
    eager=step,
    expression=step,
    writes_out_when_compiled=False,
    dtypes=("fp32", "fp16", "bf16"),
    work=step_work,
    units="vector",
    magnitude=lambda truth, p, g, m, v: truth.abs() + p.abs() + STEP,
    take_rows=rows_of(0, 1, 2, 3),
    in_place=True,
    result_in=result_in,
)
PARTS = (
    replace(
        BASE,
        name="m",
        output_dtype=lambda dtype: "fp32",
        reference=lambda *inputs: stepped(*inputs)[2],
        magnitude=lambda truth, p, g, m, v: g.abs() + m.abs(),
    ),
    replace(
        BASE,
        name="v",
        output_dtype=lambda dtype: "fp32",
        reference=lambda *inputs: stepped(*inputs)[3],
        magnitude=lambda truth, *inputs: truth,
    ),
    replace(BASE, name="p"),
)
"""An op for each tensor that a step writes, in the order of `result_in`."""


def check_step(case: Case, launch: Launch, earlier: Launch | None) -> str | None:
    """Return what is wrong with m, v or p, or None."""
    inputs, out = launch
    end = 8 * case.shape["n"]
    m, v = out[:end].view(inputs[2].dtype).chunk(2)
    for op, found in zip(PARTS, (m, v, out[end:].view(inputs[0].dtype)), strict=True):
        reason = compared(op, case, inputs, found).reason
        if reason:
            return f"{op.name}: {reason.removeprefix('wrong result: ')}"
    return None


def write_little(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    for at, gradient in enumerate(LITTLE):
        g[at : at + 1] = gradient
    m[: len(LITTLE)] = 0.0
    v[: len(LITTLE)] = 0.0


OPS = (
    replace(
        BASE,
        name="adamw",  # by which the definition is found
        output_shape=lambda case: (step_work(case).bytes_written,),
        output_dtype=lambda dtype: "uint8",
        reference=lambda p, g, m, v: result_in(stepped(p, g, m, v)),
        take_rows=None,
        check_result=check_step,
        stress={"little, large and no gradients": write_little},
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
