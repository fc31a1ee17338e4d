"""Threads of a CPU measurement: torch's default, limited by cores and quota, or `--threads`."""

import json

import pytest
import torch

from bench.__main__ import main as bench_main
from bench.harness.cli import main
from bench.harness.cli.arguments import UsageError
from bench.harness.device import device
from bench.harness.settings import Settings
from tests.bench import commands
from tests.bench.commands import H100

PRINT_THREADS = """\
import torch
from pathlib import Path

def double(x, out):
    Path({seen!r}).write_text(str(torch.get_num_threads()))
    torch.mul(x, 2, out=out)
"""


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets torch's thread count, the CPUs of this process, and its quota."""

    # Without its cache, so that no later test gets these.
    monkeypatch.setattr(device, "default_threads", device.default_threads.__wrapped__)

    def of(torch_threads, cpus, quota=None):
        monkeypatch.setattr(torch, "get_num_threads", lambda: torch_threads)
        monkeypatch.setattr(
            device, "usable_cores", lambda: device.Cores(frozenset(range(cpus)), quota)
        )

    return of


@pytest.mark.parametrize(
    ("torch_threads", "cpus", "quota", "wanted"),
    [(4, 8, None, 4), (16, 8, None, 8), (8, 8, 2.5, 2), (1, 8, 4.0, 1), (4, 8, 0.5, 1)],
    ids=[
        "a thread a core",
        "OMP asks for too many",
        "quota",
        "OMP asks for one",
        "less than a core",
    ],
)
def test_default_threads_are_limited_by_cores_and_quota(
    machine, torch_threads, cpus, quota, wanted
):
    machine(torch_threads, cpus, quota)
    found = device.detect("cpu")
    assert found.threads == wanted
    assert found.slug.endswith(f"-{wanted}t")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("tiny_calibration")
def test_threads_option_sets_the_threads_everywhere(runs, tmp_path, capsys):
    seen, file = tmp_path / "seen", tmp_path / "mine.py"
    file.write_text(PRINT_THREADS.format(seen=str(seen)))
    allowed, before = len(device.usable_cores().allowed), torch.get_num_threads()
    words = (
        "--op",
        "relu",
        "--shape",
        "64",
        "--dtype",
        "fp32",
        "--budget",
        "90",
        "--no-save",
        "-q",
        "--format=json",
    )
    try:
        for threads in dict.fromkeys((1, allowed)):
            commands.here(
                "elementwise", "--threads", threads, "--provider", f"torch,{file}:double", *words
            )
            found = json.loads(capsys.readouterr().out)["environment"]["device"]
            assert (found["threads"], found["slug"].rpartition("-")[2]) == (threads, f"{threads}t")
            assert torch.get_num_threads() == threads
            assert int(seen.read_text()) == threads
            [ceilings] = (runs / found["slug"]).glob("ceilings-*.json")
            assert json.loads(ceilings.read_text())["identity"]["threads"] == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("command", "number"),
    [("calibrate", "1.5"), ("suite", "1000000")],
)
def test_an_invalid_thread_count_is_a_one_line_error(command, number, capsys):
    most = len(device.usable_cores().allowed)
    with pytest.raises(SystemExit) as exit:
        bench_main([command, "--threads", number])
    assert exit.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"python -m bench {command}: error: argument --threads: ")
    assert f"'{number}'" in err
    assert f"1 to {most}" in err
    assert err.count("\n") == 1


def test_threads_option_is_rejected_on_a_gpu(monkeypatch):
    monkeypatch.setattr(device, "detect", lambda word: H100)
    assert main.device_of(Settings(quiet=True)) is H100
    with pytest.raises(UsageError, match="--threads 1 requires a CPU device"):
        main.device_of(Settings(threads=1, quiet=True))
