"""Stands between the command and a process that runs code which is not ours: who kills its parent kills this one.

It ends when the command does, however that ends, and takes with it all that the process behind it has started.

    python expendable.py PARENT STATUS_FILE ARGUMENTS...    runs `python ARGUMENTS...` and writes how it ended

It imports nothing that takes time, and nothing of this project, so that it is there at once.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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


def end_group() -> None:
    """Kill this process and all that it, or what it has started, has started, as far as they stayed in its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def main(parent: int, status_file: str, arguments: list[str]) -> None:
    """Run Python with these arguments, wait for its end, and write its wait status."""
    when_gone(parent, end_group)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(own)
        os.execv(sys.executable, [sys.executable, *arguments])
    status = os.waitpid(child, 0)[1]
    Path(status_file).write_text(str(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
