"""Verdicts on sides with flags, at the limits of the rules of `results.compare.comparison`."""

from dataclasses import replace

import pytest

from results.compare.comparison import with_flags
from results.compare.sides import Side
from results.stats.comparison import FASTER, SLOWER, UNSURE, Comparison

BOTH = (("preempted",), ("preempted",))


@pytest.fixture
def flagged(make_record, make_environment):
    """Returns a function from a comparison, the samples and the flags of both sides to the
    comparison with flags.
    """

    def judge(compared, samples, flags=BOTH, is_paired=True):
        sides = []
        for (own, median), names in zip(samples, flags, strict=True):
            record = make_record(samples_s=own, median_s=median, flags=names)
            sides.append(Side.of("", [record], make_environment()))
        return with_flags(compared, *sides, is_paired)

    return judge


def compared(ratio, low, high, verdict, pairs=40):
    return Comparison(ratio, (low, high), verdict, "so", pairs, 0.01, p_value=0.001)


STEADY = (((1.0, 1.0), 1.0), ((1.0, 1.0), 1.0))


@pytest.mark.parametrize(("pairs", "verdict"), [(79, UNSURE), (80, SLOWER)])
def test_interference_with_both_needs_80_rounds(flagged, pairs, verdict):
    found = flagged(compared(1.3, 1.2, 1.4, SLOWER, pairs), STEADY)
    assert found.verdict == verdict
    text = "both are flagged preempted"
    if verdict == UNSURE:
        assert found.reason == f"so, but {text}; 79 rounds are too few"
        assert found.p_value == 1.0
    else:
        assert found.reason == f"so; {text}"


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize(
    ("verdict", "shares", "cache", "found"),
    [
        (FASTER, (0.9, 1.04), "cold", UNSURE),
        (FASTER, (None, 1.04), "cold", UNSURE),
        (FASTER, (0.9, 1.02), "cold", FASTER),
        (FASTER, (0.9, None), "cold", FASTER),
        (FASTER, (1.5, 3.0), "cold", FASTER),  # the roof is wrong
        (FASTER, (0.9, 3.0), "warm", FASTER),  # a nearer cache may serve it
        (FASTER, (0.9, 21.0), "warm", UNSURE),
        (FASTER, (0.9, 3.0), "warm compute", UNSURE),
        (SLOWER, (0.9, 1.5), "cold", SLOWER),
    ],
)
def test_a_time_that_the_roof_does_not_explain_is_not_faster(
    make_record, make_environment, verdict, shares, cache, found, is_paired
):
    sides = []
    cache, _, roof = cache.partition(" ")
    for share in shares:
        side = Side.of("", [make_record(cache=cache)], make_environment())
        sides.append(replace(side, of_ceiling=share and (share, roof or "memory")))
    ends = (0.4, 0.6) if verdict == FASTER else (1.4, 1.6)
    after = with_flags(compared(sum(ends) / 2, *ends, verdict), *sides, is_paired)
    assert after.verdict == found
    assert ("but the candidate is above its roof: " in after.reason) == (found == UNSURE)


@pytest.mark.parametrize(
    ("ratio", "ends", "fastest", "verdict"),
    [
        (3.0, (2.03, 4.0), 2.03, SLOWER),
        (3.0, (2.03, 4.0), 2.01, UNSURE),
        (3.0, (2.01, 4.0), 2.5, UNSURE),
        (3.0, (2.03, 4.0), 0.3, UNSURE),
        (0.3, (0.2, 0.49), 0.49, FASTER),
        (0.3, (0.2, 0.49), 0.5, UNSURE),
        (0.3, (0.2, 0.49), 3.0, UNSURE),
    ],
)
def test_few_rounds_suffice_beyond_any_interference(flagged, ratio, ends, fastest, verdict):
    """The interval and the fastest samples must differ by more than 2 x 1.01."""
    slow = SLOWER if ratio > 1 else FASTER
    samples = (((2.0, 1.0), 1.0), ((fastest, 9.0), 1.0))
    assert flagged(compared(ratio, *ends, slow), samples).verdict == verdict
