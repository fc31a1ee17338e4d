"""Processes that outlive the function that started them, for a minute."""

import os
import subprocess
from itertools import count

from torch.nn import functional

CALLS = count()
SLEEP = ("sleep", "60")


def gelu_double_fork(x):
    """double fork: a grandchild in its own session, whose parent has ended."""
    if next(CALLS) == 0:
        subprocess.run(("setsid", "--fork", *SLEEP), check=True)
    return functional.gelu(x)


def gelu_own_session(x):
    """own session: a child that is not in the process group."""
    if next(CALLS) == 0:
        subprocess.Popen(SLEEP, start_new_session=True)
    return functional.gelu(x)


def gelu_child_of_a_crash(x):
    """crash with a child: the function crashes, its child does not."""
    subprocess.Popen(SLEEP, start_new_session=True)
    os._exit(3)
