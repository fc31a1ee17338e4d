"""From the records of a comparison to its rows: a round counts once, and what is left over has its reason."""

from statistics import median

from results.compare.comparison import compare_live
from results.record import Environment, Record
from results.stats.comparison import SAME

ENVIRONMENT = Environment(
    run_id="r", started_at="2026-11-21", argv=(), device={"slug": "cpu", "name": "cpu", "type": "cpu"}
)
TIMES = [1e-3 * (1 + place % 7 / 1e4) for place in range(80)]


def record(provider, times_s=(), size=1, status="ok", reason=None):
    rounds = {"with": ["torch", "a"], "samples_per_round": size, "is_fixed": True, "seconds": 1.0}
    middle = median(times_s) if times_s else None
    what = {"op": "relu", "dtype": "fp32", "shape": {"n": 16}, "case": "16", "fill": "uniform", "cache": "cold"}
    taken = {"samples_s": tuple(times_s), "median_s": middle, "interleaved": rounds}
    return Record(provider=provider, status=status, reason=reason, **what, **taken)


def test_a_round_counts_once_whatever_its_samples():
    """Turns of three samples, one of them disturbed: the median of the turn does not see it."""
    turns = [sample for time in TIMES for sample in (time, 5 * time, time)]
    (row,) = compare_live(ENVIRONMENT, [record("torch", turns, size=3), record("a", TIMES)], "torch", 0.01).rows
    assert (row.compared.pairs, row.compared.verdict, row.ratio) == (len(TIMES), SAME, 1.0)


def test_what_was_skipped_has_its_reason_and_what_lost_its_baseline_too():
    skipped = record("b", status="skipped", reason="needs a GPU")
    found = compare_live(ENVIRONMENT, [record("torch", TIMES), skipped], "torch", 0.01)
    assert [(left.side, left.reason) for left in found.unmatched] == [("candidate", "skipped: needs a GPU")]
    wrong = record("torch", status="invalid", reason="wrong")
    found = compare_live(ENVIRONMENT, [wrong, record("a", TIMES)], "torch", 0.01)
    assert [(left.side, left.reason) for left in found.unmatched] == [
        ("baseline", "invalid: wrong"),
        ("candidate", "the baseline torch is invalid: wrong"),
    ]
