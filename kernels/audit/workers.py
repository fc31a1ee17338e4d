"""Processes that compile for this one and end with it, however it ends.

They run no code of users but what is compiled, so that they need no heartbeat, and Python's own pool does.
"""

import ctypes
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context, parent_process

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of processes that start afresh, because threads of torch and the compiler do not survive a fork.

    They are killed when the block is left by an error or Ctrl-C, and by the kernel when this process ends. What they
    leave in their folder for temporary files goes with the block.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pool = ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent, (folder,))
        try:
            yield pool
        except BaseException:
            for process in active_children():
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends; processes started in it never get one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(folder: str) -> None:
    """In a new process: let the kernel kill it when its parent ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)
