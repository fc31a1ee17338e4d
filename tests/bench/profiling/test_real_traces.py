"""Traces with the structure of recorded ones: hostile files, GPU launches of every kind, missing
shapes. The events are written for the purpose.
"""

import csv
import gzip
import json

import pytest

from bench.__main__ import main
from bench.profiling.records import records_of
from bench.profiling.trace_file import from_trace
from results.__main__ import main as results_command

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


def product(begin, number, spent, start=None, name="gemm", title="aten::mm", **where):
    """Return a product of 64x64 matrices with its launch and its kernel, 2 us after its begin."""
    call = shaped(title, begin, 2.5, [64, 64], [64, 64])
    start = begin + 2 if start is None else start
    return [call, launch(begin + 1, number), kernel(name, start, spent, number, **where)]


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
        ({"dur": float("inf")}, "JSON is malformed: invalid character (byte "),
        ({"ts": "soon"}, "Expected `float`, got `str` - at `$.traceEvents[60].ts`"),
        ({"name": None}, "Expected `str`, got `null` - at `$.traceEvents[60].name`"),
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
        {"Input Dims": [["a", 64], [64, 64]]},
        {"Input Dims": [[64, 64], [64, 64]], "Input Strides": [[1, 2, 3], [64, 1]]},
        {"Input Dims": [[64, 64], [64, 64]], "Input Strides": [[-64, 1], [64, 1]]},
    ],
)
def test_shapes_that_no_tensor_has_keep_their_time_and_have_no_work(args, tmp_path):
    events = [event("aten::t", 100.0 + number, 0.5) for number in range(60)]
    forged = PRODUCT | {"args": PRODUCT["args"] | args}
    breakdown, _, _ = from_trace(written([*events, forged], tmp_path / "trace.json"))
    [record] = [record for record in records_of(breakdown) if record.op == "aten.mm"]
    assert (record.details.time_s, record.flops) == (pytest.approx(5e-6), None)
    assert (record.flags, record.case) == (("unmodelled",), "no shape")


def test_rates_above_a_roof_are_not_explained_by_missing_kernels_if_there_are_some(
    tmp_path, capsys
):
    product = shaped("aten::mm", 0.0, 5.0, [8192, 8192], [8192, 8192])
    path = written([product, launch(1.0, 1), kernel("gemm", 9.0, 1.0, 1)], tmp_path / "t.json")
    text = "\n".join(said_of(path, capsys))
    assert "MFU or MBU is above 100%: the GPU is faster than the one of its roofs" in text
    assert "are not in the trace" not in text


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


JSON = ["--format", "json"]

# ---- who owns the kernels


def test_kernels_that_were_launched_before_the_recording_are_left_out(tmp_path):
    queue = [kernel("old", 100.0 + 10 * number, 9.0, 1000 + number) for number in range(50)]
    events = [event("ProfilerStep#6", 90.0, 800.0, "user_annotation"), *queue]
    for number in range(20):
        events += product(620.0 + 10 * number, number, 8.0)
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
    rows = [row for row in records_of(breakdown) if row.details.phase]
    found = {(row.op, row.details.phase): (row.count, row.details.time_s) for row in rows}
    ten_of_10_us = (10, pytest.approx(100e-6))
    assert found == {
        ("CompiledFunctionBackward: cudaGraphLaunch", "forward"): ten_of_10_us,
        ("torch::autograd::CppNode<Lookup>", "forward"): ten_of_10_us,
        ("Optimizer.step#AdamW.step", "optimizer"): ten_of_10_us,
        ("triton_poi_fused_add_0", "forward"): ten_of_10_us,
        ("record_param_comms allreduce", "forward"): ten_of_10_us,
    }
    assert {each.module for each in breakdown.operations} == {"Net.Linear"}


def test_one_of_several_gpus_is_chosen(tmp_path, capsys):
    events = []
    for number in range(20):
        events += product(10.0 * number, number, 1.0, device=number % 2)
    path = written(events, tmp_path / "trace.json")
    assert "has kernels of GPUs 0, 1; choose one with --trace-device" in refused(path, capsys)
    breakdown, gpu, _ = from_trace(path, gpu=0)
    assert sum(operation.time_ns for operation in breakdown.operations) == 10_000
    assert gpu.slug == "h100-sxm"
    said = refused(path, capsys, "--trace-device", "3")
    assert "has kernels of GPUs 0, 1; choose one with --trace-device" in said


# ---- what is said


def said_of(path, capsys, *words):
    assert main(["profile", "--from", str(path), "--no-save", "-q", *words]) == 0
    return capsys.readouterr().out.splitlines()


