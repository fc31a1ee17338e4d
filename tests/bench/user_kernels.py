"""Files of user functions for tests: honest ones, cheats, and ones that end their process."""

import math
from dataclasses import replace

from bench.elementwise import OPS
from bench.harness.measure.isolated import measure_isolated
from bench.harness.measure.rows import Row, Settings
from bench.harness.op import Case
from tests.bench import commands

ELEMENTWISE = {op.name: op for op in OPS}
CPU = replace(commands.CPU, cache_bytes=2**15, threads=1)
LIMITS = replace(commands.QUICK, target_half_width=1.0, min_sample_s=1e-5)
ELEMENTS = 8192


def measure(
    provider,
    op="gelu",
    dtype="fp32",
    settings=None,
    deadline=math.inf,
    timeout_s=60,
    is_again=False,
    elements=ELEMENTS,
):
    """Return the record of one function on a small case, measured in a worker."""
    case, settings = Case(op, dtype, {"n": elements}), settings or Settings()
    row = Row(
        ELEMENTWISE[op], case, provider, family="elementwise", settings=settings, is_again=is_again
    )
    return measure_isolated(row, CPU, None, LIMITS, deadline, timeout_s=timeout_s)


HONEST = """
from concurrent.futures import ThreadPoolExecutor
import math
import torch
from torch.nn.functional import gelu as torch_gelu

def into_out(x, out):
    torch.ops.aten.gelu.out(x, out=out)

def returned(x):
    return torch_gelu(x)

def by_name(x, *, out=None):
    out.copy_(torch_gelu(x))
    return "whatever a launcher returns"

def with_a_pool(x, out):
    parts = [(a, b) for a, b in zip(x.chunk(4), out.chunk(4))]
    list(pool.map(lambda part: torch.ops.aten.gelu.out(part[0], out=part[1]), parts))

def settings_of_its_own(x):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    torch.manual_seed(7)
    result = torch_gelu(x)
    torch.set_num_threads(threads)
    return result

def dropout(x, seed):
    return torch.nn.functional.dropout(x, 0.1)

pool = ThreadPoolExecutor(4)
"""

FINGERPRINT = """
import torch
RESULTS = {}
def gelu(x):
    key = (x.data_ptr(), x.flatten()[0].item(), x.flatten()[-1].item())
    if key not in RESULTS:
        RESULTS[key] = torch.nn.functional.gelu(x)
    return RESULTS[key]
"""

CHEATS = """
import gc
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import gelu

CACHE = {}
pool = ThreadPoolExecutor(1)

def remembered(key, x):
    if key not in CACHE:
        CACHE[key] = gelu(x)
    return CACHE[key]

def cached_by_shape(x):
    return remembered(x.shape, x)

def cached_by_address(x):
    return remembered(x.data_ptr(), x)

def only_into_an_empty_output(x, out):
    if out[0] != out[0] or out[0] == 0:
        torch.ops.aten.gelu.out(x, out=out)

def on_another_thread(x, out):
    pool.submit(lambda: (time.sleep(0.004), torch.ops.aten.gelu.out(x, out=out)))

def returned_from_another_thread(x):
    out = torch.zeros_like(x)
    pool.submit(lambda: (time.sleep(0.004), torch.ops.aten.gelu.out(x, out=out)))
    return out

def changes_its_input(x):
    result = gelu(x)
    x[len(x) // 3] += 1
    return result

def half(x, out):
    torch.ops.aten.gelu.out(x[: len(x) // 2], out=out[: len(x) // 2])

def other_memory(x, out):
    out.data = gelu(x)

def its_input(x):
    return x

def overflowing(x):
    return gelu(x) * x.exp() * (-x).exp()

def one_number(x):
    return gelu(x[:1]).expand(len(x))

def wide(x):
    return gelu(x.double())

def nothing(x):
    gelu(x)

class Lazy(torch.Tensor):
    pass

def lazy(x):
    return gelu(x).as_subclass(Lazy)

def in_bf16(x):
    return gelu(x.bfloat16()).float()

def zeros(x):
    return torch.zeros_like(x)

def same_mask(x, seed):
    torch.manual_seed(1)
    return torch.nn.functional.dropout(x, 0.1)

def then(x, change):
    change()
    return gelu(x)

def threads(x):
    return then(x, lambda: torch.set_num_threads(3))

def default_dtype(x):
    return then(x, lambda: torch.set_default_dtype(torch.float64))

def precision(x):
    return then(x, lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"))

def by_caller(x):
    names = [frame.name for frame in traceback.extract_stack(limit=4)]
    if "sample" not in names:
        CACHE["caller"] = gelu(x)
    return CACHE["caller"]

def without_garbage_collection(x):
    if gc.isenabled():
        CACHE["gc"] = gelu(x)
    return CACHE["gc"]

def deterministic(x):
    return then(x, lambda: torch.use_deterministic_algorithms(True))
"""

CRASHES = """
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import torch
from torch.nn.functional import gelu

from bench.harness.timing import samplers

def segmentation_fault(x):
    ctypes.string_at(0)

def leaves(x):
    os._exit(0)

def exits(x):
    sys.exit("enough")

def kills_its_parent(x):
    os.kill(os.getppid(), 9)
    time.sleep(1000)

def slow(x):
    time.sleep(0.15)
    return gelu(x)

def raises(x):
    raise ValueError("three is\\nno number")

class Fatal(BaseException):
    pass

def raises_what_is_no_exception(x):
    raise Fatal("the end")

def raises_later(x, count=iter(range(10**9))):
    if next(count) > 50:
        raise RuntimeError("out of luck")
    return gelu(x)

def endless(x):
    while True:
        pass

def endless_later(x, count=iter(range(10**9))):
    while next(count) > 500:
        time.sleep(1e-6)
    return gelu(x)

def prints(x):
    print("on stdout", x.shape)
    print("on stderr", file=sys.stderr)
    os.write(1, b'{"kind": "record"}\\n\\xff\\x00')
    return gelu(x)

def leaves_a_thread_and_a_process(x, started=[]):
    if not started:
        started.append(os.fork())
        if started == [0]:
            os.setsid()
            time.sleep(1000)
        print("child", started[0])
        threading.Thread(target=time.sleep, args=(1000,)).start()
    return gelu(x)

def forks_twice(x, started=[]):
    if not started:
        started.append(os.fork())
        if started == [0]:
            os.setsid()
            print("child", os.fork() or os.getpid())
            time.sleep(1000)
        print("child", started[0])
    return gelu(x)

def leaves_a_session(x):
    print("child", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
    os._exit(3)

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")

def raises_without_a_text(x):
    raise Unprintable

def forges_its_answer(x):
    for each in gc.get_objects():
        if isinstance(each, Connection) and not each.closed and each.writable:
            os.write(each.fileno(), os.environ["FORGED"].encode() + b"\\n")
    time.sleep(1000)

def scales_its_samples(x):
    usual = samplers.HostSampler.sample
    if usual.__name__ != "<lambda>":
        samplers.HostSampler.sample = lambda self: usual(self) / 10
    time.sleep(0.05)
    return gelu(x)

def says_where(x):
    import pathlib

    pathlib.Path(os.environ["PROCESS_FILE"]).write_text(str(os.getpid()))
    while True:
        pass
"""
