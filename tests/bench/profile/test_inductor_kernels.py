"""Triton kernels of compiled steps, and of users' operations, in traces of a GPU written by hand.

The events around launches have the form that this torch exports (held by a recording); no GPU has recorded one yet.
"""

import io
import json
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from bench.harness.profile import show
from bench.harness.profile.account import Accounted, Call, accounted
from bench.harness.profile.compiled import Compiler, still_called
from bench.harness.profile.counts import RULES, declare_work
from bench.harness.profile.inductor import KernelLaunch, launch_of
from bench.harness.profile.join import joined
from bench.harness.profile.recording import read_trace
from bench.harness.profile.report import Timing, records_of, scores_of, totals_of
from bench.harness.profile.step import STEP, ProfiledStep
from bench.harness.profile.target import target_of
from results.record import Environment
from roofline.ceilings import Ceiling, Ceilings
from roofline.plot.figure import run_machine
from roofline.plot.scene import build_scene
from roofline.work import Work

SOURCE = """\
@triton_heuristics.persistent_reduction(
    inductor_meta={'kernel_name': 'triton_per_fused_add_gelu_sum_0', 'kernel_num_gb': 8.576e-06, 'kernel_flop': 0}
)
@triton.jit
def triton_per_fused_add_gelu_sum_0(in_ptr0, in_ptr1, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 64
"""
"""As inductor generates it for `gelu(x + y).sum(1)` with 64x32 and 32 elements: 8,192 + 128 + 256 bytes."""


@pytest.fixture
def details(tmp_path):
    """What the event around a launch of that kernel holds."""
    file = tmp_path / "kernel.py"
    file.write_text(SOURCE)
    types = ["float", "float", "float", "Scalar", "Scalar"]
    shapes = {"Input Dims": [[64, 32], [32], [64], [], []], "Input type": types}
    return shapes | {
        "kernel_backend": "triton",
        "kernel_file": str(file),
        "kernel_num_gb": 8.576e-06,
        "kernel_flop": 0,
    }


NAME = "triton_per_fused_add_gelu_sum_0"


def test_a_launch_declares_what_it_reads_and_writes(details):
    assert launch_of(NAME, details) == KernelLaunch(NAME, "64x32,32,64", ("float32",), 0, 8320, 256)
    assert launch_of("aten::add", {"Input Dims": [[3]], "Input type": ["float"]}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kernel_num_gb": None},
        {"kernel_num_gb": float("nan")},
        {"kernel_num_gb": "much"},
        {"kernel_num_gb": -1},
        {"kernel_file": "/nowhere"},
        {"kernel_file": "\0"},
        {"kernel_file": json.__file__},
        {"Input type": ["float", "float", "strange", "Scalar", "Scalar"]},
    ],
)
def test_what_is_not_declared_is_not_made_up(details, change):
    found = launch_of(NAME, details | change)
    assert (found.bytes_read, found.bytes_written) == (None, None)


def test_what_is_written_in_place_is_read_too(details, tmp_path):
    (tmp_path / "other.py").write_text(SOURCE.replace("in_ptr0", "in_out_ptr0").replace("out_ptr0, x", "in_ptr2, x"))
    found = launch_of(NAME, details | {"kernel_file": str(tmp_path / "other.py"), "kernel_num_gb": 20000e-9})
    assert (found.bytes_read, found.bytes_written) == (20000 - 8192, 8192)


def test_a_recording_of_this_torch_has_the_form_that_is_read(details, tmp_path):
    x, y = torch.ones(64, 32), torch.ones(32)
    own = {name: value for name, value in details.items() if name.startswith("kernel_")}
    launch = torch._C._profiler._RecordFunctionFast(NAME, [x, y, torch.empty(64), 64, 32], own | {"stream": 0})
    with torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded, launch:
        x.sum()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    roots = read_trace(json.loads((tmp_path / "trace.json").read_text())).roots
    (event,) = [root for root in roots if root.name == NAME]
    assert event.launch == KernelLaunch(NAME, "64x32,32,64", ("float32",), 0, 8320, 256)


