"""The measurement of one row by the protocol: inputs, verify, warm up, sample, verify again, flags.

Whatever goes wrong with one row stays with that row: it is kept as `skipped`, `invalid` or `failed`, with the reason,
and the run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.harness import worker
from bench.harness.data.checks import Checks, ReplayCheck, UserChecks
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.measure.errors import failed
from bench.harness.measure.flags import Flag, recorded
from bench.harness.measure.rows import Row, out_of_time, rotation_of
from bench.harness.measure.samples import take_samples
from bench.harness.providers.registry import Provider, ProviderUnavailableError, load, numerics
from bench.harness.providers.user_kernel import is_user_kernel
from bench.harness.timing.protocol import Limits, Samples, limits_of
from results.record import Record
from roofline.ceilings import Ceilings

if TYPE_CHECKING:
    from bench.harness.op import Launch


def measure_row(
    row: Row,
    device: Device,
    ceilings: Ceilings | None = None,
    limits: Limits | None = None,
    deadline: float | None = None,
    rows_left: int = 1,
) -> Record:
    """Return the record of a row, whatever becomes of it; `passed_over` names who rejected it before a stand-in.

    Args:
        row: the row.
        device: the device under test.
        ceilings: what the row is evaluated against; None: nothing.
        limits: when to stop sampling; by default what suits the device.
        deadline: reading of `time.perf_counter` when the budget is spent.
        rows_left: rows that share the time until the deadline, this one among them.
    """
    if row.refused is not None:
        return row.refused
    passed_over: dict[str, str] = {}
    errors = BaseException if is_user_kernel(row.provider) else Exception
    for provider in (row.provider, *row.stand_ins):
        candidate = replace(row, provider=provider)
        try:
            record = _protocol(candidate, device, ceilings, limits, deadline, rows_left)
        except ProviderUnavailableError as error:
            passed_over[provider] = str(error)
            continue
        except errors as error:
            record = failed(candidate, error)
        finally:
            release(device)
        return replace(record, passed_over=passed_over) if passed_over else record
    return replace(row.blank(), reason=passed_over[row.provider])


def _protocol(
    row: Row, device: Device, ceilings: Ceilings | None, limits: Limits | None, deadline: float | None, rows_left: int
) -> Record:
    ready = prepare(row, device, deadline)
    if isinstance(ready, Record):
        return ready
    left_s = None
    if deadline is not None:
        left_s = deadline - time.perf_counter()
        left_s = min(left_s / rows_left, max(0.0, left_s - ready.check_s))
    limits = limits or limits_of(device)
    with numerics(row.case.dtype):
        samples = take_samples(
            ready.calls,
            ready.cache,
            device,
            limits,
            row.op.work(row.case).flops,
            left_s,
            ready.prepared_s,
            ready.replay,
        )
    return finish(ready, samples, device, ceilings)


@dataclass(frozen=True)
class Ready:
    """A row whose inputs are made and whose first result is right."""

    row: Row
    provider: Provider
    checks: Checks
    sets: Sequence[InputSet]
    calls: Sequence[Callable[[], object]]
    """A call for each copy of the inputs."""
    cache: str
    """`cold`, `warm` or `partly-cold`, what launches that rotate through the calls find."""
    replay: ReplayCheck | None
    """Verifies a CUDA graph of the calls; None on a CPU."""
    before: CheckResult
    earlier: Launch | None
    """The first launch, for an op whose results must differ."""
    first_call_s: float
    prepared_s: float
    """Time to make and check inputs and results, before and after the timing."""
    check_s: float
    """The part of that which comes after the timing."""


def prepare(
    row: Row, device: Device, deadline: float | None = None, copies: tuple[Sequence[InputSet], str] | None = None
) -> Ready | Record:
    """Make the inputs, call the provider and verify its result; return the row's record if the row ends here.

    Args:
        row: the row.
        device: the device under test.
        deadline: reading of `time.perf_counter` when the budget is spent.
        copies: what `make_copies` returned, by default made here.

    Raises:
        ProviderUnavailableError: the provider cannot take the case.
        Exception: whatever its code raises.
    """
    worker.announce()
    provider = load(row.provider, row.op, row.family, device)
    worker.rest()
    if provider.tolerance != 1:
        row = replace(row, op=replace(row.op, tolerance=row.op.tolerance * provider.tolerance))
    with numerics(row.case.dtype):
        begin = time.perf_counter()
        sets, cache = copies or make_copies(row, device)
        calls = [provider.call(data) for data in sets]
        checks = checks_of(row, device, provider)
        checking = time.perf_counter()
        try:
            before = checks.check(calls[0], sets[0])
        except provider.refuses_with as error:
            raise ProviderUnavailableError(str(error)) from None
    if not before.is_right:
        return replace(row.blank(), status="invalid", reason=before.reason, verified={"before": before.to_dict()})
    ready = time.perf_counter()
    check_s = ready - checking - checks.call_s
    if deadline is not None and ready + check_s > deadline:
        return replace(row.blank(), reason=out_of_time(row.settings.budget_s))
    return Ready(
        row=row,
        provider=provider,
        checks=checks,
        sets=sets,
        calls=calls,
        cache=cache,
        replay=ReplayCheck(row.op, row.case, sets) if device.is_gpu else None,
        before=before,
        earlier=(sets[0].inputs, checks.result) if row.op.check_result else None,
        first_call_s=checks.call_s,
        prepared_s=ready - begin + check_s,  # it is checked once more at the end
        check_s=check_s,
    )


def make_copies(row: Row, device: Device) -> tuple[list[InputSet], str]:
    """Return copies of the inputs and outputs of a row, and what launches that rotate through them find: `cold`,
    `warm` or `partly-cold`.
    """
    settings, rotation = row.settings, rotation_of(row, device)
    filler = Filler(settings.fill, row.case.dtype, device, settings.seed)
    return make_sets(row.op, row.case, filler, device, rotation.copies), rotation.cache


def checks_of(row: Row, device: Device, provider: Provider) -> Checks:
    if is_user_kernel(provider.name):
        return UserChecks(row.op, row.case, device, row.settings.fill, provider.takes_out)
    return Checks(row.op, row.case, device)


def finish(ready: Ready, samples: Samples, device: Device, ceilings: Ceilings | None) -> Record:
    """Verify the result again, on another copy of the inputs than before, and return the record with its flags."""
    row, provider, sets = ready.row, ready.provider, ready.sets
    worker.rest()
    last = len(sets) - 1 - row.settings.seed % max(1, len(sets) - 1)
    with numerics(row.case.dtype):
        replayed = ready.replay.after() if ready.replay else None
        after = ready.checks.last(ready.calls[last], sets[last], ready.earlier)
    if after.is_right and replayed is not None and not replayed.is_right:
        after = replace(replayed, reason=f"a replay of the timed graph: {replayed.reason}")
    verified = {"before": ready.before.to_dict(), "after": after.to_dict()}
    if not after.is_right:
        return replace(row.blank(), status="invalid", reason=f"after timing: {after.reason}", verified=verified)
    also = (
        *restored_settings(provider.restored),
        *beyond_rounding(after.max_error_of_bound),
        *interpreted(provider.function),
    )
    return replace(
        recorded(row.blank(), samples, device, ceilings, row.settings.cache, also),
        first_call_s=ready.first_call_s,
        verified=verified,
        copies=len(sets),
        source_sha256=provider.source_sha256,
        compiled=provider.compile_options(row.case.dtype),
    )


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
    if not error_of_bound > 1:
        return ()
    reason = f"the result is {error_of_bound:.3g} times further off than rounding explains; --tolerance allowed it"
    return (Flag("beyond-rounding", reason, "say so where the time is reported: it is that of another accuracy"),)
