"""Ends a process when its parent ends, however that one ends."""

import ctypes
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends; if it has ended already, end now."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
