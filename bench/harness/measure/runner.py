"""The measurement of a row in three steps: `prepare` makes and verifies, `time` measures, `finish` verifies again.

Whatever goes wrong with one row stays with that row: it is kept as `skipped`, `invalid` or `failed`, with the reason,
and the run goes on.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import worker
from bench.harness.data import inputs, verify
from bench.harness.data.checks import Checks, UserChecks
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.measure.cost import CALLS_PER_CASE, CostEstimator
from bench.harness.measure.evidence import Flag
from bench.harness.measure.finish import finished
from bench.harness.measure.meter import Measurement, Meter
from bench.harness.measure.plan import Row, Settings, blank_record, out_of_time, plain
from bench.harness.op import Case, Op
from bench.harness.op_file import line_in
from bench.harness.providers.registry import Provider, ProviderUnavailableError, load, numerics
from bench.harness.providers.user_kernel import UserKernelError, find, is_user_kernel, left_by
from bench.harness.timing.protocol import Limits
from results.record import Record
from roofline.ceilings import Ceilings

if TYPE_CHECKING:
    from bench.harness.op import Launch

CASE_ALLOWANCE_S = 10.0
"""Time that one case may take where no budget is given; a larger budget allows more."""

PREPARE_S_PER_BYTE = {"cpu": 2e-9, "cuda": 1e-10, "rocm": 1e-10}
"""Seconds to fill, copy and check the inputs of a case, per byte of all copies. A CPU: as measured on two cores. A GPU:
at 1 TB/s, with a hundred bytes moved for each, most of them for the fp64 reference."""

LEAST_ROW_S = 0.7
"""Seconds that the smallest row takes outside of its samples: settling, warm launches, latency, loading the kernel."""

CHECK_S_PER_BYTE = 3e-8
"""Time to check the result twice on a processor, per byte of one set of inputs and outputs, as two cores take it."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """A row that is ready for the clock: its inputs made, its first result verified."""

    row: Row
    blank: Record
    provider: Provider
    checks: Checks
    sets: Sequence[inputs.InputSet]
    calls: Sequence[Call]
    """A call for each copy of the inputs."""
    cache: str
    """`cold`, `warm` or `partly-cold`, what launches going round the calls find."""
    before: verify.CheckResult
    earlier: Launch | None
    """The first launch, for an op whose results must differ."""
    first_call_s: float
    prepared_s: float
    """Time that making and checking inputs and results takes, before and after the timing."""
    check_s: float
    """The part of that which comes after the timing."""


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
        meter: Meter | None = None,
    ) -> None:
        """Prepare; nothing is allocated yet.

        Args:
            family: the op file's name, where Triton versions are looked for.
            device: the device under test.
            settings: fill, cache, budget, seed.
            estimator: guesses the time of a case before it runs; None: every case is short.
            limits: when to stop sampling; by default what suits the device.
            deadline: reading of `time.perf_counter` after which no further case is started.
            ceilings: what the machine can do at most, so that what it cannot do is found.
            meter: measures the calls; by default one with these limits.
        """
        self._family, self._device, self._settings = family, device, settings
        self._estimator, self._deadline, self._ceilings = estimator, deadline, ceilings
        self._meter = meter or Meter(device, limits)

    def measure(self, row: Row, rows_left: int = 1) -> Record:
        """Return the record of one row, whatever becomes of it; `passed_over` says who refused it before a stand-in.

        Args:
            row: the row.
            rows_left: rows that the time until the deadline is for, this one among them.
        """
        if row.refused is not None:
            return row.refused
        passed_over: dict[str, str] = {}
        errors = BaseException if is_user_kernel(row.provider) else Exception
        for provider in (row.provider, *row.stand_ins):
            one = replace(row, provider=provider)
            try:
                prepared = self.prepare(one)
                if isinstance(prepared, Record):
                    record = prepared
                else:
                    record = self.finish(prepared, self.time(prepared, rows_left))
            except ProviderUnavailableError as error:
                passed_over[provider] = str(error)
                continue
            except errors as error:
                record = self.ended(one, error)
                if record.status == "failed" and is_user_kernel(one.provider):
                    print_user_traceback(one.provider, error)
            finally:
                release(self._device)
            return replace(record, passed_over=passed_over) if passed_over else record
        return replace(self.blank(row), reason=passed_over[row.provider])

    def blank(self, row: Row) -> Record:
        """Return the record of a row with nothing measured."""
        return blank_record(row.op, row.case, row.provider, self._settings)

    def refused(self, row: Row, together: int = 1) -> Record | None:
        """Return the record of a row that is not to be started: it cannot run, or not in the time that is left.

        Args:
            row: the row.
            together: providers whose calls the estimate is for, where several are measured at once.
        """
        if row.refused is not None:
            return row.refused
        try:
            too_long = self._too_long(row.op, row.case, together)
        except Exception as error:
            return self.ended(row, error)
        return None if too_long is None else replace(self.blank(row), reason=too_long)

    def ended(self, row: Row, error: BaseException) -> Record:
        """Return the record of a row that an error ended."""
        blank = self.blank(row)
        if isinstance(error, ProviderUnavailableError):
            return replace(blank, reason=str(error))
        if is_out_of_memory(error):
            return replace(blank, reason="out of memory")
        if isinstance(error, UserKernelError):  # its text is a sentence
            return replace(blank, status="failed", reason=str(error))
        what = left_by(error) if isinstance(error, SystemExit) else one_line(error)
        return replace(blank, status="failed", reason=what + user_line(row.provider, error))

    def expected_s(self, row: Row) -> float:
        """Return what a row that can run is expected to take beside its samples, seconds; roughly."""
        calls_s = 0.0
        if self._estimator is not None:
            with suppress(Exception):  # the row itself will say why
                calls_s = self._estimator.case_s(row.op, row.case)
        size_bytes, copies = row.op.work(row.case).bytes, self._rotation(row.op, row.case).copies
        check_s_per_byte = 0.0 if self._device.is_gpu else CHECK_S_PER_BYTE
        prepare_s = (copies * PREPARE_S_PER_BYTE[self._device.type] + check_s_per_byte) * size_bytes
        return LEAST_ROW_S + calls_s + prepare_s

    def left_s(self, rows_left: int = 1) -> float | None:
        """Return the seconds that a row may take of the time that is left for so many; None without a deadline."""
        return None if self._deadline is None else (self._deadline - time.perf_counter()) / rows_left

    # ---- the three steps of a measurement ---------------------------------------------------------------------------

    def prepare(self, row: Row, together: int = 1) -> Prepared | Record:
        """Return a row ready for the clock, or its record where it ends here: no time for it, or a wrong result.

        Args:
            row: the row.
            together: as of `refused`.

        Raises:
            ProviderUnavailableError: the provider cannot take the case.
            Exception: whatever its code raises.
        """
        if (refused := self.refused(row, together)) is not None:
            return refused
        worker.announce()
        provider = load(row.provider, row.op, self._family, self._device)
        if provider.tolerance != 1:
            row = replace(row, op=replace(row.op, tolerance=row.op.tolerance * provider.tolerance))
        with numerics(row.case.dtype):
            worker.rest()
            return self._verified(row, provider, self._checks(row, provider))

    def _verified(self, row: Row, provider: Provider, checks: Checks) -> Prepared | Record:
        op, case, blank, begin = row.op, row.case, self.blank(row), time.perf_counter()
        rotation = self._rotation(op, case)
        sets = self._input_sets(op, case, rotation.copies)
        calls = [provider.call(data) for data in sets]
        checking = time.perf_counter()
        try:
            before = checks.first(calls[0], sets[0])
        except provider.refuses_with as error:
            raise ProviderUnavailableError(str(error)) from None
        first_call_s = checks.call_s
        if not before.is_right:
            return replace(blank, status="invalid", reason=before.reason, verified={"before": before.to_dict()})
        ready = time.perf_counter()
        check_s = ready - checking - first_call_s
        if self._deadline is not None and ready + check_s > self._deadline:
            return replace(blank, reason=out_of_time(self._settings.budget_s))
        return Prepared(
            row=row,
            blank=blank,
            provider=provider,
            checks=checks,
            sets=sets,
            calls=calls,
            cache=rotation.cache,
            before=before,
            earlier=(sets[0].inputs, checks.result) if op.check_result else None,
            first_call_s=first_call_s,
            prepared_s=ready - begin + check_s,  # it is checked once more at the end
            check_s=check_s,
        )

    def time(self, prepared: Prepared, rows_left: int = 1) -> Measurement:
        """Return what is measured of a prepared row, in its share of the time that is left for so many rows."""
        left_s = self.left_s(rows_left)
        if left_s is not None:
            left_s = min(left_s, max(0.0, left_s * rows_left - prepared.check_s))
        with numerics(prepared.row.case.dtype):
            return self._meter.measure(
                prepared.calls,
                prepared.cache,
                prepared.blank.flops,
                left_s,
                prepared.prepared_s,
                ReplayCheck(prepared.row.op, prepared.row.case, prepared.sets) if self._device.is_gpu else None,
            )

    def finish(self, prepared: Prepared, measured: Measurement) -> Record:
        """Return the record of a measured row: its result is verified again, on another copy than the first."""
        row, provider, sets, calls = prepared.row, prepared.provider, prepared.sets, prepared.calls
        worker.rest()
        last = len(sets) - 1 - self._settings.seed % max(1, len(sets) - 1)  # another copy than the first, if there is
        with numerics(row.case.dtype):
            after = prepared.checks.last(calls[last], sets[last], prepared.earlier)
        if after.is_right and measured.replayed is not None and not measured.replayed.is_right:
            after = replace(measured.replayed, reason=f"a replay of the timed graph: {measured.replayed.reason}")
        verified = {"before": prepared.before.to_dict(), "after": after.to_dict()}
        if not after.is_right:
            reason = f"after timing: {after.reason}"
            return replace(prepared.blank, status="invalid", reason=reason, verified=verified)
        also = (*restored_settings(provider.restored), *beyond_rounding(after.max_error_of_bound))
        also += interpreted(provider.function)
        record = finished(prepared.blank, measured, self._device, self._ceilings, self._settings.cache, also)
        if self._estimator is not None and provider.name == "torch" and record.status == "ok":
            self._estimator.learn(row.op, row.case, measured.samples.median_s)
        return replace(
            record,
            first_call_s=prepared.first_call_s,
            verified=verified,
            copies=len(sets),
            source_sha256=provider.source_sha256,
            compiled=provider.compile_options(row.case.dtype),
        )

    # ---- their parts ------------------------------------------------------------------------------------------------

    def _checks(self, row: Row, provider: Provider) -> Checks:
        if not is_user_kernel(provider.name):
            return Checks(row.op, row.case, self._device)
        return UserChecks(row.op, row.case, self._device, self._settings.fill, provider.takes_out)

    def _input_sets(self, op: Op, case: Case, copies: int) -> list[inputs.InputSet]:
        filler = inputs.Filler(self._settings.fill, case.dtype, self._device, self._settings.seed)
        return inputs.make_sets(op, case, filler, self._device, copies)

    def _rotation(self, op: Op, case: Case) -> inputs.Rotation:
        device, size_bytes = self._device, op.work(case).bytes
        return inputs.plan_rotation(
            size_bytes, device.cache_bytes, device.free_bytes(), device.type, self._settings.cache
        )

    def _too_long(self, op: Op, case: Case, together: int = 1) -> str | None:
        allowance_s, limit = CASE_ALLOWANCE_S, f"the {CASE_ALLOWANCE_S:g} s that a case may take"
        if self._deadline is not None:
            allowance_s = self._deadline - time.perf_counter()
            if allowance_s <= 0:
                return out_of_time(self._settings.budget_s)
            limit = f"the {plain(allowance_s, 2)} s that are left"
        spent_s = (self._settings.budget_s or allowance_s) - allowance_s
        call_s = None if self._estimator is None else self._estimator.call_s(op, case)
        case_s = (call_s or 0.0) * CALLS_PER_CASE * (1 if self._deadline is None else together)
        case_s += PREPARE_S_PER_BYTE[self._device.type] * self._rotation(op, case).copies * op.work(case).bytes
        if case_s <= allowance_s:
            return None
        estimated = (f"{plain(call_s, 2)} s a launch and " if call_s else "") + f"{plain(case_s, 2)} s for the case"
        enough = math.ceil(spent_s + case_s * 1.5)  # rounded down it could be less than the budget that did not do
        return f"estimated {estimated}, more than {limit}; --budget {enough} would allow it"


DEVICE_LOST = "not measured: after the error before, only a new process can use the GPU; run the command again"


def release(device: Device) -> bool:
    """Give back what a row's tensors held; return whether this process can still use the device.

    After an illegal access every call of CUDA raises that again.
    """
    if device.is_gpu:
        import torch

        try:
            device.synchronize()
            torch.cuda.empty_cache()
        except (RuntimeError, AssertionError):  # a build of torch without CUDA asserts
            return False
    return True


def interpreted(function: Callable[..., object]) -> tuple[Flag, ...]:
    """Return the flag of a function whose module has Triton kernels that run in the interpreter."""
    names = getattr(function, "__globals__", {}).values()
    if not any(type(one).__name__ == "InterpretedFunction" for one in names):
        return ()
    reason = "Triton's interpreter ran the kernel on the CPU: its result is checked, its time means nothing"
    return (Flag("interpreted", reason, "time it on a GPU, without TRITON_INTERPRET"),)


def restored_settings(restored: tuple[str, ...]) -> tuple[Flag, ...]:
    """Return the flag of a user's file that changed settings while it was imported; they were set back."""
    if not restored:
        return ()
    advice = "it was measured with the settings of all other rows; a setting that it needs belongs to the call"
    return (Flag("settings-restored", f"importing the file changed {', '.join(restored)}, which was set back", advice),)


def beyond_rounding(error_of_bound: float) -> tuple[Flag, ...]:
    """Return the flag of a result that is right by `--tolerance` alone."""
    if not error_of_bound > 1:
        return ()
    reason = f"the result is {error_of_bound:.3g} times further off than rounding explains; --tolerance allowed it"
    return (Flag("beyond-rounding", reason, "say so where the time is reported: it is that of another accuracy"),)


def user_line(provider: str, error: BaseException) -> str:
    """Return the line of a user's file that an error came through, ` (line N)`, or nothing."""
    return line_in(error, find(provider).file) if is_user_kernel(provider) else ""


def print_user_traceback(provider: str, error: BaseException) -> None:
    """Print the traceback of an error, from the user's file on if it came through it."""
    file, trace = find(provider).file, error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's own, torch's allocators', CUDA's or cuBLAS's."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: BaseException) -> str:
    """Return the class and the first line of an error, with the next where it ends in a colon, cut for a table."""
    if "0 active drivers" in str(error):
        return "a Triton kernel needs a GPU and there is none; with TRITON_INTERPRET=1 Triton's interpreter checks it"
    text, *more = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = f"{text} {more[0]}" if text.endswith(":") and more else text
    return f"{type(error).__name__}: {said}"[:200]
