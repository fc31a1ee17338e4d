"""Profiles of whole models: what is counted is what torch counts, and nothing is left changed."""

import json

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.__main__ import main
from bench.harness.cli.arguments import UsageError
from bench.harness.profile.profiling import account, profile
from bench.harness.profile.step import Step, backward
from bench.harness.profile.target import Target, target_of

SMALL = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64},
}
FAMILIES = {
    "llama": SMALL,
    "mistral": SMALL,
    "qwen2": SMALL,
    "qwen3": SMALL | {"head_dim": 16},
    "phi3": SMALL | {"pad_token_id": 0},
    "gemma": SMALL | {"head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "gpt_neox": {name: value for name, value in SMALL.items() if name != "num_key_value_heads"},
}


def family(name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **FAMILIES[name])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, 128, (2, 16))
    return Target(name, model, (), {"input_ids": ids, "labels": ids, "use_cache": False}, "cpu", model)


def convolutions():
    block = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return target_of(
        "convolutions", nn.Sequential(block, nn.Flatten(), nn.Linear(512, 10)), [torch.randn(2, 3, 16, 16)]
    )


def agreed_flops(target):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        backward(target())
    return counter.get_total_flops()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_products_of_a_family_are_those_of_flop_counter_mode(name):
    check_products(family(name))


def test_products_of_convolutions_are_those_of_flop_counter_mode():
    check_products(convolutions())


def check_products(target):
    calls = account(Step(target, "backward")).calls
    assert sum(call.matmul_flops for call in calls) == agreed_flops(target)
    assert {call.op for call in calls if not call.is_modelled} == set()


def test_a_compiled_function_is_still_compiled_afterwards():
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    x = torch.ones(4)
    calls = account(Step(target_of("plus", function, [x]), "forward")).calls
    assert [call.op for call in calls] == ["aten.add"]
    compiled.clear()
    torch.compiler.reset()
    function(x)
    assert len(compiled) == 1


def test_random_numbers_and_gradients_are_as_without():
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    torch.manual_seed(2)
    expected = torch.rand(3)
    torch.manual_seed(2)
    account(Step(target_of("model", model, [x]), "backward"))
    assert torch.equal(torch.rand(3), expected)


def test_modules_are_named_forward_and_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    calls = account(Step(target_of("model", model, [torch.randn(4, 8)]), "backward")).calls
    found = {(call.op, call.phase): call.module for call in calls}
    assert found["aten.tanh", "forward"] == found["aten.tanh_backward", "backward"] == "1"
    assert [call.module for call in calls if call.op == "aten.addmm"] == ["0", "2"]
    assert {call.module for call in calls if call.op == "aten.mm"} == {"0", "2"}


def test_a_number_taken_to_the_host_is_told():
    calls = account(Step(target_of("item", lambda x: x.sum().item(), [torch.ones(3)]), "forward")).calls
    assert "host-sync" in calls[-1].flags
    calls = account(Step(target_of("nonzero", torch.nonzero, [torch.ones(3)]), "forward")).calls
    assert "data-dependent" in calls[-1].flags


@pytest.mark.parametrize("bad", [3, lambda: 1 / 0, lambda: None])
def test_what_cannot_be_profiled_is_refused_in_one_line(bad):
    with pytest.raises(UsageError):
        profile(bad)


USER = """
import torch
def make():
    print("noise")
    return torch.nn.Linear(32, 32), torch.ones(4, 32)
def nothing(): pass
def leaves(): raise SystemExit(3)
"""


def test_the_command_refuses_bad_input_with_2(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(USER)
    for word in (f"{file}:nothing", f"{file}:leaves", f"{file}:absent", str(file)):
        assert main(["profile", word, "--device", "cpu", "--no-save"]) == 2
    assert main(["profile", "--no-save"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert all("error: " in line for line in lines)


@pytest.mark.exhaustive
def test_the_command_prints_totals_and_rows_that_sum_to_the_step(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(USER)
    arguments = ["--device", "cpu", "--threads", "1", "--backward", "--budget", "1", "--format", "json", "-q"]
    assert main(["profile", f"{file}:make", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    totals, records = document["totals"], document["records"]
    assert sum(record["time_s"] for record in records) == pytest.approx(totals["profiled_s"], rel=1e-9)
    assert totals["matmul_flops"] == 2 * (2 * 4 * 32 * 32)  # no gradient of the input is asked for
    assert {"aten.addmm", "aten.mm", "host-gap"} <= {record["op"] for record in records}
