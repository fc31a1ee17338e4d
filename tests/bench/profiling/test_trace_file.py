"""Traces that plain torch scripts recorded, and one of a GPU written by hand in Kineto's format, on
the roofline.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.__main__ import main
from bench.profiling.records import records_of
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import target_of
from bench.profiling.trace_file import from_trace
from results.__main__ import main as results_command
from tests.bench.commands import keep_ceilings


def mlp():
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    x, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
    return lambda: nn.functional.cross_entropy(model(x), targets)


def convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    )
    images = torch.randn(2, 3, 32, 32)
    return lambda: model(images).sum()


def attention():
    query, key, value = (torch.randn(2, 4, 64, 32, requires_grad=True) for _ in range(3))
    return lambda: nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True
    ).sum()


def embedding():
    table, ids = nn.Embedding(50, 16, dtype=torch.bfloat16), torch.randint(0, 50, (4, 8))
    return lambda: torch.cat(
        [table(ids).softmax(-1), nn.functional.silu(table(ids)[:, :, :8])], -1
    ).sum()


STEPS = [mlp, convolution, attention, embedding]


def record(step, path):
    """Record one call as any script would: nothing of this project runs."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.parametrize("make", STEPS)
def test_work_from_shapes_is_that_of_the_model(make, tmp_path):
    torch.manual_seed(0)
    forward = make()

    def step():
        forward().backward()

    step()  # gradients are accumulated from now on
    breakdown, gpu, _ = from_trace(record(step, tmp_path / "trace.json"))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    assert gpu is None
    assert (
        sum(operation.matmul_flops for operation in breakdown.operations)
        == counter.get_total_flops()
    )

    def work(operations):
        # Additions to a number or a gradient may be recorded with another argument than they are
        # called with.
        return Counter(
            (
                one.op,
                one.shapes,
                one.dtypes,
                one.flops,
                one.bytes_read,
                one.bytes_written,
                one.flags,
            )
            for one in operations
            if one.bytes_moved and one.op not in ("aten.add", "aten.add_")
        )

    assert work(breakdown.operations) == work(
        account(ProfiledStep(target_of("step", step, []), "plain")).operations
    )
    assert {operation.phase for operation in breakdown.operations} == {"forward", "backward"}


def test_rows_of_a_cpu_trace_sum_to_its_duration(tmp_path):
    step = mlp()
    breakdown, _, _ = from_trace(record(lambda: step().backward(), tmp_path / "trace.json"))
    records = records_of(breakdown)
    assert sum(record.details.time_s for record in records) == pytest.approx(
        breakdown.samples_s[0], rel=1e-9
    )
    products = [
        operation for operation in breakdown.operations if operation.op in ("aten.addmm", "aten.mm")
    ]
    assert all(operation.time_ns for operation in products)


def test_what_has_no_shape_is_named_and_not_counted(tmp_path, capsys, runs):
    keep_ceilings(runs)
    table, rows = torch.randn(8, 4), torch.tensor([0, 2])
    few, many = ([torch.zeros(4) for _ in range(count)] for count in (3, 31))

    def step():
        _ = table[rows] @ table.t()
        torch._foreach_add_(few, 1.0)
        torch._foreach_add_(many, 1.0)

    path = record(step, tmp_path / "trace.json")
    assert main(["profile", "--from", str(path), "--format", "json", "-q", "--no-save"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["totals"]["no_shape"] == {"aten.index": 1, "aten._foreach_add_": 1}
    rows = {(record["op"], record["case"]): record for record in document["records"]}
    assert rows["aten.index", "no shape"]["flags"] == ["unmodelled"]
    assert rows["aten._foreach_add_", "3*4"]["flops"] == 12
    assert main(["profile", "--from", str(path), "-q", "--no-save"]) == 0
    said = (
        "It has no shapes for aten.index (1 call), aten._foreach_add_ (1 call), whose own work "
        "is not counted."
    )
    assert said in capsys.readouterr().out.splitlines()


# ---- a GPU


@pytest.fixture
def gpu_trace(tmp_path):
    """Return a trace of an H100, written by hand."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(Path(__file__).with_name("gpu_trace.json").read_bytes()))
    return path


def test_kernels_of_a_gpu_trace_belong_to_the_operations_that_launched_them(gpu_trace):
    breakdown, gpu, _ = from_trace(gpu_trace)
    product = 2 * 1024**3
    assert [
        (one.op, one.phase, one.matmul_flops, one.time_ns, sorted(one.kernels))
        for one in breakdown.operations
        if "::" not in one.op
    ] == [
        ("aten.t", "forward", 0, 0, []),
        ("aten.addmm", "forward", product, 110_000, ["gemm", "split_k_reduce"]),
        ("aten.copy_", "forward", 0, 30_000, ["Memcpy DtoD (Device -> Device)"]),
        ("compiled.region0", "forward", 0, 5_000, ["triton_poi_fused_gelu_0"]),
        ("aten.mm", "backward", product, 60_000, ["gemm"]),
    ]
    assert breakdown.unattributed == {"mine": [5_000]}
    assert breakdown.gaps == {"": 300_000 - 190_000 - 5_000 + 5_000}
    assert gpu.slug == "h100-sxm"


def test_a_gpu_trace_is_compared_with_the_datasheet_of_its_gpu(gpu_trace, tmp_path, capsys):
    words = ["--output", str(tmp_path / "run.jsonl"), "--plot", str(tmp_path / "trace.png")]
    assert main(["profile", "--from", str(gpu_trace), *words]) == 0
    said = capsys.readouterr().out
    assert "NVIDIA H100 80GB HBM3 (h100-sxm)" in said
    assert "bf16 peak 989.4 TFLOP/s datasheet" in said
    assert "profiler-overhead" not in said
    overlap = "Its kernels overlap for 20 us; each counts in full, so the rows add up to 107% of"
    assert overlap in said
    assert (tmp_path / "trace.png").exists()
    assert results_command(["show", str(tmp_path / "run.jsonl")]) == 0
    assert "Its kernels overlap for 20 us" in capsys.readouterr().out
    assert (
        main(["profile", "--from", str(gpu_trace), "--gpu", "a100-sxm-80gb", "--no-save", "-q"])
        == 0
    )
    assert "bf16 peak 312 TFLOP/s datasheet" in capsys.readouterr().out


# ---- bad input

BARE = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# a page", "JSON is malformed: invalid character (byte 0)"),
        (gzip.compress(b"{}", mtime=0)[:-4], "is not a whole gzip file"),
        (b"[1, 2]", "Expected `object`, got `int` - at `$[0]`"),
        (b'{"traceEvents": []}', "has no torch operations"),
        (
            json.dumps({"traceEvents": [BARE | {"args": {"Input Dims": 3}}]}).encode(),
            "got `int` - at `$.traceEvents[0].args.Input Dims`",
        ),
    ],
)
def test_what_is_not_a_trace_ends_with_2(content, said, tmp_path, error_of):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert said in error_of(main(["profile", "--from", str(path), "--no-save"]))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["mine.py:make"], "FILE:FUNCTION"),
        (["--model", "gpt2"], "--model"),
        (["--train"], "--train"),
    ],
)
def test_options_for_a_model_are_rejected_with_a_trace(words, name, error_of):
    err = error_of(main(["profile", "--from", "trace.json", *words, "--no-save"]))
    assert f"leave {name} out" in err
