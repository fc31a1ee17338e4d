"""Cross-entropy of rows of logits: loss = log(sum(exp(logits))) - logits[label] for each of m rows
of v logits.

FLOPs   4 m v: per logit one comparison for the maximum, subtraction, exponential and addition. The
        logarithm and the two subtractions per row are not counted.
Bytes   w m v read for the logits and 8 m for the labels, 4 m written for the losses, where w is the
        bytes per logit.
Ridge   2 FLOP/byte in bf16: memory-bound on any machine. One pass over the logits is enough, with a
        running maximum and a running sum that is rescaled when the maximum grows.
Shape   mxv, or the vocabulary v for 4096 rows.
Labels  From 0 to v - 1, or -100 for a row to ignore, whose loss is 0.
Output  One loss per row (`reduction="none"`), in fp32, or in fp64 for fp64 logits.
Torch   Eager torch would round the losses to the dtype of the logits, so the logits are converted
        to fp32 first, as training code does. The time includes this kernel and the log-softmax that
        torch writes and reads.

Source  Milakov and Gimelshein, arXiv 1805.02867, for the running sum. Default vocabularies: Llama 2
        (32,000), Llama 3 (128,256), Gemma 3 (262,144), and the next power of two after the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import LOGITS
from bench.harness.data.verify import sum_roundings
from bench.harness.op import Case, Op, TensorMaker, rows_by_width, rows_of
from roofline.work import cross_entropy_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the vocabularies of several models"),
    ("--dtype bf16,fp32 --shape 64x128256", "one vocabulary in two data types"),
    ("--shape 32000 --provider torch,torch-compile", "4096 rows, two providers"),
)


LOGIT_GAIN = 4.0
"""Logits are this much larger than other inputs, as in `bench/softmax.py`."""

IGNORED = -100
"""Label of a row whose loss is 0. Source: torch.nn.functional.cross_entropy, `ignore_index`."""


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return logits (m, v), spread so that rows are not flat, and labels (m) from 0 to v - 1."""
    m = case.shape["m"]
    v = case.shape["v"]
    return tensor(m, v).mul_(LOGIT_GAIN), tensor(m, dtype="int64").remainder_(v)


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the losses (m), 0 for labels that are `IGNORED`."""
    loss = logits.logsumexp(-1) - chosen(logits, labels)
    return loss.masked_fill(labels == IGNORED, 0.0)


def chosen(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits of the labels (m); any if a label is ignored."""
    return logits.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)


def ignore(logits: Tensor, labels: Tensor) -> None:
    labels.fill_(IGNORED)


def cross_entropy(logits: Tensor, labels: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the losses (m), computed by torch from fp32 logits."""
    import torch

    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide, labels, reduction="none")


def magnitude(truth: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the error scale: the absolute terms of the sum, and the relative error of the sum of
    exponentials.
    """
    maximum = logits.amax(-1).abs()
    return truth + maximum + chosen(logits, labels).abs() + sum_roundings(logits.shape[-1])


def output_dtype(dtype: str) -> str:
    return "fp64" if dtype == "fp64" else "fp32"


OPS = (
    Op(
        name="cross-entropy",
        formula="loss (m) = log(sum(exp(logits (m, v)))) - logits[label]",
        axes=("m", "v"),
        extents=rows_by_width,
        default_shapes={
            "cpu": ("256x32000", "256x32768", "64x128256", "32x262144"),
            "cuda": ("8192x32000", "8192x32768", "4096x128256", "2048x262144", "64x128256"),
        },
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["m"],),
        output_dtype=output_dtype,
        reference=reference,
        eager=cross_entropy,
        expression=cross_entropy,
        work=lambda case: cross_entropy_work(
            case.shape["m"], case.shape["v"], case.dtype, output_dtype(case.dtype)
        ),
        magnitude=magnitude,
        terms=lambda case: case.shape["v"],
        units="vector",
        take_rows=rows_of(0, 1),
        stress=LOGITS | {"ignored label": ignore},
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
