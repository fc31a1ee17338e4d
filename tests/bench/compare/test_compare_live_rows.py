"""From records to rows: pairs by round and by process, clock cycles, Holm, and what is left over."""

import random
from dataclasses import replace

import pytest

from bench.harness.compare.meter import samples_per_turn
from results.compare.live import compare_live
from results.compare.load import measured_of
from results.compare.output import as_markdown, exit_code, json_rows, summary
from results.compare.turns import round_times
from results.record import Environment, Record
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE
from results.stats.samples import median

ENVIRONMENT = Environment(
    run_id="r", started_at="2026-11-21", argv=(), device={"slug": "cpu", "name": "cpu", "type": "cpu"}
)
ROUNDS = 80
CLOCK_HZ = 1.5e9


def record(provider, times_s, size=1, clocks_hz=None, process=None, case="16", status="ok", reason=None, flags=()):
    return Record(
        op="relu",
        provider=provider,
        dtype="fp32",
        shape={"n": 16},
        case=case,
        status=status,
        reason=reason,
        samples_s=tuple(times_s),
        median_s=median(times_s) if times_s else None,
        fill="uniform",
        cache="cold",
        flags=flags,
        process=process,
        interleaved={
            "with": ["torch", "a"],
            "samples_per_round": size,
            "is_fixed": True,
            "seconds": 1.0,
            "sm_clock_hz": clocks_hz,
        },
    )


def times(change=0.0, noise=0.002, seed=0, rounds=ROUNDS):
    source = random.Random(f"{seed} {change}")
    return [1e-3 * (1 + change) * (1 + noise * source.uniform(-1, 1)) for _ in range(rounds)]


def rows_of(*records, margin=0.01):
    return compare_live(ENVIRONMENT, records, "torch", margin).rows


def test_samples_are_paired_round_by_round_however_the_machine_drifts():
    drift = [1 + 0.5 * place / ROUNDS for place in range(ROUNDS)]
    baseline = [time * slower for time, slower in zip(times(seed=1), drift, strict=True)]
    candidate = [time * slower for time, slower in zip(times(0.03), drift, strict=True)]
    (row,) = rows_of(record("torch", baseline), record("a", candidate))
    assert row.compared.verdict == SLOWER
    assert row.ratio == pytest.approx(1.03, abs=0.002)
    assert row.ci95[1] - row.ci95[0] < 0.005


def test_a_round_counts_once_whatever_its_samples():
    """Turns of three samples, one of them disturbed: the median of the turn does not see it."""
    turns = [sample for time in times() for sample in (time, 5 * time, time)]
    assert round_times(measured_of(record("torch", turns, size=3))) == times()
    (row,) = rows_of(record("torch", turns, size=3), record("a", times(0.0, seed=1)))
    assert (row.compared.pairs, row.compared.verdict) == (ROUNDS, SAME)


def test_a_gap_that_is_the_clocks_is_none_in_cycles():
    baseline = record("torch", times(), clocks_hz=[CLOCK_HZ] * ROUNDS)
    by_clock = record("a", times(0.05), clocks_hz=[CLOCK_HZ / 1.05] * ROUNDS)
    by_work = record("b", times(0.05), clocks_hz=[CLOCK_HZ] * ROUNDS)
    first, second = rows_of(baseline, by_clock, by_work)
    assert (first.compared.verdict, second.compared.verdict) == (SLOWER, SLOWER)
    assert first.cycles_ratio == pytest.approx(1.0, abs=0.002)
    assert first.cycles_verdict == SAME
    assert "so that the clock frequency changed" in first.compared.reason
    assert second.cycles_ratio == pytest.approx(1.05, abs=0.002)
    assert second.cycles_verdict == SLOWER
    assert "in clock cycles it is SLOWER as well" in second.compared.reason


def test_without_clocks_there_is_nothing_about_cycles():
    (row,) = rows_of(record("torch", times()), record("a", times(0.05)))
    assert row.cycles_ratio is None
    assert "cycles" not in row.compared.reason


def test_processes_that_disagree_make_it_unsure():
    changes = (0.08, 0.0, 0.04)
    records = [record("torch", times(seed=process), process=process) for process in range(3)]
    records += [record("a", times(change), process=process) for process, change in enumerate(changes)]
    (row,) = rows_of(*records)
    assert row.compared.verdict == UNSURE
    assert row.ratio == pytest.approx(1.04, abs=0.002)
    assert len(row.baseline.records) == len(row.candidate.records) == 3
    assert "--processes" in row.compared.reason
    alone = rows_of(records[0], records[3])
    assert alone[0].compared.verdict == SLOWER


def test_time_and_rate_of_several_processes_are_of_one_and_the_same_median():
    records = [
        replace(record(provider, times(change), process=place), flops=16, bytes_read=64, bytes_written=64)
        for place, change in ((1, 0.0), (2, 0.3))
        for provider in ("torch", "a")
    ]
    (row,) = rows_of(*records)
    assert row.baseline.time_s == pytest.approx(1e-3 * 1.3**0.5, rel=0.005)
    assert row.baseline.bytes_per_s == pytest.approx(128 / row.baseline.time_s)
    assert row.candidate.bytes_per_s == pytest.approx(128 / row.candidate.time_s)


