"""The loop: for each case and provider, inputs -> verify -> time -> verify again -> record.

Whatever goes wrong with one row stays with that row: it is kept as `skipped`, `invalid` or `failed`, with the reason,
and the run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bench.harness import inputs, samplers, verify
from bench.harness.cost import CALLS_PER_CASE, CostEstimator
from bench.harness.device import Device
from bench.harness.op import Case, Op, UnsupportedCaseError
from bench.harness.providers import Provider, ProviderUnavailableError, load, numerics
from bench.harness.telemetry import Monitor, row_telemetry, slowdowns
from bench.harness.timing import CPU_LIMITS, GPU_LIMITS, Limits, Samples, collect, warm_up
from results.record import MAX_COUNT, Record

CASE_ALLOWANCE_S = 10.0
"""Time that one case may take where no budget is given; a larger budget allows more."""

MIN_CAPABILITY = {"fp16": 5.3, "bf16": 8.0, "tf32": 8.0, "int8": 7.2, "fp8e4m3": 8.9, "fp8e5m2": 8.9}
"""Compute capability from which on NVIDIA hardware has arithmetic of a dtype.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities, table of arithmetic instruction throughput."""

PREPARE_S_PER_BYTE = 2e-9
"""Time to fill, copy and check a case, per byte of its work: what a two-core machine takes at best. A row that takes
longer raises it for those that follow."""

LEAST_BYTES = 2**20
"""Cases with less work take a time of their own that has nothing to do with their bytes."""

POWER_CAP = "sw_power_cap"
"""The cause of a slowdown that is normal under load: the power limit holds the clock."""

PREEMPTIONS_PER_S = 20.0
"""Involuntary context switches per second above which other processes took a CPU measurement's cores away. On a quiet
machine there are a few. All samples may then be equally slow, so that the interval of the median tells nothing."""

CPU_DTYPES = ("fp64", "fp32", "fp16", "bf16", "int8")
"""What torch computes on a CPU. Its fp8 product exists too, but converts every element first: no fp8 arithmetic."""


@dataclass(frozen=True)
class Settings:
    """How a run measures."""

    fill: str = "uniform"
    cache: str = "cold"
    budget_s: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """One case with one provider, and the record that it has already where it cannot be run at all."""

    op: Op
    case: Case
    provider: str
    refused: Record | None = None


def plan(cases: Iterable[tuple[Op, Case]], providers: list[str], device: Device, settings: Settings) -> list[Row]:
    """Return all rows of a run; those that cannot run here carry their refusal before anything is allocated."""
    rows = []
    for op, case in cases:
        reason = refusal(op, case, device)
        for provider in providers:
            blank = blank_record(op, case, provider, settings)
            refused = replace(blank, status="skipped", reason=reason) if reason else None
            rows.append(Row(op, case, provider, refused))
    return rows


def refusal(op: Op, case: Case, device: Device) -> str | None:
    """Return why a case cannot run on a device, or None: a dtype it lacks, a shape no library takes, memory."""
    if not has_dtype(device, case.dtype):
        return f"{device.name} has no {case.dtype} arithmetic"
    try:
        op.check(case, device.type)
    except UnsupportedCaseError as error:
        return str(error)
    needed, free = inputs.required_bytes(op, case, copies=1), device.free_bytes()
    if needed > free:
        return f"needs {in_gb(needed)}, the device has {in_gb(free)} free"
    return None


def has_dtype(device: Device, dtype: str) -> bool:
    """Return whether the device has arithmetic of a dtype."""
    if not device.is_gpu:
        return dtype in CPU_DTYPES
    if device.type == "rocm" or device.compute_capability is None:
        return True  # no table for AMD: torch refuses by itself, and the row says so
    major, minor = device.compute_capability.split(".")
    return (int(major), int(minor)) >= _capability(dtype)


def _capability(dtype: str) -> tuple[int, int]:
    major, minor = str(MIN_CAPABILITY.get(dtype, 0.0)).split(".")
    return int(major), int(minor)


def in_gb(size_bytes: int) -> str:
    """Return a size for a message, in powers of ten."""
    size_gb = size_bytes / 1e9
    return f"{plain(size_gb, 3)} GB" if size_gb < 1e6 else f"{size_gb:.2e} GB"


def plain(value: float, digits: int) -> str:
    """Return a number for a message: `digits` significant ones, but no exponent where it is large."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def blank_record(op: Op, case: Case, provider: str, settings: Settings) -> Record:
    """Return a record that says what a row is, with its work and nothing measured.

    Work that no record can hold is left out: the case is refused for its memory anyway, and the file stays readable.
    """
    work = op.work(case)
    is_countable = max(work.flops, work.bytes) <= MAX_COUNT
    return Record(
        op=op.name,
        provider=provider,
        dtype=case.dtype,
        shape=dict(case.shape),
        case=case.name,
        options=dict(case.options),
        status="skipped",
        flops=work.flops if is_countable else None,
        bytes_read=work.bytes_read if is_countable else None,
        bytes_written=work.bytes_written if is_countable else None,
        fill=settings.fill,
    )


