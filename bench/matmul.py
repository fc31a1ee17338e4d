"""Matrix multiplication: C = A B with A (m, k), B (k, n) and C (m, n).

FLOPs   2 m n k: m n k multiplications and as many additions.
Bytes   w (m k + k n) read and v m n written, where w and v are the bytes per element of the inputs
        and the output.
Ridge   A square bf16 matmul has n / 3 FLOP/byte. From n = 886 it is compute-bound on an H100 (ridge
        point 295).
Layout  One letter for A, one for B: `n` is stored row-major, `t` is stored transposed and passed as
        a view. A linear layer, `x @ w.T`, is `nt`. fp8 tensor cores accept only `nt`.
Output  Same dtype as the inputs, except int32 for int8 and bf16 for fp8.

Source  CS336 (2025), lecture 2; Austin et al., How to Scale Your Model (2025), chapter 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import FACTORS
from bench.harness.op import (
    Case,
    Op,
    Option,
    TensorMaker,
    UnsupportedCaseError,
    parse_choice,
    parse_count,
)
from bench.harness.torch_private import int_mm, scaled_mm
from roofline.work import Work, matmul_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--dtype bf16,fp32 --shape 1024:4096:1024", "four square sizes in two data types"),
    (
        "--shape 1024 --provider torch,einsum,einsum-compile",
        "a matmul, and an einsum, eager and compiled",
    ),
    (
        "--shape 4096x11008x4096 --layout nt --plot roofline.png",
        "one linear layer, with a roofline plot",
    ),
)

OPTIONS = (
    Option(
        "batch",
        "number of matmuls in one launch",
        lambda word: parse_count(word, 10**9 - 1, "batch "),
        lambda dtype: 1,
        label=lambda batch: f"b{batch}" if batch > 1 else "",
    ),
    Option(
        "layout",
        "storage order of A and B: nn, nt, tn",
        lambda word: parse_choice(word, ("nn", "nt", "tn"), "layout"),
        # int8: faster in libraries.
        lambda dtype: "nt" if dtype[:3] == "fp8" or dtype == "int8" else "nn",
        label=lambda layout: "" if layout == "nn" else layout,
    ),
)


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return A (m, k) and B (k, n), with a leading batch axis if there is a batch, and for fp8 two
    scales of 1.
    """
    m = case.shape["m"]
    n = case.shape["n"]
    k = case.shape["k"]
    batch = () if case.options["batch"] == 1 else (case.options["batch"],)
    store_a, store_b = case.options["layout"]
    a = tensor(*batch, m, k) if store_a == "n" else tensor(*batch, k, m).mT
    b = tensor(*batch, k, n) if store_b == "n" else tensor(*batch, n, k).mT
    if not case.dtype.startswith("fp8"):
        return a, b
    one = tensor(1, dtype="fp32").fill_(1.0)
    return a, b, one, one


def reference(a: Tensor, b: Tensor, *scales: Tensor) -> Tensor:
    """Return A B; the fp8 scales are 1."""
    return a @ b


def eager(a: Tensor, b: Tensor, *scales: Tensor, out: Tensor) -> None:
    """Compute C = A B with torch's function for the dtype."""
    import torch

    if scales:
        scale_a, scale_b = scales
        scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, out=out)
    elif a.dtype == torch.int8:
        int_mm(a, b, out=out)
    else:
        torch.matmul(a, b, out=out)


def expression(a: Tensor, b: Tensor, *scales: Tensor) -> Tensor:
    """Return A B for `torch.compile`, by the same functions as `eager`."""
    import torch

    if scales:
        scale_a, scale_b = scales
        return scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)
    return int_mm(a, b) if a.dtype == torch.int8 else a @ b


def output_dtype(dtype: str) -> str:
    return {"int8": "int32", "fp8e4m3": "bf16", "fp8e5m2": "bf16"}.get(dtype, dtype)


def output_shape(case: Case) -> tuple[int, ...]:
    batch = () if case.options["batch"] == 1 else (case.options["batch"],)
    return (*batch, case.shape["m"], case.shape["n"])


def work(case: Case) -> Work:
    m = case.shape["m"]
    n = case.shape["n"]
    k = case.shape["k"]
    return matmul_work(m, n, k, case.dtype, output_dtype(case.dtype), case.options["batch"])


def take_rows(
    inputs: tuple[Tensor, ...], out: Tensor, rows: Any
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return rows of A and C, and all of B."""
    a, *rest = inputs
    return (a[..., rows, :], *rest), out[..., rows, :]


def largest_products(a: Tensor, b: Tensor) -> None:
    """Write an odd number of 127s into a row of A and a column of B. From k = 1042 on, their
    product is an odd number above 2^24, which fp32 lacks; it stays below 2^31 for any k.
    """
    a.zero_()
    a[..., : min(a.shape[-1], 2**16) // 2 * 2 - 1] = 127
    b[..., 0] = 127


def check(case: Case, device_type: str) -> None:
    """Raise if torch's function for the dtype does not support the case."""
    narrow = case.dtype.startswith("fp8") or case.dtype == "int8"
    if narrow and case.options["batch"] > 1:
        raise UnsupportedCaseError(f"{case.dtype} has no batched product in torch; use --batch 1")
    if case.dtype.startswith("fp8") and case.options["layout"] != "nt":
        raise UnsupportedCaseError(
            f"{case.dtype} tensor cores take layout nt only; use --layout nt"
        )
    multiple = 16 if case.dtype.startswith("fp8") else 8
    if (
        narrow
        and device_type != "cpu"
        and (case.shape["n"] % multiple or case.shape["k"] % multiple)
    ):
        raise UnsupportedCaseError(f"{case.dtype} needs n and k that are multiples of {multiple}")
    if case.dtype == "int8" and device_type != "cpu" and case.shape["m"] <= 16:
        raise UnsupportedCaseError("int8 needs m above 16 in torch")
    if (
        case.dtype == "int8"
        and device_type == "cpu"
        and case.shape["k"] == 1
        and case.options["layout"][1] == "t"
    ):
        raise UnsupportedCaseError(
            "int8 with k = 1 needs --layout nn: torch on a CPU misreads a transposed row"
        )


OPS = (
    Op(
        name="matmul",
        formula="C (m, n) = A (m, k) B (k, n)",
        axes=("m", "n", "k"),
        dtypes=("fp64", "fp32", "tf32", "fp16", "bf16", "fp8e4m3", "int8"),
        default_shapes={
            "cpu": ("256", "512", "1024", "2048"),
            "cuda": ("256", "512", "1024", "2048", "4096", "8192", "16384"),
        },
        make_inputs=make_inputs,
        output_shape=output_shape,
        output_dtype=output_dtype,
        reference=reference,
        eager=eager,
        expression=expression,
        writes_out_when_compiled=False,
        work=work,
        terms=lambda case: case.shape["k"],
        take_rows=take_rows,
        columns_of=1,
        stress=FACTORS,
        integer_stress={"largest integers": largest_products},
        check=check,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
