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

from results.show.facts import facts_beside

if TYPE_CHECKING:
    from roofline.estimate.budgets import chinchilla as chinchilla
    from roofline.estimate.budgets import fit as fit
    from roofline.estimate.budgets import gpus as gpus
    from roofline.estimate.budgets import mfu as mfu
    from roofline.estimate.budgets import train as train
    from roofline.estimate.ladder import intensity as intensity
    from roofline.estimate.layout import collective as collective
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

QUESTIONS: dict[str, list[str]] = facts_beside(__file__, "questions.toml")


def __getattr__(name: str) -> Any:
    if name not in QUESTIONS:
        raise AttributeError(f"roofline.estimate has no '{name}'; it has {', '.join(QUESTIONS)}")
    return getattr(import_module(f"roofline.estimate.{QUESTIONS[name][0]}"), name)


def __dir__() -> list[str]:
    return list(QUESTIONS)
