"""Measures a training step: verifies it, counts its memory and FLOPs, times it, and verifies it again."""

from __future__ import annotations

from dataclasses import replace

from bench.harness.cli.once import share_s
from bench.harness.measure.flags import launch_limited, recorded
from bench.harness.measure.samples import sample_steps, take_samples
from bench.harness.run import Run
from bench.harness.timing.protocol import Samples, limits_of
from bench.harness.train.audit import counted_flops, explanations, measured_memory, memory_report
from bench.harness.train.check import check_step
from bench.harness.train.plan import countable_flops
from bench.harness.train.step import TrainingStep
from results.record import Record
from results.stats.samples import median
from roofline.accounting.step_memory import StepPlan, step_memory

STEPS_PER_CASE = 14
"""Steps that a case takes at least: verification, counting, settling, samples."""

LIKELY_MFU = 0.3
"""For a guess of the time of a step before it runs."""

CASE_ALLOWANCE_S = 60.0
"""Time limit of a case if no budget is given."""


def measure_step(plan: StepPlan, blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a step; `rows` share the budget that is left."""
    if too_long := _expected_too_long(blank, run, rows):
        return replace(blank, reason=too_long)
    is_compiled = blank.provider == "torch-compile"
    step = TrainingStep(plan, run.device, run.args.seed, is_compiled)
    before = check_step(step)
    verified = {"before": before.verified}
    if before.reason:
        return replace(blank, status="invalid", reason=before.reason, verified=verified)
    step()  # makes the optimizer's state
    report = memory_report(step_memory(plan), measured_memory(step, is_compiled))
    counted = counted_flops(plan)
    record = timed_record(step, blank, run, rows)
    after = check_step(step)
    verified["after"] = after.verified
    if after.reason:
        return replace(blank, status="invalid", reason=f"after timing: {after.reason}", verified=verified)
    return replace(
        record,
        first_call_s=before.first_call_s,
        verified=verified,
        memory_bytes=report,
        counted_flops=sum(counted.values()),
        counted_flops_estimated=countable_flops(plan),
        counted_flops_by_operation=counted,
        notes=tuple(explanations(blank.provider, report, run.device.is_gpu)),
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
    how = [step], "warm", device, limits_of(device), blank.flops, left_s
    queued = take_samples(*how, is_capturable=False)
    if not device.is_gpu:
        return replace(recorded(blank, queued, device, run.ceilings), phases_s=_phases(step, queued))

    def waited() -> None:
        step()
        device.synchronize()

    samples = sample_steps(waited, "warm", device, share_s(run, rows))
    limited = launch_limited(queued)
    also = () if limited is None else (limited,)
    record = recorded(blank, replace(samples, host_launch_s=None), device, run.ceilings, also=also)
    return replace(record, phases_s=_phases(step, samples), device_s=queued.median_s)


def _phases(step: TrainingStep, samples: Samples) -> dict[str, float]:
    """Return the median seconds of each phase of the sampled steps."""
    phases = step.clock.phases_s(len(samples.samples_s) * samples.launches_per_sample)
    return {name: median([phase[name] for phase in phases]) for name in phases[0]}
