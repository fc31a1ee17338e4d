"""The measurement of one row: make the inputs, verify, warm up, sample, verify again, set flags.

An error costs its own row only: the record is `skipped`, `invalid` or `failed`, with the reason,
and the run goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from bench.harness import clock
from bench.harness.data.agreement import fresh, renew
from bench.harness.data.inputs import COLD_CACHES, Filler, InputSet, make_sets
from bench.harness.data.replay import ReplayCheck
from bench.harness.data.verify import CheckResult, Checks
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, row_telemetry, snapshot
from bench.harness.measure.flags import Flag, disturbance, of_check, of_settings, recorded
from bench.harness.measure.rows import Row, failed, out_of_time, rotation_of
from bench.harness.op_file import is_own
from bench.harness.providers.registry import (
    Provider,
    ProviderUnavailableError,
    is_user_kernel,
    load,
    numerics,
)
from bench.harness.timing import protocol, samplers
from bench.harness.timing.protocol import LIMITS, Limits, Sampler, Samples, collect, settle
from results.record import Record, name_of
from results.stats.samples import two_modes
from roofline.machine import Machine

if TYPE_CHECKING:
    from bench.harness.op import Launch

WARM_LIMITS = Limits(10, 0.02, 0.0, 0.15, 0.0, 1e-3)
"""Limits of the warm time of a cold row. It only shows whether cold made a difference, so a few
samples are enough.
"""

WARM_CAP_S = 0.5
"""No warm time is measured if the minimum number of samples would take longer."""

LONG_LAUNCH_S = 1e-3
"""Launches that are sampled for at least `Limits.sampling_ratio`."""

AGAIN_SHARE = 0.3
"""Share of the warm-up before the samples of a later visit, whose kernels are loaded."""

KEPT_SHARE = 0.25
"""Maximum share of the free memory for what rows keep between their visits."""

MAX_REPEATS = 3
"""Maximum repetitions of a noisy measurement, within its time limit; the last one is kept with its
flag.
"""


def measure_row(
    row: Row,
    device: Device,
    ceilings: Machine | None = None,
    limits: Limits | None = None,
    deadline: float = math.inf,
    rows_left: int = 1,
    kept: Kept | None = None,
) -> Record:
    """Return the record of a row; its `passed_over` has the providers that rejected the case before
    a stand-in.

    `limits` are by default those of the device. `deadline` is the reading of `clock.now`
    when the budget is spent; `rows_left` rows share the time until then. `kept` has what earlier
    visits left for this one.
    """
    if row.refused is not None:
        return row.refused
    device.use()
    name = name_of(row.blank())
    passed_over: dict[str, str] = {}
    errors = BaseException if is_user_kernel(row.provider) else Exception
    for provider in (row.provider, *row.stand_ins):
        candidate = replace(row, provider=provider)
        try:
            again = kept.ready.get(name) if kept else None
            if again and not device.is_gpu:
                again.move()
            ready = again or prepare(candidate, device, deadline)
            if isinstance(ready, Record):
                record = ready
            else:
                left_s = deadline - clock.now()
                left_s = min(left_s / rows_left, max(0.0, left_s - ready.check_s))
                until = limits or LIMITS[device.type]
                flops = row.op.work(row.case).flops
                with numerics(row.case.dtype):
                    samples = take_samples(
                        ready.calls,
                        ready.cache,
                        device,
                        until,
                        flops=flops,
                        left_s=left_s,
                        prepared_s=ready.prepared_s,
                        replay=ready.replay,
                        before=ready.restore,
                        earlier=ready.samples,
                    )
                record = finish(ready, samples, device, ceilings)
                if kept is not None and record.status == "ok":
                    ready.samples = samples
                    kept.add(name, ready)
        except ProviderUnavailableError as error:
            passed_over[provider] = str(error)
            continue
        except errors as error:
            record = failed(candidate, error)
        finally:
            if device.is_gpu:
                release(device)
        return replace(record, passed_over=passed_over) if passed_over else record
    return replace(row.blank(), reason=passed_over[row.provider])


@dataclass
class Ready:
    """A row with its inputs and a verified first result."""

    row: Row
    provider: Provider
    checks: Checks
    sets: list[InputSet]
    calls: list[samplers.Call]
    """A call for each copy of the inputs."""
    cache: str
    """`cold`, `warm` or `partly-cold`, if launches rotate through the calls."""
    before: CheckResult
    first: Launch | None
    """The first launch, if the op's own check compares others with it."""
    prepared_s: float
    """Time to make and check inputs and results, before and after the timing."""
    check_s: float
    """The part of `prepared_s` after the timing."""
    restore: samplers.Call | None
    """Restores the inputs that the provider may change."""
    replay: ReplayCheck
    samples: Samples | None = None
    """Those of the last visit."""

    def move(self) -> None:
        """Move the copies to other memory, whose place changes the time of a launch by a few
        percent: the visits then show the spread between runs. On a GPU, a graph has the addresses.
        """
        self.sets = [
            InputSet(tuple(x.clone() for x in data.inputs), data.out.clone()) for data in self.sets
        ]
        self.calls = [self.provider.call(data) for data in self.sets]
        if self.restore:
            self.restore = restoring(self.sets)


