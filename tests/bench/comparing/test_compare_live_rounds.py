"""Rounds on simulated devices with known truth: the verdicts, and the number of rounds."""

import math
from functools import partial
from types import SimpleNamespace

import pytest

from bench.comparing.turns import FIRST_LOOK, MAX_ROUNDS, ComparePolicy, run_rounds
from results.compare.flags import MIN_DISTURBED_ROUNDS
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE, compare_pairs, times_longer
from tests.simulated_device import SimulatedDevice

TRIALS = 200

KINDS = {
    "noise": {"noise": 0.01},
    "drift": {"noise": 0.01, "drift": 0.03, "drift_s": 2.0},
    "correlated": {"noise": 0.02, "correlation": 0.7},
    "all": {
        "noise": 0.01,
        "correlation": 0.5,
        "slow_share": 0.3,
        "slow_by": 0.08,
        "drift": 0.03,
        "drift_s": 2.0,
    },
}


def rounds_of(device, *times, policy, **others):
    return run_rounds([device.load(factor).slot for factor in times], policy, device.now, **others)


def verdicts_of(kind, change, trials, margin=0.01, budget_s=10.0):
    """Return the verdicts of comparisons whose candidate is slower by `change`."""
    found = []
    for seed in range(trials):
        device, policy = (
            SimulatedDevice(seed=seed, **KINDS[kind]),
            ComparePolicy(margin, budget_s=budget_s, seed=seed),
        )
        rounds = rounds_of(device, 1.0, 1 + change, policy=policy)
        found.append(rounds.comparison(1, policy).verdict)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_false_verdicts_of_equal_functions_stay_below_5_percent(kind):
    verdicts = verdicts_of(kind, 0.0, TRIALS)
    assert verdicts.count(FASTER) + verdicts.count(SLOWER) <= 0.05 * TRIALS


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "change"), [("noise", 0.02), ("drift", -0.02), ("all", 0.02)])
def test_a_change_of_2_percent_is_detected(kind, change):
    assert (
        verdicts_of(kind, change, TRIALS).count(SLOWER if change > 0 else FASTER) >= 0.95 * TRIALS
    )


@pytest.mark.exhaustive
def test_repeated_looks_give_no_verdict_at_the_margin():
    verdicts = verdicts_of("correlated", 0.01, TRIALS, budget_s=1.5)
    assert verdicts.count(SLOWER) + verdicts.count(FASTER) <= 0.05 * TRIALS


def test_a_clear_verdict_ends_the_rounds_at_the_first_look():
    found = rounds_of(SimulatedDevice(noise=0.01), 1.0, 1.5, policy=ComparePolicy(0.01))
    assert (found.count, found.is_clear) == (FIRST_LOOK, True)
    assert found.comparison(1, ComparePolicy(0.01)).verdict == SLOWER


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ({}, {"is_disturbed": lambda: True}),
        ({"drift": 0.5}, {}),
        ({"slow_share": 0.4, "slow_by": 0.3, "seed": 1}, {}),
    ],
    ids=["told so", "drift", "two speeds"],
)
def test_noisy_rounds_need_more_rounds_for_a_verdict(device, options):
    found = rounds_of(
        SimulatedDevice(noise=0.005, **device), 1.0, 2.0, policy=ComparePolicy(0.01), **options
    )
    assert (found.count, found.is_clear) == (MIN_DISTURBED_ROUNDS, True)


def test_equal_functions_under_interference_are_never_clear():
    policy = ComparePolicy(0.05, budget_s=0.5)
    for looks, is_clear in ((2, True), (100, False)):
        answers = iter([True] * looks + [False] * 100)
        found = rounds_of(
            SimulatedDevice(noise=0.005), 1.0, 1.0, policy=policy, is_disturbed=answers.__next__
        )
        assert found.is_clear is is_clear
        assert (found.seconds >= 0.5) is not is_clear


def test_contenders_exchange_copies_every_fifth_round():
    device, at = SimulatedDevice(noise=0.01), []
    rounds_of(
        device,
        1.0,
        1.5,
        policy=ComparePolicy(0.01, rounds=12),
        exchange=lambda: at.append(device.seconds),
    )
    rounds_s = 2.5 * device.launch_s * device.launches_per_sample
    assert [round(seconds / rounds_s) for seconds in at] == [0, 5, 10]


def test_rounds_go_on_until_all_verdicts_are_clear():
    policy = ComparePolicy(0.01)
    alone = rounds_of(SimulatedDevice(noise=0.02), 1.0, 1.5, policy=policy)
    with_another = rounds_of(SimulatedDevice(noise=0.02), 1.0, 1.5, 1.0, policy=policy)
    assert with_another.count > alone.count
    assert [with_another.comparison(index, policy).verdict for index in (1, 2)] == [SLOWER, SAME]