def busy(path, seconds_apart, forward=False):
    """Write 25 products of 3 us, of which the last 10 have no rule."""
    events = []
    for number in range(25):
        names = {}
        if number >= 15:
            names = {"name": f"moe_{number}", "title": "vllm::moe_forward"}
        events += product(seconds_apart * number, number, 3.0, **names)
    return written(events, path)


def test_the_idle_gpu_comes_first_and_short_kernels_are_not_memory_bound(tmp_path, capsys):
    lines = said_of(busy(tmp_path / "trace.json", 100.0), capsys)
    first = lines[lines.index("") + 1]
    assert first.startswith("The GPU was idle 96.")
    assert first.endswith("% of the time: launch-bound; try CUDA graphs or torch.compile.")
    [row] = [line for line in lines if line.startswith("aten.mm")]
    assert " latency " in row
    assert " memory " not in row


def test_pauses_of_the_host_are_no_launches(tmp_path, capsys):
    lines = said_of(busy(tmp_path / "trace.json", 1e5), capsys)
    assert lines[lines.index("") + 1] == "The GPU was idle 100% of the time."


def test_the_longest_kernel_of_a_call_decides_on_latency(tmp_path, capsys):
    events = product(0.0, 0, 30.0)
    for number in range(1, 4):
        events += [launch(number, number), kernel("reduce", 40.0 * number, 2.0, number)]
    lines = said_of(written(events, tmp_path / "trace.json"), capsys)
    [row] = [line for line in lines if line.startswith("aten.mm")]
    assert " memory " in row


def test_a_trace_of_another_machine_without_kernels_has_no_roofs(tmp_path, capsys):
    path = written([PRODUCT], tmp_path / "trace.json")
    assert main(["profile", "--from", str(path), "--no-save"]) == 0
    heard = capsys.readouterr()
    assert "calibrating" not in heard.err
    assert "not recorded on this machine: its roofs are unknown" in heard.err
    assert "MFU unknown" in heard.out
    assert "so --gpu has no effect; remove it" in refused(path, capsys, "--gpu", "h100-sxm")


def test_coverage_is_a_part_of_the_time(tmp_path, capsys):
    lines = said_of(busy(tmp_path / "trace.json", 3.0), capsys)
    assert not [line for line in lines if "launch-bound" in line]
    text = " ".join(" ".join(lines).split())
    assert "Rules cover 60% of the time in operations and kernels." in text
    assert "The other 40%, flagged unmodelled, counts as time but not as work" in text
    said = "If every operation with a rule, 60% of the time in operations and kernels, reached"
    assert said in text
    lines = said_of(tmp_path / "trace.json", capsys, "--by", "phase")
    [row] = [line.split() for line in lines if line.startswith("forward")]
    # 15 of 25 kernels of 3 us: 2 x 64^3 FLOPs each in the 45 us with a rule.
    assert row[-5:] == ["174.8", "G", "8.192", "G", "60%"]