class Runner:
    """Measures rows one after the other on one device."""

    def __init__(
        self,
        family: str,
        device: Device,
        settings: Settings,
        estimator: CostEstimator | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> None:
        """Prepare; nothing is allocated yet.

        Args:
            family: the op file's name, where Triton versions are looked for.
            device: the device under test.
            settings: fill, cache, budget, seed.
            estimator: guesses the time of a case before it runs.
            limits: when to stop sampling; by default what suits the device.
            deadline: reading of `time.perf_counter` after which no further case is started.
        """
        self._family, self._device, self._settings = family, device, settings
        self._estimator = estimator or CostEstimator(device, settings.fill, settings.seed)
        self._limits = limits or (GPU_LIMITS if device.is_gpu else CPU_LIMITS)
        self._deadline = deadline
        self._monitor = Monitor(device)
        self._prepare_s_per_byte = PREPARE_S_PER_BYTE

    def measure(self, row: Row) -> Record:
        """Return the record of one row, whatever becomes of it."""
        if row.refused is not None:
            return row.refused
        blank = blank_record(row.op, row.case, row.provider, self._settings)
        try:
            too_long = self._too_long(row.op, row.case)
            if too_long:
                return replace(blank, reason=too_long)
            provider = load(row.provider, row.op, self._family, self._device)
            with numerics(row.case.dtype):
                return self._measure(row, blank, provider)
        except ProviderUnavailableError as error:
            return replace(blank, reason=str(error))
        except Exception as error:
            if is_out_of_memory(error):
                return replace(blank, reason="out of memory")
            return replace(blank, status="failed", reason=one_line(error))
        finally:
            self._release()

    def _measure(self, row: Row, blank: Record, provider: Provider) -> Record:
        """Return the record of a row that can run: verify, time, verify again."""
        op, case, device, begin = row.op, row.case, self._device, time.perf_counter()
        rotation = inputs.plan_rotation(
            op.work(case).bytes, device.cache_bytes, device.free_bytes(), device.type, self._settings.cache
        )
        filler = inputs.Filler(self._settings.fill, case.dtype, device, self._settings.seed)
        sets = inputs.make_sets(op, case, filler, device, rotation.copies)
        calls = [provider.call(data) for data in sets]

        start = time.perf_counter()
        try:
            result = verify.run_poisoned(calls[0], sets[0].out, device.synchronize)
        except provider.refuses_with as error:
            raise ProviderUnavailableError(str(error)) from None
        first_call_s = time.perf_counter() - start
        before = verify.check(op, case, sets[0], result)
        if not before.is_right:
            return replace(blank, status="invalid", reason=before.reason, verified={"before": before.to_dict()})

        prepared_s = time.perf_counter() - begin
        self._prepare_s_per_byte = max(self._prepare_s_per_byte, prepared_s / max(op.work(case).bytes, LEAST_BYTES))

        samples, latency_s, seen = self._time(calls, rotation.cache, blank.flops)
        last = len(sets) - 1 - self._settings.seed % max(1, len(sets) - 1)  # another copy than the first, if there is
        result = verify.run_poisoned(calls[last], sets[last].out, device.synchronize)
        after = verify.check(op, case, sets[last], result)
        verified = {"before": before.to_dict(), "after": after.to_dict()}
        if not after.is_right:
            return replace(blank, status="invalid", reason=f"after timing: {after.reason}", verified=verified)
        if provider.name == "torch":
            self._estimator.learn(op, case, samples.median_s)
        return replace(
            blank,
            status="ok",
            samples_s=samples.samples_s,
            launches_per_sample=samples.launches_per_sample,
            method=samples.method,
            cache=samples.cache,
            median_s=samples.median_s,
            ci95_s=samples.ci95_s,
            converged=samples.converged,
            host_latency_s=latency_s,
            first_call_s=first_call_s,
            flags=self._flags(samples, latency_s, seen),
            telemetry=seen,
            verified=verified,
            copies=rotation.copies,
            source_sha256=provider.source_sha256,
        )

    def _time(self, calls: list[samplers.Call], cache: str, flops: int | None) -> tuple[Samples, float, dict[str, Any]]:
        """Return the samples, the host's latency, and what the device and its host did meanwhile."""
        limits = self._limits
        if self._deadline is not None:
            limits = replace(limits, cap_s=min(limits.cap_s, max(0.0, self._deadline - time.perf_counter())))
        sampler = samplers.make_sampler(calls, self._device, limits)
        warm_up(sampler, limits.warm_up_s)
        before = self._monitor.snapshot()
        samples = collect(sampler, limits, cache)
        launches = len(samples.samples_s) * samples.launches_per_sample
        seen = row_telemetry(before, self._monitor.snapshot(), launches=launches, flops=flops)
        return samples, samplers.host_latency_s(calls, self._device.synchronize), seen

    def _flags(self, samples: Samples, latency_s: float, seen: dict[str, Any]) -> tuple[str, ...]:
        """Return the short warnings of a measurement."""
        flags = []
        if not samples.converged:
            flags.append("not-converged")
        if samples.cache != self._settings.cache:
            flags.append("not-cold")
        if self._device.is_gpu and latency_s > 2 * samples.median_s:
            flags.append("launch-limited")
        if not self._device.is_gpu and (seen["involuntary_switches_per_s"] or 0.0) > PREEMPTIONS_PER_S:
            flags.append("preempted")
        causes = slowdowns(seen)
        if POWER_CAP in causes:
            flags.append("power-limited")
        if set(causes) - {POWER_CAP}:
            flags.append("throttled")
        return tuple(flags)

    def _too_long(self, op: Op, case: Case) -> str | None:
        """Return why a case does not fit the time that is left, with the estimate, or None."""
        allowance_s, limit = CASE_ALLOWANCE_S, f"the {CASE_ALLOWANCE_S:g} s that a case may take"
        if self._deadline is not None:
            allowance_s = self._deadline - time.perf_counter()
            if allowance_s <= 0:
                return f"the budget of {self._settings.budget_s:g} s is spent"
            limit = f"the {plain(allowance_s, 2)} s that are left"
        spent_s = (self._settings.budget_s or allowance_s) - allowance_s
        call_s = self._estimator.call_s(op, case) or 0.0
        case_s = call_s * CALLS_PER_CASE
        if self._deadline is not None:
            case_s += self._prepare_s_per_byte * op.work(case).bytes
        if case_s <= allowance_s:
            return None
        return (
            f"estimated {plain(call_s, 2)} s a launch and {plain(case_s, 2)} s for the case, more than {limit}; "
            f"--budget {max(1, round(spent_s + case_s * 1.5))} would allow it"
        )

    def _release(self) -> None:
        """Give back what the row's tensors held, so that the next row finds what is really free."""
        if self._device.is_gpu:
            import torch

            torch.cuda.empty_cache()


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory ran out: Python's own, torch's allocators', CUDA's or cuBLAS's."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: Exception) -> str:
    """Return the class and the first line of an error, short enough for a table."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200]
