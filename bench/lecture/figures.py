"""What `python -m bench lecture` measures for a statement of the notes, by claim: `CODE` is run,
`FIGURES` are computed from measured rows.

A figure names rows of `rows.toml`; its function gets them with the keys of records in
`results show --format json`. Fractions become percentages where the unit of the claim is one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from roofline.work import DTYPE_BITS

CODE = {
    "4 x 8 in fp32": "import torch; print(torch.zeros(4, 8).nbytes)",
    "values of GPT-3's MLP matrix": (
        'import torch; print(torch.zeros(49152, 12288, device="meta").numel())'
    ),
    "GPT-3's MLP matrix in fp32": (
        'import torch; print(torch.zeros(49152, 12288, device="meta").nbytes)'
    ),
    "[1024, 1024] in fp32": "import torch; print(torch.zeros(1024, 1024).nbytes)",
    "largest fp16": "import torch; print(torch.finfo(torch.float16).max)",
    "largest E4M3 and E5M2": "import torch; print(torch.finfo(torch.float8_e5m2).max)",
    "largest bf16 over largest fp32": (
        "import torch; print(torch.finfo(torch.bfloat16).max / torch.finfo(torch.float32).max)"
    ),
    "fp16(1e-8)": "import torch; print(torch.tensor(1e-8, dtype=torch.float16).item())",
    "bf16(1e-8)": "import torch; print(torch.tensor(1e-8, dtype=torch.bfloat16).item())",
    "fp64 over bf16 in memory": (
        "import torch; print(torch.float64.itemsize / torch.bfloat16.itemsize)"
    ),
    "element (1, 2) of a 4 x 4 tensor in its storage": (
        "import torch; print(torch.zeros(4, 4)[1:, 2:].storage_offset())"
    ),
    "view() of a transposed tensor": "import torch; print(torch.zeros(4, 8).T.view(32))",
    "bytes that transpose() copies, 4 x 8 in fp32": (
        "import torch; x = torch.zeros(4, 8); print(x.T.data_ptr() - x.data_ptr())"
    ),
    "bytes that contiguous() or reshape() of it copies": (
        "import torch; print(torch.zeros(4, 8).T.contiguous().nbytes)"
    ),
    "largest gradient of 0.5 (x w - 5)^2, x = 1, 2, 3, w = 1": (
        "import torch; w = torch.ones(3, requires_grad=True); "
        "(0.5 * (torch.tensor([1.0, 2.0, 3.0]) @ w - 5) ** 2).backward(); "
        "print(w.grad.max().item())"
    ),
    "gradient of 3 w after two backward passes, not zeroed": (
        "import torch; w = torch.ones((), requires_grad=True); "
        "(3 * w).backward(); (3 * w).backward(); print(w.grad.item())"
    ),
    "backward() of a tensor that is not a scalar": (
        "import torch; print(torch.ones(2, requires_grad=True).backward())"
    ),
    "standard deviation of x W, both N(0, 1), d = 1024": (
        "import torch; print((torch.randn(256, 1024) @ torch.randn(1024, 1024)).std().item())"
    ),
    "the same with W / sqrt(d)": (
        "import torch; "
        "print((torch.randn(256, 1024) @ torch.randn(1024, 1024) / 1024**0.5).std().item())"
    ),
    'reduce(x, "... hidden -> ...", "sum") of 2 x 3 x 4 ones': (
        'import torch; print(torch.einsum("bsh->bs", torch.ones(2, 3, 4)).max().item())'
    ),
    "derivative of x^2 + 3 x at x = 2": (
        "import torch; x = torch.tensor(2.0, requires_grad=True); "
        "(x * x + 3 * x).backward(); print(x.grad.item())"
    ),
    "h.grad of 0.5 (h - 5)^2, h = x w, not retained": (
        "import torch; w = torch.ones(3, requires_grad=True); "
        "h = torch.tensor([1.0, 2.0, 3.0]) @ w; (0.5 * (h - 5) ** 2).backward(); print(h.grad)"
    ),
    "gradient over 8 micro-batches, losses not divided": (
        "import torch; w = torch.ones((), requires_grad=True); "
        "[w.backward() for _ in range(8)]; print(w.grad.item())"
    ),
    "growth over 10 layers x W, both N(0, 1), d = 1024": (
        "import functools; import torch; random = functools.partial(torch.randn, 1024, 1024); "
        "print(functools.reduce(lambda x, _: x @ random(), range(10), random()).std().item())"
    ),
    "steps that Adam remembers, beta 0.9 and 0.999": "print(round(1 / (1 - 0.999)))",
    "layers run again if no activations are kept, L = 24": "print(sum(range(24)))",
    "2.8 TB of tokens as an int32 file": (
        "import numpy as np; print(1_400_000_000_000 * np.dtype(np.int32).itemsize)"
    ),
    "Linear(1024, 512)": (
        "import torch; print(torch.nn.Linear(1024, 512, bias=False).weight.numel())"
    ),
    "torch.cuda.amp.autocast(device_type=...)": (
        'import torch; print(torch.cuda.amp.autocast(device_type="cuda"))'
    ),
    'torch.save(checkpoint, "checkpoint_step_{step}.pt")': 'print("checkpoint_step_{step}.pt")',
    'header tokens in np.memmap("tokens.npy", np.int32)': (
        "import io; import numpy as np; file = io.BytesIO(); "
        "np.save(file, np.zeros(9, np.int32)); print(file.tell() // 4 - 9)"
    ),
}
"""Code of each claim that `python -c` runs; code of the notes is wrong in part."""


def time_ratio(row: Any, other: Any) -> float:
    return float(row.median_s / other.median_s)


def ridge(row: Any) -> float:
    return float(row.intensity * row.mbu / row.mfu)


def flops_per_parameter_and_token(step: Any) -> float:
    parameters = step.memory_bytes["measured"]["parameters"] / 4
    return float(step.counted_flops / step.tokens_per_step / parameters)


def backward_over_forward(step: Any) -> float:
    return float(step.phases_s["backward"] / step.phases_s["forward"])


def share_of_clipping(step: Any) -> float:
    return float(step.phases_s["clip"] / step.median_s)


def share_of_zero_grad(step: Any) -> float:
    return float(step.phases_s["zero_grad"] / step.median_s)


def state_per_parameter(step: Any) -> float:
    """Return the bytes of parameters, gradients and optimizer state for each parameter."""
    measured = step.memory_bytes["measured"]
    state = measured["parameters"] + measured["gradients"] + measured["optimizer_state"]
    return float(state / measured["parameters"] * DTYPE_BITS[step.dtype] / 8)


def saved_in_layers(checkpointed: Any, step: Any) -> float:
    kept = checkpointed.memory_bytes["estimated"]["kept_by_layers"]
    return float(1 - kept / step.memory_bytes["estimated"]["kept_by_layers"])


def more_time(row: Any, other: Any) -> float:
    return time_ratio(row, other) - 1


def memory_ratio(row: Any, other: Any) -> float:
    return float(row.memory_bytes["measured"]["total"] / other.memory_bytes["measured"]["total"])


FIGURES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "[1024,512] @ [512,256]": (attrgetter("flops"), ("notes_matmul",)),
    "[1024,512] @ [512,256] over squaring [1024,512], FLOPs": (
        time_ratio,
        ("notes_matmul", "notes_relu"),
    ),
    "squaring each element of [1024,512], FLOPs": (attrgetter("flops"), ("notes_relu",)),
    "a compiled einsum": (time_ratio, ("compiled_einsum", "matmul")),
    "bf16 peak of an H100, TFLOP/s": (attrgetter("flops_per_s"), ("matmul",)),
    "bf16 over fp32 on an H100": (time_ratio, ("fp32_matmul", "bf16_matmul")),
    "MFU of a good training run": (attrgetter("mfu"), ("step",)),
    "MFU of a matmul alone": (attrgetter("mfu"), ("matmul",)),
    "ridge point of an H100, bf16": (ridge, ("matmul",)),
    "intensity of ReLU": (attrgetter("mbu"), ("relu",)),
    "intensity of GELU": (time_ratio, ("gelu", "relu")),
    "intensity of a dot product in bf16": (attrgetter("mbu"), ("dot",)),
    "intensity of matrix times vector in bf16": (attrgetter("mbu"), ("matvec",)),
    "square matmul that is compute-bound on an H100": (attrgetter("mfu"), ("matmul",)),
    "intensity of square products": (attrgetter("intensity"), ("matmul",)),
    "eager over compiled, bias and GELU": (time_ratio, ("bias_gelu", "compiled")),
    "FLOPs of 70B on 15T tokens": (flops_per_parameter_and_token, ("step",)),
    "backward over forward, two layers D x D": (backward_over_forward, ("step",)),
    "clipping the gradients of 1B parameters in fp32": (share_of_clipping, ("step",)),
    "zero_grad for 1B parameters in fp32": (share_of_zero_grad, ("step",)),
    "deterministic algorithms": (time_ratio, ("deterministic", "step")),
    "AdamW in fp32, bytes": (state_per_parameter, ("step",)),
    "AdamW in mixed precision, bytes": (state_per_parameter, ("bf16_step",)),
    "the same with checkpointing": (saved_in_layers, ("checkpointed", "step")),
    "its compute overhead": (more_time, ("checkpointed", "step")),
    "activations of the layers with 8 micro-batches": (memory_ratio, ("accumulated", "step")),
    "time that a step waits for prefetched data": (attrgetter("wait_share"), ("prefetched",)),
    "copy that overlaps with compute": (attrgetter("hidden_share"), ("overlap",)),
}
"""Function of each claim and the rows that it takes."""
