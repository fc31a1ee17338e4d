"""From records to rows: pairs by round and by process, clock cycles, Holm, and what is left over."""

import random
import sys

import pytest

from bench.harness.compare.turns import samples_per_turn
from results.compare.comparison import compare_live
from results.compare.output import as_text, json_rows
from results.compare.turns import round_times
from results.record import Environment, Record
from results.stats.comparison import SAME, SLOWER, UNSURE
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
    assert round_times(record("torch", turns, size=3)) == times()
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
    assert "counted in clock cycles it is SAME: the clock frequency changed" in first.reason
    assert second.cycles_ratio == pytest.approx(1.05, abs=0.002)
    assert second.cycles_verdict == SLOWER
    assert "in clock cycles it is SLOWER as well" in second.reason


def test_without_clocks_there_is_nothing_about_cycles():
    (row,) = rows_of(record("torch", times()), record("a", times(0.05)))
    assert row.cycles_ratio is None
    assert "cycles" not in row.reason


def test_flags_of_both_sides_stand_beside_the_verdict():
    sides = [record("torch", times(), flags=("preempted",)), record("a", times(0.05), flags=("drifting", "preempted"))]
    (row,) = rows_of(*sides)
    assert row.compared.verdict == SLOWER  # they took turns, so that whatever it was met both
    assert (row.baseline.flags, row.candidate.flags) == (("preempted",), ("drifting", "preempted"))
    assert "both are flagged preempted; the candidate is flagged drifting" in row.reason
    found = compare_live(ENVIRONMENT, sides, "torch", 0.01)
    assert json_rows(found)[0]["flags_candidate"] == ["drifting", "preempted"]
    assert "the candidate is flagged drifting" in as_text(found, "md", "slower", sys.stdout)


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
