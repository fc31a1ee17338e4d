"""Invalid arguments: one line on stderr, the right exit code, no traceback, and nothing
measured.
"""

import re
import sys
from pathlib import Path

import pytest
import torch

from bench.__main__ import main
from bench.harness import loop
from bench.harness.calibrate import calibration
from bench.harness.device import device
from tests.bench import commands

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def measures_nothing(monkeypatch):
    def measured(*arguments, **options):
        raise AssertionError("something was measured")

    monkeypatch.setattr(calibration.MeasuredCeilings, "complete", measured)
    monkeypatch.setattr(loop, "measure_row", measured)


def refused(capsys, runs, *words, code=2):
    """Return the one-line error of a command, after checking that it does nothing else."""
    assert commands.here(*words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith(f"python -m bench.{words[0]}: error: ")
    assert commands.run_files(runs) == []
    return err


NAMES = [
    ("matmul --dtype bf17", "unknown dtype 'bf17'; did you mean bf16"),
    ("matvec --dtype int8", "matvec has no dtype 'int8'; matvec has: fp64, fp32, fp16, bf16"),
    ("elementwise --op nosuch", "unknown op 'nosuch'; choose from copy, add, mul, triad, relu,"),
    (
        "matmul --provider nosuch",
        "unknown provider 'nosuch' for matmul; choose from torch, torch-compile",
    ),
    ("matmul --provider ,", "argument --provider: the list is empty; name at least one"),
    ("matmul --gpu nosuch", "unknown GPU 'nosuch'; list GPUs with `python -m roofline gpus`"),
    ("matmul --gpu h100-sxm", "--gpu h100-sxm"),
    ("matmul --layout xx", "unknown layout 'xx'; choose from nn, nt, tn"),
    ("matmul --device tpu", "argument --device: unknown device 'tpu'; write cpu, cuda or cuda:N"),
    ("matmul --format xml", "argument --format: invalid choice: 'xml'"),
    ("matmul --no-save --output run.jsonl", "--no-save and --output are mutually exclusive"),
    ("matmul --nosuch", "unrecognized arguments: --nosuch"),
    ("matmul --dtype=", "argument --dtype: "),
    ("matmul --budge 3", "unrecognized arguments: --budge 3"),  # no abbreviations
    ("elementwise --op gelu2", "unknown op 'gelu2'; did you mean gelu?"),
]

SIZES = [
    ("matmul --shape 64x0x64", "shape '64x0x64'"),
    ("matmul --shape -1", "invalid shape '-1'"),
    ("matmul --shape 1:9999:1 --dtype bf16,fp32", "more than 10000 cases"),
    (
        "norm --shape 1x2x3",
        "shape '1x2x3' does not fit rmsnorm: write the width of 4096 rows or mxn",
    ),
    ("matmul --shape ,", "argument --shape: the list is empty; name at least one"),
    ("matmul --shape 64x64", "shape '64x64' does not fit matmul: write one number or mxnxk"),
    ("matmul --shape 64:32:1", "invalid range '64:32:1'"),
    (
        "matmul --shape 1:100000:1",
        "shape '1:100000:1' makes more than 10000 cases; use a larger step",
    ),
    ("matmul --batch ٤", "batch '٤'"),
    ("elementwise --size 0", "size '0'"),
    ("elementwise --size 1.5B", "invalid size '1.5B': expected an integer of bytes"),
    (
        "elementwise --size 64TB",
        "invalid size '64TB': expected a number and B, KB, MB, GB, KiB, MiB or GiB",
    ),
    ("elementwise --size 2000000000GB", "size '2000000000GB' exceeds 10^18 - 1 bytes"),
    ("elementwise --size 3", "size '3' is not a multiple of the bf16 element size"),
    ("elementwise --size 64 --shape 64", "--shape and --size are mutually exclusive"),
]

NUMBERS = [
    *((f"matmul --budget={text}", f"'{text}'") for text in ("0", "nan", "٣", "1_0")),
    *((f"matmul --seed={text}", f"'{text}'") for text in ("-1", "1.5", str(2**63))),
]


@pytest.mark.parametrize(("line", "message"), NAMES + SIZES + NUMBERS)
@pytest.mark.usefixtures("measures_nothing")
def test_invalid_arguments_are_a_one_line_error(capsys, runs, line, message):
    assert message in refused(capsys, runs, *line.split(" "))


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31mred", "\udcff"])
def test_control_characters_in_errors_are_escaped(capsys, runs, text):
    err = refused(capsys, runs, "matmul", "--dtype", text)
    assert err.rstrip("\n").isprintable()


@pytest.mark.parametrize("option", ["--output", "--plot"])
@pytest.mark.usefixtures("measures_nothing")
def test_an_empty_path_is_rejected(capsys, runs, option):
    assert f"{option}: the path is empty" in refused(capsys, runs, "matmul", option, "")


@pytest.mark.parametrize(
    "line",
    [
        "matmul --shape 1000000",
        "matmul --shape 999999999999999999",
        "matmul --shape 64 --batch 999999999",
        "elementwise --op relu --shape 999999999999999999",
        "elementwise --op relu --size 900000000GB",
        "reduction --op dot --shape 999999999999999999",
        "matvec --op matvec --shape 99999999x99999999",
    ],
)
@pytest.mark.usefixtures("measures_nothing")
def test_a_case_too_large_for_memory_is_rejected_before_allocation(capsys, runs, line, monkeypatch):
    def without_memory(make):
        def made(*arguments, **options):
            assert options.get("device") == "meta", "memory was asked for"
            return make(*arguments, **options)

        return made

    for name in ("empty", "zeros", "rand", "ones"):
        monkeypatch.setattr(torch, name, without_memory(getattr(torch, name)))
    err = refused(capsys, runs, *line.split(" "))
    assert re.search(r"needs [0-9.,]+(e[0-9]+)? [TP]B, the device has [0-9.]+ GB free$", err)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
@pytest.mark.usefixtures("measures_nothing")
def test_a_missing_gpu_exits_with_3(capsys, runs, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    err = refused(capsys, runs, "matmul", "--device", name, code=3)
    assert f"'{name}'" in err


@pytest.mark.usefixtures("measures_nothing")
@pytest.mark.parametrize("busy_pct", [4.0, 60.0])
def test_a_busy_machine_is_refused_if_it_must_be_quiet(capsys, runs, monkeypatch, busy_pct):
    cores = len(device.usable_cores().allowed)
    monkeypatch.setattr(
        device.psutil, "cpu_percent", lambda interval, percpu: [busy_pct] * (cores + 1)
    )
    words = ("elementwise", "--op", "relu", "--dtype", "fp32", "--shape", "64", "--require-quiet")
    if busy_pct < 10:
        with pytest.raises(AssertionError, match="something was measured"):
            commands.here(*words)
        return
    err = refused(capsys, runs, *words, code=3)
    assert "the CPU is busy: other processes use 60 %, and --require-quiet allows 10 %" in err


def test_what_only_a_gpu_reports_is_refused_on_a_cpu(capsys, runs):
    err = refused(capsys, runs, "softmax", "--dtype", "fp32", "--shape", "64", "--peak-memory")
    assert "--peak-memory requires a GPU, the device is a CPU; remove --peak-memory" in err


def test_an_op_file_behind_a_loop_of_links_is_refused(capsys, tmp_path):
    loop_file = tmp_path / "mine.py"
    loop_file.symlink_to(loop_file)
    assert main(["compare", "--op", str(loop_file), "--provider", "torch,torch"]) == 2
    assert "mine.py" in capsys.readouterr().err.splitlines()[-1]


def test_a_plot_behind_a_loop_of_links_is_refused_before_measuring(capsys, runs, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    words = ("softmax", "--dtype", "fp32", "--shape", "64", "--plot", f"{tmp_path}/a/x.png")
    err = refused(capsys, runs, *words)
    assert f"cannot write {tmp_path}/a/x.png: Too many levels of symbolic links" in err


def test_if_no_case_can_run_the_error_gives_the_first_reason(capsys, runs):
    err = refused(capsys, runs, "matmul", "--shape", "64,128", "--dtype", "tf32,fp8e4m3")
    assert "has no tf32 arithmetic (and 3 more)" in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roof.jpg", "suffix; allowed: .png, .svg, .pdf"),
        ("roof", "suffix; allowed: .png, .svg, .pdf"),
        ("folder.png", "it is a directory"),
        ("file/roof.png", "a parent is a file"),
        ("file/deep/roof.png", "a parent is a file"),
        ("a" * 300 + ".png", "File name too long"),
    ],
)
@pytest.mark.usefixtures("measures_nothing")
def test_an_unwritable_plot_is_rejected_before_measuring(capsys, runs, tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("kept")
    assert message in refused(capsys, runs, "matmul", "--shape", "64", "--plot", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full.jsonl", "exists and is not empty; runs are not overwritten"),
        ("full.jsonl/run.jsonl", "Not a directory"),
        ("a" * 300 + ".jsonl", "File name too long"),
    ],
)
@pytest.mark.usefixtures("measures_nothing")
def test_an_unwritable_run_file_is_rejected_before_measuring(capsys, runs, tmp_path, name, message):
    (tmp_path / "full.jsonl").write_text("kept\n")
    assert message in refused(capsys, runs, "matmul", "--shape", "64", "--output", tmp_path / name)
    assert (tmp_path / "full.jsonl").read_text() == "kept\n"
    assert [path.name for path in tmp_path.iterdir()] == ["full.jsonl"]


@pytest.fixture(params=["--output", "--plot", "ROOFMARK_RUNS"])
def into(request, monkeypatch):
    """Return a function that makes the arguments to write into a directory, by one of three
    ways.
    """

    def words(folder):
        if request.param != "ROOFMARK_RUNS":
            return [
                request.param,
                folder / ("run.jsonl" if request.param == "--output" else "roof.png"),
            ]
        monkeypatch.setenv("ROOFMARK_RUNS", str(folder / "runs"))
        return []

    return words


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs a file system that permits all and takes nothing"
)
@pytest.mark.usefixtures("measures_nothing")
def test_a_directory_that_only_seems_writable_is_rejected(capsys, runs, into):
    err = refused(capsys, runs, "matmul", "--shape", "64", *into(Path("/proc")))
    assert re.search(r"cannot write '?/proc/\w+", err)


@pytest.mark.exhaustive
def test_a_plot_that_fails_late_loses_only_the_plot(capsys, runs, tmp_path, monkeypatch):
    from bench.harness import run

    folder = tmp_path / "gone"
    folder.mkdir()
    shown = run.print_out

    def with_a_file_for_its_folder(*arguments):
        if folder.is_dir():  # the path of the run is printed too
            folder.rmdir()
            folder.write_text("in the way")
        shown(*arguments)

    monkeypatch.setattr(run, "print_out", with_a_file_for_its_folder)
    assert commands.here("matmul", "--shape", "64", "--plot", folder / "roof.png") == 2
    out, err = capsys.readouterr()
    assert "64x64x64" in out
    assert "saved: " in out
    assert "error: cannot write" in err.splitlines()[-1]
    assert len(commands.run_files(runs)) == 1
