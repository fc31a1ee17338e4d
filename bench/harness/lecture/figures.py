"""What `python -m bench lecture` measures for a statement of the notes: `FIGURES`, by claim.

A parameter of a figure is a row of `rows.toml`, with the keys of records in
`results show --format json`. Figures without parameters run code of the notes, or of torch.
"""

# mypy: disable-error-code="call-arg, func-returns-value, union-attr"
# Code of the notes is wrong in part.

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

STATE = ("parameters", "gradients", "optimizer_state")


def state_per_parameter(step: Any, bytes_per_element: int) -> float:
    measured = step.memory_bytes["measured"]
    return float(bytes_per_element * sum(measured[part] for part in STATE) / measured["parameters"])


def kept_by_layers(step: Any) -> int:
    return int(step.memory_bytes["estimated"]["kept_by_layers"])


def gradient_of_two_passes() -> float:
    w = torch.ones((), requires_grad=True)
    (3 * w).backward()
    (3 * w).backward()
    return w.grad.item()


def header_tokens() -> int:
    file = io.BytesIO()
    np.save(file, np.zeros(9, np.int32))
    return file.tell() // 4 - 9


CODE: dict[Callable[..., Any], str] = {
    gradient_of_two_passes: (
        "[w := torch.ones((), requires_grad=True), (3 * w).backward(), (3 * w).backward(), "
        "w.grad.item()][-1]"
    ),
    header_tokens: (
        "[file := io.BytesIO(), np.save(file, np.zeros(9, np.int32)), file.tell() // 4 - 9][-1]"
    ),
}
"""Functions as one expression, for `python -c`; the other figures without parameters are one."""

