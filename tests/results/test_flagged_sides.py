"""Verdicts on sides with flags, at the limits of the rules of `results.compare.comparison`."""

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

    def judge(compared, samples, flags=BOTH, is_paired=True, cache="cold"):
        sides = []
        for (own, median), names in zip(samples, flags, strict=True):
            record = make_record(samples_s=own, median_s=median, flags=names, cache=cache)
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
    ("verdict", "flags", "cache", "found"),
    [
        (FASTER, ((), ("above-roof",)), "cold", UNSURE),
        (FASTER, (("above-roof",), ("above-roof",)), "cold", FASTER),  # the roof is wrong
        (FASTER, (("above-roof",), ()), "cold", FASTER),
        (FASTER, ((), ("above-roof",)), "warm", FASTER),  # a nearer cache may serve it
        (SLOWER, ((), ("above-roof",)), "cold", SLOWER),
    ],
)
def test_a_time_that_only_its_roofs_do_not_explain_is_not_faster(
    flagged, verdict, flags, cache, found, is_paired
):
    ends = (0.4, 0.6) if verdict == FASTER else (1.4, 1.6)
    before = compared(sum(ends) / 2, *ends, verdict)
    after = flagged(before, STEADY, flags, is_paired, cache)
    assert after.verdict == found
    if found == UNSURE:
        assert after.reason == (
            "so, but the candidate is flagged above-roof: the roofs do not explain its time"
        )


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