@dataclass
class Kept:
    """What rows keep for their next visit: copies, compiled function, graph, and a right result.

    They take at most `KEPT_SHARE` of the memory that was free at first, `free_bytes`.
    """

    free_bytes: int
    ready: dict[str, Ready] = field(default_factory=dict)
    """By the name of the row."""

    def make_room(self, row: Row, device: Device) -> None:
        """Drop all if the memory may be too short for the copies of a row that is not kept."""
        copies_bytes = COLD_CACHES[device.type] * device.cache_bytes
        copies_bytes += 2 * row.op.work(row.case).bytes
        is_kept = name_of(row.blank()) in self.ready
        if not is_kept and device.free_bytes() < copies_bytes / KEPT_SHARE:
            self.ready.clear()

    def add(self, name: str, ready: Ready) -> None:
        """Keep a row, unless its checks write new contents into its inputs."""
        total_bytes = 0
        for each in (*self.ready.values(), ready):  # the copies, and as many results
            total_bytes += 2 * len(each.sets) * each.row.op.work(each.row.case).bytes
        is_small = total_bytes <= KEPT_SHARE * self.free_bytes
        if is_small and name not in self.ready and type(ready.checks) is Checks:
            ready.checks.remember()
            self.ready[name] = ready


def prepare(
    row: Row,
    device: Device,
    deadline: float = math.inf,
    copies: tuple[list[InputSet], str] | None = None,
) -> Ready | Record:
    """Make the inputs, call the provider and verify its result; return the row's record if the row
    ends here.

    `copies` are those that `make_copies` returned, by default made here.

    Raises:
        ProviderUnavailableError: the provider rejects the case.
    """
    from bench.harness.data import stress

    protocol.announce()
    provider = load(row.provider, row.op, row.family, device)
    protocol.announce(runs=False)
    if provider.tolerance != 1:
        row = replace(row, op=replace(row.op, tolerance=row.op.tolerance * provider.tolerance))
    op = row.op
    case = row.case
    with numerics(case.dtype):
        begin = clock.now()
        sets, cache = copies or make_copies(row, device)
        calls = [provider.call(data) for data in sets]
        is_in_place = row.settings.in_place or op.in_place
        restore = restoring(sets) if is_in_place else None
        if is_user_kernel(provider.name) or is_own(row.family):
            from bench.harness.data.checks import UserChecks

            checks: Checks = UserChecks(
                op,
                case,
                device,
                row.settings.fill,
                provider.takes_out,
                is_in_place,
                calls,
                row.is_again,
            )
        else:
            checks = Checks(op, case, device)
        checking = clock.now()
        try:
            if row.is_again:
                before = CheckResult(checks.run(calls[0], sets[0]))
            else:
                before = checks.check(calls[0], sets[0])
            check_s = clock.now() - checking - checks.call_s
            if before.is_right:  # in each visit: another process may choose another algorithm
                before = replace(before, reason=stress.problem(checks, calls[0], sets[0]))
        except provider.refuses_with as error:
            raise ProviderUnavailableError(str(error)) from None
    if not before.is_right:
        return replace(
            row.blank(),
            status="invalid",
            reason=before.reason,
            verified={"before": before.to_dict()},
        )
    ready = clock.now()
    if ready + check_s > deadline:
        return replace(
            row.blank(), reason=out_of_time(row.settings.budget_s, ready + check_s - deadline)
        )
    return Ready(
        row=row,
        provider=provider,
        checks=checks,
        sets=sets,
        calls=calls,
        cache=cache,
        before=before,
        first=(sets[0].inputs, checks.result) if op.check_result else None,
        prepared_s=ready - begin + check_s,  # it is checked once more at the end
        check_s=check_s,
        restore=restore,
        replay=ReplayCheck(calls),
    )


def restoring(sets: Sequence[InputSet]) -> samplers.Call:
    """Return a call that writes the inputs of the first set into all."""
    inputs = [data.inputs for data in sets]
    first = fresh(inputs[0])
    return partial(renew, inputs, lambda: first)


def make_copies(row: Row, device: Device) -> tuple[list[InputSet], str]:
    """Return copies of the inputs and outputs of a row, and their cache state: `cold`, `warm` or
    `partly-cold`.
    """
    settings = row.settings
    rotation = rotation_of(row, device)
    filler = Filler(settings.fill, row.case.dtype, device, settings.seed)
    return make_sets(row.op, row.case, filler, device, rotation.copies), rotation.cache


