"""What makes a kept verdict doubtful: flags of a record, drift between two windows, medians that
say something else.
"""

import csv
import io
import json
import math
from pathlib import Path
from statistics import stdev

import pytest
from compare_runs import NO_DRIFT, case, compared, refused, samples

from results.__main__ import main
from results.compare.earlier import SavedRuns
from results.compare.sides import Side
from results.stats.samples import RUNS
from results.store.runfile import load_run


@pytest.mark.parametrize("flag", ["preempted", "throttled", "drifting", "bimodal", "tick-limited"])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_disturbed_row_is_neither_faster_nor_slower(save, measured, capsys, flag, side):
    flags = {"baseline": (), "candidate": (), side: (flag,)}
    before = save("a", measured(seed=1, flags=flags["baseline"]))
    code, document = compared(
        capsys, before, save("b", measured(1.3, seed=2, flags=flags["candidate"]))
    )
    (row,) = document["rows"]
    assert (code, row["verdict"]) == (0, "UNSURE")
    assert (
        f"all of it beyond the margin of 1 %, but the {side} is flagged {flag}; save more runs of "
        f"both" in row["reason"]
    )
    assert (row["flags_baseline"], row["flags_candidate"]) == (
        list(flags["baseline"]),
        list(flags["candidate"]),
    )


def test_a_disturbed_row_is_not_the_same_either(save, measured, capsys):
    paths = [save(name, measured(seed=at, flags=("preempted",))) for at, name in enumerate("ab")]
    assert compared(capsys, "--margin", "2%", *paths)[1]["rows"][0]["verdict"] == "UNSURE"


@pytest.mark.parametrize("flag", ["above-roof", "doubtful-roof"])
def test_doubtful_roof_of_both_sides_does_not_affect_the_verdict(save, measured, capsys, flag):
    before, after = (
        save("a", measured(seed=1, flags=(flag,))),
        save("b", measured(1.3, seed=2, flags=(flag,))),
    )
    code, document = compared(capsys, before, after)
    assert (code, document["rows"][0]["verdict"]) == (1, "SLOWER")
    assert flag not in document["rows"][0]["reason"]


@pytest.mark.parametrize("flag", ["launch-limited", "above-roof", "not-converged", "power-limited"])
def test_a_flag_that_leaves_the_time_right_is_told_and_no_more(save, measured, capsys, flag):
    before, after = (
        save("a", measured(seed=1)),
        save("b", measured(1.3, seed=2, flags=(flag, "settings-restored"))),
    )
    code, document = compared(capsys, before, after)
    assert (code, document["rows"][0]["verdict"]) == (1, "SLOWER")
    assert document["rows"][0]["reason"].endswith(
        f"; the candidate is flagged {flag}, settings-restored"
    )


@pytest.mark.parametrize("flag", ["l2-suspect", "not-cold", "not-captured"])
def test_a_cache_or_a_timer_of_one_side_alone_explains_a_gap(save, measured, capsys, flag):
    suspect = {"flags": (flag,)}
    before, after = save("a", measured(seed=1)), save("b", measured(0.8, seed=2, **suspect))
    assert compared(capsys, before, after)[1]["rows"][0]["verdict"] == "UNSURE"
    both = save("c", measured(seed=1, **suspect))
    assert compared(capsys, both, after)[1]["rows"][0]["verdict"] == "FASTER"


