"""`bench.measure`: what is rejected, rotated and counted, where it runs, and what the answer
says.
"""

import dataclasses
import functools
import gc
import itertools
import json
import math
import sys
import time

import numpy as np
import pytest
import torch

import bench
from bench.api import function as function_meter
from bench.api.function import LATE, fresh
from bench.api.profiling import with_work
from bench.harness.device.device import cpu_device
from results.record import Record
from results.store.runfile import load_run
from roofline.machine import Ceiling, Machine
from tests.bench.commands import PEAKS_FLOPS_PER_S, THREADS, keep_ceilings

N = 64
MIB = 2**20
BLANK = Record(op="f", provider="torch", dtype="", shape={"calls": 1}, case="-", status="skipped")


QUICK = {"cache": "warm", "budget_s": 0.02}


@pytest.fixture
def ceilings(monkeypatch):
    """Set the measured ceilings to 1 TFLOP/s and 1 GB/s."""
    found = Machine(
        "cpu-x",
        "X",
        (
            Ceiling("flops", "fp32", 1e12, "measured", "s"),
            Ceiling("bandwidth", "copy", 1e9, "measured", "s"),
        ),
    )
    monkeypatch.setattr(function_meter, "known_ceilings", lambda device: found)


@pytest.fixture
def threads(runs):
    """Save ceilings of this CPU, and use the thread count that they were measured with."""
    keep_ceilings(runs)
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def fails(x):
    raise ZeroDivisionError("by nothing\nat all")


X = (torch.ones(4),)


@pytest.mark.parametrize(
    ("function", "arguments", "options", "said"),
    [
        (3, (), {}, "expected a function or a module, got 3"),
        (lambda a: a, (), {}, "<lambda> raised TypeError: .* missing 1 required"),
        (fails, X, {}, "fails raised ZeroDivisionError: by nothing$"),
        (torch.relu, X, {"cache": "hot"}, "cache='hot' must be 'cold' or 'warm'"),
        (torch.relu, X, {"dtype": "fp7"}, r"dtype='fp7' must be one of .* functools\.partial"),
        (torch.relu, X, {"budget_s": 0}, "budget_s=0 must be a number"),
        (torch.relu, X, {"device": "gpu"}, "device='gpu' must be"),
        (torch.relu, (), {"inputs": 3}, "inputs=3 must be a function"),
        (torch.relu, (), {"inputs": lambda: None}, "inputs= must return"),
        (torch.relu, (), {"inputs": lambda: fails(1)}, "inputs raised ZeroDivisionError"),
        (torch.relu, X, {"inputs": lambda: X}, "mutually exclusive, got 1"),
        (torch.relu, (), {"setup": 3}, "must be a function that makes the arguments"),
        (torch.relu, X, {"setup": lambda: X}, "mutually exclusive, got 1"),
        (torch.relu, (), {"setup": lambda: None}, "setup= must return"),
        (torch.relu, (), {"setup": lambda: X, "in_place": True}, "remove inputs= and in_place="),
        (
            torch.Generator().seed,
            (),
            {"in_place": True, "device": "cpu"},
            "in_place=True restores positional tensors, but there are none",
        ),
        (print, (), {"inputs": lambda: ([1], "a")}, "inputs= returned no new tensors"),
        (torch.relu, (), {"inputs": lambda: X}, "inputs= returned no new tensors"),
        (
            torch.mv,
            (torch.eye(4).to_sparse(), *X),
            {},
            "an argument is a sparse_coo tensor, which cannot be copied",
        ),
    ],
)
def test_measure_rejects_invalid_arguments_in_one_line(function, arguments, options, said):
    with pytest.raises(bench.UsageError, match=said) as raised:
        bench.measure(function, *arguments, **options)
    assert "\n" not in str(raised.value)


def test_an_empty_tensor_and_a_sparse_one_of_a_closure_are_measured():
    assert bench.measure(torch.relu, torch.empty(0), budget_s=0.1).status == "ok"
    a = torch.eye(8).to_sparse()
    assert bench.measure(lambda: torch.mm(a, torch.eye(8)), budget_s=0.1).status == "ok"


