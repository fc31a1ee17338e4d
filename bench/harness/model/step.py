"""The measured training step: forward and backward of each micro-batch, then the update. And its verification.

The gradients of the measured step (checkpointed, in micro-batches, compiled, in its precision) must be those of the
plain step in a wider precision: one sequence after the other, nothing recomputed. The loss of a model that has learned
nothing must be that of a guess, ln V.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bench.harness.data.inputs import torch_dtype
from bench.harness.device.device import Device
from bench.harness.model.transformer import Transformer
from results.stats.samples import median
from roofline.accounting.step_memory import StepPlan

PHASES = ("forward", "backward", "optimizer")

LEARNING_RATE = 1e-5
"""So small that hundreds of steps on the same tokens leave the weights near where they start: the loss of a model that
has learned them by heart has gradients near zero, which some processors compute more slowly."""

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"fused": True}),
    "momentum": ("SGD", {"fused": True, "momentum": 0.9}),
    "adagrad": ("Adagrad", {"foreach": False}),
    "rmsprop": ("RMSprop", {"foreach": False}),
    "adam": ("Adam", {"fused": True}),
    "adamw": ("AdamW", {"fused": True}),
}
"""Class of `torch.optim` and its arguments. Fused if torch has a kernel for it: one pass over the state. Otherwise
tensor by tensor, because all at once would need a copy of the state."""

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8}
"""By compute dtype. Source: half the distance between 1 and the next number, IEEE 754 for fp32."""

ROUNDINGS_A_LAYER, ROUNDINGS_ELSEWHERE = 24, 12
"""Results that are rounded one after the other on the longest way of a value through a layer, forward and backward,
and through embedding, head and loss."""

SAFETY = 4.0

LOSS_MARGIN = 0.25
"""How far the loss may start from ln V. The logits start within about 1 of 0 and have a spread of 1 / sqrt(h), which
adds 1 / (2h); the mean over T tokens scatters by 1 / sqrt(h T). A factor of 2 in the loss would be off by ln V."""


class PhaseClock:
    """Records when the phases of each step start: by the host's clock on a CPU, by CUDA events on a GPU."""

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._steps: list[list[tuple[str, Any]]] = []
        self.phase = ""
        """The current phase; empty between steps."""

    def enter(self, phase: str) -> None:
        """End the current phase and start another; an empty name ends the step."""
        now: Any = time.perf_counter()
        if self._is_gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        if not self.phase:
            self._steps.append([])
        self.phase = phase
        self._steps[-1].append((phase, now))

    def medians_s(self, steps: int) -> dict[str, float]:
        """Return the median seconds of each phase in the last `steps` steps, micro-batches added up."""
        spent: dict[str, list[float]] = {phase: [0.0] * steps for phase in PHASES}
        for index, marks in enumerate(self._steps[-steps:]):
            for (phase, start), (_, stop) in pairwise(marks):
                spent[phase][index] += start.elapsed_time(stop) / 1e3 if self._is_gpu else stop - start
        return {phase: median(seconds) for phase, seconds in spent.items()}


class TrainingStep:
    """A model, an optimizer, and the tokens of a step; each call is one step.

    Gradients stay allocated from step to step, as the buckets of DistributedDataParallel and the gradient buffers of
    Megatron-LM do: setting them to zero belongs to the optimizer phase. The optimizer has no state before the first
    call.
    """

    def __init__(self, plan: StepPlan, device: Device, seed: int, is_compiled: bool = False) -> None:
        self.plan, self.device, self.is_compiled = plan, device, is_compiled
        self.clock = PhaseClock(device.is_gpu)
        torch.manual_seed(seed)
        with torch.device(device.torch_name):
            self.model = Transformer(plan.config, plan.checkpoint)
            shape = (plan.batch, plan.sequence)
            self.ids, self.targets = (torch.randint(0, plan.config.vocabulary, shape) for _ in range(2))
        self.model.to(torch_dtype("bf16" if plan.recipe.name == "bf16" else "fp32"))
        self.model.rotate_for(plan.sequence, torch_dtype(plan.recipe.compute_dtype), device.torch_name)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if is_compiled:
            for part in (*self.model.blocks, self.model.head):
                part.compile()
        kind, options = OPTIMIZERS[plan.optimizer]
        make_optimizer = getattr(torch.optim, kind)
        self.optimizer: torch.optim.Optimizer = make_optimizer(self.model.parameters(), lr=LEARNING_RATE, **options)

    def __call__(self) -> None:
        for ids, targets in self.micro_batches():
            self.clock.enter("forward")
            loss = self.loss(ids, targets)
            self.clock.enter("backward")
            loss.backward()
        self.clock.enter("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.clock.enter("")

    def micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return ids and targets (b / n, s) of each of the n micro-batches."""
        parts = self.plan.micro_batches
        return zip(self.ids.chunk(parts), self.targets.chunk(parts), strict=True)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return what a micro-batch adds to the mean loss of the step."""
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.plan.recipe.name == "amp"):
            loss: Tensor = self.model(ids, targets)
        return loss / self.plan.micro_batches if self.plan.micro_batches > 1 else loss

    def state_tensors(self) -> dict[str, list[Tensor]]:
        """Return the tensors that stay from step to step, by component."""
        parameters, rotation = list(self.model.parameters()), self.model.rotation
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "parameters": [*parameters],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": [value for value in states if isinstance(value, Tensor)],
            "inputs": [self.ids, self.targets, *([] if rotation is None else [rotation])],
        }


