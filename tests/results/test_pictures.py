"""What the tables look like on terminals of four widths: the text of each is kept in `pictures/`, and read by people.

A picture that is deleted is written anew by the test, which then fails once.
"""

import io
import re
from pathlib import Path

import pytest
from compare_runs import case

from results.__main__ import main
from results.store.runs import RunWriter

PICTURES = Path(__file__).parent / "pictures"
WIDTHS = (80, 100, 120, 160)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Returns a function that runs a command on a terminal of a width and returns what it printed, without colors."""

    def shown(width, *arguments):
        monkeypatch.setattr("sys.stdout", Terminal())
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        assert main(arguments) in (0, 1)
        import sys

        return re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())

    return shown


def drawn(screen, *arguments):
    return "\n".join(f"=== {width} columns\n{screen(width, *arguments)}" for width in WIDTHS)


def check(name, text):
    path = PICTURES / f"{name}.txt"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} is new: look at it, and keep it")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def run(measured, make_skipped, save):
    """Saves a run of two ops, two cases and three providers, with flags, and returns its path."""
    mine = "examples/fused.py:gelu_and_bias"
    scales = {"torch": 1.0, "triton-v1": 1.31, mine: 0.87}
    records = [
        measured(scale * size / 512, seed=size, provider=provider, op=op, flags=flags, **case(size))
        for op, size in (("matmul", 512), ("matmul", 4096), ("gelu", 2048))
        for (provider, scale), flags in zip(scales.items(), ((), ("preempted", "not-converged"), ()), strict=True)
    ]
    return save("a", *records, make_skipped(op="gelu", provider=mine, reason="out of memory: 12 GiB asked for"))


def test_the_table_of_a_run(screen, run):
    check("show", drawn(screen, "show", run))


def test_a_comparison_of_providers(screen, run):
    check("compare-providers", drawn(screen, "compare", run, "--by", "provider"))


def test_a_comparison_of_runs(screen, save, measured):
    sizes, scales = (64, 1024, 4096), (0.8, 1.0, 1.3)
    before = save("a", *(measured(seed=size, **case(size)) for size in sizes))
    after = save("b", *(measured(scale, seed=-size, **case(size)) for size, scale in zip(sizes, scales, strict=True)))
    check("compare-runs", drawn(screen, "compare", before, after))


@pytest.fixture
def kept(runs, measured, make_environment):
    """Keeps a run of two providers on each of three days."""
    for day, scale in ((1, 1.0), (2, 1.0), (3, 1.2)):
        environment = make_environment(
            run_id=f"2026110{day}T060000Z-000000000{day}",
            started_at=f"2026-11-0{day}T06:00:00+00:00",
            git={"sha": str(day) * 40, "dirty": day == 2},
        )
        with RunWriter.create(environment, "matmul") as writer:
            for provider in ("torch", "triton-v4-persistent"):
                flags = ("preempted",) if day == 2 else ()
                writer.append(measured(scale, seed=day, provider=provider, flags=flags))


@pytest.mark.usefixtures("kept")
def test_a_history(screen):
    check("history", drawn(screen, "history"))


@pytest.mark.usefixtures("kept")
def test_the_list_of_runs(screen):
    check("list", drawn(screen, "list"))