@pytest.mark.parametrize("value", [-1, 1.5, True, 10**20])
def test_an_invalid_work_count_is_rejected(value):
    with pytest.raises(bench.UsageError, match=r"flops= must be an integer from 0 to 2\*\*63 - 1"):
        bench.measure(int, flops=value)


def test_cold_launches_rotate_through_sets_made_by_inputs(monkeypatch):
    planned, seen, made = [], set(), []
    rotation = function_meter.rotation.Rotation(3, "cold")
    monkeypatch.setattr(
        function_meter.rotation, "plan_rotation", lambda *given: planned.append(given) or rotation
    )
    weights = torch.ones(MIB)

    def inputs():
        made.append((weights, torch.ones(256), {"rows": torch.ones(128).expand(1000, 128)}))
        return made[-1]

    answer = bench.measure(lambda w, x, other: seen.add(x.data_ptr()), inputs=inputs)
    cache_bytes = cpu_device().cache_bytes
    # Shared weights are not copied, and an expanded tensor counts only its memory.
    assert [(given[0], given[1], given[3:]) for given in planned] == [
        (256 * 4 + 128 * 4, cache_bytes, ("cpu", "cold"))
    ]
    assert seen == {each[1].data_ptr() for each in made}
    assert (len(made), answer.copies, answer.cache) == (3, 3, "cold")
    assert answer.warm_median_s > 0


def test_without_tensor_arguments_the_measurement_is_warm():
    x = torch.randn(N)
    record = bench.measure(lambda: torch.relu(x))
    assert record.cache == "warm"
    assert "every launch reuses the same inputs" in record.flag_reasons["not-cold"]


def test_copies_keep_strides_shared_memory_and_gradients():
    base = torch.randn(4, 6, requires_grad=True)
    view = base.detach()[:, ::2]
    shared = torch.randn(3)
    copied, part, again, same, plain = fresh((base, view, [shared], {"x": shared}, "text"))
    assert torch.equal(copied, base)
    assert copied.data_ptr() != base.data_ptr()
    assert copied.requires_grad
    assert (part.stride(), torch.equal(part, view)) == (view.stride(), True)
    assert again[0].data_ptr() == same["x"].data_ptr() != shared.data_ptr()
    assert plain == "text"


@pytest.mark.parametrize(
    ("made", "arguments"), [((1, 2), (1, 2)), ([1], ([1],)), (3, (3,)), ((), ())]
)
def test_the_value_of_inputs_becomes_positional_arguments(made, arguments):
    assert (
        bench.measure(lambda *args: args, inputs=lambda: made, cache="warm", device="cpu").result
        == arguments
    )


@pytest.mark.parametrize("where", ["arguments", "result"])
def test_with_a_gpu_cpu_tensors_are_measured_on_the_cpu(monkeypatch, where):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    x = {"nested": [(torch.ones(2), 5)]}
    answer = bench.measure(
        lambda *_: x if where == "result" else None, *([x] if where == "arguments" else [])
    )
    assert answer.environment.device["type"] == "cpu"


