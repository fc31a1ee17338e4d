"""Tables on terminals of four widths, compared with saved pictures that are reviewed by eye.

A test writes its missing picture and then fails once. To write all of them again:

    rm tests/results/pictures/*.txt
    python -m pytest -n 0 tests/results/test_pictures.py tests/test_tables.py
"""

import io
import re
import sys
from pathlib import Path

import pytest

from results.show import grid

PICTURES = Path(__file__).parent / "results" / "pictures"
WIDTHS = (80, 100, 120, 160)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Screens:
    """Runs commands on terminals of several widths and records the columns of their tables."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.columns = []
        keep = grid.width_of

        def recorded(columns):
            self.columns.extend(columns)
            return keep(columns)

        monkeypatch.setattr(grid, "width_of", recorded)

    def text(self, width, act):
        """Return what `act` prints on a terminal, without colors."""
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Terminal())
            patch.setenv("COLUMNS", str(width))
            patch.setenv("TERM", "xterm")
            act()
            return re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())

    def whole(self, width, act):
        """Return the same, after checking that no cell is cut and no line is too long."""
        self.columns.clear()
        text = self.text(width, act)
        assert self.columns
        left_out = " ".join(" ".join(re.findall(r"too narrow for:([^()]*)", text)).split())
        for column in self.columns:
            cells = [cell for cell in column.cells if cell not in grid.NOTHING]
            is_whole = all(word in text for cell in cells for word in cell.split())
            assert is_whole or " ".join(column.title.split()) in left_out, column.title
        assert max(map(len, re.findall("─+", text))) <= width
        return text

    def check(self, name, act):
        """Compare the output of `act` at each width with the saved picture."""
        text = "\n".join(f"=== {width} columns\n{self.whole(width, act)}" for width in WIDTHS)
        path = PICTURES / f"{name}.txt"
        if not path.exists():
            path.write_text(text, encoding="utf-8")
            pytest.fail(f"{path} is new: review and commit it")
        assert text == path.read_text(encoding="utf-8")
