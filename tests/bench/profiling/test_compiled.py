"""Compiled steps: a row for each region, with its inputs and outputs."""

import shutil

import pytest
import torch
from torch import nn

import bench
from bench.harness.device.device import detect
from bench.profiling.step import ProfiledStep, account, compiled
from bench.profiling.target import target_of
from bench.profiling.tracing import timed


@pytest.fixture
def _without_code(monkeypatch):
    """Run each region as traced: generating and compiling code takes seconds."""

    def inner(graph, _, **options):
        def run(args):
            return graph(*args)

        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", inner)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def step_of(mode="backward"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU())
    return ProfiledStep(target_of("model", model, [torch.randn(8, 16)]), mode)


def check(step):
    eager = account(step)
    breakdown = timed(step, eager, detect("cpu"), left_s=0.0, is_compiled=True)
    regions = [
        operation for operation in breakdown.operations if operation.op.startswith("compiled.")
    ]
    assert [(region.op, region.phase) for region in regions] == [
        ("compiled.region0", "forward"),
        ("compiled.region1", "backward"),
    ]
    assert all(region.time_ns for region in regions)
    assert sum(region.matmul_flops for region in regions) == sum(
        one.matmul_flops for one in eager.operations
    )
    assert not {"aten.addmm", "aten.mm", "aten.gelu"} & {
        operation.op for operation in breakdown.operations
    }
    return breakdown, regions


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_without_code")
def test_a_region_has_the_bytes_of_its_inputs_and_outputs():
    breakdown, (forward, backward) = check(step_of())
    weight, bias, x, made = (4 * size for size in (16 * 32, 32, 8 * 16, 8 * 32))
    assert forward.bytes_read == weight + bias + x
    # The result, and the saved tensors of the backward pass.
    assert forward.bytes_written == 2 * made
    assert backward.bytes_written == weight + bias
    assert breakdown.eager_bytes > sum(operation.bytes_moved for operation in breakdown.operations)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_a_compiled_step_has_regions_and_totals():
    torch.compiler.reset()
    step = step_of()
    check(step)
    torch.compiler.reset()  # now the compiler's caches know all graphs
    found = bench.profile(step.target.function, *step.target.args, compile=True)
    assert found.totals["eager_bytes"] > found.totals["bytes_read"] + found.totals["bytes_written"]
    assert "Without fusion" in repr(found)


@pytest.mark.exhaustive
def test_two_shapes_are_compiled_one_after_the_other():
    model = torch.nn.Linear(8, 8)
    for rows in (4, 6):  # torch.compile makes the second shape dynamic unless told otherwise
        found = bench.profile(model, torch.randn(rows, 8), compile=True)
        assert found.totals["matmul_flops"] == 2 * rows * 8 * 8


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_without_code")
def test_a_sweep_of_shapes_is_compiled_to_its_end():
    model = torch.nn.Linear(8, 8)
    for rows in range(2, 12):  # torch stops after 8 compilations of the same code
        eager = account(ProfiledStep(target_of("model", model, [torch.randn(rows, 8)]), "forward"))
        step = ProfiledStep(target_of("model", model, [torch.randn(rows, 8)]), "forward")
        _, breakdown = compiled(step, eager)
        assert [operation.op for operation in breakdown.operations] == ["compiled.region0"]
