"""What a line of a run file may hold, and that everything else is refused by name."""

import json
import math

import pytest

from results.record import DTYPES, MAX_COUNT, SCHEMA, UNITS, Environment, Record, RecordError
from results.store.runfile import encode_line
from roofline import work
from roofline.work import DTYPE_BITS

HUGE = 10**4000
BAD_TIMES = [-1.0, 0, 0.0, "0.001", True, [], {}, math.nan, math.inf, 1e13, 1e-16, HUGE]
BAD_COUNTS = [-1, 1.5, "8", True, [], math.nan, MAX_COUNT + 1, HUGE]


def changed(line, **changes):
    return json.loads(encode_line(line)) | changes


def test_a_record_comes_back_as_it_was(make_record):
    record = make_record(options={"layout": "nt"}, flags=("tick-limited",), extra={"of a later version": [1, {}]})
    assert Record.from_dict(changed(record)) == record


@pytest.mark.parametrize("options", [None, {"enable_fp_fusion": True, "num_warps": 4}])
def test_compile_options_come_back_and_a_file_without_them_has_none(make_record, options):
    record = make_record(compiled=options)
    data = changed(record)
    assert data["compiled"] == options
    assert Record.from_dict(data) == record
    del data["compiled"]
    assert Record.from_dict(data).compiled is None


@pytest.mark.parametrize("value", ["enable_fp_fusion", 1, ["enable_fp_fusion"]])
def test_compile_options_are_an_object(make_record, value):
    with pytest.raises(RecordError, match="'compiled' must be an object"):
        Record.from_dict(changed(make_record(), compiled=value))


def test_an_environment_comes_back_as_it_was(make_environment):
    environment = make_environment(extra={"of a later version": None})
    assert Environment.from_dict(changed(environment)) == environment


def test_a_key_named_extra_is_kept_like_any_unknown_key(make_record):
    data = changed(make_record(), extra={"a": 1})
    assert Record.from_dict(data).to_dict()["extra"] == {"a": 1}


@pytest.mark.parametrize("key", ["median_s", "host_latency_s", "first_call_s"])
@pytest.mark.parametrize("value", BAD_TIMES, ids=lambda value: f"{value!r:.20}")
def test_what_is_no_time_is_refused(make_record, key, value):
    with pytest.raises(RecordError, match=f"'{key}' must be a time"):
        Record.from_dict(changed(make_record(), **{key: value}))


@pytest.mark.parametrize("value", BAD_TIMES, ids=lambda value: f"{value!r:.20}")
def test_what_is_no_time_is_refused_among_samples(make_record, value):
    with pytest.raises(RecordError, match=r"'samples_s\[1\]' must be a time"):
        Record.from_dict(changed(make_record(), samples_s=[1e-3, value]))
    with pytest.raises(RecordError, match=r"'samples_s' (must be a list of times|is empty)"):
        Record.from_dict(changed(make_record(), samples_s=value))


@pytest.mark.parametrize("value", [[1e-3], [2e-3, 1e-3], [1e-3, "2e-3"], [math.nan, 1.0], "ab", [1, 2, 3]])
def test_what_is_no_interval_is_refused(make_record, value):
    with pytest.raises(RecordError, match=r"'ci95_s(\[\d\])?' must be"):
        Record.from_dict(changed(make_record(), ci95_s=value))


@pytest.mark.parametrize("key", ["flops", "bytes_read", "bytes_written", "launches_per_sample"])
@pytest.mark.parametrize("value", BAD_COUNTS, ids=lambda value: f"{value!r:.20}")
def test_what_is_no_count_is_refused(make_record, key, value):
    with pytest.raises(RecordError, match=f"'{key}' must be a whole number"):
        Record.from_dict(changed(make_record(), **{key: value}))


@pytest.mark.parametrize("value", [{}, [], {"m": 0}, {"m": -4}, {"m": 1.5}, {"m": "4"}, {"m": True}, {"m": HUGE}])
def test_what_is_no_shape_is_refused(make_record, value):
    with pytest.raises(RecordError, match="'shape' must be an object of axes"):
        Record.from_dict(changed(make_record(), shape=value))


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
    ],
)
def test_a_value_of_another_kind_is_refused(make_record, key, value):
    with pytest.raises(RecordError, match=f"'{key}' must be"):
        Record.from_dict(changed(make_record(), **{key: value}))


