"""`python -m bench compare a.py:f b.py:f`: a user's functions on the same arguments, without an
op.
"""

import json

import pytest

from bench import __main__ as command
from results.store.runfile import load_run

OLD = """
import torch

def f(x, y):
    return torch.relu(x) + y

def wrong(x, y):
    return x

def crash(x, y):
    import os
    os.abort()

def leaves():
    import sys
    sys.exit(3)
"""

NEW = """
import torch

def make_inputs():
    return torch.ones(1000), torch.ones(1000)

def f(x, y):
    for _ in range(200):  # slower than any noise
        torch.relu(x)
    return torch.relu(x).add_(y)

def g(x, y):
    return x + y

def g_in_place(x, y):
    return x.add_(y)
"""

ROUNDS = "12"
"""The fewest whose halves give a verdict on a busy machine."""

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, size, gain):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.gain = gain

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.gain

class Cached(Model):
    def forward(self, x):
        if not hasattr(self, "saved"):
            self.saved = super().forward(x)
        return self.saved

def get_init_inputs():
    return [16, 2.0]

def get_inputs():
    return [torch.randn(8, 16)]
"""

LATER = MODEL.partition("def get_init_inputs")[0].replace("class Model", "class ModelNew")
LATER = LATER.replace("super().__init__()", "super().__init__(); torch.randn(1)").partition(
    "class C"
)[0]

WORK = """
def softmax(x):
    return x.softmax(-1)

def FLOPS(x):
    return 7 * x.numel()

def BYTES(x):
    return x.nbytes, 8
"""

CAREFUL = """
import torch

torch.set_default_dtype(torch.float64)

def f(x, y):
    assert torch.get_default_dtype() is torch.float32
    return torch.relu(x) + y
"""

ONE = """
import torch

def f(x, y):
    assert torch.get_num_threads() == 1
    return x + y
