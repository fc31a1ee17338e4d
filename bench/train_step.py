"""A training step of a transformer: forward, backward, optimizer. Predicted by roofline.accounting, then measured.

    x = embedding[ids]; L times x = x + attention(norm(x)), x = x + mlp(norm(x)); loss = cross entropy(norm(x) head)

GPT blocks (LayerNorm, GELU) and Llama blocks (RMSNorm, rotary, grouped heads, SwiGLU), by the shape of the model.

FLOPs   6 N_mm tokens + 6 L a d s (s + 1) a sequence: matrix products, and exactly the pairs of tokens that a causal
        mask lets through (convention gemm-causal-exact). MFU is taken over these. HFU adds what is executed again:
        the layers under checkpointing, and the scores of attention in the fused backward pass.
Bytes   Compulsory for a step as a whole: weights, optimizer state and tokens read once, weights and state written.
Memory  At the moment when most is held: weights, gradients, optimizer state, inputs; what the layers keep; logits and
        loss; temporaries. Estimated by roofline.accounting; the peak is counted in a step of its own.

Source  Chowdhery et al., PaLM (2022), appendix B, for MFU and HFU; Korthikanti et al., Reducing Activation
        Recomputation (2022), and Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), for memory.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.api.family import run_of
from bench.harness.scenarios.scenario import Column, Scenario, ScenarioContext, ScenarioRow, percent_of, spread
from bench.harness.train.options import PROVIDERS, RECIPE_NAMES, TrainingCase, add_options, cases_of, check
from bench.harness.train.plan import checking_bytes, countable_flops, flops_of, plan_of
from results.record import Record
from results.show.table import format_number, format_percent, format_time
from results.stats.samples import median
from roofline.accounting.step_memory import COMPONENTS, StepMemory, StepPlan, step_memory

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.meter import Measurement
    from bench.harness.measure.plan import Settings
    from bench.harness.train.step import TrainingStep

EXAMPLES = (
    ("--recipe fp32,amp,bf16", "two small models in three precisions"),
    ("--model tiny-llama --layers 16 --checkpoint none,full,every-2,sqrt", "memory against time"),
    ("--model tiny-gpt --shape 8x128 --micro-batches 1,2,4", "a smaller micro-batch keeps less"),
    ("--model gpt2 --shape 8x1024 --recipe amp --provider torch,torch-compile --budget 600", "a known model on a GPU"),
)

NOTES = """\
columns:
  step         seconds of a whole step by the clock of the host, which launches it and waits for its end: median, with
               the half width of its 95 % confidence interval
  device       on a GPU: seconds of the same step where it was queued before it begins, so that the host costs nothing
  lost to host share of the step in which the GPU waits for the host
  forward, backward, optimizer   median seconds of each phase, all micro-batches of a step together
  tokens/s     tokens of a step over its median
  MFU, HFU     share of the dense peak of the compute dtype: by what the model needs, by what is executed
  kept by layers   estimate of the most that autograd keeps of the layers, 10^6 bytes; checkpointing makes it less
  peak         bytes of all tensors at the moment when most is held, and what they are
  =, +1%, est  as predicted to the byte; predicted 1 % above what was counted; estimated, not counted
  10^9 FLOPs   model: needed; executed: with recomputation; counted by torch's counter and predicted for it, which
               takes all pairs of tokens, also those that a causal mask leaves out"""

STEPS_PER_CASE = 14
"""Steps that a case takes at least: verification, counting, settling, samples."""

LIKELY_SHARE = 0.3
"""Share of the peak that a training step reaches, for a guess of its time before it runs."""

CASE_ALLOWANCE_S = 60.0
"""Time that a case may take where no budget is given."""


def rows_of(args: argparse.Namespace, device: Device, settings: Settings) -> list[ScenarioRow]:
    """Return a row for each case, those that need more memory than there is with their estimate."""
    from bench.harness.run import use_threads
    from bench.harness.train.step import product_flops_per_s

    use_threads(device)
    free_bytes, product = device.free_bytes(), functools.cache(product_flops_per_s)
    rows = [(case, plan_of(case, device.type)) for case in cases_of(args, device.type)]
    # The products are timed here, where the budget does not run yet.
    return [row_of(case, step, product(step.recipe.compute_dtype, device), device, free_bytes) for case, step in rows]


def row_of(
    case: TrainingCase, step: StepPlan, product_flops_per_s: float, device: Device, free_bytes: int
) -> ScenarioRow:
    """Return the row of one case."""
    memory = step_memory(step)
    needed = max(memory.total, checking_bytes(step, device.type))
    reason = None
    if needed > free_bytes:
        reason = f"needs an estimated {megabytes(needed)}, the device has {megabytes(free_bytes)} free"
    return ScenarioRow(
        blank_record(case, step, memory, reason), partial(measure, case, step, memory, product_flops_per_s), case.label
    )


def blank_record(case: TrainingCase, step: StepPlan, memory: StepMemory, reason: str | None) -> Record:
    """Return what a case is, with its work and its estimates, and nothing measured."""
    flops, parts = flops_of(step), memory.components()
    state = parts["parameters"] + parts["optimizer_state"]
    return Record(
        op="train-step",
        provider=case.provider,
        dtype=step.recipe.compute_dtype,
        shape={"b": case.batch, "s": case.sequence},
        case=f"{case.batch}x{case.sequence}",
        options=case.options,
        status="skipped",
        reason=reason,
        flops=flops.model_flops,
        bytes_read=state + memory.inputs,
        bytes_written=state,
        fill="uniform",
        flops_convention=flops.convention.name,
        hardware_flops=flops.hardware_flops,
        tokens_per_step=flops.tokens,
        memory_bytes={"estimated": memory.sizes() | {"moment": memory.moment.name}},
    )


def measure(
    case: TrainingCase, plan: StepPlan, memory: StepMemory, product_flops_per_s: float, bench: ScenarioContext
) -> Record:
    """Verify the step, count what it computes and holds, time it, and return its record."""
    from bench.harness.train.audit import counted_flops, explanations, measured_memory, memory_report
    from bench.harness.train.check import check_step
    from bench.harness.train.step import TrainingStep

    blank = blank_record(case, plan, memory, None)
    too_long = expected_too_long(blank, product_flops_per_s, bench)
    if too_long:
        return replace(blank, reason=too_long)
    is_compiled = case.provider == "torch-compile"
    step = TrainingStep(plan, bench.device, bench.settings.seed, is_compiled)
    found = check_step(step)
    verified = {"before": found.to_dict()}
    if found.reason:
        return replace(blank, status="invalid", reason=found.reason, verified=verified)
    step()  # makes the optimizer's state
    report = memory_report(memory, measured_memory(step, is_compiled))
    counted = counted_flops(plan)
    timed = timed_record(step, blank, bench)
    again = check_step(step)
    verified["after"] = again.to_dict()
    if again.reason:
        return replace(blank, status="invalid", reason=f"after timing: {again.reason}", verified=verified)
    return replace(
        timed,
        first_call_s=found.first_call_s,
        verified=verified,
        memory_bytes=report,
        counted_flops=sum(counted.values()),
        counted_flops_estimated=countable_flops(plan),
        counted_flops_by_operation=counted,
        notes=tuple(explanations(case.provider, report, bench.device.is_gpu)),
    )


def timed_record(step: TrainingStep, blank: Record, bench: ScenarioContext) -> Record:
    """Return the record with whole steps timed, and the phases of the very same steps.

    On a GPU a step is timed twice. Queued beforehand, as the usual protocol does, it shows what the device needs. Then
    launched by the host and waited for, as in training: that time is the row's.
    """
    from bench.harness.measure.finish import finished
    from bench.harness.measure.meter import Meter

    meter = Meter(bench.device, is_capturable=False)
    if not bench.device.is_gpu:
        measured = meter.measure([step], "warm", blank.flops, bench.left_s())
        return replace(finished(blank, measured, bench.device, bench.ceilings), phases_s=phases_of(step, measured))
    left_s = bench.left_s()
    queued = meter.measure([step], "warm", blank.flops, None if left_s is None else left_s / 2)
    return with_host(step, blank, queued, bench)


def with_host(step: TrainingStep, blank: Record, queued: Measurement, bench: ScenarioContext) -> Record:
    """Return the record of steps that the host launches and waits for, beside what was measured of queued ones."""
    from bench.harness.measure.evidence import launch_limited
    from bench.harness.measure.finish import finished
    from bench.harness.scenarios.host_clock import measure_steps

    def waited() -> None:
        step()
        bench.device.synchronize()

    measured = measure_steps(waited, bench.device, "warm", bench.left_s())
    limited = launch_limited(queued.samples, queued.host_launch_s)
    also = () if limited is None else (limited,)
    record = finished(blank, replace(measured, host_launch_s=None), bench.device, bench.ceilings, also=also)
    return replace(record, phases_s=phases_of(step, measured), device_s=queued.samples.median_s)


def phases_of(step: TrainingStep, measured: Measurement) -> dict[str, float]:
    """Return the median seconds of each phase of the steps that were sampled."""
    samples = measured.samples
    phases = step.clock.phases_s(len(samples.samples_s) * samples.launches_per_sample)
    return {name: median([phase[name] for phase in phases]) for name in phases[0]}


def expected_too_long(blank: Record, product_flops_per_s: float, bench: ScenarioContext) -> str | None:
    """Return why a case does not fit the time there is, with a guess of its time, or None.

    The guess takes the faster of the ceiling and of a product of this run: a ceiling from a busy moment is too low.
    """
    peak = bench.ceilings.peak(blank.dtype)
    fastest = max(peak.value if peak else 0.0, product_flops_per_s)
    left_s = bench.left_s()
    allowance_s = CASE_ALLOWANCE_S if left_s is None else left_s
    step_s = (blank.hardware_flops or 0) / (LIKELY_SHARE * fastest)
    case_s = STEPS_PER_CASE * step_s
    if case_s <= allowance_s:
        return None
    enough = round(1.5 * case_s * bench.rows_left) + 1
    return (
        f"estimated {step_s:.2g} s a step and {case_s:.3g} s for the case, more than the {allowance_s:.3g} s that it "
        f"may take; --budget {enough} would allow it"
    )


def megabytes(size_bytes: float) -> str:
    """Return bytes for people, 10^6 a MB."""
    return f"{format_number(size_bytes / 1e6)} MB"


def against_estimate(name: str) -> Column:
    """Return the column of a component: as measured, with the error of the estimate, or as estimated."""

    def cell(record: Record, _: Mapping[str, Any]) -> str | None:
        report = record.memory_bytes
        estimated, measured = report["estimated"][name], report["measured"].get(name)
        if not (measured or estimated):
            return None
        if measured is None:
            return f"{format_number(estimated / 1e6)} est"
        error = report["error_pct"][name]
        said = "=" if estimated == measured else "new" if error is None else f"{error:+.2g}%"
        return f"{format_number(measured / 1e6)} {said}"

    return Column({"total": "peak"}.get(name, name.replace("_", " ")), cell)


def allocator_peak(record: Record, _: Mapping[str, Any]) -> str | None:
    """Return what the allocator of a GPU says of the same step."""
    size_bytes = record.memory_bytes["measured"]["allocator_peak"]
    return None if size_bytes is None else format_number(size_bytes / 1e6)


def giga(count: int | None) -> str | None:
    """Return a count in 10^9."""
    return None if count is None else format_number(count / 1e9, 6)


def notes_on(records: Sequence[Record]) -> list[str]:
    """Return what explains the differences between estimates and measurements, each note once."""
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return [f"note: {note}" for note in notes]


def described(record: Record) -> list[str]:
    """Return how a row was verified and timed, for `-v`."""
    if record.status != "ok":
        return [f"{record.op} {record.case}: {record.status}: {record.reason}"]
    found, report = record.verified["before"], record.memory_bytes
    checked = (
        f"{record.op} {record.case} {record.options['model']} {record.options['recipe']}: loss {found['loss']:.4g} at "
        f"the start, ln V {found['expected_loss']:.4g}; gradients off by {found['max_error']:.2g} at most "
        f"({found['worst']}), bound {found['bound']:.2g}; {len(record.samples_s)} steps; most memory in the "
        f"{report['measured']['phase']} phase, predicted: {report['estimated']['moment']}"
    )
    return [
        checked,
        *(f"  {flag}: {reason}" for flag, reason in record.flag_reasons.items()),
    ]


def lost_to_host(record: Record) -> str | None:
    """Return the share of a step in which a GPU waits for the host; None on a CPU."""
    if record.device_s is None or record.median_s is None:
        return None
    return format_percent(100 * max(0.0, 1 - record.device_s / record.median_s))


def phase(name: str) -> Column:
    """Return the column of a phase."""
    return Column(name, lambda record, _: format_time(record.phases_s[name]), goes_below=1)


WHAT = (
    Column("model", lambda record, _: record.options["model"], is_text=True),
    Column("case", lambda record, _: record.case, is_text=True),
    Column("recipe", lambda record, _: record.options["recipe"], is_text=True),
    Column("checkpoint", lambda record, _: record.options["checkpoint"], is_text=True, is_quiet=True),
    Column("micro", lambda record, _: str(record.options["micro_batches"]), is_quiet=True),
    Column("optimizer", lambda record, _: record.options["optimizer"], is_text=True, is_quiet=True),
    Column("provider", lambda record, _: record.provider, is_text=True, is_quiet=True),
)

TIMES = (
    *WHAT,
    Column("step", lambda record, _: format_time(record.median_s)),
    Column("95% CI", lambda record, _: spread(record), goes_below=2),
    Column("device", lambda record, _: None if record.device_s is None else format_time(record.device_s)),
    Column("lost to host", lambda record, _: lost_to_host(record)),
    *(phase(name) for name in ("forward", "backward", "optimizer")),
    Column("tokens/s", lambda _, judged: format_number(judged["tokens_per_s"])),
    Column("MFU", lambda _, judged: percent_of(judged["mfu"])),
    Column("HFU", lambda _, judged: percent_of(judged["hfu"]), goes_below=3),
)

MEMORY = (
    *WHAT,
    *(against_estimate(name) for name in ("kept_by_layers", "total", *COMPONENTS)),
    Column("allocator peak", allocator_peak),
)

FLOPS = (
    *WHAT,
    Column("model", lambda record, _: giga(record.flops)),
    Column("executed", lambda record, _: giga(record.hardware_flops)),
    Column("counted", lambda record, _: giga(record.counted_flops)),
    Column("predicted", lambda record, _: giga(record.counted_flops_estimated)),
    Column("off by", lambda record, _: str((record.counted_flops_estimated or 0) - (record.counted_flops or 0))),
)

MEMORY_TITLE = "memory when most is held, MB; = is counted as predicted, +1% predicted 1 % above, est estimated alone"
FLOPS_TITLE = "10^9 FLOPs of a step: needed and executed, causal; counted by torch and predicted, all pairs of tokens"

SCENARIO = Scenario(
    name="train-step",
    command="bench.train_step",
    formula="loss (); weights, state updated: forward, backward, optimizer of a transformer",
    axes="bxs",
    dtypes=RECIPE_NAMES,
    providers=PROVIDERS,
    doc=__doc__,
    notes=NOTES,
    examples=EXAMPLES,
    add_options=add_options,
    check=check,
    plan=rows_of,
    defined_in=("bench.harness.model.transformer", "bench.harness.train.step"),
    columns=TIMES,
    more_tables={MEMORY_TITLE: MEMORY, FLOPS_TITLE: FLOPS},
    footer=notes_on,
    describe=described,
)

run = run_of(__file__)

if __name__ == "__main__":
    from bench.harness.scenarios.scenario import main

    raise SystemExit(main(SCENARIO))