FIGURES: dict[str, Callable[..., Any]] = {
    "4 x 8 in fp32": lambda: torch.zeros(4, 8).nbytes,
    "values of GPT-3's MLP matrix": lambda: torch.zeros(49152, 12288, device="meta").numel(),
    "GPT-3's MLP matrix in fp32": lambda: torch.zeros(49152, 12288, device="meta").nbytes,
    "[1024, 1024] in fp32": lambda: torch.zeros(1024, 1024).nbytes,
    "largest fp16": lambda: torch.finfo(torch.float16).max,
    "largest E4M3 and E5M2": lambda: torch.finfo(torch.float8_e5m2).max,
    "largest bf16 over largest fp32": lambda: (
        torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max
    ),
    "fp16(1e-8)": lambda: torch.tensor(1e-8, dtype=torch.float16).item(),
    "bf16(1e-8)": lambda: torch.tensor(1e-8, dtype=torch.bfloat16).item(),
    "fp64 over bf16 in memory": lambda: torch.float64.itemsize / torch.bfloat16.itemsize,
    "element (1, 2) of a 4 x 4 tensor in its storage": lambda: torch.zeros(4, 4)[
        1:, 2:
    ].storage_offset(),
    "view() of a transposed tensor": lambda: torch.zeros(4, 8).T.view(32),
    "bytes that transpose() copies, 4 x 8 in fp32": lambda: (
        (x := torch.zeros(4, 8)).T.data_ptr() - x.data_ptr()
    ),
    "bytes that contiguous() or reshape() of it copies": lambda: (
        torch.zeros(4, 8).T.contiguous().nbytes
    ),
    "[1024,512] @ [512,256]": lambda notes_matmul: notes_matmul.flops,
    "[1024,512] @ [512,256] over squaring [1024,512], FLOPs": lambda notes_matmul, notes_relu: (
        notes_matmul.median_s / notes_relu.median_s
    ),
    "squaring each element of [1024,512], FLOPs": lambda notes_relu: notes_relu.flops,
    "a compiled einsum": lambda compiled_einsum, matmul: compiled_einsum.median_s / matmul.median_s,
    "bf16 peak of an H100, TFLOP/s": lambda matmul: matmul.flops_per_s,
    "bf16 over fp32 on an H100": lambda bf16_matmul, fp32_matmul: (
        bf16_matmul.flops_per_s / fp32_matmul.flops_per_s
    ),
    "MFU of a good training run": lambda step: 100 * step.mfu,
    "MFU of a matmul alone": lambda matmul: 100 * matmul.mfu,
    "ridge point of an H100, bf16": lambda matmul: matmul.intensity * matmul.mbu / matmul.mfu,
    "intensity of ReLU": lambda relu: 100 * relu.mbu,
    "intensity of GELU": lambda gelu, relu: gelu.median_s / relu.median_s,
    "intensity of a dot product in bf16": lambda dot: 100 * dot.mbu,
    "intensity of matrix times vector in bf16": lambda matvec: 100 * matvec.mbu,
    "square matmul that is compute-bound on an H100": lambda matmul: 100 * matmul.mfu,
    "intensity of square products": lambda matmul: matmul.intensity,
    "eager over compiled, bias and GELU": lambda bias_gelu, compiled: (
        bias_gelu.median_s / compiled.median_s
    ),
    "FLOPs of 70B on 15T tokens": lambda step: (
        step.counted_flops
        / step.tokens_per_step
        / (step.memory_bytes["measured"]["parameters"] / 4)
    ),
    "backward over forward, two layers D x D": lambda step: (
        step.phases_s["backward"] / step.phases_s["forward"]
    ),
    "largest gradient of 0.5 (x w - 5)^2, x = 1, 2, 3, w = 1": lambda: (
        torch.func.grad(lambda w: 0.5 * (torch.tensor([1.0, 2.0, 3.0]) @ w - 5) ** 2)(torch.ones(3))
        .max()
        .item()
    ),
    "gradient of 3 w after two backward passes, not zeroed": gradient_of_two_passes,
    "backward() of a tensor that is not a scalar": lambda: torch.ones(
        2, requires_grad=True
    ).backward(),
    "standard deviation of x W, both N(0, 1), d = 1024": lambda: (
        (torch.randn(256, 1024) @ torch.randn(1024, 1024)).std().item()
    ),
    "the same with W / sqrt(d)": lambda: (
        (torch.randn(256, 1024) @ torch.randn(1024, 1024) / 1024**0.5).std().item()
    ),
    "clipping the gradients of 1B parameters in fp32": lambda step: (
        100 * step.phases_s["clip"] / step.median_s
    ),
    "zero_grad for 1B parameters in fp32": lambda step: (
        100 * step.phases_s["zero_grad"] / step.median_s
    ),
    "deterministic algorithms": lambda deterministic, step: deterministic.median_s / step.median_s,
    "Linear(1024, 512)": lambda: torch.nn.Linear(1024, 512, bias=False).weight.numel(),
    "AdamW in fp32, bytes": lambda step: state_per_parameter(step, 4),
    "AdamW in mixed precision, bytes": lambda bf16_step: state_per_parameter(bf16_step, 2),
    "the same with checkpointing": lambda checkpointed, step: (
        100 * (1 - kept_by_layers(checkpointed) / kept_by_layers(step))
    ),
    "its compute overhead": lambda checkpointed, step: (
        100 * (checkpointed.median_s / step.median_s - 1)
    ),
    "activations of the layers with 8 micro-batches": lambda accumulated, step: (
        100 * accumulated.memory_bytes["measured"]["total"] / step.memory_bytes["measured"]["total"]
    ),
    "torch.cuda.amp.autocast(device_type=...)": lambda: torch.cuda.amp.autocast(device_type="cuda"),
    'torch.save(checkpoint, "checkpoint_step_{step}.pt")': lambda: "checkpoint_step_{step}.pt",
    'header tokens in np.memmap("tokens.npy", np.int32)': header_tokens,
    "time that a step waits for prefetched data": lambda prefetched: 100 * prefetched.wait_share,
    "copy that overlaps with compute": lambda overlap: 100 * overlap.hidden_share,
}
