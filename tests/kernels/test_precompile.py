"""Precompiled launches are found in Triton's cache by the launches themselves."""

import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
import triton

import kernels.launch
from kernels import precompile
from kernels.audit import AuditError, rows
from kernels.launch import Gpu
from kernels.precompile import launch_version

pytestmark = pytest.mark.skipif(
    kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"
)

H100 = Gpu(90, 132, 50 * 2**20)
SOFTMAX = "kernels.softmax.v2_aligned"


def calls(device):
    half = partial(torch.empty, dtype=torch.bfloat16, device=device)
    factors, out = (half(48, 80), half(80, 64)), half(48, 64)
    return {
        "softmax": partial(launch_version, SOFTMAX, "softmax", half(3, 1000), out=half(3, 1000)),
        "matmul": partial(
            launch_version, "kernels.matmul.v3_persistent", "matmul", *factors, out=out
        ),
        "descriptors": partial(
            launch_version, "kernels.matmul.v4_tma", "matmul", *factors, out=out
        ),
    }


@pytest.fixture
def compilations(monkeypatch):
    found = []
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **event: found.append(event["cache_hit"])
    )
    return found


@pytest.mark.exhaustive
def test_precompiled_launch_is_in_the_cache(compilations, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with precompile.compile_only(H100) as compiled:
        for call in calls("meta").values():
            call()
    assert compilations == [False] * 3
    assert len(compiled) == 3
    assert all(item.metadata.target.arch == 90 for item in compiled)
    del compilations[:]
    # What this process has compiled for the other is not asked.
    monkeypatch.setattr(precompile, "NO_DEVICE", 2_000_000)
    with precompile.compile_only(H100):
        for call in calls("cpu").values():  # tensors with memory, as those of a launch
            call()
    assert compilations == [True] * 3


@pytest.fixture
def one_kernel(monkeypatch):
    """A launch compiles to this, without a compiler."""
    kernel = SimpleNamespace(src="its signature", metadata="its metadata")
    monkeypatch.setattr(precompile, "compile_only", lambda gpu: nullcontext([kernel]))


@pytest.mark.parametrize("problem", [None, RuntimeError("no libcuda here")])
def test_launchers_that_triton_compiles_in_c_are_compiled_in_advance(
    monkeypatch, one_kernel, problem
):
    built = []

    def launcher(src, metadata):
        built.append((src, metadata))
        if problem:
            raise problem

    old = SimpleNamespace(make_launcher=None, CudaLauncher=launcher)
    monkeypatch.setattr(precompile, "driver", old)
    assert precompile._compile(H100, ("a", lambda: None)) == ("a", "")
    assert built == [("its signature", "its metadata")]
    del old.make_launcher  # from Triton 3.7 on, one launcher serves all signatures
    assert precompile._compile(H100, ("a", lambda: None)) == ("a", "")
    assert len(built) == 1


def test_a_launcher_that_rejects_a_case_is_no_compile_error(one_kernel):
    def rejecting():
        raise ValueError("matmul v3: no fp64")

    def failing():
        raise RuntimeError("PassManager::run failed")

    assert precompile._compile(H100, ("a", rejecting)) == ("a", "")
    assert precompile._compile(H100, ("a", failing))[1] == "RuntimeError: PassManager::run failed"


@pytest.mark.exhaustive
def test_processes_do_not_run_the_main_script(tmp_path, monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("raise SystemExit('a script without a guard runs again')\n")
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # one process is enough
    assert sorted(precompile.in_processes(abs, [-1, 5])) == [1, 5]
    assert sys.modules["__main__"] is script


class BrokenPool:
    def submit(self, function, item):
        done = Future()
        done.set_exception(BrokenProcessPool())
        return done


def test_killed_processes_are_reported_in_one_line(monkeypatch):
    @contextmanager
    def broken_pool(processes):
        yield BrokenPool()

    monkeypatch.setattr(precompile, "_pool_of", broken_pool)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(precompile.launch, "gpu_of", lambda device: H100)
    assert precompile.precompile(dict.fromkeys("ab")) == dict.fromkeys("ab", precompile.KILLED)
    monkeypatch.setattr(rows, "MAX_SERIAL_KERNELS", 0)
    with pytest.raises(AuditError, match="a compiler process was killed"):
        rows.audit_all([None] * 30)
