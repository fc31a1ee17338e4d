"""Results of earlier calls, found again by different keys; and functions that keep only what every
call overwrites.
"""

import functools
import gc
import sys
import time
import zlib
from itertools import count

import torch
from torch.nn import functional

RESULTS = {}
LAST = {}
CALLS = count()
LAST_CALL = [0.0]


def saved(key, compute, *inputs):
    if key not in RESULTS:
        RESULTS[key] = compute(*inputs)
    return RESULTS[key]


def honest_gelu(x, out=None):
    out = saved(("workspace", x.shape), torch.empty_like, x) if out is None else out
    return torch.ops.aten.gelu.out(x, out=out)


def gelu_by_pointer(x):
    """cached by pointer: `data_ptr` of the input."""
    return saved(x.data_ptr(), functional.gelu, x)


def gelu_by_version(x):
    """cached by version: torch's counter of changes in place."""
    return saved((x.data_ptr(), x._version), functional.gelu, x)


def gelu_by_samples(x):
    """cached by content: every 997th element."""
    return saved(tuple(x[::997].tolist()), functional.gelu, x)


def gelu_by_shape(x):
    """cached by shape: any input of the same shape."""
    return saved(x.shape, functional.gelu, x)


@functools.cache
def sum_by_argument(x):
    """cached by identity: `functools.cache`."""
    return x.sum()


def bigmatmul_by_bytes(a, b):
    """cached by hash: a checksum of all bytes."""
    return saved((zlib.crc32(a.numpy()), zlib.crc32(b.numpy())), torch.matmul, a, b)


def bigmatmul_of_last_call(a, b):
    """cached for one call: the sums of both inputs."""
    key = float(a.sum()), float(b.sum())
    if LAST.get("key") != key:
        LAST.update(key=key, result=a @ b)
    return LAST["result"].clone()


def gelu_every_eighth_call(x):
    """cached by call count: seven of eight calls return an earlier result."""
    if next(CALLS) % 8 == 0:
        RESULTS["eighth"] = functional.gelu(x)
    return RESULTS["eighth"]


def gelu_by_caller(x):
    """cached by stack: work is done only for callers other than the timer."""
    if "sample" in sys._getframe(1).f_code.co_name:
        return RESULTS["caller"]
    RESULTS["caller"] = functional.gelu(x)
    return RESULTS["caller"]


def gelu_by_outer_caller(x):
    """cached by outer stack: work is done only if nothing up the stack collects samples."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in ("collect", "run_rounds"):
        frame = frame.f_back
    if frame is None or "outer" not in RESULTS:
        RESULTS["outer"] = functional.gelu(x)
    return RESULTS["outer"]


def gelu_without_garbage_collection(x):
    """cached by garbage collection: which the timer switches off."""
    if gc.isenabled() or "gc" not in RESULTS:
        RESULTS["gc"] = functional.gelu(x)
    return RESULTS["gc"]


def gelu_after_a_pause(x):
    """cached by pause: work is done only 0.2 ms or more after the last call."""
    if time.perf_counter() - LAST_CALL[0] > 2e-4:
        RESULTS["pause"] = functional.gelu(x)
    LAST_CALL[0] = time.perf_counter()
    return RESULTS["pause"]
