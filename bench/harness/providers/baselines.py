"""Kernels of other libraries that compute what an op of ours does: offered where a library is installed, never fetched.

Their semantics are those of the op: its epsilon is passed, no weight is offset, the result has the op's dtype. What
differs is left out: SwiGLU of one matrix that holds gate and up, a norm that overwrites its residual, losses in bf16.

Source: quack-kernels 0.6.5 (`rmsnorm.py`, `softmax.py`, `cross_entropy.py`), liger-kernel 0.8.5
(`transformers/functional.py`), flashinfer-python 0.7.2 (`norm`), torch 2.11 (`_scaled_mm`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

RMSNORM_EPSILON, LAYERNORM_EPSILON = 1e-6, 1e-5
"""As in `bench/norm.py`."""

FAST_ACCUMULATION = "torch-fast-accum"
FAST_TOLERANCE = 4.0
"""Sums that keep about 14 bits are off by up to 2 % where 4,096 products are added.

Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2."""


@dataclass(frozen=True)
class Baseline:
    """What a library has for one op."""

    package: str
    """The name by which the library is imported."""
    function: Callable[..., Any]
    """`function(*inputs)` returning the result, or `function(*inputs, out=out)`."""
    takes_out: bool = False
    tolerance: float = 1.0
    """Times the error that rounding explains which its results may have."""
    dtypes: tuple[str, ...] = ()
    """Dtypes in which it is measured where no provider is named; none: it has to be named."""


def fast_matmul(a: Tensor, b: Tensor, *scales: Tensor, out: Tensor) -> None:
    """Compute C = A B in fp8, with sums that keep about 14 bits on Hopper.

    Raises:
        ValueError: the dtype is not fp8.
    """
    import torch

    if not scales:
        raise ValueError("fast accumulation is for fp8")
    scale_a, scale_b = scales
    torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=out.dtype, out=out, use_fast_accum=True)


def library(module: str, name: str, *more: Any, **options: Any) -> Callable[..., Any]:
    """Return a call of a library's function, which is imported when it is called first: `more` follows the inputs."""

    def call(*inputs: Any, **out: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*inputs, *more, **options, **out)

    return call


def liger_residual_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return x + residual and its rmsnorm, which the library returns in the other order."""
    normed, total = library(LIGER, "liger_fused_add_rms_norm", RMSNORM_EPSILON)(x, residual, weight)
    return total, normed


LIGER = "liger_kernel.transformers.functional"
liger = partial(Baseline, "liger_kernel")
quack = partial(Baseline, "quack")

BASELINES: Mapping[str, Mapping[str, Mapping[str, Baseline]]] = {
    "matmul": {
        FAST_ACCUMULATION: {
            "matmul": Baseline("torch", fast_matmul, True, FAST_TOLERANCE, ("fp8e4m3", "fp8e5m2")),
        },
    },
    "norm": {
        "quack": {"rmsnorm": quack(library("quack.rmsnorm", "rmsnorm", eps=RMSNORM_EPSILON))},
        "liger": {
            "rmsnorm": liger(library(LIGER, "liger_rms_norm", RMSNORM_EPSILON)),
            "layernorm": liger(library(LIGER, "liger_layer_norm", LAYERNORM_EPSILON)),
            "residual-rmsnorm": liger(liger_residual_rmsnorm),
        },
        "flashinfer": {
            "rmsnorm": Baseline("flashinfer", library("flashinfer.norm", "rmsnorm", eps=RMSNORM_EPSILON), True),
        },
    },
    "softmax": {
        "quack": {"softmax": quack(library("quack.softmax", "softmax"))},
        "liger": {"softmax": liger(library(LIGER, "liger_softmax"))},
    },
    "cross_entropy": {
        "quack": {"cross-entropy": quack(library("quack.cross_entropy", "cross_entropy", reduction="none"))},
    },
}
"""By family, provider and op."""


def baselines(family: str) -> dict[str, Mapping[str, Baseline]]:
    """Return by provider what libraries that are installed here have for a family, by op; none is imported."""
    found = BASELINES.get(family, {}).items()
    return {name: by_op for name, by_op in found if all(map(_is_installed, by_op.values()))}


def _is_installed(baseline: Baseline) -> bool:
    return importlib.util.find_spec(baseline.package) is not None
