"""Traces written by hand, of a CPU and of a GPU: which operation gets which time, and that nothing
is lost.

The GPU's is in the form that torch.profiler exports; no GPU has recorded one yet.
"""

import pytest

from bench.profiling.operation import MODULE, STEP, TAG, Breakdown, Operation
from bench.profiling.records import records_of
from bench.profiling.tracing import divide


def event(name, begin, duration, category="cpu_op", thread=1, **details):
    base = {"ph": "X", "cat": category, "pid": 9, "tid": thread, "args": details}
    return base | {"name": name, "ts": begin, "dur": duration}


def tag(index, name, begin, duration, thread=1):
    return event(f"{TAG}{index} aten.{name}", begin, duration, thread=thread)


def launch(begin, correlation, thread=1):
    return event("cudaLaunchKernel", begin, 1.0, "cuda_runtime", thread, correlation=correlation)


def operation(name, module="", phase="forward"):
    return Operation(f"aten.{name}", "4x4,4x4", ("float32",), module, phase, 8, 8, 16, 4)


@pytest.fixture
def breakdown():
    operations = [operation("mm", "layers.0"), operation("add"), operation("mm", "layers.1")]
    return Breakdown(operations, samples_s=[70.5e-6])


def times(breakdown):
    return [operation.time_ns for operation in breakdown.operations]


ON_CPU = [
    event(STEP, 100.0, 100.5, "user_annotation"),
    event(MODULE + "layers.0", 105.0, 40.0, "user_annotation"),
    event("aten::linear", 109.0, 20.0),
    event("aten::mm", 110.0, 18.0),
    event("PythonDispatchMode", 110.5, 17.0),
    tag(0, "mm", 112.0, 14.0),
    event("aten::mm", 113.0, 10.25),
    event("aten::copy_", 115.0, 5.0),
    tag(1, "add", 150.0, 3.0),
    event("aten::add_", 150.0, 3.0),
    tag(2, "mm", 160.0, 20.0),
    event("aten::mm", 160.0, 20.0),
    event("aten::rsqrt", 185.0, 4.0),
]


def test_cpu_time_goes_to_tagged_operations(breakdown):
    divide(breakdown, {"traceEvents": ON_CPU})
    # What a product copies within itself is its own, and so is the way to it through
    # `aten::linear`.
    assert times(breakdown) == [12_250, 3_000, 20_000]
    assert breakdown.unattributed == {"aten::rsqrt": [4_000]}
    assert breakdown.gaps == {"": 100_500 - 40_000 - 27_000, "layers.0": 20_000}
    assert breakdown.duration_ns == 100_500 - 7_750


def test_an_uncounted_operation_is_unattributed(breakdown):
    events = [
        event(STEP, 100.0, 50.0, "user_annotation"),
        tag(0, "sin", 110.0, 5.0),
        event("aten::sin", 111.0, 3.0),
    ]
    divide(
        breakdown,
        {"traceEvents": [*events, tag(3, "cos", 120.0, 5.0), event("aten::cos", 121.0, 4.001)]},
    )
    assert times(breakdown) == [0, 0, 0]
    # Rounding made it longer than its tag.
    assert breakdown.unattributed == {"aten::sin": [3_000], "aten::cos": [4_000]}


def test_autograd_time_belongs_to_the_module_of_its_node(breakdown):
    events = [
        event(STEP, 100.0, 50.0, "user_annotation"),
        event("autograd::engine::evaluate_function: MmBackward0", 110.0, 30.0),
        event("MmBackward0", 111.0, 25.0),
        tag(0, "mm", 112.0, 20.0),
        event("aten::mm", 112.0, 20.0),
    ]
    divide(breakdown, {"traceEvents": events})
    assert (times(breakdown)[0], breakdown.gaps) == (20_000, {"": 20_000, "layers.0": 10_000})


