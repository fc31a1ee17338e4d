"""Matrix-vector products: y = A x with A (m, n), x (n) and y (m).

    matvec        A, x and y in the same dtype
    matvec-int8   y = (A x) s, with A in int8 and an fp32 scale per row; x and y in the dtype

FLOPs   2 m n: one multiplication and one addition per element of A. matvec-int8: m more for the
        scales.
Bytes   w (m n + n) read and w m written, where w is the bytes per element. matvec-int8: m n + w n +
        4 m read.
Ridge   In bf16 just below 1 FLOP/byte at any size, with int8 weights just below 2: always
        memory-bound. Decoding one token at batch size 1 consists of these products, so smaller
        weights make it faster.
Torch   Eager torch cannot multiply int8 weights with 16-bit activations. It converts A into a copy,
        multiplies, and scales y; the time includes all three.

Source  Austin et al., How to Scale Your Model (2025), chapter 1: a matmul with one column. Scaling
        after the product follows gpt-fast (PyTorch, 2023), class WeightOnlyInt8Linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import FACTORS
from bench.harness.op import Case, Op, TensorMaker, library, rows_of
from roofline.work import Work, int8_matvec_work, matvec_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--dtype bf16,fp32 --shape 4096,14336x4096", "a square and a tall matrix in two data types"),
    (
        "--op matvec,matvec-int8 --shape 8192 --provider torch-compile",
        "speedup by quantized weights",
    ),
)

SHAPES = {"cpu": ("1024", "4096", "8192"), "cuda": ("1024", "4096", "8192", "16384", "256x65536")}


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, n), row-major, and x (n)."""
    m = case.shape["m"]
    n = case.shape["n"]
    return tensor(m, n), tensor(n)


def reference(a: Tensor, x: Tensor) -> Tensor:
    return a @ x


def work(case: Case) -> Work:
    return matvec_work(case.shape["m"], case.shape["n"], case.dtype)


def int8_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, n) in int8, x (n), and scales (m) that map the range of int8 into [-1, 1]."""
    m = case.shape["m"]
    n = case.shape["n"]
    return tensor(m, n, dtype="int8"), tensor(n), tensor(m, dtype="fp32").abs_().div_(127)


def int8_reference(a: Tensor, x: Tensor, scales: Tensor) -> Tensor:
    return (a @ x) * scales


def int8_eager(a: Tensor, x: Tensor, scales: Tensor, out: Tensor) -> None:
    import torch

    torch.mul(torch.mv(a.to(x.dtype), x), scales, out=out)


def int8_expression(a: Tensor, x: Tensor, scales: Tensor) -> Tensor:
    """Return (A x) s for `torch.compile`, which does not have to store the converted A."""
    return (a.to(x.dtype).mv(x) * scales).to(x.dtype)


OPS = (
    Op(
        name="matvec",
        formula="y (m) = A (m, n) x (n)",
        axes=("m", "n"),
        default_shapes=SHAPES,
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["m"],),
        reference=reference,
        eager=library("torch", "mv"),
        work=work,
        writes_out_when_compiled=False,
        terms=lambda case: case.shape["n"],
        take_rows=rows_of(0),
        stress=FACTORS,
    ),
    Op(
        name="matvec-int8",
        formula="y (m) = (A (m, n) x (n)) s (m), A in int8, s in fp32",
        axes=("m", "n"),
        default_shapes=SHAPES,
        make_inputs=int8_inputs,
        output_shape=lambda case: (case.shape["m"],),
        reference=int8_reference,
        eager=int8_eager,
        expression=int8_expression,
        work=lambda case: int8_matvec_work(case.shape["m"], case.shape["n"], case.dtype),
        terms=lambda case: case.shape["n"],
        take_rows=rows_of(0, 2),
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
