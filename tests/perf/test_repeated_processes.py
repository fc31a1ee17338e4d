"""Spreads, rows and the copy's roof, from documents as the bench commands print them and from broken ones."""

import json
import math
import sys

import pytest

from bench.validation import repeated_processes
from bench.validation.listed_cases import parse_case
from bench.validation.repeated_processes import (
    COPY,
    ProcessError,
    Repeated,
    copy_line,
    line_of,
    roof_share,
    row_of,
    spread,
)

COPY_BYTES = 2_000_000
SHAPE = {"n": 500_000}


def document(median_s=1e-4, bandwidth=2.2e10, **changes):
    record = {"status": "ok", "reason": None, "median_s": median_s, "cache": "cold", "flags": []}
    record |= {"shape": SHAPE, "bytes_read": COPY_BYTES // 2, "bytes_written": COPY_BYTES // 2}
    entry = {"quantity": "bandwidth", "name": "copy", "value": bandwidth, "kind": "measured", "source": "here"}
    hardware = {"slug": "s", "name": "n", "entries": [entry], "note": None}
    return {"environment": {"hardware": hardware}, "records": [record | changes]}


def printing(text, code=0):
    return [sys.executable, "-c", f"import sys; print({text!r}); print('why', file=sys.stderr); sys.exit({code})"]


@pytest.mark.parametrize(
    ("values", "wanted"), [([], None), ([1.0], None), ([1.0, math.nan, 0.0], None), ([2.0, 2.5, 2.2], 0.25)]
)
def test_the_spread_is_the_largest_over_the_least(values, wanted):
    assert spread(values) == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("values", "is_wide"),
    [([1e-4, 1.004e-4], False), ([1e-4, 1.006e-4], True), ([1e-5, 1.5e-5], False), ([1e-4], False)],
)
def test_a_row_is_flagged_from_half_a_percent_on_above_20_us(values, is_wide):
    one = Repeated("a/b/c", values)
    assert one.is_wide == is_wide
    assert ("WIDE" in line_of(one)) == is_wide


def test_the_cases_of_one_op_and_dtype_share_a_process():
    names = ["matmul/bf16/8", "sum/fp32/8", "matmul/fp32/8", "matmul/bf16/16"]
    groups = repeated_processes.grouped([parse_case(name) for name in names])
    assert [[one.name for one in group] for group in groups] == [[names[0], names[3]], [names[1]], [names[2]]]


def test_a_bench_command_is_asked_for_the_cases_alone():
    group = [parse_case("rmsnorm/bf16/64x128"), parse_case("rmsnorm/bf16/8x16")]
    words = repeated_processes.command_of(group, "cpu")[1:]
    assert words[:2] == ["-m", "bench.norm"]
    assert " ".join(words[2:]) == (
        "--op rmsnorm --dtype bf16 --shape 64x128,8x16 --provider torch --device cpu --format json --no-save --quiet"
    )


def test_the_record_of_a_case_is_that_of_its_shape():
    records = [*document(shape={"n": 7}, median_s=2e-4)["records"], *document()["records"]]
    assert row_of({"records": records}, SHAPE)["median_s"] == 1e-4


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({}, "no record"),
        ({"records": []}, "no record"),
        ({"records": None}, "no record"),
        ({"records": [1]}, "no record"),
        (document(shape={"n": 1}), "no record"),
        (document(status="skipped", reason="out of memory"), "skipped: out of memory"),
        (document(median_s=None), "no time"),
        (document(median_s=True), "no time"),
        (document(median_s="1"), "no time"),
        (document(median_s=-1.0), "no time"),
        (document(median_s=math.inf), "no time"),
    ],
)
def test_a_document_without_a_time_is_refused(broken, said):
    with pytest.raises(ProcessError, match=said):
        row_of(broken, SHAPE)


def test_a_cold_copy_is_held_against_the_roof_of_a_copy():
    cold, warm = document(median_s=1e-4, bandwidth=2.2e10), document(cache="warm")
    assert roof_share(cold, cold["records"][0]) == pytest.approx(2e10 / 2.2e10)
    assert roof_share(warm, warm["records"][0]) is None


@pytest.mark.parametrize(
    "hardware", [{}, {"entries": []}, {"entries": "all"}, {"entries": [{}]}, None, {"entries": [{"value": "x"}]}]
)
def test_without_a_roof_nothing_is_said(hardware):
    one = document()
    one["environment"]["hardware"] = hardware
    assert roof_share(one, one["records"][0]) is None


@pytest.mark.parametrize(
    ("share", "is_gpu", "is_possible"), [(0.9, True, True), (1.1, True, False), (1.1, False, True)]
)
def test_only_a_gpus_copy_above_its_roof_is_impossible(share, is_gpu, is_possible):
    found, line = copy_line(Repeated(COPY, [1e-4], roof_shares=[0.5, share]), COPY_BYTES, is_gpu)
    assert found == is_possible
    assert ("ABOVE" in line) == (share > 1)
    assert "20.00 GB/s" in line


def test_a_copy_without_a_roof_is_not_judged():
    assert copy_line(Repeated(COPY, [1e-4]), COPY_BYTES, True) == (
        True,
        "1 MB copy, cold: not known, there is no cold row with a roof",
    )


def taken(command):
    """Return the copy's row after one process."""
    one = Repeated(COPY)
    repeated_processes.take({COPY: one}, [parse_case(COPY)], command)
    return one


def test_what_a_process_prints_is_taken():
    one = taken(printing(json.dumps(document())))
    assert (one.medians_s, one.failures, len(one.roof_shares)) == ([1e-4], [], 1)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (printing("no json", 2), "exit code 2: why"),
        (printing("[1]"), "printed no document"),
        (printing(""), "exit code 0: why"),
        (printing('{"records": ['), "exit code 0: why"),
    ],
)
def test_a_process_that_measures_nothing_is_a_failure(command, said):
    one = taken(command)
    assert (one.medians_s, one.failures) == ([], [said])
    assert f"failed: {said}" in line_of(one)


def test_a_process_that_does_not_end_is_a_failure(monkeypatch):
    monkeypatch.setattr(repeated_processes, "TIMEOUT_S", 0.2)
    one = taken([sys.executable, "-c", "import time; time.sleep(60)"])
    assert one.failures == ["took more than 0.2 s"]


def test_all_cases_are_measured_before_any_is_measured_again(monkeypatch, tmp_path, capsys):
    seen = []

    def take(found, group, command):
        for one in group:
            seen.append(one.name)
            found[one.name].medians_s.append(1e-4 * (1 + 0.01 * len(seen)))

    monkeypatch.setattr(repeated_processes, "take", take)
    words = ["--case", "gelu/fp32/64,sum/fp32/64", "--runs", "2", "--device", "cpu", "--output", str(tmp_path)]
    assert repeated_processes.run(repeated_processes.build_parser().parse_args(words)) == 0
    assert seen == ["gelu/fp32/64", "sum/fp32/64", COPY] * 2
    assert "3 of 3 rows above 20 us spread by 0.5% or more" in capsys.readouterr().out
    rows = json.loads((tmp_path / "repeated_processes.json").read_text())["rows"]
    assert [row["is_wide"] for row in rows] == [True] * 3


def test_a_failed_process_fails_the_command(monkeypatch, capsys):
    def refuse(command):
        raise ProcessError("no")

    monkeypatch.setattr(repeated_processes, "measured", refuse)
    args = repeated_processes.build_parser().parse_args(["--case", "sum/fp32/64", "--device", "cpu"])
    assert repeated_processes.run(args) == 1
    assert "failed: no" in capsys.readouterr().out
