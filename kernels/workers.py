"""Processes that compile for this one and end with it, however it ends, and their progress on stderr.

They run no code of users but what is compiled, so that they need no heartbeat, and Python's own pool does.
"""

import ctypes
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process
from types import ModuleType
from typing import TypeVar

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""

ENDED = "a process that compiles was ended from outside, most often because memory ran out"

QUIET_S = 2.0
REPORT_EVERY_S = 10.0

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
        chunks: Kernels that one task compiles. They are taken in any order, so that what is done tells how long the
            rest takes where kernels of one kind lie together.
        processes: How many processes share them. Where one of them is ended from outside, one alone does the rest.

    Raises:
        BrokenProcessPool: The last process was ended from outside too.
    """
    total, done = sum(map(len, chunks)), 0
    left = dict(enumerate(random.Random(0).sample(chunks, len(chunks))))
    beginning = told_if_slow(f"compiling {total} kernels in {processes} process{'es' * (processes > 1)}")
    with beginning, progress(total) as step:
        while left:
            try:
                for number, result in _finished(function, left, processes):
                    yield result
                    done += len(left.pop(number))
                    step(done)
            except BrokenProcessPool:
                if processes == 1:
                    raise
                processes = 1
                print(f"{ENDED}; what is left is compiled in one process", file=sys.stderr, flush=True)


def _finished(
    function: Callable[[Sequence[Item]], Result], chunks: Mapping[int, Sequence[Item]], processes: int
) -> Iterator[tuple[int, Result]]:
    """Yield the numbers of the chunks as they are done, each with its result."""
    with _pool_of(processes) as pool:
        with _interrupts_held(), _main_hidden():  # processes start with the tasks
            tasks = {pool.submit(function, chunk): number for number, chunk in chunks.items()}
        for task in as_completed(tasks):
            yield tasks[task], task.result()


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
    """Say on stderr how many of `total` kernels are compiled and how long the rest takes, once it takes two seconds."""
    started = time.monotonic()
    said = started + QUIET_S - REPORT_EVERY_S
    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def step(count: int) -> None:
        nonlocal said
        now = time.monotonic()
        if sys.stderr is None or now - said < (0.2 if is_terminal and now - started > QUIET_S else REPORT_EVERY_S):
            return
        said = now
        line = f"compiled {count} of {total} kernels{_left((now - started) * (total - count) / max(count, 1))}"
        end = "\x1b[K\r" if is_terminal else "\n"
        print(line, end=end, file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if is_terminal:
            print("\x1b[2K", end="\r", file=sys.stderr, flush=True)


def _left(seconds: float) -> str:
    """Return a time that is left, in words; nothing where none is."""
    if seconds < 1:
        return ""
    return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
