"""`python -m bench.train_step`: table, JSON, invalid arguments, steps too large for memory."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from bench.harness.device import device
from bench.model.step import TrainingStep
from results.store.runfile import load_run
from roofline.accounting.flops import train_flops
from roofline.accounting.machines import mfu_of, run_machine
from roofline.accounting.presets import load_config
from tests.bench import commands

SMALL = ("--model", "small.json", "--shape", "2x32")
KEYS = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 200,
}


run = partial(commands.here, "train_step")


@pytest.fixture(autouse=True)
def small(quick, one_thread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.json").write_text(json.dumps(KEYS))
    monkeypatch.setattr(device.Device, "use", lambda self: torch.set_num_threads(1))


@pytest.fixture
def saved_records(runs):
    """Return a function that returns the records of the only run."""
    return lambda: load_run(commands.run_files(runs)[0]).records


def test_train_step_json_has_phases_rates_memory_and_flops(capsys, runs):
    words = ("--recipe", "fp32", "--checkpoint", "1", "--micro-batches", "2", "--format", "json")
    assert run(*SMALL, *words) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert (record["op"], record["provider"], record["dtype"]) == ("train-step", "torch", "fp32")
    assert (record["shape"], record["case"]) == ({"b": 2, "s": 32}, "2x32")
    assert (record["options"]["checkpoint"], record["options"]["micro_batches"]) == ("every-1", 2)
    assert record["status"] == "ok"
    assert record["tokens_per_step"] == 64

    spent = record["phases_s"]
    assert list(spent) == ["forward", "backward", "clip", "optimizer", "zero_grad"]
    assert all(value > 0 for value in spent.values())
    assert sum(spent.values()) < 2 * max(record["samples_s"])
    assert record["tokens_per_s"] == pytest.approx(64 / record["median_s"])
    assert record["hfu"] > record["mfu"]

    assert record["flops_convention"] == "gemm-causal-exact"
    assert (
        record["flops"]
        == train_flops(load_config(Path("small.json")), 32, 2, "gemm-causal-exact").model_flops
    )
    memory = record["memory_bytes"]
    assert record["bytes_read"] == record["bytes_written"] + memory["estimated"]["inputs"]
    assert memory["error_pct"]["total"] == 0
    assert record["counted_flops"] == record["counted_flops_estimated"]
    assert sum(record["counted_flops_by_operation"].values()) == record["counted_flops"]
    assert record["verified"]["before"]["max_error_of_bound"] < 1
    assert len(commands.lines_of(commands.run_files(runs)[0])) == 2


def test_train_step_table_shows_steps_and_memory(capsys):
    assert run(*SMALL, "--recipe", "fp32,amp", "-v") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert any("forward" in line and "HFU" in line for line in lines)
    memory = lines.index(next(line for line in lines if line.startswith("memory at its peak, MB")))
    assert "kept by layers" in lines[memory + 1]
    rows = [line.split() for line in lines[memory + 2 : memory + 4]]
    assert [row[4] for row in rows] == ["fp32", "amp"]
    assert rows[0].count("=") == 5  # peak, weights, gradients, state, inputs: predicted to the byte
    assert "largest error" in err


def test_deterministic_rows_and_checkpoints_are_reported(capsys, saved_records, tmp_path):
    assert (
        run(*SMALL, "--recipe", "fp32", "--deterministic", "--save-checkpoint", str(tmp_path)) == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    usual, deterministic = saved_records()
    assert deterministic.options == usual.options | {"algorithms": "deterministic"}
    assert out.count("algorithms deterministic") == 1
    assert usual.details.checkpoint_file["is_bit_exact"]
    assert out.count("the resumed step is bit-exact") == 2
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_row_is_deterministic_only_if_requested(monkeypatch):
    modes, call = [], TrainingStep.__call__

    def watched(self):
        modes.append(torch.are_deterministic_algorithms_enabled())
        call(self)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    assert run(*SMALL, "--recipe", "fp32", "--deterministic", "--no-save") == 0
    assert modes == sorted(modes)
    assert {*modes} == {False, True}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "deepseek-v3"], "latent attention (MLA) is not supported"),
        (["--model", "gemma-2-2b"], "choose from gpt2, nanogpt"),
        (["--model", "mistral-7b", "--shape", "1x8192"], "sliding windows are not supported"),
        (["--shape", "4x99999999"], "invalid shape '4x99999999'"),
        (["--checkpoint", "selective"], "estimated, not run"),
        (["--checkpoint", "some"], "unknown checkpointing 'some'"),
        (["--micro-batches", "3"], "must divide the first number of --shape"),
        (["--optimizer", "lion"], "unknown optimizer 'lion'"),
        (["--save-checkpoint", "nowhere"], "expected an existing directory that can be written to"),
    ],
)
def test_invalid_train_step_arguments_are_a_one_line_error(error_of, words, said):
    assert said in error_of(run(*words))


def test_a_step_too_large_for_memory_is_skipped_with_its_estimate(
    capsys, monkeypatch, saved_records
):
    monkeypatch.setattr(device.Device, "free_bytes", lambda self: 40_000_000)
    assert run("--model", "small.json", "--shape", "1x16,512x64", "--recipe", "fp32") == 0
    small, large = saved_records()
    assert (small.status, large.status) == ("ok", "skipped")
    assert large.reason.startswith("needs an estimated ")
    assert large.reason.endswith("the device has 40 MB free")
    assert large.details.memory_bytes["estimated"]["total"] > 40_000_000
    capsys.readouterr()
    assert run("--model", "llama-3.2-1b", "--recipe", "bf16") == 2
    assert "needs an estimated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("right_calls", "reason"),
    [(0, "the gradient of "), (4, "after timing: the gradient of ")],
    ids=["always", "later"],
)
def test_a_wrong_gradient_is_invalid_and_has_no_time(
    monkeypatch, saved_records, right_calls, reason
):
    right, calls = TrainingStep.loss, []

    def wrong(self, *tokens):
        calls.append(1)
        return right(self, *tokens) * (1.0 if len(calls) <= right_calls else 1.01)

    monkeypatch.setattr(TrainingStep, "loss", wrong)
    assert run(*SMALL, "--recipe", "fp32") == 1
    (record,) = saved_records()
    assert (record.status, record.samples_s) == ("invalid", ())
    assert record.reason.startswith(reason)
    assert "before" in record.verified


def test_estimates_use_the_mfu_of_a_measured_step(runs):
    assert run(*SMALL, "--recipe", "fp32,bf16", "-q") == 0
    (path,) = commands.run_files(runs)
    stored = load_run(path)
    machine = run_machine(stored, str(path))
    for record in stored.records:
        share, said = mfu_of(machine, record.dtype, None)
        assert share == pytest.approx(
            record.flops / record.median_s / commands.PEAKS_FLOPS_PER_S[record.dtype]
        )
        assert "measured: train-step 2x32" in said