def finish(
    ready: Ready,
    samples: Samples,
    device: Device,
    ceilings: Machine | None,
) -> Record:
    """Verify the result again, on another copy of the inputs, and return the record with its
    flags.
    """
    row = ready.row
    provider = ready.provider
    sets = ready.sets
    checks = ready.checks
    first_call_s = checks.call_s
    protocol.announce(runs=False)
    last = len(sets) - 1 - row.settings.seed % max(1, len(sets) - 1)
    interpreted()  # forgets the kernels of other rows
    with numerics(row.case.dtype):
        problem = ready.replay.after() if ready.replay.graph else None
        peak_bytes = device.peak_bytes(ready.calls[0]) if row.settings.peak_memory else None
        if ready.restore:
            ready.restore()
        after = checks.last(ready.calls[last], sets[last], ready.first, samples)
    if after.is_right and problem is not None:
        after = replace(after, reason=f"a replay of the timed graph: {problem}")
    verified = {"after": after.to_dict()}
    if not row.is_again:
        verified["before"] = ready.before.to_dict()
    if not after.is_right:
        return replace(
            row.blank(), status="invalid", reason=f"after timing: {after.reason}", verified=verified
        )
    also = [*interpreted(), *of_settings(provider.restored, "importing the file")]
    also += of_check(after, "--tolerance")
    return replace(
        recorded(row.blank(), samples, device, ceilings, row.settings.cache, also),
        first_call_s=first_call_s,
        peak_memory_bytes=peak_bytes,
        verified=verified,
        copies=len(sets),
        source_sha256=provider.source_sha256,
    )


def interpreted() -> tuple[Flag, ...]:
    """Return a flag if Triton's interpreter has run a kernel since the last call of this
    function.
    """
    module = sys.modules.get("triton.runtime.interpreter")
    # Each launch sets it.
    if module is None or vars(module.interpreter_builder).pop("grid_dim", None) is None:
        return ()
    reason = (
        "Triton's interpreter ran the kernel on the CPU: its result is verified, its time is "
        "meaningless"
    )
    return (Flag("interpreted", reason, "time it on a GPU, without TRITON_INTERPRET"),)


def release(device: Device) -> bool:
    """Free cached GPU memory; return whether this process can still use the device.

    After an illegal access every CUDA call raises the error again.
    """
    if device.is_gpu:
        import torch

        try:
            device.synchronize()
            torch.cuda.empty_cache()
        except (RuntimeError, AssertionError):  # a build of torch without CUDA asserts
            return False
    return True


def take_samples(
    calls: Sequence[samplers.Call],
    cache: str,
    device: Device,
    limits: Limits,
    flops: int | None = None,
    left_s: float = math.inf,
    prepared_s: float = 0.0,
    replay: ReplayCheck | None = None,
    is_capturable: bool = True,
    before: samplers.Call | None = None,
    earlier: Samples | None = None,
) -> Samples:
    """Warm up, sample, and measure the same launches warm and from the host.

    Args:
        calls: one call for each copy of the inputs.
        cache: `cold`, `warm` or `partly-cold`, if launches rotate through the calls.
        device: the device under test.
        limits: when to stop sampling.
        flops: of one launch, for FLOP/J.
        left_s: time limit of sampling, besides that of `limits`, and of the warm-up.
        prepared_s: time to make and check inputs and results; long launches are sampled for a
            multiple of it.
        replay: verifies what a CUDA graph of the calls writes, before it is timed.
        is_capturable: whether to try a CUDA graph; capturing torch's optimizers and backward passes
            may fail halfway.
        before: renews the inputs of all calls before each sample, untimed.
        earlier: those of an earlier visit, whose sampler goes on.
    """
    protocol.announce()
    begin = clock.now()
    poller = Poller(device) if device.is_gpu else None
    host_launch_s = None
    host_latency_s = None
    if earlier is None:
        refusal = replay.refusal if replay else None
        sampler = samplers.make_sampler(
            calls, device, limits, is_capturable, refusal, poller, before
        )
        settling = settle(sampler.sample, limits, left_s=left_s)
        is_settled = settling.settled
        overhead_s = prepared_s
        if device.is_gpu and before is None:  # before the samples, the last steps of training
            host_launch_s = samplers.host_launch_s(calls, device.synchronize)
            host_latency_s = samplers.host_latency_s(calls, device.synchronize)
        if cache == "cold":
            overhead_s += WARM_LIMITS.cap_s
    else:
        sampler = earlier.sampler or samplers.HostSampler(
            calls, earlier.launches_per_sample, before
        )
        sampler.reading = poller
        warm_up_s = AGAIN_SHARE * limits.warm_up_s
        settling = settle(
            sampler.sample, replace(limits, warm_up_s=warm_up_s, warm_up_cap_s=warm_up_s)
        )
        is_settled = bool(earlier.settled)
        overhead_s = earlier.overhead_s
        host_launch_s = earlier.host_launch_s
        host_latency_s = earlier.host_latency_s
    launch_s = settling.seconds / settling.launches / sampler.launches_per_sample
    overhead_s += clock.now() - begin
    if device.is_gpu:
        overhead_s -= settling.seconds  # during which the launches run too
    until = sampling_limits(limits, device, launch_s, overhead_s, left_s)
    samples = undisturbed(sampler, device, until, cache, flops, poller)
    if not device.is_gpu:  # a call returns when its result is finished
        host_launch_s = host_latency_s = samples.median_s
    if earlier is not None:
        warm_s = earlier.warm_median_s
    else:
        warm_s = None if before else warm_median_s(calls, samples, device)
    return replace(
        samples,
        settled=is_settled,
        warm_median_s=warm_s,
        host_launch_s=host_launch_s,
        host_latency_s=host_latency_s,
        tick_s=samplers.tick_s(device),
        sampler=sampler if device.is_gpu else None,  # on a CPU the copies move
        overhead_s=overhead_s,
        why_no_graph=sampler.why_no_graph,
        is_single=before is not None and len(calls) == 1,
    )


