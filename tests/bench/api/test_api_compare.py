"""`bench.compare`: paired rounds of functions, wrong results left out, and the command's own table
and verdicts.
"""

import pytest
import torch

import bench
from results.compare.comparison import compare_live
from results.compare.output import as_text, json_row
from results.store.runfile import load_run

QUICK = {"budget_s": 0.05, "rounds": 6}
X = torch.randn(32, 32)


def double(x):
    return x + x


def twice(x):
    return 2 * x


def slow(x):
    for _ in range(60):
        x = x + 0.0
    return x + x


def wrong(x):
    return x


def fails(x):
    raise ZeroDivisionError("by nothing")


@pytest.fixture(scope="module")
def comparison():
    functions = {"double": double, "slow": slow, "wrong": wrong, "fails": fails}
    return bench.compare(functions, X, margin=0.01, budget_s=0.3, rounds=12, seed=7)


def test_correct_functions_get_a_verdict_and_others_a_reason(comparison):
    assert comparison.verdicts == {"slow": comparison.rows["slow"].compared.verdict}
    assert comparison.rows["slow"].ratio > 1  # 60 times the work
    assert len(comparison.unmatched) == 2
    assert "wrong: invalid: its result differs from the baseline's: " in comparison.unmatched[0]
    assert "fails: failed: raised ZeroDivisionError: by nothing" in comparison.unmatched[1]


def test_an_argument_that_only_the_candidate_writes_is_an_output():
    functions = {
        "returns": lambda x, out: x + x,
        "writes": lambda x, out: torch.add(x, x, out=out),
    }
    found = bench.compare(functions, X, torch.zeros(32, 32), **QUICK)
    assert found.unmatched == []


def test_comparison_prints_the_table_of_the_command(comparison):
    assert repr(comparison) == as_text(comparison.compared, "table", "slower")
    assert comparison.verdicts["slow"] in repr(comparison)
    assert "not compared:" in repr(comparison)


def test_dataframe_has_the_json_rows_of_the_command(comparison):
    frame = comparison.to_dataframe().set_index("candidate")
    (row,) = map(json_row, comparison.compared.rows)
    assert {*row} - {"candidate"} <= {*frame.columns}
    assert list(frame.loc["slow", ["verdict", "ratio"]]) == [row["verdict"], row["ratio"]]
    assert list(frame.loc[["wrong", "fails"], "verdict"]) == ["UNMATCHED", "UNMATCHED"]


def test_saved_records_give_the_same_comparison(comparison):
    run = load_run(comparison.save())
    settings = [
        run.environment.settings[name]
        for name in ("baseline", "margin", "budget_s", "rounds", "seed")
    ]
    assert settings == ["double", 0.01, 0.3, 12, 7]
    again = compare_live(run.environment, run.records, "double", 0.01)
    assert [row.compared for row in again.rows] == [
        row.compared for row in comparison.compared.rows
    ]
    assert {record.work for record in run.records} == {
        "counted by the profiler's rules: add, of double"
    }
    assert {record.flops for record in run.records} == {32 * 32}


def test_the_baseline_is_the_first_or_the_named_function():
    assert list(bench.compare({"a": double, "b": twice}, X, **QUICK).rows) == ["b"]
    other = bench.compare(
        {"a": double, "b": twice}, X, baseline="b", cache="warm", flops=7, **QUICK
    )
    assert list(other.rows) == ["a"]
    assert [record.flops for record in other.records] == [7, 7]
    assert {record.cache for record in other.records} == {"warm"}


@pytest.mark.exhaustive
def test_random_results_can_be_left_unchecked():
    functions = {"a": torch.rand_like, "b": torch.rand_like}
    assert "not-compared" in repr(bench.compare(functions, X, **QUICK))
    assert list(bench.compare(functions, X, check=False, **QUICK).rows) == ["b"]


