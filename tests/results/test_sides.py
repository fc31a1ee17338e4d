"""The sides of a comparison: times, windows, clocks and ceilings, and whether the code is equal."""

import json

import pytest
from msgspec import structs

from results.compare.sides import Side, code_of
from results.compare.turns import cycles_ratio, rounds_of, shared_rounds
from results.record import DEFINITION_PREFIX, Record, RecordError, Rounds

DEFINITION = DEFINITION_PREFIX + "a" * 64
CLEAN = {"sha": "b" * 40, "dirty": False}


@pytest.fixture
def side(make_record, make_environment):
    """Returns a function that makes a side of records with these changes."""

    def make(*changes, **of_environment):
        records = [make_record(**change) for change in changes]
        return Side.of("", records, make_environment(**of_environment))

    return make


def test_time_of_a_side_is_the_geometric_mean(side):
    assert side({"median_s": 0.3}).time_s == 0.3
    assert side({"median_s": 1.0}, {"median_s": 8.0}, {"median_s": 1.0}).time_s == pytest.approx(2)
    assert side({}).runs == 1


def test_windows_are_the_visits_of_each_record(side):
    taken = (1.0, 2.0, 3.0, 4.0, 5.0)
    both = side(
        {"samples_s": taken, "visits": (2, 3)},
        {"samples_s": (6.0, 7.0), "visits": ()},
        {"samples_s": (), "median_s": 8.0},
    )
    assert both.windows == [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0], [8.0]]
    for visits in ((2, 2), (9,), (5, 0)):  # of a file that was edited
        assert side({"samples_s": taken, "visits": visits}).windows == [list(taken)]


def test_clock_of_a_side_is_known_if_all_are(side):
    clocks = [{"telemetry": {"sm_clock_hz": hz}} for hz in (1e9, 2e9)]
    assert side(*clocks).clock_hz == 1.5e9
    assert side(*clocks, {"telemetry": {}}).clock_hz is None


def test_flags_of_a_side_are_those_of_all_records(side):
    assert side({"flags": ("a", "b")}, {"flags": ("c", "a")}).flags == ("a", "b", "c")
    assert side({"provider": "first"}, {"provider": "second"}).provider == "first"


@pytest.mark.parametrize(
    ("flops", "bytes_read", "expected"),
    [
        (10**12, 8 * 10**11, (0.2, "memory")),
        (4 * 10**14, 6 * 10**11, (0.2, "compute")),
        (4 * 10**14, 0, (0.2, "compute")),
        (10**12, None, None),
    ],
)
def test_rates_of_a_side_are_at_its_mean_time(side, flops, bytes_read, expected):
    """The first record has 40 % of its ceiling, in half of the mean time."""
    work = {"flops": flops, "bytes_read": bytes_read, "bytes_written": 0}
    two = side({"median_s": 1.0} | work, {"median_s": 4.0} | work)
    assert two.of_ceiling == (expected and (pytest.approx(expected[0]), expected[1]))


@pytest.mark.parametrize(
    ("record", "git", "is_known"),
    [
        ({"source_sha256": "c" * 64, "provider": "mine.py:f"}, {}, True),
        ({"op_sha256": DEFINITION, "provider": "torch-compile"}, {}, True),
        ({"op_sha256": DEFINITION, "provider": "cublas"}, CLEAN, False),
        ({"provider": "torch"}, CLEAN, True),
        ({"provider": "torch"}, CLEAN | {"dirty": True}, False),
        ({"provider": "torch"}, {"sha": "b" * 40}, False),
        ({"provider": "torch"}, {"dirty": False}, False),
        ({"provider": "torch", "op": "function"}, CLEAN, False),
        ({"provider": "triton-v1"}, CLEAN, False),
    ],
)
def test_code_is_known_by_a_hash_or_a_clean_revision(
    make_record, make_environment, record, git, is_known
):
    assert code_of(make_record(**record), make_environment(git=git)).is_known is is_known


KNOWN = {"op_sha256": DEFINITION, "provider": "torch"}


@pytest.mark.parametrize(
    ("before", "after", "git", "is_same"),
    [
        (KNOWN, {}, {"sha": "d" * 40}, True),  # the hash of the definition is known
        (KNOWN, {"provider": "torch-compile"}, {}, False),
        ({"provider": "torch", "op_sha256": "old"}, {}, {"sha": "d" * 40}, False),
        ({"provider": "cublas"}, {}, {}, False),
    ],
)
def test_same_code_has_equal_hashes_and_is_known(side, before, after, git, is_same):
    first = side(before, git=CLEAN).code
    second = side(before | after, git=CLEAN | git).code
    assert (first.is_known and first == second) is is_same
    assert (second.is_known and first == second) is is_same


SHARED = Rounds(
    names=("torch", "a"),
    rounds=2,
    samples_per_round=3,
    is_fixed=True,
    is_clear=True,
    seed=7,
    seconds=1.5,
    sm_clock_hz=(1e9, 2e9),
)
TAKEN = (1.0, 9.0, 2.0, 4.0, 3.0, 8.0)


def test_rounds_that_do_not_match_the_samples_are_none(make_record):
    other = structs.replace(SHARED, samples_per_round=4)
    assert rounds_of(make_record(samples_s=TAKEN, details=other)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"with": "torch"},
        {"with": None},
        {"is_fixed": 1},
        {"samples_per_round": -3},
        {"samples_per_round": 0},
        {"samples_per_round": 3.5},
    ],
)
def test_rounds_of_wrong_types_are_refused_when_read(make_record, changes):
    written = make_record(samples_s=TAKEN, details=SHARED).to_dict()
    written["details"] |= changes
    with pytest.raises(RecordError):
        Record.from_dict(json.loads(json.dumps(written)))


def test_records_share_rounds_if_exactly_one_pair_does(make_record):
    first = make_record(samples_s=TAKEN, details=SHARED)
    second = make_record(samples_s=TAKEN, details=structs.replace(SHARED, sm_clock_hz=None))
    other = make_record(samples_s=TAKEN, details=structs.replace(SHARED, seed=8))
    apart = make_record(samples_s=TAKEN)
    assert rounds_of(make_record(samples_s=(), details=SHARED)) is None
    assert shared_rounds([first, apart], [apart, other, second]) == ([first], [second])
    assert shared_rounds([first], [second, second]) is None
    assert shared_rounds([first], [other, apart]) is None
    assert cycles_ratio(first, second) is None
    assert cycles_ratio(second, first) is None
    many = structs.replace(SHARED, samples_per_round=1)
    assert cycles_ratio(make_record(samples_s=TAKEN, details=many), first) is None
    quick = structs.replace(SHARED, sm_clock_hz=(2e9, 4e9), samples_per_round=1)
    slow = make_record(samples_s=(3.0, 6.0), details=quick)
    assert cycles_ratio(first, slow) == pytest.approx(3.0)
