"""Matrix-vector product: y = A x with A (m, n), x (n) and y (m).

FLOPs   2 m n: one multiplication and one addition for each element of A.
Bytes   w (m n + n) read and w m written, w the bytes of an element.
Ridge   In bf16 the intensity is just below 1 FLOP/byte at every size: always memory-bound. This is the product that
        decoding one token at batch size 1 is made of.

Source  Austin et al., How to Scale Your Model (2025), chapter 1: a matrix product with one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.harness.cli import main
from bench.harness.op import Case, Op, TensorMaker
from roofline.work import Work, matvec_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--dtype bf16,fp32 --shape 4096,14336x4096", "a square and a tall matrix in two dtypes"),
)


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, n), row-major, and x (n)."""
    m, n = case.shape["m"], case.shape["n"]
    return tensor(m, n), tensor(n)


def reference(a: Tensor, x: Tensor) -> Tensor:
    """Return A x."""
    return a @ x


def eager(a: Tensor, x: Tensor, out: Tensor) -> None:
    """Compute y = A x."""
    import torch

    torch.mv(a, x, out=out)


def work(case: Case) -> Work:
    """Return FLOPs and compulsory bytes."""
    return matvec_work(case.shape["m"], case.shape["n"], case.dtype)


def take_rows(inputs: tuple[Tensor, ...], out: Tensor, rows: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the rows of A and of y; x belongs to all of them."""
    a, x = inputs
    return (a[rows], x), out[rows]


OPS = (
    Op(
        name="matvec",
        formula="y (m) = A (m, n) x (n)",
        axes=("m", "n"),
        default_shapes={"cpu": ("1024", "4096", "8192"), "cuda": ("1024", "4096", "8192", "16384")},
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["m"],),
        reference=reference,
        eager=eager,
        work=work,
        writes_out_when_compiled=False,
        terms=lambda case: case.shape["n"],
        rows=lambda case: case.shape["m"],
        take_rows=take_rows,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
