"""Matrix-vector products: y = A x with A (m, n), x (n) and y (m).

    matvec        A, x and y in one dtype
    matvec-int8   weights quantized to int8 with an fp32 scale for each row: y = (A x) s; x and y in the dtype

FLOPs   2 m n: one multiplication and one addition for each element of A. matvec-int8: m more, by the scales.
Bytes   w (m n + n) read and w m written, w the bytes of an element. matvec-int8: m n + w n + 4 m read.
Ridge   In bf16 the intensity is just below 1 FLOP/byte at every size, with int8 weights just below 2: always
        memory-bound. This is the product that decoding one token at batch size 1 is made of, and why half the bytes
        of a weight are worth having.
Torch   Eager torch has no product of int8 weights with 16-bit activations: it widens A into a copy, multiplies, and
        scales y. All three are measured.

Source  Austin et al., How to Scale Your Model (2025), chapter 1: a matrix product with one column. The order of
        quantized weights, scales last, is that of gpt-fast (PyTorch, 2023), class WeightOnlyInt8Linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.harness.api.family import run_of
from bench.harness.op import Case, Op, TensorMaker, library, rows_of
from roofline.work import Work, int8_matvec_work, matvec_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--dtype bf16,fp32 --shape 4096,14336x4096", "a square and a tall matrix in two dtypes"),
    ("--op matvec,matvec-int8 --shape 8192 --provider torch-compile", "what quantized weights win"),
)

SHAPES = {"cpu": ("1024", "4096", "8192"), "cuda": ("1024", "4096", "8192", "16384", "256x65536")}


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, n), row-major, and x (n)."""
    m, n = case.shape["m"], case.shape["n"]
    return tensor(m, n), tensor(n)


def reference(a: Tensor, x: Tensor) -> Tensor:
    return a @ x


def work(case: Case) -> Work:
    return matvec_work(case.shape["m"], case.shape["n"], case.dtype)


def int8_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, n) in int8, x (n), and scales (m) that bring the range of int8 to [-1, 1] or less."""
    m, n = case.shape["m"], case.shape["n"]
    return tensor(m, n, dtype="int8"), tensor(n), tensor(m, dtype="fp32").abs_().div_(127)


def int8_reference(a: Tensor, x: Tensor, scales: Tensor) -> Tensor:
    return (a @ x) * scales


def int8_eager(a: Tensor, x: Tensor, scales: Tensor, out: Tensor) -> None:
    import torch

    torch.mul(torch.mv(a.to(x.dtype), x), scales, out=out)


def int8_expression(a: Tensor, x: Tensor, scales: Tensor) -> Tensor:
    """Return (A x) s for the compiler, which need not store the widened A."""
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
    from bench.harness.cli.main import main

    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
