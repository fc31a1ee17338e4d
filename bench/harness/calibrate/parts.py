"""The parts of `python -m bench calibrate`: what each measures, and the ceilings and records that come out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.harness.calibrate import bandwidth, compute_peak, cpu_fma
from bench.harness.calibrate.matmul_shapes import (
    CPU_STEP,
    GPU_STEP,
    SQUARES,
    Shape,
    cpu_shapes,
    fitting,
    gpu_shapes,
    neighbors,
)
from bench.harness.calibrate.matmul_timer import MatmulTimer
from bench.harness.calibrate.search import Note, NotMeasuredError, SearchPlan, ShapeSearch, best_of, not_tried, rate_of
from bench.harness.calibrate.setup import CalibrationPart, CalibrationSetup, PartOutcome, bytes_of_mix, record_of
from bench.harness.device.telemetry import ClockAndPower, Poller, polled_row, row_telemetry
from bench.harness.providers.registry import has_triton
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Samples
from results.stats.samples import median, median_ci95, quantile
from roofline.work import matmul_work

SEARCH_SHARE = 0.6
"""Share of a dtype's time after which its search looks no further."""

MATMUL_MEMORY_SHARE = 8
"""The three matrices take at most this fraction of the free memory, `1 / MATMUL_MEMORY_SHARE`."""


def plan_parts(setup: CalibrationSetup, dtypes: Sequence[str]) -> list[CalibrationPart]:
    """Return all parts, what others rely on most first, so that an interruption costs the least."""
    fma = compute_peak.FMA_DTYPES if setup.device.is_gpu else tuple(cpu_fma.TYPES)
    return [
        *compiling(setup, dtypes),
        launch(setup),
        *mixes(setup, ("copy", "triad", "read", "write")),
        *(matmul_of(setup, dtype, setup.plan.matmul_s / len(dtypes)) for dtype in dtypes),
        *(CalibrationPart(f"{dtype} FMA", partial(fma_part, setup, dtype)) for dtype in dtypes if dtype in fma),
    ]


def compiling(setup: CalibrationSetup, dtypes: Sequence[str]) -> list[CalibrationPart]:
    """Return the part that compiles all Triton kernels beforehand, so that none is compiled in another's time."""
    if setup.device.type != "cuda" or not has_triton():
        return []
    return [CalibrationPart("compiling", partial(compile_part, setup, dtypes))]


def compile_part(setup: CalibrationSetup, dtypes: Sequence[str], note: Note) -> PartOutcome:
    """Compile every configuration of the bandwidth and FMA kernels in processes of their own."""
    from kernels.precompile import precompile

    launches = bandwidth.launches_to_compile(setup.device, bandwidth.operand_bytes(setup.device))
    launches |= compute_peak.launches_to_compile(dtypes, setup.device)
    note(f"compiling {len(launches)} configurations")
    failed = precompile(launches)
    return PartOutcome((), (), tuple(f"{name}: does not compile: {reason}" for name, reason in failed.items()))


def launch(setup: CalibrationSetup) -> CalibrationPart:
    """Return the part that measures the launch floor."""
    return CalibrationPart("launch", partial(launch_part, setup))


def mixes(setup: CalibrationSetup, names: Sequence[str]) -> list[CalibrationPart]:
    """Return the parts that measure the bandwidth of mixes of reads and writes."""
    return [CalibrationPart(f"bandwidth, {mix}", partial(mix_part, setup, mix)) for mix in names]


def matmul_of(setup: CalibrationSetup, dtype: str, limit_s: float) -> CalibrationPart:
    """Return the part that looks for the fastest matmul of a dtype, within `limit_s` seconds."""
    return CalibrationPart(f"{dtype} matmul", partial(matmul_part, setup, dtype, limit_s))


def launch_part(setup: CalibrationSetup, note: Note) -> PartOutcome:
    """Return the launch floor: of an empty kernel on a GPU, apart for the host; of a copy of one element on a CPU."""
    import torch

    timer = setup.timer(setup.plan.launch_s, 1)
    one, out = (torch.ones(1, device=setup.device.torch_name) for _ in range(2))
    what, call = "copy of one element", partial(out.copy_, one)
    if setup.device.type == "cuda" and has_triton():
        from kernels.launch_floor import v1_empty

        what, call = "triton v1, empty kernel", partial(v1_empty.launch, one)
    elif setup.device.is_gpu:  # a copy would be a node of the copy engine, and no kernel
        what, call = "addition to one element", partial(out.add_, one)
    call()
    floor = timer([call], timer.confirming)
    found = {"launch": (floor, f"{what}, {'per graph node' if floor.method == 'graph' else 'back to back'}")}
    ceilings = [
        setup.ceiling(
            "launch",
            name,
            setup.summary(s.samples_s),
            how,
            timer.telemetry,
            ci95=s.ci95_s,
            p5_p95=(quantile(s.samples_s, 0.05), quantile(s.samples_s, 0.95)),
            config=how,
        )
        for name, (s, how) in found.items()
    ]
    records = [
        record_of(name, "fp32", {"n": 1}, samples, how, flops=0, bytes_read=0, bytes_written=0)
        for name, (samples, how) in found.items()
    ]
    return PartOutcome(tuple(ceilings), tuple(records))


