"""What makes a kept verdict doubtful: flags of a record, drift between two windows, medians that say something else."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from compare_runs import NO_DRIFT, case, compared, refused, samples

from results.__main__ import main
from results.stats.comparison import FASTER, SLOWER, geometric_mean
from results.stats.drift import ASSUMED, drift_of
from results.stats.unpaired import compare_many

# ---- flags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["preempted", "throttled", "drifting", "bimodal", "tick-limited"])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_disturbed_row_is_neither_faster_nor_slower(save, measured, capsys, flag, side):
    flags = {"baseline": (), "candidate": (), side: (flag,)}
    before = save("a", measured(seed=1, flags=flags["baseline"]))
    code, document = compared(capsys, before, save("b", measured(1.3, seed=2, flags=flags["candidate"])))
    (row,) = document["rows"]
    assert (code, row["verdict"]) == (0, "UNSURE")
    assert (
        f"all of it beyond the margin of 1 %, but the {side} is flagged {flag}; measuring both again" in row["reason"]
    )
    assert (row["flags_baseline"], row["flags_candidate"]) == (list(flags["baseline"]), list(flags["candidate"]))


@pytest.mark.parametrize(("scale", "verdict"), [(2.5, "SLOWER"), (1.9, "UNSURE"), (1 / 2.5, "FASTER"), (0.6, "UNSURE")])
def test_a_disturbance_does_not_explain_more_than_a_factor_of_two(save, measured, capsys, scale, verdict):
    paths = save("a", measured(seed=1)), save("b", measured(scale, seed=2, flags=("preempted",)))
    (row,) = compared(capsys, *paths)[1]["rows"]
    assert row["verdict"] == verdict
    assert "the candidate is flagged preempted" in row["reason"]


@pytest.mark.parametrize(("fastest", "verdict"), [(1.0, "SAME"), (0.02, "UNSURE")])
def test_a_wait_for_the_processor_that_both_times_hold_may_hide_a_difference(save, measured, capsys, fastest, verdict):
    """Where the fastest of the samples takes 2 % of the median, equal times may be those of very unequal functions."""
    flags = ("preempted",)
    sides = [measured(seed=seed, flags=flags) for seed in (1, 2)]
    sides = [replace(one, samples_s=(fastest * one.median_s, *one.samples_s[1:])) for one in sides]
    paths = [save(name, one) for name, one in zip("ab", sides, strict=True)]
    code, document = compared(capsys, "--margin", "2%", *paths)
    (row,) = document["rows"]
    assert (code, row["verdict"]) == (0, verdict)
    assert ("are 50 times those of the fastest samples" in row["reason"]) == (verdict == "UNSURE")
    alone = save("c", replace(sides[1], flags=()))
    assert compared(capsys, "--margin", "2%", paths[0], alone)[1]["rows"][0]["verdict"] == "SAME"


@pytest.mark.parametrize("flag", ["above-roof", "doubtful-roof"])
def test_a_doubt_about_the_roof_of_both_says_nothing_of_their_ratio(save, measured, capsys, flag):
    before, after = save("a", measured(seed=1, flags=(flag,))), save("b", measured(1.3, seed=2, flags=(flag,)))
    code, document = compared(capsys, before, after)
    assert (code, document["rows"][0]["verdict"]) == (1, "SLOWER")
    assert flag not in document["rows"][0]["reason"]


@pytest.mark.parametrize("flag", ["launch-limited", "above-roof", "not-converged", "power-limited"])
def test_a_flag_that_leaves_the_time_right_is_told_and_no_more(save, measured, capsys, flag):
    before, after = save("a", measured(seed=1)), save("b", measured(1.3, seed=2, flags=(flag, "settings-restored")))
    code, document = compared(capsys, before, after)
    assert (code, document["rows"][0]["verdict"]) == (1, "SLOWER")
    assert document["rows"][0]["reason"].endswith(f"; the candidate is flagged {flag}, settings-restored")


def test_a_cache_that_only_one_side_may_have_used_explains_a_gap(save, measured, capsys):
    suspect = {"flags": ("l2-suspect",)}
    before, after = save("a", measured(seed=1)), save("b", measured(0.2, seed=2, **suspect))
    assert compared(capsys, before, after)[1]["rows"][0]["verdict"] == "UNSURE"
    both = save("c", measured(seed=1, **suspect))
    assert compared(capsys, both, after)[1]["rows"][0]["verdict"] == "FASTER"


def test_flags_are_marked_in_tables_and_only_where_there_are_any(save, measured, capsys):
    before = save("a", measured(seed=1))
    after = save("b", measured(seed=2, flags=("preempted", "drifting")))
    for form in ("table", "md"):
        main(["compare", *NO_DRIFT, before, after, "--format", form])
        out = capsys.readouterr().out
        assert "flagged" in out
        assert "candidate" in next(line for line in out.splitlines() if "bf16" in line)
        main(["compare", *NO_DRIFT, before, before, "--format", form])
        assert "flagged" not in capsys.readouterr().out
    main(["compare", *NO_DRIFT, before, after, "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["flags_baseline"], row["flags_candidate"]) == ("", "preempted,drifting")


# ---- drift between two windows ------------------------------------------------------------------------------------


def drifting(seed, change=0.0, shift=0.011, trials=1000, windows=1):
    """Return rows whose windows each have a level of their own: of two, 95 % differ by less than 3 %."""
    random = np.random.default_rng(seed)

    def side(factor):
        return [
            factor * math.exp(random.normal(0, shift)) * np.exp(0.005 * random.normal(size=40)) for _ in range(windows)
        ]

    return [(side(1.0), side(1 + change)) for _ in range(trials)]


def share_of(rows, *verdicts, drift=None):
    found = compare_many(rows, drift=drift)
    return sum(row.verdict in verdicts for row in found) / len(rows)


def test_the_usual_allowance_keeps_verdicts_on_equal_code_right_and_finds_ten_percent():
    usual = drift_of(None, 0.0, 0)
    assert usual.share == ASSUMED == 0.03
    assert share_of(drifting(1), FASTER, SLOWER, drift=usual) <= 0.05
    assert share_of(drifting(1), FASTER, SLOWER) > 0.3  # what two windows alone would say
    assert share_of(drifting(2, 0.10), SLOWER, drift=usual) >= 0.95
    assert share_of(drifting(3, -0.10), FASTER, drift=usual) >= 0.95


def test_with_the_allowance_95_percent_of_the_intervals_hold_the_true_ratio():
    found = compare_many(drifting(4, 0.05), drift=drift_of(None, 0.0, 0))
    assert 930 <= sum(row.ci95[0] <= 1.05 <= row.ci95[1] for row in found) <= 985


def test_repeats_tell_the_drift():
    random = np.random.default_rng(5)
    spread = random.normal(0, 0.04, size=20).std(ddof=1)
    known = drift_of(None, spread, 19.0)
    assert known.share == pytest.approx(math.expm1(2.093 * spread * math.sqrt(2)), rel=1e-3)  # Student's t, 19 degrees
    assert known.source == "from 19 repeats of rows of these runs"
    assert drift_of(0.0, spread, 19.0).share == 0
    assert drift_of(None, 0.001, 1.0).share == ASSUMED
    assert drift_of(None, 0.1, 1.0).share > ASSUMED


def test_two_windows_apart_are_allowed_three_percent_and_the_reason_says_so(save, measured, capsys):
    before = save("a", measured(seed=1))
    for scale, verdict in ((1.0, "UNSURE"), (1.03, "UNSURE"), (1.1, "SLOWER"), (0.9, "FASTER")):
        after = save(f"b{scale}", measured(scale, seed=2))
        code, document = compared(capsys, before, after, "--drift", "3%")
        (row,) = document["rows"]
        assert (code, row["verdict"]) == (int(verdict == "SLOWER"), verdict)
        assert "±3 % allowed for drift between the two measurements" in row["reason"]
        assert row["ci95"][1] / row["ratio"] == pytest.approx(1.03, abs=0.001)
        assert row["drift"] == pytest.approx(0.03)
    main(["compare", before, save("c", measured(1.03, seed=2)), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["drift"]["share"] == 0.03
    assert "helion" in document["summary"]["drift"]["source"]
    assert "measuring both again, or in turns (bench compare), would tell" in document["rows"][0]["reason"]
    assert (
        "±3 % are allowed for changes of the machine between the two times (assumed: identical code"
        in document["summary"]["notes"][0]
    )


def test_rows_that_were_repeated_tell_what_others_are_allowed(save, measured, capsys):
    def run(name, seed):
        repeated = [measured(scale, seed=seed + at, **case(64)) for at, scale in enumerate((0.92, 1.0, 1.08))]
        return save(name, measured(1.1 if name == "b" else 1.0, seed=seed), *repeated)

    arguments = [run("a", 10), run("b", 20), "--format", "json"]
    assert main(["compare", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["drift"]["source"] == "from 4 repeats of rows of these runs"
    # Student's t of 4 degrees, a spread of 8 %, two windows.
    assert math.log1p(document["summary"]["drift"]["share"]) == pytest.approx(2.776 * 0.08 * math.sqrt(2), rel=0.05)
    assert [row["verdict"] for row in document["rows"]] == ["UNSURE", "UNSURE"]
    assert [row["drift"] > 0 for row in document["rows"]] == [True, False]


@pytest.mark.parametrize("share", ["-1%", "abc", "100%"])
def test_what_is_no_allowance_is_refused(capsys, share):
    assert f"'{share}' is not a share of the time" in refused(capsys, "a", "b", f"--drift={share}")


def test_drift_does_not_shrink_in_a_mean_of_rows():
    rows = compare_many([([np.full(10, 1.0)], [np.full(10, 1.1)])] * 100, drift=drift_of(0.03, 0.0, 0))
    ratio, (low, high) = geometric_mean(rows)
    assert ratio == pytest.approx(1.1)
    assert (low, high) == pytest.approx((1.1 / 1.03, 1.1 * 1.03))


# ---- medians that say something else ------------------------------------------------------------------------------


def test_a_median_that_is_not_that_of_the_samples_is_remarked(save, make_record, measured, capsys):
    taken = samples(1.0, 1, noise=0.05)
    odd = make_record(samples_s=taken, median_s=max(taken))
    (row,) = compared(capsys, save("a", measured(seed=1)), save("b", odd))[1]["rows"]
    medians = row["candidate_s"] / row["baseline_s"]
    assert medians > 1.05
    text = f"the two medians stand at {medians:.4f}: the saved medians are not those of the samples"
    assert row["reason"].endswith(text)
    assert (
        "two medians stand"
        not in compared(capsys, save("c", measured(seed=1)), save("d", measured(seed=2)))[1]["rows"][0]["reason"]
    )


# ---- what there is nothing of, and means ---------------------------------------------------------------------------


def test_a_run_of_bad_lines_says_how_many_and_the_first(save, measured, tmp_path, capsys):
    good, bad = save("a", measured(seed=1)), save("b", measured(seed=2), measured(seed=3))
    lines = (tmp_path / "b.jsonl").read_text().replace('"dtype":"bf16"', '"dtype":"bf61"')
    (tmp_path / "b.jsonl").write_text(lines)
    message = refused(capsys, good, bad)
    assert f"{bad} has no record: 2 lines cannot be used, the first is {bad}:2: Expected `str` matching" in message


def test_each_kind_of_rows_has_a_mean_of_its_own(save, measured, capsys):
    records = [
        measured(scale, seed=size, provider=provider, op=op, **case(size))
        for op in ("gelu", "softmax")
        for size in (64, 128)
        for provider, scale in (("torch", 1.0), ("a", 1.2 if op == "gelu" else 0.8), ("b", 2.0))
    ]
    run = save("p", *records)
    summary = compared(capsys, run, "--by", "provider")[1]["summary"]
    found = {(mean["op"], mean["candidate"]): (mean["ratio"], mean["rows"]) for mean in summary["geomeans"]}
    expected = {("gelu", "a"): 1.2, ("gelu", "b"): 2.0, ("softmax", "a"): 0.8, ("softmax", "b"): 2.0}
    assert {kind: rows for kind, (_, rows) in found.items()} == dict.fromkeys(expected, 2)
    assert {kind: ratio for kind, (ratio, _) in found.items()} == pytest.approx(expected, rel=0.01)
    assert summary["geomean"] is None
    main(["compare", *NO_DRIFT, run, "--by", "provider", "--format", "md"])
    out = capsys.readouterr().out
    assert "\n- softmax, torch -> a: geometric mean 0.8" in out
    assert "geometric mean" not in out.splitlines()[0]
