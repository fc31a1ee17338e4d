"""All providers of a case go round the same copies of the inputs, and never right behind each other."""

import pytest

from bench.elementwise import OPS
from bench.harness import compare_meter, samplers
from bench.harness.compare_case import InterleavingRunner
from bench.harness.compare_meter import Broken, InterleavingMeter, Ready, Turns, share_launches
from bench.harness.cost import CostEstimator
from bench.harness.device.device import cpu_device
from bench.harness.op import Case
from bench.harness.runner import Settings
from bench.harness.timing import Limits
from roofline.ceilings import Ceilings

RELU = next(op for op in OPS if op.name == "relu")
LIMITS = Limits(5, 0.5, 0.0, 0.05, 0.0, 1e-6)


@pytest.mark.parametrize("has_foreign", [False, True])
def test_every_provider_is_given_the_same_memory(has_foreign):
    device = cpu_device()
    runner = InterleavingRunner(
        "elementwise", device, Settings(), CostEstimator(device, "uniform", 0), None, Ceilings("x", "X")
    )
    runner._has_foreign = has_foreign
    case = Case("relu", "fp32", {"n": 64})
    first, second = (runner._input_sets(RELU, case, 3) for _ in range(2))
    assert first is not second  # each may put guards around its own outputs
    places = [[(data.inputs[0].data_ptr(), data.out.data_ptr()) for data in sets] for sets in (first, second)]
    assert places[0] == places[1]
    assert len(set(places[0])) == 3
    assert (first[0].out is second[0].out) is not has_foreign  # who gives a tensor other memory changes its own only


@pytest.mark.parametrize(("copies", "providers", "starts"), [(8, 2, [0, 4]), (9, 3, [0, 3, 6]), (1, 2, [0, 0])])
def test_turns_begin_as_far_apart_as_the_copies_allow(monkeypatch, copies, providers, starts):
    meter = InterleavingMeter(cpu_device(), LIMITS)
    began = []
    make_sampler = samplers.make_sampler

    def watched(calls, device, limits, is_capturable=True):
        began.append(calls[0]())
        return make_sampler(calls, device, limits)

    monkeypatch.setattr(compare_meter.samplers, "make_sampler", watched)
    calls = [lambda copy=copy: copy for copy in range(copies)]
    meter._ready = [Ready(calls, "cold", lambda: None) for _ in range(providers)]
    for place, ready in enumerate(meter._ready):
        assert not isinstance(meter._turns(ready, place), Broken)
    assert began == starts


def turns(launches, call_s):
    return Turns(samplers.HostSampler([lambda: None], launches), lambda: None, call_s=call_s)


def test_equal_providers_have_samples_of_as_many_launches_and_a_much_slower_one_keeps_its_own():
    close = [turns(40, 25e-6), turns(50, 21e-6), turns(1, 1.2e-3), turns(1, 10.0)]
    share_launches(close)
    assert [turn.sampler.launches_per_sample for turn in close] == [50, 50, 16, 1]


def test_providers_stay_as_far_apart_on_the_copies_as_can_be_whatever_the_first_samples_took():
    """Who follows closer behind another finds more in the cache."""
    meter, place = InterleavingMeter(cpu_device(), LIMITS), {}
    calls = [lambda copy=copy: place.update(now=copy) for copy in range(12)]
    meter._ready = [Ready(calls, "cold", lambda: None) for _ in range(2)]
    first, second = found = [meter._turns(ready, at) for at, ready in enumerate(meter._ready)]
    first.sampler.launches_per_sample = 5
    first.sampler.sample()
    share_launches(found)
    starts = []
    for turn in (first, second):
        turn.sampler.launches_per_sample = 1
        turn.sampler.sample()
        starts.append(place["now"])
    assert starts == [0, 6]
