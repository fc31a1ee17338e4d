"""A repository with two revisions of one kernel: the slower one fails `results compare`, the same one passes.

The margin is wide and the regression wider, so that a busy machine changes neither verdict.
"""

import json
import os
import subprocess
import sys

import commands
import pytest

FIRST = """
import torch


def gelu(x, out):
    torch.ops.aten.gelu.out(x, out=out)
"""
SECOND = FIRST + "    for _ in range(7):\n        torch.ops.aten.gelu.out(x, out=out)\n"
MEASURE = ["--op", "gelu", "--dtype", "fp32", "--shape", "16384", "--cache", "warm", "--provider", "kernel.py:gelu"]


class Repository:
    """A folder under git, in which commands run as a user runs them."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(commands.ROOT), "RIDGEPOINT_RUNS": str(folder / "runs")}
        self.git("init", "--quiet")

    def git(self, *words):
        identity = ["-c", "user.name=A User", "-c", "user.email=user@example.com"]
        subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    def commit(self, text, tag):
        (self.folder / "kernel.py").write_text(text)
        self.git("add", "kernel.py")
        self.git("commit", "--quiet", "-m", tag)
        self.git("tag", tag)

    def python(self, module, *words):
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )

    def measure(self, tag, name):
        self.git("checkout", "--quiet", tag)
        words = commands.arguments([*MEASURE, "--output", f"{name}.jsonl"])
        done = self.python("bench.elementwise", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return commands.lines_of(self.folder / f"{name}.jsonl")[1]

    def compare(self, a, b, *words):
        return self.python("results", "compare", f"{a}.jsonl", f"{b}.jsonl", "--margin", "50%", *words)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    (folder / "runs").mkdir()
    commands.keep_ceilings(folder / "runs")
    made = Repository(folder)
    made.commit(FIRST, "first")
    made.commit(SECOND, "second")
    return made


@pytest.fixture(scope="module")
def records(repository):
    return {name: repository.measure(tag, name) for name, tag in (("a", "first"), ("b", "first"), ("c", "second"))}


def test_a_confirmed_regression_exits_with_1(repository, records):
    done = repository.compare("a", "c", "--format", "json")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [row["verdict"] for row in found["rows"]] == ["SLOWER"]
    assert found["rows"][0]["ratio"] > 2
    assert found["summary"]["exit_code"] == 1


def test_an_equal_pair_exits_with_0(repository, records):
    done = repository.compare("a", "b", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["verdict"] for row in json.loads(done.stdout)["rows"]] != ["SLOWER"]


def test_the_faster_revision_is_no_regression(repository, records):
    assert repository.compare("c", "a").returncode == 0


def test_records_tell_the_revisions_apart_by_the_text_of_the_file(repository, records):
    assert records["a"]["provider"] == records["c"]["provider"] == "kernel.py:gelu"
    assert records["a"]["source_sha256"] == records["b"]["source_sha256"] != records["c"]["source_sha256"]
