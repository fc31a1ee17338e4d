"""What `python -m bench lecture` measures for a statement of the notes, by claim: `CODE` is run,
`FIGURES` are computed from measured rows.

A figure names rows of `rows.toml`; its function gets them with the keys of records in
`results show --format json`. Fractions become percentages where the unit of the claim is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from results.show.facts import facts_beside
from roofline.work import DTYPE_BITS

CODE: dict[str, str] = facts_beside(__file__, "code.toml")
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


def share_of(phase: str, step: Any) -> float:
    return float(step.phases_s[phase] / step.median_s)


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
    "clipping the gradients of 1B parameters in fp32": (partial(share_of, "clip"), ("step",)),
    "zero_grad for 1B parameters in fp32": (partial(share_of, "zero_grad"), ("step",)),
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
