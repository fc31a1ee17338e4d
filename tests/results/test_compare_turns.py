"""Records that took turns: the verdicts of the live command, from the file alone."""

import math
import random
from dataclasses import replace

import pytest
from compare_runs import case, compared, refused
from msgspec import structs

from results.__main__ import main
from results.compare.comparison import compare_live as live
from results.compare.output import json_row
from results.record import Rounds
from results.stats.comparison import DEFAULT_MARGIN
from results.store.runfile import load_run
from roofline.machine import Machine

ROUNDS = 60


def turns(scale, seed, noise=0.01, drift=0.2, size=1):
    """Return samples of a machine that becomes slower round by round, and that all providers
    share.
    """
    generator = random.Random(f"{seed} {scale}")
    return [
        4e-6 * scale * (1 + drift * place / ROUNDS) * generator.lognormvariate(0, noise)
        for place in range(ROUNDS)
        for _ in range(size)
    ]


def with_rounds(record, **changed):
    return replace(record, details=structs.replace(record.details, **changed))


@pytest.fixture
def interleaved(make_record):
    """Returns a function that makes the records of providers that took turns."""

    def make(scales, seed=0, size=1, is_fixed=False, process=None, clocks=None, **changes):
        records = []
        for name, scale in scales.items():
            taken = turns(scale, f"{seed} {name} {process}", size=size)
            rounds = Rounds(
                names=tuple(scales),
                rounds=ROUNDS,
                samples_per_round=size,
                is_fixed=is_fixed,
                is_clear=True,
                seconds=1.25,
                seed=seed,
                sm_clock_hz=clocks and tuple(clocks[name]),
            )
            middle = sorted(taken)[len(taken) // 2]
            ends = {
                "ci95_s": (min(taken), max(taken)),
                "samples_s": tuple(taken),
                "median_s": middle,
            }
            records.append(make_record(provider=name, details=rounds, **(ends | changes)))
        return records

    return make


def both(capsys, path, *arguments):
    """Return the rows of the kept and of the live comparison of one run."""
    document = compared(capsys, path, "--by", "provider", *arguments, "--drift", "3%")[1]
    run = load_run(path)
    return document["rows"], live(run.environment, run.records, "torch", 0.01).rows


def assert_alike(kept, rows):
    assert len(kept) == len(rows) > 0
    for row, one in zip(kept, rows, strict=True):
        assert (row["candidate"], row["verdict"]) == (one.candidate.label, one.compared.verdict)
        assert row["ratio"] == pytest.approx(one.ratio, rel=1e-12)
        assert row["ci95"] == pytest.approx(one.ci95, rel=1e-12)
        assert row["cycles_ratio"] == (
            one.cycles_ratio and pytest.approx(one.cycles_ratio, rel=1e-12)
        )
        assert (row["windows_baseline"], row["windows_candidate"]) == (
            len(one.baseline.records),
            len(one.candidate.records),
        )
        assert row["paired"]


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_rounds_of_one_run_are_compared_as_the_live_command_did(
    save, interleaved, capsys, is_fixed, size
):
    scales = {"torch": 1.0, "same": 1.0, "near": 1.012, "slow": 1.03, "fast": 0.95}
    records = [
        record
        for shape in (64, 128)
        for record in interleaved(scales, seed=shape, size=size, is_fixed=is_fixed, **case(shape))
    ]
    kept, rows = both(capsys, save("a", *records))
    assert_alike(kept, rows)
    assert {"SLOWER", "FASTER"} <= {row["verdict"] for row in kept}
    assert not any("spread between measurements" in row["reason"] for row in kept)
    assert all(row["drift"] == 0 for row in kept)


def test_json_has_the_limit_and_the_fraction_of_the_gap_that_is_closed(
    make_environment, interleaved
):
    records = interleaved({"torch": 1.0, "a": 0.8}, bytes_read=2**20, bytes_written=0, flops=0)
    environment = make_environment()
    (row,) = live(environment, records, "torch", 0.01).rows
    found = json_row(row)
    limit_s = 2**20 / environment.machine.bandwidth().value
    assert found["limit"] == "memory"
    assert found["limit_s"] == pytest.approx(limit_s)
    share = limit_s / found["baseline_s"]
    assert found["gap_closed"] == pytest.approx((1 - found["ratio"]) / (1 - share))
    assert found["decided_after_s"] is None
    (unknown,) = live(make_environment(machine=Machine()), records, "torch", 0.01).rows
    assert json_row(unknown)["limit_s"] is json_row(unknown)["gap_closed"] is None


@pytest.mark.parametrize("seconds", [1.25, 250.0])
def test_the_time_that_may_decide_is_that_of_more_rounds(make_environment, interleaved, seconds):
    """Rounds narrow the interval by 1 / sqrt(n): see `times_longer`."""
    records = interleaved({"torch": 1.0, "a": 1.006}, seed=6)
    records = [with_rounds(record, seconds=seconds) for record in records]
    (row,) = live(make_environment(), records, "torch", 0.01).rows
    assert row.compared.verdict == "UNSURE"
    low, high = map(math.log, row.ci95)
    gap = abs(abs(math.log(row.ratio)) - math.log(1.01))
    needed = seconds * ((high - low) / 2 / gap) ** 2
    shown = f"{needed:.2g}" if needed < 99.5 else f"{needed:,.0f}"
    assert row.reason.endswith(f"; about {shown} s of rounds may decide")
    assert row.decided_after_s == pytest.approx(needed)
    assert (needed < 99.5) is (seconds < 100)


@pytest.mark.parametrize(
    ("ratio_hz", "cycles", "text"),
    [
        (1.0, "SLOWER", "; in clock cycles it is SLOWER"),
        (0.9, "SAME", "; in clock cycles it is SAME"),
    ],
)
def test_cycles_of_each_round_are_times_by_clocks(
    make_environment, interleaved, ratio_hz, cycles, text
):
    clocks = {"torch": [1e9] * ROUNDS, "a": [ratio_hz * 1e9] * ROUNDS}
    records = interleaved({"torch": 1.0, "a": 1.11}, seed=6, clocks=clocks)
    (row,) = live(make_environment(), records, "torch", 0.01).rows
    assert row.cycles_ratio == pytest.approx(row.ratio * ratio_hz)
    assert (row.compared.verdict, row.cycles_verdict) == ("SLOWER", cycles)
    assert row.reason.endswith(text)


def test_a_drift_that_only_rounds_see_through(save, interleaved, measured, capsys):
    """The same samples without their rounds: the ratio of two medians, and no verdict."""
    records = interleaved({"torch": 1.0, "a": 1.03}, seed=2)
    apart = [replace(record, details=None) for record in records]
    (row,) = compared(capsys, save("a", *records), "--by", "provider", "--drift", "3%")[1]["rows"]
    (other,) = compared(capsys, save("b", *apart), "--by", "provider", "--drift", "3%")[1]["rows"]
    assert (row["verdict"], row["paired"]) == ("SLOWER", True)
    assert (other["verdict"], other["paired"]) == ("UNSURE", False)


@pytest.mark.parametrize("side", [0, 1])
def test_a_ratio_of_a_side_that_lost_time_is_printed_as_a_bound(save, interleaved, capsys, side):
    records = interleaved({"torch": 1.0, "a": 1.1}, seed=3)
    records[side] = replace(records[side], flags=("preempted",))
    path = save("a", *records)
    (row,) = compared(capsys, path, "--by", "provider")[1]["rows"]
    assert (row["verdict"], row["is_bound"], row["ci95"]) == ("SLOWER", True, None)
    assert 1.08 < row["ratio"] < 1.1
    main(["compare", path, "--by", "provider"])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"at least {row['ratio']:.3f}x" in printed
    assert "the ratio of the medians" not in printed


@pytest.mark.parametrize("flags", [("preempted",), ("throttled",)])
def test_a_side_that_lost_time_is_never_the_same(save, interleaved, capsys, flags):
    first, second = interleaved({"torch": 1.0, "a": 1.0}, seed=3)
    path = save("a", first, replace(second, flags=flags))
    (row,) = compared(capsys, path, "--by", "provider", "--margin", "0.05")[1]["rows"]
    assert row["verdict"] == "UNSURE"
    assert (
        f"waiting in both times hides a difference; the candidate is flagged {flags[0]}"
        in (row["reason"])
    )


def test_a_time_of_the_interpreter_has_no_verdict(save, interleaved, capsys):
    first, second = interleaved({"torch": 1.0, "a": 2.5}, seed=3)
    code, document = compared(
        capsys, save("a", first, replace(second, flags=("interpreted",))), "--by", "provider"
    )
    (row,) = document["rows"]
    assert (code, row["verdict"]) == (0, "UNSURE")
    assert (
        "flagged interpreted: the time of an interpreter is not that of the kernel" in row["reason"]
    )


def test_two_runs_are_two_windows_though_each_has_rounds(save, interleaved, capsys):
    paths = [save(name, *interleaved({"torch": 1.0, "a": 1.1}, seed=4)) for name in "ab"]
    rows = compared(capsys, *paths, "--drift", "3%")[1]["rows"]
    assert [row["paired"] for row in rows] == [False, False]


@pytest.mark.parametrize(
    "broken",
    [
        {"seed": 7},
        {"names": ("torch", "b")},
        {"samples_per_round": 7},
    ],
    ids=str,
)
def test_what_did_not_share_rounds_is_compared_apart(save, interleaved, capsys, broken):
    first, second = interleaved({"torch": 1.0, "a": 1.1}, seed=5)
    second = with_rounds(second, **broken)
    (row,) = compared(capsys, save("a", first, second), "--by", "provider", "--drift", "3%")[1][
        "rows"
    ]
    assert not row["paired"]
    assert "is the spread between measurements" in row["reason"]


def test_medians_that_contradict_the_rounds_are_remarked(save, make_record, interleaved, capsys):
    """The candidate is 1 % faster in each round, and its median of all is slower: the speed changed
    meanwhile.
    """
    first, second = interleaved({"torch": 1.0, "a": 1.0}, seed=7)
    base = [4e-6] * 31 + [4.4e-6] * 29
    other = [0.99 * time_s for time_s in base]
    other[30] = 4.35e-6

    def made(record, taken, middle):
        return record.__class__(
            **{**vars(record), "samples_s": tuple(taken), "median_s": middle, "ci95_s": None}
        )

    path = save("a", made(first, base, 4e-6), made(second, other, 4.35e-6))
    (row,) = compared(capsys, path, "--by", "provider")[1]["rows"]
    assert row["ratio"] == pytest.approx(0.99)
    assert row["reason"].endswith("the ratio of the medians is 1.0875")
    assert math.isclose(row["candidate_s"] / row["baseline_s"], 1.0875)


def test_a_saved_comparison_is_compared_and_shown_as_it_was(save, interleaved, capsys):
    records = interleaved({"a": 1.0, "torch": 1.1})
    old, new = (
        save("old", *records),
        save("new", *records, settings={"baseline": "a", "margin": 0.2}),
    )
    for path, margin, verdict in ((old, DEFAULT_MARGIN, "SLOWER"), (new, 0.2, "SAME")):
        found = compared(capsys, path, margin=None)[1]
        (row,) = found["rows"]
        assert (found["summary"]["margin"], row["provider_baseline"], row["verdict"]) == (
            margin,
            "a",
            verdict,
        )
        assert main(["show", path]) == 0
        assert f"\n{verdict} " in capsys.readouterr().out
    assert (
        compared(capsys, new, "--margin", "1%", "--by", "provider")[1]["rows"][0]["verdict"]
        == "SLOWER"
    )


def test_a_saved_comparison_that_compared_nothing_says_why(save, make_record, make_skipped, capsys):
    records = make_skipped(provider="torch"), make_record(provider="a")
    path = save("a", *records, settings={"baseline": "torch", "margin": 0.01})
    assert "nothing to compare: the baseline has matmul" in refused(capsys, path)
