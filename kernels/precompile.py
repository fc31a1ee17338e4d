"""Compiles kernels beforehand, in many processes at once, so that nothing is compiled while something is timed.

A launch goes through Triton as ever, up to where the binary would be loaded. So what it leaves in Triton's cache is
what the same launch on tensors of the GPU finds there.

The processes end with this one, however it ends. They run no code of users but what is compiled, so that no call needs
a time limit, and Python's own pool does.
"""

import ctypes
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from kernels import launch
from kernels.launch import Gpu
from results.show.terminal import say

Launch = Callable[[], object]
"""Calls a launcher on tensors of the device `meta`, which have a shape and no memory. It must be picklable: a
`functools.partial` of a function of a module, such as `launch_version`."""

NO_DEVICE = 1_000_000
"""Number of the device that stands in for a GPU, which no real one has: Triton keeps by device what it has compiled."""

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""

ENDED = "a process that compiles was ended from outside, most often because memory ran out"

QUIET_S = 2.0
REPORT_EVERY_S = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def precompile(launches: Mapping[str, Launch], gpu: Gpu | None = None) -> dict[str, str]:
    """Compile launches in processes of their own; stderr is told how far it is.

    Time nothing meanwhile: all cores are busy. This process starts nothing on the GPU, and neither do the others.
    It compiles for `gpu`, by default the current CUDA device.

    Returns:
        What does not compile, by name, each with the first line of the reason. The rest is in Triton's cache.
    """
    if not launches:
        return {}
    if gpu is None:
        import torch

        gpu = launch.gpu_of(torch.device("cuda", torch.cuda.current_device()))
    found: dict[str, str] = {}
    try:
        found |= in_processes(partial(_compile, gpu), list(launches.items()))
    except BrokenProcessPool:
        found = dict.fromkeys(launches, ENDED) | found
    return {name: found[name] for name in launches if found.get(name)}


def launch_version(module: str, op: str, *inputs: Any, out: Any) -> None:
    """Call the launcher of an operation by the name of its version's module, which can be pickled where it cannot."""
    importlib.import_module(module).KERNELS[op](*inputs, out=out)


def _compile(gpu: Gpu, launch: tuple[str, Launch]) -> tuple[str, str]:
    """Return the name of a launch and, in a line, why it does not compile; an empty line if it does."""
    name, call = launch
    with compile_only(gpu):
        try:
            call()
        except Exception as error:  # whatever a launcher, Triton and its assembler raise; the others go on
            lines = [line for line in str(error).splitlines() if line.strip()]
            return name, f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"[:300]
    return name, ""


@contextmanager
def compile_only(gpu: Gpu) -> Iterator[list[Any]]:
    """Let launches compile for a GPU that need not be here, and start nothing.

    Yields:
        What was compiled, in order; a kernel that had been compiled before is among it too.
    """
    compiled: list[Any] = []
    run = JITFunction.run

    def warm_up(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled.append(run(kernel, *args, grid=grid, warmup=True, **kwargs))
        return compiled[-1]

    with (
        patch.object(JITFunction, "run", warm_up),
        patch.object(triton.runtime.driver, "_active", _NoDriver(gpu.arch)),
        patch.object(launch, "stand_in", gpu),
        patch.object(launch, "INTERPRETED", True),  # tensors need not be on a GPU
    ):
        yield compiled


class _NoDriver:
    """A driver for a GPU that is not there: it answers what Triton asks before it compiles."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return NO_DEVICE + self._arch

    def get_current_stream(self, device: int) -> int:
        return 0


def in_processes(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield what a function makes of each kernel, in the order in which they are done; stderr is told how far it is.

    It runs in a process for each core, and BrokenProcessPool is raised if one of them is ended from outside.
    """
    count = min(len(os.sched_getaffinity(0)), len(items))
    beginning = said_if_slow(f"compiling {len(items)} kernels in {count} process{'es' * (count > 1)}")
    said = time.monotonic() + QUIET_S - REPORT_EVERY_S
    with beginning, _pool_of(count) as pool:
        with _starting():  # processes start with the tasks
            tasks = [pool.submit(function, item) for item in items]
        for done, task in enumerate(as_completed(tasks), start=1):
            yield task.result()
            if time.monotonic() - said >= REPORT_EVERY_S:
                said = time.monotonic()
                say(f"compiled {done} of {len(items)} kernels")


@contextmanager
def said_if_slow(what: str) -> Iterator[None]:
    """Say on stderr what is being done, once it takes longer than two seconds."""
    timer = threading.Timer(QUIET_S, say, (what,))
    timer.daemon = True  # Ctrl-C need not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of processes that start afresh, because threads of torch and the compiler do not survive a fork.

    They are killed when the block is left by an error or Ctrl-C, and by the kernel when this process ends. What they
    leave in their folder for temporary files goes with the block.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        before = set(active_children())
        pool = ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent, (folder,))
        try:
            yield pool
        except BaseException:
            for process in set(active_children()) - before:
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _starting() -> Iterator[None]:
    """Let processes that start in the block never get a Ctrl-C, and not run this one's `__main__` again, as they would.

    Nothing that they compile lies there, and a user's script need not guard its own statements against it.
    """
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent(folder: str) -> None:
    """In a new process: let the kernel kill it when its parent ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)