def test_processes_that_agree_confirm_it():
    records = [record("torch", times(seed=process), process=process) for process in range(3)]
    records += [record("a", times(-0.05, seed=process), process=process) for process in range(3)]
    assert rows_of(*records)[0].compared.verdict == FASTER


def test_a_process_that_has_one_side_only_does_not_count():
    records = [record("torch", times(), process=0), record("torch", times(), process=1)]
    (row,) = rows_of(*records, record("a", times(0.05), process=1))
    assert len(row.baseline.records) == len(row.candidate.records) == 1


def test_one_failed_process_is_enough_not_to_compare():
    records = [record("torch", times(), process=process) for process in range(2)]
    bad = record("a", (), process=1, status="failed", reason="crashed")
    found = compare_live(ENVIRONMENT, [*records, record("a", times(), process=0), bad], "torch", 0.01)
    assert found.rows == ()
    assert [(one.reason, one.is_broken) for one in found.unmatched] == [("failed: crashed (in 1 of 2 processes)", True)]


def test_every_wrong_or_failed_provider_counts_once_whichever_process_it_failed_in():
    records = [record("torch", times(), process=process) for process in range(3)]
    for provider, bad in (("a", 0), ("b", 1), ("c", 2)):
        for process in range(3):
            is_bad = process == bad
            row = ((), "invalid", "wrong") if is_bad else (times(), "ok", None)
            records.append(record(provider, row[0], process=process, status=row[1], reason=row[2]))
    found = compare_live(ENVIRONMENT, records, "torch", 0.01)
    assert found.rows == ()
    assert [one.is_broken for one in found.unmatched] == [True] * 3
    assert exit_code(found, "slower") == 1
    assert summary(found, "slower")["broken"] == 3


def test_a_baseline_that_is_wrong_in_every_process_is_listed_once():
    records = [record("torch", (), process=process, status="invalid", reason="wrong") for process in range(3)]
    found = compare_live(ENVIRONMENT, records, "torch", 0.01)
    assert [one.reason for one in found.unmatched] == ["invalid: wrong (in 3 of 3 processes)"]


def test_flags_of_both_sides_stand_beside_the_verdict():
    sides = [record("torch", times(), flags=("preempted",)), record("a", times(0.05), flags=("drifting", "preempted"))]
    (row,) = rows_of(*sides)
    assert row.compared.verdict == SLOWER  # they took turns, so that whatever it was met both
    assert (row.baseline.flags, row.candidate.flags) == (("preempted",), ("drifting", "preempted"))
    assert "both are flagged preempted; the candidate is flagged drifting" in row.reason
    found = compare_live(ENVIRONMENT, sides, "torch", 0.01)
    assert json_rows(found)[0]["flags_candidate"] == ["drifting", "preempted"]
    assert "the candidate is flagged drifting" in as_markdown(found)


def test_a_change_that_one_of_many_rows_may_show_by_chance_is_not_confirmed():
    """The same two series, alone and among forty rows without a change."""
    weak = [record("torch", times(noise=0.02, seed=4)), record("a", times(0.017, noise=0.02))]
    assert rows_of(*weak)[0].compared.verdict == SLOWER
    others = [
        record(provider, times(seed=f"{provider} {place}"), case=str(place))
        for place in range(100, 140)
        for provider in ("torch", "a")
    ]
    found = rows_of(*weak, *others)
    assert found[0].compared.verdict == UNSURE
    assert "chance among" in found[0].compared.reason
    assert {row.compared.verdict for row in found[1:]} == {SAME}


def test_what_was_skipped_has_its_reason_and_what_lost_its_baseline_too():
    skipped = record("b", (), status="skipped", reason="needs a GPU")
    found = compare_live(ENVIRONMENT, [record("torch", times()), skipped], "torch", 0.01)
    assert [(one.side, one.reason) for one in found.unmatched] == [("candidate", "skipped: needs a GPU")]
    wrong = record("torch", (), status="invalid", reason="wrong")
    found = compare_live(ENVIRONMENT, [wrong, record("a", times())], "torch", 0.01)
    assert [(one.side, one.reason) for one in found.unmatched] == [
        ("baseline", "invalid: wrong"),
        ("candidate", "the baseline torch is invalid: wrong"),
    ]


@pytest.mark.parametrize(
    ("sample_s", "device_type", "wanted"), [(1e-3, "cuda", 25), (0.04, "cuda", 1), (1e-3, "cpu", 1), (0.0, "cpu", 1)]
)
def test_a_turn_lasts_25_ms_on_a_gpu_and_is_one_sample_on_a_cpu(sample_s, device_type, wanted):
    assert samples_per_turn(sample_s, device_type) == wanted
