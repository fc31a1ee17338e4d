"""One optimizer step as it is measured: forward and backward of each micro-batch, then the update, each timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from bench.harness.device.device import Device
from bench.harness.model.transformer import Transformer
from roofline.accounting.flops import linear_flops
from roofline.accounting.step_memory import StepPlan

PILOT = 512
"""Extent of a product that takes a few milliseconds on two cores."""

PHASES = ("forward", "backward", "optimizer")

LEARNING_RATE = 1e-5
"""So small a rate that hundreds of steps on the same tokens leave the weights near where they start: the loss of a
model that has learned them by heart has gradients near zero, which some processors compute more slowly."""

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
"""Class of `torch.optim` and its arguments. Fused where torch has a kernel for it: one pass over the state. Elsewhere
tensor by tensor, because all at once would need a copy of the state."""


class PhaseClock:
    """Notes when the phases of each step begin: by the host's clock on a CPU, by CUDA events on a GPU."""

    def __init__(self, device: Device) -> None:
        """Note nothing yet."""
        self._is_gpu = device.is_gpu
        self._steps: list[list[tuple[str, Any]]] = []
        self.phase = ""
        """The phase that runs now."""

    def start(self) -> None:
        """Begin a step."""
        self._steps.append([])

    def enter(self, phase: str) -> None:
        """Begin a phase, which ends the one before it; the empty one ends the step."""
        self.phase = phase
        self._steps[-1].append((phase, self._now()))

    def phases_s(self, steps: int) -> list[dict[str, float]]:
        """Return the seconds of each phase of the last `steps` steps, all micro-batches of a step together."""
        return [self._phases_of(marks) for marks in self._steps[-steps:]]

    def _phases_of(self, marks: Sequence[tuple[str, Any]]) -> dict[str, float]:
        spent = dict.fromkeys(PHASES, 0.0)
        for (phase, begin), (_, end) in itertools.pairwise(marks):
            spent[phase] += begin.elapsed_time(end) / 1e3 if self._is_gpu else end - begin
        return spent

    def _now(self) -> Any:
        if not self._is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class TrainingStep:
    """A model, an optimizer, and the tokens of a step; each call is one step.

    Gradients stay allocated from step to step, as the buckets of DistributedDataParallel and the gradient buffers of
    Megatron-LM do: setting them to zero belongs to the optimizer phase.
    """

    def __init__(self, plan: StepPlan, device: Device, seed: int, is_compiled: bool = False) -> None:
        """Build everything on the device; no optimizer state is there before the first call."""
        self.plan, self.device = plan, device
        self.clock = PhaseClock(device)
        name = plan.recipe.name
        self.compute_dtype = COMPUTE_DTYPES[name]
        torch.manual_seed(seed)
        with torch.device(device.torch_name):
            self.model = Transformer(plan.config, plan.checkpoint)
            shape = (plan.batch, plan.sequence)
            self.ids, self.targets = (torch.randint(0, plan.config.vocabulary, shape) for _ in range(2))
        self.model.to(TORCH_DTYPES[name])
        self.model.rotate_for(plan.sequence, self.compute_dtype, device.torch_name)
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
        self.clock.start()
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
        """Return a micro-batch's share of the mean loss of the step."""
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


def product_flops_per_s(dtype: str, device: Device) -> float:
    """Return the FLOP/s of a matrix product of `PILOT` in each direction as it runs now, the fastest of a few."""
    a = torch.ones(PILOT, PILOT, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, device=device.torch_name)
    seconds = []
    for _ in range(5):
        device.synchronize()
        start = time.perf_counter()
        a @ a
        device.synchronize()
        seconds.append(time.perf_counter() - start)
    return linear_flops(PILOT, PILOT, PILOT, has_input_gradient=False, has_weight_gradient=False) / min(seconds)
