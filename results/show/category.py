"""Categories of operations and kernels, by their names."""

from __future__ import annotations

import re
from functools import cache

IDLE = "idle"
OTHER = "other"
COMMUNICATION = "communication"

PATTERNS = {
    COMMUNICATION: (
        r"nccl|rccl|c10d|record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
        r"|symm_mem|broadcast_coalesced"
    ),
    "attention": r"attention|fmha|flash|sdpa",
    "normalization": r"norm",
    "matmul": (
        r"gemm|gemv|matmul|(^|[._:])(add|ba|baddb|b)?mm$|_mm$|linear|cutlass|cijk|xmma|nvjet"
        r"|conv(?!ert)|implicit|wgrad|dgrad|winograd|bmm|moe"
    ),
    "copy": (
        r"memcpy|memset|copy|_to$|clone|[._]cat$|catarray|stack|fill|zero|ones|index|gather|scatter"
        r"|embedding|triton_tem_copy|transpose|contiguous"
    ),
    "reduction": (
        r"reduce|softmax|[._](sum|mean|max|min|argmax|topk|sort|cumsum)|cub::|triton_(red|per)"
    ),
    "elementwise": (
        r"elementwise|triton_poi|pointwise|foreach|multi_tensor|swiglu|act_and_mul|rotary"
        r"|[._](add|sub|mul|div|silu|gelu|relu|tanh|sigmoid|exp|pow|neg|rsqrt|sqrt|where|threshold"
        r"|dropout|native_dropout|clamp|cos|sin|bitwise|eq|ne|gt|lt|le|ge|log)(_|$|_backward)"
    ),
}
"""Patterns of names in lower case, by category; the first that is found counts."""


@cache  # of the same few kernels of a long trace
def category_of(name: str) -> str:
    lower = name.lower()
    for category, pattern in PATTERNS.items():
        if re.search(pattern, lower):
            return category
    return OTHER


def is_communication(name: str) -> bool:
    return category_of(name) == COMMUNICATION
