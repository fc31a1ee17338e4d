"""Measuring a row: errors fail only that row, and a wrong result is never timed."""

import copy
import itertools
import math
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness import clock
from bench.harness.data import verify
from bench.harness.device.device import Device
from bench.harness.measure import measure_row as runner
from bench.harness.measure.measure_row import KEPT_SHARE, Kept, measure_row
from bench.harness.measure.rows import Row, Settings, is_out_of_memory, plan
from bench.harness.op import Case
from bench.harness.providers.registry import Provider, ProviderUnavailableError
from bench.harness.timing.protocol import Limits
from bench.matmul import OPS as MATMUL
from bench.matmul import OPTIONS
from results.record import Record
from results.store.runfile import encode_line
from roofline.machine import Ceiling, Machine
from tests.bench import commands
from tests.bench.fake_clock import set_clock

MATMUL_OP = MATMUL[0]
WITH_HARD_INPUTS = next(op for op in ELEMENTWISE if op.name == "add")
ADD = replace(WITH_HARD_INPUTS, stress={})
CPU = replace(commands.CPU, cache_bytes=2**12)
GPU = replace(commands.GPU, name="NVIDIA Test", compute_capability="9.0")
LIMITS = Limits(
    min_samples=5, target_half_width=1.0, min_time_s=0, cap_s=0.2, warm_up_s=0, min_sample_s=1e-6
)
CASE = Case("add", "fp32", {"n": 4096})
ROW = Row(WITH_HARD_INPUTS, CASE, "right", family="elementwise")
CASE_BYTES = 3 * 4096 * 4


def matmul_case(m, n, k, dtype="bf16", layout="nn", batch=1):
    return Case.of(
        "matmul", dtype, {"m": m, "n": n, "k": k}, OPTIONS, {"layout": layout, "batch": batch}
    )


@pytest.fixture
def providers(monkeypatch):
    """Return providers by name; each is `function(x, y, out)`, or an error that loading raises."""
    table = {"right": lambda x, y, out: torch.add(x, y, out=out)}

    def load(name, op, family, device):
        function = table[name]
        if isinstance(function, Exception):
            raise function
        return (
            function if isinstance(function, Provider) else Provider(name, function, takes_out=True)
        )

    monkeypatch.setattr(runner, "load", load)
    return table


@pytest.fixture
def never_timed(monkeypatch):
    def timed(*arguments):
        raise AssertionError("a wrong result was timed")

    monkeypatch.setattr(runner, "take_samples", timed)


def measure(name, settings=None, deadline=math.inf, device=CPU, ceilings=None):
    row = Row(ADD, CASE, name, family="elementwise", settings=settings or Settings())
    return measure_row(row, device, ceilings, LIMITS, deadline)


def test_a_correct_row_has_all_fields(providers):
    record = measure("right")
    assert (record.status, record.reason) == ("ok", None)
    assert len(record.samples_s) >= 5
    assert all(sample_s > 0 for sample_s in record.samples_s)
    assert record.ci95_s[0] <= record.median_s <= record.ci95_s[1]
    assert (record.method, record.cache, record.fill) == ("host", "cold", "uniform")
    assert record.copies == 2
    assert record.launches_per_sample >= 1
    assert record.host_latency_s > 0
    assert record.first_call_s > 0
    assert (
        record.verified["before"]["checked_elements"]
        == record.verified["after"]["checked_elements"]
        == 4096
    )
    assert (record.flops, record.bytes_read, record.bytes_written) == (4096, 32768, 16384)
    assert Record.from_dict(record.to_dict()) == record


def test_a_returned_result_is_verified_too(providers):
    providers["returns"] = Provider("returns", lambda x, y: x + y, takes_out=False)
    providers["returns-wrong"] = Provider("returns-wrong", lambda x, y: x - y, takes_out=False)
    assert measure("returns").status == "ok"
    assert measure("returns-wrong").status == "invalid"


def test_fill_and_cache_are_as_requested(providers):
    seen = []

    def watching(x, y, out):
        seen.append(x.abs().max().item())
        torch.add(x, y, out=out)

    providers["watching"] = watching
    record = measure("watching", Settings(fill="zeros", cache="warm"))
    assert (record.fill, record.cache, record.copies, record.flags) == (
        "zeros",
        "warm",
        1,
        record.flags,
    )
    assert set(seen) == {0.0}


