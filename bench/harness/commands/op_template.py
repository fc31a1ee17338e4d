"""Soft capping: out = cap tanh(x / cap) for each of n elements, with a cap of 30.

FLOPs   3 n, counted here: a division, a hyperbolic tangent and a product for each element.
Bytes   w n read and w n written, w the bytes of an element.
Source  Gemma Team, Gemma 2 (2024), section 2, which caps the logits of attention at 50 and the last ones at 30.

Replace the formula, the numbers and the functions by your own; each is needed. Try it as it is:

    python {file} --dtype bf16,fp32 --shape 1048576
    python -m bench compare --op {file} --dtype fp32 --provider torch,torch-compile
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.harness.api.family import run_of
from bench.harness.op import Case, Op, TensorMaker
from roofline.work import Work, bytes_of

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (("--dtype bf16", "the usual sizes in bf16"),)
"""Shown by `--help`: arguments, and what they do; may be `()`."""

CAP = 30.0


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return x (n). `tensor(*shape)` makes a random tensor of the case's dtype, on the device."""
    return (tensor(case.shape["n"]),)


def reference(x: Tensor) -> Tensor:
    """Return the result as the formula says. It is called in fp64 too: every provider is held against that."""
    return CAP * (x / CAP).tanh()


def eager(x: Tensor, out: Tensor) -> None:
    """Write into `out` what a torch user would call. A function that only returns its result is right as well."""
    import torch

    torch.mul(torch.tanh(x / CAP), CAP, out=out)


def work(case: Case) -> Work:
    """Return the FLOPs and the compulsory bytes of a launch: every input read once, every output written once."""
    size_bytes = bytes_of(case.shape["n"], case.dtype)
    return Work(flops=3 * case.shape["n"], bytes_read=size_bytes, bytes_written=size_bytes)


OPS = (
    Op(
        name="my-op",
        formula="out (n) = 30 tanh(x (n) / 30)",
        axes=("n",),  # names of the extents, in the order in which --shape has them
        default_shapes={"cpu": ("1048576", "16777216"), "cuda": ("16777216", "268435456")},
        is_sized=True,  # --size 64MiB means the bytes of one operand
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["n"],),
        reference=reference,
        eager=eager,
        work=work,
        units="vector",  # judged by the peak of vector units; "matrix" (tensor cores) for what multiplies matrices
        # How often torch rounds to the dtype before the last store, as it runs several kernels. Other fields, such as
        # terms (products that an element sums), magnitude and check, are explained in bench/harness/op.py.
        intermediate_roundings=2,
    ),
)

# From Python: run(dtype="fp32", shape=1048576) measures what the command does, and returns the records.
run = run_of(__file__)

if __name__ == "__main__":
    from bench.harness.cli.main import main

    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
