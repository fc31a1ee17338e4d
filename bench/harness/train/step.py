"""The optimizer step that is measured: forward and backward of each micro-batch, then the update, each phase timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from bench.harness.device.device import Device
from bench.harness.model.transformer import Transformer
from roofline.accounting.step_memory import StepPlan

PHASES = ("forward", "backward", "optimizer")

LEARNING_RATE = 1e-5
"""So small that hundreds of steps on the same tokens leave the weights near where they start: the loss of a model that
has learned them by heart has gradients near zero, which some processors compute more slowly."""

TORCH_DTYPES = {"fp32": torch.float32, "amp": torch.float32, "bf16": torch.bfloat16}
"""Dtype of the parameters, by recipe."""

COMPUTE_DTYPES = {"fp32": torch.float32, "amp": torch.bfloat16, "bf16": torch.bfloat16}

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


class PhaseClock:
    """Records when the phases of each step start: by the host's clock on a CPU, by CUDA events on a GPU."""

    def __init__(self, device: Device) -> None:
        self._is_gpu = device.is_gpu
        self._marks: list[tuple[str, Any]] = []
        self.phase = ""
        """The phase that runs now; empty between steps."""

    def enter(self, phase: str) -> None:
        """End the current phase and start another; an empty name ends the step."""
        now: Any = time.perf_counter()
        if self._is_gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        self.phase = phase
        self._marks.append((phase, now))

    def phases_s(self, steps: int) -> list[dict[str, float]]:
        """Return the seconds of each phase of the last `steps` steps, micro-batches added up."""
        ends = [at for at, (phase, _) in enumerate(self._marks) if not phase]
        found = []
        for last, end in itertools.pairwise([-1, *ends][-steps - 1 :]):
            spent = dict.fromkeys(PHASES, 0.0)
            for (phase, start), (_, stop) in itertools.pairwise(self._marks[last + 1 : end + 1]):
                spent[phase] += start.elapsed_time(stop) / 1e3 if self._is_gpu else stop - start
            found.append(spent)
        return found


class TrainingStep:
    """A model, an optimizer, and the tokens of a step; each call is one step.

    Gradients stay allocated from step to step, as the buckets of DistributedDataParallel and the gradient buffers of
    Megatron-LM do: setting them to zero belongs to the optimizer phase. The optimizer has no state before the first
    call.
    """

    def __init__(self, plan: StepPlan, device: Device, seed: int, is_compiled: bool = False) -> None:
        self.plan, self.device = plan, device
        self.clock = PhaseClock(device)
        name = plan.recipe.name
        torch.manual_seed(seed)
        with torch.device(device.torch_name):
            self.model = Transformer(plan.config, plan.checkpoint)
            shape = (plan.batch, plan.sequence)
            self.ids, self.targets = (torch.randint(0, plan.config.vocabulary, shape) for _ in range(2))
        self.model.to(TORCH_DTYPES[name])
        self.model.rotate_for(plan.sequence, COMPUTE_DTYPES[name], device.torch_name)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if is_compiled:
            for part in (*self.model.blocks, self.model.head):
                part.compile()
        kind, options = OPTIMIZERS[plan.optimizer]
        self.optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(
            self.model.parameters(), lr=LEARNING_RATE, **options
        )

    def __call__(self) -> None:
        """Run one step."""
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
        is_mixed = self.plan.recipe.name == "amp"
        device_type = torch.device(self.device.torch_name).type
        with torch.autocast(device_type, torch.bfloat16) if is_mixed else nullcontext():
            loss: Tensor = self.model(ids, targets)
        return loss / self.plan.micro_batches if self.plan.micro_batches > 1 else loss

    def state_tensors(self) -> dict[str, list[Tensor]]:
        """Return the tensors that stay from step to step, by component."""
        parameters = list(self.model.parameters())
        rotation = self.model.rotation
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return {
            "parameters": [*parameters],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": [value for value in states if isinstance(value, Tensor)],
            "inputs": [self.ids, self.targets, *([] if rotation is None else [rotation])],
        }
