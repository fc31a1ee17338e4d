"""`python -m bench tune` from its words to the kept file, with the interpreter in the place of a GPU."""

import json
from dataclasses import replace

import pytest

from bench.__main__ import main
from bench.harness.calibrate.search import Trial
from bench.harness.commands import tune
from bench.harness.timing.protocol import CPU_LIMITS, collect
from bench.harness.timing.samplers import HostSampler
from kernels import precompile
from kernels.matmul import v5_split_k

RIGHT = [v5_split_k.Config(64, 64, 64, 4, 3, slices=slices) for slices in (1, 2)]
WRONG, UNCOMPILED = RIGHT[0]._replace(splits=2), RIGHT[0]._replace(slices=4)


@pytest.fixture
def on_the_interpreter(monkeypatch, tmp_path):
    """Let four configurations be searched: one of them computes something else, one does not compile."""
    launch, compiled = v5_split_k.launch_config, []

    def launch_config(*operands, out, config, **more):
        launch(*operands, out=out, config=config, **more)
        if config == WRONG:
            out[0, 0] += 1

    def instead_of_processes(launches, gpu):
        compiled.extend(launches)
        for call in launches.values():
            assert {tensor.device.type for tensor in (*call.args, call.keywords["out"])} == {"meta"}
        return {UNCOMPILED.words: "CompilationError: no"}

    def trial(device, case, cache, note):
        limits = replace(CPU_LIMITS, min_samples=2, cap_s=0.02, warm_up_s=0.0, min_time_s=0.0)
        return Trial(lambda calls, limits: collect(HostSampler(calls, 1), limits, cache), limits, limits)

    monkeypatch.setenv("RIDGEPOINT_TUNED", str(tmp_path))
    monkeypatch.setattr(v5_split_k, "launch_config", launch_config)
    monkeypatch.setattr(v5_split_k, "candidates", lambda asked: [*RIGHT, WRONG, UNCOMPILED])
    monkeypatch.setattr(precompile, "precompile", instead_of_processes)
    monkeypatch.setattr(tune, "_require_triton", lambda device: None)
    monkeypatch.setattr(tune, "trial_of", trial)
    return compiled


def test_only_what_is_right_is_timed_and_kept(on_the_interpreter, tmp_path, capsys):
    words = ["tune", "matmul", "--dtype", "fp16", "--shape", "64x64x128", "--layout", "nt", "--device", "cpu", "-q"]
    assert main([*words, "--format", "json"]) == 0
    assert on_the_interpreter == [config.words for config in (*RIGHT, WRONG, UNCOMPILED)]
    [answer] = json.loads(capsys.readouterr().out)["tuned"]
    assert answer["key"] == "matmul v5 | fp16 | nt | 64x64x128 | batch 1"
    *timed, wrong, uncompiled = answer["table"]
    assert {v5_split_k.Config(**row["config"]) for row in timed} == set(RIGHT)
    assert v5_split_k.Config(**wrong["config"]) == WRONG
    assert wrong["refused"].startswith("wrong result: ")
    assert uncompiled["refused"] == "does not compile: CompilationError: no"
    [path] = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["kept"][answer["key"]]["table"] == answer["table"]


def test_what_the_kernel_does_not_take_is_said(on_the_interpreter, tmp_path, capsys):
    assert main(["tune", "matmul", "--dtype", "fp16", "--shape", "64x5x64", "--device", "cpu", "-q"]) == 1
    assert "none of 4 configurations runs here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
