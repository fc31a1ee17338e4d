"""python -m results compare: what belongs together, what is refused, what every output says."""

import csv
import io
import json
import random
import re
from pathlib import Path

import pytest

from results.__main__ import main
from results.judge import judged
from results.store import RunWriter

PNG = b"\x89PNG\r\n\x1a\n"


def samples(scale, seed, count=80, noise=0.002):
    generator = random.Random(seed)
    return tuple(scale * 4e-6 * generator.lognormvariate(0, noise) for _ in range(count))


@pytest.fixture
def measured(make_record):
    """Returns a function that makes a record with noise of 0.2 % around `scale` times 4 us."""

    def make(scale=1.0, seed=0, count=80, noise=0.002, **changes):
        taken = samples(scale, f"{seed} {changes}", count, noise)
        ordered = sorted(taken)
        median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        ends = {"samples_s": taken, "median_s": median, "ci95_s": (ordered[0], ordered[-1])}
        return make_record(**(ends | changes))

    return make


@pytest.fixture
def save(tmp_path, make_environment):
    """Returns a function that writes a run and returns its path."""

    def write(name, *records, **changes):
        environment = make_environment(**({"run_id": f"20261120T210312Z-{name}", "git": {"sha": name * 8}} | changes))
        with RunWriter.create(environment, "matmul", tmp_path / f"{name}.jsonl") as writer:
            for record in records:
                writer.append(record)
        return str(writer.path)

    return write


def case(size):
    return {"case": f"{size}x{size}", "shape": {"m": size, "n": size}}