def sample_steps(
    step: samplers.Call,
    cache: str,
    device: Device,
    left_s: float = math.inf,
    launches_per_sample: int = 1,
) -> Samples:
    """Time a step by the host's clock, because it includes work of the host.

    `step` returns when all its launches have finished. `left_s` limits the time of warm-up and
    sampling.
    """
    sampler = samplers.HostSampler([step], launches_per_sample)
    limits = LIMITS[device.type]
    settling = settle(sampler.sample, limits, left_s=left_s)
    until = sampling_limits(limits, device, 0.0, left_s=left_s)
    samples = undisturbed(sampler, device, until, cache)
    return replace(
        samples,
        settled=settling.settled,
        host_launch_s=samples.median_s,
        host_latency_s=samples.median_s,
        tick_s=samplers.tick_s(device),
    )


def sampling_limits(
    limits: Limits,
    device: Device,
    launch_s: float,
    overhead_s: float = 0.0,
    left_s: float = math.inf,
) -> Limits:
    """Return the limits for launches of about `launch_s` seconds, in a row that takes `overhead_s`
    besides sampling.
    """
    if launch_s >= LONG_LAUNCH_S:
        min_s = max(limits.min_time_s, limits.sampling_ratio * overhead_s / limits.visits)
        if device.is_gpu:
            min_s = min(min_s, limits.cap_s)
        limits = replace(limits, min_time_s=min_s, cap_s=max(limits.cap_s, min_s))
    cap_s = min(limits.cap_s, max(0.0, left_s))
    return replace(limits, cap_s=cap_s, min_time_s=min(limits.min_time_s, cap_s))


def undisturbed(
    sampler: Sampler,
    device: Device,
    limits: Limits,
    cache: str,
    flops: int | None = None,
    poller: Poller | None = None,
) -> Samples:
    """Return samples and telemetry, measured again if heat, a quota or other processes took time.

    On a CPU also if the samples have two speeds, as when another process starts or ends. The last
    measurement counts; `repeats` in the telemetry is the number of repetitions.
    """
    end = clock.now() + limits.cap_s
    for repeats in range(MAX_REPEATS + 1):
        before = snapshot(device)
        if poller:
            poller.begin()
        if protocol.report:
            protocol.report(0.0, 0)
        begun_s = sampler.untimed_s
        samples = collect(sampler, limits, cache)
        if protocol.report and not device.is_gpu:
            protocol.report(samples.total_s + sampler.untimed_s - begun_s, len(samples.samples_s))
        launches = len(samples.samples_s) * samples.launches_per_sample
        polled = []
        if poller:
            launches += poller.launches
            polled = poller.readings
        telemetry = row_telemetry(
            before, snapshot(device), launches=launches, flops=flops, polled=polled
        )
        telemetry["repeats"] = repeats
        has_two_speeds = not device.is_gpu and two_modes(samples.samples_s) is not None
        is_disturbed = has_two_speeds or disturbance(telemetry, device.is_gpu) is not None
        if not is_disturbed or clock.now() >= end:
            break
    return replace(samples, telemetry=telemetry)


def warm_median_s(calls: Sequence[samplers.Call], cold: Samples, device: Device) -> float | None:
    """Return the median seconds of a warm launch to compare with a cold one; None if it would take
    too long.
    """
    if cold.cache != "cold" or cold.median_s * WARM_LIMITS.fewest_samples > WARM_CAP_S:
        return None
    sampler = samplers.make_sampler(calls[:1], device, WARM_LIMITS, cold.method == "graph")
    sampler.sample()
    return collect(sampler, WARM_LIMITS, "warm").median_s
