"""What stands for `torch.cuda`: one device with its streams, events, graphs, memory and properties.

Streams are not kept apart: all work runs in the order in which it is queued, as on one stream.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from tests.simulated_gpu.clock import GRAPH_LAUNCH_S, L2_BYTES, TICK_S, TIMELINE
from tests.simulated_gpu.memory import MEMORY
from tests.simulated_gpu.tensors import Capture, capturing, ran

FREE_BYTES = 2 * 2**30
SPIN_CYCLES_PER_S = 1.98e9
EVENT_S = 2e-6

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    total_memory=85_029_158_912,
    multi_processor_count=132,
    major=9,
    minor=0,
    L2_cache_size=L2_BYTES,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233_472,
    shared_memory_per_block_optin=232_448,
    uuid="00000000-0000-0000-0000-000000000000",
    gcnArchName="",
    is_integrated=0,
)
"""Names as `torch.cuda.get_device_properties` has them, values of an H100 SXM."""


def refuse_in_capture(what: str) -> None:
    """Raise what CUDA raises when the host waits for, or asks, a stream that is being recorded."""
    if capturing:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


def index_of(device: Any) -> int:
    """Return the number of a device as torch takes it: None, a number, a name or a `torch.device`."""
    if device is None or isinstance(device, int):
        index = device or 0
    else:
        asked = torch.device(device)
        if asked.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {asked}")
        index = asked.index or 0
    if index not in (0, -1):
        raise RuntimeError("CUDA error: invalid device ordinal")
    return 0


class Stream:
    """A stream; number 0 is the default one."""

    made = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        index_of(device)
        Stream.made += 1
        self.cuda_stream = Stream.made << 12
        self.device = torch.device("cuda", 0)

    def synchronize(self) -> None:
        refuse_in_capture("Stream.synchronize")
        TIMELINE.wait()

    def wait_event(self, event: Event) -> None:
        if event.passes_s is None:
            raise RuntimeError("the event was never recorded")

    def wait_stream(self, other: Stream) -> None:
        if not isinstance(other, Stream):
            raise TypeError(f"a stream is needed, not {other!r}")

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        refuse_in_capture("Stream.query")
        return True

    def __enter__(self) -> Stream:
        _current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.pop()


class ExternalStream(Stream):
    """A stream made elsewhere."""


class Event:
    """A mark in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.enable_timing, self.passes_s = enable_timing, None

    def record(self, stream: Stream | None = None) -> None:
        if capturing:
            return
        self.passes_s = TIMELINE.run(EVENT_S / 2)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        refuse_in_capture("Event.query")
        return self.passes_s is None or self.passes_s <= time.perf_counter()

    def synchronize(self) -> None:
        refuse_in_capture("Event.synchronize")
        TIMELINE.wait()
        self.is_waited_for = True

    def elapsed_time(self, end: Event) -> float:
        """Return milliseconds."""
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'")
        if self.passes_s is None or end.passes_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time")
        if end.passes_s > time.perf_counter():
            raise RuntimeError("CUDA error: device not ready")
        return round((end.passes_s - self.passes_s) / TICK_S) * TICK_S * 1e3


