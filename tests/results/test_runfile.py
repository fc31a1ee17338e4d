"""Reading run files that are old, torn, foreign, binary or hostile: what can be used is, and the rest is named."""

import gzip
import json
import os
from pathlib import Path

import pytest

from results.record import SCHEMA
from results.store.runfile import MAX_LINE_BYTES, RunFileError, encode_line, load_run, read_head

OLD_FILE = Path(__file__).parent / "data" / "schema_1.jsonl"


@pytest.fixture
def first(make_environment):
    return encode_line(make_environment())


@pytest.fixture
def good(make_record):
    return encode_line(make_record())


def test_a_whole_file_is_read(write_lines, first, good, make_environment, make_record):
    run = load_run(write_lines(first, good, good))
    assert run.environment == make_environment()
    assert run.records == (make_record(), make_record())
    assert (run.notes, run.problems) == ((), ())


def test_a_file_of_schema_1_with_the_fewest_keys_is_read():
    run = load_run(OLD_FILE)
    assert (run.notes, run.problems) == ((), ())
    assert run.environment.schema == 1
    assert run.environment.hardware == {}
    assert [record.status for record in run.records] == ["ok", "skipped"]
    assert run.records[0].median_s == 0.0005
    assert run.records[0].samples_s == ()
    assert run.records[0].flops is None


@pytest.mark.parametrize("name", ["compare", "train_step", "transfer"])
def test_a_run_of_before_has_nothing_unknown_and_is_written_as_it_was(name):
    path = OLD_FILE.parent / "schema_1" / f"{name}.jsonl"
    run = load_run(path)
    assert (run.notes, run.problems) == ((), ())
    assert all(record.extra == {} for record in run.records)
    before = path.read_bytes().splitlines()
    for raw, line in zip(before, (run.environment, *run.records), strict=True):
        assert json.loads(encode_line(line)) == json.loads(raw)


def test_keys_that_this_version_does_not_know_survive_a_round_trip():
    run = load_run(OLD_FILE)
    lines = [json.loads(line) for line in OLD_FILE.read_text(encoding="utf-8").splitlines()]
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
    assert run.notes == (f"{path}:3: the last line was cut off and is left out",)


def test_a_torn_last_line_is_a_note_even_in_the_middle_of_a_letter_or_as_zeros(write_lines, first, good):
    for torn in ('{"reason": "é'.encode()[:-1], b"\0" * 100, b'{"kind": "record"\n'):
        run = load_run(write_lines(first, good, torn))
        assert (len(run.records), len(run.notes), run.problems) == (1, 1, ())


def test_a_whole_last_line_without_its_newline_is_kept(write_lines, first, good):
    run = load_run(write_lines(first, good, good[:-1]))
    assert (len(run.records), run.notes, run.problems) == (2, (), ())


BAD_LINES = {
    "NaN as a sample": (b'{"kind": "record", "samples_s": [NaN]}\n', "not JSON (malformed: invalid character (byte"),
    "Infinity as a sample": (b'{"kind": "record", "samples_s": [-Infinity]}\n', "not JSON (malformed"),
    "a number that overflows": (b'{"kind": "record", "median_s": 1e999}\n', "holds a number that is too large"),
    "5000 digits": (b'{"kind": "record", "flops": ' + b"9" * 5000 + b"}\n", "holds a number that is too large"),
    "cut in the middle": (b'{"kind": "record", "op"\n', "not JSON"),
    "text": (b"hello\n", "not JSON"),
    "an empty line": (b"\n", "an empty line"),
    "a list": (b"[1, 2]\n", "must be a JSON object"),
    "a number": (b"17\n", "must be a JSON object"),
    "of another kind": (b'{"kind": "spectrum"}\n', "'kind' must be 'record' here, found 'spectrum'"),
    "of no kind": (b'{"op": "matmul"}\n', "'kind' must be 'record' here, found None"),
    "a record without anything": (b'{"kind": "record"}\n', "'op' is missing"),
    "not UTF-8": (b'{"kind": "r\xff\xfe"}\n', "not UTF-8 text"),
    "nested without end": (b'{"kind": "record", "telemetry": ' + b"[" * 100_000 + b"\n", "nested deeper than"),
    "nested deeply": (b'{"kind": "record", "a": ' + b"[" * 40 + b"]" * 40 + b"}\n", "nested deeper than 32"),
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


@pytest.mark.parametrize("name", ["NaN as a sample", "a record without anything", "text", "of another kind"])
def test_a_bad_line_is_a_problem_at_the_end_too(write_lines, first, good, name):
    run = load_run(write_lines(first, good, BAD_LINES[name][0]))
    assert (len(run.problems), run.notes) == (1, ())


@pytest.mark.parametrize("value", ["0.001", -0.001, 0, None, [0.001]])
def test_a_time_that_cannot_be_one_is_named(write_lines, first, good, value):
    bad = json.loads(good) | {"samples_s": [0.001, value]}
    path = write_lines(first, bad, good)
    run = load_run(path)
    assert len(run.records) == 1
    assert run.problems[0].startswith(f"{path}:2: 'samples_s[1]' must be a time in seconds")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"median_s": 1.0}, "'median_s' must lie within 'samples_s'"),
        ({"samples_s": []}, "'samples_s' is empty although 'status' is 'ok'"),
        ({"dtype": "bf17"}, "'dtype' must be one of fp64, fp32,"),
    ],
)
def test_a_record_that_contradicts_itself_is_named(write_lines, first, good, changes, what):
    path = write_lines(first, json.loads(good) | changes, good)
    run = load_run(path)
    assert len(run.records) == 1
    assert run.problems[0].startswith(f"{path}:2: {what}")


