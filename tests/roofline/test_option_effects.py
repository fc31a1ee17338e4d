"""An option that has no effect is an error: each option of each estimate changes the answer for one
of its values, or is refused.
"""

from importlib import import_module

import pytest

from results.store.runfile import StoreError
from roofline import estimate
from roofline.accounting.config import ConfigError
from roofline.estimate.question import parameters

GPU = {"gpu": "h100-sxm"}
LLAMA = {"model": "llama-3-8b"}
MIXTRAL = {"model": "mixtral-8x7b"}
SIZE = {"params": "7e9"}
SHAPE = {"layers": 2, "width": 64, "heads": 4, "ffn": 128, "vocab": 256}

QUESTIONS = [
    ("tensor", {"shape": "64x64"}),
    ("dtype", {}),
    ("matmul", {"shape": "64x64x64"}),
    ("matmul", {"einsum": "ab,bc->ac", "sizes": "a=64,b=64,c=64"}),
    ("intensity", GPU),
    ("params", LLAMA),
    ("params", SHAPE),
    ("flops", LLAMA),
    ("flops", SIZE),
    ("flops", SIZE | {"tokens": "1e12"}),
    ("memory", MIXTRAL),
    ("memory", LLAMA | {"zero": "3", "gpus": 8, "tensor_parallel": 2} | GPU),
    ("memory", SIZE),
    ("mfu", LLAMA | GPU | {"tokens_per_s": "1e4"}),
    ("mfu", SIZE | GPU | {"seconds_per_step": 2, "batch": 8}),
    ("mfu", SIZE | GPU | {"days": 9, "tokens": "1e12"}),
    ("gpus", LLAMA | GPU),
    ("gpus", SIZE | GPU | {"tokens": "1e12", "days": 9}),
    ("train", LLAMA | GPU | {"tokens": "1e12"}),
    ("train", SIZE | GPU | {"tokens": "1e12"}),
    ("train", SIZE | GPU | {"days": 9}),
    ("train", MIXTRAL | GPU | {"gpus": 16, "expert_parallel": 8, "batch": 64}),
    ("train", LLAMA | GPU | {"gpus": 16, "pipeline_parallel": 2, "tokens": "1e12"}),
    ("fit", GPU),
    ("fit", GPU | {"bytes_per_param": 16}),
    ("chinchilla", {"flops": "1e22"}),
    ("chinchilla", GPU | {"days": 9}),
    ("parallel", LLAMA | GPU | {"checkpoint": "full"}),
    ("context", LLAMA | GPU),
    ("context", LLAMA | {"memory": "8e10"}),
    ("generate", LLAMA | GPU),
    ("generate", SIZE | GPU),
    ("infer", MIXTRAL | GPU),
    ("infer", GPU | {"params": "70e9"}),
]

VALUES = {
    "checkpoint": ["full", "every-2"],
    "convention": ["6nd"],
    "gpu": ["h200-sxm"],
    "then": ["transpose"],
    "lora_on": ["query"],
    "dtype": ["fp16", "fp32", "int8"],
}
NUMBERS = ["2", "3", "8", "0.25", "1e9", "1e15"]


def answer_of(name, given):
    """Return what is printed but the title, or the error."""
    try:
        return getattr(estimate, name)(**given).to_dict()
    except (ValueError, StoreError) as error:
        return str(error)


def values_of(key, parameter):
    if parameter.is_flag:
        return [True]
    if key in VALUES:
        return VALUES[key]
    if isinstance(parameter.read, tuple):
        return parameter.read
    return NUMBERS


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "given"), QUESTIONS, ids=lambda value: str(value)[:60])
def test_an_option_without_effect_is_an_error(name, given):
    before = answer_of(name, given)
    assert isinstance(before, dict), before
    silent = []
    for key, parameter in parameters(getattr(estimate, name)).items():
        answers = (answer_of(name, {**given, key: value}) for value in values_of(key, parameter))
        valid = (a for a in answers if not str(a).startswith("argument --"))
        if key not in given and all(answer == before for answer in valid):
            silent.append(key)
    assert not silent, silent


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("collective", {"gpus": 4}),
        ("collective", {"gpus": 64, "node": 64}),
        ("parallel", {**LLAMA, "checkpoint": "full"}),
        ("train", {**LLAMA, "gpus": 4, "zero": 3}),
    ],
)
def test_a_network_that_nothing_uses_is_an_error(name, given):
    ask = getattr(estimate, name)
    with pytest.raises(ConfigError, match="--network has no effect: nothing is sent between nodes"):
        ask(**GPU, **given, network="1GB")
    larger = {**given, "gpus": 72, "batch": 144} if name != "collective" else {"gpus": 72}
    assert ask(**GPU, **{**larger, "node": 8}, network="50GB").rows  # the default, but of use


@pytest.mark.parametrize(
    "command",
    [
        "roofline estimate intensity --gpu h100-sxm",
        "roofline estimate sweep infer --model llama-3-8b --gpu h100-sxm --over batch=1,2",
        "roofline plot --gpu h100-sxm",
        "results history",
        "results compare latest latest",
    ],
)
def test_colors_without_a_picture_are_refused(command, capsys):
    package, *words = command.split()
    main = import_module(f"{package}.__main__").main
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--theme", "dark"])
    assert "--theme has no effect without -o PATH" in capsys.readouterr().err
