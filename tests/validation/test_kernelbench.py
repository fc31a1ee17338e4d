"""Ten solutions of a problem in KernelBench's format: the right ones get a verdict, the wrong ones
do not.
"""

import pytest

from tests.validation.kernelbench import RIGHT, WRONG, compared, passes_kernelbench


def test_a_tolerance_above_all_results_accepts_zeros():
    assert passes_kernelbench("Logarithms")
    assert passes_kernelbench("Zeros")


@pytest.mark.exhaustive
def test_right_solutions_get_a_verdict_and_wrong_ones_do_not():
    found = compared([*RIGHT, *WRONG], "--rounds", "6", "--cache", "warm")
    for name in RIGHT:
        assert found[name] in ("FASTER", "SLOWER", "SAME", "UNSURE"), found[name]
    for name in WRONG:
        assert found[name].startswith("invalid: "), found[name]
