"""Numbers looked at all together are refused where a look at each record refuses them."""

import pytest

from results.compare.number_columns import Numbers
from results.record import MAX_COUNT, RecordError, checked_fields

BAD = {
    "extent of 0": {"shape": {"m": 0, "n": 64}},
    "extent as text": {"shape": {"m": "64"}},
    "extent beyond any": {"shape": {"m": MAX_COUNT + 1}},
    "count below 0": {"flops": -1},
    "count beyond any": {"bytes_read": MAX_COUNT + 1},
    "half a byte": {"bytes_written": 0.5},
    "truth for a count": {"flops": True},
    "interval from 0": {"ci95_s": [0.0, 1e-5]},
    "interval beyond any": {"ci95_s": [1e-6, 1e13]},
    "interval turned round": {"ci95_s": [2e-5, 1e-5]},
    "interval as text": {"ci95_s": ["1e-5", 2e-5]},
}


@pytest.mark.parametrize("changes", [{}, {"flops": None}, {"flops": 0}, *BAD.values()], ids=str)
def test_all_together_is_as_one_by_one(make_record, changes):
    good = make_record().to_dict()
    assert good["status"] == "ok"
    data = good | changes
    numbers = Numbers()
    assert numbers.take(good) is not None
    is_taken = numbers.take(data) is not None  # what is not is looked at by itself
    try:
        checked_fields(data)
        is_right = True
    except RecordError:
        is_right = False
    assert is_right == (changes not in BAD.values())
    assert not is_taken or numbers.are_right() == is_right
