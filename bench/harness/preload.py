"""The first module that the fork server loads: kills the workers and their children when the
command ends.

The server must not use a GPU, because a process that has used one cannot fork. It leaves the
process group of the command, which may get a signal that the command survives: torchrun sends
SIGTERM to all groups if one rank fails.
"""

import os
import signal

import psutil

from bench.harness.worker import kill_tree, signal_on_parent_exit


def end(*_: object) -> None:
    for child in psutil.Process().children():
        kill_tree(child.pid)
    os._exit(0)


os.setpgid(0, 0)
signal.signal(signal.SIGTERM, end)
signal_on_parent_exit(signal.SIGTERM)
