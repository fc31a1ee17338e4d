"""Loaded by the fork server, after torch, before it forks: what a child runs, so that it is there in milliseconds.

Nothing of torch runs there: a process that has used a GPU must not fork. When the command ends, the kernel sends a
SIGTERM, and the fork server kills its children with all that they have started.
"""

import atexit
import os
import signal
from contextlib import suppress

import psutil

import bench.harness.isolate.child  # noqa: F401
from bench.harness.isolate.ending import die_with


def end(*_: object) -> None:
    """Kill the process group of each child, and end."""
    for child in psutil.Process().children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    os._exit(0)


atexit.register(end)
signal.signal(signal.SIGTERM, end)
die_with(os.getppid(), signal.SIGTERM)
