"""All providers of a case go round the same copies of the inputs, and never right behind each other."""

import random
import time
from functools import partial
from types import SimpleNamespace

import pytest

from bench.elementwise import OPS
from bench.harness.compare import case as compare_case
from bench.harness.compare import meter as compare_meter
from bench.harness.compare.case import InterleavingRunner, refuse_if_too_slow
from bench.harness.compare.meter import Broken, InterleavingMeter, Ready, Turns, exchange, least_s, share_launches
from bench.harness.compare.rounds import Rule
from bench.harness.data.inputs import Rotation
from bench.harness.device.device import cpu_device
from bench.harness.measure import measure_row as row_protocol
from bench.harness.measure.budget import Budget
from bench.harness.measure.rows import Row, Settings
from bench.harness.op import Case
from bench.harness.providers.registry import ProviderUnavailableError
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits
from roofline.ceilings import Ceilings

RELU = next(op for op in OPS if op.name == "relu")
RELU_ROW = Row(RELU, Case("relu", "fp32", {"n": 64}), "torch", family="elementwise")
LIMITS = Limits(5, 0.5, 0.0, 0.05, 0.0, 1e-6)


def meter_of(limits):
    meter = InterleavingMeter(cpu_device())
    meter._limits = limits
    return meter


def test_every_provider_is_given_the_same_memory_in_tensors_of_its_own(monkeypatch):
    device = cpu_device()
    runner = InterleavingRunner(device, Budget(device, Settings()), None, Ceilings("x", "X"))
    runner._views = [[], []]
    monkeypatch.setattr(row_protocol, "rotation_of", lambda row, device: Rotation(3, "cold"))
    (first, cache), (second, _) = (runner._copies(RELU_ROW) for _ in range(2))
    assert cache == "cold"
    places = [[(data.inputs[0].data_ptr(), data.out.data_ptr()) for data in sets] for sets in (first, second)]
    assert places[0] == places[1]
    assert len(set(places[0])) == 3
    assert first[0].out is not second[0].out  # who gives a tensor other memory changes its own only


@pytest.mark.parametrize(("copies", "providers", "starts"), [(8, 2, [0, 4]), (9, 3, [0, 3, 6]), (1, 2, [0, 0])])
def test_turns_begin_as_far_apart_as_the_copies_allow(monkeypatch, copies, providers, starts):
    meter = meter_of(LIMITS)
    began = []
    make_sampler = samplers.make_sampler

    def watched(calls, device, limits, *_):
        began.append(calls[0]())
        return make_sampler(calls, device, limits)

    monkeypatch.setattr(compare_meter.samplers, "make_sampler", watched)
    calls = [lambda copy=copy: copy for copy in range(copies)]
    ready = [Ready(calls, "cold") for _ in range(providers)]
    for place in range(providers):
        assert not isinstance(meter._turns(ready, place), Broken)
    assert began == starts


def test_a_provider_that_is_too_slow_for_the_time_left_is_refused_before_the_rounds():
    """The fewest calls are 15: of 2 s each they do not fit 29 s, nor beside another's of 10 s 39 s."""
    text = "a call takes 2 s and the fewest of a comparison 30 s, more than the 29 s that are left"
    with pytest.raises(ProviderUnavailableError, match=f"^{text}; a larger --budget allows it$"):
        refuse_if_too_slow(30.0, 0.0, 29.0)
    with pytest.raises(ProviderUnavailableError, match=r"40 s, more than the 39 s"):
        refuse_if_too_slow(30.0, 10.0, 39.0)
    refuse_if_too_slow(30.0, 0.0, 31.0)
    refuse_if_too_slow(30.0, 10.0, 41.0)
    refuse_if_too_slow(30.0, 0.0, None)
    refuse_if_too_slow(0.0, 10.0, 1e-3)  # for short calls there is the first estimate


def test_the_fewest_calls_of_a_slow_provider_are_fifteen():
    assert least_s(partial(time.sleep, 0.02), lambda: None) > 15 * 0.02
    assert least_s(lambda: None, lambda: None) == 0.0


@pytest.mark.parametrize(("deadline", "left_s"), [(5.0, 5.0), (None, 100.0)])
def test_a_baseline_that_is_left_alone_has_the_time_of_its_case_and_its_graph_is_verified(
    monkeypatch, deadline, left_s
):
    monkeypatch.setattr(compare_case, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(compare_case, "take_samples", lambda *given: given)
    monkeypatch.setattr(compare_case, "finish", lambda prepared, samples, *_: samples)
    device = cpu_device()
    made = InterleavingRunner(device, Budget(device, Settings(), 100.0, clock=lambda: 0.0), 100.0, Ceilings("x", "X"))
    prepared = SimpleNamespace(row=RELU_ROW, prepared_s=0.0, replay="check")
    given = made._measure_alone(prepared, Ready([lambda: None], "cold"), Rule(0.01, deadline=deadline))
    assert given[5:] == (left_s, 0.0, "check")  # its graph is verified as that of any other row


def turns(launches, call_s):
    return Turns(samplers.HostSampler([lambda: None], launches), lambda: None, call_s=call_s)


def test_equal_providers_have_samples_of_as_many_launches_and_a_much_slower_one_keeps_its_own():
    close = [turns(40, 25e-6), turns(50, 21e-6), turns(1, 1.2e-3), turns(1, 10.0)]
    share_launches(close)
    assert [turn.sampler.launches_per_sample for turn in close] == [50, 50, 16, 1]


def test_providers_exchange_copies_and_calls_and_stay_as_far_apart_as_can_be():
    """Who follows closer behind another finds more in the cache."""
    meter, seen = meter_of(LIMITS), {}
    made = []

    def ready_of(name):
        def new_call(copy):
            made.append(name)
            return lambda: seen.update({name: copy})

        return Ready([new_call(copy) for copy in range(12)], "cold", new_call=new_call)

    ready = [ready_of("first"), ready_of("second")]
    found = [meter._turns(ready, at) for at in range(2)]
    share_launches(found)
    for turn in found:
        turn.sampler.launches_per_sample = 1
    order, starts = random.Random(1), []
    made.clear()
    for _ in range(20):
        exchange(ready, found, order)
        for turn in found:
            turn.slot()
        starts.append((seen["first"], seen["second"]))
    assert all(abs(first - second) == 6 for first, second in starts)
    assert [min(pair) for pair in starts] == [turn % 6 for turn in range(20)]  # each copy is used as rarely as before
    assert 4 <= sum(first < second for first, second in starts) <= 16
    assert 4 <= sum(made[place] == "first" for place in range(0, 40, 2)) <= 16


def test_calls_that_are_announced_one_by_one_are_not_made_anew():
    calls = [lambda: None] * 3
    ready = [Ready(calls, "warm") for _ in range(2)]
    found = [meter_of(LIMITS)._turns(ready, at) for at in range(2)]
    exchange(ready, [*found[:1], Broken(ValueError())], random.Random(0))
    assert next(found[0].sampler._calls) is calls[0]


def test_the_graph_of_each_provider_is_verified_from_the_copy_on_which_it_begins(monkeypatch):
    made = meter_of(LIMITS)
    asked, calls = [], [lambda: None] * 4
    sampler = samplers.HostSampler(calls, 1)
    monkeypatch.setattr(compare_meter, "make_sampler", lambda *how: asked.append(how[4]) or sampler)
    ready = [Ready(calls, "cold", replay=lambda first: f"from {first}") for _ in range(2)]
    assert [made._turns(ready, place).replay for place in range(2)] == asked == ["from 0", "from 2"]
