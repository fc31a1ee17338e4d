"""python -m results compare: the verdicts, from one measurement or from several."""

import json

import pytest
from compare_runs import compared, refused

from results.__main__ import main
from results.compare.sides import Side
from roofline.machine import Ceiling, Machine
from roofline.model import judged


@pytest.mark.parametrize(
    ("scale", "verdict", "code"),
    [(1.0, "SAME", 0), (0.9, "FASTER", 0), (1.1, "SLOWER", 1), (1.01, "UNSURE", 0)],
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
        assert (code, document["rows"][0]["verdict"], document["summary"]["margin"]) == (
            0,
            "SAME",
            0.05,
        )
    assert compared(capsys, before, after, "--margin", "0")[0] == 1


@pytest.mark.parametrize("margin", ["-3%", "abc", "-0.03", "1", "100%", "nan", "inf", ""])
def test_invalid_margin_is_rejected(capsys, margin):
    message = refused(capsys, "a", "b", "--margin", margin)
    assert (
        f"expected a fraction of the time from 0 to below 100 %, such as 1% or 0.01, got '{margin}'"
        in message
    )


def test_mfu_of_both_sides_is_that_of_the_judge(save, measured, make_environment, capsys):
    one, other = measured(seed=1), measured(0.9, seed=2)
    paths = save("a", one), save("b", other)
    (row,) = compared(capsys, *paths)[1]["rows"]
    scores = [score for _, score in judged(make_environment(), [one, other])]
    assert (row["mfu_baseline"], row["mfu_candidate"]) == pytest.approx(
        [score["mfu"] for score in scores]
    )
    for form in ("table", "md"):
        main(["compare", *paths, "--format", form])
        out = capsys.readouterr().out
        assert "MFU baseline" in out
        assert "MFU candidate" in out
        assert f"{100 * scores[1]['mfu']:.1f}%" in out


def test_mfu_is_null_and_has_no_column_if_no_peak_is_known(save, measured, capsys):
    one = measured(seed=1, dtype="fp8e4m3")
    paths = save("a", one), save("b", one)
    (row,) = compared(capsys, *paths)[1]["rows"]
    assert (row["mfu_baseline"], row["mfu_candidate"]) == (None, None)
    assert row["bytes_per_s_baseline"] == pytest.approx(1.5 * 2**22 / one.median_s)
    main(["compare", *paths])
    assert "MFU" not in capsys.readouterr().out


def test_the_share_of_the_ceiling_is_that_of_the_table_of_a_run(make_environment, make_record):
    vector = Ceiling("fma", "fp32", 50e12, "datasheet", "a test")
    environment = make_environment()
    environment = make_environment(machine=environment.machine.with_entries([vector]))
    works = [
        {},
        {"op": "gelu"},
        {"op": "mine", "units": "vector"},
        {"op": "gelu", "bytes_read": 2**30},
        {"flops": 0},
    ]
    records = [make_record(**work) for work in works]
    found = [Side.of("", [record], environment).of_ceiling for record in records]
    scores = judged(environment, records)
    assert [100 * share for share, _ in found] == pytest.approx(
        [score["roofline_pct"] for _, score in scores]
    )
    assert [bound for _, bound in found] == ["memory", "compute", "compute", "memory", "memory"]
    unknown = make_environment(machine=Machine())
    assert Side.of("", records[:1], unknown).of_ceiling is None


def test_repeated_rows_of_a_run_widen_the_interval(save, measured, capsys):
    def repeated(name, *scales):
        return save(name, *[measured(scale, seed=scale) for scale in scales])

    main(
        [
            "compare",
            repeated("a", 0.98, 1.0, 1.02),
            repeated("b", 1.48, 1.5, 1.52),
            "--format",
            "json",
        ]
    )
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["windows_baseline"], row["windows_candidate"]) == (3, 3)
    assert row["verdict"] == "UNSURE"
    assert row["ratio"] == pytest.approx(1.5, rel=0.003)
    assert row["ci95"][1] / row["ratio"] > 1.015
    single = save("c", measured(1.0, seed=5)), save("d", measured(1.02, seed=6))
    assert compared(capsys, *single)[1]["rows"][0]["verdict"] == "SLOWER"


@pytest.mark.parametrize(
    ("clock", "verdict", "reason"),
    [
        (1.5e9, "SLOWER", "; in clock cycles it is SLOWER"),
        (1.5e9 / 1.1, "SAME", "in clock cycles it is SAME"),
    ],
)
def test_difference_in_clock_cycles_has_its_own_verdict(
    save, measured, capsys, clock, verdict, reason
):
    before = save("a", measured(seed=1, telemetry={"sm_clock_hz": 1.5e9}))
    (row,) = compared(
        capsys, before, save("b", measured(1.1, seed=2, telemetry={"sm_clock_hz": clock}))
    )[1]["rows"]
    assert (row["verdict"], row["cycles_verdict"]) == ("SLOWER", verdict)
    assert row["cycles_ratio"] == pytest.approx(row["ratio"] * clock / 1.5e9)
    assert row["reason"].endswith(reason)


def test_one_sample_is_unsure(save, make_record, measured, capsys):
    one = make_record(samples_s=(4e-6,), median_s=4e-6)
    code, document = compared(capsys, save("a", measured(seed=1)), save("b", one))
    (row,) = document["rows"]
    assert (code, row["verdict"], row["ci95"]) == (0, "UNSURE", None)
    assert row["reason"] == "only 1 sample of at least 6"
    assert document["summary"]["geomean"] is None