def test_flags_are_in_the_reason_and_in_csv(save, measured, capsys):
    before = save("a", measured(seed=1))
    after = save("b", measured(seed=2, flags=("preempted", "drifting")))
    main(["compare", *NO_DRIFT, before, after])
    assert "the candidate is flagged preempted, drifting" in capsys.readouterr().out
    main(["compare", *NO_DRIFT, before, after, "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["flags_baseline"], row["flags_candidate"]) == ("", "preempted,drifting")


def test_given_drift_widens_the_interval_and_the_reason_says_so(save, measured, capsys):
    before = save("a", measured(seed=1))
    for scale, verdict in ((1.0, "UNSURE"), (1.03, "UNSURE"), (1.1, "SLOWER"), (0.9, "FASTER")):
        after = save(f"b{scale}", measured(scale, seed=2))
        code, document = compared(capsys, before, after, "--drift", "3%")
        (row,) = document["rows"]
        assert (code, row["verdict"]) == (int(verdict == "SLOWER"), verdict)
        assert "±3 % is the spread between measurements" in row["reason"]
        assert row["ci95"][1] / row["ratio"] == pytest.approx(1.03, abs=0.001)
        assert row["drift"] == pytest.approx(0.03)


SHA = "3:" + "a" * 64


def judge(capsys, *arguments):
    """Return the verdicts, the notes and the exit code of a comparison that learns the spread."""
    code = main(["compare", *arguments, "--margin", "1%", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    return (
        [row["verdict"] for row in document["rows"]],
        document["summary"]["drift"]["source"],
        code,
    )


def test_two_single_runs_of_an_unknown_machine_get_no_verdict(save, measured, capsys):
    """Visits are seconds apart, and say nothing about runs."""
    paths = save("a", measured(seed=1)), save("b", measured(3.0, seed=2))
    assert main(["compare", *paths, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    advice = "save more runs of both, or use python -m bench compare"
    assert row["verdict"] == "UNSURE"
    assert row["reason"].endswith(f"the spread between runs of the same code is unknown; {advice}")
    assert main(["compare", *paths, "--fail-on", "unsure"]) == 1
    assert advice in capsys.readouterr().out


def test_spread_without_repeats_is_unknown(save, measured, capsys):
    paths = save("a", measured(seed=1, visits=())), save("b", measured(seed=2, visits=()))
    assert main(["compare", *paths, "--format", "json"]) == 0
    drift = json.loads(capsys.readouterr().out)["summary"]["drift"]
    assert drift == {
        "share": None,
        "source": "unknown: no measurement of the same code was repeated",
    }


def test_earlier_runs_of_the_same_code_give_the_spread(save, measured, capsys):
    """Student's t of 4 degrees, runs that differ by 2 %: differences below 2.776 x 2 % x sqrt(2) =
    8 % are open.
    """
    for version in "ab":
        for run, level in enumerate((0.98, 1.0, 1.02)):
            scale = level * (1.25 if version == "b" else 1.0)
            save(f"{version}{run}", measured(scale, seed=run), git={"sha": version * 8})
    folder = Path(save("c", measured(1.06, seed=9), git={"sha": "c"})).parent
    found, notes, code = judge(capsys, str(folder / "a1.jsonl"), str(folder / "b1.jsonl"))
    assert (found, code) == (["SLOWER"], 1)
    assert notes == "runs of the same row and code"
    assert judge(capsys, str(folder / "a1.jsonl"), str(folder / "c.jsonl"))[0] == ["UNSURE"]


@pytest.mark.parametrize(
    ("moved", "change", "verdict"),
    [(1.002, 1.25, "SLOWER"), (1.002, 1.01, "UNSURE"), (1.13, 1.25, "UNSURE")],
)
def test_rows_of_unchanged_code_show_the_spread(save, measured, capsys, moved, change, verdict):
    """One pair of runs is one degree of freedom, however many rows it has: t = 12.7."""

    def run(name, level, scale):
        same = [measured(level, seed=size, op_sha256=SHA, **case(size)) for size in (32, 64, 128)]
        mine = measured(
            level * scale, seed=1, provider="mine.py:f", op_sha256=SHA, source_sha256=name * 64
        )
        return save(name, *same, mine)

    paths = run("a", 1.0, 1.0), run("b", moved, change)
    found, notes, _ = judge(capsys, *paths, "--provider", "mine.py:f")
    assert found == [verdict]
    assert notes == "other rows whose code is the same in several runs"


@pytest.mark.parametrize(("change", "verdict"), [(1.02, "UNSURE"), (1.4, "SLOWER")])
def test_visits_tell_the_spread_of_the_rows_of_one_run(save, measured, capsys, change, verdict):
    def visited(scale, provider):
        parts = [
            measured(scale * level, seed=f"{provider}{level}", count=20).samples_s
            for level in (0.99, 1.0, 1.01)
        ]
        taken = tuple(sample for part in parts for sample in part)
        return measured(
            provider=provider, samples_s=taken, median_s=sorted(taken)[30], visits=(20, 20, 20)
        )

    found, notes, _ = judge(
        capsys, save("a", visited(1.0, "torch"), visited(change, "mine")), "--by", "provider"
    )
    assert found == [verdict]
    assert notes == "visits of each row in its run"


HASHED = {"op_sha256": SHA}


def test_the_same_code_is_never_called_slower(save, measured, capsys):
    git = {"sha": "e" * 40}
    for run in range(4):
        save(f"e{run}", measured(1.0 + run / 1000, seed=run, **HASHED), git=git)
    slow = save("slow", measured(1.5, seed=9, **HASHED), git=git)
    (row,) = compared(capsys, str(Path(slow).parent / "e0.jsonl"), slow)[1]["rows"]
    assert row["verdict"] == "UNSURE"
    assert row["reason"].endswith("but the code is the same: the machine changed")


USERS = HASHED | {"provider": "mine.py:f", "source_sha256": "b" * 64}


@pytest.mark.parametrize(
    ("before", "after", "versions"),
    [
        ({"provider": "function"}, {"provider": "function"}, {}),  # measured from Python, no hash
        # Its version is not recorded.
        (HASHED | {"provider": "liger"}, HASHED | {"provider": "liger"}, {}),
        (USERS | {"source_git": {"sha": "c" * 40}}, USERS | {"source_git": {"sha": "d" * 40}}, {}),
        (HASHED, HASHED, {"versions": {"python": "3.13.1", "torch": "2.13.0"}}),
    ],
    ids=["Python", "library", "a module that the file imports", "another interpreter"],
)
def test_code_that_may_have_changed_is_not_the_same_code(
    save, measured, capsys, before, after, versions
):
    git = {"git": {"sha": "e" * 40}}
    paths = (
        save("a", measured(seed=1, **before), **git),
        save("b", measured(1.5, seed=2, **after), **git, **versions),
    )
    code, document = compared(capsys, *paths)
    assert (code, document["rows"][0]["verdict"]) == (1, "SLOWER")


def test_different_code_is_compared_by_the_means_over_its_runs(save, measured, capsys):
    def kept(name, scale, letter, **changes):
        return save(name, measured(scale, **USERS | {"source_sha256": letter * 64} | changes))

    paths = kept("before2", 0.97, "c", seed=1), kept("after2", 1.15 * 1.03, "d", seed=2)
    assert judge(capsys, *paths)[0] == ["UNSURE"]
    for run, shift in enumerate((1.0, 1.03)):
        kept(f"before{run}", shift, "c", seed=3 + run)
        kept(f"after{run}", 1.15 * (2 - shift), "d", seed=5 + run)
    kept("hot", 4.0, "d", flags=("throttled",))
    assert main(["compare", *paths, "--margin", "1%", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert (row["verdict"], row["windows_baseline"], row["windows_candidate"]) == ("SLOWER", 3, 3)
    assert row["ratio"] == pytest.approx(1.15, rel=0.003)  # of the two runs that were named, 1.22
    assert (
        "1 row compared by the means over all runs of the same code"
        in document["summary"]["notes"][0]
    )


def test_a_run_that_is_there_twice_is_no_repeat(save, measured):
    run = load_run(Path(save("a", measured(seed=1))))
    side = Side.of("", run.records, run.environment)
    assert not SavedRuns([run, run]).between(side, side).has_runs


@pytest.mark.parametrize("runs", [(1, 1), (1, 9), (9, 1), (4, 9)])
def test_spread_of_means_counts_the_runs_of_both_sides(save, measured, runs):
    """The standard error of a difference of two means, s sqrt(1 / n + 1 / m); s is that of three
    runs, which leave two degrees of freedom.
    """
    paths = [
        save(name, measured(scale, visits=()), git={"sha": "a" * 40})
        for name, scale in (("a", 1.0), ("b", 1.02), ("c", 1.05))
    ]
    loaded = [load_run(Path(path)) for path in paths]
    logs = [math.log(run.records[0].median_s) for run in loaded]
    sides = [Side.of("", loaded[0].records, loaded[0].environment, count) for count in runs]
    spread = SavedRuns(loaded).between(*sides)
    error = stdev(logs) * math.sqrt(1 / runs[0] + 1 / runs[1])
    assert spread.half_width == pytest.approx(4.302653 * error)  # Student's t of 2 degrees
    assert (spread.degrees, spread.source, spread.has_runs) == (2, RUNS, True)


def test_a_median_that_is_not_that_of_the_samples_is_remarked(save, make_record, measured, capsys):
    taken = samples(1.0, 1, noise=0.05)
    odd = make_record(samples_s=taken, median_s=max(taken))
    (row,) = compared(capsys, save("a", measured(seed=1)), save("b", odd))[1]["rows"]
    medians = row["candidate_s"] / row["baseline_s"]
    assert medians > 1.05
    assert row["reason"].endswith(f"the ratio of the medians is {medians:.4f}")
    assert (
        "ratio of the medians"
        not in compared(capsys, save("c", measured(seed=1)), save("d", measured(seed=2)))[1][
            "rows"
        ][0]["reason"]
    )


def test_a_ratio_too_noisy_to_print_has_no_remark_on_the_medians(save, measured, capsys):
    """Visits of a busy machine: the median of all samples is far from the mean of the visits."""
    visits = [samples(scale, seed, 20) for seed, scale in enumerate((1.0, 1.0, 1.0, 30.0))]
    busy = measured(samples_s=sum(visits, ()), median_s=4e-6, visits=(20,) * 4)
    paths = save("a", measured(1.2)), save("b", busy)
    assert main(["compare", *paths, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    low, high = row["ci95"]
    assert high > 4 * low
    assert "ratio of the medians" not in row["reason"]


def test_a_run_of_bad_lines_says_how_many_and_the_first(save, measured, tmp_path, capsys):
    good, bad = save("a", measured(seed=1)), save("b", measured(seed=2), measured(seed=3))
    lines = (tmp_path / "b.jsonl").read_text().replace('"dtype":"bf16"', '"dtype":"bf61"')
    (tmp_path / "b.jsonl").write_text(lines)
    message = refused(capsys, good, bad)
    assert f"{bad} has no record; {bad}:2: Expected `str` matching" in message


def test_each_kind_of_rows_has_a_mean_of_its_own(save, measured, capsys):
    records = [
        measured(scale, seed=size, provider=provider, op=op, **case(size))
        for op in ("gelu", "softmax")
        for size in (64, 128)
        for provider, scale in (("torch", 1.0), ("a", 1.2 if op == "gelu" else 0.8), ("b", 2.0))
    ]
    run = save("p", *records)
    summary = compared(capsys, run, "--by", "provider")[1]["summary"]
    found = {
        (mean["op"], mean["candidate"]): (mean["ratio"], mean["rows"])
        for mean in summary["geomeans"]
    }
    expected = {
        ("gelu", "a"): 1.2,
        ("gelu", "b"): 2.0,
        ("softmax", "a"): 0.8,
        ("softmax", "b"): 2.0,
    }
    assert {kind: rows for kind, (_, rows) in found.items()} == dict.fromkeys(expected, 2)
    assert {kind: ratio for kind, (ratio, _) in found.items()} == pytest.approx(expected, rel=0.01)
    assert summary["geomean"] is None
    main(["compare", *NO_DRIFT, run, "--by", "provider", "--format", "md"])
    out = capsys.readouterr().out
    # A blank line alone would not end the list above.
    below = out.partition("\n\nGeometric means:\n\n")[2]
    assert "- softmax, torch -> a: geometric mean 0.8" in below
    assert "geometric mean" not in out.splitlines()[0]
