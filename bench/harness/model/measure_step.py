"""Measures a training step: verifies it, counts its memory and FLOPs, times it, and verifies it again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from bench.harness.cli.once import share_s
from bench.harness.measure.flags import launch_limited, recorded
from bench.harness.measure.measure_row import sample_steps, take_samples
from bench.harness.model.step import PhaseClock, TrainingStep, check_step
from bench.harness.model.transformer import Transformer
from bench.harness.run import Run
from bench.harness.timing.protocol import limits_of
from results.record import Record
from roofline.accounting.step_memory import StepPlan, step_memory

STEPS_PER_CASE = 14
"""Steps that a case takes at least: verification, counting, settling, samples."""

LIKELY_MFU = 0.3
"""For a guess of the time of a step before it runs."""

CASE_ALLOWANCE_S = 60.0
"""Time limit of a case if no budget is given."""

NOT_COUNTED = "norms, activations, softmax, rotations, the loss, the optimizer; embedding rows are looked up"
"""Operations without a formula in torch's counter, which has formulas for matmuls alone."""

RANDOM_STATE_DTYPES = (torch.int64, torch.uint64)
MAX_RANDOM_STATE = 2
"""Numbers in a tensor that holds a seed and an offset."""


def measure_step(plan: StepPlan, blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a step; `rows` share the budget that is left."""
    if too_long := _expected_too_long(blank, run, rows):
        return replace(blank, reason=too_long)
    step = TrainingStep(plan, run.device, run.args.seed, blank.provider == "torch-compile")
    problem, before, first_call_s = check_step(step)
    if problem:
        return replace(blank, status="invalid", reason=problem, verified={"before": before})
    step()  # makes the optimizer's state
    memory, counted = memory_report(step), counted_flops(plan)
    record = timed_record(step, blank, run, rows)
    problem, after, _ = check_step(step)
    verified = {"before": before, "after": after}
    if problem:
        return replace(blank, status="invalid", reason=f"after timing: {problem}", verified=verified)
    return replace(
        record,
        first_call_s=first_call_s,
        verified=verified,
        memory_bytes=memory,
        counted_flops=sum(counted.values()),
        counted_flops_by_operation=counted,
        notes=tuple(explanations(step, memory)),
    )


def _expected_too_long(blank: Record, run: Run, rows: int) -> str | None:
    peak, left_s = run.ceilings.peak(blank.dtype), share_s(run, rows)
    step_s = (blank.hardware_flops or 0) / (LIKELY_MFU * peak.value) if peak else 0.0
    allowance_s, case_s = CASE_ALLOWANCE_S if left_s is None else left_s, STEPS_PER_CASE * step_s
    if case_s <= allowance_s:
        return None
    return (
        f"estimated {step_s:.2g} s a step and {case_s:.3g} s for the case, more than the {allowance_s:.3g} s that it "
        f"may take; use --budget {round(1.5 * case_s * rows) + 1}"
    )


def timed_record(step: TrainingStep, blank: Record, run: Run, rows: int) -> Record:
    """Return the record with whole steps timed, and the phases of the very same steps.

    On a GPU a step is timed twice: queued beforehand, it shows what the device needs (`device_s`). Launched by the
    host and waited for, as in training, it gives the row's time.
    """
    device, left_s = run.device, share_s(run, rows)
    if device.is_gpu and left_s is not None:
        left_s /= 2
    samples = take_samples([step], "warm", device, limits_of(device), blank.flops, left_s, is_capturable=False)
    limited, device_s = None, None
    if device.is_gpu:
        limited, device_s = launch_limited(samples), samples.median_s

        def waited() -> None:
            step()
            device.synchronize()

        samples = replace(sample_steps(waited, "warm", device, share_s(run, rows)), host_launch_s=None)
    record = recorded(blank, samples, device, run.ceilings, also=(limited,) if limited else ())
    steps = len(samples.samples_s) * samples.launches_per_sample
    return replace(record, phases_s=step.clock.medians_s(steps), device_s=device_s)


def counted_flops(plan: StepPlan) -> dict[str, int]:
    """Return the FLOPs of a step that torch's counter counts, by operation: forward, backward and recomputation.

    The step runs on the meta device, which computes nothing and needs no memory. Attention runs as separate matmuls:
    of the fused kernel torch up to 2.13 counts nothing on a CPU, and every release counts every pair of tokens
    elsewhere, also those that the mask leaves out.
    """
    with torch.device("meta"):
        model = Transformer(plan.config, plan.checkpoint)
        model.rotate_for(plan.sequence, torch.float32, "meta")
        ids = torch.zeros(plan.batch // plan.micro_batches, plan.sequence, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, ids).backward()
    counts = counter.get_flop_counts()["Global"]
    return {str(operation): plan.micro_batches * int(flops) for operation, flops in counts.items()}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations return within this context, until nothing refers to them.

    What a kernel allocates for itself while it runs is not seen. `resident` are tensors that exist before and do not
    count. `peak` is the maximum and `phase` the step's phase when it was reached.

    The seed and the offset that fused attention returns, also without dropout, do not count: 16 or 24 bytes a layer,
    by kernel and version of torch, some of them in host memory.

    Source: torch 2.11, `torch/_meta_registrations.py`, `_scaled_dot_product_*_attention`.
    """

    def __init__(self, resident: Iterable[Tensor], clock: PhaseClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[Any, int] = {}
        self._resident, self._clock = set(_storages(resident)), clock
        self.total = self.peak = 0
        self.phase = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        is_random_state = tensor.dtype in RANDOM_STATE_DTYPES and tensor.numel() <= MAX_RANDOM_STATE
        reference = weakref.ref(storage, self._forget)
        if is_random_state or storage.data_ptr() in self._resident or reference in self._seen:
            return
        self._seen[reference] = storage.nbytes()
        self.total += storage.nbytes()
        if self.total > self.peak:
            self.peak, self.phase = self.total, self._clock.phase

    def _forget(self, reference: Any) -> None:
        self.total -= self._seen.pop(reference, 0)


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage by its address."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}


def memory_report(step: TrainingStep) -> dict[str, Any]:
    """Return the bytes of a step as estimated and as measured, and the error in per cent of the measurement.

    Measured are the bytes that stay from step to step by component (the optimizer's state must exist already), the peak
    of a step (`total`), and its phase. The peak is the one of the storages that operations return; on a GPU
    `allocator_peak` is the peak of torch's allocator in a separate step, because a step whose tensors are counted may
    hold more: torch then adds some gradients into new tensors, which it adds in place otherwise. What is not measured
    is None, as the peak of a compiled step, which is not seen operation by operation.
    """
    device, state, memory = step.device, step.state_tensors(), step_memory(step.plan)
    estimated = memory.sizes()
    measured: dict[str, Any] = dict.fromkeys((*estimated, "phase", "allocator_peak"))
    measured |= {name: sum(_storages(tensors).values()) for name, tensors in state.items()}
    held = sum(measured[name] for name in state)
    if device.is_gpu:
        torch.cuda.reset_peak_memory_stats(device.torch_name)
        step()
        measured["allocator_peak"] = int(torch.cuda.max_memory_allocated(device.torch_name))
    if not step.is_compiled:
        kind = step.ids.device.type
        with LiveBytes([t for tensors in state.values() for t in tensors if t.device.type == kind], step.clock) as live:
            step()
        measured |= {"total": held + live.peak, "phase": live.phase}
    errors: dict[str, float | None] = dict.fromkeys(estimated)
    for name, size in estimated.items():
        counted = measured[name]
        if counted is not None and (counted or not size):
            errors[name] = 100 * (size - counted) / (counted or 1)
    return {"estimated": estimated | {"moment": memory.moment.name}, "measured": measured, "error_pct": errors}


def explanations(step: TrainingStep, memory: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing that makes measurement and estimate differ."""
    notes = [f"not counted as FLOPs: {NOT_COUNTED}"]
    if step.is_compiled:
        notes.append("torch-compile fuses operations and computes some again: its peak is not counted")
    if memory["estimated"]["moment"] == "embedding" and memory["error_pct"]["total"]:
        notes.append(
            "most is held with the gradients of a tied embedding: while tensors are counted, torch does not add them "
            "up in place under autocast, and a third one is counted that is not there otherwise"
        )
    if step.device.is_gpu:
        notes.append("'allocator peak' is rounded up to 512 bytes a tensor and has the workspaces of libraries in it")
    return notes