def test_unclear_comparisons_use_the_whole_budget():
    device, policy = SimulatedDevice(noise=0.05), ComparePolicy(0.001, budget_s=1.0)
    found = rounds_of(device, 1.0, 1.0, policy=policy)
    assert not found.is_clear
    assert found.comparison(1, policy).verdict == UNSURE
    assert 1.0 <= found.seconds <= 1.01


def test_a_budget_of_zero_still_gives_an_interval():
    policy = ComparePolicy(0.01, budget_s=0.0)
    found = rounds_of(SimulatedDevice(), 1.0, 1.0, policy=policy)
    assert found.count == 6
    assert not math.isinf(found.comparison(1, policy).ci95[1])


def test_a_deadline_includes_the_preparation():
    for prepared_s, rounds_s in ((0.0, 2.0), (1.5, 0.5)):
        device = SimulatedDevice(noise=0.05, seconds=prepared_s)
        found = rounds_of(
            device, 1.0, 1.0, policy=ComparePolicy(0.001, budget_s=math.inf, deadline=2.0)
        )
        assert found.seconds == pytest.approx(rounds_s, abs=0.01)
    found = rounds_of(
        SimulatedDevice(seconds=3.0), 1.0, 1.0, policy=ComparePolicy(0.001, deadline=2.0)
    )
    assert found.count == 6  # the deadline has passed, but an interval is still possible


def test_rounds_never_exceed_the_maximum():
    found = rounds_of(
        SimulatedDevice(noise=0.05, launch_s=1e-9),
        1.0,
        1.0,
        policy=ComparePolicy(1e-6, budget_s=1e9),
    )
    assert found.count == MAX_ROUNDS
    assert not found.is_clear


def test_fixed_rounds_have_an_uncorrected_interval():
    policy = ComparePolicy(0.01, rounds=37)
    found = rounds_of(SimulatedDevice(noise=0.01), 1.0, 1.5, policy=policy)
    assert found.count == 37
    series = [[slot[0] for slot in slots] for slots in found.slots]
    assert found.comparison(1, policy).ci95 == pytest.approx(compare_pairs(*series).ci95)


def spies(**fails_at):
    """Return contenders that take one second a turn and may fail, and the log of their turns."""
    log = []

    def turn(name):
        turns = 1 + log.count(name)
        if turns == fails_at.get(name):
            return None
        log.append(name)
        return (1.0 + 1e-6 * turns,)

    return [partial(turn, name) for name in "abc"], log


def test_each_round_runs_all_contenders_in_seeded_order():
    contenders, log = spies()
    run_rounds(contenders, ComparePolicy(0.01, rounds=60, seed=7))
    turns = ["".join(log[start : start + 3]) for start in range(0, 180, 3)]
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) == 6  # every order comes
    again, second = spies()
    run_rounds(again, ComparePolicy(0.01, rounds=60, seed=7))
    assert second == log
    other, third = spies()
    run_rounds(other, ComparePolicy(0.01, rounds=60, seed=8))
    assert third != log


def test_a_failed_contender_leaves_and_the_others_go_on():
    contenders, log = spies(b=11)
    found = run_rounds(contenders, ComparePolicy(0.01, rounds=30))
    assert [len(slots) for slots in found.slots] == [30, 10, 30]
    assert found.running() == [0, 2]
    assert log.count("c") == 30


def test_rounds_end_if_the_baseline_fails():
    contenders, log = spies(a=5)
    found = run_rounds(contenders, ComparePolicy(0.01, rounds=30))
    assert found.running() == []
    assert not found.is_clear
    assert len(log) <= 4 + 2 * 5


def test_the_clock_is_read_after_each_turn():
    contenders, _ = spies()
    readings = iter(range(1000))
    found = run_rounds(
        contenders, ComparePolicy(0.01, rounds=10), clock_hz=lambda _: float(next(readings))
    )
    assert sorted(clock for clocks in found.clocks_hz for clock in clocks) == list(range(30))


@pytest.mark.parametrize(
    ("ratio", "half", "wanted"),
    [(1.0, 0.02, 4.0), (1.0, 0.04, 16.0), (1.03, 0.04, 4.1), (1.0101, 0.04, None)],
)
def test_times_longer_follows_the_square_of_the_half_width(ratio, half, wanted):
    ends = (ratio * math.exp(-half), ratio * math.exp(half))
    compared = SimpleNamespace(verdict=UNSURE, pairs=100, ratio=ratio, ci95=ends, margin=0.01)
    found = times_longer(compared)
    assert found is None if wanted is None else found == pytest.approx(wanted, rel=0.03)