@pytest.mark.parametrize("key", ["op", "provider", "dtype", "shape", "case", "status"])
def test_a_missing_key_is_named(make_record, key):
    with pytest.raises(RecordError, match=f"'{key}' is missing"):
        Record.from_dict(changed(make_record(), **{key: None}))


def test_a_finished_measurement_has_a_median(make_record):
    with pytest.raises(RecordError, match="'median_s' is missing although"):
        Record.from_dict(changed(make_record(), median_s=None))


def test_a_finished_measurement_has_samples_or_never_kept_any(make_record):
    with pytest.raises(RecordError, match="'samples_s' is empty although 'status' is 'ok'"):
        Record.from_dict(changed(make_record(), samples_s=[]))
    kept_none = Record.from_dict(changed(make_record(), samples_s=None))
    assert kept_none.samples_s == ()
    assert Record.from_dict(changed(kept_none)) == kept_none


@pytest.mark.parametrize("status", ["ok", "invalid"])
@pytest.mark.parametrize("median_s", [4.1e-6, 4.5e-6, 1e-15, 1.0])
def test_a_median_lies_within_its_samples(make_record, median_s, status):
    with pytest.raises(RecordError, match=r"'median_s' must lie within 'samples_s', 4\.2e-06 to 4\.4e-06, found"):
        Record.from_dict(changed(make_record(), median_s=median_s, status=status))


@pytest.mark.parametrize("median_s", [4.2e-6, 4.4e-6, 4.2e-6 * (1 - 1e-9)])
def test_a_median_may_be_the_least_or_largest_sample(make_record, median_s):
    assert Record.from_dict(changed(make_record(), median_s=median_s)).median_s == median_s


def test_dtypes_and_units_are_those_of_the_model():
    assert tuple(DTYPE_BITS) == DTYPES
    assert work.UNITS == UNITS


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "../../x", "a\\b", "a\0b", 7])
def test_a_run_id_is_no_path(make_environment, value):
    with pytest.raises(RecordError, match="'run_id' must be text without a slash"):
        Environment.from_dict(changed(make_environment(), run_id=value))


@pytest.mark.parametrize("value", ["yesterday", "", "2026-13-01T00:00:00Z", 1763672592])
def test_a_start_is_a_time(make_environment, value):
    with pytest.raises(RecordError, match="'started_at' must be a time as ISO 8601 writes it"):
        Environment.from_dict(changed(make_environment(), started_at=value))


@pytest.mark.parametrize("key", ["run_id", "started_at", "argv", "device", "schema"])
def test_a_missing_key_of_the_environment_is_named(make_environment, key):
    with pytest.raises(RecordError, match=f"'{key}' is missing"):
        Environment.from_dict(changed(make_environment(), **{key: None}))


@pytest.mark.parametrize("device", [{"slug": "x", "name": "X"}, {"slug": 1, "name": "X", "type": "cpu"}])
def test_a_device_has_slug_name_and_type(make_environment, device):
    with pytest.raises(RecordError, match=r"'device\.(type|slug)' must be text"):
        Environment.from_dict(changed(make_environment(), device=device))


def test_a_newer_schema_is_refused_whatever_else_it_holds():
    with pytest.raises(RecordError, match=f"schema {SCHEMA + 1} is newer than {SCHEMA}"):
        Environment.from_dict({"kind": "environment", "schema": SCHEMA + 1, "device": "of another form"})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["median_s", "telemetry", "options"])
def test_nothing_infinite_is_written(make_record, key, value):
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        encode_line(make_record(**{key: value if key == "median_s" else {"deep": [value]}}))


@pytest.mark.parametrize("changes", [{"median_s": -1.0}, {"samples_s": (1e-3, 0.0)}, {"flops": 1.5}, {"shape": {}}])
def test_nothing_is_written_that_could_not_be_read(make_record, changes):
    with pytest.raises(RecordError, match="must be"):
        encode_line(make_record(**changes))


def test_what_is_not_json_is_not_written(make_record):
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        encode_line(make_record(options={"layout": object()}))