def test_launches_rotate_through_every_copy(providers):
    seen = []

    def watching(x, y, out):
        seen.append(out.data_ptr())
        torch.add(x, y, out=out)

    providers["watching"] = watching
    record = measure("watching", device=replace(CPU, cache_bytes=CASE_BYTES))
    assert record.copies == len(set(seen)) == 5
    assert record.cache == "cold"
    timed = seen[1:-1]
    assert all(address != next_address for address, next_address in itertools.pairwise(timed[:10]))


def test_a_wrong_result_is_invalid_and_never_timed(providers, never_timed):
    calls = []

    def wrong(x, y, out):
        calls.append(1)
        torch.sub(x, y, out=out)

    providers["wrong"] = wrong
    record = measure("wrong")
    assert record.status == "invalid"
    assert record.reason.startswith("wrong result")
    assert len(calls) == 1
    assert (record.samples_s, record.median_s, record.method) == ((), None, None)
    assert record.verified.keys() == {"before"}


@pytest.mark.parametrize(
    "fault",
    [
        lambda x, y, out: None,  # writes nothing: the poison stays
        # Forgets the last element.
        lambda x, y, out: torch.add(x[:-1], y[:-1], out=out[:-1]).sum() and None,
        lambda x, y, out: out.zero_(),
        lambda x, y, out: out.fill_(float("nan")),
        lambda x, y, out: (x + y)[:-1],
        lambda x, y, out: (x + y).double(),
    ],
)
def test_planted_faults_are_invalid_and_can_be_saved(providers, never_timed, fault):
    providers["faulty"] = fault
    record = measure("faulty")
    assert record.status == "invalid"
    assert encode_line(record).endswith(b"\n")


@pytest.mark.parametrize("factor", [1e37, 1.0])
def test_hard_inputs_are_checked_before_timing(providers, factor):
    def add(x, y, out):
        torch.add(x * factor, y * factor, out=out).div_(factor)

    providers["own"] = add
    record = measure_row(replace(ROW, provider="own"), CPU, None, LIMITS)
    if factor == 1.0:
        assert record.status == "ok"
        return
    assert record.status == "invalid"
    assert record.reason == "wrong result on hard inputs (1000): expected 2000, got inf"
    assert record.verified.keys() == {"before"}
    assert measure("own").status == "ok"


def test_a_result_that_becomes_wrong_while_timed_is_invalid(providers):
    calls = itertools.count()

    def wears_out(x, y, out):
        torch.add(x, y, out=out)
        if next(calls) > 0:
            out[7] = 3.0

    providers["wears-out"] = wears_out
    record = measure("wears-out")
    assert record.status == "invalid"
    assert record.reason.startswith("after timing: wrong result")
    assert (record.samples_s, record.median_s) == ((), None)
    assert record.verified.keys() == {"before", "after"}


def test_a_later_visit_moves_the_copies_and_verifies_the_result(providers, monkeypatch):
    error, made, compared, places = [0.0], [], [], []
    make_copies, check = runner.make_copies, verify.check
    monkeypatch.setattr(runner, "make_copies", lambda *of: made.append(of) or make_copies(*of))
    monkeypatch.setattr(verify, "check", lambda *of: compared.append(of) or check(*of))

    def wears_out(x, y, out):
        places[-1].add(x.data_ptr())
        torch.add(x, y, out=out).add_(error[0])

    providers["wears-out"] = wears_out
    row, kept = Row(ADD, CASE, "wears-out", family="elementwise"), runner.Kept(CPU.free_bytes())

    def visit():
        places.append(set())
        return measure_row(row, CPU, None, LIMITS, kept=kept)

    first, again = visit(), visit()
    assert (len(made), len(compared)) == (1, 2)
    assert places[0].isdisjoint(places[1])
    assert first.warm_median_s == again.warm_median_s
    error[0] = 1e-8  # within rounding, but other bytes
    assert visit().status == "ok"
    assert len(compared) == 3
    error[0] = 1.0
    assert visit().reason.startswith("after timing: wrong result")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("copies", [2, 3, 5])
