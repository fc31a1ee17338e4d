"""Rows of a run: measured, skipped, invalid or failed; and the exit code of the run."""

import importlib
import re
import time
from dataclasses import replace

import pytest

from bench.harness import clock
from bench.harness.measure import measure_row
from bench.harness.providers import registry
from results.store.runfile import load_run
from tests.bench import commands
from tests.bench.fake_clock import set_clock

pytestmark = pytest.mark.usefixtures("quick")


def statuses(runs):
    """Return (case, dtype, provider, status, reason) of each record of the only run."""
    (saved,) = commands.run_files(runs)
    return [(r.case, r.dtype, r.provider, r.status, r.reason) for r in load_run(saved).records]


def with_eager(family, eager):
    return (replace(importlib.import_module(f"bench.{family}").OPS[0], eager=eager),)


def test_possible_cases_are_measured_and_others_skipped(capsys, runs):
    assert commands.here("matmul", "--shape", "1000000,16", "--dtype", "fp8e4m3,fp32") == 0
    found = statuses(runs)
    assert [row[:4] for row in found] == [
        ("1000000x1000000x1000000:nt", "fp8e4m3", "torch", "skipped"),
        ("16x16x16:nt", "fp8e4m3", "torch", "skipped"),
        ("1000000x1000000x1000000", "fp32", "torch", "skipped"),
        ("16x16x16", "fp32", "torch", "ok"),
    ]
    assert "has no fp8e4m3 arithmetic" in found[0][4]
    assert re.fullmatch(r"needs 32.00 TB, the device has [0-9.]+ GB free", found[2][4])
    out = capsys.readouterr().out
    for row in found[:3]:
        assert re.search(
            rf"^skipped: matmul {row[0]} {row[1]} torch batch=1 layout=n[nt]: {re.escape(row[4])}$",
            out,
            re.MULTILINE,
        )


def wrong_in_the_last_row(a, b, out):
    out.copy_(a @ b)
    out[-1] *= 2


def writes_nothing(a, b, out):
    pass


def raises(a, b, out):
    raise RuntimeError("CUDA error: no kernel image\nis available")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("eager", "status", "reason"),
    [
        (wrong_in_the_last_row, "invalid", "wrong result: an element is "),
        (writes_nothing, "invalid", "wrong result: an element is NaN"),
        (raises, "failed", "RuntimeError: CUDA error: no kernel image"),
    ],
)
def test_a_wrong_or_failing_provider_exits_with_1(capsys, runs, eager, status, reason):
    assert (
        commands.here("matmul", "--shape", "64", "--dtype", "fp32", ops=with_eager("matmul", eager))
        == 1
    )
    ((*_, found, why),) = statuses(runs)
    assert found == status
    assert why.startswith(reason)
    assert "\n" not in why
    assert why in capsys.readouterr().out
    record = load_run(commands.run_files(runs)[0]).records[0]
    assert (record.median_s, record.samples_s) == (None, ())


def test_triton_on_a_cpu_is_skipped_with_the_reason(capsys, runs):
    (version, *_) = registry.kernel_versions("elementwise")
    words = ("--op", "relu", "--shape", "1024", "--provider", f"torch,{version}")
    assert commands.here("elementwise", *words) == 0
    torch_row, triton_row = (row[2:] for row in statuses(runs))
    assert torch_row == ("torch", "ok", None)
    assert triton_row[:2] == (version, "skipped")
    assert triton_row[2].startswith(f"{version} needs a GPU, got a CPU; TRITON_INTERPRET=1")


@pytest.mark.parametrize("family", ["matmul", "softmax", "elementwise"])
def test_triton_alone_on_a_cpu_is_rejected_before_measuring(error_of, runs, family):
    (version, *_) = registry.kernel_versions(family)
    line = error_of(commands.here(family, "--provider", version, "--dtype", "fp32"))
    assert line.startswith(f"python -m bench.{family}: error: ")
    assert f"{version} needs a GPU, got a CPU" in line
    assert commands.run_files(runs) == []


@pytest.mark.exhaustive
@pytest.mark.skipif(registry.shutil.which("g++") is None, reason="torch-compile on a CPU needs g++")
def test_torch_compile_reports_its_compile_time(capsys, runs):
    words = ("--op", "gelu", "--shape", "4096", "--dtype", "fp32")
    providers = "torch,torch-compile"
    assert commands.here("elementwise", *words, "--provider", providers) == 0
    baseline, compiled = load_run(commands.run_files(runs)[0]).records
    assert (baseline.provider, compiled.provider) == ("torch", "torch-compile")
    assert (baseline.status, compiled.status) == ("ok", "ok")
    assert compiled.first_call_s > 10 * compiled.median_s
    assert max(compiled.samples_s) < compiled.first_call_s
    out = capsys.readouterr().out
    assert "first call" in out


def test_a_slow_case_is_estimated_from_small_ones_and_skipped(capsys, runs):
    sizes = []

    def slow(a, b, out):
        sizes.append(len(a))
        time.sleep(2 * len(a) ** 3 / 2e9)
        out.copy_(a @ b)

    assert (
        commands.here(
            "matmul", "--shape", "4096", "--dtype", "fp32", ops=with_eager("matmul", slow)
        )
        == 0
    )
    ((*_, status, reason),) = statuses(runs)
    assert status == "skipped"
    launch_s = float(re.search(r"\((\S+) s per launch\) exceeds the 10 s limit", reason)[1])
    assert launch_s >= 0.5 * 2 * 4096**3 / 2e9  # a delay of the smaller case lowers it
    assert re.search(r"use --budget [0-9]+$", reason)
    assert max(sizes) <= 1024


def test_rows_after_the_budget_are_skipped(capsys, runs, monkeypatch):
    measured, usual, ahead_s = measure_row.take_samples, clock.now, [0.0]
    set_clock(monkeypatch, lambda: usual() + ahead_s[0])

    def slowly(*arguments, **options):
        ahead_s[0] += 100
        return measured(*arguments, **options)

    monkeypatch.setattr(measure_row, "take_samples", slowly)
    assert commands.here("matvec", "--op", "matvec", "--shape", "16,32,48", "--budget", "60") == 0
    (_, *first), *others = [row[2:] for row in statuses(runs)]
    assert first == ["ok", None]
    assert [status for _, status, _ in others] == ["skipped", "skipped"]
    assert all(reason.startswith("the budget of 60 s is spent") for *_, reason in others)