class CUDAGraph:
    """A recording of operations. A replay takes their time, and runs each distinct one again where anything else has
    run since the last one: the same operations on the same buffers would give the same values."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._capture: Capture | None = None
        self._ran_at = -1

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if capturing:
            raise RuntimeError("a capture is going on already")
        self._capture = Capture()
        capturing.append(self._capture)

    def capture_end(self) -> None:
        if capturing.pop().is_broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        if not self._capture.replays:
            warnings.warn("The CUDA Graph is empty.", stacklevel=2)

    def replay(self) -> None:
        if self._capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        TIMELINE.run(self._capture.seconds, GRAPH_LAUNCH_S)
        if self._ran_at != ran.count:
            TIMELINE.owed += [again for again, _ in self._capture.replays.values()]
            self._ran_at = ran.count

    def reset(self) -> None:
        if capturing and self._capture not in (None, capturing[-1]):
            capturing[-1].is_broken = True  # no graph may be destroyed while another one is recorded
        self._capture = None

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> Any:
        return (0, 1)


class graph:  # noqa: N801  the name of torch
    """Records what runs within the context, on a stream that is not the default one."""

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"):
        self._graph, self._stream = cuda_graph, stream or Stream()

    def __enter__(self) -> None:
        synchronize()
        self._stream.__enter__()
        self._graph.capture_begin()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._graph.capture_end()
        self._stream.__exit__()


DEFAULT_STREAM = Stream.__new__(Stream)
DEFAULT_STREAM.cuda_stream = 0
DEFAULT_STREAM.device = torch.device("cuda", 0)
_current: list[Stream] = [DEFAULT_STREAM]


def current_stream(device: Any = None) -> Stream:
    index_of(device)
    return _current[-1]


def stream(chosen: Stream | None) -> Any:
    if chosen is None:
        return nothing()
    return chosen


@contextmanager
def nothing() -> Any:
    yield


@contextmanager
def device(chosen: Any) -> Any:
    index_of(chosen)
    yield


@contextmanager
def device_of(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {type(tensor)}")
    yield


@contextmanager
def on_legacy_stream() -> Any:
    """Launch as an extension does on stream 0: at once, and no capture sees it."""
    hidden, capturing[:] = list(capturing), []
    try:
        yield
    finally:
        capturing[:] = hidden


def synchronize(device: Any = None) -> None:
    index_of(device)
    refuse_in_capture("synchronize")
    TIMELINE.wait()


def spin(cycles: int) -> None:
    if not isinstance(cycles, int) or cycles < 0:
        raise TypeError(f"_sleep(): argument 'cycles' must be int >= 0, not {cycles!r}")
    TIMELINE.run(cycles / SPIN_CYCLES_PER_S)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    index_of(device)
    refuse_in_capture("mem_get_info")
    return FREE_BYTES, PROPERTIES.total_memory


def get_device_properties(device: Any = None) -> Any:
    index_of(device)
    return PROPERTIES


def get_device_capability(device: Any = None) -> tuple[int, int]:
    index_of(device)
    return PROPERTIES.major, PROPERTIES.minor


def get_device_name(device: Any = None) -> str:
    index_of(device)
    return PROPERTIES.name


def is_current_stream_capturing() -> bool:
    return bool(capturing)


def with_index(result: Callable[[], Any]) -> Any:
    """Return a function of a device that answers with what `result` returns for the one that is there."""

    def answer(device: Any = None) -> Any:
        index_of(device)
        return result()

    return answer


STANDS_FOR = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "_lazy_init": lambda: None,
    "_sleep": spin,
    "empty_cache": lambda: None,
    "ipc_collect": lambda: None,
    "set_device": index_of,
    "max_memory_allocated": with_index(lambda: MEMORY.peak),
    "memory_allocated": with_index(lambda: MEMORY.now),
    "reset_peak_memory_stats": with_index(MEMORY.forget_peak),
    "reset_accumulated_memory_stats": with_index(lambda: None),
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "get_rng_state": with_index(torch.random.get_rng_state),  # random values come from the CPU's generator
    "set_rng_state": lambda state, device=None: torch.random.set_rng_state(state),
    "default_stream": lambda device=None: DEFAULT_STREAM,
    **{
        made.__name__: made
        for made in (
            *(Stream, ExternalStream, Event, CUDAGraph, graph, device, device_of, stream, current_stream),
            *(synchronize, mem_get_info, get_device_properties, get_device_capability, get_device_name),
            is_current_stream_capturing,
        )
    },
}


def install() -> None:
    """Put all of this in the place of `torch.cuda`, and let host memory be pinned."""
    for name, value in STANDS_FOR.items():
        if not hasattr(torch.cuda, name):
            raise AttributeError(f"torch.cuda has no {name}")
        setattr(torch.cuda, name, value)
    torch.version.cuda = "13.0"
    pinned: set[int] = set()

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if tensor.is_cuda:
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        copy = tensor.clone()
        pinned.add(copy.untyped_storage().data_ptr())
        return copy

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = lambda tensor, device=None: tensor.untyped_storage().data_ptr() in pinned
