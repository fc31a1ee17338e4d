"""The revision of a user's file that was measured: not that of the code that measures."""

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
COMMENT = FIRST + "    # as fast as before\n"
MEASURE = "--op gelu --dtype fp32 --shape 16384 --cache warm --provider kernel.py:gelu"


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

    def measure(self):
        """Measure the kernel of the working tree; return environment and record."""
        words = commands.arguments([*MEASURE.split(), "--output", "run.jsonl"])
        subprocess.run(
            [sys.executable, "-m", "bench.elementwise", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            timeout=120,
            check=True,
        )
        return commands.lines_of(self.folder / "run.jsonl")


def sha(repository, tag):
    return repository.git("rev-parse", tag)


@pytest.fixture
def small(tmp_path):
    made = Repository(tmp_path)
    made.commit(FIRST, "first")
    return made


@pytest.mark.exhaustive
def test_a_record_has_the_revision_of_the_users_file(small):
    runs = small.folder / "runs"  # written into the repository, which does not make it dirty
    runs.mkdir()
    commands.keep_ceilings(runs)
    environment, record = small.measure()
    assert record["provider"] == "kernel.py:gelu"
    assert record["source_git"] == {"sha": sha(small, "first"), "dirty": False}
    assert environment["git"]["sha"] == git_state()["sha"] != sha(small, "first")


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