"""

BROKEN = "raise ValueError('no such weights')\n\n\ndef f(x, y):\n    return x\n"


FILES = {
    "old": OLD,
    "new": NEW,
    "model": MODEL,
    "later": LATER,
    "work": WORK,
    "broken": BROKEN,
    "one": ONE,
    "careful": CAREFUL,
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*words):
    options = ["--device", "cpu", "--rounds", ROUNDS, "--cache", "warm", "-q"]
    return command.main(["compare", *words, *options])


@pytest.mark.exhaustive
def test_functions_take_what_make_inputs_of_either_file_returns(files, capsys):
    assert compare("old.py:f", "new.py:f", "--format", "json", "-o", "run.jsonl") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["unmatched"] == []
    row = found["rows"][0]
    assert (row["baseline"], row["candidate"]) == ("old.py:f", "new.py:f")
    assert row["verdict"] == "SLOWER"
    run = load_run(files / "run.jsonl")
    assert [(each.provider, each.case) for each in run.records] == [
        ("old.py:f", "1000,1000"),
        ("new.py:f", "1000,1000"),
    ]
    assert all(each.source_sha256 for each in run.records)


def test_without_make_inputs_each_parameter_gets_a_tensor_of_the_shape(files):
    assert (
        compare("old.py:f", "old.py:wrong", "--shape", "8x4", "--dtype", "fp64", "-o", "run.jsonl")
        == 1
    )
    baseline, wrong = load_run(files / "run.jsonl").records
    assert (baseline.case, baseline.dtype) == ("8x4,8x4", "fp64")
    assert (wrong.status, "differs from the baseline's" in wrong.reason) == ("invalid", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["broken.py:f", "old.py:f", "--shape", "8"], "broken.py:f: ValueError: no such weights"),
        (["old.py:f", "old.py:wrong"], "no file has a function make_inputs()"),
        (
            ["old.py:f", "old.py:wrong", "--shape", "8,8,8"],
            "old.py:f raised TypeError: f() takes 2",
        ),
        (
            ["later.py:ModelNew", "later.py:ModelNew"],
            "later.py:ModelNew: TypeError: ModelNew.__init__() missing 2 required",
        ),
        (["a.jsonl", "b.jsonl"], "'a.jsonl': is a saved run; use python -m results compare"),
        (["old.py:f", "new.py:f", "--op", "gelu"], "functions are compared without --op"),
        (["old.py:f", "new.py:f", "--shape", "8"], "the file makes the arguments; remove --shape"),
        (["old.py:f", "new.py:f", "--fill", "normal"], "makes the arguments; remove --fill"),
        (["old.py:f", "new.py:f", "--layout", "nt"], "--layout is an option of an op"),
        (
            ["old.py:f", "new.py:f", "--baseline", "torch"],
            "baseline='torch' must be one of old.py:f, new.py:f",
        ),
    ],
)
def test_functions_that_cannot_be_compared_end_with_one_line(files, capsys, words, message):
    assert compare(*words, "--no-save") == 2
    out, err = capsys.readouterr()
    assert message in err.splitlines()[-1]
    assert out == ""


@pytest.mark.exhaustive
def test_a_broken_function_fails_only_its_own_row_and_threads_are_those_requested(files):
    words = ["one.py:f", "old.py:crash", "broken.py:f", "new.py:g"]
    assert compare(*words, "--threads", "1", "-o", "run.jsonl") == 1
    baseline, crash, broken, other = load_run(files / "run.jsonl").records
    assert (baseline.status, other.status) == ("ok", "ok"), (baseline.reason, other.reason)
    assert (crash.status, crash.reason) == ("failed", "crashed: SIGABRT (aborted)")
    assert (broken.status, broken.reason) == ("failed", "broken.py:f: ValueError: no such weights")


@pytest.mark.exhaustive
def test_declared_functions_change_copies_that_are_restored(files, capsys):
    words = ["new.py:g", "new.py:g_in_place"]
    assert compare(*words, "--no-save") == 1
    assert "new.py:g_in_place: invalid: changes its inputs; " in capsys.readouterr().err
    assert compare(*words, "--in-place", "-o", "run.jsonl") in (0, 1)
    run = load_run(files / "run.jsonl")
    assert [each.status for each in run.records] == ["ok", "ok"]
    assert run.environment.settings["in_place"] is True


@pytest.mark.exhaustive
def test_modules_of_kernelbench_get_equal_weights_and_inputs_in_the_requested_dtype(files):
    words = ["model.py:Model", "later.py:ModelNew", "model.py:Cached", "--dtype", "fp64"]
    assert compare(*words, "-o", "run.jsonl") == 1
    model, later, cached = load_run(files / "run.jsonl").records
    assert (model.case, model.dtype) == ("8x16", "fp64")
    assert later.status == "ok", later.reason
    assert cached.status == "invalid"
    assert cached.reason.startswith("on new values in the same tensors")


@pytest.mark.exhaustive
def test_a_function_twice_is_compared_with_itself_with_the_work_that_its_file_declares(files):
    words = ["compare", "work.py:softmax", "work.py:softmax", "--shape", "10", "--rounds", "6"]
    assert command.main([*words, "--device", "cpu", "--cache", "warm", "-o", "run.jsonl"]) in (0, 1)
    first, second = load_run(files / "run.jsonl").records
    assert second.provider == "work.py:softmax#2"
    assert (second.status, second.source_sha256) == ("ok", first.source_sha256)
    assert (first.flops, first.bytes_read, first.bytes_written) == (70, 40, 8)


@pytest.mark.exhaustive
def test_settings_changed_by_an_import_are_restored_and_flagged(files):
    assert compare("old.py:f", "careful.py:f", "--shape", "8", "-o", "run.jsonl") in (0, 1)
    baseline, careful = load_run(files / "run.jsonl").records
    assert "settings-restored" not in baseline.flags
    assert "default dtype: torch.float32 -> " in careful.flag_reasons["settings-restored"]