GENERATING = """
import sys, torch, torch._inductor.config as config, triton
from triton.backends.compiler import GPUTarget
class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
triton.runtime.driver.set_active(Driver())
config.cpu_backend, config.benchmark_kernel, config.fx_graph_cache, config.compile_threads = "triton", True, False, 1
from torch._inductor.codegen.triton import TritonScheduling
real = TritonScheduling.define_kernel
def define(self, source, *others, **more):
    print(source.replace("Placeholder.KERNEL_NAME", "kernel"))
    return real(self, source, *others, **more)
TritonScheduling.define_kernel = define
try:
    torch.compile(lambda x, y: torch.nn.functional.gelu(x + y).sum(1))(torch.ones(64, 32), torch.ones(32))
except Exception as error:
    print(error, file=sys.stderr)  # there is nothing to compile it for
"""


@pytest.mark.exhaustive
def test_the_source_that_this_torch_generates_is_read(details, tmp_path):
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", GENERATING], capture_output=True, text=True, timeout=120, check=True)
    if "def kernel(" not in done.stdout:
        pytest.skip(f"this torch generates no Triton code without a GPU: {done.stderr[-200:]}")
    (tmp_path / "generated.py").write_text(done.stdout)
    assert "'kernel_num_gb': 8.576e-06" in done.stdout
    found = launch_of(NAME, details | {"kernel_file": str(tmp_path / "generated.py")})
    assert (found.bytes_read, found.bytes_written) == (8320, 256)


# ---- a compiled step -----------------------------------------------------------------------------------------------


def event(name, begin, duration, category="cpu_op", thread=1, **args):
    times = {"ts": begin, "dur": duration, "pid": 9, "tid": thread}
    return {"ph": "X", "cat": category, "name": name, "args": args} | times


@pytest.fixture
def compiled_trace(details):
    """A region that launches a kernel of inductor's twice and a product between them."""
    return [
        event(STEP, 100.0, 100.0, "user_annotation"),
        event("compiled::region0", 101.0, 40.0, "user_annotation"),
        event(NAME, 102.0, 3.0, **details),
        event("cuLaunchKernelEx", 103.0, 1.0, "cuda_driver", correlation=1),
        event("aten::mm", 110.0, 5.0),
        event("cudaLaunchKernel", 111.0, 1.0, "cuda_runtime", correlation=2),
        event(NAME, 120.0, 3.0, **details),
        event("cuLaunchKernelEx", 121.0, 1.0, "cuda_driver", correlation=3),
        event(NAME, 130.0, 3.0, thread=3, **details),  # of something that the user compiled
        event("cuLaunchKernelEx", 131.0, 1.0, "cuda_driver", thread=3, correlation=4),
        event(NAME, 110.0, 10.0, "kernel", 7, correlation=1),
        event("gemm", 120.0, 30.0, "kernel", 7, correlation=2),
        event(NAME, 150.0, 12.0, "kernel", 7, correlation=3),
        event(NAME, 170.0, 4.0, "kernel", 7, correlation=4),
    ]


REGION = Call("compiled.region0", (), "mm gelu", ("float32",), "", "forward", 9000, 8000, 6000, 3000, True)
EAGER = Call("aten.mm", (((8, 8), "float"),), "8x8", ("float32",), "", "forward", 8000, 8000, 1, 1, True)
CEILINGS = Ceilings(
    "gpu",
    "A GPU",
    (Ceiling("flops", "fp32", 1e12, "measured", ""), Ceiling("bandwidth", "copy", 1e9, "measured", "")),
)
ENVIRONMENT = Environment(
    run_id="20261120T210312Z-0123456789",
    started_at="2026-11-20T21:03:12+00:00",
    argv=("python", "-m", "bench", "profile"),
    device={"slug": "gpu", "name": "A GPU", "type": "cuda"},
    versions={"python": "3.11.9", "torch": "2.13.0"},
    hardware=CEILINGS.to_dict(),
)


def compiled_step(trace):
    called, steps = still_called(
        Accounted([EAGER, REGION], 5000), joined([EAGER, REGION], read_trace({"traceEvents": trace}))
    )
    timing = Timing([100e-6], steps)
    return called, timing, records_of(called, timing, "torch")


