"""Quantization of x (m, n) to fp8 (e4m3), with an fp32 scale for each group of a row.

    scale = max(|x| of the group, 1e-10) / 448        code = x / scale, rounded to fp8

Ops     quantize-fp8 (a group is a row: per token), quantize-fp8-block (a group is 128 elements of a
        row, 1x128).
Output  m n codes and then the scales in the order of the groups, in one tensor of bytes. 448 is the
        largest number of fp8.
Check   By a rule: a scale is right within rounding, and a code is a nearest one for the written
        scale.
FLOPs   2 per element: a comparison and a division. The absolute value, the conversion and the
        division per group are not counted.
Bytes   w m n read, m n and 4 per scale written, where w is the bytes per element.
Ridge   0.7 FLOP/byte in bf16: memory-bound on any machine if each row is read once.
NaN     A group with NaN or infinity has no defined result.
Shape   mxn, or n for 4096 rows; n is a multiple of 128, or of 16 for quantize-fp8.
Torch   Eager torch has several kernels and fp32 intermediate results.

Source  DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3, for 1x128 blocks; Micikevicius
        et al., FP8 Formats for Deep Learning, arXiv 2209.05433, for e4m3. 1e-10: SGLang,
        `per_token_group_quant_fp8`.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import each, extremes
from bench.harness.data.verify import CHUNK_ELEMENTS
from bench.harness.op import ROW_SHAPES, Case, Op, UnsupportedCaseError, rows_by_width
from kernels.versions import is_interpreted
from roofline.work import Work, quantize_work

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch

EXAMPLES = (
    ("--dtype bf16", "rows and blocks of several widths"),
    ("--op quantize-fp8-block --shape 4096x7168 --provider torch,torch-compile", "compiled"),
)

MAX_CODE = 448.0
LEAST = 1e-10
"""The largest number of a group counts as at least this, so that a group of zeros has a scale."""

BLOCK = 128
ALIGNED = 16
"""Rows are multiples of this, so that the scales after the codes are aligned."""

STRESS = {
    "zeros": each(methodcaller("zero_")),
    "one large": each(lambda x: x[..., 0].fill_(3e4)),
    "largest and lowest": extremes,
}


def quantized(block: int | None, x: Tensor) -> Tensor:
    """Return codes and scales of groups of `block` elements or of whole rows, as bytes."""
    import torch

    groups = x.view(-1, block or x.shape[1]).float()
    scales = groups.abs().amax(1).clamp(min=LEAST) / MAX_CODE
    codes = (groups / scales[:, None]).to(torch.float8_e4m3fn)
    return torch.cat([part.view(torch.uint8).view(-1) for part in (codes, scales)])


def check_bytes(
    block: int | None, case: Case, launch: Launch, earlier: Launch | None
) -> str | None:
    """Return what is wrong with codes or scales, or None."""
    import torch

    (x,), out = launch
    n = block or case.shape["n"]
    groups = max(1, CHUNK_ELEMENTS // n)
    codes = out[: x.numel()].view(torch.float8_e4m3fn).view(-1, n)
    scales = out[x.numel() :].view(torch.float32)
    parts = zip(x.view(-1, n).split(groups), codes.split(groups), scales.split(groups), strict=True)
    for values, found, scale in parts:
        wide = values.double()
        right = wide.abs().amax(1).clamp(min=LEAST) / MAX_CODE
        if not ((scale - right).abs() <= 2**-21 * right).all():
            return "a scale is not the largest number of its group / 448"
        wide /= scale.double()[:, None]
        # Distance of fp8 numbers: 3 bits of fraction, from 2^-6 on.
        distance = torch.exp2(torch.frexp(wide).exponent.clamp(min=-5).double() - 4)
        if not ((found.double() - wide).abs() <= (0.5 + 2**-16) * distance).all():
            return "a code is not the fp8 number nearest to x / scale"
    return None


def check(block: int | None, case: Case, device_type: str) -> None:
    if case.shape["n"] % (block or ALIGNED):
        raise UnsupportedCaseError(f"{case.op} needs n that is a multiple of {block or ALIGNED}")
    if is_interpreted():
        raise UnsupportedCaseError(
            "Triton's interpreter rounds fp8 wrongly; unset TRITON_INTERPRET"
        )


def work(block: int | None, case: Case) -> Work:
    m = case.shape["m"]
    n = case.shape["n"]
    return quantize_work(m * n, m * n // (block or n), case.dtype)


def make_op(name: str, formula: str, block: int | None = None) -> Op:
    return Op(
        name=name,
        formula=formula,
        axes=("m", "n"),
        extents=rows_by_width,
        default_shapes={"cpu": ROW_SHAPES["cpu"][:2], "cuda": ROW_SHAPES["cuda"][:4]},
        make_inputs=lambda case, tensor: (tensor(case.shape["m"], case.shape["n"]),),
        output_shape=lambda case: (work(block, case).bytes_written,),
        output_dtype=lambda dtype: "uint8",
        reference=partial(quantized, block),
        eager=lambda x, out: quantized(block, x),
        writes_out_when_compiled=False,
        dtypes=("fp32", "fp16", "bf16"),
        work=partial(work, block),
        check_result=partial(check_bytes, block),
        stress=STRESS,
        check=partial(check, block),
    )


OPS = (
    make_op(
        "quantize-fp8",
        "out = codes x (m, n) / scale in fp8, then scales max |x of a row| / 448",
        None,
    ),
    make_op(
        "quantize-fp8-block",
        "out = codes x (m, n) / scale in fp8, then scales max |x of 128 of a row| / 448",
        BLOCK,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
