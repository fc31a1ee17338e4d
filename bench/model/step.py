"""Training steps: forward and backward of each micro-batch, then the update; their verification,
memory and time.

The gradients of the measured step (checkpointed, in micro-batches, compiled, in its precision) must
be those of the plain step in a wider precision: one sequence after the other, nothing recomputed.
The loss of a model that has learned nothing must be that of a guess, ln V.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from msgspec import structs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bench.harness import clock
from bench.harness.data.inputs import torch_dtype
from bench.harness.data.verify import UNIT_ROUNDOFF
from bench.harness.device.device import Device
from bench.harness.measure.flags import launch_limited, recorded
from bench.harness.measure.measure_row import sample_steps, take_samples
from bench.harness.run import Run
from bench.harness.timing.protocol import LIMITS
from bench.harness.timing.recording import prepare_profiler
from bench.harness.torch_private import forget_compiled
from bench.model.reproducibility import checkpoint_report, deterministic
from bench.model.transformer import Transformer
from results.record import Record, Step
from roofline.accounting.activations import checkpoint_group
from roofline.accounting.step_memory import StepPlan, step_memory

PHASES = ("forward", "backward", "clip", "optimizer", "zero_grad")

MAX_NORM = 1.0
"""Source: Brown et al., Language Models are Few-Shot Learners (2020), appendix B."""

DETERMINISTIC = {"algorithms": "deterministic"}
"""Option of rows with deterministic algorithms; other rows have none."""

LEARNING_RATE = 1e-5
"""So small that hundreds of steps on the same tokens leave the weights near where they start: the
loss of a model that has learned them by heart has gradients near zero, which some processors
compute more slowly."""

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"fused": True}),
    "momentum": ("SGD", {"fused": True, "momentum": 0.9}),
    "adagrad": ("Adagrad", {"foreach": False}),
    "rmsprop": ("RMSprop", {"foreach": False}),
    "adam": ("Adam", {"fused": True}),
    "adamw": ("AdamW", {"fused": True}),
}
"""Class of `torch.optim` and its arguments. Fused if torch has a kernel for it: one pass over the
state. Otherwise tensor by tensor, because all at once would need a copy of the state."""

ROUNDINGS_A_LAYER = 24
ROUNDINGS_ELSEWHERE = 12
"""Results that are rounded one after the other on the longest way of a value through a layer,
forward and backward, and through embedding, head and loss."""

SAFETY = 4.0

LOSS_MARGIN = 0.25
"""How far the loss may start from ln V. The logits start within about 1 of 0 and have a spread of 1
/ sqrt(h), which adds 1 / (2h); the mean over T tokens scatters by 1 / sqrt(h T). A factor of 2 in
the loss would be off by ln V."""


class PhaseClock:
    """Records when the phases of each step start: by the host's clock on a CPU, by CUDA events on a
    GPU.
    """

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._steps: list[list[tuple[str, Any]]] = [[]]

    def enter(self, phase: str) -> None:
        """End the current phase and start another; an empty name ends the step."""
        now: Any = clock.now()
        if self._is_gpu:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        self._steps[-1].append((phase, now))
        if not phase:
            self._steps.append([])

    def medians_s(self, steps: int) -> dict[str, float]:
        """Return the median seconds of each phase in the last `steps` steps, micro-batches added
        up.
        """
        spent: dict[str, list[float]] = {phase: [0.0] * steps for phase in PHASES}
        for index, marks in enumerate(self._steps[-steps - 1 : -1]):
            for (phase, start), (_, stop) in pairwise(marks):
                spent[phase][index] += (
                    start.elapsed_time(stop) / 1e3 if self._is_gpu else stop - start
                )
        return {phase: median(seconds) for phase, seconds in spent.items()}


class TrainingStep:
    """A model, an optimizer, and the tokens of a step; each call is one step.

    Gradients stay allocated from step to step, as the buckets of DistributedDataParallel and the
    gradient buffers of Megatron-LM do, and are set to zero after the update. The optimizer has no
    state before the first call.
    """

    def __init__(
        self, plan: StepPlan, device: Device, seed: int, is_compiled: bool = False
    ) -> None:
        self.plan = plan
        self.device = device
        self.clock = PhaseClock(device.is_gpu)
        torch.manual_seed(seed)
        with torch.device(device.torch_name):
            self.model = Transformer(
                plan.config, checkpoint_group(plan.checkpoint, plan.config.layers)
            )
            shape = (plan.batch, plan.sequence)
            self.ids, self.targets = (
                torch.randint(0, plan.config.vocabulary, shape) for _ in range(2)
            )
        self.model.to(torch_dtype("bf16" if plan.recipe.name == "bf16" else "fp32"))
        self.model.rotate_for(
            plan.sequence, torch_dtype(plan.recipe.compute_dtype), device.torch_name
        )
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if is_compiled:
            for part in (*self.model.blocks, self.model.head):
                part.compile()
        kind, options = OPTIMIZERS[plan.optimizer]
        make_optimizer = getattr(torch.optim, kind)
        self.optimizer: torch.optim.Optimizer = make_optimizer(
            self.model.parameters(), lr=LEARNING_RATE, **options
        )

    def __call__(self) -> None:
        for ids, targets in self.micro_batches():
            self.clock.enter("forward")
            loss = self.loss(ids, targets)
            self.clock.enter("backward")
            loss.backward()
        self.clock.enter("clip")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.clock.enter("optimizer")
        self.optimizer.step()
        self.clock.enter("zero_grad")
        self.optimizer.zero_grad(set_to_none=False)
        self.clock.enter("")

    def micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = self.plan.micro_batches
        return zip(self.ids.chunk(parts), self.targets.chunk(parts), strict=True)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return what a micro-batch adds to the mean loss of the step."""
        with torch.autocast(
            ids.device.type, torch.bfloat16, enabled=self.plan.recipe.name == "amp"
        ):
            loss: Tensor = self.model(ids, targets)
        return loss / self.plan.micro_batches if self.plan.micro_batches > 1 else loss

    def state_tensors(self) -> dict[str, list[Tensor]]:
        parameters = list(self.model.parameters())
        rotation = self.model.rotation
        states = chain.from_iterable(state.values() for state in self.optimizer.state.values())
        return {
            "parameters": [*parameters],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": [value for value in states if isinstance(value, Tensor)],
            "inputs": [self.ids, self.targets, *([] if rotation is None else [rotation])],
        }


