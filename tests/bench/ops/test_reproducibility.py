"""Checkpoints of a training step, and the growth of initial outputs."""

from dataclasses import replace

import pytest

from bench.harness.device.device import cpu_device
from bench.model import reproducibility
from bench.model.reproducibility import checkpoint_report
from bench.model.step import TrainingStep
from roofline.accounting.presets import load_preset
from roofline.accounting.state import RECIPES
from roofline.accounting.step_memory import StepPlan

pytestmark = pytest.mark.usefixtures("one_thread")


def step(recipe="fp32", optimizer="adamw"):
    config = replace(
        load_preset("tiny-gpt"), layers=1, width=64, heads=2, kv_heads=2, head_dim=32, mlp_width=128
    )
    made = TrainingStep(StepPlan(config, RECIPES[recipe], optimizer, 16, 2), cpu_device(), seed=0)
    made()
    return made


@pytest.mark.parametrize(
    ("recipe", "optimizer"), [("fp32", "adamw"), ("bf16", "adamw"), ("amp", "momentum")]
)
def test_training_resumes_bit_by_bit(recipe, optimizer, tmp_path):
    problem, report = checkpoint_report(step(recipe, optimizer), tmp_path)
    assert (problem, report["is_bit_exact"]) == (None, True)
    assert report["bytes"] == pytest.approx(report["estimated_bytes"], rel=0.02)
    assert min(report["write_s"], report["read_s"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_the_optimizer_does_not_resume(tmp_path, monkeypatch):
    contents = reproducibility.contents

    def incomplete(of_step):
        saved = contents(of_step)
        return saved | {"optimizer": saved["optimizer"] | {"state": {}}}

    monkeypatch.setattr(reproducibility, "contents", incomplete)
    problem, report = checkpoint_report(step(), tmp_path)
    assert "tensors differ" in problem
    assert not report["is_bit_exact"]
