"""Loaded by the fork server, after torch, before it forks: what a child runs, so that it is there in milliseconds.

Nothing of torch runs there: a process that has used a GPU must not fork. When the command ends, the kernel sends a
SIGTERM, and the fork server kills its children with all that they have started.
"""

import atexit
import os
import signal
import sys
from contextlib import suppress

import psutil

import bench.harness.isolate.child  # noqa: F401
from bench.harness.isolate.ending import die_with


def kill_children() -> None:
    """Kill the process group of each child."""
    for child in psutil.Process().children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


atexit.register(kill_children)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
die_with(os.getppid(), signal.SIGTERM)
