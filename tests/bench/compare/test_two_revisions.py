"""A repository with two revisions of one kernel: the slower one fails `results compare --by git`,
the same one passes.

The repository is the user's own, and not that of the code which measures. The samples are replaced
by written ones, so a busy machine changes no verdict.
"""

import json
import os
import subprocess
import sys

import pytest

from bench.harness.device import device as host
from bench.harness.device.device import file_git_state, git_state
from tests.bench import commands

FIRST = """
import torch


def gelu(x, out):
    torch.ops.aten.gelu.out(x, out=out)
"""
SLOWER = FIRST + "    for _ in range(31):\n        torch.ops.aten.gelu.out(x, out=out)\n"
COMMENT = FIRST + "    # as fast as before\n"
MEASURE = [
    "--op",
    "gelu",
    "--dtype",
    "fp32",
    "--shape",
    "16384",
    "--cache",
    "warm",
    "--provider",
    "kernel.py:gelu",
]
LAUNCH_S = {"first": 1e-5, "slower": 3e-4, "comment": 1e-5}
"""Seconds per launch that replace the samples of each revision."""


class Repository:
    """A git repository in which commands run as a user runs them."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = os.environ | {
            "PYTHONPATH": str(commands.ROOT),
            "ROOFMARK_RUNS": str(folder / "runs"),
        }
        self.git("init", "--quiet")

    def git(self, *words):
        identity = ["-c", "user.name=A User", "-c", "user.email=user@example.com"]
        done = subprocess.run(
            ["git", *identity, *words], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, text, name="kernel.py"):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, text, tag):
        self.write(text)
        self.git("add", "kernel.py")
        self.git("commit", "--quiet", "-m", tag)
        self.git("tag", tag)

    def python(self, module, *words):
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def measure(self, tag):
        self.git("checkout", "--quiet", tag)
        done = self.python(
            "bench.elementwise", *commands.arguments([*MEASURE, "--output", f"{tag}.jsonl"])
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return commands.lines_of(self.folder / f"{tag}.jsonl")[1]

    def compare(self, a, b):
        words = ("--margin", "90%", "--format", "json", "--by", "git")
        return self.python("results", "compare", f"{a}.jsonl", f"{b}.jsonl", *words)

    def rewrite(self, name, launch_s):
        """Replace the samples of a run by quiet ones, 1 % apart, and save a second run of the same
        code.
        """
        environment, record = commands.lines_of(self.folder / f"{name}.jsonl")
        samples_s = [launch_s * (1 + index % 3 / 100) for index in range(60)]
        middle_s = launch_s * 1.01
        record |= {
            "samples_s": samples_s,
            "visits": [20, 20, 20],
            "median_s": middle_s,
            "converged": True,
        }
        record |= {"ci95_s": [0.999 * middle_s, 1.001 * middle_s], "flags": [], "flag_reasons": {}}
        for run in (name, f"{name}-again"):
            lines = (environment | {"run_id": run}, record)
            (self.folder / f"{run}.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines)
            )


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    (folder / "runs").mkdir()
    commands.keep_ceilings(folder / "runs")
    made = Repository(folder)
    made.commit(FIRST, "first")
    made.commit(SLOWER, "slower")
    made.commit(COMMENT, "comment")
    return made


@pytest.fixture(scope="module")
def records(repository):
    """Return the record of the kernel at each revision, by tag."""
    measured = {tag: repository.measure(tag) for tag in LAUNCH_S}
    for tag, launch_s in LAUNCH_S.items():
        repository.rewrite(tag, launch_s)
    return measured


def sha(repository, tag):
    return repository.git("rev-parse", tag)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("before", "after", "code"),
    [("first", "slower", 1), ("first", "comment", 0), ("slower", "first", 0)],
)
def test_a_confirmed_regression_between_revisions_exits_with_1(
    repository, records, before, after, code
):
    done = repository.compare(before, after)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert (row["verdict"] == "SLOWER") == (row["ratio"] > 4) == (code == 1)
    assert (row["baseline"], row["candidate"]) == tuple(
        sha(repository, tag)[:10] for tag in (before, after)
    )
    assert "; its source file changed" in row["reason"]
    assert found["summary"]["exit_code"] == code


@pytest.mark.exhaustive
def test_records_have_revision_and_hash_of_the_users_file(repository, records):
    for tag, record in records.items():
        assert record["provider"] == "kernel.py:gelu"
        # Runs that were written into the repository do not make it dirty.
        assert record["source_git"] == {"sha": sha(repository, tag), "dirty": False}
    assert len({record["source_sha256"] for record in records.values()}) == 3
    environment = commands.lines_of(repository.folder / "first.jsonl")[0]
    assert environment["git"]["sha"] == git_state()["sha"] != records["first"]["source_git"]["sha"]


@pytest.fixture
def small(tmp_path):
    made = Repository(tmp_path)
    made.commit(FIRST, "first")
    return made


def test_a_file_is_dirty_if_any_tracked_file_changed(small):
    kernel, other = small.folder / "kernel.py", small.write("x = 1\n", "other.py")
    clean = {"sha": sha(small, "first"), "dirty": False}
    assert file_git_state(kernel) == clean  # untracked files do not count
    small.git("add", "other.py")
    assert file_git_state(kernel) == clean | {"dirty": True}
    small.git("commit", "--quiet", "-m", "other")
    assert file_git_state(kernel) == {"sha": sha(small, "HEAD"), "dirty": False}
    other.write_text("x = 2\n")
    assert file_git_state(kernel)["dirty"] is True


@pytest.mark.parametrize(
    ("name", "is_code"), [("mine.py", False), ("roofline.png", False), ("bench/new_op.py", True)]
)
def test_files_outside_the_measuring_code_do_not_make_it_dirty(small, monkeypatch, name, is_code):
    monkeypatch.setattr(host, "__file__", str(small.folder / "bench/harness/device/device.py"))
    small.write("", name)
    assert git_state.__wrapped__() == {"sha": sha(small, "first"), "dirty": is_code}


def test_an_untracked_file_is_dirty_and_an_ignored_one_has_no_state(small, tmp_path):
    assert file_git_state(small.write("", "scratch.py")) == {
        "sha": sha(small, "first"),
        "dirty": True,
    }
    small.write("venv/\n", ".gitignore")
    assert file_git_state(small.write("", "venv/installed.py")) is None


def test_revision_is_none_without_repository_or_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "kernel.py").write_text(FIRST)
    assert file_git_state(tmp_path / "kernel.py") is None
    Repository(tmp_path)
    assert file_git_state(tmp_path / "kernel.py") is None
    assert file_git_state(tmp_path / "gone" / "kernel.py") is None


def test_git_variables_of_a_hook_are_ignored(small, tmp_path_factory, monkeypatch):
    other = Repository(tmp_path_factory.mktemp("other"))
    other.commit(COMMENT, "first")
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.folder))
    assert file_git_state(small.folder / "kernel.py")["sha"] != sha(other, "first")