def mix_part(setup: CalibrationSetup, mix: str, note: Note) -> PartOutcome:
    """Return the bandwidth of one mix, of arrays many times the cache."""
    among = [stream for stream in setup.streams if stream.mix == mix]
    timer, size_bytes = setup.timer(setup.plan.mix_s, len(among)), setup.arrays.size_bytes
    chosen = best_of(bandwidth.candidates_of(mix, among, size_bytes), setup.trial(timer, note, mix))
    rate = chosen.rate
    ceiling = setup.of_rate("bandwidth", mix, rate, timer.telemetry)
    moved = bytes_of_mix(mix, rate.work_per_launch)
    shape, extra = {"n": size_bytes // 4}, {"telemetry": timer.telemetry, "cache": "cold"}
    record = record_of(mix, "fp32", shape, rate.samples, rate.config, **moved, **extra)
    return PartOutcome((ceiling,), (record,), not_tried(chosen))


def fma_part(setup: CalibrationSetup, dtype: str, note: Note) -> PartOutcome:
    """Return the rate of fused multiply-adds of a dtype outside the tensor cores."""
    candidates = compute_peak.fma_candidates(dtype, setup.device)
    timer = setup.timer(setup.plan.fma_s, len(candidates))
    chosen = best_of(candidates, setup.trial(timer, note, f"{dtype} FMA"))
    rate = chosen.rate
    record = record_of(
        "fma",
        dtype,
        {"n": max(1, rate.work_per_launch // 2)},
        rate.samples,
        rate.config,
        flops=rate.work_per_launch,
        telemetry=timer.telemetry,
    )
    return PartOutcome((setup.of_rate("fma", dtype, rate, timer.telemetry),), (record,), not_tried(chosen))


def matmul_part(setup: CalibrationSetup, dtype: str, limit_s: float, note: Note) -> PartOutcome:
    """Return the fastest matmul of a dtype: by a search, and in a long run split into burst and sustained."""
    device, plan, op = setup.device, setup.plan, setup.matmul
    limits, shapes = GPU_LIMITS if device.is_gpu else CPU_LIMITS, shapes_of(setup, dtype)
    poller = Poller(setup.monitor)
    timer = MatmulTimer(op, dtype, device, shapes, limits, poller=poller)
    timer(min(shapes, key=lambda shape: shape.flops), 1)  # what it takes corrects the estimates of all others
    began, before = time.perf_counter(), setup.monitor.snapshot()
    search = ShapeSearch(
        shapes,
        timer,
        SearchPlan(plan.repetitions, summary=setup.summary),
        partial(neighbors, step=GPU_STEP if device.is_gpu else CPU_STEP),
        lambda: search.repetitions > 0 and time.perf_counter() - began >= SEARCH_SHARE * limit_s,
    )
    found = search.run(lambda line: note(f"{dtype} matmul: {line}"))
    # The last samples of the search are those that confirm its choice: its clock is the one of those very samples.
    telemetry = _at_the_clock_of(row_telemetry(before, setup.monitor.snapshot()), poller.seen)
    if not plan.long_run_s:
        confirmed = Samples(
            found.samples_s, 1, "host", "warm", median(found.samples_s), median_ci95(found.samples_s), True
        )
        return matmul_outcome(setup, dtype, found.shape, found.samples_s, confirmed, telemetry)
    note(f"{dtype} matmul {found.shape.name}: a long run")
    before = setup.monitor.snapshot()
    long = timer.run(found.shape, plan.long_run_s)
    lasting = row_telemetry(before, setup.monitor.snapshot(), flops=found.shape.flops)
    return matmul_outcome(setup, dtype, found.shape, found.samples_s, long, telemetry, LongRun(lasting, poller))


@dataclass(frozen=True)
class LongRun:
    """What the machine did during the run that tells burst from sustained."""

    telemetry: dict[str, Any]
    polled: Poller

    def of(self, name: str, split: compute_peak.Endurance | None) -> dict[str, Any]:
        """Return the telemetry of one of its rates, with clock and power while its very samples ran."""
        assert split is not None
        ends = (0, split.burst_end) if name == "burst" else (split.sustained_first, 10**9)
        return _at_the_clock_of(self.telemetry, self.polled.between(*ends))


def _at_the_clock_of(telemetry: dict[str, Any], polled: Sequence[ClockAndPower]) -> dict[str, Any]:
    """Return telemetry of a longer window with clock and power of the samples that were polled."""
    return telemetry | polled_row({"power_source": None}, polled) if polled else telemetry


def shapes_of(setup: CalibrationSetup, dtype: str) -> list[Shape]:
    """Return the matmuls worth trying in a dtype, as far as they fit into memory.

    Raises:
        NotMeasuredError: not even the smallest fits.
    """
    quick = setup.plan.is_quick
    if setup.device.is_gpu:
        layouts = (
            ("nt",)
            if dtype.startswith("fp8") or (quick and dtype == "int8")
            else ("nn",)
            if quick
            else ("nn", "nt", "tn")
        )
        shapes = gpu_shapes(setup.device.sm_count or 1, layouts)
    else:
        shapes = cpu_shapes(("nn",) if quick else ("nn", "nt"))
        shapes += [Shape(n, n, n) for n in SQUARES[1:]] if setup.device.is_gpu else []
    if quick:
        shapes = [shape for shape in shapes if shape.m == shape.n == shape.k <= setup.plan.largest]
    memory_bytes = setup.device.free_bytes() // MATMUL_MEMORY_SHARE
    found = fitting(shapes, dtype, setup.matmul.output_dtype(dtype), memory_bytes)
    if not found:
        raise NotMeasuredError(f"no {dtype} matmul of the search fits into {memory_bytes / 1e9:.2g} GB")
    return found


def matmul_outcome(
    setup: CalibrationSetup,
    dtype: str,
    shape: Shape,
    confirmed_s: Sequence[float],
    long: Samples,
    telemetry: dict[str, Any],
    lasting: LongRun | None = None,
) -> PartOutcome:
    """Return ceilings and records of the fastest shape.

    Args:
        setup: the device.
        dtype: of the matmul.
        shape: the fastest.
        confirmed_s: seconds per launch that took no part in the choice.
        long: samples of the long run on random data; without one, those that confirmed the choice.
        telemetry: of the samples that confirmed the choice.
        lasting: what the machine did during the long run ; None: the same.
    """
    config, flops, notes = f"matmul {shape.name}", shape.flops, []
    confirmed = replace(
        long, samples_s=tuple(confirmed_s), median_s=median(confirmed_s), ci95_s=median_ci95(confirmed_s)
    )
    best = rate_of(config, flops, confirmed)
    # On a CPU the value is the fastest of all samples; of these are its quantiles.
    all_of_them = replace(long, samples_s=(*confirmed_s, *long.samples_s))
    behind = best if setup.device.is_gpu else rate_of(config, flops, all_of_them)
    value = best.value if setup.device.is_gpu else behind.fastest
    rates = {}
    split = None
    if setup.plan.long_run_s:
        try:
            split = compute_peak.endurance(config, flops, long)
            rates |= {"burst": split.burst, "sustained": split.sustained}
        except NotMeasuredError as error:
            notes.append(f"{dtype}: burst and sustained are not told apart: {error}")
    details: dict[str, Any] = {"config": config, "work_per_launch": flops}
    of_peak = {"ci95": best.ci95, "p5_p95": behind.p5_p95}
    work = matmul_work(shape.m, shape.n, shape.k, dtype, setup.matmul.output_dtype(dtype))
    counted = {"flops": flops, "bytes_read": work.bytes_read, "bytes_written": work.bytes_written, "cache": "warm"}
    extent = {"m": shape.m, "n": shape.n, "k": shape.k}
    options = {"options": {"layout": shape.layout, "config": config}}
    seen = {name: lasting.of(name, split) if lasting else telemetry for name in rates}
    records = [
        record_of("matmul", dtype, extent, confirmed, config, fill="uniform", telemetry=telemetry, **counted, **options)
    ]
    for name, rate in rates.items():
        told = {"fill": "uniform", "telemetry": seen[name], **counted, **options}
        records.append(record_of(name, dtype, extent, rate.samples, config, **told))
    # A sustained rate is the median on every device: the shortest time says nothing about it.
    found = [setup.ceiling("flops", dtype, value, config, telemetry, **details, **of_peak)]
    for name, rate in rates.items():
        details |= {"ci95": rate.ci95, "p5_p95": rate.p5_p95}
        found.append(setup.ceiling(name, dtype, rate.value, config, seen[name], **details))
    return PartOutcome(tuple(found), tuple(records), tuple(notes))
