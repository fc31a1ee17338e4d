"""Processes that compile for this one and end with it, however it ends, and their progress on stderr.

They run no code of users but what is compiled, so that no call needs a time limit, and Python's own pool does.
"""

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from types import ModuleType
from typing import TypeVar

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""

ENDED = "a process that compiles was ended from outside, most often because memory ran out"

QUIET_S = 2.0
REPORT_EVERY_S = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(
    function: Callable[[Sequence[Item]], Result], chunks: Sequence[Sequence[Item]], processes: int
) -> Iterator[Result]:
    """Yield what a function makes of each chunk of kernels, in the order in which they are done.

    Args:
        function: Compiles the kernels of a chunk in another process.
        chunks: Kernels that one task compiles.
        processes: How many processes share them.

    Raises:
        BrokenProcessPool: A process was ended from outside.
    """
    total, done = sum(map(len, chunks)), 0
    beginning = told_if_slow(f"compiling {total} kernels in {processes} process{'es' * (processes > 1)}")
    with beginning, progress(total) as step, _pool_of(processes) as pool:
        with _interrupts_held(), _main_hidden():  # processes start with the tasks
            tasks = {pool.submit(function, chunk): len(chunk) for chunk in chunks}
        for task in as_completed(tasks):
            yield task.result()
            done += tasks[task]
            step(done)


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
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends; processes started in it never get one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Let processes that start in the block leave out what Python does otherwise: run this one's `__main__` again.

    Nothing that they compile lies there, and a user's script need not guard its own statements against it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end_with_parent(folder: str) -> None:
    """In a new process: let the kernel kill it when its parent ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """Say on stderr what is being done, once it takes longer than two seconds."""
    timer = threading.Timer(QUIET_S, print, (what,), {"file": sys.stderr, "flush": True})
    timer.daemon = True  # Ctrl-C need not wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Say on stderr how many of `total` kernels are compiled, once it takes two seconds."""
    said = time.monotonic() + QUIET_S - REPORT_EVERY_S
    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def step(count: int) -> None:
        nonlocal said
        now = time.monotonic()
        if sys.stderr is not None and now - said >= REPORT_EVERY_S:
            said = now
            print(f"compiled {count} of {total} kernels", end="\r" * is_terminal or "\n", file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if is_terminal:
            print("\x1b[2K", end="\r", file=sys.stderr, flush=True)
