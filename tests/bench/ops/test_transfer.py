"""Copies between host and device, their overlap with work, and batches of a token file."""

import itertools
import json
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.harness import transfer as harness
from bench.harness.data.inputs import Rotation
from bench.harness.device.device import Device
from bench.harness.timing.protocol import Samples
from bench.transfer import MEMORY, TRANSFER, Options, blank_records, copy_record, main
from results.record import Record
from roofline.gpu_table import load_gpus, pcie_bytes_per_s
from roofline.machine import Machine
from tests.bench import commands

CPU = replace(commands.CPU, cache_bytes=2**12)
GPU = replace(
    commands.GPU, slug="h100-sxm", name="NVIDIA H100 80GB HBM3", memory_bytes=85_027_979_264
)


@pytest.fixture
def command(capsys):
    """Return a function that runs the command and returns exit code and output."""
    return lambda *words: (main(["--no-save", "--device", "cpu", *words]), capsys.readouterr())


@pytest.fixture
def measured(quick, command, monkeypatch):
    """Return a function that measures briefly and returns exit code and records."""
    monkeypatch.setattr(harness, "FILE_BYTES", 2**16)

    def measured(*words):
        code, printed = command(*words, "--format", "json")
        return code, json.loads(printed.out)["records"]

    return measured


@pytest.mark.parametrize(
    ("generation", "published_gb_per_s"), [(3, 15.75), (4, 31.51), (5, 63.02), (6, 121.0)]
)
def test_pcie_bandwidths_agree_with_published_ones(generation, published_gb_per_s):
    """x16, one way, without packet headers."""
    wide, narrow = (
        pcie_bytes_per_s(Machine(pcie_gen=generation, pcie_lanes=lanes)) for lanes in (16, 8)
    )
    assert wide / 1e9 == pytest.approx(published_gb_per_s, abs=0.01)
    assert narrow * 2 == wide


def test_the_copy_runs_while_the_matmuls_do(quick, monkeypatch):
    """Copy and matmuls meet in every second call: running one after the other breaks the
    barrier.
    """
    barrier, calls = threading.Barrier(2), itertools.count()

    def copy():
        if threading.current_thread() is not threading.main_thread():
            barrier.wait(30)

    class Meeting:
        flops = 8

        def __init__(self, *_):
            pass

        def __call__(self):
            if next(calls) % 2:
                barrier.wait(30)

    monkeypatch.setattr(harness, "Matmuls", Meeting)
    record = harness.measure_overlap(
        copy_record("overlap", CPU, 64, "pageable", "blocking"), [copy], CPU, seed=0
    )
    count = len(record.samples_s)
    assert count >= 5
    assert (len(record.details.copy_s), len(record.details.compute_s)) == (count, count)
    assert record.flops == 8


@pytest.mark.parametrize(
    ("op", "device", "moved"),
    [
        ("h2d", GPU, (0, 64)),
        ("d2h", GPU, (64, 0)),
        ("h2d", CPU, (64, 64)),
    ],
)
def test_transfer_bytes_are_those_of_device_memory(op, device, moved, monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**40)
    record = copy_record(op, device, 64, "pageable", "blocking")
    assert (record.bytes_read, record.bytes_written) == moved


def test_a_gpu_has_rows_of_all_kinds_of_copies(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**40)
    records = blank_records(Options(size=["1MiB"]), GPU)
    assert harness.link_of(GPU) == pcie_bytes_per_s(load_gpus()["h100-sxm"])
    kinds = {(record.op, *record.options.values()) for record in records if record.op != "load"}
    assert kinds == {
        (op, m, t) for op in ("h2d", "d2h", "overlap") for m in MEMORY for t in TRANSFER
    }
    assert not any(record.reason for record in records)


def test_a_copy_too_large_for_memory_is_skipped(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**20)
    record = copy_record("h2d", CPU, 2**20, "pageable", "blocking")
    assert record.reason == "three buffers of 0.00105 GB do not fit in the device's memory"


def test_a_copy_over_the_link_is_not_l2_suspect(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**30)
    timed = (3e-5,) * 40, 40, "graph", "cold", 3e-5, (3e-5, 3e-5)
    samples = Samples(
        *timed,
        converged=True,
        warm_median_s=3e-5,
        host_launch_s=2e-6,
        host_latency_s=3e-5,
        tick_s=5e-7,
    )
    blank = copy_record("h2d", GPU, 2**18, "pinned", "non-blocking")
    record = harness.finished_row(blank, samples, SimpleNamespace(device=GPU))
    assert record.flags == ()
    assert record.warm_median_s == 3e-5


@pytest.mark.gpu
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("way", TRANSFER)
def test_copies_and_overlap_on_a_gpu(memory, way, capsys):
    arguments = ("--op", "h2d,d2h,overlap", "--size", "4MiB", "--memory", memory, "--transfer", way)
    assert main(["--no-save", "--format", "json", *arguments]) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["status"] for record in records] == ["ok"] * 3


@pytest.fixture
def ids(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "FILE_BYTES", 2**14)
    return harness.random_tokens(tmp_path / "ids", "uint16", seed=3)


def test_batches_are_contiguous_parts_of_the_file(ids):
    inputs, labels = next(harness.random_batches(ids, 5, 30, CPU, seed=7))
    assert inputs.shape == labels.shape == (5, 30)
    assert inputs.dtype == torch.int64
    stretches = np.lib.stride_tricks.sliding_window_view(ids.astype(np.int64), 31)
    for row, label in zip(inputs, labels, strict=True):
        (at,) = np.flatnonzero((stretches[:, :30] == row.numpy()).all(1))
        assert torch.equal(label, torch.from_numpy(stretches[at, 1:].copy()))


