"""What tests ask about processes that they have started."""

import multiprocessing
import time

import psutil

LOCKS = []


def is_running(pid):
    """Return whether a process is there and is more than the memory of one that has ended."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def soon(condition, seconds=120):
    """Return whether a condition comes to hold."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def descendants(pid):
    """Return the processes that a process, or one of those, has started, and that are still below it."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def keep_a_lock():
    """Make a lock that lives as long as the process, as a progress bar of a library does."""
    LOCKS.append(multiprocessing.RLock())
