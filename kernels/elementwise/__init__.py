"""Argument checks, variants and launchers shared by all versions of the elementwise kernels."""

import itertools
from collections.abc import Callable, Mapping, Sequence
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
MORE_INPUTS = {"bias-gelu": ("bias",), "dropout": ("seed",)}

Ops = Mapping[str, tuple[Any, Any, Sequence[str]]]
"""By operation: kernel, formula, and the names of the inputs of one shape, to which `MORE_INPUTS`
are added.
"""
Variants = Mapping[tuple[str, torch.dtype], Variant]


def named(ending: str) -> Callable[[Any], str]:
    """Return a function that names a kernel by its formula, `gelu_lean`, because profilers show
    that name.
    """
    return lambda specialization: f"{specialization.constants['FORMULA'].__name__}_{ending}"


def variants_of(ops: Ops, warps: int, block_bytes: int) -> Variants:
    """Return the variants of a version by operation and dtype, each for blocks of `block_bytes` of
    an operand.
    """
    variants: Variants = {}
    for (op, (kernel, formula, names)), dtype in itertools.product(ops.items(), DTYPES):
        block = block_bytes // dtype.itemsize
        constants = {"FORMULA": formula, "BLOCK": block}
        if op != "bias-gelu":
            constants["RANDOM"] = op == "dropout"
        if len(names) == 1 and op not in MORE_INPUTS:
            constants["y_ptr"] = None
        variants[op, dtype] = Variant(
            kernel=kernel,
            constants=constants,
            options={"num_warps": warps, "enable_fp_fusion": True},
            op=op,
            dtype=DTYPES[dtype],
            types={"y_ptr": "*i64"} if op == "dropout" else {},
            elements=block,
            bytes=(len(names) + 1) * block_bytes,  # a bias or a seed comes from the cache
        )
    return variants


def launchers(
    version: str, ops: Ops, variants: Variants, programs: Callable[[int, int], int]
) -> dict[str, Callable[..., None]]:
    """Return the launchers of a version such as `v3`; `programs(n, block)` returns the grid size
    for n elements.
    """

    def run(op: str, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        sizes = _read(f"{op} {version}", op, ops[op][2], inputs, out)
        if out.numel():
            variant = variants[op, out.dtype]
            first, *others = inputs
            count = programs(out.numel(), variant.constants["BLOCK"])
            variant.launch(count, first, out, out.numel(), *others, *sizes)

    def of(op: str) -> Callable[..., None]:
        return lambda *inputs, out: run(op, inputs, out)

    return {op: of(op) for op in ops}


def _read(
    label: str, op: str, names: Sequence[str], inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> tuple[int, ...]:
    """Check the tensors and return the columns of bias-gelu, or nothing for other operations."""
    wanted = [*names, *MORE_INPUTS.get(op, ())]
    if len(inputs) != len(wanted):
        raise ValueError(f"{label}: expected the inputs {', '.join(wanted)}, got {len(inputs)}")
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