def compared(capsys, *arguments):
    """Return exit code and JSON document of a comparison."""
    code = main(["compare", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Return the one line that a refused comparison says."""
    try:
        code = main(["compare", *arguments])
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


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


def test_what_has_no_counterpart_is_listed(save, measured, make_skipped, capsys):
    shared = measured(seed=1)
    before = save("a", shared, measured(**case(64)))
    after = save("b", shared, measured(**case(128)), measured(provider="triton-v1"), make_skipped(**case(32)))
    code, document = compared(capsys, before, after)
    assert code == 0
    assert len(document["rows"]) == 1
    found = {(one["side"], one["case"], one["provider"], one["reason"]) for one in document["unmatched"]}
    assert found == {
        ("baseline", "64x64", "torch", "not in the candidate"),
        ("candidate", "128x128", "torch", "not in the baseline"),
        ("candidate", "1024x1024x1024", "triton-v1", "not in the baseline"),
        ("candidate", "32x32", "torch", "skipped: out of memory"),
    }
    assert main(["compare", before, after]) == 0
    out = capsys.readouterr().out
    assert "candidate: matmul 128x128 bf16 torch uniform cold: not in the baseline" in out
    main(["compare", before, after, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["verdict"] for row in rows] == ["SAME", *["UNMATCHED"] * 4]


def test_a_candidate_that_became_wrong_fails(save, measured, make_skipped, capsys):
    good, small = measured(seed=1), measured(seed=1, **case(64))
    before = save("a", good, small)
    wrong = make_skipped(status="invalid", reason="wrong result", **case(64))
    code, document = compared(capsys, before, save("b", good, wrong))
    assert code == 1
    assert [one["broken"] for one in document["unmatched"] if one["side"] == "candidate"] == [True]
    assert document["summary"]["broken"] == 1
    # Where the baseline was wrong as well, or the candidate alone has the case, nothing has become wrong.
    assert compared(capsys, save("c", good, wrong), save("d", good, wrong))[0] == 0
    assert compared(capsys, save("e", good, wrong), save("f", good, small))[0] == 0


@pytest.mark.parametrize("changes", [{"fill": "zeros"}, {"cache": "warm"}], ids=str)
def test_another_fill_or_cache_is_refused_and_forced(save, measured, capsys, changes):
    before, after = save("a", measured(seed=1)), save("b", measured(seed=1, **changes))
    (name, value) = next(iter(changes.items()))
    usual = {"fill": "uniform", "cache": "cold"}[name]
    message = refused(capsys, before, after)
    assert f"matmul 1024x1024x1024 bf16 was not measured alike: {name} {usual} against {value}" in message
    assert "--force" in message
    code, document = compared(capsys, before, after, "--force")
    assert len(document["rows"]) == 1
    assert document["unmatched"] == []
    assert f"compared by force: {name} {usual} against {value}" in document["summary"]["notes"]
    assert code == document["summary"]["exit_code"]


def test_both_fills_in_both_runs_find_each_other(save, measured, capsys):
    both = [measured(seed=1), measured(2.0, seed=1, fill="zeros")]
    document = compared(capsys, save("a", *both), save("b", *reversed(both)))[1]
    assert [(row["fill"], row["verdict"]) for row in document["rows"]] == [("zeros", "SAME"), ("uniform", "SAME")]


OTHER_MACHINES = {
    "GPU": {"device": {"slug": "a100", "name": "NVIDIA A100", "type": "cuda"}},
    "clock mode": {"settings": {"clock_mode": "locked"}},
    "power limit": {"preflight": {"power_limit_w": 500.0}},
}


@pytest.mark.parametrize("what", OTHER_MACHINES)
def test_another_machine_is_refused_and_forced(save, measured, capsys, what):
    usual = {"settings": {"clock_mode": "default"}, "preflight": {"power_limit_w": 700.0}}
    before = save("a", measured(seed=1), **usual)
    after = save("b", measured(seed=1), **(usual | OTHER_MACHINES[what]))
    message = refused(capsys, before, after)
    reasons = {
        "GPU": "GPU NVIDIA H100 80GB HBM3 against NVIDIA A100",
        "clock mode": "clock_mode default against locked",
        "power limit": "power_limit_w 700.0 against 500.0",
    }
    assert f"not the same machine: {reasons[what]}; --force" in message
    document = compared(capsys, before, after, "--force")[1]
    assert f"compared by force: {reasons[what]}" in document["summary"]["notes"]


def test_what_one_run_does_not_tell_is_no_difference(save, measured, capsys):
    before = save("a", measured(seed=1), settings={"clock_mode": "locked"})
    assert compared(capsys, before, save("b", measured(seed=2)))[0] == 0


def test_other_versions_are_a_note(save, measured, capsys):
    one = measured(seed=1)
    before, after = save("a", one), save("b", one, versions={"python": "3.11.9", "torch": "2.14.0", "triton": None})
    assert "other versions: torch 2.13.0 to 2.14.0" in compared(capsys, before, after)[1]["summary"]["notes"]


def test_options_and_shapes_tell_cases_apart(save, measured, capsys):
    before = save("a", measured(options={"layout": "nn"}), measured(seed=1, options={"layout": "nt"}))
    after = save("b", measured(options={"layout": "nn"}), measured(shape={"m": 7}, options={"layout": "nt"}))
    document = compared(capsys, before, after)[1]
    assert [row["options"] for row in document["rows"]] == ["layout=nn"]
    assert len(document["unmatched"]) == 2


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
    assert "drift between the two is not in the intervals" in note


@pytest.mark.parametrize(
    ("clock", "verdict", "reason"),
    [
        (1.5e9, "SLOWER", "; in clock cycles too"),
        (1.5e9 / 1.1, "SAME", "in clock cycles SAME: the clock changed by -9.1 %"),
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


@pytest.fixture
def providers(save, measured):
    """A run of three providers at two shapes, with a slower version 1 and a faster version 2."""
    scales = {"torch": 1.0, "triton-v1": 1.1, "triton-v2": 0.9}
    records = [measured(scale, provider=name, **case(size)) for size in (64, 128) for name, scale in scales.items()]
    return save("p", *records)


def test_the_providers_of_one_run(providers, capsys):
    code, document = compared(capsys, providers, "--by", "provider")
    found = [(row["case"], row["baseline"], row["candidate"], row["verdict"]) for row in document["rows"]]
    expected = [("triton-v1", "SLOWER"), ("triton-v2", "FASTER")]
    assert found == [(size, "torch", *pair) for size in ("64x64", "128x128") for pair in expected]
    assert code == 1
    document = compared(capsys, providers, "--by", "provider", "--baseline", "triton-v1")[1]
    assert {(row["candidate"], row["verdict"]) for row in document["rows"]} == {
        ("torch", "FASTER"),
        ("triton-v2", "FASTER"),
    }


def test_the_versions_of_one_run(providers, capsys):
    code, document = compared(capsys, providers, "--by", "version")
    assert {(row["baseline"], row["candidate"]) for row in document["rows"]} == {("triton-v1", "triton-v2")}
    assert code == 0
    assert {(one["provider"], one["reason"]) for one in document["unmatched"]} == {
        ("torch", "its provider is no version of a kernel")
    }
    assert compared(capsys, providers, "--by", "version", "--baseline", "triton-v2")[0] == 1


def test_versions_count_upwards(save, measured, capsys):
    run = save("a", *[measured(provider=f"triton-v{number}") for number in (10, 2, 9)])
    document = compared(capsys, run, "--by", "version")[1]
    assert {row["baseline"] for row in document["rows"]} == {"triton-v2"}


def test_functions_of_a_file_are_versions(save, measured, capsys):
    run = save("a", measured(provider="my/gelu.py:first"), measured(0.9, seed=2, provider="my/gelu.py:second"))
    (row,) = compared(capsys, run, "--by", "version")[1]["rows"]
    assert (row["baseline"], row["candidate"], row["verdict"]) == ("my/gelu.py:first", "my/gelu.py:second", "FASTER")


def test_a_provider_of_one_run_against_those_of_another(save, measured, capsys):
    before = save("a", measured(seed=1))
    after = save("b", measured(0.9, seed=2, provider="triton-v1"))
    (row,) = compared(capsys, before, after, "--by", "provider")[1]["rows"]
    assert (row["provider_baseline"], row["provider_candidate"], row["verdict"]) == ("torch", "triton-v1", "FASTER")


def test_selections(providers, capsys):
    arguments = ("--by", "provider", "--provider", "torch,triton-v2", "--case", "64x64")
    (row,) = compared(capsys, providers, *arguments)[1]["rows"]
    assert (row["candidate"], row["case"]) == ("triton-v2", "64x64")
    message = refused(capsys, providers, "--by", "provider", "--dtype", "fp16")
    assert "has no record of what --op, --dtype, --case, --provider name" in message


def test_names_that_do_not_fit_are_refused(providers, save, measured, capsys):
    other = save("q", measured(seed=1, **case(3)))
    assert "--baseline cublas is not among the providers: torch, triton-v1, triton-v2" in refused(
        capsys, providers, "--by", "provider", "--baseline", "cublas"
    )
    assert "--baseline torch names a provider: add --by provider" in refused(
        capsys, providers, other, "--baseline", "torch"
    )
    assert "no other provider than torch" in refused(capsys, other, "--by", "provider")
    assert "no provider is a version" in refused(capsys, other, "--by", "version")
    assert "name a second one" in refused(capsys, providers)
    assert "--by git needs two runs" in refused(capsys, providers, "--by", "git")
    message = refused(capsys, providers, other)
    assert message.startswith("there is nothing to compare: the baseline has matmul 64x64 bf16 torch (not in the")
    assert "the candidate has matmul 3x3 bf16 torch (not in the baseline)" in message


def test_by_git_needs_two_revisions(save, measured, capsys):
    one, other = measured(seed=1), measured(seed=2)
    same = {"git": {"sha": "c" * 40, "dirty": False}}
    assert "both runs are of revision cccccccccc" in refused(
        capsys, save("a", one, **same), save("b", other, **same), "--by", "git"
    )
    assert "does not tell its revision" in refused(capsys, save("c", one, git={}), save("d", other), "--by", "git")
    document = compared(capsys, save("e", one, git={"sha": "e" * 40, "dirty": True}), save("f", other))[1]
    assert document["summary"]["baseline"]["label"] == "eeeeeeeeee-dirty"


def test_a_torn_file_is_compared_with_a_note_and_a_bad_line_with_exit_code_2(save, measured, tmp_path, capsys):
    before, after = save("a", measured(seed=1)), save("b", measured(seed=2))
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'{"kind": "record", "op"')
    assert main(["compare", before, after]) == 0
    out, err = capsys.readouterr()
    assert "1 SAME" in out
    assert f"note: {after}:3: the last line was cut off and is left out\n" in err
    with (tmp_path / "b.jsonl").open("ab") as file:
        file.write(b'\n{"kind": "record", "op": "a"}\n')
    assert main(["compare", before, after]) == 2
    out, err = capsys.readouterr()
    assert "1 SAME" in out
    assert f"{after}:4: 'provider' is missing\n" in err


def test_files_that_are_no_runs_are_refused(save, measured, tmp_path, capsys):
    good = save("a", measured(seed=1))
    (tmp_path / "bad.jsonl").write_bytes(b"\0\0\0")
    assert "is not a run file that can be read" in refused(capsys, good, str(tmp_path / "bad.jsonl"))
    assert "there is no run file" in refused(capsys, good, str(tmp_path / "none.jsonl"))
    assert "has no record" in refused(capsys, good, save("empty"))


def test_the_markdown_starts_with_a_summary_in_one_line(save, measured, capsys):
    before = save("a", measured(seed=1), measured(seed=1, **case(64)))
    after = save("b", measured(1.1, seed=2), measured(seed=1, **case(32)))
    assert main(["compare", before, after, "--format", "md"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"\*\*aaaaaaaa -> bbbbbbbb: 1 SLOWER of 1 row; geometric mean 1\.\d{4}x the time "
        r"\(95 % CI 1\.\d{4} to 1\.\d{4}\)\*\*",
        lines[0],
    )
    assert lines[2].startswith("| op | case | dtype | provider | baseline | candidate | time ratio | 95% CI |")
    assert lines[3] == "| " + " | ".join(["---"] * (lines[2].count("|") - 1)) + " |"
    assert "| matmul | 1024x1024x1024 | bf16 | torch |" in lines[4]
    assert "<details><summary>2 not compared</summary>" in lines
    assert "- baseline: matmul 64x64 bf16 torch uniform cold: not in the candidate" in lines


@pytest.mark.parametrize(("suffix", "start"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_drawn(save, measured, tmp_path, capsys, suffix, start):
    records = [measured(seed=size, **case(size)) for size in range(1, 60)]
    slower = [measured(1 + size / 500, seed=-size, **case(size)) for size in range(1, 60)]
    picture = tmp_path / "made" / f"compare.{suffix}"
    assert main(["compare", save("a", *records), save("b", *slower), "-o", str(picture)]) == 1
    assert picture.read_bytes().startswith(start)
    if suffix == "svg":
        text = picture.read_text(encoding="utf-8")
        assert "40 of 59 rows drawn, those that matter most" in text
        assert "MFU, % of the dense peak" in text


def test_a_picture_without_mfu_shows_bytes_per_second(save, measured, tmp_path, capsys):
    one = measured(seed=1, dtype="fp8e4m3", provider="a$b")
    picture = tmp_path / "compare.svg"
    assert main(["compare", save("a", one), save("b", one), "-o", str(picture)]) == 0
    assert "GB/s of compulsory bytes" in picture.read_text(encoding="utf-8")


def test_a_picture_of_an_unknown_format_is_refused_before_any_work(capsys):
    assert "the suffix names no format; allowed: .png, .svg, .pdf" in refused(capsys, "a", "b", "-o", "compare.gif")


def test_long_files_are_read_side_by_side_with_the_same_result(save, measured, capsys, monkeypatch):
    records = [measured(seed=size, **case(size)) for size in range(1, 6)]
    before, after = save("a", *records), save("b", *records[1:], measured(1.1, seed=9, **case(1)))
    alone = compared(capsys, before, after)
    monkeypatch.setattr("results.compare_load.PARALLEL_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert compared(capsys, before, after) == alone
    Path(after).write_bytes(b"\0")
    assert after in refused(capsys, before, after)


def test_a_table_of_many_rows_shows_those_that_matter(save, measured, capsys):
    records = [measured(seed=size, count=8, **case(size)) for size in range(1, 230)]
    slower = [*records[:-1], measured(1.5, seed=-1, count=8, **case(229))]
    assert main(["compare", save("a", *records), save("b", *slower)]) == 1
    out = capsys.readouterr().out
    assert "229x229" in out.splitlines()[5]
    assert "... and 29 more rows" in out


def test_what_is_kept_of_a_record_is_what_the_record_says(measured, tmp_path, make_environment):
    from results.compare_load import load, windows

    record = measured(seed=1, telemetry={"sm_clock_hz": 1.5e9}, options={"batch": 1, "layout": "nn", "process": 3})
    with RunWriter.create(make_environment(), "matmul", tmp_path / "run.jsonl") as writer:
        writer.append(record)
    (kept,) = load(writer.path).measured
    for name in ("op", "dtype", "case", "fill", "cache", "provider", "status", "method", "flops", "median_s", "ci95_s"):
        assert getattr(kept, name) == getattr(record, name)
    assert (kept.shape, kept.options, kept.process) == ("k=1024 m=1024 n=1024", "batch=1 layout=nn", "3")
    assert kept.sm_clock_hz == 1.5e9
    assert tuple(windows([kept])[0]) == record.samples_s


def test_numbers_that_are_none_are_named_where_they_are_used(save, measured, tmp_path, capsys):
    before, after = save("a", measured(seed=1)), save("b", measured(seed=2))
    line = Path(after).read_text(encoding="utf-8").splitlines()[1]
    with Path(after).open("a", encoding="utf-8") as file:
        for bad in ('"flops":1e999', '"flops":1,"flops":2', '"flops":NaN'):
            file.write(line.replace('"flops":2147483648', bad) + "\n")
        file.write(line.replace('"power_w":512.5', '"sm_clock_hz":1e999') + "\n")
    assert main(["compare", before, after, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["windows_candidate"] == 2
    found = [text.removeprefix(f"{after}:") for text in err.splitlines() if text.startswith(after)]
    assert found == [
        "3: 'flops' must be a whole number from 0 to 1e30, found inf",
        "4: the key 'flops' is there twice",
        "5: NaN is not a number",
    ]
    assert '"cycles_ratio": null' in out
