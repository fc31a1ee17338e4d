"""Argument checks, variants and launchers shared by all versions of the elementwise kernels."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from kernels.launch import (
    DTYPES,
    Variant,
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
)

MAX_COLUMNS = 2**30  # a column number plus one block still fits 32 bits
X_AND_Y = ("x", "y")
INPUTS = {
    "add": X_AND_Y,
    "mul": X_AND_Y,
    "triad": X_AND_Y,
    "swiglu": ("gate", "up"),
    "residual-add": ("x", "residual"),
}
"""Names of the inputs of one shape of the operations with two of them; the others have `x`."""
MORE_INPUTS = {"bias-gelu": ("bias",), "dropout": ("seed",)}

Variants = Mapping[tuple[str, torch.dtype], Variant]


def named(ending: str) -> Callable[[Any], str]:
    """Return a function that names a kernel by its formula, `gelu_lean`, because profilers show
    that name.
    """
    return lambda specialization: f"{specialization.constants['FORMULA'].__name__}_{ending}"


def variants_of(formulas: Mapping[str, Any], kernel: Any, warps: int, block_bytes: int) -> Variants:
    """Return the variants of a version by operation and dtype, each for blocks of `block_bytes` of
    an operand.
    """
    variants: Variants = {}
    for (op, formula), dtype in itertools.product(formulas.items(), DTYPES):
        block = block_bytes // dtype.itemsize
        constants = {"FORMULA": formula, "BLOCK": block, "RANDOM": op == "dropout"}
        if op != "bias-gelu":
            constants["cols"] = None
        if op not in INPUTS and op not in MORE_INPUTS:
            constants["y_ptr"] = None
        variants[op, dtype] = Variant(
            kernel=kernel,
            constants=constants,
            warps=warps,
            op=op,
            dtype=DTYPES[dtype],
            types={"y_ptr": "*i64"} if op == "dropout" else {},
            elements=block,
            # A bias or a seed comes from the cache.
            bytes=(3 if op in INPUTS else 2) * block_bytes,
        )
    return variants


def launchers(
    version: str, variants: Variants, programs: Callable[[int, int], int]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v3`; `programs(n, block)` returns the grid size
    for n elements.
    """

    def run(op: str, *inputs: torch.Tensor, out: torch.Tensor) -> None:
        sizes = _read(f"{op} {version}", op, inputs, out)
        if out.numel():
            variant = variants[op, out.dtype]
            first, *others = inputs
            count = programs(out.numel(), variant.constants["BLOCK"])
            variant.launch(count, first, out, out.numel(), *others, *sizes)

    return {op: partial(run, op) for op, _ in variants}


def _read(
    label: str, op: str, inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> tuple[int, ...]:
    """Check the tensors and return the columns of bias-gelu, or nothing for other operations."""
    wanted = [*INPUTS.get(op, ("x",)), *MORE_INPUTS.get(op, ())]
    operands = dict(zip(wanted, inputs, strict=True))
    x = inputs[0]
    seed = operands.pop("seed", None)
    require_tensors(label, **operands, out=out)
    require_contiguous(label, **operands, out=out)
    bias = operands.pop("bias", None)
    for name, tensor in (operands | {"out": out}).items():
        require_shape(label, name, tensor, x.shape)
    # The seed is on the device, so that a captured graph can be given another one.
    if op == "dropout":
        require_companion(label, "seed", seed, torch.int64, ("x", x))
        require_shape(label, "seed", seed, (1,))
    if bias is None:
        return ()
    if x.dim() != 2:
        raise ValueError(
            f"{label}: x has shape {tuple(x.shape)}; expected two dimensions, (rows, cols)"
        )
    if x.shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"{label}: x has {x.shape[1]} columns; at most {MAX_COLUMNS} are supported"
        )
    require_shape(label, "bias", bias, x.shape[1:])
    return tuple(bias.shape)
