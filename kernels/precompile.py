"""Compile kernels in parallel processes before they are timed.

A launch runs Triton's own code up to the point where it would load the binary, so the same launch
on GPU tensors finds the binary in Triton's cache.

The processes terminate with this one in any case. They run no user code except what is compiled, so
calls need no timeout and Python's own pool suffices.
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
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.runtime.jit import JITFunction

from kernels import launch
from kernels.launch import Gpu
from results.show.terminal import say

Launch = Callable[[], object]
"""A call of a launcher with tensors of the device `meta`, which have a shape and no memory. It must
be picklable, such as a `functools.partial` of `launch_version`."""

NO_DEVICE = 1_000_000
"""Device index for compilation only. No real GPU has it: Triton stores compiled kernels by device
index.
"""

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal sent to a process when its parent terminates. Source: prctl(2)."""

KILLED = "a compiler process was killed, most likely because memory ran out"

PROGRESS_DELAY_S = 2.0
REPORT_EVERY_S = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def precompile(launches: Mapping[str, Launch]) -> dict[str, str]:
    """Compile launches in parallel processes for the current CUDA device; progress goes to stderr.

    Nothing runs on the GPU. All CPU cores are busy, so nothing should be timed during the call.

    Returns:
        The first line of the error for each launch that does not compile. The others are in
        Triton's cache.
    """
    import torch

    gpu = launch.gpu_of(torch.device("cuda", torch.cuda.current_device()))
    errors: dict[str, str] = {}
    try:
        errors |= in_processes(partial(_compile, gpu), list(launches.items()))
    except BrokenProcessPool:
        errors = dict.fromkeys(launches, KILLED) | errors
    return {name: errors[name] for name in launches if errors.get(name)}


def launch_version(module: str, op: str, *inputs: Any, out: Any) -> None:
    """Call a launcher by the name of its module. Unlike the launcher itself, this call can be
    pickled.
    """
    importlib.import_module(module).KERNELS[op](*inputs, out=out)


def _compile(gpu: Gpu, launch: tuple[str, Launch]) -> tuple[str, str]:
    """Return the name of a launch and the first line of its compile error, or an empty string."""
    name, call = launch
    with compile_only(gpu) as compiled:
        try:
            call()
            if hasattr(driver, "make_launcher"):
                # Until Triton 3.6, the first launch of a signature compiles a launcher in C.
                for kernel in compiled:
                    with suppress(Exception):  # the launch itself raises it again
                        driver.CudaLauncher(kernel.src, kernel.metadata)
        except ValueError:  # of the launcher, which rejects the case; its row has the reason
            return name, ""
        except (
            Exception
        ) as error:  # any error of a launcher, Triton or its assembler; other launches continue
            lines = [line for line in str(error).splitlines() if line.strip()]
            return name, f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"[
                :300
            ]
    return name, ""


@contextmanager
def compile_only(gpu: Gpu) -> Iterator[list[Any]]:
    """Make launches compile for a GPU, which need not be present, without running anything.

    Yields:
        The compiled kernels, in order, including those that were compiled before.
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
    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return NO_DEVICE + self._arch

    def get_current_stream(self, device: int) -> int:
        return 0


def in_processes(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Apply a function to each item in one process per core and yield the results as completed.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    count = min(len(os.sched_getaffinity(0)), len(items))
    processes = f"{count} processes" if count > 1 else f"{count} process"
    start_message = report_if_slow(f"compiling {len(items)} kernels in {processes}")
    reported_s = time.monotonic() + PROGRESS_DELAY_S - REPORT_EVERY_S
    with start_message, _pool_of(count) as pool:
        with _starting():  # processes start with the tasks
            tasks = [pool.submit(function, item) for item in items]
        for done, task in enumerate(as_completed(tasks), start=1):
            yield task.result()
            if time.monotonic() - reported_s >= REPORT_EVERY_S:
                reported_s = time.monotonic()
                say(f"compiled {done} of {len(items)} kernels")


@contextmanager
def report_if_slow(message: str) -> Iterator[None]:
    """Print a message on stderr if the block takes longer than `PROGRESS_DELAY_S`."""
    timer = threading.Timer(PROGRESS_DELAY_S, say, (message,))
    timer.daemon = True  # so that Ctrl-C does not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of spawned processes, because threads of torch and the compiler do not survive a
    fork.

    They are killed if an error or Ctrl-C leaves the block, and by the operating system if this
    process terminates. Their temporary files are deleted at the end of the block.
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
    """Make processes that start in the block ignore Ctrl-C and not import this process's
    `__main__`.

    They need nothing from it, and a user's script without a guard would run again.
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
    """Initialize a new process: it is killed with its parent and ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)
