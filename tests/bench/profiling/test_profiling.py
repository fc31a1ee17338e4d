"""Profiles of whole models: counts agree with torch's, and the model is left unchanged."""

import json
import time

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import bench
from bench.__main__ import main
from bench.commands import profiler
from bench.harness import worker
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import detect
from bench.harness.settings import Settings
from bench.profiling.records import records_of, work_records
from bench.profiling.step import ProfiledStep, account, backward
from bench.profiling.target import target_of
from bench.profiling.tracing import timed
from results.store.runfile import load_run
from tests.bench.commands import CPU, GPU, keep_ceilings


def account_of(function, *args, mode="forward"):
    return account(ProfiledStep(target_of("step", function, args), mode))


def resnet_like():
    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(stem, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Attend(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


PLAIN = {
    "attention": (lambda: nn.Sequential(nn.Linear(16, 16), Attend()), (2, 4, 8, 16)),
    "resnet-like": (resnet_like, (2, 3, 32, 32)),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 16, 32)),
}
"""Models and their input shapes."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PLAIN)
def test_matmul_flops_of_a_model_agree_with_flop_counter_mode(name):
    torch.manual_seed(0)
    make, shape = PLAIN[name]
    check_a_model(target_of(name, make(), [torch.randn(shape)]))


def check_a_model(target):
    """Check that all work has a rule, and every operation that moves bytes has a time."""
    step = ProfiledStep(target, "backward")
    breakdown = timed(step, account(step), detect("cpu"), left_s=0.0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        backward(target())
    products = sum(operation.matmul_flops for operation in breakdown.operations)
    assert products == counter.get_total_flops()
    assert {
        operation.op for operation in breakdown.operations if not operation.is_modelled
    } == set()
    assert [
        operation.op
        for operation in breakdown.operations
        if operation.bytes_moved and not operation.time_ns
    ] == []
    assert sum(map(sum, breakdown.unattributed.values())) < 0.01 * breakdown.duration_ns


@pytest.mark.parametrize("was_compiled_before", [True, False])
def test_profiling_does_not_recompile_a_compiled_function(was_compiled_before):
    graphs, runs = [], []

    def backend(graph, _):
        graphs.append(graph)
        return lambda *args: runs.append(graph) or graph.forward(*args)

    function = torch.compile(lambda x: x + 1, backend=backend)
    x = torch.ones(4)
    if was_compiled_before:
        function(x)
    step = ProfiledStep(target_of("step", function, [x]), "plain")
    breakdown = timed(step, account(step), detect("cpu"), left_s=0.0)
    assert [call.op for call in breakdown.operations] == ["aten.add"]
    runs.clear()
    function(x)
    assert (len(graphs), len(runs)) == (1, 1)


@pytest.mark.parametrize("mode", ["backward", "train"])
def test_profiling_leaves_model_gradients_and_rng_unchanged(mode):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    x = torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    gradients = [x.grad, *(tensor.grad for tensor in model.parameters())]
    tensors = [x, *model.parameters(), *model.buffers(), *gradients]
    before = [tensor.detach().clone() for tensor in tensors]
    torch.manual_seed(2)
    expected = torch.rand(3)
    torch.manual_seed(2)
    step = ProfiledStep(target_of("model", model, [x]), mode)
    timed(step, account(step), detect("cpu"), left_s=0.0)
    assert torch.equal(torch.rand(3), expected)
    assert all(
        tensor.grad is gradient
        for tensor, gradient in zip([x, *model.parameters()], gradients, strict=True)
    )
    for value, same in zip(tensors, before, strict=True):
        assert torch.equal(value, same)


@pytest.mark.exhaustive
def test_a_sleep_in_a_module_is_in_its_host_gap():
    class Slow(nn.Module):
        def forward(self, x):
            time.sleep(0.2)
            return x + 1

    step = ProfiledStep(
        target_of(
            "model", nn.Sequential(nn.Linear(8, 8), nn.Sequential(Slow())), [torch.ones(4, 8)]
        ),
        "forward",
    )
    breakdown = timed(step, account(step), detect("cpu"), left_s=0.0)
    assert breakdown.gaps["1.0"] > 0.19e9
    records = records_of(breakdown)
    assert (records[0].op, records[0].details.module) == ("host-gap", "1.0")


def test_modules_are_named_forward_and_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    calls = account_of(model, torch.randn(4, 8), mode="backward").operations
    found = {(call.op, call.phase): call.module for call in calls}
    assert found["aten.tanh", "forward"] == found["aten.tanh_backward", "backward"] == "1"
    assert [call.module for call in calls if call.op == "aten.addmm"] == ["0", "2"]
    assert {call.module for call in calls if call.op == "aten.mm"} == {"0", "2"}
    kept_gradients = [
        call.module for call in calls if call.op == "aten.detach" and call.phase == "backward"
    ]
    assert set(kept_gradients) >= {"0", "2"}


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_recomputed_operations_belong_to_their_module(is_reentrant):
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def again(x):
        return checkpoint(block, x, use_reentrant=is_reentrant)

    calls = account_of(again, torch.randn(4, 8, requires_grad=True), mode="backward").operations
    assert [(call.module, call.phase) for call in calls if call.op == "aten.tanh"] == [
        ("Sequential.1", "forward"),
        ("Sequential.1", "backward"),
    ]


@pytest.mark.parametrize(
    ("dtypes", "named"),
    [
        ([torch.int64], "int64"),
        ([torch.int64, torch.bfloat16], "bf16"),
        ([torch.complex64], "fp32"),
    ],
)
def test_a_row_has_its_floating_point_dtype_if_any(dtypes, named):
    made = [torch.ones(3, dtype=dtype) for dtype in dtypes]
    (record,) = work_records(account_of(lambda: torch.cat(made)))
    assert record.dtype == named


@pytest.mark.parametrize(
    ("function", "flag"),
    [(lambda x: x.sum().item(), "host-sync"), (torch.nonzero, "data-dependent")],
)
def test_operations_that_make_the_host_wait_are_flagged(function, flag):
    assert flag in account_of(function, torch.ones(3)).operations[-1].flags


def wrong():
    raise ValueError("the check of heads failed:\n  4 heads of 62\n  more")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (3, "expected a function or a module, got int"),
        (wrong, "wrong: ValueError: the check of heads failed: 4 heads of 62$"),
        (lambda: None, "called no torch operation"),
    ],
)
def test_profile_rejects_invalid_functions_in_one_line(bad, said):
    with pytest.raises(UsageError, match=said):
        bench.profile(bad)


USER = """
import os
import torch
def make():
    print("noise")
    os.write(1, b"raw noise\\n")
    return torch.nn.Linear(32, 32), torch.ones(4, 32)
