"""What a line of a run file may hold, and that everything else is refused by name."""

import json
import math

import numpy as np
import pytest

from results.record import MAX_COUNT, SCHEMA, Copy, Environment, Record, RecordError, Step
from results.store.runfile import encode_line

BAD_TIMES = [-1.0, 0, "0.001", True, [], math.nan, math.inf, 1e13, 1e-16]


def changed(line, **changes):
    return json.loads(encode_line(line)) | changes


@pytest.mark.parametrize("value", BAD_TIMES, ids=lambda value: f"{value!r:.20}")
def test_what_is_no_time_is_refused(make_record, value):
    with pytest.raises(RecordError, match=r"at `\$\.median_s`"):
        Record.from_dict(changed(make_record(), median_s=value))
    with pytest.raises(RecordError, match=r"at `\$\.samples_s\[1\]`"):
        Record.from_dict(changed(make_record(), samples_s=[1e-3, value]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("status", "perfect"),
        ("status", ["ok"]),
        ("method", "stopwatch"),
        ("cache", "tepid"),
        ("dtype", "bf17"),
        ("op", 5),
        ("flags", "launch-limited"),
        ("telemetry", []),
        ("converged", "yes"),
        ("flops", -1),
        ("flops", MAX_COUNT + 1),
        ("shape", {}),
        ("shape", {"m": 0}),
        ("ci95_s", [1e-3]),
        *(
            (key, None)
            for key in ("op", "provider", "dtype", "shape", "case", "status", "median_s")
        ),
    ],
)
def test_a_value_of_another_kind_or_none_is_refused(make_record, key, value):
    with pytest.raises(
        RecordError,
        match=rf"at `\$\.{key}|missing required field `{key}`|'{key}' is missing although",
    ):
        Record.from_dict(changed(make_record(), **{key: value}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"run_id": value}, r"at `\$\.run_id`")
            for value in ("", ".", "..", "a/b", "../../x", "a\\b", "a\0b", 7)
        ),
        *(
            ({"started_at": value}, "'started_at' is not an ISO 8601 time")
            for value in ("yesterday", "", "2026-13-01T00:00:00Z")
        ),
        *(
            ({key: None}, f"`{key}`|'{key}' is missing")
            for key in ("run_id", "started_at", "argv", "device", "schema")
        ),
        (
            {"device": {"slug": "x", "name": "X"}},
            r"missing required field `type` - at `\$\.device`",
        ),
        (
            {"device": {"slug": 1, "name": "X", "type": "cpu"}},
            r"at `\$\.device\.slug`",
        ),
        (
            {"schema": SCHEMA + 1, "device": "of another form"},
            f"schema {SCHEMA + 1} is newer than the supported {SCHEMA}",
        ),
        ({"fleet": "rank 0"}, r"at `\$\.fleet`"),
        ({"fleet": {"rank": 0}}, r"missing required field `node` - at `\$\.fleet`"),
        ({"fleet": {"rank": 0, "node": "a", "health": []}}, r"at `\$\.fleet\.health`"),
        ({"fleet": {"rank": 2, "node": "a", "world_size": 2}}, "rank 2 of 2"),
    ],
    ids=str,
)
def test_an_environment_of_another_form_is_refused(make_environment, changes, message):
    with pytest.raises(RecordError, match=message):
        Environment.from_dict(changed(make_environment(), **changes))


@pytest.mark.parametrize("value", [math.nan, math.inf, object()], ids=["nan", "inf", "object"])
@pytest.mark.parametrize("key", ["median_s", "telemetry"])
def test_what_is_not_json_is_not_written(make_record, key, value):
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        encode_line(make_record(**{key: value if key == "median_s" else {"deep": [value]}}))


@pytest.mark.parametrize(
    "changes", [{"median_s": -1.0}, {"samples_s": (1e-3, 0.0)}, {"flops": 1.5}, {"shape": {}}]
)
def test_nothing_is_written_that_could_not_be_read(make_record, changes):
    with pytest.raises(RecordError, match="Expected"):
        encode_line(make_record(**changes))


def test_a_numpy_float_is_written_as_the_number_it_is(make_record):
    assert changed(make_record(median_s=np.float64(1e-3)))["median_s"] == 1e-3


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("telemetry.sm_clock_hz", "fast"),
        ("telemetry.sm_clock_hz", "\ud800"),
        ("telemetry.round_s", [0]),
        ("verified.after", 0.5),
        ("verified.after.max_error_of_bound", []),
        ("source_git.sha", []),
    ],
)
def test_a_value_inside_an_object_that_something_computes_with_has_a_type(
    make_record, place, value
):
    outer, *inner = place.split(".")
    for key in reversed(inner):
        value = {key: value}
    with pytest.raises(RecordError, match=rf"`\$\.{outer}|surrogates"):
        Record.from_dict(changed(make_record(), **{outer: value}))


@pytest.mark.parametrize(
    ("details", "place"),
    [
        ({"kind": "step", "memory_bytes": {"measured": {"total": "12"}}}, "total"),
        ({"kind": "step", "phases_s": {"forward": {}}}, "phases_s"),
        ({"kind": "profile-op", "module": "", "phase": 1}, "phase"),
        ({"kind": "loop", "waits_s": ["x"], "compute_s": [], "file_bytes": 1}, "waits_s"),
        ({"kind": "copy", "copy_s": [0]}, "copy_s"),
        ([], r"at `\$\.details`"),
    ],
)
def test_details_of_another_form_are_refused(make_record, details, place):
    with pytest.raises(RecordError, match=place):
        Record.from_dict(changed(make_record(), details=details))


def test_details_that_this_version_does_not_know_survive_a_round_trip(make_record):
    newer = {"kind": "of a later version", "x": [1]}
    assert changed(Record.from_dict(changed(make_record(), details=newer)))["details"] == newer
    copy = Record.from_dict(changed(make_record(), details={"kind": "copy", "later": 1}))
    assert (copy.details_as(Copy).host_launch_s, copy.details_as(Step)) == (None, None)
    assert changed(copy)["details"]["later"] == copy.to_json()["later"] == 1


def test_unknown_keys_of_a_rank_and_of_a_step_survive_a_round_trip(make_environment):
    parts = {"fleet": {"rank": 1, "node": "a", "rack": "r7"}, "profile": {"time_s": 1.0, "x": [1]}}
    environment = Environment.from_dict(changed(make_environment(), **parts))
    assert (environment.fleet.rank, environment.profile.time_s) == (1, 1.0)
    written = changed(environment)
    assert {key: written[key] | parts[key] for key in parts} == {key: written[key] for key in parts}
    assert Environment.from_dict(written) == environment


def test_a_run_without_ranks_has_no_fleet_in_its_file(make_environment):
    assert not {"fleet", "profile"} & changed(make_environment()).keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("versions", {"torch": []}),
        ("device", {"slug": "a", "name": "A", "type": "cpu", "uuid": {}}),
        ("host", {"name": []}),
        ("settings", {"margin": -1}),
        ("started_at", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_a_fact_of_an_environment_is_a_text_a_number_or_a_truth(make_environment, key, value):
    with pytest.raises(RecordError, match=key):
        Environment.from_dict(changed(make_environment(), **{key: value}))
