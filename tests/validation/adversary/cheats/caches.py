"""Results of earlier calls, found again by different keys; and functions that keep only what every
call overwrites.
"""

import functools
import sys
import zlib
from itertools import count

import torch
from torch.nn import functional

RESULTS = {}
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


def matmul_by_bytes(a, b):
    """cached by hash: a checksum of all bytes."""
    return saved((zlib.crc32(a.numpy()), zlib.crc32(b.numpy())), torch.matmul, a, b)


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
