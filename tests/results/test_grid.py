"""Tables at the widths of terminals, and in a pipe: what is shown, and that nothing is cut."""

import io

from rich.console import Console

from results.show.grid import Column, flat, print_grid

VERDICTS = ("SLOWER", "SAME")
COLUMNS = (
    Column("verdict", VERDICTS, styles=("red", "")),
    Column("ratio", ("1.312x", "0.999x"), "right"),
    Column("95% CI", ("±0.4%", "±12%"), "right", leaves=2),
    Column("case", ("4096x4096x4096", "64")),
    Column("provider", ("torch -> mine.py:a_long_name", "torch -> torch#2"), leaves=3),
    Column("baseline", ("12.34 us", "1.000 ms"), "right"),
    Column("flagged", ("both", ""), leaves=1),
)
NOTES = ("31 % slower than the baseline, beyond the margin of 1 %", "")


def shown(width, columns=COLUMNS, notes=NOTES, heads=(), hint="", **options):
    file = io.StringIO()
    print_grid(Console(file=file, width=width, **options), columns, notes, "reason", heads, hint)
    return file.getvalue().splitlines()


def test_narrow_table_moves_notes_and_columns_below_the_rows_in_order():
    assert shown(79) == [
        "verdict   ratio  95% CI  case            provider                      baseline",
        "─" * 79,
        "SLOWER   1.312x   ±0.4%  4096x4096x4096  torch -> mine.py:a_long_name  12.34 us",
        "    flagged both; 31 % slower than the baseline, beyond the margin of 1 %",
        "SAME     0.999x    ±12%  64              torch -> torch#2              1.000 ms",
    ]
    assert shown(50) == [
        "verdict   ratio  case            baseline",
        "─" * 41,
        "SLOWER   1.312x  4096x4096x4096  12.34 us",
        "    95% CI ±0.4%; provider torch ->",
        "    mine.py:a_long_name; flagged both; 31 % slower",
        "    than the baseline, beyond the margin of 1 %",
        "SAME     0.999x  64              1.000 ms",
        "    95% CI ±12%; provider torch -> torch#2",
    ]


def test_with_a_hint_numbers_that_do_not_fit_are_omitted_and_named():
    lines = shown(50, hint="--format csv has all")
    assert lines[3:5] == [
        "    provider torch -> mine.py:a_long_name; flagged",
        "    both; 31 % slower than the baseline, beyond",
    ]
    assert " ".join(lines[-2:]) == "the terminal is too narrow for: 95% CI (--format csv has all)"


def test_cells_that_rows_share_become_headings():
    columns = [
        Column("op", ("gelu", "gelu", "add", "add")),
        Column("dtype", ("bf16", "bf16", "bf16", "bf16")),
        Column("n", ("1", "2", "3", "4"), "right"),
    ]
    heads = ("op", "dtype")
    assert shown(14, columns, (), heads=heads)[2:] == [
        *(f"{op:4}  bf16   {n}" for op, n in zip(columns[0].cells, "1234", strict=True)),
    ]
    lines = shown(13, columns, (), heads=heads)
    assert lines == ["n", "─", "gelu bf16", "1", "2", "add bf16", "3", "4"]
    columns[1] = Column("dtype", ("bf16", "fp32", "bf16", "fp32"))
    assert shown(13, columns, (), heads=heads)[2:4] == ["gelu", "bf16   1"]


def test_verdicts_are_words_first_and_colored_on_a_terminal_only():
    assert "\x1b" not in "".join(shown(120))
    assert "\x1b[31mSLOWER" in "".join(shown(120, force_terminal=True, color_system="standard"))


def test_what_a_terminal_would_obey_is_shown_as_its_escape():
    (_, _, row) = shown(80, [Column("name", ("a\x1b[2Jb",))], ())
    assert row == "a\\x1b[2Jb"


def test_letters_of_two_cells_are_counted_as_two():
    lines = shown(80, [Column("name", ("計算", "ab")), Column("n", ("1", "2"), "right")], ())
    assert [line.index(number) for line, number in zip(lines[2:], "12", strict=True)] == [4, 6]


def test_a_json_object_is_a_row_with_two_columns_for_an_interval():
    entry = {"ratio": 1.5, "ci95": [1.0, 2.0], "flags": ["a", "b"], "metric_ci95": None}
    assert flat(entry) == {
        "ratio": 1.5,
        "ci95_low": 1.0,
        "ci95_high": 2.0,
        "flags": "a,b",
        "metric_ci95_low": None,
        "metric_ci95_high": None,
    }