def test_a_compiled_region_includes_all_operations_in_it():
    events = [
        event(STEP, 100.0, 100.0, "user_annotation"),
        event(f"{TAG}0 compiled.region0", 110.0, 40.0),
        event("## Call CompiledFxGraph f0 ##", 110.0, 40.0),
        event("aten::addmm", 115.0, 20.0),
        event("## Call CompiledFxGraph f1 ##", 160.0, 30.0),
        tag(1, "exp", 165.0, 10.0),
        event("aten::exp", 165.0, 10.0),
    ]
    breakdown = Breakdown([Operation("compiled.region0"), operation("exp")], samples_s=[1e-4])
    divide(breakdown, {"traceEvents": events})
    assert times(breakdown) == [40_000, 0]
    # Compiled by the user, not by us.
    assert breakdown.unattributed == {"## Call CompiledFxGraph f1 ##": [20_000, 10_000]}
    assert breakdown.gaps == {"": 30_000}


def test_operations_and_remainders_sum_to_the_recorded_step(breakdown):
    divide(breakdown, {"traceEvents": ON_CPU})
    records = records_of(breakdown)
    assert sum(record.details.time_s for record in records) == pytest.approx(92.75e-6, rel=1e-12)
    spent = {(record.op, record.details.module): record.details.time_s for record in records}
    overhead, gap = 92.75e-6 - 70.5e-6, 53.5e-6
    assert spent["profiler-overhead", ""] == pytest.approx(overhead)
    # Its part of it.
    assert spent["host-gap", "layers.*"] == pytest.approx(20e-6 * (1 - overhead / gap), abs=1e-9)
    product = next(record for record in records if record.op == "aten.mm")
    assert (product.count, product.details.module, product.flops) == (2, "layers.*", 16)
    assert product.median_s == pytest.approx(32.25e-6)


def test_the_report_is_of_the_step_nearest_to_the_unprofiled_time(breakdown):
    later = [recorded | {"ts": recorded["ts"] + 1000.0} for recorded in ON_CPU]
    later[0]["dur"] = 90.5
    for expected_s, duration_ns in ((80e-6, 82_750), (95e-6, 92_750)):
        breakdown = Breakdown([Operation("aten.mm")], samples_s=[expected_s])
        divide(breakdown, {"traceEvents": [*ON_CPU, *later]})
        assert breakdown.duration_ns == duration_ns


ON_GPU = [
    event(STEP, 100.0, 100.0, "user_annotation"),
    tag(0, "mm", 101.0, 5.0),
    launch(102.0, 1),
    tag(1, "add", 110.0, 5.0),
    launch(111.0, 2),
    tag(2, "mm", 120.0, 5.0, thread=2),
    launch(121.0, 3, thread=2),
    launch(130.0, 4),
    event("gemm", 90.0, 15.0, "kernel", 7, correlation=1),  # of the step before
    event("gemm", 120.0, 20.0, "kernel", 7, correlation=1),
    event("add_kernel", 130.0, 20.0, "kernel", 8, correlation=2),
    event("gemm", 160.0, 10.0, "kernel", 7, correlation=3),
    event("my_triton_kernel", 175.0, 5.0, "kernel", 7, correlation=4),
]


def test_gpu_time_is_kernel_time_and_overlaps_count_once(breakdown):
    divide(breakdown, {"traceEvents": ON_GPU})
    # The last one was launched by autograd's thread.
    assert times(breakdown) == [20_000, 10_000, 10_000]
    assert [operation.kernels for operation in breakdown.operations] == [
        {"gemm": [20_000]},
        {"add_kernel": [10_000]},
        {"gemm": [10_000]},
    ]
    assert breakdown.duration_ns == 100_000
    unattributed = next(
        record.details for record in records_of(breakdown) if record.op == "unattributed"
    )
    assert (unattributed.kernels, unattributed.kernels_s) == (
        ("my_triton_kernel",),
        pytest.approx((5e-6,)),
    )
