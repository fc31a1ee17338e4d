"""python -m results compare: the verdicts, in time and in other metrics, from one measurement or from several."""

import re
from pathlib import Path

import pytest
from compare_runs import case, compared, refused

from results.compare.load import LoadedRun, measured_of
from results.show.judge import judged


@pytest.mark.parametrize(
    ("scale", "verdict", "code"), [(1.0, "SAME", 0), (0.9, "FASTER", 0), (1.1, "SLOWER", 1), (1.01, "UNSURE", 0)]
)
def test_two_revisions_of_one_kernel(save, measured, capsys, scale, verdict, code):
    before, after = save("a", measured(1.0, seed=1)), save("b", measured(scale, seed=2))
    found, document = compared(capsys, before, after, "--by", "git")
    (row,) = document["rows"]
    assert found == code == document["summary"]["exit_code"]
    assert row["verdict"] == verdict
    assert row["ratio"] == pytest.approx(scale, rel=0.003)
    assert row["ci95"][0] < row["ratio"] < row["ci95"][1]
    assert (row["baseline"], row["candidate"]) == ("aaaaaaaa", "bbbbbbbb")
    assert (row["op"], row["dtype"], row["case"]) == ("matmul", "bf16", "1024x1024x1024")
    assert "margin of 1 %" in row["reason"]
    assert document["summary"]["counts"][verdict] == document["summary"]["rows"] == 1
    assert document["summary"]["geomean"] == pytest.approx(row["ratio"])
    assert document["summary"]["geomean_ci95"] == pytest.approx(row["ci95"])
    assert document["unmatched"] == []


def test_fail_on_unsure(save, measured, capsys):
    before, after = save("a", measured(seed=1)), save("b", measured(1.01, seed=2))
    assert compared(capsys, before, after, "--fail-on", "unsure")[0] == 1
    same = save("c", measured(seed=3))
    assert compared(capsys, before, same, "--fail-on", "unsure")[0] == 0


def test_the_margin_is_a_percentage_or_a_fraction(save, measured, capsys):
    before, after = save("a", measured(seed=1)), save("b", measured(1.03, seed=2))
    for margin in ("5%", "0.05", "5 %"):
        code, document = compared(capsys, before, after, "--margin", margin)
        assert (code, document["rows"][0]["verdict"], document["summary"]["margin"]) == (0, "SAME", 0.05)
    assert compared(capsys, before, after, "--margin", "0")[0] == 1


@pytest.mark.parametrize("margin", ["-3%", "abc", "-0.03", "1", "100%", "nan", "inf", ""])
def test_what_is_no_margin_is_refused(capsys, margin):
    message = refused(capsys, "a", "b", "--margin", margin)
    assert f"'{margin}' is not a share of the time from 0 to below 100 %, such as 1% or 0.01" in message


def test_an_unknown_metric_and_mode_are_refused(capsys):
    assert "invalid choice: 'speed' (choose from" in refused(capsys, "a", "b", "--metric", "speed")
    assert "invalid choice: 'date' (choose from" in refused(capsys, "a", "b", "--by", "date")


def test_mfu_is_that_of_the_judge_and_faster_stays_faster(save, measured, make_environment, capsys):
    one, other = measured(seed=1), measured(0.9, seed=2)
    document = compared(capsys, save("a", one), save("b", other), "--metric", "mfu")[1]
    (row,) = document["rows"]
    before, after = (score["mfu"] for score in judged(make_environment(), [one, other]))
    assert (row["mfu_baseline"], row["mfu_candidate"]) == pytest.approx((before, after))
    assert row["metric_ratio"] == pytest.approx(after / before, rel=1e-4)
    assert row["ratio"] == pytest.approx(0.9, rel=0.003)
    assert row["verdict"] == "FASTER"
    assert re.fullmatch(r"MFU \+1\d\.\d\d % to \+1\d\.\d\d %: all of it beyond the margin of 1 %", row["reason"])
    assert document["summary"]["metric_geomean"] == pytest.approx(1 / document["summary"]["geomean"])