@pytest.mark.parametrize("by", ["category", "kernel", "module"])
def test_groups_are_written_in_all_formats(by, tmp_path, capsys):
    words = ["profile", "--from", str(busy(tmp_path / "trace.json", 3.0)), "--no-save", "--by", by]
    assert main([*words, "--format", "json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    longest = {"category": ("matmul", 75e-6), "kernel": ("gemm", 45e-6), "module": ("all", 77e-6)}
    assert (groups[0][by], groups[0]["time_s"]) == (longest[by][0], pytest.approx(longest[by][1]))
    assert main([*words, "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [list(row) for row in rows] == [list(group) for group in groups]
    assert main([*words, "--format", "md"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[0].startswith(f"| {by} | calls | time | share |")
    assert len(lines) == 2 + len(groups)


def test_long_names_of_kernels_are_cut_in_tables_only(tmp_path, capsys):
    name = f"void at::native::kernel<{'float, ' * 200}>"
    events = [*product(10.0, 1, 9.0, name=name), kernel(name, 30.0, 1.0, 2)]
    path = written(events, tmp_path / "trace.json")
    assert max(map(len, said_of(path, capsys))) < 500
    rows = [line for line in said_of(path, capsys, "--by", "kernel") if line.startswith("void")]
    assert [row[97:102] for row in rows] == ["...  "]
    assert main(["profile", "--from", str(path), "--no-save", "--by", "kernel", *JSON]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert name in [group["kernel"] for group in groups]


def test_without_shapes_there_are_times_only(tmp_path, capsys):
    events = []
    for number in range(20):
        events.append(event("aten::mm", 10.0 * number, 5.0))
        events.append(launch(10.0 * number + 1, number))
        events.append(kernel("gemm", 10.0 * number + 2, 4.0, number))
    lines = said_of(written(events, tmp_path / "trace.json"), capsys)
    said = "It has no shapes; record it with record_shapes=True to see FLOPs and bytes."
    assert said in lines
    assert not [line for line in lines if "MFU" in line or "reached its roof" in line]
    [row] = [line for line in lines if line.startswith("aten.mm")]
    assert " 80 us " in row


def test_exposed_communication_is_told_from_hidden(tmp_path, capsys):
    events = []
    for number in range(20):
        begin = 30.0 * number
        events.append(event("c10d::allreduce_", begin, 5.0))
        events.append(launch(begin + 1, 2 * number))
        events.append(kernel("ncclDevKernel_AllReduce", begin + 2, 20.0, 2 * number, stream=8))
        events += product(begin + 5, 2 * number + 1, 15.0, start=begin + 12)
    lines = said_of(written(events, tmp_path / "trace.json"), capsys)
    said = "Communication between GPUs took 400 us: 200 us exposed, 200 us hidden by other kernels."
    assert said in lines
    text = "\n".join(lines)
    assert "The recorded time is 597 us; the times of its operations sum to 700 us." in text
    assert "reached its roof, the recording would take at most 497.1 us." in text
    # Of the 597 us from the first operation to the last kernel.
    [row] = [line for line in lines if line.startswith("c10d.allreduce_")]
    assert " 67.0% " in row


# ---- one step, rules, a GPU that is not in the table


def three_steps(path):
    """Write a trace whose host is two steps ahead of the GPU: each step runs 100 us there."""
    events = []
    for number in range(3):
        begin = 10.0 * number
        events.append(event(f"ProfilerStep#{number + 5}", begin, 10.0, "user_annotation"))
        events += product(begin + 1, number, 100.0, start=5.0 + 100 * number)
    return written(events, path)


def test_one_step_is_what_its_operations_launched(tmp_path):
    path = three_steps(tmp_path / "trace.json")
    for number in (6, 7):
        breakdown, _, _ = from_trace(path, step=number)
        [operation] = breakdown.operations
        assert operation.kernels == {"gemm": [100_000]}
        assert breakdown.samples_s == [pytest.approx(100e-6)]
        assert breakdown.gaps[""] == 0  # the GPU ran the step before


def test_kernels_of_other_steps_are_no_idle_time(tmp_path):
    path = three_steps(tmp_path / "trace.json")
    document = json.loads(path.read_text())
    late = [launch(2.5, 8), kernel("late", 110.0, 70.0, 8, stream=8)]  # launched in step 5
    last = [launch(13.0, 9), kernel("gemm", 215.0, 20.0, 9)]
    document["traceEvents"] = [*document["traceEvents"][:8], *late, *last]
    document["traceEvents"][7]["dur"] = 20.0
    path.write_text(json.dumps(document))
    breakdown, _, _ = from_trace(path, step=6)
    spent = {record.op: record.details.time_s for record in records_of(breakdown)}
    assert spent == {
        "aten.mm": pytest.approx(40e-6),
        "other-steps": pytest.approx(55e-6),
        "host-gap": pytest.approx(35e-6),
    }


def test_of_several_steps_the_mean_and_the_spread_are_said(tmp_path, capsys):
    path = three_steps(tmp_path / "trace.json")
    path.write_text(path.read_text().replace('"ts": 20.0, "dur": 10.0', '"ts": 20.0, "dur": 13.0'))
    said = "\n".join(said_of(path, capsys))
    assert "It has 3 steps, on the host 11 us in the mean (10 us to 13 us); --step N" in said
    assert "If every operation reached its roof, the recording would take" in said


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path, capsys):
    path = three_steps(tmp_path / "trace.json")
    assert "has no step 8; its steps: 5, 6, 7\n" in refused(path, capsys, "--step", "8")


RULES = """
import bench
from roofline.work import Work

def tokens(x, weight, scale):
    assert (scale, weight.dtype.itemsize) == (0.5, 2)
    return Work(2 * x.shape[0] * weight.numel(), x.nbytes + weight.nbytes, x.nbytes)

bench.declare_work("vllm::gemm", tokens, is_product=True)
"""


def custom(path):
    dims = {"Input Dims": [[128, 1024], [1024, 1024], []]}
    kinds = {"Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"]}
    numbers = {"Concrete Inputs": ["", "", "0.5"]}
    call = event("vllm::gemm", 10.0, 5.0, **dims, **kinds, **numbers)
    return written([call, launch(11.0, 1), kernel("gemm", 20.0, 10.0, 1)], path)


def test_rules_of_a_file_count_operations_of_libraries_that_are_not_installed(tmp_path, capsys):
    path = custom(tmp_path / "trace.json")
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    words = ["profile", "--from", str(path), "--no-save", "--format", "json"]
    for given, flops, flags in ((["--rules", str(rules)], 2**28, []), ([], None, ["unmodelled"])):
        assert main([*words, *given]) == 0
        rows = json.loads(capsys.readouterr().out)["records"]
        [row] = [row for row in rows if row["op"] == "vllm.gemm"]
        assert (row["flops"], row["matmul_flops"], row["flags"]) == (flops, flops, flags)
        assert row["case"] == "128x1024,1024x1024"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        (
            "import bench\nbench.declare_work('vllm::gemm', lambda x: 1)",
            "has vllm.gemm, whose rule",
        ),
        ("import bench\nbench.declare_work('mm', print)", "write namespace::name"),
    ],
)
def test_a_bad_file_of_rules_is_one_line(text, said, tmp_path, capsys):
    rules = tmp_path / "rules.py"
    rules.write_text(text)
    path = custom(tmp_path / "trace.json")
    assert said in refused(path, capsys, "--rules", str(rules))


def test_rules_without_an_end_are_stopped(tmp_path, capsys):
    path = custom(tmp_path / "trace.json")
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.replace("assert", "while 1: 0,"))
    said = refused(path, capsys, "--rules", str(rules), "--timeout", "0.5")
    assert "a call, or the import, did not end within 0.5 s; increase --timeout" in said


def test_a_time_limit_needs_code_that_it_limits(tmp_path, capsys):
    said = refused(custom(tmp_path / "trace.json"), capsys, "--timeout", "5")
    assert "--timeout limits your own code; it requires --rules" in said


def test_options_for_a_trace_are_rejected_without_one(capsys):
    assert main(["profile", "--model", "gpt2", "--step", "3", "--no-save"]) == 2
    assert "--step requires --from\n" in capsys.readouterr().err


def test_a_gpu_that_is_not_in_the_table_is_compared_with_its_like(tmp_path, capsys):
    oem = H100 | {"name": "NVIDIA H100 OEM"}
    path = written(product(0.0, 1, 10.0), tmp_path / "t.json", oem)
    assert main(["profile", "--from", str(path), "--no-save"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "'NVIDIA H100 OEM' is not in the GPU table: bandwidth is unknown" in shown
    assert (
        "use --gpu to name an entry (derived from its memory and SMs: h100-sxm or h800-sxm)"
        in shown
    )
    assert "0.0" not in shown


# ---- two traces


def saved_profile(tmp_path, name, kernels, gpu=H100):
    """Save the profile of a trace of three products and their kernels; return its file."""
    events = []
    for number, (title, duration) in enumerate(kernels):
        events += product(100.0 * number, number, duration, title=title)
    path = tmp_path / f"{name}.jsonl"
    events.append(shaped("aten::mm", 10.0, 9.0, [8, 8], [8, 8]))  # without a kernel
    trace = written(events, tmp_path / f"{name}.json", gpu)
    assert main(["profile", "--from", str(trace), "-o", str(path), "-q"]) == 0
    return str(path)


def test_two_profiles_are_compared_by_the_difference_in_time(tmp_path, capsys):
    before = saved_profile(tmp_path, "before", [("aten::mm", 50.0), ("aten::mul", 20.0)] * 2)
    a100 = H100 | {"name": "NVIDIA A100-SXM4-80GB"}
    after = saved_profile(tmp_path, "after", [("aten::mm", 10.0), ("aten::mul", 25.0)], a100)
    capsys.readouterr()
    assert results_command(["compare", before, after, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ops = [row for row in document["rows"] if row["op"].startswith("aten")]
    times = [(row["op"], row["baseline_s"], row["candidate_s"]) for row in ops]
    assert times == [
        ("aten.mm", pytest.approx(100e-6), pytest.approx(10e-6)),
        ("aten.mul", pytest.approx(40e-6), pytest.approx(25e-6)),
    ]
    assert ops[0]["difference_s"] == pytest.approx(-90e-6)
    assert (ops[0]["baseline_calls"], ops[0]["candidate_calls"]) == (2, 1)
    assert results_command(["compare", before, after, "--by", "category"]) == 0
    heard = capsys.readouterr()
    said = "the profiles are of two machines: NVIDIA H100 SXM5 80GB, NVIDIA A100-SXM4-80GB"
    assert said in heard.err
    [line] = [line for line in heard.out.splitlines() if line.startswith("matmul")]
    assert line.endswith(" -90 us (-90%)  2 -> 1")


@pytest.mark.parametrize("words", [["--margin", "2%"], ["--by", "git"]])
def test_options_of_verdicts_are_refused_for_two_profiles(words, tmp_path, capsys):
    path = saved_profile(tmp_path, "one", [("aten::mm", 50.0)])
    capsys.readouterr()
    assert results_command(["compare", path, path, *words]) == 2
    assert f"{words[0]} " in capsys.readouterr().err
