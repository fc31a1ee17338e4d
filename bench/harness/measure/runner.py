"""The loop: for each case and provider, inputs -> verify -> time -> verify again -> record.

Whatever goes wrong with one row stays with that row: it is kept as `skipped`, `invalid` or `failed`, with the reason,
and the run goes on.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from bench.harness.data import inputs, verify
from bench.harness.data.checks import ForeignWatch, Watch
from bench.harness.device.device import Device
from bench.harness.isolate.worker import Job, Workers
from bench.harness.measure.cost import CALLS_PER_CASE, CostEstimator
from bench.harness.measure.evidence import Context, Flag, flags_of
from bench.harness.measure.meter import Measurement, Meter
from bench.harness.measure.plan import Row, Settings, blank_record, plain
from bench.harness.measure.roofs import roofs_of
from bench.harness.op import Case, Op
from bench.harness.providers.process_settings import ProcessSettings
from bench.harness.providers.registry import Provider, ProviderUnavailableError, load, numerics
from bench.harness.providers.user_kernel import find, is_user_kernel, line_in
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Limits
from results.record import Record
from results.stats.samples import outlier_count
from roofline.ceilings import Ceilings

CASE_ALLOWANCE_S = 10.0
"""Time that one case may take where no budget is given; a larger budget allows more."""

PREPARE_S_PER_BYTE = {"cpu": 2e-9, "mps": 2e-9, "cuda": 1e-10, "rocm": 1e-10}
"""Time to fill, copy and check the inputs of a case, per byte of all copies: as a two-core machine takes it, also for
an Apple GPU, where this is done on the processor; and as a GPU of 1 TB/s would whose memory moves a hundred bytes for
each, most of them for the fp64 reference."""

INVALID_FLAGS = ("faster-than-physics", "other-stream")
"""Flags of times that cannot be true."""


def filled(blank: Record, measured: Measurement, flags: tuple[Flag, ...]) -> Record:
    """Return the record of a row with what was measured and what speaks against it."""
    samples = measured.samples
    return replace(
        blank,
        samples_s=samples.samples_s,
        launches_per_sample=samples.launches_per_sample,
        method=samples.method,
        cache=samples.cache,
        median_s=samples.median_s,
        ci95_s=samples.ci95_s,
        converged=samples.converged,
        warm_median_s=measured.warm_s,
        outliers=outlier_count(samples.samples_s),
        settled=measured.settling.settled,
        host_latency_s=measured.host_latency_s,
        flags=tuple(flag.name for flag in flags),
        flag_reasons={flag.name: f"{flag.reason}; {flag.advice}" for flag in flags},
        telemetry=measured.telemetry,
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
        ceilings: Ceilings | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Prepare; nothing is allocated yet.

        Args:
            family: the op file's name, where Triton versions are looked for.
            device: the device under test.
            settings: fill, cache, budget, seed.
            estimator: guesses the time of a case before it runs.
            limits: when to stop sampling; by default what suits the device.
            deadline: reading of `time.perf_counter` after which no further case is started.
            ceilings: what the machine can do at most, so that what it cannot do is found.
            workers: processes in which users' functions run; None: they run here, as in a worker.
        """
        self._family, self._device, self._settings = family, device, settings
        self._estimator = estimator or CostEstimator(device, settings.fill, settings.seed)
        self._limits = limits or (GPU_LIMITS if device.has_cuda else CPU_LIMITS)
        self._deadline = deadline
        self._meter = Meter(device, self._limits)
        self._ceilings, self._workers = ceilings, workers
        self.rows_left = 1
        """Rows that the time until the deadline is for; each may sample for its share."""
        self.together = 1
        """Providers whose calls the next row's estimate is for, where several are measured at once."""

    def measure(self, row: Row) -> Record:
        """Return the record of one row, whatever becomes of it; `passed_over` says who refused it before a stand-in."""
        if row.refused is not None:
            return row.refused
        passed_over: dict[str, str] = {}
        for provider in (row.provider, *row.stand_ins):
            try:
                record = self._measure_provider(replace(row, provider=provider))
            except ProviderUnavailableError as error:
                passed_over[provider] = str(error)
                continue
            return replace(record, passed_over=passed_over) if passed_over else record
        return replace(blank_record(row.op, row.case, row.provider, self._settings), reason=passed_over[row.provider])

    def _measure_provider(self, row: Row) -> Record:
        """Return the record of one row, or let a ProviderUnavailableError pass: the provider cannot take the case."""
        blank = blank_record(row.op, row.case, row.provider, self._settings)
        try:
            too_long = self._too_long(row.op, row.case)
            if too_long:
                return replace(blank, reason=too_long)
            if self._workers is not None and is_user_kernel(row.provider):
                return self._workers.measure(self._job(row), blank)
            provider = load(row.provider, row.op, self._family, self._device)
            with numerics(row.case.dtype):
                return self._measure(row, blank, provider)
        except ProviderUnavailableError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                return replace(blank, reason="out of memory")
            return self._failed(row, blank, error)
        finally:
            release(self._device)

    def _measure(self, row: Row, blank: Record, provider: Provider) -> Record:
        """Return the record of a row that can run: verify, time, verify again."""
        op, case, begin = row.op, row.case, time.perf_counter()
        rotation = self._rotation(op, case)
        watch = self._watch(op, case, provider)
        sets = watch.enclose(self._input_sets(op, case, rotation.copies))
        calls = [provider.call(data) for data in sets]

        try:
            result = watch.run(calls[0], sets[0])
        except provider.refuses_with as error:
            raise ProviderUnavailableError(str(error)) from None
        first_call_s = watch.call_s
        checking = time.perf_counter()
        before = watch.before(verify.check(op, case, sets[0], result))
        earlier = (sets[0].inputs, result) if op.check_result else None
        if not before.is_right:
            return replace(blank, status="invalid", reason=before.reason, verified={"before": before.to_dict()})

        ready = time.perf_counter()
        prepared_s = ready - begin + (ready - checking)  # it is checked once more at the end
        left_s = None if self._deadline is None else (self._deadline - ready) / self.rows_left
        measured = self._meter.measure(calls, rotation.cache, blank.flops, left_s, prepared_s)
        last = len(sets) - 1 - self._settings.seed % max(1, len(sets) - 1)  # another copy than the first, if there is
        result = watch.run(calls[last], sets[last])
        after = watch.after(verify.check(op, case, sets[last], result, earlier), calls, last)
        verified = {"before": before.to_dict(), "after": after.to_dict()}
        if not after.is_right:
            return replace(blank, status="invalid", reason=f"after timing: {after.reason}", verified=verified)
        flags = self._evidence(op, case, measured) + restored_settings(provider.restored)
        damning = next((flag for flag in flags if flag.name in INVALID_FLAGS), None)
        if provider.name == "torch" and damning is None:
            self._estimator.learn(op, case, measured.samples.median_s)
        return replace(
            filled(blank, measured, flags),
            status="ok" if damning is None else "invalid",
            reason=None if damning is None else damning.reason,
            first_call_s=first_call_s,
            verified=verified,
            copies=rotation.copies,
            source_sha256=provider.source_sha256,
            compiled=provider.compile_options(case.dtype),
        )

    def _failed(self, row: Row, blank: Record, error: Exception) -> Record:
        """Return the record of a row that raised."""
        return replace(blank, status="failed", reason=one_line(error) + user_line(row.provider, error))

    def _job(self, row: Row) -> Job:
        """Return a row as a worker is asked for it."""
        return Job(
            family=self._family,
            ops=(row.op.name,),
            provider=row.provider,
            device=self._device,
            case=row.case,
            settings=self._settings,
            limits=self._limits,
            deadline=self._deadline,
            ceilings=self._ceilings,
        )

    def _watch(self, op: Op, case: Case, provider: Provider) -> Watch:
        """Return how the calls of a provider are checked."""
        if not is_user_kernel(provider.name):
            return Watch(op, case, self._device, self._settings.fill)
        restore = ProcessSettings.now().restore
        return ForeignWatch(op, case, self._device, self._settings.fill, provider.takes_out, restore)

    def _input_sets(self, op: Op, case: Case, copies: int) -> list[inputs.InputSet]:
        """Return the copies of the inputs that the launches of a case go round."""
        filler = inputs.Filler(self._settings.fill, case.dtype, self._device, self._settings.seed)
        return inputs.make_sets(op, case, filler, self._device, copies)

    def _rotation(self, op: Op, case: Case) -> inputs.Rotation:
        """Return how many copies of the inputs the launches of a case go round."""
        device, size_bytes = self._device, op.work(case).bytes
        return inputs.plan_rotation(
            size_bytes, device.cache_bytes, device.free_bytes(), device.type, self._settings.cache
        )

    def _evidence(self, op: Op, case: Case, measured: Measurement) -> tuple[Flag, ...]:
        """Return what speaks against a measurement."""
        work, device = op.work(case), self._device
        context = Context(
            is_gpu=device.has_cuda,
            asked_cache=self._settings.cache,
            tick_s=self._meter.tick_s,
            host_launch_s=measured.host_launch_s,
            target_half_width=self._limits.target_half_width,
            flops=work.flops,
            bytes_moved=work.bytes,
            cache_bytes=device.cache_bytes,
            warm_s=measured.warm_s,
            **roofs_of(self._ceilings, case.dtype, work),
            telemetry=measured.telemetry,
            tail_s=measured.tail_s,
        )
        return flags_of(measured.samples, context)

    def _too_long(self, op: Op, case: Case) -> str | None:
        """Return why a case does not fit the time that is left, with the estimate, or None."""
        allowance_s, limit = CASE_ALLOWANCE_S, f"the {CASE_ALLOWANCE_S:g} s that a case may take"
        if self._deadline is not None:
            allowance_s = self._deadline - time.perf_counter()
            if allowance_s <= 0:
                return f"the budget of {self._settings.budget_s:g} s is spent"
            limit = f"the {plain(allowance_s, 2)} s that are left"
        spent_s = (self._settings.budget_s or allowance_s) - allowance_s
        call_s = self._estimator.call_s(op, case)
        case_s = (call_s or 0.0) * CALLS_PER_CASE * (1 if self._deadline is None else self.together)
        case_s += PREPARE_S_PER_BYTE[self._device.type] * self._rotation(op, case).copies * op.work(case).bytes
        if case_s <= allowance_s:
            return None
        estimated = (f"{plain(call_s, 2)} s a launch and " if call_s else "") + f"{plain(case_s, 2)} s for the case"
        enough = math.ceil(spent_s + case_s * 1.5)  # rounded down it could be less than the budget that did not do
        return f"estimated {estimated}, more than {limit}; --budget {enough} would allow it"


def release(device: Device) -> None:
    """Give back what a row's tensors held, so that the next row finds what is really free."""
    if device.is_gpu:
        import torch

        (torch.cuda if device.has_cuda else torch.mps).empty_cache()


def restored_settings(restored: tuple[str, ...]) -> tuple[Flag, ...]:
    """Return the flag of a user's file that changed settings while it was imported; they were set back."""
    if not restored:
        return ()
    advice = "it was measured with the settings of all other rows; a setting that it needs belongs to the call"
    return (Flag("settings-restored", f"importing the file changed {', '.join(restored)}, which was set back", advice),)


def user_line(provider: str, error: BaseException) -> str:
    """Return the line of a user's file that an error came through, ` (line N)`, or nothing."""
    return line_in(error, find(provider).file) if is_user_kernel(provider) else ""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory ran out: Python's own, torch's allocators', CUDA's or cuBLAS's."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: BaseException) -> str:
    """Return the class and the first line of an error, short enough for a table."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200]