def test_a_provider_that_caches_its_first_result_is_invalid(providers, seed, copies):
    # A cache of results is right before the clock, on the first copy, and wrong after it, on
    # another one.
    remembered = []

    def caching(x, y, out):
        if not remembered:
            remembered.append(x + y)
        out.copy_(remembered[0])

    providers["caching"] = caching
    device = replace(CPU, cache_bytes=(copies - 1) * CASE_BYTES // 4)
    assert measure("caching", Settings(seed=seed), device=device).reason.startswith("after timing")
    assert measure("right", Settings(seed=seed), device=device).copies == copies


def test_a_result_that_needs_the_tolerance_is_flagged(providers):
    providers["rough"] = lambda x, y, out: torch.add(x, y, out=out).mul_(1 + 1e-5)
    strict, tolerant = (
        measure_row(Row(replace(ADD, tolerance=factor), CASE, "rough"), CPU, None, LIMITS)
        for factor in (1.0, 1e4)
    )
    assert strict.status == "invalid"
    assert tolerant.status == "ok"
    assert (
        "times what rounding explains; --tolerance allowed it"
        in tolerant.flag_reasons["beyond-rounding"]
    )


def raising(error):
    def function(x, y, out):
        raise error

    return function


def test_an_error_while_timing_fails_its_row(providers):
    calls = itertools.count()

    def breaks(x, y, out):
        if next(calls) > 3:
            raise IndexError("out of tiles")
        torch.add(x, y, out=out)

    providers["breaks"] = breaks
    record = measure("breaks")
    assert (record.status, record.reason, record.samples_s) == (
        "failed",
        "IndexError: out of tiles",
        (),
    )


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
        "tried to"
    ),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]


@pytest.mark.parametrize(
    "error", OUT_OF_MEMORY, ids=lambda error: f"{type(error).__name__}-{str(error)[:20]}"
)
def test_out_of_memory_skips_the_row(providers, error):
    assert is_out_of_memory(error)
    providers["large"] = raising(error)
    record = measure("large")
    assert (record.status, record.reason) == ("skipped", "out of memory")


