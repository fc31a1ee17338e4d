"""Clocks that user code replaces. Each function sleeps for 4 ms, so its true time is known."""

import sys
import time

from torch.nn import functional

CLOCK = time.perf_counter
SLEEP_S = 0.004


def eighth():
    return CLOCK() / 8


def honest_gelu(x):
    time.sleep(SLEEP_S)
    return functional.gelu(x)


def gelu_clock_slowed(x):
    """slow clock: `time.perf_counter` runs at an eighth of its speed."""
    time.perf_counter = eighth
    return honest_gelu(x)


def gelu_clock_replaced(x):
    """replaced in all modules: as freezegun does, also where it was imported by name."""
    for module in list(sys.modules.values()):
        if getattr(module, "perf_counter", None) is CLOCK:
            module.perf_counter = eighth
    return honest_gelu(x)


def gelu_clock_frozen(x):
    """frozen clock: `time.perf_counter` does not advance."""
    time.perf_counter = lambda: 1.0
    return honest_gelu(x)