def nothing(): pass
def leaves(): raise SystemExit(3)
def exits():
    def step(): exit()
    return step
def wants(): return torch.nn.Linear(3, 3)
def raises(): return torch.mm, torch.ones(3), torch.ones(3)
def computes_nothing(): return lambda: None
def too_large(): return lambda: torch.empty(1 << 55)
def without_gradient(): return torch.exp, torch.ones(3)
"""


LATE = """
import torch
turns = iter(range(3))
def make():
    def step():
        if next(turns, None) is None:
            raise ValueError("late")
        return torch.ones(3).exp()
    return step
"""


@pytest.mark.exhaustive
def test_invalid_profile_files_exit_with_2(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(USER)
    names = (
        "nothing",
        "leaves",
        "exits",
        "absent",
        "wants",
        "raises",
        "computes_nothing",
        "too_large",
    )
    words = [f"{file}:{name}" for name in (*names, "without_gradient")]
    words += [str(file), "--model=absent"]
    for word in words:
        assert main(["profile", word, "--backward", "--device", "cpu", "--no-save", "-q"]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err.count("error: "), output.err.count("\n")) == ("", 1, 1), (
            output.err
        )
        assert ("returned None; expected a function" in output.err) == word.endswith(":nothing")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--model", "tiny-llama", "--dtype", "int8"],
            "--dtype expects one of fp64, fp32, bf16, fp16, got int8",
        ),
        (["--model", "tiny-llama", "--shape", "4x"], "invalid shape '4x'"),
        (["mine.py:make", "--layers", "2"], "--layers requires --model"),
        (["mine.py:make", "--model", "tiny-llama"], "expected one of FILE:FUNCTION"),
        (["mine.py:make", "--trace", "/nowhere/trace.json"], "no such directory"),
    ],
)
def test_invalid_profile_options_are_a_one_line_error(words, said, error_of):
    assert said in error_of(main(["profile", *words, "--no-save"]))


WITH_INPUTS = """
import torch
def product(a, b, scale=1.0): return torch.mm(a, b) * scale
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 8)
    def forward(self, x): return self.layer(x)
