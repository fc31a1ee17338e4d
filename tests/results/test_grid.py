"""Tables at the widths of terminals, and in a pipe: what is shown, and that nothing is cut."""

import io

import pytest
from rich.console import Console

from results.show.grid import Column, flat, print_grid
from results.show.terminal import WIDE

VERDICTS = ("SLOWER", "SAME")
COLUMNS = (
    Column("verdict", VERDICTS, styles=("red", "")),
    Column("ratio", ("1.312x", "0.999x"), "right"),
    Column("95% CI", ("±0.4%", "±12%"), "right", leaves=2),
    Column("case", ("4096x4096x4096", "64")),
    Column("provider", ("torch -> mine.py:a_long_name", "torch -> torch#2"), goes_below=3),
    Column("baseline", ("12.34 us", "1.000 ms"), "right"),
    Column("flagged", ("both", ""), leaves=1),
)
OPS = (("gelu", 1), ("gelu", 2), ("add", 3), ("add", 4))
NOTES = ("31 % slower than the baseline, beyond the margin of 1 %", "")


def shown(width, columns=COLUMNS, notes=NOTES, **options):
    file = io.StringIO()
    print_grid(Console(file=file, width=width, **options), columns, notes, "reason")
    return file.getvalue().splitlines()


def test_narrow_table_omits_columns_in_order_and_moves_notes_below():
    assert shown(79) == [
        "verdict   ratio  95% CI  case            provider                      baseline",
        "─" * 79,
        "SLOWER   1.312x   ±0.4%  4096x4096x4096  torch -> mine.py:a_long_name  12.34 us",
        "    31 % slower than the baseline, beyond the margin of 1 %",
        "SAME     0.999x    ±12%  64              torch -> torch#2              1.000 ms",
        "the terminal is too narrow for: flagged (--format csv has all)",
    ]
    assert shown(78)[-1] == "the terminal is too narrow for: 95% CI, flagged (--format csv has all)"


def test_a_column_that_may_not_leave_goes_below_its_rows():
    lines = shown(50)
    assert lines[0].split() == ["verdict", "ratio", "case", "baseline"]
    assert lines[3:5] == [
        "    provider torch -> mine.py:a_long_name; 31 %",
        "    slower than the baseline, beyond the margin of",
    ]
    assert lines[-3] == "    provider torch -> torch#2"
    assert lines[-2:] == [
        "the terminal is too narrow for: 95% CI, flagged",
        "(--format csv has all)",
    ]


def test_narrow_table_moves_shared_cells_into_headings():
    columns = [
        Column("op", ("gelu", "gelu", "add", "add"), heads=True),
        Column("dtype", ("bf16", "bf16", "bf16", "bf16"), heads=True),
        Column("n", ("1", "2", "3", "4"), "right"),
    ]
    assert shown(14, columns, ()) == [
        "op    dtype  n",
        "─" * 14,
        *(f"{op:4}  bf16   {n}" for op, n in OPS),
    ]
    assert shown(13, columns, ()) == ["n", "─", "gelu bf16", "1", "2", "add bf16", "3", "4"]
    columns[0] = Column("op", ("gelu", "add", "gelu", "add"), heads=True)
    assert shown(13, columns, ())[0] == "op    dtype  n"


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160, WIDE])
def test_no_cell_and_no_header_is_ever_cut(width):
    text = "\n".join(shown(width))
    left_out = " ".join(text.split()).partition("too narrow for: ")[2]
    for column in COLUMNS:
        for cell in (column.title, *column.cells):
            assert all(word in text for word in cell.split()) or column.title in left_out


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
