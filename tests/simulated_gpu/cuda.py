"""A replacement of `torch.cuda`: one device with its streams, events, graphs and properties."""

import warnings
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch

from tests.simulated_gpu.tensors import (
    MEMORY,
    TIMELINE,
    Capture,
    capturing,
    reject_in_capture,
)

FREE_BYTES = 2 * 2**30
SPIN_CYCLES_PER_S = 1.98e9
EVENT_S = 1e-6
POOLS = set()
"""Memory pools of captures that are not released."""

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    total_memory=85_029_158_912,
    multi_processor_count=132,
    major=9,
    minor=0,
    L2_cache_size=2**17,  # small, so that few copies of small inputs fill it
    uuid="00000000-0000-0000-0000-000000000000",
)
"""Fields of `torch.cuda.get_device_properties`, with values of an H100 SXM except for the cache."""


def index_of(device=None):
    """Return the index of a device given as None, an index, a name or a `torch.device`."""
    index = device if isinstance(device, int) else torch.device(device or "cuda").index or 0
    if index not in (0, -1):
        raise RuntimeError("CUDA error: invalid device ordinal")
    return 0


class Stream:
    """A stream; number 0 is the default one."""

    made = 0

    def __init__(self, device=None):
        self.cuda_stream = Stream.made << 12
        Stream.made += 1
        self.device = torch.device("cuda", index_of(device))

    def synchronize(self):
        TIMELINE.wait()

    def __enter__(self):
        current.append(self)
        return self

    def __exit__(self, *_):
        current.pop()


class Event:
    """A mark in a stream; it has passed once the host has waited for it or for later work."""

    def __init__(self, enable_timing=False):
        self.enable_timing, self.passes_s = enable_timing, None

    def record(self, stream=None):
        if not capturing:
            self.passes_s = TIMELINE.run(EVENT_S)

    def query(self):
        reject_in_capture()
        return self.passes_s is None or self.passes_s <= TIMELINE.waited_s

    def synchronize(self):
        TIMELINE.wait()

    def elapsed_time(self, end):
        """Return milliseconds."""
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'")
        if self.passes_s is None or end.passes_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time")
        if not end.query():
            raise RuntimeError("CUDA error: device not ready")
        return (end.passes_s - self.passes_s) * 1e3


class CUDAGraph:
    """A recording of operations. A replay takes their time, and runs each distinct one again if
    anything else has run since the last one: the same operations on the same buffers would give the
    same values."""

    def __init__(self):
        self._capture, self._ran_at, self._pool = None, -1, None

    def capture_begin(self, pool=None):
        if capturing:
            raise RuntimeError("a capture is under way already")
        self._capture, self._pool = Capture(), pool
        POOLS.add(pool)
        capturing.append(self._capture)

    def capture_end(self):
        if capturing.pop().is_broken:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )
        if not self._capture.replays:
            warnings.warn("The CUDA Graph is empty.", stacklevel=2)

    def replay(self):
        if self._capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        TIMELINE.run(self._capture.seconds)
        if self._ran_at != TIMELINE.operations:
            for again, _ in self._capture.replays.values():
                again()
            self._ran_at = TIMELINE.operations

    def reset(self):
        if capturing and self._capture not in (None, capturing[-1]):
            capturing[-1].is_broken = True  # no graph may be destroyed during a capture
        # A failed capture keeps its pool.
        if self._capture is not None and not self._capture.is_broken:
            POOLS.discard(self._pool)
        self._capture = None

    def __del__(self):
        self.reset()


class graph:  # noqa: N801  the name of torch
    """Captures what runs within the context, by default on one stream for all captures."""

    default_capture_stream = Stream()

    def __init__(self, cuda_graph, pool=None, stream=None):
        self._stream = stream or self.default_capture_stream
        self._graph, self._pool = cuda_graph, pool or object()

    def __enter__(self):
        synchronize()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool)

    def __exit__(self, *_):
        self._graph.capture_end()
        self._stream.__exit__()


class HostGenerator(torch.Generator):
    def __new__(cls, device=None):
        return super().__new__(cls)


current = [Stream()]


@contextmanager
def on_device(chosen):
    index_of(chosen)
    yield


@contextmanager
def on_legacy_stream():
    """Launch as an extension does on stream 0: immediately, and no capture sees it."""
    hidden, capturing[:] = list(capturing), []
    try:
        yield
    finally:
        capturing[:] = hidden


def synchronize(device=None):
    index_of(device)
    TIMELINE.wait()


def spin(cycles):
    if not isinstance(cycles, int) or cycles < 0:
        raise TypeError(f"_sleep(): argument 'cycles' must be int >= 0, not {cycles!r}")
    TIMELINE.run(cycles / SPIN_CYCLES_PER_S)


def mem_get_info(device=None):
    index_of(device)
    reject_in_capture()
    return FREE_BYTES, PROPERTIES.total_memory


def answering(result):
    """Return a function of a device that returns `result` for the only device."""
    return lambda device=None: (index_of(device), result)[1]


STANDS_FOR = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_current_stream_capturing": lambda: bool(capturing),
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "current_stream": lambda device=None: current[-1],
    "stream": lambda chosen: chosen or nullcontext(),
    "device": on_device,
    "device_of": lambda tensor: nullcontext(),
    "set_device": index_of,
    "synchronize": synchronize,
    "empty_cache": lambda: None,
    "graph_pool_handle": object,
    "mem_get_info": mem_get_info,
    "get_device_properties": answering(PROPERTIES),
    "memory_allocated": lambda device=None: MEMORY.used,
    "max_memory_allocated": lambda device=None: MEMORY.peak,
    "reset_peak_memory_stats": lambda device=None: MEMORY.reset(),
    "_lazy_init": lambda: None,
    "_sleep": spin,
    **{made.__name__: made for made in (Stream, Event, CUDAGraph, graph)},
}


def install():
    """Replace `torch.cuda`, allow pinned host memory, and draw random numbers on the host."""
    for name, value in STANDS_FOR.items():
        if not hasattr(torch.cuda, name):
            raise AttributeError(f"torch.cuda has no {name}")
        setattr(torch.cuda, name, value)
    torch._C._cuda_endAllocateToPool = lambda device, pool: None
    torch._C._cuda_releasePool = lambda device, pool: POOLS.remove(pool)
    torch.version.cuda = "13.0"
    torch.Generator = HostGenerator
    pinned = set()

    def pin_memory(tensor, device=None):
        if tensor.is_cuda:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        copy = tensor.clone()
        pinned.add(copy.untyped_storage().data_ptr())
        return copy

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = lambda tensor, device=None: (
        tensor.untyped_storage().data_ptr() in pinned
    )
