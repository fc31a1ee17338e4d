"""Functions that end or block their process."""

import ctypes
import os
import signal
import sys
from itertools import count

from torch.nn import functional

CALLS = count()


def gelu_segmentation_fault(x):
    """crash: reads address 0."""
    ctypes.string_at(0)


def gelu_exits(x):
    """exit: `sys.exit(0)`."""
    sys.exit(0)


def gelu_leaves(x):
    """exit: `os._exit(0)`."""
    os._exit(0)


def gelu_hangs(x):
    """hang: an endless loop."""
    while True:
        pass


def gelu_kills_its_parent(x):
    """killed parent: SIGKILL to the process that started it."""
    os.kill(os.getppid(), signal.SIGKILL)
    return functional.gelu(x)