def measure_step(
    plan: StepPlan, blank: Record, run: Run, rows: int, directory: Path | None = None
) -> Record:
    with deterministic(blank.options.items() >= DETERMINISTIC.items()):
        step = TrainingStep(plan, run.device, run.settings.seed, blank.provider == "torch-compile")
        problem, before, first_call_s = check_step(step)
        if problem:
            return replace(blank, status="invalid", reason=problem, verified={"before": before})
        step()  # makes the optimizer's state
        memory = memory_report(step)
        counted = counted_flops(plan)
        record = timed_record(step, blank, run, rows)
        problem, after, _ = check_step(step)
        verified = {"before": before, "after": after}
        if problem:
            return replace(
                blank, status="invalid", reason=f"after timing: {problem}", verified=verified
            )
        if directory is not None:
            problem, report = checkpoint_report(step, directory)
            record = with_step(record, checkpoint_file=report)
            if problem:
                blank = with_step(blank, checkpoint_file=report)
                return replace(blank, status="invalid", reason=problem, verified=verified)
        record = with_step(
            record,
            memory_bytes=memory,
            counted_flops=sum(counted.values()),
            counted_flops_by_operation=counted,
        )
        return replace(record, first_call_s=first_call_s, verified=verified)


def with_step(record: Record, **changed: Any) -> Record:
    """Return a record with other values of its `Step`."""
    return replace(record, details=structs.replace(record.details_as(Step) or Step(), **changed))


def timed_record(step: TrainingStep, blank: Record, run: Run, rows: int) -> Record:
    """Return the record of whole steps: on a GPU queued for `device_s`, then waited for, as in
    training.
    """
    device = run.device
    left_s = run.share_s(rows)
    if device.is_gpu:
        left_s /= 2
    limits = LIMITS[device.type]
    if device.is_gpu:  # the kernels of several steps would exceed the launch queue
        limits = replace(limits, min_sample_s=0.0)
    samples = take_samples([step], "warm", device, limits, blank.flops, left_s, is_capturable=False)
    limited = None
    device_s = None
    if device.is_gpu:
        limited = launch_limited(samples)
        device_s = samples.median_s

        def waited() -> None:
            step()
            device.synchronize()

        samples = replace(
            sample_steps(waited, "warm", device, run.share_s(rows)), host_launch_s=None
        )
    record = recorded(blank, samples, device, run.ceilings, also=(limited,) if limited else ())
    steps = len(samples.samples_s) * samples.launches_per_sample
    return with_step(record, phases_s=step.clock.medians_s(steps), device_s=device_s)


def gradient_bound(plan: StepPlan) -> float:
    """Return the largest allowed relative error of a gradient in the 2-norm.

    Rounding errors of r results in a row, each of u at most and independent, add up to about u
    sqrt(r); sums of many products are taken in fp32 or better. Micro-batches add one sum each.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 2.8, on the rule
    of thumb that an error grows as the square root of its rigorous bound; `SAFETY` is ours.
    """
    roundings = ROUNDINGS_A_LAYER * plan.config.layers + ROUNDINGS_ELSEWHERE + plan.micro_batches
    return SAFETY * UNIT_ROUNDOFF[plan.recipe.compute_dtype] * math.sqrt(roundings)


