"""Processes that work for this one and end with it, however it ends."""

import ctypes
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of processes that start afresh, because threads of torch and the compiler do not survive a fork.

    They end when the block is left by an error or Ctrl-C, in the middle of what they do, and when this process ends.
    What they leave in their folder for temporary files goes with the block.
    """
    context = get_context("spawn")
    # Nothing is ever sent: the reading ends learn that the writing end is closed, by this block or with this process.
    theirs, ours = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, theirs, ours:
        pool = ProcessPoolExecutor(processes, context, end_with_parent, (theirs, folder))
        try:
            yield pool
        except BaseException:
            ours.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block ends; processes started in it never get one, as far as the system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(channel: Connection, folder: str) -> None:
    """In a new process: end when the other end of the channel is closed, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder
    threading.Thread(target=_wait, args=(channel,), daemon=True).start()
    if sys.platform == "linux":  # a compiler may keep Python's threads waiting, but not the kernel
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        parent = parent_process()
        if parent is None or os.getppid() != parent.pid:
            os._exit(1)


def _wait(channel: Connection) -> None:
    with suppress(EOFError, OSError):
        channel.recv_bytes()
    os._exit(1)
