"""The estimates of `python -m roofline estimate` as functions: `roofline.estimate.params(model="llama-3-8b")`.

The command line, the forms of `explore` and the help are made from the signatures of these functions. A number may also
be written as text ("70B"), a shape as text or a tuple, a list as text with commas. Each function returns an `Answer`:
`values` by name in SI units, `rows` if there are several machines, `steps` of the arithmetic, `formula`, `source`,
`assumptions`, `warnings`. A value that is refused raises a `ValueError` of one line: `ConfigError` for a value or a
model, `UnknownGpuError` for a GPU; a saved run that is not there raises `results.StoreError`.
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
    from roofline.estimate.models import flops as flops
    from roofline.estimate.models import memory as memory
    from roofline.estimate.models import params as params
    from roofline.estimate.products import dtype as dtype
    from roofline.estimate.products import matmul as matmul
    from roofline.estimate.products import tensor as tensor
    from roofline.estimate.serving import generate as generate
    from roofline.estimate.serving import infer as infer

QUESTIONS = {
    "tensor": ("products", "elements and bytes of a tensor"),
    "dtype": ("products", "ranges of number formats"),
    "matmul": ("products", "least time of a matrix product"),
    "params": ("models", "parameters of a model"),
    "flops": ("models", "FLOPs of a training step"),
    "memory": ("models", "memory of training"),
    "mfu": ("budgets", "utilization of a training run"),
    "gpus": ("budgets", "devices that a plan takes"),
    "train": ("budgets", "time of a training run"),
    "fit": ("budgets", "largest model that fits"),
    "chinchilla": ("budgets", "compute-optimal size"),
    "generate": ("serving", "time and price of a whole reply"),
    "infer": ("serving", "time of prefill and decode"),
}


def __getattr__(name: str) -> Any:
    """Return the function of an estimate, imported when it is first asked for."""
    if name not in QUESTIONS:
        raise AttributeError(f"roofline.estimate has no '{name}'; it has {', '.join(QUESTIONS)}")
    return getattr(import_module(f"roofline.estimate.{QUESTIONS[name][0]}"), name)


def __dir__() -> list[str]:
    return list(QUESTIONS)