def test_mbu_is_that_of_the_judge(save, measured, make_environment, capsys):
    mixes = [case(8) | {"bytes_read": 2**22, "bytes_written": 2**20}, case(9) | {"bytes_read": 0}]
    records = [measured(seed=1, **mix) for mix in mixes]
    document = compared(capsys, save("a", *records), save("b", *records), "--metric", "mbu")[1]
    assert [row["metric_ratio"] for row in document["rows"]] == pytest.approx([1.0, 1.0])
    assert "MBU" in document["rows"][0]["reason"]


def test_the_share_of_the_ceiling_is_that_of_the_table_of_a_run(make_environment, make_record):
    vector = {"quantity": "fma", "name": "fp32", "value": 50e12, "kind": "datasheet", "source": "a test"}
    hardware = make_environment().hardware
    environment = make_environment(hardware=hardware | {"entries": [*hardware["entries"], vector]})
    works = [{}, {"op": "gelu"}, {"op": "mine", "units": "vector"}, {"op": "gelu", "bytes_read": 2**30}, {"flops": 0}]
    records = [make_record(**work) for work in works]
    run = LoadedRun(Path("a run"), environment, ())
    found = [run.of_ceiling(measured_of(record), record.median_s) for record in records]
    scores = judged(environment, records)
    assert [100 * share for share, _ in found] == pytest.approx([score["roofline_pct"] for score in scores])
    assert [bound for _, bound in found] == ["memory", "compute", "compute", "memory", "memory"]
    assert found[0][0] == pytest.approx(0.7324, abs=1e-4)
    assert found[1] == found[2] == (pytest.approx(10), "compute")  # of the vector units, whose peak is a twentieth
    assert LoadedRun(Path("a run"), make_environment(hardware={}), ()).of_ceiling(measured_of(records[0]), 1.0) is None


def test_a_metric_counts_the_work_and_time_does_not(save, measured, capsys):
    clock = {"telemetry": {"sm_clock_hz": 1e9}}
    before, after = save("a", measured(seed=1, **clock)), save("b", measured(seed=2, flops=2**32, **clock))
    assert compared(capsys, before, after)[1]["rows"][0]["verdict"] == "SAME"
    code, document = compared(capsys, before, after, "--metric", "flops")
    assert (code, document["rows"][0]["verdict"]) == (0, "FASTER")
    assert document["rows"][0]["metric_ratio"] == pytest.approx(2, rel=0.003)
    assert document["rows"][0]["ratio"] == pytest.approx(1, rel=0.003)
    assert document["rows"][0]["cycles_ratio"] == document["rows"][0]["ratio"]
    assert document["summary"]["geomean"] == pytest.approx(document["rows"][0]["ratio"])
    assert document["summary"]["geomean_ci95"] == pytest.approx(document["rows"][0]["ci95"])


def test_where_the_metric_is_not_known_rows_are_unmatched(save, measured, capsys):
    known, copy = measured(seed=1), measured(seed=1, op="copy", flops=0)
    document = compared(capsys, save("a", known, copy), save("b", known, copy), "--metric", "mfu")[1]
    assert [row["op"] for row in document["rows"]] == ["matmul"]
    (left,) = document["unmatched"]
    assert (left["op"], left["side"], left["reason"]) == ("copy", "baseline", "its MFU is not known, or 0")
    message = refused(capsys, save("c", copy), save("d", copy), "--metric", "mfu")
    assert "its MFU is not known, or 0" in message


def test_mfu_is_null_where_no_peak_is_known(save, measured, capsys):
    one = measured(seed=1, dtype="fp8e4m3")
    (row,) = compared(capsys, save("a", one), save("b", one))[1]["rows"]
    assert (row["mfu_baseline"], row["mfu_candidate"]) == (None, None)
    assert row["bytes_per_s_baseline"] == pytest.approx(1.5 * 2**22 / one.median_s)


