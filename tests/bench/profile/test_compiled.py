"""Compiled steps: a row for each region, with what goes in and out of it, and what was fused has none of its own."""

import shutil

import pytest
import torch
from torch import nn

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import detect
from bench.harness.profile.account import Call
from bench.harness.profile.join import joined
from bench.harness.profile.profiling import account, compiled, profile, timed
from bench.harness.profile.recording import read_trace
from bench.harness.profile.step import STEP, ProfiledStep
from bench.harness.profile.target import target_of


@pytest.fixture
def _without_code(monkeypatch):
    """Let each region run as it was traced: generating code and compiling it takes seconds."""

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
    accounted, timing = compiled(step, eager, detect("cpu"), left_s=0.0)
    regions = [call for call in accounted.calls if call.op.startswith("compiled.")]
    assert [(call.op, call.phase) for call in regions] == [
        ("compiled.region0", "forward"),
        ("compiled.region1", "backward"),
    ]
    assert sum(call.matmul_flops for call in regions) == sum(call.matmul_flops for call in eager.calls)
    assert not [call for call in accounted.calls if call.op in ("aten.addmm", "aten.mm", "aten.gelu")]
    assert all(times.parts() == times.step for times in timing.steps)
    return accounted, timing, regions


@pytest.mark.usefixtures("_without_code")
def test_a_region_is_a_row_with_the_bytes_of_its_own_inputs_and_outputs():
    step = step_of()
    accounted, _, (forward, backward) = check(step)
    weight, bias, x, made = (4 * size for size in (16 * 32, 32, 8 * 16, 8 * 32))
    assert forward.bytes_read == weight + bias + x
    assert forward.bytes_written == 2 * made  # the result, and what the backward pass needs
    assert backward.bytes_written == weight + bias
    assert accounted.eager_bytes > sum(call.bytes_read + call.bytes_written for call in accounted.calls)
    assert step.target.function(*step.target.args).shape == (8, 32)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_a_step_that_is_really_compiled_has_its_regions_and_its_totals():
    torch.compiler.reset()
    step = step_of()
    check(step)
    found = profile(step.target.function, *step.target.args, compile=True)
    assert found.totals["eager_bytes"] > found.totals["bytes_read"] + found.totals["bytes_written"]
    assert "Where nothing is fused" in repr(found)


def test_a_region_takes_all_that_happens_in_it():
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": dur, "pid": 1, "tid": 1}
        for name, cat, begin, dur in (
            (STEP, "user_annotation", 0.0, 100.0),
            ("compiled::region0", "user_annotation", 10.0, 40.0),
            ("aten::addmm", "cpu_op", 15.0, 20.0),
            ("## Call CompiledFxGraph f1 ##", "user_annotation", 60.0, 30.0),
            ("aten::exp", "cpu_op", 65.0, 10.0),
        )
    ]
    region, exp = (Call(op, (), "", (), "", "forward", 1, 1, 4, 4, True) for op in ("compiled.region0", "aten.exp"))
    (times,) = joined([region, exp], read_trace({"traceEvents": events}))
    assert times.calls == {0: 40_000, 1: 10_000}
    assert times.unattributed == {"## Call CompiledFxGraph f1 ##": 20_000}  # compiled by the user, not by us
    assert times.gaps == {"": 30_000}


def test_what_the_user_compiled_is_not_compiled_again_by_recording_it():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    plain = step_of("forward").target
    step = ProfiledStep(target_of("model", torch.compile(plain.function, backend=backend), plain.args), "forward")
    step()
    assert len(graphs) == 1
    accounted = account(step)
    timed(step, accounted, detect("cpu"), left_s=0.0)
    assert len(graphs) == 1
    assert {call.module for call in accounted.calls if call.flops} == {"0", "1"}


def test_a_compiled_step_is_not_replayed():
    with pytest.raises(UsageError, match="one of the two"):
        profile(torch.exp, torch.ones(3), compile=True, replay=True)


@pytest.mark.parametrize("is_gone", [True, False], ids=["another name", "another parameter"])
def test_a_torch_whose_compiler_cannot_be_watched_is_named_in_one_line(monkeypatch, is_gone):
    import torch._inductor.compile_fx as module

    if is_gone:
        monkeypatch.delattr(module, "compile_fx_inner")
    else:
        monkeypatch.setattr(module, "compile_fx", lambda graph, inputs: graph)
    step = step_of()
    with pytest.raises(UsageError, match=r"regions cannot be watched: torch \S+ has another hook"):
        compiled(step, account(step), detect("cpu"), left_s=0.0)