def test_declared_refusals_are_skipped_and_other_errors_fail(providers):
    providers["refuses"] = Provider(
        "refuses", raising(ValueError("no fp64")), True, refuses_with=(ValueError,)
    )
    providers["fails"] = Provider("fails", raising(ValueError("no fp64")), True)
    assert [(measure(name).status, measure(name).reason) for name in ("refuses", "fails")] == [
        ("skipped", "no fp64"),
        ("failed", "ValueError: no fp64"),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_ctrl_c_and_exit_are_not_failed_rows(providers, error):
    providers["interrupted"] = raising(error)
    with pytest.raises(type(error)):
        measure("interrupted")


def test_a_spent_budget_times_nothing_and_suggests_another(providers, never_timed):
    record = measure("right", Settings(budget_s=2.5), deadline=clock.now())
    assert record.status == "skipped"
    said = re.fullmatch(r"the budget of 2\.5 s is spent; use --budget (\d+)", record.reason)
    assert int(said[1]) >= 4  # 1.5 times the spent and missing time


def test_a_rejected_row_is_not_run(providers, never_timed):
    row = plan(MATMUL_OP, matmul_case(64, 64, 64, "tf32"), ["right"], CPU, Settings())[0]
    assert measure_row(row, CPU) is row.refused


def test_gpu_memory_is_released_after_a_failed_row(providers, monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("emptied"))
    providers["broken"] = RuntimeError("no device")
    record = measure("broken", device=GPU)
    assert (record.status, log) == ("failed", ["emptied"])


def test_an_impossible_time_is_invalid_with_its_reason(providers):
    slow = Machine(
        "cpu", "a slow machine", (Ceiling("flops", "fp32", 1.0, "datasheet", "made up"),)
    )
    record = measure("right", ceilings=slow)
    assert record.status == "invalid"
    assert record.reason.startswith("faster than physics")
    assert "faster-than-physics" in record.flags
    assert record.samples_s  # saved for inspection


def test_every_flag_has_a_reason_and_cold_rows_a_warm_time(providers):
    record = measure("right")
    assert set(record.flag_reasons) == set(record.flags)
    assert record.cache == "cold"
    assert record.warm_median_s > 0
    assert record.outliers >= 0
    assert record.settled in (True, False)
    assert measure("right", Settings(cache="warm")).warm_median_s is None


@pytest.mark.parametrize("rows_left", [1, 50])
def test_each_row_samples_for_its_share_of_the_time_left(providers, monkeypatch, rows_left):
    left = []

    def take_notice(*_, left_s, **__):
        left.append(left_s)
        raise ValueError

    monkeypatch.setattr(runner, "take_samples", take_notice)
    set_clock(monkeypatch, lambda: 50.0)
    measure_row(Row(ADD, CASE, "right"), CPU, None, LIMITS, 1050.0, rows_left)
    assert left == [1000 / rows_left]


@pytest.mark.parametrize(
    ("rows_left", "check_s", "sampling_s"),
    [(1, 400.0, 600.0), (1, 2000.0, 0.0), (2, 100.0, 500.0), (2, 700.0, 300.0)],
)
def test_time_of_the_last_check_is_reserved(providers, monkeypatch, rows_left, check_s, sampling_s):
    left = []
    prepare = runner.prepare

    def with_a_slow_check(*arguments):
        return replace(prepare(*arguments), check_s=check_s)

    def take_notice(*arguments, left_s, **others):
        left.append(left_s)
        raise ValueError

    monkeypatch.setattr(runner, "prepare", with_a_slow_check)
    monkeypatch.setattr(runner, "take_samples", take_notice)
    set_clock(monkeypatch, lambda: 50.0)
    measure_row(Row(ADD, CASE, "right"), CPU, None, LIMITS, 1050.0, rows_left)
    assert left == [sampling_s]


@pytest.mark.parametrize(("left_s", "is_begun"), [(7.0, True), (6.9, False)])
def test_a_row_ends_before_sampling_unless_its_last_check_fits(
    providers, monkeypatch, left_s, is_begun
):
    """Here calls take 1 s, a reference 3 s."""
    clock = commands.Clock()
    set_clock(monkeypatch, clock)

    def taking(seconds, function):
        def call(*inputs, **options):
            clock.now += seconds
            return function(*inputs, **options)

        return call

    providers["slow"] = taking(1.0, providers["right"])
    op = replace(ADD, reference=taking(3.0, ADD.reference))
    row = Row(op, CASE, "slow", settings=Settings(budget_s=9.0))
    ready = runner.prepare(row, CPU, clock.now + left_s)
    if is_begun:
        assert (ready.check_s, ready.prepared_s) == pytest.approx((3.0, 7.0))
    else:
        assert (ready.status, ready.reason) == (
            "skipped",
            "the budget of 9 s is spent; use --budget 14",
        )


@pytest.mark.parametrize("by_op", [False, True])
@pytest.mark.parametrize("by_user", [False, True])
def test_inputs_are_restored_if_the_op_or_the_user_says_so(providers, by_op, by_user):
    row = replace(ROW, op=replace(ADD, in_place=by_op), settings=Settings(in_place=by_user))
    ready = runner.prepare(row, CPU)
    assert (ready.restore is not None) == (by_op or by_user)
    if ready.restore:
        wanted = [x.clone() for x in ready.sets[0].inputs]
        for x in ready.sets[1].inputs:
            x.zero_()
        ready.restore()
        assert all(map(torch.equal, ready.sets[1].inputs, wanted))


def test_a_provider_may_be_less_accurate_than_its_op(providers):
    def rough(x, y, out):
        torch.add(x, y, out=out).mul_(1 + 1e-5)

    providers["rough"] = Provider("rough", rough, True, tolerance=1e4)
    assert (
        runner.prepare(
            replace(ROW, op=replace(ADD, tolerance=2), provider="rough"), CPU
        ).row.op.tolerance
        == 2e4
    )
    providers["strict"] = Provider("strict", rough, True)
    assert (measure("rough").status, measure("strict").status) == ("ok", "invalid")


@pytest.mark.parametrize("has_rule", [False, True])
def test_only_a_rule_of_an_op_is_given_the_first_launch(providers, has_rule):
    given = []

    def rule(case, launch, earlier):
        given.append(earlier)

    op = replace(ADD, check_result=rule if has_rule else None)
    assert measure_row(replace(ROW, op=op), CPU, None, LIMITS).status == "ok"
    assert [earlier is not None for earlier in given] == [False, True][: 2 * has_rule]


def test_providers_that_reject_a_case_are_passed_over(providers):
    providers["absent"] = ProviderUnavailableError("not installed")
    providers["refuses"] = Provider(
        "refuses", raising(ValueError("odd")), True, refuses_with=(ValueError,)
    )
    row = replace(ROW, op=ADD, provider="absent", stand_ins=("refuses", "right"))
    record = measure_row(row, CPU, None, LIMITS)
    assert (record.status, record.provider) == ("ok", "right")
    assert record.passed_over == {"absent": "not installed", "refuses": "odd"}
    assert measure("right").passed_over == {}
    record = measure_row(replace(row, stand_ins=("refuses",)), CPU, None, LIMITS)
    assert (record.status, record.provider, record.reason) == ("skipped", "absent", "not installed")


def test_the_parent_process_knows_when_code_of_others_runs(monkeypatch):
    """It ends a worker whose function does not return; a reference may take long."""
    seen = []

    def add(x, y, out):
        assert seen[-1]
        torch.add(x, y, out=out)

    def loaded(*_):
        assert seen == [True]
        return Provider("file.py:add", add, takes_out=True)

    def reference(x, y):
        assert not seen[-1]
        return x + y

    monkeypatch.setattr(runner.protocol, "announce", lambda runs=True: seen.append(runs))
    monkeypatch.setattr(runner, "load", loaded)
    row = replace(ROW, op=replace(ADD, reference=reference), provider="file.py:add")
    assert measure_row(row, CPU, None, LIMITS).status == "ok"
    assert not seen[-1]


@pytest.mark.parametrize("when", ["before", "in the row"])
def test_a_row_is_flagged_as_interpreted_only_if_its_own_kernel_was(providers, monkeypatch, when):
    builder = SimpleNamespace(grid_dim=(1,))
    module = SimpleNamespace(interpreter_builder=builder)
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", module)

    def launch(x, y, out):
        builder.grid_dim = (1,)
        torch.add(x, y, out=out)

    providers["kernel"] = launch
    record = measure("right" if when == "before" else "kernel")
    assert ("interpreted" in record.flags) == (when == "in the row")


def test_a_device_in_error_cannot_be_used_again(monkeypatch):
    def lost(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(Device, "synchronize", lambda self: None)
    assert runner.release(GPU) is True
    monkeypatch.setattr(Device, "synchronize", lost)
    assert (runner.release(GPU), runner.release(CPU)) == (False, True)


class Others(verify.Checks):
    """Checks that write new contents into the inputs."""


@pytest.mark.parametrize(
    ("spare_bytes", "kind", "is_kept"),
    [(0, verify.Checks, True), (-4, verify.Checks, False), (0, Others, False)],
)
def test_a_row_is_kept_if_its_copies_and_results_fit_and_its_inputs_stay(
    spare_bytes, kind, is_kept
):
    checks = kind(ADD, CASE, CPU)
    checks.result = torch.zeros(1)
    ready = SimpleNamespace(row=ROW, sets=[None] * 3, checks=checks)
    kept = Kept((2 * 3 * CASE_BYTES + spare_bytes) / KEPT_SHARE)
    kept.add("name", ready)
    assert bool(kept.ready) == is_kept
    kept.add("name", copy.copy(ready))
    assert kept.ready.get("name") is (ready if is_kept else None)


@pytest.mark.parametrize(("name", "spare_bytes"), [("other", 0), ("other", -4), ("", -4)])
def test_kept_rows_go_if_the_memory_is_too_short_for_another(name, spare_bytes):
    copies_bytes = 4 * CPU.cache_bytes + 2 * CASE_BYTES
    device = SimpleNamespace(
        type="cpu",
        cache_bytes=CPU.cache_bytes,
        free_bytes=lambda: (copies_bytes + spare_bytes) / KEPT_SHARE,
    )
    kept = Kept(0, {name or runner.name_of(ROW.blank()): None})
    kept.make_room(ROW, device)
    assert bool(kept.ready) == (spare_bytes == 0 or not name)
