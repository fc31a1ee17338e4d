"""Traces written by hand, of a CPU and of a GPU: which call gets which time, and that nothing is lost.

The GPU's is in the form that torch.profiler exports; no GPU has recorded one yet.
"""

from dataclasses import replace

import pytest
import torch

from bench.harness.profile.account import Accounted, Call, accounted
from bench.harness.profile.counts import RULES, declare_work
from bench.harness.profile.join import joined
from bench.harness.profile.recording import Kernel, busy, read_trace
from bench.harness.profile.report import HOST_GAP, OVERHEAD, UNATTRIBUTED, Timing, pattern, records_of
from bench.harness.profile.step import MODULE, STEP, ProfiledStep
from bench.harness.profile.target import target_of
from roofline.work import Work


def event(name, begin, duration, category="cpu_op", thread=1, **details):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin,
        "dur": duration,
        "pid": 9,
        "tid": thread,
        "args": details,
    }


def op(name, begin, duration, *shapes, thread=1):
    given = {"Input Dims": [list(shape) for shape in shapes], "Input type": ["float"] * len(shapes)}
    return event(f"aten::{name}", begin, duration, thread=thread, **given)


def call(name, *shapes, module="", phase="forward"):
    operands = tuple((shape, "float") for shape in shapes)
    return Call(f"aten.{name}", operands, str(shapes), ("float32",), module, phase, 8, 8, 16, 4, True)


MM = (4, 4), (4, 4)
CALLS = [call("mm", *MM, module="layers.0"), call("add", (4, 4)), call("mm", *MM, module="layers.1")]
ON_CPU = [
    event(STEP, 100.0, 100.5, "user_annotation"),
    event(MODULE + "layers.0", 105.0, 40.0, "user_annotation"),
    op("linear", 110.0, 12.0, *MM),
    op("mm", 111.0, 10.25, *MM),
    op("copy_", 112.0, 5.0, (4, 4), (4, 4)),
    op("add_", 150.0, 3.0, (4, 4)),
    op("mm", 160.0, 20.0, *MM),
    op("rsqrt", 185.0, 4.0, (4,)),
]


def test_time_on_a_cpu_goes_to_the_call_of_the_same_kind_in_the_same_turn():
    (times,) = joined(CALLS, read_trace({"traceEvents": ON_CPU}))
    # What a product copies within itself is its own, and so is the way to it through `aten::linear`.
    assert times.calls == {0: 12_000, 1: 3_000, 2: 20_000}
    assert times.unattributed == {"aten::rsqrt": 4_000}
    assert times.gaps == {"": 100_500 - 40_000 - 27_000, "layers.0": 28_000}
    assert times.parts() == times.step == 100_500


def test_the_host_time_of_autograd_belongs_to_the_module_of_its_node():
    calls = [call("mm", *MM, module="layers.0", phase="backward")]
    events = [
        event(STEP, 100.0, 50.0, "user_annotation"),
        event("autograd::engine::evaluate_function: MmBackward0", 110.0, 30.0),
        event("MmBackward0", 111.0, 25.0),
        op("mm", 112.0, 20.0, *MM),
    ]
    (times,) = joined(calls, read_trace({"traceEvents": events}))
    assert (times.calls, times.gaps) == ({0: 20_000}, {"": 20_000, "layers.0": 10_000})


def test_a_call_is_taken_once_and_children_that_rounding_made_longer_end_with_their_parents():
    events = [
        event(STEP, 100.0, 50.0, "user_annotation"),
        op("add_", 110.0, 5.0, (4, 4)),
        op("add", 120.0, 30.001, (4, 4)),
    ]
    (times,) = joined([call("add", (4, 4))], read_trace({"traceEvents": events}))
    assert (times.calls, times.unattributed) == ({0: 5_000}, {"aten::add": 30_000})
    assert times.parts() == times.step


def test_a_call_of_other_shapes_is_another_call_whatever_its_turn():
    events = [
        event(STEP, 100.0, 50.0, "user_annotation"),
        op("add_", 110.0, 5.0, (2, 2)),
        op("add", 120.0, 10.0, (4, 4)),
    ]
    (times,) = joined([call("add", (4, 4))], read_trace({"traceEvents": events}))
    assert (times.calls, times.unattributed) == ({0: 10_000}, {"aten::add_": 5_000})


def test_remainders_and_operations_sum_to_the_recorded_step():
    steps = joined(CALLS, read_trace({"traceEvents": ON_CPU}))
    timing = Timing([80.5e-6], steps)
    rest = timing.remainders_ns(0)
    assert sum(spent for (name, _), spent in rest.items() if name == HOST_GAP) == 61_500 - 20_000
    assert abs(rest[HOST_GAP, "layers.*"] - 28_000 * 41_500 / 61_500) < 1  # each gap has its part of the overhead
    assert (rest[UNATTRIBUTED, ""], rest[OVERHEAD, ""]) == (4_000, 20_000)
    records = records_of(Accounted(CALLS, 0), timing, "torch")
    assert sum(record.extra["time_s"] for record in records) == pytest.approx(100.5e-6, rel=1e-12)
    product = next(record for record in records if record.op == "aten.mm")
    assert (product.extra["count"], product.extra["module"], product.flops) == (2, "layers.*", 16)
    assert product.median_s == pytest.approx(32e-6)


