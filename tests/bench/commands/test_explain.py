"""`python -m bench explain`: every term of the tables has an entry, and every bound has advice."""

from pathlib import Path

import pytest

from bench import train_step
from bench.__main__ import main
from bench.commands import profiler
from bench.commands.explain import KINDS, answer
from bench.model import step
from kernels.audit.table import AUDIT_COLUMNS, TITLES
from results.__main__ import main as run_results
from results.show.profile import REMAINDERS
from results.show.words import BOUNDS, COLUMNS, FLAGS, ROWS, TERMS, VERDICTS, lines_about
from results.stats import comparison

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = (
    "expected a bound (compute, memory, cache, link, launch, mixed), MFU or MBU and a percentage "
    "above 0"
)


RUNS = [
    *sorted((ROOT / "results" / "published").rglob("*.jsonl")),
    *sorted((ROOT / "tests" / "results" / "data" / "schema_1").glob("*.jsonl")),
]


def titles_of(capsys, *arguments):
    """Return the titles of the table that a command prints."""
    run_results([*arguments, "--format", "md"])
    header = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| "))
    return {title.strip() for title in header.strip("|").split("|")}


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.stem)
def test_explain_knows_the_columns_of_a_run(run, capsys):
    assert {"op", "median"} <= titles_of(capsys, "show", str(run)) <= set(COLUMNS)


def test_explain_knows_the_columns_of_a_comparison(capsys):
    interleaved = next(str(run) for run in RUNS if run.stem == "compare")
    titles = titles_of(capsys, "compare", interleaved)
    assert {"verdict", "reason"} <= titles <= set(COLUMNS)


def test_explain_knows_the_columns_of_other_tables():
    audited = {TITLES.get(name, name) for name in AUDIT_COLUMNS}
    others = {
        *train_step.MEMORY,
        *step.PHASES,
        "allocator peak",
        *profiler.BY,
        "GFLOP/s",
        "TFLOP/s",
        "SM clock",
        "power",
    }
    assert audited | others <= set(COLUMNS)


def test_explain_knows_every_remainder_of_a_profile():
    assert set(REMAINDERS) == set(ROWS)


def test_explain_knows_every_verdict():
    assert {comparison.FASTER, comparison.SLOWER, comparison.SAME, comparison.UNSURE} == set(
        VERDICTS
    )


@pytest.mark.parametrize("words", [FLAGS, ROWS, VERDICTS, BOUNDS, TERMS])
def test_entries_have_a_meaning_and_a_source(words):
    for name, word in words.items():
        assert word.meaning.endswith("."), name
        assert word.source, name
    assert all(word.advice for word in FLAGS.values())


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("share", "said"),
    [
        (95, "near the limit; a better kernel can gain at most a factor of 1.05"),
        (40, "a better kernel can gain a factor of 2.5"),
    ],
)
def test_advice_depends_on_bound_and_percentage_of_the_ceiling(bound, share, said):
    lines = lines_about(bound, share)
    assert len(lines) == 3
    assert lines[0].startswith(f"{bound}-bound at {share} % of its ceiling: {said}")
    assert lines[2].startswith("read on: ")


def test_a_word_that_is_a_column_and_a_bound_has_both_entries_the_bound_first(capsys):
    assert main(["explain", "memory"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bound: Moving the compulsory bytes")
    assert "column: Host memory" in out


def test_a_bound_is_known_with_the_word_bound():
    assert answer("memory-bound")[0].startswith("bound: Moving the compulsory bytes")


@pytest.mark.parametrize("typed", ["memory side", "compute side"])
def test_a_side_is_explained_as_something_else_that_limits(typed):
    assert "'side' means that something else limits the row" in answer(typed)[1]


@pytest.mark.parametrize("typed", ["MFU 40%", "mfu 40 %", "MFU at 40%"])
def test_mfu_with_a_percentage_has_published_values_and_advice(typed):
    lines = answer(typed)
    assert "Published training runs reach" in lines[0]
    assert lines[-3:] == lines_about("compute", 40)


def test_explain_lists_every_term_with_its_meaning_in_100_columns(capsys):
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    text = " ".join(out.split())
    for words in KINDS.values():
        for name, word in words.items():
            assert f" {name} {word.meaning} " in f"{text} "


@pytest.mark.parametrize(
    "typed",
    [
        "ridge",
        "Ridge point",
        "roofline",
        "arithmetic intensity",
        "L2",
        "Holm",
        "roof",
        "6ND",
        "too noisy",
        "compulsory",
    ],
)
def test_terms_of_the_field_are_explained(typed):
    assert answer(typed)[0].startswith("term: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bandwith",), "unknown term 'bandwith'; did you mean bandwidth?"),
        (("zzzz",), "unknown term 'zzzz'; `python -m bench explain` lists all"),
        (("gelu", "40%"), f"{EXPECTED}, got 'gelu 40%'"),
        (("memory", "²"), "unknown term 'memory ²'"),
        (("memory", "0%"), f"{EXPECTED}, got 'memory 0%'"),
    ],
)
def test_an_unknown_term_is_a_one_line_error(words, said, error_of):
    err = error_of(main(["explain", *words]))
    assert err.startswith(f"python -m bench explain: error: {said}")