def gradient_bound(plan: StepPlan) -> float:
    """Return the largest allowed relative error of a gradient in the 2-norm.

    Rounding errors of r results in a row, each of u at most and independent, add up to about u sqrt(r); sums of many
    products are taken in fp32 or better. Micro-batches add one sum each.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 2.8, on the rule of thumb that an
        error grows as the square root of its rigorous bound; `SAFETY` is ours.
    """
    roundings = ROUNDINGS_A_LAYER * plan.config.layers + ROUNDINGS_ELSEWHERE + plan.micro_batches
    return SAFETY * UNIT_ROUNDOFF[plan.recipe.compute_dtype] * math.sqrt(roundings)


def check_step(step: TrainingStep) -> tuple[str | None, dict[str, Any], float]:
    """Compare the gradients of a step with those of the plain one, from the weights that a model starts with.

    A model that has learned its tokens by heart has gradients that nearly cancel, of which rounding is a larger part:
    so the weights start again. The step's gradients are zero afterwards.

    Returns:
        What is wrong, or None; what a record keeps of the check; seconds of the step's own forward and backward pass.
    """
    step.model.start()
    start, loss = time.perf_counter(), 0.0
    for ids, targets in step.micro_batches():
        part = step.loss(ids, targets)
        part.backward()
        loss += float(part.detach())
    own_s = time.perf_counter() - start
    worst, error, elements = _largest_error(step)
    step.optimizer.zero_grad(set_to_none=False)
    guess, bound = math.log(step.plan.config.vocabulary), gradient_bound(step.plan)
    reason = None
    if not abs(loss - guess) <= LOSS_MARGIN:  # also if it is NaN
        reason = f"the loss starts at {loss:.4g}, not within {LOSS_MARGIN:g} of ln V = {guess:.4g}"
    elif not error <= bound:
        reason = f"the gradient of {worst} is off by {error:.2g} of itself, the bound is {bound:.2g}"
    is_finite = math.isfinite(error)
    verified = {
        "reference": "the plain step in a wider precision, sequence by sequence",
        "loss": loss if math.isfinite(loss) else None,
        "expected_loss": guess,
        "max_error": error if is_finite else None,
        "bound": bound,
        "max_error_of_bound": error / bound if is_finite else None,
        "worst": worst,
        "checked_elements": elements,
        "elements": elements,
    }
    return reason, verified, own_s


def _plain_gradients(step: TrainingStep) -> dict[str, Tensor]:
    """Return the gradients of the mean loss by the plain model: in fp64 for a step in fp32, in fp32 for one in bf16."""
    plan = step.plan
    dtype = torch.float64 if plan.recipe.compute_dtype == "fp32" else torch.float32
    model = copy.deepcopy(step.model).to(dtype)
    model.group = 0
    for part in (*model.blocks, model.head):
        part._compiled_call_impl = None  # `compile` replaced the call of the part; its parameters are untouched
    model.rotate_for(plan.sequence, dtype, step.device.torch_name)
    model.zero_grad()
    for ids, targets in zip(step.ids.split(1), step.targets.split(1), strict=True):
        (model(ids, targets) / plan.batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _largest_error(step: TrainingStep) -> tuple[str, float, int]:
    """Return the parameter whose gradient has the largest relative error in the 2-norm, that error, and the elements.

    Some gradients are zero except for rounding, as the one of a key's bias: their error is relative to the usual size.
    """
    expected, errors = _plain_gradients(step), {}
    norms = {name: float(gradient.double().norm()) for name, gradient in expected.items()}
    elements = sum(gradient.numel() for gradient in expected.values())
    usual = math.hypot(*norms.values()) / math.sqrt(elements)
    for name, parameter in step.model.named_parameters():
        assert parameter.grad is not None
        difference = float((parameter.grad.double() - expected[name].double()).norm())
        error = difference / max(norms[name], usual * math.sqrt(parameter.numel()))
        errors[name] = math.inf if math.isnan(error) else error
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst], elements
