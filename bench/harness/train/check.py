"""Checks a training step against the plain step on the same tokens, before it is timed.

Two things are looked at. The gradients of the step as it is measured (checkpointed, in micro-batches, compiled, in its
precision) are those of the plain step in a wider precision: one sequence after the other, nothing recomputed. And the
loss of a model that has learned nothing is that of a guess, ln V.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from bench.harness.train.step import TrainingStep
from roofline.accounting.state import Recipe
from roofline.accounting.step_memory import StepPlan

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8}
"""By compute dtype. Source: half the distance between 1 and the next number, IEEE 754 for fp32."""

ROUNDINGS_A_LAYER, ROUNDINGS_ELSEWHERE = 24, 12
"""Results that are rounded one after the other on the longest way of a value through a layer, forward and backward,
and through embedding, head and loss."""

SAFETY = 4.0

LOSS_MARGIN = 0.25
"""How far the loss may start from ln V. The logits start within about 1 of 0 and have a spread of 1 / sqrt(h), which
adds 1 / (2h); the mean over T tokens scatters by 1 / sqrt(h T). A factor of 2 in the loss would be off by ln V."""


@dataclass(frozen=True)
class Check:
    """What was found."""

    first_call_s: float
    """Seconds of the step's own forward and backward pass; the first one loads and compiles."""
    loss: float
    expected_loss: float
    error: float
    """Largest error of a gradient, relative, in the 2-norm; of the worst parameter."""
    bound: float
    worst: str
    """The parameter that has it."""
    elements: int

    @property
    def reason(self) -> str | None:
        """Return what is wrong, or None."""
        if not abs(self.loss - self.expected_loss) <= LOSS_MARGIN:  # also when it is NaN
            return f"the loss starts at {self.loss:.4g}, not within {LOSS_MARGIN:g} of ln V = {self.expected_loss:.4g}"
        if not self.error <= self.bound:
            return f"the gradient of {self.worst} is off by {self.error:.2g} of itself, the bound is {self.bound:.2g}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object kept under `verified`."""
        return {
            "reference": "the plain step in a wider precision, sequence by sequence",
            "loss": self.loss if math.isfinite(self.loss) else None,
            "expected_loss": self.expected_loss,
            "max_error": self.error if math.isfinite(self.error) else None,
            "bound": self.bound,
            "max_error_of_bound": self.error / self.bound if math.isfinite(self.error) else None,
            "worst": self.worst,
            "checked_elements": self.elements,
            "elements": self.elements,
        }


def gradient_bound(plan: StepPlan) -> float:
    """Return how far a gradient may be off, relative, in the 2-norm.

    Rounding errors of r results in a row, each of u at most and independent, add up to about u sqrt(r); sums of many
    products are taken in fp32 or better. Micro-batches add one sum each.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 2.8, on the rule of thumb that an
        error grows as the square root of its rigorous bound; `SAFETY` is ours.
    """
    roundings = ROUNDINGS_A_LAYER * plan.config.layers + ROUNDINGS_ELSEWHERE + plan.micro_batches
    return SAFETY * UNIT_ROUNDOFF[plan.recipe.compute_dtype] * math.sqrt(roundings)


def reference_dtype(recipe: Recipe) -> torch.dtype:
    """Return the precision of the plain step: fp64 for a step in fp32, fp32 for one in bf16."""
    return torch.float64 if recipe.compute_dtype == "fp32" else torch.float32


def check_step(step: TrainingStep) -> Check:
    """Return how the gradients of a step stand to those of the plain one, from the weights that a model starts with.

    A model that has learned its tokens by heart has gradients that nearly cancel, of which rounding is a larger part:
    so the weights start anew. The step's gradients are zero again afterwards.
    """
    step.model.start()
    began = time.perf_counter()
    loss = sum(backward_of(step))
    first_call_s = time.perf_counter() - began
    expected = reference_gradients(step)
    total = math.sqrt(sum(float(gradient.double().pow(2).sum()) for gradient in expected.values()))
    elements = sum(gradient.numel() for gradient in expected.values())
    worst, error = "", -1.0
    for name, parameter in step.model.named_parameters():
        gradient = expected[name]
        assert parameter.grad is not None
        difference = float((parameter.grad.double() - gradient.double()).norm())
        # Some gradients are zero but for rounding, as that of a key's bias is: they are held against the usual size.
        usual = total * math.sqrt(gradient.numel() / elements)
        relative = difference / max(float(gradient.double().norm()), usual)
        if not relative <= error:  # also when it is NaN, which no later one is above
            worst, error = name, math.inf if math.isnan(relative) else relative
    step.optimizer.zero_grad(set_to_none=False)
    guess = math.log(step.plan.config.vocabulary)
    return Check(first_call_s, loss, guess, error, gradient_bound(step.plan), worst, elements)


def backward_of(step: TrainingStep) -> list[float]:
    """Run forward and backward of all micro-batches, as the step does; return their shares of the loss."""
    losses = []
    for ids, targets in step.micro_batches():
        loss = step.loss(ids, targets)
        loss.backward()
        losses.append(float(loss.detach()))
    return losses


def reference_gradients(step: TrainingStep) -> dict[str, torch.Tensor]:
    """Return the gradients of the mean loss of a step by the plain model, in the wider precision."""
    plan, dtype = step.plan, reference_dtype(step.plan.recipe)
    model = copy.deepcopy(step.model).to(dtype)
    model.group = 0
    for part in (*model.blocks, model.head):
        part._compiled_call_impl = None  # `compile` replaced the call of the part; its parameters are untouched
    model.rotate_for(plan.sequence, dtype, step.device.torch_name)
    for parameter in model.parameters():
        parameter.grad = None
    for ids, targets in zip(step.ids.split(1), step.targets.split(1), strict=True):
        (model(ids, targets) / plan.batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
