"""Reasons are found where the steps hold them, and nowhere else."""

import math

import pytest

from bench.validation.other_clocks import Evidence, Rung, explain, is_certain, percent

LADDER = (
    Rung("pairs", "a pair of events"),
    Rung("flush", "a flush"),
    Rung("median", None),
    Rung("theirs", "the mean"),
)
WIGGLE = (1.0, 1.001, 0.999, 1.0005, 0.9995)


def rounds(**factors):
    """Return five rounds of 10 us; each way is slower than the one before by its factor, and wiggles by 0.1 %."""
    found = []
    for wiggle in WIGGLE:
        time_s, one = 1e-5, {"ours": 1e-5}
        for way in ("pairs", "flush", "median", "theirs"):
            time_s *= factors.get(way, 1.0)
            one[way] = time_s * wiggle
        found.append(one)
    return found


def test_a_difference_within_two_percent_needs_no_reason():
    found = explain("ours", LADDER, rounds(pairs=1.019), Evidence())
    assert (found.verdict, found.reasons) == ("same", ())
    assert found.ratio == pytest.approx(1.019, rel=1e-3)


def test_a_difference_above_two_percent_needs_one():
    assert explain("ours", LADDER, rounds(pairs=1.025), Evidence()).verdict == "explained"


def test_a_step_that_comes_and_goes_is_no_reason():
    wild = [
        {"ours": 1e-5, "pairs": 1e-5 * factor, "median": 1.3e-5, "theirs": 1.3e-5}
        for factor in (2.0, 0.6, 1.4, 0.7, 1.9)
    ]
    assert explain("ours", LADDER, wild, Evidence()).reasons == ("unexplained",)


def test_the_clock_of_a_step_is_set_against_that_of_the_rung_before():
    evidence = Evidence(clock_hz={"ours": 1.65e9, "pairs": 1.5e9, "flush": 1.5e9})
    assert explain("ours", LADDER, rounds(flush=1.10), evidence).reasons == ("+10.0% a flush",)


def test_the_step_that_makes_the_difference_is_the_reason():
    found = explain("ours", LADDER, rounds(flush=1.10), Evidence(notes={"flush": "measured: 1 us"}))
    assert found.verdict == "explained"
    assert found.reasons == ("+10.0% a flush (measured: 1 us)",)


def test_steps_of_both_signs_add_up():
    found = explain("ours", LADDER, rounds(pairs=1.30, flush=0.90), Evidence())
    assert found.verdict == "explained"
    assert [reason.split()[0] for reason in found.reasons] == ["+30.0%", "-10.0%"]


def test_what_no_known_change_covers_is_unexplained():
    found = explain("ours", LADDER, rounds(median=1.10), Evidence(notes={"median": "none"}))
    assert (found.verdict, found.reasons) == ("unexplained", ("unexplained",))


def test_a_rest_is_said_beside_what_was_found():
    found = explain("ours", LADDER, rounds(pairs=1.05, median=1.06), Evidence())
    assert found.verdict == "partly"
    assert found.reasons == ("+5.0% a pair of events", "+6.0% unexplained")


def test_a_small_step_is_no_reason():
    found = explain("ours", LADDER, rounds(pairs=1.004, median=1.10), Evidence())
    assert found.reasons == ("unexplained",)


@pytest.mark.parametrize(("second_hz", "is_clock"), [(1.5e9, True), (1.98e9, False), (2.5e9, False), (1.0e9, False)])
def test_the_clock_stands_for_a_step_only_where_it_changed_as_much(second_hz, is_clock):
    evidence = Evidence(clock_hz={"flush": 1.65e9, "median": second_hz, "pairs": 1.65e9, "ours": 1.65e9})
    found = explain("ours", LADDER, rounds(median=1.10), evidence)
    assert (found.verdict == "explained") == is_clock
    assert found.reasons == (("+10.0% SM clock 1650 -> 1500 MHz",) if is_clock else ("unexplained",))


def test_a_step_that_the_clock_explains_is_not_said_to_be_of_its_change_alone():
    evidence = Evidence(clock_hz={"ours": 1.98e9, "pairs": 1.80e9})
    found = explain("ours", LADDER, rounds(pairs=1.10), evidence)
    assert found.reasons == ("+10.0% SM clock 1980 -> 1800 MHz (a pair of events)",)


def test_rounds_that_disagree_give_no_reason():
    wild = [{"ours": 1e-5, "pairs": 1e-5 * factor, "theirs": 1e-5 * factor} for factor in (1.3, 0.8, 1.2, 1.1, 0.9)]
    evidence = Evidence(scatter={"theirs": (10, 0.2)}, disturbance="others were busy")
    found = explain("ours", LADDER, wild, evidence)
    assert found.verdict == "unexplained"
    assert found.reasons == (
        "unexplained: the rounds disagree, 10 values each, ±20.0% on their mean, others were busy",
    )


def test_too_few_repetitions_stand_for_a_rest_that_they_can_explain():
    few, many = Evidence(scatter={"theirs": (10, 0.06)}), Evidence(scatter={"theirs": (1000, 0.006)})
    assert explain("ours", LADDER, rounds(median=1.10), few).verdict == "explained"
    assert "10 values, ±6.0%" in explain("ours", LADDER, rounds(median=1.10), few).reasons[0]
    assert explain("ours", LADDER, rounds(median=1.10), many).verdict == "unexplained"


def test_a_rung_without_times_leaves_its_change_to_the_next():
    lacking = [{way: time_s for way, time_s in one.items() if way != "pairs"} for one in rounds(flush=1.10)]
    assert explain("ours", LADDER, lacking, Evidence()).reasons == ("+10.0% a pair of events or a flush",)
    lacking = [{way: time_s for way, time_s in one.items() if way != "flush"} for one in rounds(flush=1.10)]
    assert explain("ours", LADDER, lacking, Evidence()).reasons == ("unexplained",)  # `median` has no known change


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_round_without_a_time_does_not_count(value):
    broken = [*rounds(flush=1.10), {"ours": 1e-5, "theirs": value}]
    assert explain("ours", LADDER, broken, Evidence()).rounds == 5
    assert explain("ours", LADDER, [{"ours": value, "theirs": 1.0}] * 5, Evidence()) is None
    assert explain("ours", LADDER, [], Evidence()) is None


def test_one_far_round_is_no_certainty():
    assert is_certain([0.10, 0.11, 0.09])
    assert not is_certain([0.10, 0.11])
    assert not is_certain([0.01, 0.01, -0.20, 0.01, 0.9])


def test_large_steps_are_factors():
    assert [percent(math.log(ratio)) for ratio in (1.05, 0.9, 2.5, 0.25)] == ["+5.0%", "-10.0%", "x2.5", "x0.25"]
