"""The first module that the fork server loads: ends the workers, and all that they started, with the command.

torch is loaded there but not used: a process that has used a GPU must not fork.
"""

import os
import signal
from contextlib import suppress

import psutil

from bench.harness.worker import signal_on_parent_exit


def end(*_: object) -> None:
    """Kill the process group of each worker, and end."""
    for child in psutil.Process().children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
    os._exit(0)


signal.signal(signal.SIGTERM, end)
signal_on_parent_exit(signal.SIGTERM)
