"""Traces with the structure of recorded ones: hostile files, GPU launches of every kind, missing
shapes. The events are written for the purpose.
"""

import gzip
import json

import pytest

from bench.__main__ import main
from bench.profiling.records import records_of
from bench.profiling.trace_file import from_trace

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85028765696}


def event(name, begin, duration, category="cpu_op", thread=1, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 9,
        "tid": thread,
        "ts": begin,
        "dur": duration,
        "args": args,
    }


def launch(begin, correlation, name="cudaLaunchKernel"):
    return event(name, begin, 1.0, "cuda_runtime", correlation=correlation)


def kernel(name, begin, duration, correlation, device=0, stream=7):
    return event(name, begin, duration, "kernel", stream, correlation=correlation, device=device)


def shaped(name, begin, duration, *dims):
    kinds = ["c10::BFloat16"] * len(dims)
    return event(name, begin, duration, **{"Input Dims": list(dims), "Input type": kinds})


def written(events, path, gpu=H100):
    path.write_text(json.dumps({"deviceProperties": [gpu], "traceEvents": events}))
    return path


def refused(path, capsys, *words):
    assert main(["profile", "--from", str(path), "--no-save", *words]) == 2
    heard = capsys.readouterr()
    assert (heard.out, heard.err.count("\n")) == ("", 1)
    return heard.err


# ---- hostile files

PRODUCT = shaped("aten::mm", 10.0, 5.0, [64, 64], [64, 64])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dur": -1.0}, "Expected `float` >= 0.0 - at `$.traceEvents[60].dur`"),
        ({"dur": 1e300}, "at `$.traceEvents[60].dur`"),
        ({"dur": float("inf")}, "JSON is malformed: invalid character (byte "),
        ({"ts": float("nan")}, "JSON is malformed: invalid character (byte "),
        ({"ts": "soon"}, "Expected `float`, got `str` - at `$.traceEvents[60].ts`"),
    ],
)
def test_a_bad_event_is_named_by_its_place(change, said, tmp_path, capsys):
    events = [event("aten::t", 100.0 + number, 0.5) for number in range(60)]
    path = written([*events, PRODUCT | change], tmp_path / "trace.json")
    assert said in refused(path, capsys)


@pytest.mark.parametrize(
    "args",
    [
        {"Input Dims": [[2**62, 2**62], [64, 64]]},
        {"Input Dims": [[-3, 64], [64, 64]]},
        {"Input Dims": [[10**30, 64], [64, 64]]},
        {"Input Dims": [["a", 64], [64, 64]]},
        {"Input Dims": [[64, 64], [64, 64]], "Input Strides": [[1, 2, 3], [64, 1]]},
        {"Input Dims": [[64, 64], [64, 64]], "Input Strides": [[2**62, 2**62], [64, 1]]},
        {"Input Dims": [[2**30, 2**30], [2**30, 2**30]]},
    ],
)
def test_shapes_that_no_tensor_has_keep_their_time_and_have_no_work(args, tmp_path):
    events = [event("aten::t", 100.0 + number, 0.5) for number in range(60)]
    forged = PRODUCT | {"args": PRODUCT["args"] | args}
    breakdown, _, _ = from_trace(written([*events, forged], tmp_path / "trace.json"))
    [record] = [record for record in records_of(breakdown) if record.op == "aten.mm"]
    assert (record.details.time_s, record.flops) == (pytest.approx(5e-6), None)
    assert record.flags == ("unmodelled",)


def test_deep_nesting_takes_no_quadratic_time(tmp_path):
    depth = 20_000
    nested = [PRODUCT | {"ts": level, "dur": 2 * (depth - level)} for level in range(depth)]
    breakdown, _, _ = from_trace(written(nested, tmp_path / "trace.json"))
    # The outermost operation has all of it.
    [operation] = breakdown.operations
    assert operation.time_ns == 2 * depth * 1000


