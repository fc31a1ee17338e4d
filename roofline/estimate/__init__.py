"""The estimates of `python -m roofline estimate` as functions:
`roofline.estimate.params(model="llama-3-8b")`.

The signatures of these functions define the command line, the forms of `explore` and the help.
Numbers may be text ("70B"), shapes text or tuples, lists text with commas. Each function returns an
`Answer`: `values` in SI units, `rows` for several machines, `steps`, `formula`, `source`,
`assumptions`, `warnings`. An invalid value raises a `ValueError` of one line: `ConfigError` for a
value or a model, `UnknownGpuError` for a GPU; a missing run raises `results.StoreError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline.estimate.budgets import chinchilla as chinchilla
    from roofline.estimate.budgets import fit as fit
    from roofline.estimate.budgets import gpus as gpus
    from roofline.estimate.budgets import mfu as mfu
    from roofline.estimate.budgets import train as train
    from roofline.estimate.ladder import intensity as intensity
    from roofline.estimate.layout import parallel as parallel
    from roofline.estimate.models import flops as flops
    from roofline.estimate.models import memory as memory
    from roofline.estimate.models import params as params
    from roofline.estimate.products import dtype as dtype
    from roofline.estimate.products import matmul as matmul
    from roofline.estimate.products import tensor as tensor
    from roofline.estimate.serving import context as context
    from roofline.estimate.serving import generate as generate
    from roofline.estimate.serving import infer as infer

QUESTIONS = {
    "tensor": ("products", "elements and bytes of a tensor, and which operations copy it"),
    "dtype": ("products", "range and precision of data types"),
    "matmul": ("products", "FLOPs, bytes and minimum time of a matmul or an einsum"),
    "intensity": ("ladder", "FLOPs per byte of operations such as ReLU, GELU and matmuls"),
    "params": ("models", "parameters of a model"),
    "flops": ("models", "FLOPs of a training step"),
    "memory": ("models", "memory per device during training"),
    "mfu": ("budgets", "utilization of a training run"),
    "gpus": (
        "budgets",
        "number of devices needed to hold a model, or to train it in a number of days",
    ),
    "train": ("budgets", "time and price of a training run"),
    "fit": ("budgets", "largest model that fits in memory"),
    "chinchilla": ("budgets", "compute-optimal model size"),
    "parallel": ("layout", "how devices share a training step"),
    "context": ("serving", "longest context and largest batch that fit"),
    "generate": ("serving", "time and price of generating a reply"),
    "infer": ("serving", "time of prefill and decode"),
}


def __getattr__(name: str) -> Any:
    if name not in QUESTIONS:
        raise AttributeError(f"roofline.estimate has no '{name}'; it has {', '.join(QUESTIONS)}")
    return getattr(import_module(f"roofline.estimate.{QUESTIONS[name][0]}"), name)


def __dir__() -> list[str]:
    return list(QUESTIONS)