def test_a_batch_may_be_the_whole_file(ids):
    inputs, labels = next(harness.random_batches(ids, 2, len(ids) - 1, CPU, seed=7))
    assert torch.equal(inputs[0], torch.from_numpy(ids[:-1].astype(np.int64)))
    assert int(labels[1, -1]) == ids[-1]
    with pytest.raises(ValueError, match="a sequence needs 8193"):
        next(harness.random_batches(ids, 2, len(ids), CPU, seed=7))


def test_the_next_batch_is_made_during_a_step(ids):
    """The first step ends only after the second batch was started."""
    begun = [threading.Event() for _ in range(3)]
    batches = harness.random_batches(ids, 2, 8, CPU, 7)
    noted = (event.set() or batch for event, batch in zip(begun, batches, strict=False))
    met = []
    with closing(harness.prefetched(noted)) as batches:
        harness.loop_step(batches, lambda: met.append(begun[1].wait(120)), CPU, [])()
    assert met == [True]


@pytest.mark.parametrize(
    ("content", "dtype", "message"),
    [
        (b"", "uint16", "0 bytes do not hold uint16 token ids"),
        (b"abcdef", "uint32", "6 bytes do not hold uint32 token ids"),
    ],
)
def test_an_invalid_token_file_is_a_one_line_error(tmp_path, content, dtype, message, command):
    (tmp_path / "tokens").write_bytes(content)
    code, printed = command(
        "--op", "load", "--tokens", str(tmp_path / "tokens"), "--token-dtype", dtype
    )
    assert code == 2
    assert message in printed.err


def test_all_transfer_ops_run_on_a_cpu(measured):
    code, records = measured("--size", "4KiB", "--shape", "2x16", "--step-time", "0.0001")
    assert (code, {record["status"] for record in records}) == (0, {"ok"})
    assert [record["op"] for record in records] == ["h2d", "d2h", "overlap", "load", "load"]
    copy, _, overlap, inline, _ = records
    assert copy["bytes_read"] == copy["bytes_written"] == 4096
    assert overlap["flops"] > 0
    assert all(
        0 <= wait <= step for wait, step in zip(inline["waits_s"], inline["samples_s"], strict=True)
    )
    assert all(Record.from_dict(record) for record in records)


@pytest.mark.parametrize("op", ["h2d", "overlap"])
def test_copies_that_do_not_fill_the_cache_are_flagged(measured, monkeypatch, op):
    monkeypatch.setattr(harness, "plan_rotation", lambda *_: Rotation(3, "partly-cold"))
    _, (record,) = measured("--op", op, "--size", "4KiB")
    assert "neither cold nor warm; use a larger --size" in record["flag_reasons"]["not-cold"]


def test_a_given_token_file_is_read(measured, tmp_path):
    path = tmp_path / "corpus.bin"
    np.arange(5000, dtype=np.uint32).tofile(path)
    words = ("--op", "load", "--tokens", str(path), "--token-dtype", "uint32", "--shape", "2x16")
    code, (record,) = measured(*words, "--step-time", "0.0001", "--prefetch", "0")
    assert (code, record["file_bytes"], record["cache"]) == (0, 20000, "warm")


def test_a_copy_that_copies_nothing_is_invalid(measured, monkeypatch):
    monkeypatch.setattr(
        harness, "copy_calls", lambda pairs, is_blocking: [lambda: time.sleep(1e-5) for _ in pairs]
    )
    code, (record,) = measured("--op", "overlap", "--size", "4KiB")
    assert (code, record["status"], record["reason"]) == (1, "invalid", harness.UNLIKE)
    assert record["samples_s"] == []


def test_copies_a_cpu_does_not_support_are_skipped(measured):
    words = (
        "--op",
        "h2d",
        "--size",
        "4KiB",
        "--memory",
        "pageable,pinned",
        "--transfer",
        "blocking,non-blocking",
    )
    code, records = measured(*words)
    assert code == 0
    assert [(record["status"], record["reason"]) for record in records] == [
        ("ok", None),
        ("skipped", "a copy within host memory always blocks"),
        ("skipped", "pinned memory needs a GPU that reads it"),
        ("skipped", "pinned memory needs a GPU that reads it"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op", "h2h"), "unknown op 'h2h'"),
        (("--op", "load", "--size", "4KiB"), "--size does not apply to --op load"),
        (
            ("--op", "h2d,overlap", "--prefetch", "1"),
            "--prefetch does not apply to --op h2d,overlap",
        ),
        (("--size", "7"), "a multiple of 4 bytes; got 7"),
        (("--size", "99999999999GiB"), "at most 1 PiB"),
        (
            ("--tokens", "/nowhere/tokens.bin"),
            "cannot read /nowhere/tokens.bin: No such file or directory",
        ),
        (("--memory", "pinned"), "pinned memory needs a GPU that reads it"),
    ],
)
def test_invalid_transfer_arguments_are_a_one_line_error(arguments, message, error_of):
    op = "load" if arguments[0] in ("--shape", "--prefetch", "--tokens") else "h2d"
    op = () if "--op" in arguments else ("--op", op)
    assert message in error_of(main(["--no-save", "--device", "cpu", *op, *arguments]))


def test_temporary_token_files_are_deleted(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert measured("--op", "load", "--shape", "2x16", "--step-time", "0.0001")[0] == 0
    assert list(Path(tmp_path).iterdir()) == []