def test_a_result_that_is_wrong_after_timing_is_left_out():
    calls = []

    def tires(x):
        calls.append(1)
        return x + x if len(calls) < 3 else x

    comparison = bench.compare({"double": double, "tires": tires}, X, **QUICK)
    assert comparison.rows == {}
    assert "after timing: its result differs" in repr(comparison)


def test_a_function_that_raises_while_timed_has_failed():
    calls = []

    def tires(x):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("tired")
        return x + x

    comparison = bench.compare({"double": double, "tires": tires}, X, **QUICK)
    assert "failed: raised RuntimeError: tired" in repr(comparison)
    calls.clear()
    with pytest.raises(
        bench.UsageError,
        match="baseline: function 32x32 fp32 tires: failed: raised RuntimeError: tired",
    ):
        bench.compare({"tires": tires, "double": double}, X, **QUICK)


BOTH = {"a": double, "b": twice}


@pytest.mark.parametrize(
    ("functions", "options", "said"),
    [
        ({"a": double}, {}, "got only 'a'"),
        (double, {}, "give functions by name"),
        ({"a": double, "b": 3}, {}, "got 3"),
        ({"a": lambda x, y: x, "b": twice}, {}, "a raised TypeError: "),
        ({"a": fails, "b": twice}, {}, "a raised ZeroDivisionError: by nothing"),
        (BOTH, {"baseline": "c"}, "baseline='c' must be one of a, b"),
        (BOTH, {"margin": 0}, "margin=0 must be a number above 0"),
        (BOTH, {"cache": None}, "cache=None must be"),
    ],
)
def test_compare_rejects_invalid_arguments_in_one_line(functions, options, said):
    with pytest.raises(bench.UsageError, match=said) as raised:
        bench.compare(functions, X, **options)
    assert "\n" not in str(raised.value)


def test_a_baseline_without_a_result_gives_no_verdict():
    compared = bench.compare({"a": lambda x: None, "b": lambda x: x.sum()}, X, budget_s=0.3)
    assert compared.verdicts == {"b": "UNSURE"}
    assert "not-compared: whether both compute the same is unknown" in compared.rows["b"].reason


def test_a_result_that_only_the_tolerance_allows_is_flagged():
    close = lambda x: x * 2.0001  # noqa: E731
    refused = bench.compare({"a": double, "b": close}, X, budget_s=0.3)
    assert refused.verdicts == {}
    allowed = bench.compare({"a": double, "b": close}, X, budget_s=0.3, tolerance=1000)
    (record,) = [record for record in allowed.records if record.provider == "b"]
    assert "beyond-rounding" in record.flags
    assert record.verified["after"]["reference"] == "fp64"


def test_a_changed_input_must_be_declared():
    x = X.clone()
    compared = bench.compare({"a": torch.relu, "b": torch.relu_}, x, **QUICK)
    assert "b: invalid: changes its inputs; " in repr(compared)
    kept = {}
    cached = {"a": torch.neg, "b": lambda x: kept.setdefault(x.data_ptr(), -x)}
    (reason,) = bench.compare(cached, torch.arange(9), **QUICK).unmatched
    assert "invalid: returns the result of an earlier call" in reason
    with pytest.raises(bench.UsageError, match="b: invalid: changes its inputs; "):
        bench.compare({"b": torch.relu_, "a": torch.relu}, x, **QUICK)
    seen = []

    def halved(x):
        seen.append(float(x[3, 5]))
        return x.mul_(0.5)

    functions = {"a": halved, "b": lambda x: x / 2}
    declared = bench.compare(functions, x, in_place=True, cache="warm", **QUICK)
    assert list(declared.rows) == ["b"]
    assert {record.status for record in declared.records} == {"ok"}
    assert set(seen[:10]) == {float(X[3, 5])}
    assert torch.equal(x, X)
    bench.compare(functions, x, in_place=True, check=False, **QUICK)
    assert torch.equal(x, X)
    made = bench.compare(functions, setup=lambda: X.clone(), cache="warm", **QUICK)
    assert {record.status for record in made.records} == {"ok"}