def test_the_report_is_of_the_step_that_took_most_nearly_as_long_as_without_a_profiler():
    later = [one | {"ts": one["ts"] + 1000.0} for one in ON_CPU]
    later[0]["dur"] = 90.5
    steps = joined(CALLS, read_trace({"traceEvents": [*ON_CPU, *later]}))
    assert [step.step for step in steps] == [100_500, 90_500]
    timing = Timing([88e-6], steps)
    assert timing.chosen == 1
    assert sum(one.extra["time_s"] for one in records_of(Accounted(CALLS), timing, "torch")) == pytest.approx(90.5e-6)
    assert Timing([99e-6], steps).chosen == 0


def test_a_call_without_a_rule_has_no_work_in_its_record():
    calls = [replace(CALLS[0], is_modelled=False), *CALLS[1:]]
    timing = Timing([80.5e-6], joined(calls, read_trace({"traceEvents": ON_CPU})))
    assert None in [
        record.flops for record in records_of(Accounted(calls, 0), timing, "torch") if record.op == "aten.mm"
    ]


ON_GPU = [
    event(STEP, 100.0, 100.0, "user_annotation"),
    op("mm", 101.0, 5.0, *MM),
    event("cudaLaunchKernel", 102.0, 1.0, "cuda_runtime", correlation=1),
    op("add", 110.0, 5.0, (4, 4)),
    event("cudaLaunchKernel", 111.0, 1.0, "cuda_runtime", correlation=2),
    op("mm", 120.0, 5.0, *MM, thread=2),
    event("cuLaunchKernel", 121.0, 1.0, "cuda_driver", thread=2, correlation=3),
    event("cuLaunchKernel", 130.0, 1.0, "cuda_driver", correlation=4),
    event("gemm", 90.0, 15.0, "kernel", 7, correlation=1),  # of the step before
    event("gemm", 120.0, 20.0, "kernel", 7, correlation=1),
    event("add_kernel", 130.0, 20.0, "kernel", 8, correlation=2),
    event("gemm", 160.0, 10.0, "kernel", 7, correlation=3),
    event("my_triton_kernel", 175.0, 5.0, "kernel", 7, correlation=4),
]


def test_time_on_a_gpu_is_that_of_kernels_by_their_launches_and_overlaps_count_once():
    (times,) = joined(CALLS, read_trace({"traceEvents": ON_GPU}))
    assert times.calls == {0: 20_000, 1: 10_000, 2: 10_000}  # the last one was launched by autograd's thread
    assert times.kernels == {0: ["gemm"], 1: ["add_kernel"], 2: ["gemm"]}
    assert times.unattributed == {"my_triton_kernel": 5_000}
    assert times.parts() == times.step == 100_000


def test_kernels_that_overlap_are_a_union():
    spans = [(0, 10), (2, 5), (8, 20), (30, 31)]
    assert [spent for _, spent in busy([Kernel("", *span, None) for span in spans])] == [10, 0, 10, 1]


def test_numbers_of_layers_are_left_out_of_a_path():
    assert pattern("model.layers.11.mlp.up2") == "model.layers.*.mlp.up2"
    assert (pattern("layers.3"), pattern("0.2"), pattern("")) == ("layers.*", "0.2", "")


# ---- a Triton kernel of a user's -----------------------------------------------------------------------------------


@pytest.fixture
def own_step():
    @torch.library.triton_op("ridgepoint_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    declare_work("ridgepoint_test::scaled", lambda x: Work(3 * x.numel(), 4000, 2000))
    yield ProfiledStep(target_of("step", lambda x: scaled(x).exp(), [torch.ones(8, 16)]), "forward")
    RULES.clear()


def test_a_users_kernel_has_its_time_and_the_work_that_was_declared(own_step):
    given = {"Input Dims": [[8, 16]], "Input type": ["float"]}
    trace = [
        event(STEP, 100.0, 100.0, "user_annotation"),
        event("ridgepoint_test::scaled", 101.0, 10.0, **given),
        event("cuLaunchKernel", 105.0, 1.0, "cuda_driver", correlation=11),
        event("aten::exp", 120.0, 10.0, **given),
        event("cudaLaunchKernel", 121.0, 1.0, "cuda_runtime", correlation=12),
        event("cuLaunchKernel", 140.0, 1.0, "cuda_driver", correlation=13),
        event("scaled_kernel", 130.0, 20.0, "kernel", 7, correlation=11),
        event("exp_kernel", 150.0, 10.0, "kernel", 7, correlation=12),
        event("bare_kernel", 170.0, 5.0, "kernel", 7, correlation=13),
        event("other_kernel", 180.0, 7.0, "kernel", 7, correlation=14),
    ]
    found = accounted(own_step)
    timing = Timing([100e-6], joined(found.calls, read_trace({"traceEvents": trace})))
    by_op = {record.op: record for record in records_of(found, timing, "torch")}
    own = by_op["ridgepoint_test.scaled"]
    assert (own.flops, own.bytes_read, own.bytes_written, own.flags) == (3 * 128, 4000, 2000, ())
    assert (own.extra["kernels"], own.extra["time_s"]) == (["scaled_kernel"], pytest.approx(20e-6))
    # What is launched outside of any operation has its time and its name.
    nobodys = by_op["unattributed"].extra
    assert (nobodys["kernels"], nobodys["time_s"]) == (["other_kernel", "bare_kernel"], pytest.approx(12e-6))
    assert nobodys["kernels_s"] == pytest.approx([7e-6, 5e-6])
