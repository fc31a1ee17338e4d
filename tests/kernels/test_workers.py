"""Processes that compile: what happens where one of them is ended from outside."""

import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType

import pytest

from kernels import precompile, workers
from kernels.audit import AuditError, rows
from kernels.launch import Gpu

H100 = Gpu(90, 132, 50 * 2**20)


@pytest.fixture
def pools(monkeypatch):
    """Let the pool do so many tasks and end."""

    def let(tasks):
        @contextmanager
        def pool_of(processes):
            yield Pool(tasks)

        monkeypatch.setattr(workers, "_pool_of", pool_of)

    return let


class Pool:
    def __init__(self, tasks):
        self.left = tasks

    def submit(self, function, chunk):
        done = Future()
        if self.left:
            self.left -= 1
            done.set_result(function(chunk))
        else:
            done.set_exception(BrokenProcessPool())
        return done


def test_processes_do_not_run_the_script_that_started_them(tmp_path, monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit('a script without a guard runs again')\n")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert sorted(workers.in_processes(sum, [[1], [2, 3]], processes=2)) == [1, 5]
    assert sys.modules["__main__"] is script


def test_an_audit_says_so_in_a_line(pools, monkeypatch):
    pools(0)
    monkeypatch.setattr(rows, "FEW", 0)
    with pytest.raises(AuditError, match="a process that compiles was ended from outside"):
        rows.audit_all([None] * 30)


def test_launches_that_were_not_compiled_are_named(pools, monkeypatch):
    pools(0)
    assert precompile.precompile({"a": None, "b": None}, H100, processes=2) == {"a": workers.ENDED, "b": workers.ENDED}
