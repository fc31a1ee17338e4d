"""`bench.matmul.run` and its like: the records of the command, by the command's own reading of the
options.
"""

import importlib
import json

import pytest
import torch

import bench
from bench.harness import loop
from bench.harness.timing.protocol import LIMITS
from results.store.runfile import load_run
from tests.bench.commands import FAMILIES, QUICK, here, keep_ceilings

OF_RANKS = ("fleet", "collectives")
"""Commands of several processes, which have no `run`."""


@pytest.fixture(autouse=True)
def quick(runs, monkeypatch):
    keep_ceilings(runs)
    monkeypatch.setitem(LIMITS, "cpu", QUICK)


def test_every_family_can_be_called():
    assert {*FAMILIES, "attention", "decode", "train_step", "transfer", "grouped_matmul"} <= set(
        bench.FAMILIES
    )
    for family in bench.FAMILIES:
        module = getattr(bench, family)
        assert module is importlib.import_module(f"bench.{family}")
        if family not in OF_RANKS:
            assert f"python -m bench.{family}" in module.run.__doc__


@pytest.mark.exhaustive
def test_a_call_measures_the_same_rows_as_the_command(capsys, runs):
    options = {"dtype": "fp32", "shape": [16, (16, 8, 32)], "layout": "nt", "device": "cpu"}
    threads = torch.get_num_threads()
    records = bench.matmul.run(**options)
    assert torch.get_num_threads() == threads
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", "")
    words = "--dtype fp32 --shape 16,16x8x32 --layout nt --format json --no-save --quiet"
    assert here("matmul", *words.split()) == 0
    document = json.loads(capsys.readouterr().out)
    keys = (
        "op",
        "case",
        "dtype",
        "provider",
        "status",
        "flops",
        "bytes_read",
        "op_sha256",
        "fill",
        "options",
    )
    assert [{key: record.to_dict()[key] for key in keys} for record in records] == [
        {key: row[key] for key in keys} for row in document["records"]
    ]
    assert records.environment.argv[:4] == ("python", "-m", "bench.matmul", "--dtype")
    assert list(runs.rglob("*matmul*.jsonl")) == []
    assert records[0].mfu is not None
    assert "16x8x32:nt" in repr(records)


def test_save_writes_the_run_file(tmp_path, runs):
    records = bench.softmax.run(
        dtype=torch.float32, shape=(8, 16), device="cpu", save=tmp_path / "kept.jsonl"
    )
    assert (
        [record.case for record in load_run(tmp_path / "kept.jsonl").records]
        == [records[0].case]
        == ["8x16"]
    )
    bench.softmax.run(dtype="fp32", shape="8x16", device="cpu", save=True)
    assert len(list(runs.rglob("*softmax*.jsonl"))) == 1


def test_impossible_cases_are_skipped_or_an_error_if_all_are():
    some = bench.matmul.run(dtype=["fp32", "tf32"], shape=8, device="cpu")
    assert [record.status for record in some] == ["ok", "skipped"]
    with pytest.raises(bench.UsageError, match="no tf32 arithmetic"):
        bench.matmul.run(dtype="tf32", shape=8, device="cpu")


def test_transfer_can_be_called_like_an_op():
    (record,) = bench.transfer.run(op="h2d", size="4KiB", device="cpu", budget=5)
    assert (record.op, record.status) == ("h2d", "ok")


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"dtype": "fp7"}, bench.UsageError, "unknown dtype 'fp7'"),
        ({"shape": len}, bench.UsageError, "shape= expected a number"),
        ({"plot": "x.png"}, bench.UsageError, "takes no plot=; use save="),
        ({"device": "cuda:99"}, bench.NoDeviceError, "device 'cuda:99' is not available"),
    ],
)
def test_run_rejects_invalid_options_in_one_line(options, kind, said, capsys):
    with pytest.raises(kind, match=said) as raised:
        bench.matmul.run(**options)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().err == ""


def test_an_interrupted_call_raises_keyboard_interrupt(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "measure_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.matmul.run(dtype="fp32", shape=8, device="cpu")
