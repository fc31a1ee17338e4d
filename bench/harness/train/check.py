"""Verifies a training step against the plain step on the same tokens.

The gradients of the measured step (checkpointed, in micro-batches, compiled, in its precision) must be those of the
plain step in a wider precision: one sequence after the other, nothing recomputed. And the loss of a model that has
learned nothing must be that of a guess, ln V.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from bench.harness.train.step import TrainingStep
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
    """The outcome of one verification."""

    reason: str | None
    """What is wrong, or None."""
    first_call_s: float
    """Seconds of the step's own forward and backward pass; the first one loads and compiles."""
    verified: dict[str, Any]
    """What a record keeps of it."""


def gradient_bound(plan: StepPlan) -> float:
    """Return the largest allowed relative error of a gradient in the 2-norm.

    Rounding errors of r results in a row, each of u at most and independent, add up to about u sqrt(r); sums of many
    products are taken in fp32 or better. Micro-batches add one sum each.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 2.8, on the rule of thumb that an
        error grows as the square root of its rigorous bound; `SAFETY` is ours.
    """
    roundings = ROUNDINGS_A_LAYER * plan.config.layers + ROUNDINGS_ELSEWHERE + plan.micro_batches
    return SAFETY * UNIT_ROUNDOFF[plan.recipe.compute_dtype] * math.sqrt(roundings)


def check_step(step: TrainingStep) -> Check:
    """Compare the gradients of a step with those of the plain one, from the weights that a model starts with.

    A model that has learned its tokens by heart has gradients that nearly cancel, of which rounding is a larger part:
    so the weights start again. The step's gradients are zero afterwards.
    """
    step.model.start()
    began, loss = time.perf_counter(), 0.0
    for ids, targets in step.micro_batches():
        part = step.loss(ids, targets)
        part.backward()
        loss += float(part.detach())
    first_call_s = time.perf_counter() - began
    expected = _plain_gradients(step)
    worst, error = _largest_error(step, expected)
    step.optimizer.zero_grad(set_to_none=False)
    guess, bound = math.log(step.plan.config.vocabulary), gradient_bound(step.plan)
    reason = None
    if not abs(loss - guess) <= LOSS_MARGIN:  # also if it is NaN
        reason = f"the loss starts at {loss:.4g}, not within {LOSS_MARGIN:g} of ln V = {guess:.4g}"
    elif not error <= bound:
        reason = f"the gradient of {worst} is off by {error:.2g} of itself, the bound is {bound:.2g}"
    elements = sum(gradient.numel() for gradient in expected.values())
    verified = {
        "reference": "the plain step in a wider precision, sequence by sequence",
        "loss": loss if math.isfinite(loss) else None,
        "expected_loss": guess,
        "max_error": error if math.isfinite(error) else None,
        "bound": bound,
        "max_error_of_bound": error / bound if math.isfinite(error) else None,
        "worst": worst,
        "checked_elements": elements,
        "elements": elements,
    }
    return Check(reason, first_call_s, verified)


def _largest_error(step: TrainingStep, expected: dict[str, torch.Tensor]) -> tuple[str, float]:
    """Return the parameter whose gradient has the largest relative error in the 2-norm, and that error.

    Some gradients are zero except for rounding, as the one of a key's bias: their error is relative to the usual size.
    """
    total = math.sqrt(sum(float(gradient.double().pow(2).sum()) for gradient in expected.values()))
    elements = sum(gradient.numel() for gradient in expected.values())
    worst, error = "", -1.0
    for name, parameter in step.model.named_parameters():
        gradient = expected[name]
        assert parameter.grad is not None
        difference = float((parameter.grad.double() - gradient.double()).norm())
        usual = total * math.sqrt(gradient.numel() / elements)
        relative = difference / max(float(gradient.double().norm()), usual)
        if not relative <= error:  # also if it is NaN, which no later error is above
            worst, error = name, math.inf if math.isnan(relative) else relative
    return worst, error


def _plain_gradients(step: TrainingStep) -> dict[str, torch.Tensor]:
    """Return the gradients of the mean loss by the plain model: in fp64 for a step in fp32, in fp32 for one in bf16."""
    plan = step.plan
    dtype = torch.float64 if plan.recipe.compute_dtype == "fp32" else torch.float32
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
