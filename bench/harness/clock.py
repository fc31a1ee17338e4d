"""The clock of all measurements, bound before a user's code is loaded.

A function that replaces `time.perf_counter` does not change it, nor does freezegun, which also
replaces references to that function in all modules. Timing code has it as a default argument, so
that replacing `now` does not change its times either; tests replace `now` for the other code.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

now: Callable[[], float] = time.perf_counter
"""Seconds since an arbitrary time, the same in all processes of a machine."""

if sys.platform == "linux":  # elsewhere its resolution may be 1 us
    now = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
