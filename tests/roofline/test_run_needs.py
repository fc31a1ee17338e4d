"""What a training run needs besides time: FLOPs by pass, landmarks, clipping, checkpoints,
headroom.
"""

import pytest

from roofline import estimate


def test_a_run_has_its_clipping_and_its_checkpoint():
    """70e9 parameters: 2 bytes of gradients on 1024 devices, 2 + 4 + 8 bytes in the file."""
    state = {"params": 70e9, "gpus": 1024, "zero": 3, "gpu": "h100-sxm"}
    answer = estimate.memory(**state, disk=2e9)
    values = answer.values | answer.rows[0]
    assert values["gradient_norm_bytes"] == 136_718_750
    assert values["clip_bytes"] == 2 * 136_718_750
    assert values["gradient_norm_seconds"] == pytest.approx(136_718_750 / 3.352e12)
    assert values["clip_seconds"] == pytest.approx(2 * 136_718_750 / 3.352e12)
    assert (values["checkpoint_file_bytes"], values["checkpoint_file_seconds"]) == (980e9, 490)
    assert values["headroom_bytes"] == pytest.approx(79.19 * 2**30 - 70e9 * 16 / 1024, rel=1e-3)
    assert estimate.memory(**state).values["checkpoint_file_seconds"] is None


@pytest.mark.parametrize(
    ("params", "warning"),
    [(4.7e9, None), (4.9e9, "only 7.8 % of 1 x h100-sxm")],
)
def test_a_run_warns_below_a_tenth_of_headroom(params, warning):
    warnings = estimate.train(params=params, tokens=1e12, gpu="h100-sxm").warnings
    assert [warning in line for line in warnings] == [True] * (warning is not None)


@pytest.mark.parametrize(("tokens", "name"), [(3e11, "GPT-3"), (1e14, "US reporting threshold")])
def test_the_nearest_landmark_is_named_with_its_source(tokens, name):
    answer = estimate.train(params=175e9, tokens=tokens, gpu="h100-sxm", gpus=1024)
    landmark = answer.values["landmark"]
    assert landmark["name"] == name
    assert landmark["ratio"] == pytest.approx(6 * 175e9 * tokens / landmark["flops"])
    assert landmark["source"] in answer.source


def test_flops_of_a_run_need_no_machine():
    """Brown et al. (2020), table D.1: 3.14e23."""
    values = estimate.flops(model="gpt-3", tokens=300e9, convention="6nd").values
    assert values["run_flops"] == pytest.approx(3.14e23, rel=2e-3)
    assert values["landmark"]["name"] == "GPT-3"
    trained = estimate.train(model="gpt-3", tokens=300e9, gpu="h100-sxm", convention="6nd").values[
        "flops"
    ]
    assert values["run_flops"] == pytest.approx(trained, rel=1e-12)


def test_flops_are_split_into_forward_and_backward():
    """The lecture notes: 32 and 64, together 96 TFLOP for 1B parameters and 16K tokens."""
    answer = estimate.flops(params=1e9, tokens=16e3)
    parts = [answer.values[f"run_{name}flops"] for name in ("forward_", "backward_", "")]
    assert parts == [32e12, 64e12, 96e12]
    assert answer.main_texts() == ["96 T FLOPs", "32 T of them forward", "64 T backward"]
    assert "landmark" not in [step.label for step in answer.steps]  # 3e-10 of GPT-3
    answer = estimate.flops(params=175e9, tokens=300e9)
    texts = ["315e21 FLOPs", "105e21 of them forward", "210e21 backward"]
    assert answer.main_texts() == texts  # no letter is above 10^15
    assert "landmark" in [step.label for step in answer.steps]
    frozen = estimate.flops(params=1e9, frozen=True).values
    assert frozen["backward_flops"] == frozen["forward_flops"]


def test_adafactor_is_estimated_for_a_number_of_parameters():
    """The notes: 8 to 10 bytes. Llama 3 8B, whose width is 4096, has as much per parameter."""
    assert (
        estimate.fit(gpu="h100-sxm", optimizer="adafactor").values["bytes_per_param"]
        == 8 + 8 / 4096
    )
    state = estimate.memory(params=1e9, recipe="fp32", optimizer="adafactor").values["components"][
        "optimizer_states"
    ]
    llama = estimate.memory(model="llama-3-8b", recipe="fp32", optimizer="adafactor").values[
        "components"
    ]
    assert state / 1e9 == pytest.approx(llama["optimizer_states"] / 8_030_261_248, rel=0.35)