def test_a_file_that_is_larger_when_decompressed_is_refused(tmp_path, capsys):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 2_000_000))
    said = refused(path, capsys, "--max-size", "0.001")
    assert "has more than 0.001 GB; record fewer steps, or use --max-size" in said


def test_the_array_form_of_a_chrome_trace_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([PRODUCT]))
    breakdown, _, _ = from_trace(path)
    assert [operation.op for operation in breakdown.operations] == ["aten.mm"]


# ---- who owns the kernels


def test_kernels_that_were_launched_before_the_recording_are_left_out(tmp_path):
    queue = [kernel("old", 100.0 + 10 * number, 9.0, 1000 + number) for number in range(50)]
    events = [event("ProfilerStep#6", 90.0, 800.0, "user_annotation"), *queue]
    for number in range(20):
        begin = 620.0 + 10 * number
        events.append(shaped("aten::mm", begin, 5.0, [64, 64], [64, 64]))
        events.append(launch(begin + 1, number))
        events.append(kernel("gemm", begin + 3, 8.0, number))
    breakdown, _, _ = from_trace(written(events, tmp_path / "trace.json"))
    assert breakdown.early_s == (9e-6,) * 50
    assert not breakdown.unattributed
    # From the first operation on.
    assert breakdown.samples_s == [pytest.approx(890e-6 - 620e-6)]


OWNERS = [
    ("CompiledFunctionBackward", "cpu_op", "cudaGraphLaunch"),
    ("torch::autograd::CppNode<Lookup>", "cpu_op", "cudaLaunchKernel"),
    ("Optimizer.step#AdamW.step", "user_annotation", "cudaLaunchKernel"),
    ("triton_poi_fused_add_0", "cpu_op", "cuLaunchKernel"),
    ("record_param_comms", "cpu_op", "cudaLaunchKernelExC"),
]


def test_events_that_are_no_torch_operations_own_their_kernels(tmp_path):
    events = []
    for number in range(50):
        name, category, launched_by = OWNERS[number % 5]
        begin = 100.0 * number
        args = {"Collective name": "allreduce"} if name == "record_param_comms" else {}
        events.append(event("nn.Module: Net_0", begin, 90.0, "python_function"))
        events.append(event("nn.Module: Linear_4", begin + 1, 80.0, "python_function"))
        events.append(event(name, begin + 2, 50.0, category, **args))
        events.append(launch(begin + 3, number, launched_by))
        events.append(kernel("k", begin + 5, 10.0, number))
    breakdown, _, _ = from_trace(written(events, tmp_path / "trace.json"))
    assert not breakdown.unattributed
    found = {(each.op, each.phase): each.time_ns for each in breakdown.operations}
    assert found == {
        ("CompiledFunctionBackward: cudaGraphLaunch", "forward"): 100_000,
        ("torch::autograd::CppNode<Lookup>", "forward"): 100_000,
        ("Optimizer.step#AdamW.step", "optimizer"): 100_000,
        ("triton_poi_fused_add_0", "forward"): 100_000,
        ("record_param_comms allreduce", "forward"): 100_000,
    }
    assert {each.module for each in breakdown.operations} == {"Net.Linear"}


def test_one_of_several_gpus_is_chosen(tmp_path, capsys):
    events = []
    for number in range(20):
        events.append(shaped("aten::mm", 10.0 * number, 5.0, [64, 64], [64, 64]))
        events.append(launch(10.0 * number + 1, number))
        events.append(kernel("gemm", 10.0 * number + 2, 1.0, number, device=number % 2))
    path = written(events, tmp_path / "trace.json")
    assert "has kernels of GPUs 0, 1; choose one with --trace-device" in refused(path, capsys)
    breakdown, gpu, _ = from_trace(path, gpu=0)
    assert sum(operation.time_ns for operation in breakdown.operations) == 10_000
    assert gpu.slug == "h100-sxm"
