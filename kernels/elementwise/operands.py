"""What an elementwise operation is asked for, read from its tensors once for all versions; anything else is refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels.launch import require_companion, require_contiguous, require_shape, require_tensors

MAX_COLUMNS = 2**30  # a column number plus one block still fits 32 bits


def launchers(version: str, names: Mapping[str, Sequence[str]], launch: Callable[..., Any]) -> dict[str, Any]:
    """Return the launchers of a version by operation.

    Args:
        version: `v3`.
        names: What messages call the inputs of one shape, by operation; bias-gelu and dropout take one more.
        launch: Starts a kernel: operation, inputs, out, and for bias-gelu the columns; it is not called where there
            is nothing to write.
    """

    def run(op: str, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        label, wanted = f"{op} {version}", list(names[op])
        wanted += {"bias-gelu": ["bias"], "dropout": ["seed"]}.get(op, [])
        if len(inputs) != len(wanted):
            raise ValueError(f"{label}: {len(inputs)} inputs are given; pass {', '.join(wanted)}")
        operands = dict(zip(wanted, inputs, strict=True))
        x, seed = operands["gate" if op == "swiglu" else "x"], operands.pop("seed", None)
        require_tensors(label, **operands, out=out)
        require_contiguous(label, **operands, out=out)
        bias = operands.pop("bias", None)
        for name, tensor in (operands | {"out": out}).items():
            require_shape(label, name, tensor, x.shape)
        if bias is not None:
            _require_bias(label, x, bias)
        if op == "dropout":  # the seed is on the device, so that a captured graph can be given another one
            require_companion(label, "seed", seed, torch.int64, ("x", x))
            require_shape(label, "seed", seed, (1,))
        if out.numel():
            launch(op, inputs, out, *(() if bias is None else bias.shape))

    def of(op: str) -> Callable[..., None]:
        return lambda *inputs, out: run(op, inputs, out)

    return {op: of(op) for op in names}


def _require_bias(label: str, x: torch.Tensor, bias: torch.Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"{label}: x has shape {tuple(x.shape)}; two dimensions are needed, (rows, cols)")
    if x.shape[1] > MAX_COLUMNS:
        raise ValueError(f"{label}: x has {x.shape[1]} columns; at most {MAX_COLUMNS} are supported")
    require_shape(label, "bias", bias, x.shape[1:])