def check_step(step: TrainingStep) -> tuple[str | None, dict[str, Any], float]:
    """Return what is wrong, what a record keeps of the check, and seconds of the step's own two
    passes.
    """
    step.model.start()  # a model that knows its tokens has gradients that nearly cancel
    start = clock.now()
    loss = 0.0
    for ids, targets in step.micro_batches():
        part = step.loss(ids, targets)
        part.backward()
        loss += float(part.detach())
    own_s = clock.now() - start
    worst, error, elements = _largest_error(step)
    step.optimizer.zero_grad(set_to_none=False)
    guess = math.log(step.plan.config.vocabulary)
    bound = gradient_bound(step.plan)
    reason = None
    if not abs(loss - guess) <= LOSS_MARGIN:  # also if it is NaN
        reason = f"the loss starts at {loss:.4g}, not within {LOSS_MARGIN:g} of ln V = {guess:.4g}"
    elif not error <= bound:
        reason = (
            f"the gradient of {worst} is off by {error:.2g} of itself, the bound is {bound:.2g}"
        )
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
    """Return the gradients by the plain model, in fp64 for a step in fp32 and in fp32 for one in
    bf16.
    """
    plan = step.plan
    dtype = torch.float64 if plan.recipe.compute_dtype == "fp32" else torch.float32
    model = copy.deepcopy(step.model).to(dtype)
    model.group = 0
    for part in (*model.blocks, model.head):
        forget_compiled(part)
    model.rotate_for(plan.sequence, dtype, step.device.torch_name)
    model.zero_grad()
    for ids, targets in zip(step.ids.split(1), step.targets.split(1), strict=True):
        (model(ids, targets) / plan.batch).backward()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _largest_error(step: TrainingStep) -> tuple[str, float, int]:
    """Return the parameter whose gradient has the largest relative error in the 2-norm, that error,
    and the elements.

    Some gradients are zero except for rounding, as the one of a key's bias: their error is relative
    to the usual size.
    """
    expected = _plain_gradients(step)
    errors = {}
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


def counted_flops(plan: StepPlan) -> dict[str, int]:
    """Return the FLOPs of a step that torch's counter counts, by operation: forward, backward and
    recomputation.

    The step runs on the meta device, which computes nothing and needs no memory. Attention runs as
    separate matmuls: of the fused kernel torch up to 2.13 counts nothing on a CPU, and every
    release counts every pair of tokens elsewhere, also those that the mask leaves out.
    """
    with torch.device("meta"):
        model = Transformer(plan.config, checkpoint_group(plan.checkpoint, plan.config.layers))
        model.rotate_for(plan.sequence, torch.float32, "meta")
        ids = torch.zeros(plan.batch // plan.micro_batches, plan.sequence, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, ids).backward()
    counts = counter.get_flop_counts()["Global"]
    return {str(operation): plan.micro_batches * int(flops) for operation, flops in counts.items()}


def memory_report(step: TrainingStep) -> dict[str, Any]:
    """Return the bytes of a step as estimated and as measured, and the error in per cent of the
    measurement.

    Measured are the bytes that stay from step to step by component (the optimizer's state must
    exist already), and the peak of a step (`total`) by torch's allocator. What is not measured is
    None. A GPU's allocator rounds each tensor up to 512 bytes; `allocator_peak` has the workspaces
    of libraries in it, too.
    """
    device = step.device
    state = step.state_tensors()
    memory = step_memory(step.plan)
    estimated = memory.sizes()
    measured: dict[str, Any] = dict.fromkeys((*estimated, "allocator_peak"))
    for name, tensors in state.items():
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in tensors
        }
        measured[name] = sum(storages.values())
    if device.is_gpu:
        before = torch.cuda.memory_allocated(device.torch_name)
        torch.cuda.reset_peak_memory_stats(device.torch_name)
        step()
        measured["allocator_peak"] = torch.cuda.max_memory_allocated(device.torch_name)
        added = measured["allocator_peak"] - before
    else:
        added = _peak_on_cpu(step)
    measured["total"] = sum(measured[name] for name in state) + added
    errors: dict[str, float | None] = dict.fromkeys(estimated)
    for name, size in estimated.items():
        counted = measured[name]
        if counted is not None and (counted or not size):
            errors[name] = 100 * (size - counted) / (counted or 1)
    return {
        "estimated": estimated | {"moment": memory.moment},
        "measured": measured,
        "error_pct": errors,
    }


def _peak_on_cpu(step: TrainingStep) -> int:
    """Return the most bytes that a step holds above those that it starts with."""
    prepare_profiler()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    changes = (event.nbytes() for event in events if event.name() == "[memory]")
    return int(max(itertools.accumulate(changes)))
