"""The first module that the fork server loads: kills the workers and their descendants when the
command ends.

The server must not use a GPU, because a process that has used one cannot fork. It leaves the
process group of the command, which may get a signal that the command survives: torchrun sends
SIGTERM to all groups if one rank fails.
"""

import os
import shutil
import signal
import time

import psutil

from bench.harness.worker import COMMAND, POLL_S, kill_tree, orphans, signal_on_parent_exit

MARK = os.environ[COMMAND]
PARENT, _, TEMPORARY = MARK.partition(":")
END_POLLS = 20
"""How often to look whether the command has ended, every `POLL_S`."""


def end(*_signal_and_frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = [child.pid for child in psutil.Process().children()]
    for pid in children + orphans(MARK):
        kill_tree(pid)
    # The signal comes when one thread of the command ends; the others may end a moment later.
    for _ in range(END_POLLS):
        if os.getppid() != int(PARENT):
            break
        time.sleep(POLL_S)
    if TEMPORARY and os.getppid() != int(PARENT):
        shutil.rmtree(TEMPORARY, ignore_errors=True)  # a killed command leaves it
    os._exit(0)


os.setpgid(0, 0)
signal.signal(signal.SIGTERM, end)
signal_on_parent_exit(signal.SIGTERM)
if os.getppid() != int(PARENT):  # it ended before
    end()