def test_with_a_gpu_and_no_tensors_a_device_is_required(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(bench.UsageError, match="set device='cpu' or device='cuda'"):
        bench.measure(lambda: 1)
    assert bench.measure(lambda: 1, device="cpu").environment.device["type"] == "cpu"


def test_tensors_on_two_gpus_need_a_device():
    class OnGpu(torch.Tensor):
        nbytes = 4
        index = 0

        @property
        def device(self):
            return torch.device("cuda", self.index)

    first, second = torch.ones(1).as_subclass(OnGpu), torch.ones(1).as_subclass(OnGpu)
    second.index = 1
    with pytest.raises(bench.UsageError, match="the tensors are on cuda:0 and cuda:1; set device="):
        bench.measure(lambda *_: None, first, second, torch.ones(1))


def test_declared_work_is_not_counted():
    record = bench.measure(
        torch.relu, torch.randn(N), flops=7, bytes_read=8, bytes_written=9, dtype=torch.float64
    )
    assert (record.flops, record.bytes_read, record.bytes_written, record.dtype) == (
        7,
        8,
        9,
        "fp64",
    )
    assert record.work == "as declared"
    partly_declared = bench.measure(torch.relu, torch.randn(N), flops=7)
    assert (partly_declared.flops, partly_declared.bytes_read, partly_declared.bytes_written) == (
        7,
        4 * N,
        4 * N,
    )
    assert partly_declared.work.endswith("; flops as declared")


def test_an_operation_without_a_rule_is_named():
    @torch.library.custom_op("roofmark_tests::nobody_knows", mutates_args=())
    def nobody_knows(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    counted = with_work(BLANK, torch.ops.roofmark_tests.nobody_knows, (torch.ones(4),), {})
    assert (counted.flops, counted.bytes_read) == (None, None)
    assert "roofmark_tests.nobody_knows has no rule" in counted.work


def test_a_backward_pass_is_counted_only_if_called():
    weight = torch.randn(N, N, requires_grad=True)

    def step(x):
        (x @ weight).sum().backward()

    forward = with_work(BLANK, lambda x: x @ weight, (torch.randn(N, N),), {})
    both = with_work(BLANK, step, (torch.randn(N, N),), {})
    assert forward.flops == 2 * N**3
    assert both.flops // N**3 == 4  # the gradient of the weight; the input has none


def test_a_function_is_measured_counted_and_rated(ceilings):
    a, b = torch.randn(N, N), torch.randn(N, N)
    record = bench.measure(torch.matmul, a, b)
    assert (record.status, record.op, record.case, record.dtype) == (
        "ok",
        "matmul",
        f"{N}x{N},{N}x{N}",
        "fp32",
    )
    assert (record.flops, record.bytes_read, record.bytes_written) == (
        2 * N**3,
        8 * N * N,
        4 * N * N,
    )
    assert record.ci95_s[0] <= record.median_s <= record.ci95_s[1]
    assert len(record.samples_s) >= 5
    assert record.flops_per_s == pytest.approx(2 * N**3 / record.median_s)
    assert record.mfu == pytest.approx(record.flops_per_s / 1e12)
    assert record.mbu == pytest.approx(record.bytes_per_s / 1e9)
    assert record.intensity == pytest.approx(2 * N**3 / (12 * N * N))
    assert record.bound == "memory"
    assert record.roofline_pct == pytest.approx(100 * record.mbu)
    assert "counted by the profiler's rules: mm" in repr(record)
    assert torch.equal(record.result, a @ b)


def test_ceilings_of_another_thread_count_are_not_used(threads):
    x = torch.ones(1024)
    answer = bench.measure(
        torch.add, x, 1, flops=1024, bytes_read=4096, bytes_written=4096, dtype="fp32", alpha=2
    )
    assert answer.result[0] == 3
    assert answer.mfu == pytest.approx(1024 / answer.median_s / PEAKS_FLOPS_PER_S["fp32"])
    assert answer.judged["peak_kind"] == "measured"
    torch.set_num_threads(THREADS + 1)
    answer = bench.measure(torch.neg, torch.ones(4), flops=4, bytes_read=16, dtype="fp32")
    assert answer.environment.device["threads"] == THREADS + 1
    assert answer.environment.device["slug"].endswith(f"-{THREADS + 1}t")
    assert (answer.mfu, answer.mbu) == (None, None)
    assert answer.flops_per_s > 0


def test_a_read_is_not_judged_by_the_bandwidth_of_a_copy(threads, runs):
    (file,) = runs.rglob("ceilings-*.json")
    data = json.loads(file.read_text())
    data["entries"] = [entry for entry in data["entries"] if entry["name"] != "read"]
    file.write_text(json.dumps(data))
    answer = bench.measure(torch.sum, torch.ones(1024), flops=1023, bytes_read=4096, **QUICK)
    assert answer.mfu is not None
    assert (answer.mbu, answer.roofline_pct, answer.judged["mix"]) == (None, None, None)
    assert "no memory bandwidth is known; run python -m bench calibrate" in repr(answer)


@pytest.mark.parametrize(
    ("counts", "known"),
    [
        ({}, set()),
        ({"flops": 8}, {"flops_per_s", "mfu", "peak_kind"}),
        ({"flops": 8, "dtype": None}, {"flops_per_s"}),
        ({"bytes_read": 8}, {"bytes_per_s", "mbu", "bandwidth_kind", "mix", "mix_pct"}),
    ],
)
def test_metrics_of_uncounted_work_are_none(threads, counts, known):
    answer = bench.measure(lambda: 1, device="cpu", **({"dtype": "fp32"} | counts))
    assert {key for key, value in answer.judged.items() if value is not None} == known


def test_a_record_repr_shows_metrics_and_escapes_control_characters(ceilings):
    record = bench.measure(lambda x: x + 1, torch.randn(N))
    assert "of the roofline, bound by memory" in repr(record)
    assert f"{record.flops:,} FLOP" in repr(record)
    lost = dataclasses.replace(record, status="failed", reason="it\x1b broke", median_s=None)
    assert "failed    it\\x1b broke" in repr(lost)


def test_records_become_a_table_a_dataframe_and_a_run_file(ceilings, runs, tmp_path):
    one = bench.measure(torch.relu, torch.randn(N))
    records = bench.Records(one.environment, [one, one])
    assert "relu" in repr(records)
    assert list(records.to_dataframe()["median_s"]) == [one.median_s] * 2
    run = load_run(records.save())
    assert [record.median_s for record in run.records] == [one.median_s] * 2
    assert not run.problems
    assert records.save(f"{tmp_path}/new/").parent == tmp_path / "new"


def test_saving_a_record_without_dtype_is_an_error():
    record = bench.measure(lambda: math.sqrt(2))
    with pytest.raises(bench.UsageError, match="a record has no dtype"):
        bench.Records(record.environment, [record]).save()


def test_a_cached_result_is_invalid_and_what_cannot_be_verified_is_flagged():
    x = torch.randn(64, 64)
    record = bench.measure(functools.lru_cache(lambda x: x @ x), x, **QUICK)
    assert (record.status, record.median_s) == ("invalid", None)
    assert record.reason == "returns the result of an earlier call"
    random = bench.measure(torch.rand_like, x, **QUICK)
    assert random.flag_reasons["not-fresh"].endswith("the result is random")
    for fn, argument in ((torch.relu, x), (torch.sort, torch.arange(99)), (lambda: x + x, None)):
        arguments = [] if argument is None else [argument]
        record = bench.measure(fn, *arguments, **QUICK)
        assert record.status == "ok"
        assert ("not-fresh" in record.flags) is (argument is not x)


def test_a_function_with_a_workspace_is_verified():
    workspace = torch.empty(8, 8)
    x = torch.randn(8, 8)
    record = bench.measure(lambda x: torch.add(x, x, out=workspace), x, **QUICK)
    assert record.status == "ok"
    assert "not-fresh" not in record.flags
    assert torch.equal(workspace, x + x)


def test_a_result_that_changes_after_the_call_is_invalid(monkeypatch):
    results = []

    def function(x):
        results.append(torch.zeros_like(x))
        return results[-1]

    monkeypatch.setattr(time, "sleep", lambda seconds: results[0].add_(1))
    record = bench.measure(function, torch.randn(8, 8), **QUICK)
    assert (record.status, record.reason) == ("invalid", LATE)


def test_a_later_result_that_is_not_that_of_the_first_call_is_flagged():
    calls = []

    def function(x):
        calls.append(1)
        return x + x if len(calls) < 3 else x * 0

    record = bench.measure(function, torch.randn(8, 8), **QUICK)
    assert record.flag_reasons["not-fresh"].endswith("its result is not that of its first call")


def test_a_tensor_that_may_compute_when_it_is_read_is_flagged():
    class Lazy(torch.Tensor):
        pass

    record = bench.measure(lambda x: x.clone().as_subclass(Lazy), torch.randn(8, 8), **QUICK)
    assert record.flag_reasons["not-fresh"].endswith("it returned a Lazy")


async def waited_for(x):
    return x + x


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x: (row + row for row in x), "generator"),
        (lambda x: {"rows": map(torch.relu, x)}, "map"),
        (lambda x: torch.jit.fork(torch.relu, x), "Future"),
        (waited_for, "coroutine"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("has_arguments", [False, True])
def test_a_result_that_nobody_waited_for_is_invalid(fn, kind, has_arguments):
    x = torch.randn(8, 8)
    arguments = [x] if has_arguments else []
    timed = fn if has_arguments else functools.partial(fn, x)
    record = bench.measure(timed, *arguments, **QUICK)
    assert record.status == "invalid"
    assert record.reason == f"returned a {kind}, which may not have done its work"


def test_a_function_that_returns_none_is_flagged():
    record = bench.measure(lambda x: None, torch.randn(8), **QUICK)
    assert record.flag_reasons["not-fresh"].endswith("fresh contents: it returned None")


@pytest.mark.parametrize("knows", ["caller", "gc"])
def test_a_function_that_knows_a_sample_is_invalid(knows):
    kept = []

    def function(x):
        is_sample = sys._getframe(1).f_code.co_name == "sample"
        if knows == "gc":
            is_sample = not gc.isenabled()
        if not is_sample:
            kept[:] = [x @ x]
        return kept[0]

    record = bench.measure(function, torch.randn(8, 8), **QUICK)
    assert record.status == "invalid"
    assert record.reason.startswith("on new values in the same tensors: ")


@pytest.fixture(params=[("warm", 1), ("cold", 3)])
def cache_and_copies(request, monkeypatch):
    rotation = function_meter.rotation.Rotation(3, "cold")
    monkeypatch.setattr(function_meter.rotation, "plan_rotation", lambda *given: rotation)
    return request.param


def normalizes(x):
    x.div_(x.norm())
    return x[1].sum()  # of a row, which new contents exchange


def test_a_changed_input_must_be_declared_and_is_restored():
    x = torch.randn(64, 64)
    before = x.clone()
    record = bench.measure(normalizes, x, **QUICK)
    assert (record.status, record.median_s) == ("invalid", None)
    assert record.reason.startswith("changes its inputs; ")
    assert torch.equal(x, before)
    out = torch.empty(64, 64)
    for arguments, options in (((x, x), {"out": out}), ((x, out), {})):
        fn = torch.mul if options else lambda x, out: torch.mul(x, x, out=out)
        record = bench.measure(fn, *arguments, **options, **QUICK)
        assert (record.status, record.flags.count("not-fresh")) == ("ok", 0)
    calls = itertools.count()
    late = bench.measure(lambda x: x.add_(next(calls) > 30) * 1, x, **QUICK)
    assert late.reason.startswith("changes its inputs; ")
    read_only = np.broadcast_to(np.float32(1), (8, 8))
    assert bench.measure(np.negative, read_only, **QUICK).status == "ok"


def test_declared_inputs_are_as_before_in_each_launch(cache_and_copies):
    cache, copies = cache_and_copies
    x = torch.randn(64, 64)
    before = x.clone()
    seen = []

    def counted(x):
        seen.append(x.norm().item())
        return normalizes(x)

    record = bench.measure(counted, x, cache=cache, in_place=True, budget_s=0.05)
    assert (record.status, record.copies, record.reason) == ("ok", copies, None)
    assert ("one-launch" in record.flags) is (copies == 1)
    assert "not-fresh" not in record.flags
    assert record.result == normalizes(before.clone())
    assert torch.equal(x, before)
    assert seen.count(before.norm().item()) > 5
    assert all(abs(norm - 1) > 1 for norm in seen)  # the norm that a call leaves


def test_a_keyword_argument_is_not_restored_and_must_not_change():
    x = torch.randn(64)
    fn = lambda x, y: (x.mul_(2), y.mul_(2))  # noqa: E731
    record = bench.measure(fn, x, y=x.clone(), in_place=True, **QUICK)
    assert record.reason.startswith("changes its inputs; if it must, pass them by position")


def test_a_setup_makes_the_contents_of_each_launch(cache_and_copies):
    cache, copies = cache_and_copies
    made = []
    seen = []

    def setup():
        made.append(torch.randn(64, 64))
        made[-1][0, 0] = len(made)
        return made[-1]

    def normalized(x):
        seen.append(x[0, 0].item())
        return normalizes(x)

    record = bench.measure(normalized, setup=setup, cache=cache, budget_s=0.05)
    assert (record.status, record.copies, record.reason) == ("ok", copies, None)
    assert "not-fresh" not in record.flags
    assert min(seen) == 1  # no launch finds what another left, which is below
    assert len(made) > len(record.samples_s)
