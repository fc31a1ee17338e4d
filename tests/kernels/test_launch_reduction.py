"""Launchers of the reductions without a GPU: what they ask the compiler for, and who counts where."""

import pytest
import reduction_cases as cases
import torch

import kernels.launch

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = cases.versions()
V2 = VERSIONS["v2"]


@pytest.mark.parametrize("programs", [432, 528, 592])
def test_plans_cover_every_element_once(programs):
    for variant in V2.variants(90):
        lanes, access, loads = (variant.constants[name] for name in ("LANES", "ACCESS", "LOADS"))
        for n in (0, 1, access - 1, access, 10**6 + 1, 2**24, 2**28 + 5, 2**31 + 4099, 2**33):
            count, rounds, piece = V2.plan(n, variant, programs)
            left = n // access - rounds * count * lanes * loads
            assert 1 <= count <= programs
            assert 0 <= left <= count * piece
            assert piece <= lanes * loads
            assert piece % lanes == 0
            if n // access > programs * lanes:
                assert count == programs


# ---- arrival counters -----------------------------------------------------------------------------------------------


class Gpu:
    """A device of type cuda that torch need not have: tensors 'moved' to it stay where they are."""

    type = "cuda"


@pytest.fixture
def streams(monkeypatch):
    """The current stream and whether it is being recorded, to be set by a test."""

    class Current:
        cuda_stream = 1
        is_recorded = False

    zeros = torch.zeros
    monkeypatch.setattr(V2.torch, "zeros", lambda *shape, device=None, **options: zeros(*shape, **options))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Current.is_recorded)
    return Current


def places(counters, launches_count=3):
    return [counters.take().data_ptr() for _ in range(launches_count)]


def test_a_stream_keeps_its_counter_and_shares_it_with_no_other(streams):
    counters = V2.Counters(Gpu())
    first = places(counters)
    streams.cuda_stream = 2
    second = places(counters)
    streams.cuda_stream = 1
    assert places(counters) == first
    assert len(set(first)) == len(set(second)) == 1
    assert set(first).isdisjoint(second)


def test_a_recorded_launch_keeps_a_counter_of_its_own(streams):
    counters = V2.Counters(Gpu())
    eager = places(counters)
    streams.is_recorded = True
    recorded = places(counters, 2 * V2.COUNTERS // 3)  # on the stream of the eager launches
    streams.is_recorded = False
    more = places(counters)  # fills up
    streams.is_recorded = True
    recorded += places(counters, V2.COUNTERS)
    assert more == eager
    assert len({*recorded, *eager}) == len(recorded) + 1
    # A graph knows addresses only: all of them stay allocated. Each is aligned, so that one binary serves all.
    kept = {row.data_ptr() for block in counters._kept for row in block}
    assert not [place for place in recorded if place % 16]
    assert set(recorded) <= kept


def test_a_recorded_launch_without_a_counter_at_hand_fills_one(streams):
    streams.is_recorded = True
    counter = V2.Counters(Gpu()).take()
    assert counter.tolist() == [0]
