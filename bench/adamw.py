"""AdamW on n parameters, in place: one step with fp32 state, in one pass.

Ops     adamw. With the gradient g and the state m and v of each parameter p:

            m = 0.9 m + 0.1 g               v = 0.999 v + 0.001 g^2
            p = p (1 - lr decay) - lr m / c1 / (sqrt(v / c2) + 1e-8)

        where c1 = 1 - 0.9^10 and c2 = 1 - 0.999^10, as in step 10. lr is 0.01 and decay is 1, so
        large that a wrong term is above the rounding of bf16.
Inputs  p and g of the dtype, m and v in fp32. p, m and v are overwritten, and restored before each
        sample.
Check   By a rule: every element of m, v and p is as close to fp64 as rounding explains.
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
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.verify import CHUNK_ELEMENTS, FP32_ROUNDOFF, GPU_CHUNKS, UNIT_ROUNDOFF
from bench.harness.op import Case, Op, TensorMaker
from roofline.work import adamw_work

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Inputs, Launch

EXAMPLES = (
    ("--dtype bf16", "steps of several numbers of parameters"),
    ("--shape 16777216 --provider torch,torch-compile", "eleven kernels compared with a fused one"),
)

BETA1 = 0.9
BETA2 = 0.999
EPS = 1e-8
RATE = 0.01
KEEP = 0.99
"""1 - lr decay."""
STEP = RATE / (1 - BETA1**10)
ROOT = math.sqrt(1 - BETA2**10)

ROUNDINGS = 16
"""Error in unit roundoffs of fp32, twice what the formula has at most."""

HARD = (
    # A gradient, m and v of one parameter.
    (0.0, 0.0, 0.0),
    (2.0**-24, 0.0, 0.0),
    (2.0**-20, 0.0, 0.0),
    (3e4, 0.0, 0.0),
    (0.0, 3e4, 9e8),
    (math.nan, 0.0, 0.0),
)
"""With little or no gradient, the root is smaller than 1e-8, or about as large."""


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    n = case.shape["n"]
    return (
        tensor(n).mul_(2.0**-7),
        tensor(n),
        tensor(n, dtype="fp32"),
        tensor(n, dtype="fp32").square_(),
    )


def updated(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Return m, v and p after a step, in the precision of the arguments."""
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    return m, v, KEEP * p - STEP * m / (v.sqrt() / ROOT + EPS)


def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    """Make a step in place, computed in fp32."""
    gradient = g.float()
    m.lerp_(gradient, 1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    scale = v.sqrt().div_(ROOT).add_(EPS)
    p.copy_((p.float() * KEEP).addcdiv_(m, scale, value=-STEP))


def result_in(inputs: Inputs) -> Tensor:
    """Return m, v and p as bytes."""
    import torch

    p, _, m, v = inputs
    return torch.cat([x.view(torch.uint8) for x in (m, v, p)])


def stepped(*inputs: Tensor) -> Tensor:
    written = tuple(x.clone() for x in inputs)
    step(*written)
    return result_in(written)


def check_step(case: Case, launch: Launch, earlier: Launch | None) -> str | None:
    """Return the first element of m, v or p that is wrong, or None."""
    import torch

    inputs, out = launch
    n = case.shape["n"]
    p = inputs[0]
    found = {
        "m": out[: 4 * n].view(torch.float32),
        "v": out[4 * n : 8 * n].view(torch.float32),
        "p": out[8 * n :].view(p.dtype),
    }
    rounding = {"p": UNIT_ROUNDOFF[case.dtype]}
    least = torch.finfo(p.dtype).smallest_normal * torch.finfo(p.dtype).eps
    chunk = CHUNK_ELEMENTS * (1 if out.device.type == "cpu" else GPU_CHUNKS)
    for start in range(0, n, chunk):
        part = slice(start, start + chunk)
        wide = [x[part].double() for x in inputs]
        truth = updated(*wide)
        # Sums of absolute terms, because terms may cancel.
        m, v, less = updated(*(x.abs() for x in wide))
        sizes = (m, v, 2 * wide[0].abs() - less)
        for (name, values), right, size in zip(found.items(), truth, sizes, strict=True):
            got = values[part].double()
            limit = ROUNDINGS * FP32_ROUNDOFF * size + rounding.get(name, 0.0) * right.abs()
            is_right = ((got - right).abs() <= limit + least) | (got.isnan() & right.isnan())
            if not is_right.all():
                at = int(is_right.logical_not().int().argmax())
                return (
                    f"{name} is {got[at]:.6g} instead of {right[at]:.6g} at [{start + at}], more "
                    "than rounding explains"
                )
    return None


def write_hard(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    for at, (gradient, momentum, square) in enumerate(HARD):
        g[at : at + 1] = gradient
        m[at : at + 1] = momentum
        v[at : at + 1] = square


OPS = (
    Op(
        name="adamw",
        formula="p, m, v (n) = AdamW step of p with gradient g, in place",
        axes=("n",),
        extents=lambda extents, axes: (math.prod(extents),),
        default_shapes={
            "cpu": ("1048576", "16777216"),
            "cuda": ("16777216", "134217728", "536870912"),
        },
        make_inputs=make_inputs,
        output_shape=lambda case: (adamw_work(case.shape["n"], case.dtype).bytes_written,),
        output_dtype=lambda dtype: "uint8",
        reference=stepped,
        eager=step,
        expression=step,
        writes_out_when_compiled=False,
        dtypes=("fp32", "fp16", "bf16"),
        work=lambda case: adamw_work(case.shape["n"], case.dtype),
        units="vector",
        check_result=check_step,
        stress={"little, large and no gradients": write_hard},
        in_place=True,
        result_in=result_in,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
