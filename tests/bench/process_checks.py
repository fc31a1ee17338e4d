"""Checks of processes that tests start, and their signal handlers."""

import multiprocessing
import signal
import time
from contextlib import contextmanager

import psutil

LOCKS = []
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def is_running(pid):
    """Return whether a process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def soon(condition, seconds=120):
    """Return whether a condition becomes true within the given time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def descendants(pid):
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def keep_a_lock():
    """Make a lock that lives as long as the process, as the progress bar of a library does."""
    LOCKS.append(multiprocessing.RLock())


@contextmanager
def usual_signals():
    """Let processes that are started within end on Ctrl-C and on SIGTERM, as in a terminal.

    A signal that a process ignores is ignored by its children too, and a shell starts the
    background jobs of a script with Ctrl-C ignored. So a test that sends a signal starts its
    process within this.
    """
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
