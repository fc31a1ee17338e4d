"""Ends a process when its parent ends, however that one ends."""

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; where it has ended already, end now."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def when_gone(parent: int, end: Callable[[], None]) -> None:
    """Let the kernel tell this process when its parent ends, also where it was stopped; then `end` is called.

    The signal is the one that wakes up a stopped process. Whoever else sends it finds the parent there.
    """

    def look(*_: object) -> None:
        if os.getppid() != parent:
            try:
                end()
            finally:
                os._exit(1)

    signal.signal(signal.SIGCONT, look)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    look()