def test_a_second_environment_is_named(write_lines, first, good):
    path = write_lines(first, good, first, good)
    run = load_run(path)
    assert len(run.records) == 2
    assert run.problems == (f"{path}:3: 'kind' must be 'record' here, found 'environment'",)


def test_a_line_that_is_too_long_is_named_and_skipped(write_lines, first, good):
    path = write_lines(first, b" " * (MAX_LINE_BYTES + 2**20) + b"\n", good)
    run = load_run(path)
    assert len(run.records) == 1
    assert run.problems == (f"{path}:2: longer than 32 MiB",)


def test_half_of_a_surrogate_pair_comes_back_and_lets_no_other_value_through(write_lines, first, make_record):
    record = make_record(reason="half: \ud800")
    line = encode_line(record)
    run = load_run(write_lines(first, line, line.replace(b'"flops":', b'"flops":NaN,"other":')))
    assert run.records == (record,)
    assert "not JSON" in run.problems[0]


def test_a_run_without_records_is_read(write_lines, first):
    assert load_run(write_lines(first)).records == ()


def no_run_files(tmp_path, first):
    directory = tmp_path / "folder"
    directory.mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    contents = {
        "empty": b"",
        "binary": bytes(range(256)) * 40,
        "zeros": b"\0" * 4096,
        "compressed": gzip.compress(first),
        "another tool's": b'{\n  "machine_info": {}\n}\n',
        "a record first": b'{"kind": "record"}\n' + first,
        "prose": b"Dear reader,\n",
        "newer": first.replace(b'"schema":1', f'"schema":{SCHEMA + 1}'.encode()),
        "schema as text": first.replace(b'"schema":1', b'"schema":"1"'),
        "torn": first[:50],
        "id is a path": first.replace(b'"run_id":"', b'"run_id":"../'),
        "start is no time": first.replace(b'"started_at":"', b'"started_at":"on '),
        "nested": b"[" * 100_000,
        "infinite": first.replace(b'"seed":0', b'"seed":NaN'),
    }
    paths = {"missing": tmp_path / "none.jsonl", "folder": directory, "pipe": pipe, "null": Path("a\0b")}
    for name, content in contents.items():
        paths[name] = tmp_path / f"{name}.jsonl"
        paths[name].write_bytes(content)
    return paths


WHY = {
    "missing": "No such file",
    "folder": "is a directory",
    "pipe": "not a regular file",
    "null": "not a file name",
    "empty": "is empty",
    "binary": "binary data",
    "zeros": "binary data",
    "compressed": "line 1",
    "another tool's": "not JSON",
    "a record first": "'kind' must be 'environment' here, found 'record'",
    "prose": "not JSON",
    "newer": f"schema {SCHEMA + 1} is newer than {SCHEMA}",
    "schema as text": "'schema' must be a whole number",
    "torn": "not JSON",
    "id is a path": "line 1: 'run_id' must be text without a slash",
    "start is no time": "line 1: 'started_at' must be a time",
    "nested": "nested deeper than",
    "infinite": "not JSON (malformed",
}


@pytest.mark.parametrize("name", WHY)
@pytest.mark.parametrize("read", [load_run, read_head])
def test_what_is_no_run_file_is_refused_in_one_line(tmp_path, first, name, read):
    path = no_run_files(tmp_path, first)[name]
    with pytest.raises(RunFileError) as caught:
        read(path)
    message = str(caught.value)
    assert WHY[name] in message
    assert (path.name in message) or name == "null"
    assert "\n" not in message


def test_the_head_counts_records_without_reading_them(write_lines, first, good):
    environment, count = read_head(write_lines(first, good, b"garbage\n", good[:10]))
    assert environment.run_id == "20261120T210312Z-0123456789"
    assert count == 2
