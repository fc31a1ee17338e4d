"""`python -m bench tune`: what is searched, timed by a fake clock, kept and shown; and who is refused."""

import json

import pytest

from bench import matmul
from bench.__main__ import main
from bench.harness.calibrate.search import Launch, NotMeasuredError, Trial, best_of
from bench.harness.commands import tune
from bench.harness.op import Case
from bench.harness.timing.protocol import GPU_LIMITS, Samples
from kernels import versions

CASE = Case.of("matmul", "bf16", {"m": 64, "n": 64, "k": 64}, matmul.OPTIONS, {"layout": "nn", "batch": 1})


class Config(tuple):
    """A configuration that takes as many microseconds as it says."""

    def _asdict(self):
        return {"us": self[0]}


CONFIGS = {"fixed": Config([4]), "fast": Config([2]), "wrong": Config([1]), "slow": Config([8])}


def prepare(config):
    if config == CONFIGS["wrong"]:
        raise NotMeasuredError("wrong result: an element is NaN")
    return Launch(lambda: config[0] * 1e-6, 1000)


def measure(calls, limits):
    [call] = calls
    time_s = call() * (1.1 if limits.cap_s == 2.0 else 1.0)  # fresh samples of the fastest are slower
    return Samples((time_s,) * 5, 1, "graph", "cold", time_s, (time_s, time_s), True)


@pytest.fixture
def searched(monkeypatch):
    """Let the command search `CONFIGS` by a fake clock, on whatever device there is."""
    notes = []

    def trial(device, case, cache, note):
        from dataclasses import replace

        return Trial(measure, replace(GPU_LIMITS, cap_s=0.1), replace(GPU_LIMITS, cap_s=2.0), notes.append)

    monkeypatch.setattr(tune, "_require_triton", lambda device: None)
    monkeypatch.setattr(tune, "_gpu", lambda device: __import__("kernels.launch").launch.stand_in)
    monkeypatch.setattr(tune, "tuning_of", lambda op, case, device: tune.Tuning("key", CONFIGS, "cold", prepare))
    monkeypatch.setattr(tune, "trial_of", trial)
    return notes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RIDGEPOINT_TUNED", str(tmp_path))
    return tmp_path


def test_the_fastest_that_is_right_is_kept_with_the_whole_table(searched, folder, capsys):
    words = ["tune", "matmul", "--shape", "64", "--device", "cpu", "-q"]
    assert main([*words, "--format", "json"]) == 0
    [answer] = json.loads(capsys.readouterr().out)["tuned"]
    [path] = folder.glob("*.json")
    kept = json.loads(path.read_text())["kept"]["key"]
    assert answer["table"] == kept["table"]
    assert kept["source_sha256"] == versions.source_sha256(tune.TUNED["matmul"])
    assert [row["config"]["us"] for row in kept["table"]] == [2, 4, 8, 1]
    assert kept["table"][0]["median_s"] == pytest.approx(2.2e-6)  # measured afresh
    assert kept["table"][0]["screened_s"] == pytest.approx(2e-6)
    assert kept["table"][3]["refused"] == "wrong result: an element is NaN"
    assert searched == ["fixed", "fast", "wrong", "slow", "fast, again"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "fastest  fast" in text
    assert "fixed    fixed: 50.0 % of its speed" in text
    assert "3 timed, 1 do not run or are wrong" in text
    assert str(path) in text


def test_nothing_is_kept_where_nothing_is_right(searched, folder, capsys, monkeypatch):
    monkeypatch.setattr(
        tune, "tuning_of", lambda *what: tune.Tuning("key", {"wrong": CONFIGS["wrong"]}, "cold", prepare)
    )
    assert main(["tune", "matmul", "--shape", "64", "--device", "cpu", "-q"]) == 1
    assert "none of 1 configurations runs here; wrong: NotMeasuredError: wrong result" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (["matmul", "--device", "cpu"], 3, "tuning times kernels on a GPU of CUDA; "),
        (["gelu"], 2, "gelu has no configurations to search; there are some of: matmul"),
        (["matmul", "--dtype", "bf17"], 2, "bf17"),
        (["matmul", "--layout", "tt"], 2, "unknown layout 'tt'"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(capsys, words, code, wanted):
    assert main(["tune", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("python -m bench tune: error: ")
    assert wanted in line


def test_a_broken_table_is_one_line(searched, folder, capsys):
    from kernels import launch, tuned

    tuned.path_of(launch.stand_in).write_text("{")
    assert main(["tune", "matmul", "--shape", "64", "--device", "cpu", "-q"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot read" in line
    assert "delete it, and tune again" in line


def test_the_fixed_choice_may_be_what_does_not_run():
    configs = {"wrong": CONFIGS["wrong"], "fast": CONFIGS["fast"]}
    tuning = tune.Tuning("key", configs, "cold", prepare)
    found = best_of(tune.candidates(tuning), Trial(measure, GPU_LIMITS, GPU_LIMITS))
    assert "  fixed    wrong: does not run here" in tune.lines_of(CASE, found, configs)
