"""Counts the bytes that a training step holds and the FLOPs that it computes, in steps that are not timed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.harness.train.live_bytes import LiveBytes, SavedBytes, storages_of
from bench.harness.train.step import TrainingStep
from bench.harness.train.transformer import Transformer
from roofline.accounting.step_memory import StepMemory, StepPlan

NOT_COUNTED = "norms, activations, softmax, rotations, the loss, the optimizer; embedding rows are looked up"
"""What torch's counter passes over: it has formulas for matrix products alone."""

KEPT = ("activations", "cast_copies", "logits_loss")
"""Components that autograd keeps, as `SavedBytes` names them."""


def counted_flops(plan: StepPlan) -> dict[str, int]:
    """Return the FLOPs of a step that torch's counter finds, by operation, forward, backward and recomputation.

    The step runs on the meta device, which computes nothing and needs no memory. Attention is taken apart into its
    products, because of the fused kernel torch up to 2.13 counts nothing on a CPU, and every release counts
    every pair of tokens elsewhere, also those that the mask leaves out.
    """
    with torch.device("meta"):
        model = Transformer(plan.config, plan.checkpoint)
        model.rotate_for(plan.sequence, torch.float32, "meta")
        ids = torch.zeros(plan.batch // plan.micro_batches, plan.sequence, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, ids).backward()
    counts = counter.get_flop_counts()["Global"]
    return {str(operation): plan.micro_batches * int(flops) for operation, flops in counts.items()}


def measured_memory(step: TrainingStep, is_compiled: bool = False) -> dict[str, Any]:
    """Return what a step holds when it holds most, by component, and in which phase that is.

    The optimizer's state must be there already. The peak is that of the storages that operations return; beside it
    stands that of torch's allocator on a GPU, in a step of its own: it rounds up to 512 bytes and holds what kernels
    need for themselves.
    A compiled step is not seen operation by operation: only what it keeps is counted.
    """
    state = step.state_tensors()
    device_type = torch.device(step.device.torch_name).type
    resident = [t for tensors in state.values() for t in tensors if t.device.type == device_type]
    sizes = {name: sum(storages_of(tensors).values()) for name, tensors in state.items()}
    saved = SavedBytes(resident, step.model.parameters())
    seen: dict[str, Any] = {}

    def note_peak(live_bytes: int) -> None:
        seen.update(kept=dict(saved.live), moment=step.clock.phase, beside=live_bytes - saved.total)

    live = LiveBytes(resident, note_peak)
    watch: AbstractContextManager[Any] = nullcontext() if is_compiled else live
    removers = [
        step.model.head.register_forward_pre_hook(lambda *_: saved.enter("logits_loss")),
        step.model.head.register_forward_hook(lambda *_: saved.enter("activations")),
    ]
    allocated = allocator_peak(step)
    with saved.hooks(), watch:
        step()
    for remover in removers:
        remover.remove()
    if is_compiled:
        seen = {"kept": dict.fromkeys(KEPT), "moment": None, "beside": None}
    measured = sizes | {name: seen["kept"].get(name, 0) for name in KEPT}
    measured["temporary"] = seen["beside"]
    total = sum(measured.values()) if seen["beside"] is not None else None
    return measured | {
        "total": total,
        "kept_by_layers": saved.most.get("activations", 0),
        "phase": seen["moment"],
        "allocator_peak": allocated,
    }


def allocator_peak(step: TrainingStep) -> int | None:
    """Return the most that torch's allocator of a GPU hands out within a step that is not watched; None on a CPU.

    A step whose tensors are counted may hold more: torch then adds some gradients into new tensors, which
    it adds in place otherwise.
    """
    device = step.device
    if not device.is_gpu:
        return None
    torch.cuda.reset_peak_memory_stats(device.torch_name)
    step()
    return int(torch.cuda.max_memory_allocated(device.torch_name))


def memory_report(estimated: StepMemory, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return estimate, measurement and error in per cent by component, and in total.

    The error is None where nothing was measured, or where there is nothing to divide by.
    """
    sizes = estimated.sizes()
    return {
        "estimated": sizes | {"moment": estimated.moment.name},
        "measured": dict(measured),
        "error_pct": {name: error_pct(size, measured[name]) for name, size in sizes.items()},
    }


def error_pct(estimated: int, measured: int | None) -> float | None:
    """Return by how much an estimate is above what was measured, in per cent of it; None where that says nothing."""
    if measured is None:
        return None
    if estimated == measured:
        return 0.0
    return 100 * (estimated - measured) / measured if measured else None


def explanations(provider: str, report: Mapping[str, Any], is_gpu: bool) -> list[str]:
    """Return a sentence for each thing that makes measurement and estimate differ."""
    notes = [f"not counted as FLOPs: {NOT_COUNTED}"]
    if provider == "torch-compile":
        notes.append("torch-compile fuses operations and computes some again: it does not keep what is estimated")
        notes.append("torch-compile: what it keeps is counted; temporaries and the peak are not seen by the counter")
    elif report["estimated"]["moment"] == "layers":
        notes.append(
            "most is held within the layers: some of what they keep is released by then and gradients of the same "
            "size have taken its place; 'kept by layers' is exact, the temporaries there are estimated"
        )
    if report["estimated"]["moment"] == "embedding" and report["error_pct"]["total"]:
        notes.append(
            "most is held with the gradients of a tied embedding: while tensors are counted, torch does not add them "
            "up in place under autocast, and a third one is counted that is not there otherwise"
        )
    if is_gpu:
        notes.append("'allocator peak' is rounded up to 512 bytes a tensor and has the workspaces of libraries in it")
    return notes