def test_processes_are_repeats_and_widen_the_interval(save, measured, capsys):
    def processes(name, *scales, place="options"):
        return save(name, *[measured(scale, seed=scale, **{place: {"process": i}}) for i, scale in enumerate(scales)])

    before = processes("a", 0.98, 1.0, 1.02)
    after = processes("b", 1.0, 1.02, 1.04, place="telemetry")
    (row,) = compared(capsys, before, after)[1]["rows"]
    assert (row["windows_baseline"], row["windows_candidate"]) == (3, 3)
    assert row["verdict"] == "UNSURE"
    assert row["ratio"] == pytest.approx(1.02, rel=0.003)
    # Student's t of 4 degrees, the spread of 2 %, three windows on either side.
    assert row["ci95"][1] / row["ratio"] - 1 == pytest.approx(2.776 * 0.02 * (2 / 3) ** 0.5, rel=0.06)
    single = save("c", measured(1.0, seed=5)), save("d", measured(1.02, seed=6))
    assert compared(capsys, *single)[1]["rows"][0]["verdict"] == "SLOWER"


def test_the_same_row_several_times_is_taken_as_repeats_and_said(save, measured, capsys):
    before = save("a", measured(0.98, seed=1), measured(1.02, seed=2))
    document = compared(capsys, before, save("b", measured(1.0, seed=3)))[1]
    assert document["rows"][0]["windows_baseline"] == 2
    assert document["unmatched"] == []
    (note,) = document["summary"]["notes"]
    assert note.startswith("1 of the baseline's rows are there several times, such as matmul 1024x1024x1024 bf16 torch")


def test_rows_measured_once_are_said_to_hold_no_drift(save, measured, capsys):
    one = measured(seed=1)
    (note,) = compared(capsys, save("a", one), save("b", one))[1]["summary"]["notes"]
    assert "changes of the machine between the two times are not in the intervals (given by --drift)" in note


@pytest.mark.parametrize(
    ("clock", "verdict", "reason"),
    [
        (1.5e9, "SLOWER", "; counted in clock cycles it is SLOWER as well"),
        (1.5e9 / 1.1, "SAME", "counted in clock cycles it is SAME: the clock frequency changed by -9.1 %"),
    ],
)
def test_whether_a_gap_survives_in_clock_cycles(save, measured, capsys, clock, verdict, reason):
    before = save("a", measured(seed=1, telemetry={"sm_clock_hz": 1.5e9}))
    (row,) = compared(capsys, before, save("b", measured(1.1, seed=2, telemetry={"sm_clock_hz": clock})))[1]["rows"]
    assert (row["verdict"], row["cycles_verdict"]) == ("SLOWER", verdict)
    assert row["cycles_ratio"] == pytest.approx(row["ratio"] * clock / 1.5e9)
    assert row["reason"].endswith(reason)


def test_without_a_clock_nothing_is_said_of_cycles(save, measured, capsys):
    (row,) = compared(capsys, save("a", measured(seed=1)), save("b", measured(1.1, seed=2)))[1]["rows"]
    assert (row["cycles_ratio"], row["cycles_verdict"]) == (None, None)
    assert "cycles" not in row["reason"]


def test_one_sample_is_unsure(save, make_record, measured, capsys):
    one = make_record(samples_s=(4e-6,), median_s=4e-6)
    code, document = compared(capsys, save("a", measured(seed=1)), save("b", one))
    (row,) = document["rows"]
    assert (code, row["verdict"], row["ci95"]) == (0, "UNSURE", None)
    assert row["reason"] == "only 1 sample: 6 or more can tell"
    assert document["summary"]["geomean"] is None


def test_a_median_without_its_samples_is_unsure(save, make_record, measured, capsys):
    bare = make_record(samples_s=(), median_s=8e-6)
    (row,) = compared(capsys, save("a", measured(seed=1)), save("b", bare))[1]["rows"]
    assert (row["verdict"], row["reason"]) == ("UNSURE", "no samples were kept of the candidate, only a median")
    assert row["ratio"] == pytest.approx(2.0, rel=0.003)