def test_each_triton_kernel_of_a_region_is_a_row_with_its_declared_bytes(compiled_trace):
    called, timing, records = compiled_step(compiled_trace)
    assert timing.steps[0].parts() == timing.steps[0].step
    assert [call.op for call in called.calls] == ["compiled.region0"]
    by_op = {record.op: record for record in records}
    kernel, region = by_op[NAME], by_op["compiled.region0"]
    assert (kernel.extra["count"], kernel.extra["within"], kernel.extra["phase"]) == (2, "compiled.region0", "forward")
    assert (kernel.bytes_read, kernel.bytes_written, kernel.flops) == (2 * 8320, 2 * 256, 0)
    assert (kernel.flags, kernel.case) == (("declared-by-inductor",), "64x32,32,64")
    assert kernel.extra["time_s"] == pytest.approx(22e-6)
    assert (region.extra["time_s"], region.extra["region_s"]) == (pytest.approx(30e-6), pytest.approx(52e-6))
    assert region.median_s == pytest.approx(52e-6)
    assert by_op["unattributed"].extra["time_s"] == pytest.approx(4e-6)
    assert sum(record.extra["time_s"] for record in records) == pytest.approx(100e-6, rel=1e-12)


def test_totals_of_a_compiled_step_count_the_region_once(compiled_trace):
    called, timing, records = compiled_step(compiled_trace)
    totals = totals_of(ENVIRONMENT, records, called, timing)
    assert (totals["bytes_read"], totals["bytes_written"], totals["flops"]) == (6000, 3000, 9000)
    assert totals["in_operations"] == pytest.approx(0.52)
    scores = {record.op: score for record, score in zip(records, scores_of(ENVIRONMENT, records), strict=True)}
    assert scores["compiled.region0"]["roofline_pct"] == pytest.approx(100 * 9 / 52, rel=1e-3)
    assert (scores[NAME]["bound"], scores[NAME]["roofline_pct"]) == (
        "memory",
        pytest.approx(100 * 17.152 / 22, rel=1e-3),
    )
    # The region at its roof takes 9 us, its kernels are part of it; the rest takes as long as it does.
    assert totals["at_roof_s"] == pytest.approx((9 + 4 + 44) * 1e-6, rel=1e-3)


def test_a_kernel_without_declared_bytes_has_its_time_and_no_work(compiled_trace):
    for one in compiled_trace:
        one["args"].pop("kernel_num_gb", None)
    _, _, records = compiled_step(compiled_trace)
    kernel = next(record for record in records if record.op == NAME)
    assert (kernel.bytes_read, kernel.flops, kernel.flags) == (None, None, ("unmodelled",))
    assert kernel.extra["time_s"] == pytest.approx(22e-6)


def test_a_region_of_triton_kernels_alone_is_a_row_still(compiled_trace):
    _, _, records = compiled_step([one for one in compiled_trace if one["name"] != "gemm"])
    region = next(record for record in records if record.op == "compiled.region0")
    assert (region.status, region.extra["time_s"], region.extra["region_s"]) == ("ok", 0, pytest.approx(22e-6))


def test_the_picture_has_the_whole_region_and_not_its_kernels_again(compiled_trace):
    _, _, records = compiled_step([one for one in compiled_trace if one["name"] != "gemm"])
    scene = build_scene([run_machine(ENVIRONMENT, records)], ["fp32"])
    assert [(point.record.op, point.share) for point in scene.points] == [("compiled.region0", pytest.approx(0.22))]
    assert scene.left_out["in a compiled region"] == 1


@pytest.mark.parametrize("width", [80, 160])
def test_kernels_are_shown_below_what_the_whole_region_took(compiled_trace, width):
    called, timing, records = compiled_step(compiled_trace)
    console = Console(file=io.StringIO(), width=width)
    show.render(ENVIRONMENT, records, totals_of(ENVIRONMENT, records, called, timing), console)
    text = console.file.getvalue()
    assert "with its Triton kernels 52.00 us" in text
    assert any(line.startswith("fused kernels") and "22.0%" in line for line in text.splitlines())
    table = text[text.index("op ") :].splitlines()
    assert all(len(line) <= width for line in table)
    console = Console(file=io.StringIO(), width=width)
    show.render(ENVIRONMENT, records, totals_of(ENVIRONMENT, records, called, timing), console, by="kernel")
    assert any(line.startswith(NAME) and "26.00 us" in line for line in console.file.getvalue().splitlines())


def test_kernels_declare_their_bytes_where_they_are_compiled_for_a_gpu():
    import torch._inductor.config as config

    compiler = Compiler()
    for is_gpu in (False, True):
        compiler.on_gpu = is_gpu
        with compiler._declaring():
            assert config.benchmark_kernel is is_gpu


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
