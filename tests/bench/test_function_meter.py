"""Any function by the protocol: what is refused, what is rotated, where it runs, what the answer says."""

import functools
import time

import pytest
import torch
from commands import PEAKS_FLOPS_PER_S, QUICK, THREADS, keep_ceilings

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import cpu_device
from bench.harness.fixture import function as function_meter
from bench.harness.fixture.function import Question, as_arguments, measure_function
from roofline.ceilings import Ceiling, Ceilings

MIB = 2**20


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(function_meter, "limits_of", lambda device: QUICK)


@pytest.fixture
def threads():
    """The threads that a calibration of this CPU would have used."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def measured(function, *args, inputs=None, keywords=None, **question):
    return measure_function(function, args, keywords or {}, inputs, Question(**question))


# ---- what cannot be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flops", "bytes_moved", "bytes_read", "bytes_written"])
@pytest.mark.parametrize("value", [-1, 1.5, 2e12, "many", True, 10**31, float("nan")])
def test_what_is_no_count_is_refused_with_its_value(name, value):
    with pytest.raises(UsageError) as caught:
        Question(**{name: value})
    assert str(caught.value).startswith(f"{name}={value!r} must be a whole number from 0 to 10**30")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bytes_moved": 4, "bytes_read": 2}, "bytes_moved= stands for the sum; leave it out where"),
        ({"dtype": "float16"}, "dtype='float16' must be one of fp64, fp32"),
        ({"dtype": torch.float16}, "a dtype that is meant for the function itself goes in with functools.partial"),
        ({"cache": "hot"}, "cache='hot' must be 'cold' or 'warm'"),
        ({"budget_s": 0}, "budget_s=0 must be a number of seconds above 0"),
        ({"budget_s": float("inf")}, "budget_s=inf must be a number of seconds above 0"),
        ({"budget_s": "1"}, "budget_s='1' must be a number of seconds above 0"),
        ({"device": "gpu"}, "device='gpu' must be 'cpu', 'cuda', 'cuda:N' or 'mps'"),
        ({"device": "cpu:0"}, "device='cpu:0' must be"),
        ({"device": "cuda:"}, "device='cuda:' must be"),
        ({"device": 0}, "device=0 must be"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(wrong, message):
    with pytest.raises(UsageError) as caught:
        Question(**wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"cache": "cold"}, "cache='cold' needs inputs="),
        ({"args": (1, 2), "inputs": lambda: 3}, "so that 2 more have no place"),
        ({"inputs": lambda: ([1], "a")}, "inputs= made nothing with bytes"),
        ({"inputs": functools.partial(torch.Tensor.view, torch.ones(4), -1)}, "inputs= made the same tensors again"),
    ],
)
def test_what_cannot_be_rotated_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        measured(lambda *_: None, *call.pop("args", ()), device="cpu", **call)


def test_an_error_of_the_function_is_its_own():
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0, device="cpu")


# ---- what it goes round --------------------------------------------------------------------------------------------


def test_cold_launches_go_round_sets_that_fill_the_cache_several_times(monkeypatch):
    planned, seen, made = [], set(), []
    monkeypatch.setattr(
        function_meter.copies,
        "plan_rotation",
        lambda *given: planned.append(given) or function_meter.copies.Rotation(3, "cold"),
    )
    weights = torch.ones(MIB)

    def inputs():
        made.append([weights, torch.ones(256), {"rows": torch.ones(128).expand(1000, 128)}])
        return made[-1]

    answer = measured(lambda w, x, other: seen.add(x.data_ptr()), inputs=inputs)
    cache_bytes = cpu_device().cache_bytes
    # Weights that all sets share stay where they are, and an expanded tensor is no larger than its memory.
    assert [(given[0], given[1], given[3:]) for given in planned] == [(256 * 4 + 128 * 4, cache_bytes, ("cpu", "cold"))]
    assert seen == {one[1].data_ptr() for one in made}
    assert (len(made), answer.record.copies, answer.record.cache) == (3, 3, "cold")
    assert answer.record.warm_median_s > 0


def test_sets_that_do_not_fill_the_cache_are_called_warm(monkeypatch):
    monkeypatch.setattr(function_meter.copies, "plan_rotation", lambda *_: function_meter.copies.Rotation(1, "warm"))
    answer = measured(torch.neg, inputs=lambda: torch.ones(16))
    assert (answer.record.cache, answer.record.copies) == ("warm", 1)
    assert "not-cold" in answer.record.flags


@pytest.mark.parametrize("question", [{}, {"cache": "warm"}])
def test_warm_launches_find_the_same_arguments(question):
    seen, made = set(), []

    def inputs():
        made.append(torch.ones(16))
        return made[-1]

    takes_inputs = {"inputs": inputs} if question else {}
    args = () if question else (torch.ones(16),)
    answer = measured(lambda x: seen.add(x.data_ptr()), *args, **takes_inputs, **question)
    assert len(seen) == 1
    assert len(made) == len(takes_inputs)
    assert (answer.record.cache, answer.record.copies, answer.record.warm_median_s) == ("warm", 1, None)
    assert "not-cold" not in answer.record.flags


@pytest.mark.parametrize(("made", "arguments"), [((1, 2), (1, 2)), ([1], (1,)), (3, (3,)), ((), ())])
def test_what_inputs_makes_becomes_positional_arguments(made, arguments):
    assert as_arguments(made) == arguments


# ---- where it runs -------------------------------------------------------------------------------------------------


def test_tensors_among_arguments_or_result_tell_the_device():
    nested = {"a": [(torch.ones(2), 5)]}
    assert function_meter._device_of(None, [nested]).type == "cpu"
    assert function_meter._device_of(None, [1, "x", None]) is None


@pytest.mark.parametrize("where", ["arguments", "result"])
def test_a_machine_with_a_gpu_measures_the_cpu_where_the_tensors_are_there(monkeypatch, where):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    x = torch.ones(2)
    answer = measured(lambda *_: x if where == "result" else None, *([x] if where == "arguments" else []))
    assert answer.device.type == "cpu"


def test_a_machine_with_a_gpu_must_be_told_where_nothing_else_tells(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="device='cpu' or device='cuda' must be given"):
        measured(lambda: 1)
    assert measured(lambda: 1, device="cpu").device.type == "cpu"


def test_a_device_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    function_meter._detect.cache_clear()
    with pytest.raises(UsageError, match=r"^no device 'cuda:3': torch sees no GPU here$"):
        measured(lambda: 1, device="cuda:3")


def test_tensors_on_two_gpus_need_a_device(monkeypatch):
    class OnGpu(torch.Tensor):
        nbytes = 4
        index = 0

        @property
        def device(self):
            return torch.device("cuda", self.index)

    first, second = torch.ones(1).as_subclass(OnGpu), torch.ones(1).as_subclass(OnGpu)
    second.index = 1
    with pytest.raises(UsageError, match="the tensors lie on cuda:0 and cuda:1; device= says which"):
        measured(lambda *_: None, first, second, torch.ones(1))


# ---- what the answer says ------------------------------------------------------------------------------------------


def test_the_times_are_those_of_one_launch():
    answer = measured(time.sleep, 0.001, device="cpu")
    record = answer.record
    assert len(record.samples_s) >= QUICK.min_samples
    assert min(record.samples_s) >= 0.001  # no sleep is shorter
    assert record.ci95_s[0] <= record.median_s <= record.ci95_s[1]
    assert (record.method, record.launches_per_sample, record.status) == ("host", 1, "ok")
    assert record.first_call_s >= 0.001
    assert record.op == "sleep"


def test_the_result_is_that_of_the_first_call():
    calls = []
    answer = measured(lambda: calls.append(1) or len(calls), device="cpu")
    assert answer.result == 1
    assert len(calls) > QUICK.min_samples


def test_rates_and_shares_come_from_the_counts_and_the_measured_roofs(runs, threads):
    keep_ceilings(runs)
    x = torch.ones(1024)
    answer = measured(
        torch.add, x, 1, flops=1024, bytes_read=4096, bytes_written=4096, dtype="fp32", keywords={"alpha": 2}
    )
    rate = 1024 / answer.record.median_s
    assert answer.result[0] == 3
    assert answer.judged["flops_per_s"] == pytest.approx(rate)
    assert answer.judged["mfu"] == pytest.approx(rate / PEAKS_FLOPS_PER_S["fp32"])
    assert answer.judged["bytes_per_s"] == pytest.approx(8 * rate)
    assert answer.judged["mbu"] == pytest.approx(8 * rate / 2e10)
    assert answer.judged["intensity"] == 0.125
    assert answer.judged["peak_kind"] == "measured"


def test_roofs_of_another_number_of_threads_do_not_count(runs, threads):
    keep_ceilings(runs)
    torch.set_num_threads(THREADS + 1)
    answer = measured(torch.neg, torch.ones(4), flops=4, bytes_moved=32, dtype="fp32")
    assert answer.device.threads == THREADS + 1
    assert answer.device.slug.endswith(f"-{answer.device.threads}t")
    assert (answer.judged["mfu"], answer.judged["mbu"]) == (None, None)
    assert answer.judged["flops_per_s"] > 0


@pytest.mark.parametrize(
    ("counts", "known"),
    [
        ({}, set()),
        ({"flops": 8}, {"flops_per_s", "mfu", "peak_kind"}),
        ({"flops": 8, "dtype": None}, {"flops_per_s"}),
        ({"bytes_moved": 8}, {"bytes_per_s", "mbu", "bandwidth_kind", "mix", "mix_pct"}),
        ({"bytes_read": 8}, {"bytes_per_s", "mbu", "bandwidth_kind", "mix", "mix_pct"}),
    ],
)
def test_what_nobody_counted_is_not_judged(runs, threads, counts, known):
    keep_ceilings(runs)
    answer = measured(torch.neg, torch.ones(4), **({"dtype": "fp32"} | counts))
    assert {key for key, value in answer.judged.items() if value is not None} == known


def test_bytes_moved_are_judged_as_those_of_a_copy():
    assert Question(bytes_moved=9).work.bytes_read == 5
    assert Question(bytes_moved=9).work.bytes == 9
    assert Question(bytes_read=9).work.bytes == 9


def test_more_flops_than_the_machine_can_do_is_invalid(monkeypatch):
    peak = Ceiling("flops", "bf16", 1e12, "datasheet", "made up")
    monkeypatch.setattr(function_meter, "_known_ceilings", lambda device: Ceilings("x", "X", (peak,)))
    right = measured(time.sleep, 0.001, device="cpu", flops=10**6, dtype="bf16")
    wrong = measured(time.sleep, 0.001, device="cpu", flops=10**15, dtype="bf16")
    assert (right.record.status, right.record.reason) == ("ok", None)
    assert wrong.record.status == "invalid"
    assert wrong.record.reason.startswith("faster than physics: ")
    assert wrong.judged["mfu"] is None  # a time that cannot be has no utilization
