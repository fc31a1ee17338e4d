"""Reading run files that are old, torn or foreign: what can be used is, and the rest is named."""

import gzip
import json
from pathlib import Path

import pytest

from results.record import SCHEMA, ProfileOp, Record
from results.store.runfile import RunFileError, encode_line, load_run, read_head

OLD_FILE = Path(__file__).parent / "data" / "schema_1.jsonl"
DROPPED = {"compiled", "process", "major_faults"}


@pytest.fixture
def first(make_environment):
    return encode_line(make_environment())


@pytest.fixture
def good(make_record):
    return encode_line(make_record())


def test_a_file_of_schema_1_with_the_fewest_keys_is_read():
    run = load_run(OLD_FILE)
    assert (run.notes, run.problems) == ((), ())
    assert run.environment.schema == SCHEMA
    assert run.environment.machine.entries == ()
    assert [record.status for record in run.records] == ["ok", "skipped"]
    assert run.records[0].median_s == 0.0005
    assert run.records[0].samples_s == ()
    assert run.records[0].flops is None


@pytest.mark.parametrize("name", ["compare", "profile", "train_step", "transfer"])
def test_older_run_has_no_unknown_keys_and_round_trips(name):
    path = OLD_FILE.parent / "schema_1" / f"{name}.jsonl"
    run = load_run(path)
    assert (run.notes, run.problems) == ((), ())
    assert {key for record in run.records for key in record.extra} <= DROPPED | {"step"}
    before = path.read_bytes().splitlines()[1:]
    for raw, record in zip(before, run.records, strict=True):
        old = json.loads(raw)
        written = json.loads(json.dumps(record.to_json()))
        for key, value in written.pop("interleaved", {}).items():
            assert value == old["interleaved"].get(key)
        old.pop("interleaved", None)
        assert written.items() >= {key: old[key] for key in old if old[key] is not None}.items()
        assert Record.from_dict(json.loads(encode_line(record))) == record


def test_totals_of_an_older_profile_are_those_of_its_longest_row():
    run = load_run(OLD_FILE.parent / "schema_1" / "profile.jsonl")
    totals = json.loads(run.path.read_text(encoding="utf-8").splitlines()[1])["step"]
    assert run.environment.profile.time_s == totals["time_s"]
    assert all(record.details_as(ProfileOp) for record in run.records)


@pytest.mark.parametrize(("key", "value"), [("interleaved", 5), ("phases_s", 5), ("copy_s", "x")])
def test_a_wrong_type_in_a_file_of_schema_1_is_a_problem_with_its_line(tmp_path, key, value):
    first, line, *_ = OLD_FILE.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "run.jsonl"
    path.write_text(f"{first}\n{json.dumps(json.loads(line) | {key: value})}\n")
    run = load_run(path)
    assert (len(run.records), len(run.problems)) == (0, 1)
    assert run.problems[0].startswith(f"{path}:2: ")


def test_keys_that_this_version_does_not_know_survive_a_round_trip():
    run = load_run(OLD_FILE)
    lines = [json.loads(line) for line in OLD_FILE.read_text(encoding="utf-8").splitlines()]
    lines[0]["schema"] = SCHEMA
    written = [json.loads(encode_line(line)) for line in (run.environment, *run.records)]
    for before, after in zip(lines, written, strict=True):
        assert before.items() <= after.items()
    assert written[0]["operator"] == "night shift"
    assert written[1]["room_temperature_c"] == 21.5


@pytest.mark.parametrize("cut", [1, 2, 40, -2])
def test_a_torn_last_line_is_a_note(write_lines, first, good, cut):
    path = write_lines(first, good, good[:cut])
    run = load_run(path)
    assert len(run.records) == 1
    assert run.problems == ()
    assert run.notes == (f"{path}:3: the last line is truncated; left out",)


def test_a_whole_last_line_without_its_newline_is_kept(write_lines, first, good):
    run = load_run(write_lines(first, good, good[:-1]))
    assert (len(run.records), run.notes, run.problems) == (2, (), ())


BAD_LINES = {
    "NaN as a sample": (
        b'{"kind": "record", "samples_s": [NaN]}\n',
        "not JSON (NaN is not a JSON number)",
    ),
    "cut in the middle": (b'{"kind": "record", "op"\n', "not JSON"),
    "text": (b"hello\n", "not JSON"),
    "an empty line": (b"\n", "not JSON"),
    "a list": (b"[1, 2]\n", "not a JSON object with 'kind' 'record'"),
    "of another kind": (b'{"kind": "environment"}\n', "not a JSON object with 'kind' 'record'"),
    "a record without anything": (b'{"kind": "record"}\n', "missing required field `op`"),
    "not UTF-8": (b'{"kind": "r\xff\xfe"}\n', "not JSON"),
    "a negative time": (b'{"kind": "record", "samples_s": [0.001, -0.001]}\n', "`$.samples_s[1]`"),
}


@pytest.mark.parametrize(("line", "what"), BAD_LINES.values(), ids=list(BAD_LINES))
def test_a_bad_line_is_named_and_the_others_are_read(write_lines, first, good, line, what):
    path = write_lines(first, good, line, good)
    run = load_run(path)
    assert len(run.records) == 2
    assert run.notes == ()
    (problem,) = run.problems
    assert problem.startswith(f"{path}:3: ")
    assert what in problem
    assert "\n" not in problem
    assert len(problem) < len(str(path)) + 200


NO_RUNS = {
    "missing": (lambda first: None, "No such file"),
    "empty": (lambda first: b"", "is empty"),
    "compressed": (gzip.compress, "line 1: not JSON"),
    "another tool's": (lambda first: b'{\n  "machine_info": {}\n}\n', "not JSON"),
    "a record first": (
        lambda first: b'{"kind": "record"}\n' + first,
        "not a JSON object with 'kind' 'environment'",
    ),
    "newer": (
        lambda first: first.replace(
            f'"schema":{SCHEMA}'.encode(), f'"schema":{SCHEMA + 1}'.encode()
        ),
        f"schema {SCHEMA + 1} is newer than the supported {SCHEMA}",
    ),
    "torn": (lambda first: first[:50], "not JSON"),
    "start is no time": (
        lambda first: first.replace(b'"started_at":"', b'"started_at":"on '),
        "line 1: 'started_at' is not an ISO 8601 time",
    ),
}


@pytest.mark.parametrize(("content", "why"), NO_RUNS.values(), ids=NO_RUNS)
@pytest.mark.parametrize("read", [load_run, read_head])
def test_invalid_run_file_is_an_error_in_one_line(tmp_path, first, content, why, read):
    path, written = tmp_path / "run.jsonl", content(first)
    if written is not None:
        path.write_bytes(written)
    with pytest.raises(RunFileError) as caught:
        read(path)
    assert why in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RunFileError, match="Is a directory"):
        read(tmp_path)


def test_the_head_counts_records_without_reading_them(write_lines, first, good):
    environment, count = read_head(write_lines(first, good, b"garbage\n", good[:10]))
    assert environment.run_id == "20261120T210312Z-0123456789"
    assert count == 2
