"""The tables of `python -m results` at the widths of terminals: `table_pictures` says how they are
kept.
"""

import pytest
from compare_runs import case
from table_pictures import Screens

from results.__main__ import main


@pytest.fixture
def picture(monkeypatch):
    """Returns a function that compares what a command prints with the kept picture of a name."""
    screens = Screens(monkeypatch)

    def check(name, *arguments):
        def act():
            assert main(arguments) in (0, 1)

        screens.check(name, act)

    return check


@pytest.fixture
def run(measured, make_skipped, save):
    """Saves a run of two ops, two cases and three providers, with flags, and returns its path."""
    mine = "examples/fused.py:gelu_and_bias"
    scales = {"torch": 1.0, "triton-v1": 1.31, mine: 0.87}
    records = [
        measured(scale * size / 512, seed=size, provider=provider, op=op, flags=flags, **case(size))
        for op, size in (("matmul", 512), ("matmul", 4096), ("gelu", 2048))
        for (provider, scale), flags in zip(
            scales.items(), ((), ("preempted", "not-converged"), ()), strict=True
        )
    ]
    return save(
        "a",
        *records,
        make_skipped(op="gelu", provider=mine, reason="out of memory: 12 GiB asked for"),
    )


def test_the_table_of_a_run(picture, run):
    picture("show", "show", run)


def test_a_comparison_of_providers(picture, run):
    picture("compare-providers", "compare", run, "--by", "provider", "--margin", "1%")


def test_a_comparison_of_runs(picture, save, measured):
    sizes, scales = (64, 1024, 4096), (0.8, 1.0, 1.3)
    before = save("a", *(measured(seed=size, **case(size)) for size in sizes), again=True)
    after = [
        measured(scale, seed=-size, **case(size)) for size, scale in zip(sizes, scales, strict=True)
    ]
    picture("compare-runs", "compare", before, save("b", *after), "--margin", "1%")


@pytest.fixture
def kept(keep, measured):
    """Saves a run of two providers on each of three days."""
    for day, scale in ((1, 1.0), (2, 1.0), (3, 1.2)):
        flags = ("preempted",) if day == 2 else ()
        names = ("torch", "triton-v4-persistent")
        records = [measured(scale, seed=day, provider=provider, flags=flags) for provider in names]
        run = {
            "run_id": f"2026110{day}T060000Z-000000000{day}",
            "started_at": f"2026-11-0{day}T06:00:00+00:00",
        }
        keep(day, *records, **run, git={"sha": str(day) * 40, "dirty": day == 2})


@pytest.mark.usefixtures("kept")
def test_a_history(picture):
    picture("history", "history")


@pytest.mark.usefixtures("kept")
def test_the_list_of_runs(picture):
    picture("list", "list")
