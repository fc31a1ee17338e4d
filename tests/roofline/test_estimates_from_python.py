"""The roofline from Python: the same answers as the commands give, and one clear error where there
is none.
"""

import json
from inspect import signature

import pytest

import roofline
from roofline.__main__ import main

WORDS = {
    "tensor": {"shape": (64, 32), "dtype": "fp32"},
    "matmul": {"shape": (64, 32, 16), "gpu": ["h100-sxm", "a100-sxm-80gb"], "dtype": "fp32"},
    "params": {
        "layers": 2,
        "width": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 128,
        "vocab": 100,
        "tied": True,
    },
    "memory": {"model": "gpt2", "recipe": "bf16-master", "checkpoint": "full", "gpu": "h100-sxm"},
    "train": {"params": "70B", "tokens": "15T", "gpu": "h100-sxm", "gpus": 1024, "mfu": 0.5},
    "chinchilla": {"flops": 1e23},
    "generate": {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "output_tokens": 512,
        "batch": 8,
        "price": 2.5,
    },
    "context": {
        "model": "llama-3-8b",
        "gpu": ["h100-sxm", "a100-sxm-80gb"],
        "batch": 8,
        "kv_dtype": "fp8e4m3",
    },
}


def typed(options):
    words = []
    for name, value in options.items():
        text = "x".join(map(str, value)) if isinstance(value, tuple) else value
        text = ",".join(value) if isinstance(value, list) else text
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(text)])]
    return words


@pytest.mark.parametrize("name", WORDS)
def test_a_function_gives_the_answer_of_its_command(name, capsys):
    answer = getattr(roofline.estimate, name)(**WORDS[name])
    assert main(["estimate", name, *typed(WORDS[name]), "--format", "json"]) == 0
    assert json.loads(json.dumps(answer.to_dict())) == json.loads(capsys.readouterr().out)


def test_every_estimate_is_listed_and_says_its_options():
    assert dir(roofline.estimate) == sorted(roofline.estimate.QUESTIONS)
    assert "kv_heads: key and value heads" in roofline.estimate.params.__doc__
    assert signature(roofline.estimate.train).parameters["gpus"].default == 1


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: roofline.estimate.params(bogus=1), roofline.ConfigError, "--bogus"),
        (
            lambda: roofline.estimate.train(tokens=True),
            roofline.ConfigError,
            "'True' is not a number",
        ),
        (
            lambda: roofline.estimate.params(model=len),
            roofline.ConfigError,
            "--model: expected a number, a text or a list of these, got builtin",
        ),
        (lambda: roofline.estimate.nothing, AttributeError, "it has tensor, dtype, matmul"),
        (lambda: roofline.attainable("h900", 1, 1), roofline.UnknownGpuError, "unknown GPU 'h900'"),
        (lambda: roofline.attainable("h100-sxm", -1, 1), roofline.ConfigError, "flops=-1 is not"),
        (
            lambda: roofline.attainable("h100-sxm", 1, True),
            roofline.ConfigError,
            "bytes=True is not",
        ),
        (lambda: roofline.attainable("h100-sxm", 0, 0), roofline.ConfigError, "are both 0"),
        (
            lambda: roofline.attainable("h100-sxm", 1, 1, dtype="fp7"),
            roofline.ConfigError,
            "no known peak of fp7",
        ),
        (lambda: roofline.nothing, AttributeError, "no attribute 'nothing'"),
    ],
)
def test_what_cannot_be_answered_raises_one_line(call, kind, said):
    with pytest.raises(kind, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_attainable_rates_are_those_of_the_binding_limit():
    compute = roofline.attainable("h100-sxm", 10**15, 10**3)
    assert (compute.bound, compute.flops_per_s) == (
        "compute",
        pytest.approx(compute.peak_flops_per_s),
    )
    copy = roofline.attainable("h100-sxm", 0, 10**9, "torch.bfloat16")
    assert (copy.bound, copy.flops_per_s) == ("memory", 0)
    assert copy.bytes_per_s == pytest.approx(copy.bandwidth_bytes_per_s)