def get_init_inputs(): return [16]
def get_inputs(): return [torch.ones(4, 16)]
"""


@pytest.mark.parametrize(
    ("name", "shape", "text", "operations"),
    [
        ("product", "8x16,16x4", WITH_INPUTS.partition("class")[0], ["aten.mm", "aten.mul"]),
        ("Model", None, WITH_INPUTS, ["aten.addmm"]),
    ],
    ids=["function", "class"],
)
def test_functions_and_classes_get_the_inputs_of_compare(name, shape, text, operations, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    options = profiler.Options(target=f"{file}:{name}", shape=shape, dtype="bf16")
    found = profiler.counted_step(options, Settings(), None)
    assert [record.op for record in found.records] == operations
    assert {record.dtype for record in found.records} == {"bf16"}
    assert found.records[0].flops == 2 * 8 * 16 * 4


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("double", None, "add one, or use --shape and --dtype"),
        ("make", "4x4", "make has no parameters; remove --shape"),
    ],
)
def test_inputs_fit_the_parameters_of_a_function(name, shape, said, tmp_path):
    file = tmp_path / "alone.py"
    file.write_text("def double(x): return 2 * x\ndef make(): return print")
    options = profiler.Options(target=f"{file}:{name}", shape=shape)
    with pytest.raises(UsageError, match=said):
        profiler.chosen_target(options, Settings(), "cpu")


@pytest.mark.parametrize(
    ("op", "name", "bytes_read"),
    [
        ("layernorm", "aten.native_layer_norm", 2 * (64 * 32 + 2 * 32)),
        ("softmax", "aten.softmax", 2 * 64 * 32),
    ],
)
def test_an_op_has_the_inputs_of_its_command(op, name, bytes_read, capsys):
    words = ["--op", op, "--shape", "64x32", "--dtype", "bf16", "--on", "h100-sxm"]
    assert main(["profile", *words, "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["op"], row["dtype"], row["flags"]) == (name, "bf16", [])
    assert row["bytes_read"] == bytes_read


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--op", "gellu"], "unknown op 'gellu'; did you mean gelu"),
        (["--op", "gelu", "--shape", "64,128"], "name one op and one --shape"),
        (["--op", "gelu", "--model", "gpt2"], "expected one of FILE:FUNCTION"),
    ],
)
def test_an_op_that_is_not_one_case_is_a_one_line_error(words, said, error_of):
    assert said in error_of(main(["profile", *words, "--device", "cpu", "--no-save"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os; os._exit(7)", "ended its process with exit code 7 before there was a result"),
        ("import time; time.sleep(99)", "did not end within 0.5 s; increase --timeout"),
    ],
)
def test_a_file_that_exits_or_hangs_is_a_one_line_error(tmp_path, error_of, text, said):
    file = tmp_path / "mine.py"
    file.write_text(f"{text}\ndef make(): pass\n")
    words = ["--device", "cpu", "--no-save", "-q", "--timeout", "0.5"]
    assert said in error_of(main(["profile", f"{file}:make", *words]))


def test_a_gpu_is_profiled_in_another_process(monkeypatch):
    options, settings = profiler.Options(model="gpt2"), Settings()
    monkeypatch.setattr(worker, "call", lambda function, *_, **how: (["in a worker"], ""))
    monkeypatch.setattr(profiler, "records_of", lambda *_: ["here"])
    assert profiler.answer_of(options, settings, profiler.records_of, GPU) == ["in a worker"]
    assert profiler.answer_of(options, settings, profiler.records_of, CPU) == ["here"]


def test_output_of_a_step_is_printed_once(capsys):
    step = ProfiledStep(
        target_of("loud", lambda: (print("noise"), torch.ones(3).exp()), []), "forward"
    )
    timed(step, account(step), detect("cpu"), left_s=0.0)
    output = capsys.readouterr()
    assert (output.out, output.err.count("noise")) == ("", 1)


def test_rows_of_a_profile_sum_to_the_step(tmp_path, capsys, runs):
    keep_ceilings(runs)
    file = tmp_path / "mine.py"
    file.write_text(USER)
    arguments = ["--device", "cpu", "--backward", "--budget", "0.1", "--format", "json", "-q"]
    assert main(["profile", f"{file}:make", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err.splitlines()[:2] == ["noise", "raw noise"]
    document = json.loads(output.out)
    totals, records = document["totals"], document["records"]
    assert sum(record["time_s"] for record in records) == pytest.approx(
        totals["profiled_s"], rel=1e-9
    )
    assert totals["matmul_flops"] == 2 * (2 * 4 * 32 * 32)  # no gradient of the input is asked for
    found = {record["op"] for record in records}
    assert {"aten.addmm", "aten.mm"} <= found
    assert found & {"host-gap", "profiler-overhead"}


@pytest.mark.exhaustive
def test_a_step_that_fails_while_timed_exits_with_1(tmp_path, capsys, runs):
    keep_ceilings(runs)
    file = tmp_path / "mine.py"
    file.write_text(LATE)
    words = ["--device", "cpu", "--budget", "0.1", "--format", "json", "-q"]
    assert main(["profile", f"{file}:make", *words, "--output", str(tmp_path / "run.jsonl")]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["totals"] == {}
    (record, *_) = saved = load_run(tmp_path / "run.jsonl").records
    assert [row.op for row in saved] == [row["op"] for row in document["records"]]
    assert (record.status, record.bytes_written) == ("failed", 12)
    assert record.reason.endswith("make: ValueError: late")
