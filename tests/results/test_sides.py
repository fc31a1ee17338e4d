"""The sides of a comparison: times, windows, clocks and ceilings, and whether the code is equal."""

import json
import math

import pytest

from results.compare.earlier import SavedRuns
from results.compare.sides import Side
from results.record import DEFINITION_PREFIX, Record, RecordError, Rounds
from results.store.runfile import Run

DEFINITION = DEFINITION_PREFIX + "a" * 64


@pytest.fixture
def side(make_record, make_environment):
    """Returns a function that makes a side of records with these changes."""

    def make(*changes, **of_environment):
        records = [make_record(**change) for change in changes]
        return Side("", records, make_environment(**of_environment))

    return make


def test_time_of_a_side_is_the_geometric_mean(side):
    assert side({"median_s": 0.3}).time_s == 0.3
    assert side({"median_s": 1.0}, {"median_s": 8.0}, {"median_s": 1.0}).time_s == pytest.approx(2)
    assert side({"median_s": 1.0}, {"median_s": None}, {"median_s": 4.0}).time_s == pytest.approx(2)
    assert side({}).runs == 1


KNOWN = {"op_sha256": DEFINITION, "provider": "torch"}


@pytest.fixture
def run_of(make_environment, tmp_path):
    def make(name, *records, **changes):
        return Run(tmp_path / name, make_environment(run_id=name, **changes), tuple(records))

    return make


def test_a_side_has_the_records_of_its_code_in_all_runs(make_record, run_of):
    """Not those that failed, were disturbed, were interleaved or are of other code or machines."""
    first = make_record(**KNOWN, median_s=1.0)
    others = [
        make_record(**KNOWN, median_s=2.0),
        make_record(**KNOWN, median_s=3.0, flags=("preempted",)),
        make_record(**KNOWN, median_s=4.0, details=SHARED),
        make_record(**KNOWN, status="failed", median_s=5.0),
        make_record(**KNOWN | {"op_sha256": DEFINITION_PREFIX + "e" * 64}, median_s=6.0),
    ]
    own = run_of("b", first)
    away = run_of("c", make_record(**KNOWN, median_s=7.0), host={"name": "another"})
    saved = SavedRuns([run_of("a", *others), own, away])
    side = Side("", [first], own.environment)
    repeated = saved.repeated(side)
    assert [record.median_s for record in repeated.records] == [1.0, 2.0]  # its own come first
    assert repeated.runs == 2
    alone = SavedRuns([own])
    assert alone.repeated(side) is side
    unknown = Side("", [make_record(provider="cublas")], own.environment)
    assert saved.repeated(unknown) is unknown
    spread = saved.between(side, side)
    assert spread.deviation == pytest.approx(math.log(2) / math.sqrt(2))
    assert spread.degrees == 1
    assert alone.between(side, side) is None


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
